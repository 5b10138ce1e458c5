//! Faults while chunks are stored and served: one part is refused with its reason, everything else goes on.

use tender_daemon::engine::{Engine, LeaseAsk, ReserveAnswer};
use tender_daemon::fault::{Fault, Faults};
use tender_proto::{PartIndex, Reason, v1};
use tender_tests::attach::{attach, commit_item};
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::raw::{Ask, RawSession, collect, get_item, item, reason, refused, within};
use tender_tests::{conserve, fixture, pattern};

use super::{BLOCK_BYTES, Bench, EIO, ENOSPC};

/// A daemon, and two sessions of one namespace.
async fn two() -> (Daemon, tender_proto::Descriptor, RawSession, RawSession) {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("serve", BLOCK_BYTES);
    let one = daemon.client().await.open_registered(&descriptor).await;
    let other = daemon.tcp_client().await.open_registered(&descriptor).await;
    (daemon, descriptor, one, other)
}

fn content(descriptor: &tender_proto::Descriptor, n: u64) -> Vec<u8> {
    pattern::blob(descriptor, fixture::chunk(n), fixture::PART, fixture::full(descriptor))
}

#[test]
fn an_allocator_without_a_range_refuses_the_item_and_holds_nothing() {
    let faults = Faults::begin();
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::on(dir.path());
    bench.store(1).unwrap();
    faults.always(Fault::Allocate, 0);
    assert_eq!(bench.reserve(2), ReserveAnswer::Refused(Reason::NoSpace));
    // What is stored may have been evicted to make room, one chunk after the other, but not while it is read.
    faults.never(Fault::Allocate);
    bench.quiet();
    bench.store(1).unwrap();
    bench.store(2).unwrap();
    let lease = LeaseAsk::Lease { ttl: None, locate: false };
    let held =
        bench.engine.lookup(bench.session, bench.descriptor.digest(), &[fixture::chunk(1)], lease).unwrap();
    faults.always(Fault::Allocate, 0);
    assert_eq!(bench.reserve(3), ReserveAnswer::Refused(Reason::NoSpace));
    assert!(bench.serves(1));
    bench.engine.release(bench.session, &[held.lease.unwrap().id.get()]).unwrap();
    bench.quiet();
}

