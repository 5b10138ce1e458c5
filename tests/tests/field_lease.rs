//! Field reports on leases and eviction: 11 and 29. What is promised or being read cannot change underneath, and
//! every promise ends.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::time::{Duration, Instant};

use tender_daemon::engine::Eviction;
use tender_proto::{ChunkId, Coverage, Descriptor, Reason, v1};
use tender_tests::attach::attach;
use tender_tests::daemon::{Daemon, SLOT_BLOCK_BYTES, Setup};
use tender_tests::raw::{Ask, RawSession, collect, get_item, refusal, refused};
use tender_tests::{conserve, fixture, pattern};

const TTL_MS: u64 = 200;

fn setting(model: &str) -> (Descriptor, Coverage, Vec<ChunkId>) {
    let descriptor = fixture::small(model, SLOT_BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    (descriptor, full, (0..4).map(fixture::chunk).collect())
}

/// Puts 4 new chunks, each into another slot or refused, promptly. Returns how many were stored.
async fn put_four(session: &RawSession, descriptor: &Descriptor, first: u64) -> usize {
    let mut stored = 0;
    for n in first..first + 4 {
        let asked = Instant::now();
        let full = fixture::full(descriptor);
        let bytes = pattern::blob(descriptor, fixture::chunk(n), fixture::PART, full);
        match session.store(descriptor.digest(), fixture::chunk(n), fixture::PART, full, &bytes).await {
            Ok(outcome) => stored += usize::from(outcome.stored),
            Err(answer) => assert_eq!(refused(answer.refused), Some(Reason::NoSpace)),
        }
        assert!(asked.elapsed() < Duration::from_secs(2), "promptly");
    }
    stored
}

async fn slow_stream(items: u32, model: &str) {
    let daemon = Daemon::start(Setup::slots(4)).await;
    let (descriptor, full, chunks) = setting(model);
    let b = daemon.client().await.open_registered(&descriptor).await;
    for &chunk in &chunks {
        b.must_store(&descriptor, chunk, fixture::PART, full).await;
    }
    let a = daemon.slow_client().await.open_registered(&descriptor).await;
    let found = a.lookup(descriptor.digest(), &chunks, Ask::LEASE.for_ms(TTL_MS)).await.unwrap();
    let lease = found.lease.unwrap().id;
    let wanted = (0..items).map(|index| get_item(index, fixture::PART)).collect();
    let stream = a.get(lease, wanted).await.unwrap();
    // A does not read: back-pressure holds the stream.
    let leased = conserve::audit(daemon.engine());
    assert_eq!((leased.leases, leased.pins), (1, 4));
    assert_eq!(put_four(&b, &descriptor, 10).await, 0, "all slots are leased");
    tokio::time::sleep(Duration::from_secs(1)).await;
    put_four(&b, &descriptor, 20).await;
    // A goes on: whole and right, or a clear error and nothing accepted.
    let mut delivered = 0;
    match collect(stream, items as usize).await {
        Err(status) => assert_eq!(refusal(&status).reason, Reason::LeaseExpired),
        Ok(parts) => {
            for (part, &chunk) in parts.iter().zip(&chunks) {
                match part {
                    Err(reason) => assert_eq!(*reason, Reason::LeaseExpired),
                    Ok(read) => {
                        let expected = pattern::blob(&descriptor, chunk, fixture::PART, full);
                        pattern::assert_same(&read.bytes, &expected, "what a slow reader got");
                        delivered += 1;
                    }
                }
            }
        }
    }
    assert!(delivered <= items);
    assert_eq!(a.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Expired], "so nothing of it is used");
    assert_eq!(daemon.engine().stats().expired_leases, 1);
    conserve::quiet(daemon.engine()).await;
    assert_eq!(put_four(&b, &descriptor, 30).await, 4, "all slots are usable again");
}

