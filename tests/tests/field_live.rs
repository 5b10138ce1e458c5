//! Field reports on liveness: 23, 24 and 25. No wait without a bound; whoever goes away costs at most a miss.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_proto::{Descriptor, Reason, v1};
use tender_tests::daemon::{Daemon, SLOT_BLOCK_BYTES, Setup};
use tender_tests::raw::{Ask, RawClient, RawSession, get_item, item, refused};
use tender_tests::{conserve, fixture, pattern};

const SLOT_BYTES: usize = 64 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn field_23_a_chunk_that_is_never_finished_becomes_a_miss() {
    let reservation_time = Duration::from_millis(700);
    let daemon = Daemon::start(Setup { reservation: reservation_time, ..Setup::slots(4) }).await;
    let descriptor = fixture::small("field 23", SLOT_BLOCK_BYTES);
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let session = daemon.client().await.open_registered(&descriptor).await;
    let chunks: Vec<_> = (1..5).map(fixture::chunk).collect();
    for n in [0, 2, 3] {
        session.must_store(&descriptor, chunks[n], fixture::PART, full).await;
    }
    let began = Instant::now();
    let reservation =
        session.reserve_one(namespace, item(chunks[1], fixture::PART, full, SLOT_BYTES)).await.unwrap();
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let reader = daemon.client().await.open_registered(&descriptor).await;
        let chunks = chunks.clone();
        readers.spawn(async move {
            // Polls until K2 is decided; K1 can be used at every moment, and no answer is waited for.
            loop {
                let asked = Instant::now();
                let states = reader.states(namespace, &chunks).await;
                assert!(asked.elapsed() < Duration::from_secs(2), "an answer must not wait for a writer");
                assert_eq!(states[0], v1::ChunkState::Ready);
                if states[1] != v1::ChunkState::Pending {
                    return (states[1], began.elapsed());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    for (state, after) in readers.join_all().await {
        assert_eq!(state, v1::ChunkState::Miss);
        assert!(after >= reservation_time / 2, "pending until its time is up, not {after:?}");
        assert!(after < reservation_time + Duration::from_secs(5), "within its deadline, not {after:?}");
    }
    // The slot is free, one expiry is counted, a late commit is refused.
    let audit = conserve::until(daemon.engine(), "the slot is freed", |a| a.reservations == 0).await;
    assert_eq!(audit.used_bytes, 3 * SLOT_BYTES as u64);
    assert_eq!(daemon.engine().stats().expired_reservations, 1);
    let bytes = pattern::blob(&descriptor, chunks[1], fixture::PART, full);
    let outcome = session.put(session.frames(reservation, full, &bytes, SLOT_BYTES)).await.unwrap()[0];
    assert_eq!((outcome.stored, refused(outcome.refused)), (false, Some(Reason::ReservationExpired)));
    assert_eq!(session.states(namespace, &chunks[1..2]).await, [v1::ChunkState::Miss]);
    session.must_store(&descriptor, chunks[1], fixture::PART, full).await;
    conserve::quiet(daemon.engine()).await;
    // The window [READY, READY, MISS, PENDING] is the planner's part: field_geometry.rs.
}

/// One client's life: begin, data, commit, lease, get, release; dropped wherever it happens to be.
async fn life(client: RawClient, descriptor: Descriptor, n: u64) {
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let Ok(session) = client.open("life").await else { return };
    if session.register(&descriptor).await.is_err() {
        return;
    }
    let chunk = fixture::chunk(n % 8);
    let bytes = pattern::blob(&descriptor, chunk, fixture::PART, full);
    _ = session.store(namespace, chunk, fixture::PART, full, &bytes).await;
    let Ok(found) = session.lookup(namespace, &[chunk], Ask::LEASE.for_ms(60_000)).await else { return };
    let Some(lease) = found.lease else { return };
    if let Ok(mut stream) = session.get(lease.id, vec![get_item(0, fixture::PART)]).await {
        let mut read = Vec::new();
        while let Ok(Some(frame)) = stream.message().await {
            read.extend_from_slice(&frame.payload);
        }
        pattern::assert_same(&read, &bytes, "a read among a thousand aborted clients");
    }
    drop(session.release(&[lease.id]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn field_24_clients_that_vanish_in_the_middle_leave_nothing_half_changed() {
    let daemon = Daemon::start(Setup::slots(8)).await;
    let descriptor = fixture::small("field 24", SLOT_BLOCK_BYTES);
    let clients: Arc<Vec<RawClient>> = {
        let mut clients = Vec::new();
        for index in 0..8 {
            clients.push(if index % 2 == 0 { daemon.client().await } else { daemon.tcp_client().await });
        }
        Arc::new(clients)
    };
    let mut tasks = tokio::task::JoinSet::new();
    for lane in 0..20u64 {
        let (clients, descriptor) = (clients.clone(), descriptor.clone());
        tasks.spawn(async move {
            let mut rng = StdRng::seed_from_u64(lane);
            for round in 0..50u64 {
                let client = clients[rng.random_range(0..clients.len())].clone();
                let patience = Duration::from_micros(rng.random_range(0..50_000));
                let whole = life(client, descriptor.clone(), lane * 50 + round);
                drop(tokio::time::timeout(patience, whole).await);
            }
        });
    }
    while let Some(lane) = tasks.join_next().await {
        lane.unwrap();
    }
    // Promptly by drop, not by the 60 s of the leases or the reservations' time.
    let audit = conserve::deserted(daemon.engine()).await;
    assert_eq!(audit.used_bytes, audit.ready_chunks * SLOT_BYTES as u64);
    let session = clients[0].open_registered(&descriptor).await;
    for n in 20..28 {
        session.must_store(&descriptor, fixture::chunk(n), fixture::PART, fixture::full(&descriptor)).await;
    }
    conserve::quiet(daemon.engine()).await;
}

/// Asks for health and for chunks until it is told to stop; the longest and the median answer.
async fn probe(daemon: &Daemon, session: RawSession, namespace: tender_proto::NamespaceDigest) -> Probe {
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let admin = *daemon.admin();
    let task = tokio::spawn(async move {
        let mut times = Vec::new();
        while matches!(stopped.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Empty)) {
            let asked = Instant::now();
            session.states(namespace, &[fixture::chunk(0)]).await;
            assert_eq!(tender_tests::daemon::http_status(&admin, "/live").await, 200);
            times.push(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        times.sort();
        times
    });
    Probe { stop, task }
}

struct Probe {
    stop: tokio::sync::oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Vec<Duration>>,
}

#[tokio::test(flavor = "multi_thread")]
async fn field_25_a_pool_full_of_what_cannot_go_answers_at_once() {
    let daemon = Daemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("field 25", SLOT_BLOCK_BYTES);
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let ask = |n: u64| item(fixture::chunk(n), fixture::PART, full, SLOT_BYTES);
    let one = daemon.client().await.open_registered(&descriptor).await;
    let two = daemon.client().await.open_registered(&descriptor).await;
    let probe = probe(&daemon, daemon.client().await.open_registered(&descriptor).await, namespace).await;

    // 2 pending, 2 leased; one more, and a batch of six.
    for n in [1, 2] {
        one.must_store(&descriptor, fixture::chunk(n), fixture::PART, full).await;
    }
    let found = two.lookup(namespace, &[fixture::chunk(1), fixture::chunk(2)], Ask::LEASE).await.unwrap();
    let lease = found.lease.unwrap().id;
    let held = one.reserve(namespace, vec![ask(3), ask(4)]).await.unwrap();
    assert!(held.iter().all(|outcome| outcome.reservation_id != 0));
    let before = conserve::audit(daemon.engine());
    let asked = Instant::now();
    let answer = two.reserve_one(namespace, ask(5)).await.unwrap_err();
    assert_eq!(refused(answer.refused), Some(Reason::NoSpace));
    let batch = two.reserve(namespace, (10..16).map(ask).collect()).await.unwrap();
    assert!(batch.iter().all(|outcome| refused(outcome.refused) == Some(Reason::NoSpace)), "{batch:?}");
    assert!(asked.elapsed() < Duration::from_secs(2), "at once");
    assert_eq!(conserve::audit(daemon.engine()), before, "a failed batch gives back all it took");

    // After the release the next put succeeds.
    two.release(&[lease]).await.unwrap();
    two.must_store(&descriptor, fixture::chunk(5), fixture::PART, full).await;
    one.abort(&held.iter().map(|outcome| outcome.reservation_id).collect::<Vec<_>>()).await.unwrap();
    conserve::quiet(daemon.engine()).await;

    // Two clients, each holding 2 pending and asking for 2 more: both hear no, neither waits for the other.
    let ones = one.reserve(namespace, vec![ask(20), ask(21)]).await.unwrap();
    let twos = two.reserve(namespace, vec![ask(22), ask(23)]).await.unwrap();
    assert!(ones.iter().chain(&twos).all(|outcome| outcome.reservation_id != 0));
    let (more_one, more_two) = tokio::join!(
        one.reserve(namespace, vec![ask(24), ask(25)]),
        two.reserve(namespace, vec![ask(26), ask(27)])
    );
    for outcome in more_one.unwrap().into_iter().chain(more_two.unwrap()) {
        assert_eq!(refused(outcome.refused), Some(Reason::NoSpace));
    }
    // A batch that fails at its third key: the third has the wrong size, the others are as they would be alone.
    one.abort(&ones.iter().map(|outcome| outcome.reservation_id).collect::<Vec<_>>()).await.unwrap();
    let third = v1::ReserveItem { bytes: 1, ..ask(32) };
    let mixed = one.reserve(namespace, vec![ask(30), ask(31), third, ask(33)]).await.unwrap();
    assert!(mixed[0].reservation_id != 0 && mixed[1].reservation_id != 0);
    assert_eq!(refused(mixed[2].refused), Some(Reason::WrongSize));
    assert_eq!(refused(mixed[3].refused), Some(Reason::NoSpace));
    drop((one, two));
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!(audit.used_bytes, audit.ready_chunks * SLOT_BYTES as u64);

    probe.stop.send(()).unwrap();
    let times = probe.task.await.unwrap();
    let median = times[times.len() / 2];
    assert!(median < Duration::from_millis(100), "health and lookup stay quick: median {median:?}");
    assert!(times.last().unwrap() < &Duration::from_secs(2), "and never hang: {:?}", times.last());
}
