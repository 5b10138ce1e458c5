//! Field reports on publication, generation and reset: 19 and 21. READY means complete, verified and current.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use tender_proto::{Reason, v1};
use tender_tests::attach::{attach, commit_item};
use tender_tests::daemon::{ChildDaemon, Daemon, SLOT_BLOCK_BYTES, Setup};
use tender_tests::raw::{Ask, RawSession, collect, digest, get_item, item, refused};
use tender_tests::{conserve, fixture, pattern};

/// MISS, the slot is back, and the next put of the same key works.
async fn gone_and_storable(
    daemon: &Daemon,
    session: &RawSession,
    descriptor: &tender_proto::Descriptor,
    what: &str,
) {
    let namespace = descriptor.digest();
    let full = fixture::full(descriptor);
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!(audit.used_bytes, 0, "{what}: the slot is reclaimed");
    let found = session.lookup(namespace, &[fixture::chunk(1)], Ask::LEASE).await.unwrap();
    assert_eq!(found.chunks[0].state(), v1::ChunkState::Miss, "{what}");
    assert!(found.lease.is_none(), "{what}");
    session.must_store(descriptor, fixture::chunk(1), fixture::PART, full).await;
    let (_, bytes) = session.read(namespace, fixture::chunk(1), fixture::PART).await.unwrap();
    pattern::assert_same(&bytes, &pattern::blob(descriptor, fixture::chunk(1), fixture::PART, full), what);
    session.client.reset(namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn field_19_a_key_is_visible_only_with_all_its_verified_bytes() {
    let daemon = Daemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("field 19", SLOT_BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    let session = daemon.client().await.open_registered(&descriptor).await;
    let good = pattern::blob(&descriptor, fixture::chunk(1), fixture::PART, full);
    let reserve =
        || session.reserve_one(descriptor.digest(), item(fixture::chunk(1), fixture::PART, full, good.len()));

    // (a) 60 % of the data, then the stream is reset.
    let reservation = reserve().await.unwrap();
    let frames = session.frames(reservation, full, &good, good.len() / 5);
    let (sender, receiver) = tokio::sync::mpsc::channel(8);
    let mut store = session.client.store.clone();
    let putting =
        tokio::spawn(async move { store.put(tokio_stream::wrappers::ReceiverStream::new(receiver)).await });
    for frame in frames.into_iter().take(3) {
        sender.send(frame).await.unwrap();
    }
    conserve::until(daemon.engine(), "the write is under way", |a| a.writers == 1).await;
    putting.abort();
    assert!(putting.await.unwrap_err().is_cancelled());
    drop(sender);
    conserve::until(daemon.engine(), "the writer let go", |a| a.writers == 0).await;
    drop(session.abort(&[reservation]).await);
    gone_and_storable(&daemon, &session, &descriptor, "a stream that was reset").await;

    // (b) All data, wrong checksum.
    let mut frames = session.frames(reserve().await.unwrap(), full, &good, good.len());
    frames[0].digest = digest(b"something else");
    let outcome = session.put(frames).await.unwrap()[0];
    assert_eq!((outcome.stored, refused(outcome.refused)), (false, Some(Reason::BadDigest)));
    gone_and_storable(&daemon, &session, &descriptor, "a wrong checksum").await;

    // (c) Fewer and more bytes than declared; the digest is right for what was sent.
    for bytes in [&good[..good.len() - 1], &[&good[..], &[0]].concat()] {
        let frames = session.frames(reserve().await.unwrap(), full, bytes, 20_000);
        let stored = session.put(frames).await.is_ok_and(|outcomes| outcomes[0].stored);
        assert!(!stored, "{} bytes of {}", bytes.len(), good.len());
        gone_and_storable(&daemon, &session, &descriptor, "a wrong length").await;
    }

    // (d) Declared length 0.
    let nothing = v1::ReserveItem { bytes: 0, ..item(fixture::chunk(1), fixture::PART, full, 0) };
    let answer = session.reserve_one(descriptor.digest(), nothing).await.unwrap_err();
    assert_eq!(refused(answer.refused), Some(Reason::WrongSize));
    gone_and_storable(&daemon, &session, &descriptor, "a length of 0").await;

    // (f) A gather that failed: staging holds other bytes than the digest says.
    let shared = attach(daemon.socket(), &session, good.len() as u64).await;
    shared.stage(0, &vec![0; good.len()]);
    let outcome =
        session.commit(vec![commit_item(reserve().await.unwrap(), 0, full, &good)]).await.unwrap()[0];
    assert_eq!((outcome.stored, refused(outcome.refused)), (false, Some(Reason::BadDigest)));
    gone_and_storable(&daemon, &session, &descriptor, "a failed gather").await;
}

/// (e) of case 19: the daemon dies between copy and READY, so all of it must miss.
#[tokio::test(flavor = "multi_thread")]
async fn field_19_a_daemon_killed_before_ready_serves_nothing_of_it() {
    let mut daemon = ChildDaemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("field 19e", SLOT_BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    let session = daemon.client().await.open_registered(&descriptor).await;
    let bytes = pattern::blob(&descriptor, fixture::chunk(1), fixture::PART, full);
    let ask = item(fixture::chunk(1), fixture::PART, full, bytes.len());
    let reservation = session.reserve_one(descriptor.digest(), ask).await.unwrap();
    // All bytes but no last frame.
    let mut frames = session.frames(reservation, full, &bytes, bytes.len() / 4);
    frames.pop();
    let half = tokio_stream::StreamExt::chain(tokio_stream::iter(frames), tokio_stream::pending());
    let mut store = session.client.store.clone();
    let putting = tokio::spawn(async move { store.put(half).await });
    while session.client.stats().await.unwrap().inflight_bytes == 0 {
        tokio::task::yield_now().await;
    }
    daemon.kill();
    assert!(putting.await.unwrap().is_err(), "the writer sees an error");
    daemon.restart().await;
    let session = daemon.client().await.open_registered(&descriptor).await;
    assert_eq!(session.states(descriptor.digest(), &[fixture::chunk(1)]).await, [v1::ChunkState::Miss]);
    assert_eq!(session.client.stats().await.unwrap().arena_used_bytes, 0);
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
}

/// A worker gathers, and its store reaches the daemon only after somebody's reset: the bytes are of before.
#[tokio::test(flavor = "multi_thread")]
async fn field_21_a_store_that_was_gathered_before_the_reset_is_refused() {
    let daemon = Daemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("field 21 late", SLOT_BLOCK_BYTES);
    let (namespace, full) = (descriptor.digest(), fixture::full(&descriptor));
    let session = daemon.client().await.open_registered(&descriptor).await;
    let epoch = session.epoch(&descriptor).await;
    let late = |epoch| v1::ReserveRequest {
        session_id: session.id.clone(),
        namespace: namespace.as_bytes().to_vec().into(),
        items: vec![item(fixture::chunk(1), fixture::PART, full, pattern_bytes(&descriptor))],
        epoch,
    };
    session.client.reset(namespace).await.unwrap();
    let mut store = session.client.store.clone();
    let answer = store.reserve(late(epoch)).await.unwrap().into_inner();
    assert_eq!(refused(answer.outcomes[0].refused), Some(Reason::NamespaceReset));
    assert_eq!(conserve::quiet(daemon.engine()).await.reservations, 0);
    // What is gathered from now on is stored under the epoch that the answer told.
    assert!(answer.epoch > epoch);
    let answer = store.reserve(late(answer.epoch)).await.unwrap().into_inner();
    assert_ne!(answer.outcomes[0].reservation_id, 0);
}

fn pattern_bytes(descriptor: &tender_proto::Descriptor) -> usize {
    pattern::blob(descriptor, fixture::chunk(1), fixture::PART, fixture::full(descriptor)).len()
}

#[tokio::test(flavor = "multi_thread")]
async fn field_21_a_reset_is_complete_before_it_answers() {
    let daemon = Daemon::start(Setup::default()).await;
    let [a, b] = ["field 21 A", "field 21 B"].map(|model| fixture::small(model, 5000));
    let full = fixture::full(&a);
    let first = daemon.client().await.open_registered(&a).await;
    let second = daemon.client().await.open_registered(&a).await;
    for session in [&first, &second] {
        session.register(&b).await.unwrap();
    }
    let chunks: Vec<_> = (0..6).map(fixture::chunk).collect();
    // Equal chunks in both; in A 4 READY, chunk 4 PENDING, chunk 5 leased.
    for n in [0, 1, 2, 3, 5] {
        first.must_store(&a, chunks[n], fixture::PART, full).await;
        first.must_store(&b, chunks[n], fixture::PART, full).await;
    }
    let pending = first.reserve_one(a.digest(), item(chunks[4], fixture::PART, full, 20_000)).await.unwrap();
    let found = second.lookup(a.digest(), &[chunks[5]], Ask::LOCATE).await.unwrap();
    let lease = found.lease.unwrap().id;
    assert_eq!(second.states(a.digest(), &chunks).await[4], v1::ChunkState::Pending);

    let answer = first.client.reset(a.digest()).await.unwrap();
    assert_eq!((answer.dropped_chunks, answer.fenced_reservations), (5, 1));
    for session in [&first, &second] {
        assert_eq!(session.states(a.digest(), &chunks).await, [v1::ChunkState::Miss; 6]);
        let states = session.states(b.digest(), &chunks).await;
        assert_eq!(states.iter().filter(|s| **s == v1::ChunkState::Ready).count(), 5, "B is untouched");
    }
    // The pending put cannot become READY.
    let bytes = pattern::blob(&a, chunks[4], fixture::PART, full);
    let outcome = first.put(first.frames(pending, full, &bytes, 20_000)).await.unwrap()[0];
    assert_eq!((outcome.stored, refused(outcome.refused)), (false, Some(Reason::NamespaceReset)));
    assert_eq!(second.states(a.digest(), &chunks).await, [v1::ChunkState::Miss; 6]);
    // The lease holder may finish reading, both ways, and nobody new finds it.
    let shared = attach(daemon.socket(), &second, 0).await;
    let expected = pattern::blob(&a, chunks[5], fixture::PART, full);
    pattern::assert_same(&shared.copy(&found.chunks[0].parts[0]), &expected, "the leased chunk's map");
    let parts = collect(second.get(lease, vec![get_item(0, fixture::PART)]).await.unwrap(), 1).await.unwrap();
    pattern::assert_same(&parts[0].as_ref().unwrap().bytes, &expected, "the leased chunk's stream");
    assert_eq!(second.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    // Twice is once.
    let answer = first.client.reset(a.digest()).await.unwrap();
    assert_eq!((answer.dropped_chunks, answer.fenced_reservations), (0, 0));
    // A lives on: what is stored from now on is found.
    second.must_store(&a, chunks[4], fixture::PART, full).await;
    assert_eq!(first.states(a.digest(), &[chunks[4]]).await, [v1::ChunkState::Ready]);
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!(audit.ready_chunks, 6);
}
