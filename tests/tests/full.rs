//! An arena that is full: of what can go, and of what cannot.

use std::time::{Duration, Instant};

use tender_proto::{Reason, v1};
use tender_tests::daemon::{Daemon, SLOT_BLOCK_BYTES, Setup};
use tender_tests::raw::{Ask, item, refused};
use tender_tests::{conserve, fixture, pattern};

/// Nobody waits for room; this bounds a slow machine.
const AT_ONCE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn an_arena_full_of_leased_chunks_refuses_at_once_and_recovers() {
    let daemon = Daemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("full", SLOT_BLOCK_BYTES);
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let session = daemon.client().await.open_registered(&descriptor).await;
    let chunks: Vec<_> = (0..4).map(fixture::chunk).collect();
    for &chunk in &chunks {
        session.must_store(&descriptor, chunk, fixture::PART, full).await;
    }
    assert_eq!(conserve::quiet(daemon.engine()).await.free_bytes, 0, "four slots are four chunks");
    let found = session.lookup(namespace, &chunks, Ask::LEASE).await.unwrap();
    let lease = found.lease.unwrap().id;

    let asked = Instant::now();
    let bytes = pattern::blob(&descriptor, fixture::chunk(9), fixture::PART, full);
    let answer = session.store(namespace, fixture::chunk(9), fixture::PART, full, &bytes).await.unwrap_err();
    assert_eq!(refused(answer.refused), Some(Reason::NoSpace));
    assert!(asked.elapsed() < AT_ONCE);
    assert!(session.client.refused(Reason::NoSpace).await >= 1);
    for &chunk in &chunks {
        let (_, bytes) = session.read(namespace, chunk, fixture::PART).await.expect("leased chunks stay");
        pattern::assert_same(
            &bytes,
            &pattern::blob(&descriptor, chunk, fixture::PART, full),
            "a leased chunk",
        );
    }

    assert_eq!(session.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    session.must_store(&descriptor, fixture::chunk(9), fixture::PART, full).await;
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!(audit.ready_chunks, 4, "one went so that one could come");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chunk_that_was_unused_for_longest_goes_first() {
    let daemon = Daemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("lru", SLOT_BLOCK_BYTES);
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let session = daemon.client().await.open_registered(&descriptor).await;
    for n in 0..4 {
        session.must_store(&descriptor, fixture::chunk(n), fixture::PART, full).await;
    }
    // Reading chunk 0 makes chunk 1 the oldest.
    session.read(namespace, fixture::chunk(0), fixture::PART).await.unwrap();
    session.must_store(&descriptor, fixture::chunk(4), fixture::PART, full).await;
    let chunks: Vec<_> = (0..5).map(fixture::chunk).collect();
    let answer = session.lookup(namespace, &chunks, Ask::LOOK).await.unwrap();
    let ready: Vec<_> = answer.chunks.iter().map(|c| c.state() == v1::ChunkState::Ready).collect();
    assert_eq!(ready, [true, false, true, true, true]);
    assert_eq!(refused(answer.chunks[1].reason), Some(Reason::Evicted), "a miss says why");
    let stats = session.client.stats().await.unwrap();
    assert_eq!(stats.namespaces[0].evicted_chunks, 1);
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_larger_than_the_arena_is_refused_for_good() {
    let daemon = Daemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("huge", 10 * SLOT_BLOCK_BYTES);
    let session = daemon.client().await.open_registered(&descriptor).await;
    let full = fixture::full(&descriptor);
    let bytes = usize::try_from(40 * SLOT_BLOCK_BYTES).unwrap();
    let ask = item(fixture::chunk(1), fixture::PART, full, bytes);
    let answer = session.reserve_one(descriptor.digest(), ask).await.unwrap_err();
    assert_eq!(refused(answer.refused), Some(Reason::TooLarge), "not 'later': it will never fit");
    assert_eq!(conserve::quiet(daemon.engine()).await.used_bytes, 0);
}
