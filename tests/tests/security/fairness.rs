//! A tenant that floods, and another one that looks things up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tender_proto::Descriptor;
use tender_tests::fixture::{self, PART};
use tender_tests::raw::{Ask, RawSession};

use crate::{NAME, Secure, Wish, connect};

const LOOKUPS: usize = 400;
const FLOODERS: u64 = 4;

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

/// Runs on threads of its own: what clients compute must not stand in the way of each other, nor of the daemon.
fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> std::thread::JoinHandle<T> {
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    })
}

async fn flood(session: RawSession, model: Descriptor, first: u64, over: Arc<AtomicBool>) -> u64 {
    let bytes = vec![7; 4 << 20];
    let mut stored = 0;
    while !over.load(Ordering::Relaxed) {
        let chunk = fixture::chunk(first + stored);
        // Refused when there is no room at this moment.
        if session.store(model.digest(), chunk, PART, fixture::full(&model), &bytes).await.is_ok() {
            session.read(model.digest(), chunk, PART).await;
        }
        stored += 1;
    }
    stored
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_tenant_leaves_the_lookups_of_another_alone() {
    let policy = "[[tenant]]\nname = \"flood\"\nidentities = [\"dns:flood.test\"]\nallow = [\"read\", \"write\"]\n\
                  [[tenant]]\nname = \"quiet\"\nidentities = [\"dns:quiet.test\"]\nallow = [\"read\", \"write\"]\n";
    let daemon = Secure::start(Wish { arena_bytes: 256 << 20, ..Wish::policy(policy) }).await;
    let (port, ca) = (daemon.tls_port(), daemon.authority.pem());
    let (quiet, flooder) = (daemon.issue("quiet.test"), daemon.issue("flood.test"));
    let (go, wait) = tokio::sync::oneshot::channel::<()>();
    let (flooded, busy_now) = std::sync::mpsc::channel::<()>();

    let (to, authority) = (port.clone(), ca.clone());
    let quiet = apart(async move {
        let model = fixture::small("quiet", 4096);
        let client = connect(&to, &authority, NAME, Some(&quiet)).await.unwrap();
        let session = client.open_registered(&model).await;
        for n in 0..32 {
            session.must_store(&model, fixture::chunk(n), PART, fixture::full(&model)).await;
        }
        p99(&session, model.digest()).await;
        let idle = p99(&session, model.digest()).await;
        go.send(()).unwrap();
        busy_now.recv().unwrap();
        (idle, p99(&session, model.digest()).await)
    });
    let over = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&over);
    let flood = apart(async move {
        wait.await.unwrap();
        let model = fixture::small("flood", 1 << 20);
        let mut work = tokio::task::JoinSet::new();
        for n in 1..=FLOODERS {
            let client = connect(&port, &ca, NAME, Some(&flooder)).await.unwrap();
            let session = client.open_registered(&model).await;
            work.spawn(flood(session, model.clone(), n * 1_000_000, Arc::clone(&until)));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        flooded.send(()).unwrap();
        work.join_all().await.into_iter().sum::<u64>()
    });
    let (idle, busy) = tokio::task::spawn_blocking(move || quiet.join()).await.unwrap().unwrap();
    over.store(true, Ordering::Relaxed);
    let stored = tokio::task::spawn_blocking(move || flood.join()).await.unwrap().unwrap();
    let ratio = busy.as_secs_f64() / idle.as_secs_f64();
    println!(
        "p99 of lookups: idle {idle:?}, beside a flood of {stored} chunks of 4 MiB {busy:?}, ratio {ratio:.1}"
    );
    assert!(stored > 0, "there was a flood");
    // Clients and daemon share the processors of this machine with other work: the number above is for people, this
    // bound only tells a queue behind the flood from none.
    assert!(busy < Duration::from_millis(500), "a lookup waited behind the flood: {busy:?}");
}
