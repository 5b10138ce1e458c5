//! What a reader can make the daemon read by its word alone.

use std::sync::atomic::{AtomicU64, Ordering};

use tender_tests::conserve;
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::fixture::{self, PART};
use tender_tests::raw::Ask;

use crate::eventually;

const BLOCK_BYTES: u64 = 1000;
const CHUNK_BYTES: u64 = 4 * BLOCK_BYTES;
/// Chunks that one call may have looked into.
const MOST: u64 = 64;

#[tokio::test(flavor = "multi_thread")]
async fn one_call_of_doubts_costs_each_chunk_once_and_not_more_than_a_few_chunks() {
    let daemon = Daemon::start(Setup { scrub: false, ..Setup::default() }).await;
    let model = fixture::small("doubts", BLOCK_BYTES);
    let session = daemon.client().await.open_registered(&model).await;
    let keys: Vec<_> = (0..MOST + 20).map(fixture::chunk).collect();
    for &key in &keys {
        session.must_store(&model, key, PART, fixture::full(&model)).await;
    }
    let doubt = async |doubts: &[u32]| {
        let found = session.lookup(model.digest(), &keys, Ask::LEASE).await.unwrap();
        session.release_doubting(&[found.lease.unwrap().id], doubts).await.unwrap();
    };
    let read_bytes = || daemon.engine().stats().scrubbed_bytes;

    doubt(&[3; 1000]).await;
    eventually("a look at the chunk", async || read_bytes() > 0).await;
    conserve::quiet(daemon.engine()).await;
    assert_eq!(read_bytes(), CHUNK_BYTES, "a chunk that was named a thousand times");

    let all: Vec<u32> = (0..u32::try_from(keys.len()).unwrap()).collect();
    eventually("a look at many chunks", async || {
        // Forgotten while the daemon still looks into others.
        doubt(&all).await;
        read_bytes() > CHUNK_BYTES
    })
    .await;
    // Between two chunks the daemon holds nothing: only a number that stays tells that it is done.
    let last = AtomicU64::new(0);
    eventually("as many as one call may have, each time", async || {
        let now = read_bytes();
        last.swap(now, Ordering::Relaxed) == now && (now - CHUNK_BYTES).is_multiple_of(MOST * CHUNK_BYTES)
    })
    .await;
}
