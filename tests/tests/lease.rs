//! A reader that is slower than its lease is told so, and what it read is not used. Nobody ever sees mixed bytes.

use std::time::Duration;

use tender_daemon::engine::Eviction;
use tender_proto::{Descriptor, Reason, v1};
use tender_tests::attach::attach;
use tender_tests::daemon::{Daemon, SLOT_BLOCK_BYTES, Setup};
use tender_tests::raw::{Ask, RawSession, collect, get_item, refusal, refused};
use tender_tests::{conserve, fixture, pattern};

const LEASE_MS: u64 = 200;
const LEASE: Duration = Duration::from_millis(LEASE_MS);

async fn stored(daemon: &Daemon, descriptor: &Descriptor, chunks: u64) -> RawSession {
    let session = daemon.client().await.open_registered(descriptor).await;
    for n in 0..chunks {
        session.must_store(descriptor, fixture::chunk(n), fixture::PART, fixture::full(descriptor)).await;
    }
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_over_says_so_at_release_and_frees_its_chunks() {
    let daemon = Daemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("expiry", SLOT_BLOCK_BYTES);
    let session = stored(&daemon, &descriptor, 4).await;
    let chunks: Vec<_> = (0..4).map(fixture::chunk).collect();
    let ask = Ask::LEASE.for_ms(LEASE_MS);
    let granted = session.lookup(descriptor.digest(), &chunks, ask).await.unwrap().lease.unwrap();
    assert_eq!(granted.lease_ms, LEASE_MS, "the time that was asked for");
    conserve::until(daemon.engine(), "the lease ends by itself", |a| a.leases == 0 && a.pins == 0).await;
    assert_eq!(session.release(&[granted.id]).await.unwrap(), [v1::LeaseOutcome::Expired]);
    assert_eq!(daemon.engine().stats().expired_leases, 1);
    session.must_store(&descriptor, fixture::chunk(9), fixture::PART, fixture::full(&descriptor)).await;
    // A read under it, and a release of somebody else's lease, are refused as what they are.
    match session.get(granted.id, vec![get_item(0, fixture::PART)]).await {
        Err(status) => assert_eq!(refusal(&status).reason, Reason::LeaseExpired),
        Ok(stream) => {
            let parts = collect(stream, 1).await.unwrap();
            assert_eq!(parts, [Err(Reason::LeaseExpired)]);
        }
    }
    assert_eq!(session.release(&[u64::MAX]).await.unwrap(), [v1::LeaseOutcome::Expired]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longer_wish_is_cut_to_the_daemons_maximum() {
    let daemon = Daemon::start(Setup { max_lease: LEASE, default_lease: LEASE, ..Setup::slots(4) }).await;
    let descriptor = fixture::small("cut", SLOT_BLOCK_BYTES);
    let session = stored(&daemon, &descriptor, 1).await;
    let ask = Ask::LEASE.for_ms(u64::MAX);
    let granted =
        session.lookup(descriptor.digest(), &[fixture::chunk(0)], ask).await.unwrap().lease.unwrap();
    assert_eq!(granted.lease_ms, LEASE_MS);
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_stream_is_cut_and_a_slow_map_reader_is_told() {
    let daemon = Daemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("slow", SLOT_BLOCK_BYTES);
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let writer = stored(&daemon, &descriptor, 4).await;
    let chunks: Vec<_> = (0..4).map(fixture::chunk).collect();

    // Windows smaller than a chunk: the daemon cannot send ahead.
    let slow = daemon.slow_client().await.open_registered(&descriptor).await;
    let ask = Ask::LOCATE.for_ms(LEASE_MS);
    let found = slow.lookup(namespace, &chunks, ask).await.unwrap();
    let lease = found.lease.unwrap().id;
    let items = (0..4).map(|index| get_item(index, fixture::PART)).collect();
    let stream = slow.get(lease, items).await.unwrap();
    let shared = attach(daemon.socket(), &slow, 0).await;

    tokio::time::sleep(LEASE * 3).await;
    for n in 10..14 {
        let bytes = pattern::blob_by(&descriptor, fixture::chunk(n), fixture::PART, full, 2);
        // Room or a prompt refusal; never a wait for the slow reader.
        if let Err(answer) = writer.store(namespace, fixture::chunk(n), fixture::PART, full, &bytes).await {
            assert_eq!(refused(answer.refused), Some(Reason::NoSpace));
        }
    }
    // The stream either delivers what was promised, intact, or ends with an error or a reason.
    match collect(stream, 4).await {
        Err(status) => assert_eq!(refusal(&status).reason, Reason::LeaseExpired),
        Ok(parts) => {
            for (part, &chunk) in parts.into_iter().zip(&chunks) {
                match part {
                    Err(reason) => assert_eq!(reason, Reason::LeaseExpired),
                    Ok(read) => {
                        let expected = pattern::blob(&descriptor, chunk, fixture::PART, full);
                        pattern::assert_same(&read.bytes, &expected, "a late stream");
                    }
                }
            }
        }
    }
    // The map shows other chunks' bytes by now; the release is what forbids their use.
    drop(shared.copy(&found.chunks[0].parts[0]));
    assert_eq!(slow.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Expired]);
    drop((slow, shared));
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_holds_against_eviction_until_it_is_released() {
    let daemon = Daemon::start(Setup { eviction: Eviction::Lru, ..Setup::slots(4) }).await;
    let descriptor = fixture::small("holds", SLOT_BLOCK_BYTES);
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let session = stored(&daemon, &descriptor, 4).await;
    let shared = attach(daemon.socket(), &session, 0).await;
    let found = session.lookup(namespace, &[fixture::chunk(0)], Ask::LOCATE).await.unwrap();
    let writer = daemon.client().await.open_registered(&descriptor).await;
    for n in 10..20 {
        writer.must_store(&descriptor, fixture::chunk(n), fixture::PART, full).await;
    }
    let expected = pattern::blob(&descriptor, fixture::chunk(0), fixture::PART, full);
    pattern::assert_same(&shared.copy(&found.chunks[0].parts[0]), &expected, "leased bytes after ten stores");
    assert_eq!(session.release(&[found.lease.unwrap().id]).await.unwrap(), [v1::LeaseOutcome::Live]);
    // Released, it goes like any other.
    for n in 20..24 {
        writer.must_store(&descriptor, fixture::chunk(n), fixture::PART, full).await;
    }
    assert_eq!(session.states(namespace, &[fixture::chunk(0)]).await, [v1::ChunkState::Miss]);
    conserve::quiet(daemon.engine()).await;
}