#[tokio::test(flavor = "multi_thread")]
async fn field_11_a_slow_single_get_never_sees_mixed_bytes() {
    slow_stream(1, "field 11 single").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_11_a_slow_batch_get_never_sees_mixed_bytes() {
    slow_stream(4, "field 11 batch").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_11_a_slow_map_reader_is_told_before_it_uses_anything() {
    let daemon = Daemon::start(Setup { eviction: Eviction::Lru, ..Setup::slots(4) }).await;
    let (descriptor, full, chunks) = setting("field 11 map");
    let b = daemon.client().await.open_registered(&descriptor).await;
    for &chunk in &chunks {
        b.must_store(&descriptor, chunk, fixture::PART, full).await;
    }
    let a = daemon.client().await.open_registered(&descriptor).await;
    let shared = attach(daemon.socket(), &a, 0).await;
    let found = a.lookup(descriptor.digest(), &chunks, Ask::LOCATE.for_ms(TTL_MS)).await.unwrap();
    let granted = Instant::now();
    let place = &found.chunks[0].parts[0];
    // While the lease lives the bytes stand still, whatever others want.
    put_four(&b, &descriptor, 10).await;
    if granted.elapsed() < Duration::from_millis(TTL_MS) {
        let expected = pattern::blob(&descriptor, chunks[0], fixture::PART, full);
        pattern::assert_same(&shared.copy(place), &expected, "a leased slot");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(put_four(&b, &descriptor, 20).await, 4);
    // The slot holds another chunk now. Its digest, and the release, say that it must not be used.
    let late = shared.copy(place);
    assert_ne!(blake3::hash(&late).as_bytes()[..], place.digest[..], "the slot was used again");
    assert_eq!(a.release(&[found.lease.unwrap().id]).await.unwrap(), [v1::LeaseOutcome::Expired]);
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_29_what_a_lookup_promised_is_delivered_and_every_promise_ends() {
    let daemon = Daemon::start(Setup { eviction: Eviction::Lru, ..Setup::slots(8) }).await;
    let (descriptor, full, _) = setting("field 29");
    let namespace = descriptor.digest();
    let reader = daemon.client().await.open_registered(&descriptor).await;
    let writer = daemon.client().await.open_registered(&descriptor).await;
    let six: Vec<_> = (0..6).map(fixture::chunk).collect();
    for &chunk in &six {
        writer.must_store(&descriptor, chunk, fixture::PART, full).await;
    }
    let found = reader.lookup(namespace, &six, Ask::LEASE.for_ms(30_000)).await.unwrap();
    let lease = found.lease.unwrap().id;
    assert_eq!(put_four(&writer, &descriptor, 10).await + put_four(&writer, &descriptor, 14).await, 8);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let items = (0..6).map(|index| get_item(index, fixture::PART)).collect();
    let parts = collect(reader.get(lease, items).await.unwrap(), 6).await.unwrap();
    for (part, &chunk) in parts.iter().zip(&six) {
        let expected = pattern::blob(&descriptor, chunk, fixture::PART, full);
        pattern::assert_same(&part.as_ref().unwrap().bytes, &expected, "a promised chunk");
    }
    assert_eq!(conserve::audit(daemon.engine()).pins, 6);
    // The engine takes only the last 2 of 6 and releases the whole promise.
    assert_eq!(reader.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    assert_eq!(conserve::quiet(daemon.engine()).await.pins, 0);
    assert_eq!(put_four(&writer, &descriptor, 20).await + put_four(&writer, &descriptor, 24).await, 8);
    assert_eq!(reader.states(namespace, &six).await, [v1::ChunkState::Miss; 6], "all slots could be evicted");
    // Nobody ever collects it: aborted before allocation, the session goes on, or the session ends.
    let eight: Vec<_> = (20..28).map(fixture::chunk).collect();
    reader.lookup(namespace, &eight, Ask::LEASE.for_ms(100)).await.unwrap().lease.unwrap();
    assert_eq!(conserve::quiet(daemon.engine()).await.pins, 0, "it ends by its time");
    reader.lookup(namespace, &eight, Ask::LEASE.for_ms(60_000)).await.unwrap().lease.unwrap();
    drop(reader);
    assert_eq!(conserve::quiet(daemon.engine()).await.pins, 0, "it ends with its session");
    assert_eq!(put_four(&writer, &descriptor, 40).await, 4);
    // Ranks that find different lengths belong to multi-rank work; salts are part of the key (case 1), so a
    // release cannot be made under another one. The scheduler's own promises: field_order.rs.
}
