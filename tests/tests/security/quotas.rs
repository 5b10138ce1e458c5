//! Quotas, at their edges.

use std::time::{Duration, Instant};

use tender_proto::v1::ChunkState::{self, Miss, Ready};
use tender_proto::{Descriptor, Reason};
use tender_tests::fixture::{self, PART};
use tender_tests::raw::{Ask, RawSession, collect, get_item, item, refused};

use crate::{Secure, Wish};

const BLOCK_BYTES: u64 = 16 << 10;
const CHUNK_BYTES: u64 = 4 * BLOCK_BYTES;

fn model() -> Descriptor {
    fixture::small("quota", BLOCK_BYTES)
}

/// Tenant `a` with this quota, and `b` with none.
async fn daemon(quota: &str) -> Secure {
    Secure::start(Wish::policy(&format!(
        "[[tenant]]\nname = \"a\"\nidentities = [\"dns:a.test\"]\nallow = [\"read\", \"write\"]\nquota = {{ {quota} }}\n\
         [[tenant]]\nname = \"b\"\nidentities = [\"dns:b.test\"]\nallow = [\"read\", \"write\"]\n"
    )))
    .await
}

async fn engine(daemon: &Secure, name: &str) -> RawSession {
    daemon.client(name).await.open_registered(&model()).await
}

async fn store(session: &RawSession, n: u64) {
    session.must_store(&model(), fixture::chunk(n), PART, fixture::full(&model())).await;
}

/// Asks one by one, so that the first is the oldest after it as well.
async fn states(session: &RawSession, chunks: std::ops::Range<u64>) -> Vec<ChunkState> {
    let mut states = Vec::new();
    for n in chunks {
        states.extend(session.states(model().digest(), &[fixture::chunk(n)]).await);
    }
    states
}

/// Why one chunk could not be reserved.
async fn why_not(session: &RawSession, n: u64) -> Option<Reason> {
    let full = fixture::full(&model());
    let bytes = usize::try_from(CHUNK_BYTES).unwrap();
    let wanted = session.reserve_one(model().digest(), item(fixture::chunk(n), PART, full, bytes)).await;
    match wanted {
        Ok(reservation) => {
            session.abort(&[reservation]).await.unwrap();
            None
        }
        Err(outcome) => refused(outcome.refused),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_may_hold_exactly_its_bytes_and_then_evicts_its_own_oldest() {
    let daemon = daemon(&format!("bytes = {}", 2 * CHUNK_BYTES)).await;
    let (a, b) = (engine(&daemon, "a.test").await, engine(&daemon, "b.test").await);
    store(&b, 0).await;
    store(&a, 0).await;
    store(&a, 1).await;
    assert_eq!(states(&a, 0..2).await, [Ready, Ready], "exactly at the quota");
    store(&a, 2).await;
    assert_eq!(states(&a, 0..3).await, [Miss, Ready, Ready], "one more: its own oldest went");
    assert_eq!(states(&b, 0..1).await, [Ready], "nobody else's, older as it is");
    store(&b, 1).await;
    daemon.app.engine().audit().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_byte_less_than_two_chunks_is_room_for_one() {
    let daemon = daemon(&format!("bytes = {}", 2 * CHUNK_BYTES - 1)).await;
    let a = engine(&daemon, "a.test").await;
    store(&a, 0).await;
    store(&a, 1).await;
    assert_eq!(states(&a, 0..2).await, [Miss, Ready]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_chunks_is_kept_to_and_what_is_in_use_is_not_evicted_for_more() {
    let daemon = daemon("chunks = 2").await;
    let a = engine(&daemon, "a.test").await;
    store(&a, 0).await;
    store(&a, 1).await;
    let two = [fixture::chunk(0), fixture::chunk(1)];
    let lease = a.lookup(model().digest(), &two, Ask::LEASE).await.unwrap().lease.unwrap();
    assert_eq!(why_not(&a, 2).await, Some(Reason::OverQuota));
    assert_eq!(states(&a, 0..2).await, [Ready, Ready]);
    let counted = "tender_access_refusals_total{tenant=\"a\",reason=\"over_quota\"}";
    assert_eq!(daemon.metric(counted).await, 1);
    a.release(&[lease.id]).await.unwrap();
    assert_eq!(states(&a, 0..2).await, [Ready, Ready]);
    store(&a, 2).await;
    assert_eq!(states(&a, 0..3).await, [Miss, Ready, Ready]);
    daemon.app.engine().audit().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_fit_is_refused_and_evicts_nothing() {
    let daemon = daemon(&format!("bytes = {CHUNK_BYTES}")).await;
    let a = engine(&daemon, "a.test").await;
    store(&a, 0).await;
    let large = fixture::small("large", 2 * BLOCK_BYTES);
    a.register(&large).await.unwrap();
    let bytes = usize::try_from(2 * CHUNK_BYTES).unwrap();
    let outcome = a
        .reserve_one(large.digest(), item(fixture::chunk(1), PART, fixture::full(&large), bytes))
        .await
        .unwrap_err();
    assert_eq!(refused(outcome.refused), Some(Reason::OverQuota));
    assert_eq!(states(&a, 0..1).await, [Ready]);
    let audit = daemon.app.engine().audit().unwrap();
    assert_eq!((audit.reservations, audit.inflight_bytes), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stores_too_fast_is_throttled_and_others_are_not() {
    // A second's worth is one chunk; one more goes into debt, for an hour at this rate.
    let daemon = daemon(&format!("store_bytes_per_second = {}", CHUNK_BYTES / 3600)).await;
    let (a, b) = (engine(&daemon, "a.test").await, engine(&daemon, "b.test").await);
    assert_eq!(why_not(&a, 0).await, None);
    assert_eq!(why_not(&a, 1).await, Some(Reason::Throttled));
    for n in 0..8 {
        store(&b, n).await;
    }
    assert_eq!(states(&a, 0..1).await, [Miss], "lookups have no rate");
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_come_at_the_tenants_rate_and_all_of_them_come() {
    let daemon = daemon(&format!("read_bytes_per_second = {CHUNK_BYTES}")).await;
    let a = engine(&daemon, "a.test").await;
    for n in 0..4 {
        store(&a, n).await;
    }
    let chunks: Vec<_> = (0..4).map(fixture::chunk).collect();
    let start = Instant::now();
    let lease = a.lookup(model().digest(), &chunks, Ask::LEASE).await.unwrap().lease.unwrap().id;
    let stream = a.get(lease, (0..4).map(|n| get_item(n, PART)).collect()).await.unwrap();
    let parts = collect(stream, 4).await.unwrap();
    assert_eq!(parts.iter().flatten().count(), 4);
    // Two at once (what was saved up, and the debt), then one a second.
    assert!(start.elapsed() >= Duration::from_millis(1900), "{:?}", start.elapsed());
    a.release(&[lease]).await.unwrap();
    // A lease that ends first ends the wait.
    let lease = a.lookup(model().digest(), &chunks, Ask::LEASE.for_ms(300)).await.unwrap().lease.unwrap().id;
    let start = Instant::now();
    let stream = a.get(lease, (0..4).map(|n| get_item(n, PART)).collect()).await.unwrap();
    let read = collect(stream, 4).await;
    let all = matches!(&read, Ok(parts) if parts.iter().flatten().count() == 4);
    assert!(!all && start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}