/// Holes that are each too small for a part: everything is taken with parts of a quarter, and every other one is freed.
#[test]
fn a_fragmented_arena_makes_room_by_evicting_and_refuses_what_cannot_be_evicted() {
    let faults = Faults::begin();
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::on(dir.path());
    let chunks = super::ARENA_BYTES / (4 * BLOCK_BYTES);
    (0..chunks).for_each(|n| bench.store(n).unwrap());
    // Every other chunk is leased, so that what can be evicted lies between what cannot.
    let odd: Vec<_> = (0..chunks).filter(|n| n % 2 == 1).map(fixture::chunk).collect();
    let (namespace, ask) = (bench.descriptor.digest(), LeaseAsk::Lease { ttl: None, locate: false });
    let lease = bench.engine.lookup(bench.session, namespace, &odd, ask).unwrap().lease.unwrap();
    let large = fixture::small("larger", 2 * BLOCK_BYTES);
    bench.engine.register(bench.session, large.clone(), large.digest(), None).unwrap();
    let wanted = tender_daemon::engine::ReserveAsk {
        chunk: fixture::chunk(1),
        part: PartIndex(0),
        coverage_bits: fixture::full(&large).bits(),
        bytes: 8 * BLOCK_BYTES,
    };
    let reserve = |engine: &Engine| engine.reserve(bench.session, large.digest(), &[wanted]).unwrap()[0];
    assert_eq!(reserve(&bench.engine), ReserveAnswer::Refused(Reason::NoSpace));
    assert!((0..chunks).filter(|n| n % 2 == 1).all(|n| bench.serves(n)), "leased chunks stay where they are");
    bench.engine.release(bench.session, &[lease.id.get()]).unwrap();
    bench.quiet();
    let ReserveAnswer::Reserved(id) = reserve(&bench.engine) else { panic!("there is room now") };
    bench.engine.abort(bench.session, &[id.get()]).unwrap();
    bench.quiet();
    drop(faults);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_cannot_be_written_is_refused_and_can_be_stored_anew() {
    let faults = Faults::begin();
    let (daemon, descriptor, one, other) = two().await;
    let full = fixture::full(&descriptor);
    for errno in [ENOSPC, EIO] {
        let bytes = content(&descriptor, 1);
        let ask = item(fixture::chunk(1), fixture::PART, full, bytes.len());
        let reservation = one.reserve_one(descriptor.digest(), ask).await.unwrap();
        // The third of its frames fails; the frames after it are passed over.
        faults.next(Fault::PartWrite, 1, errno);
        let mut frames = one.frames(reservation, full, &bytes, bytes.len() / 4);
        let more =
            other.reserve_one(descriptor.digest(), item(fixture::chunk(2), fixture::PART, full, bytes.len()));
        let more = more.await.unwrap();
        other.abort(&[more]).await.unwrap();
        let second =
            one.reserve_one(descriptor.digest(), item(fixture::chunk(3), fixture::PART, full, bytes.len()));
        frames.extend(one.frames(second.await.unwrap(), full, &content(&descriptor, 3), bytes.len()));
        let outcomes = one.put(frames).await.unwrap();
        assert_eq!(refused(outcomes[0].refused), Some(Reason::Internal), "{outcomes:?}");
        assert!(outcomes[1].stored, "the next part of the same stream: {outcomes:?}");
        conserve::quiet(daemon.engine()).await;
        other.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
        assert!(one.read(descriptor.digest(), fixture::chunk(1), fixture::PART).await.unwrap().1 == bytes);
        one.client.reset(descriptor.digest()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_cannot_be_copied_is_refused_and_its_neighbour_is_stored() {
    let faults = Faults::begin();
    let (daemon, descriptor, one, other) = two().await;
    let full = fixture::full(&descriptor);
    let attached = attach(daemon.socket(), &one, 1 << 20).await;
    let mut items = Vec::new();
    for n in 0..2u64 {
        let bytes = content(&descriptor, n);
        let ask = item(fixture::chunk(n), fixture::PART, full, bytes.len());
        let reservation = one.reserve_one(descriptor.digest(), ask).await.unwrap();
        attached.stage(n * bytes.len() as u64, &bytes);
        items.push(commit_item(reservation, n * bytes.len() as u64, full, &bytes));
    }
    faults.next(Fault::PartWrite, 1, EIO);
    let outcomes = one.commit(items).await.unwrap();
    assert_eq!((refused(outcomes[0].refused), outcomes[1].stored), (Some(Reason::Internal), true));
    conserve::quiet(daemon.engine()).await;
    let states = other.states(descriptor.digest(), &[fixture::chunk(0), fixture::chunk(1)]).await;
    assert_eq!(states, [v1::ChunkState::Miss, v1::ChunkState::Ready]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_cannot_be_opened_fails_alone_and_the_lease_is_good() {
    let faults = Faults::begin();
    let (daemon, descriptor, one, other) = two().await;
    let full = fixture::full(&descriptor);
    let chunks: Vec<_> = (0..3).map(fixture::chunk).collect();
    for &chunk in &chunks {
        one.must_store(&descriptor, chunk, fixture::PART, full).await;
    }
    let lease = other.lookup(descriptor.digest(), &chunks, Ask::LEASE).await.unwrap().lease.unwrap().id;
    faults.next(Fault::PartOpen, 1, EIO);
    let items = (0..3).map(|index| get_item(index, fixture::PART)).collect();
    let parts = collect(other.get(lease, items).await.unwrap(), 3).await.unwrap();
    assert_eq!(parts[0].as_ref().err(), Some(&Reason::Internal));
    for n in 1..3u64 {
        let part = parts[usize::try_from(n).unwrap()].as_ref().unwrap();
        assert!(part.bytes == content(&descriptor, n));
    }
    assert_eq!(other.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_cannot_go_on_ends_with_its_reason_and_holds_nothing() {
    let faults = Faults::begin();
    // Four frames for a part.
    let setup = Setup { max_frame_bytes: 16 << 10, ..Setup::default() };
    let daemon = Daemon::start(setup).await;
    let descriptor = fixture::small("serve", BLOCK_BYTES);
    let session = daemon.client().await.open_registered(&descriptor).await;
    let full = fixture::full(&descriptor);
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
    let namespace = descriptor.digest();
    let lease = session.lookup(namespace, &[fixture::chunk(1)], Ask::LEASE).await.unwrap().lease.unwrap().id;
    faults.next(Fault::PartRead, 1, EIO);
    let mut stream = session.get(lease, vec![get_item(0, fixture::PART)]).await.unwrap();
    let ended = loop {
        match within(stream.message()).await {
            Ok(Some(_)) => {}
            ended => break ended,
        }
    };
    assert_eq!((reason(ended), faults.happened(Fault::PartRead)), (Reason::Internal, 1));
    assert_eq!(session.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    conserve::quiet(daemon.engine()).await;
    assert!(
        session.read(namespace, fixture::chunk(1), fixture::PART).await.unwrap().1 == content(&descriptor, 1)
    );
}

#[test]
fn a_chunk_that_the_scrub_reads_wrong_is_taken_out_and_can_be_stored_anew() {
    let faults = Faults::begin();
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::on(dir.path());
    (0..4).for_each(|n| bench.store(n).unwrap());
    faults.next(Fault::ScrubRead, 1, EIO);
    bench.engine.scrub(u64::MAX);
    assert_eq!(bench.engine.stats().quarantined_chunks, 1);
    assert_eq!((0..4).filter(|&n| bench.serves(n)).count(), 3);
    bench.quiet();
    (0..4).for_each(|n| bench.store(n).unwrap());
    assert!((0..4).all(|n| bench.serves(n)));
    bench.engine.scrub(u64::MAX);
    assert_eq!(bench.engine.stats().quarantined_chunks, 1);
    bench.quiet();
}
