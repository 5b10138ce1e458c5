//! A tenant that floods, and another one that looks things up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tender_tests::fixture::{self, PART};
use tender_tests::raw::{Ask, RawSession};

use crate::{Secure, Wish};

const LOOKUPS: usize = 400;
const FLOODERS: u64 = 6;

/// The 99th percentile of many lookups.
async fn p99(session: &RawSession, namespace: tender_proto::NamespaceDigest) -> Duration {
    let chunks: Vec<_> = (0..32).map(fixture::chunk).collect();
    let mut took = Vec::new();
    for _ in 0..LOOKUPS {
        let start = Instant::now();
        session.lookup(namespace, &chunks, Ask::LOOK).await.unwrap();
        took.push(start.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    took.sort_unstable();
    took[LOOKUPS * 99 / 100]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_tenant_leaves_the_lookups_of_another_alone() {
    let policy = "[[tenant]]\nname = \"flood\"\nidentities = [\"dns:flood.test\"]\nallow = [\"read\", \"write\"]\n\
                  [[tenant]]\nname = \"quiet\"\nidentities = [\"dns:quiet.test\"]\nallow = [\"read\", \"write\"]\n";
    let daemon = Secure::start(Wish { arena_bytes: 256 << 20, ..Wish::policy(policy) }).await;
    let quiet_model = fixture::small("quiet", 4096);
    let quiet = daemon.client("quiet.test").await.open_registered(&quiet_model).await;
    for n in 0..32 {
        quiet.must_store(&quiet_model, fixture::chunk(n), PART, fixture::full(&quiet_model)).await;
    }
    p99(&quiet, quiet_model.digest()).await;
    let idle = p99(&quiet, quiet_model.digest()).await;

    let over = Arc::new(AtomicBool::new(false));
    let flood_model = fixture::small("flood", 1 << 20);
    let mut flood = Vec::new();
    for flooder in 0..FLOODERS {
        let session = daemon.client("flood.test").await.open_registered(&flood_model).await;
        let (over, model) = (Arc::clone(&over), flood_model.clone());
        flood.push(tokio::spawn(async move {
            let bytes = vec![7; 4 << 20];
            let mut stored = 0u64;
            while !over.load(Ordering::Relaxed) {
                let chunk = fixture::chunk(1_000_000 * (flooder + 1) + stored);
                let full = fixture::full(&model);
                // Refused when there is no room at this moment.
                if session.store(model.digest(), chunk, PART, full, &bytes).await.is_ok() {
                    session.read(model.digest(), chunk, PART).await;
                }
                stored += 1;
            }
            stored
        }));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let busy = p99(&quiet, quiet_model.digest()).await;
    over.store(true, Ordering::Relaxed);
    let mut stored = 0;
    for flooder in flood {
        stored += flooder.await.unwrap();
    }
    let ratio = busy.as_secs_f64() / idle.as_secs_f64();
    println!(
        "p99 of lookups: idle {idle:?}, beside a flood of {stored} chunks of 4 MiB {busy:?}, ratio {ratio:.1}"
    );
    assert!(stored > 0, "there was a flood");
    // Clients and daemon share the processors of this machine with other work: the number above is for people, this
    // bound only tells a queue behind the flood from none.
    assert!(busy < Duration::from_millis(500), "a lookup waited behind the flood: {busy:?}");
}
