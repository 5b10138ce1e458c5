//! A daemon under mixed load for as long as one likes, and what it and its clients hold meanwhile. The arena is full
//! all the time, and what is in it changes all the time.

mod load;
pub mod trend;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tender_client::TransportChoice;
use tender_proto::v1;

use crate::daemon::{ChildDaemon, Setup};
use crate::model::Shape;
use crate::process::Usage;
use crate::raw::{RawClient, Target};
use load::{Done, Kind};
use trend::{Rule, Series, Verdict};

/// Bytes for chunks: the load has several times as many.
const ARENA_BYTES: u64 = 64 << 20;
/// Samples of a whole run, however long it is: enough for quarters that mean something.
const SAMPLES: u32 = 720;
/// More often than this shows nothing new.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
/// For sessions and what they held to be gone when everybody has left.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is asked of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// How long the load lasts.
    pub time: Duration,
    /// Decides what the load does.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// One for each quantity.
    pub verdicts: Vec<Verdict>,
    /// What was done, in a sentence.
    pub done: String,
    /// What was left behind or went wrong; empty when all is well.
    pub faults: Vec<String>,
    /// Chunks that made room for others.
    pub evicted_chunks: u64,
}

/// Runs the load. Panics if an engine finds a slot that is wrong. `say` gets a line now and then.
pub async fn run(ask: Ask, say: impl Fn(&str)) -> Report {
    let setup = Setup {
        arena_bytes: ARENA_BYTES,
        reservation: Duration::from_secs(5),
        // Bad clients give it much to warn of.
        log_level: "error",
        ..Setup::default()
    };
    let daemon = ChildDaemon::start(setup).await;
    let client = RawClient::connect(&Target::Unix(daemon.socket())).await.expect("a connection");
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(Done::default()));
    let engines = start_engines(&daemon, ask.seed, &stop, &done);
    let bad = tokio::spawn({
        let (socket, stop, done) = (daemon.socket(), stop.clone(), done.clone());
        async move { load::bad_clients(&socket, ask.seed, stop, done).await }
    });
    let pause = (ask.time / SAMPLES).max(SHORTEST_PAUSE);
    let (mut book, began, mut told) = (Book::new(), Instant::now(), Instant::now());
    while began.elapsed() < ask.time {
        tokio::time::sleep(pause).await;
        book.sample(daemon.pid(), &client.stats().await.expect("the daemon's numbers"));
        if engines.iter().any(std::thread::JoinHandle::is_finished) {
            break;
        }
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            say(&format!("{:4} s: {}", began.elapsed().as_secs(), book.now()));
        }
    }
    stop.store(true, Ordering::Relaxed);
    bad.await.expect("bad clients are no reason to panic");
    for engine in engines {
        if let Err(panic) = tokio::task::spawn_blocking(|| engine.join()).await.expect("no panic here") {
            std::panic::resume_unwind(panic);
        }
    }
    let (stats, faults) = left_behind(&client, &done).await;
    Report {
        verdicts: book.0.iter().map(Series::judge).collect(),
        done: sentence(&done, &stats),
        faults,
        evicted_chunks: stats.namespaces.iter().map(|n| n.evicted_chunks).sum(),
    }
}

fn start_engines(
    daemon: &ChildDaemon,
    seed: u64,
    stop: &Arc<AtomicBool>,
    done: &Arc<Done>,
) -> Vec<std::thread::JoinHandle<()>> {
    let of = |transport, model, (blocks_per_chunk, cell_bytes), alone| Kind {
        config: daemon.client_config(transport),
        model,
        shape: Shape { tokens_per_block: 16, cell_bytes, blocks_per_chunk, ..Shape::default() },
        alone,
    };
    // Chunks of 48, 60 and 12 KiB: the hole of one is not always good for another. All are of a size that the
    // allocator does not round, so that bytes in use and bytes of chunks can be compared.
    let kinds = [
        of(TransportChoice::Shm, "soak, shared", (2, 256), false),
        of(TransportChoice::Grpc, "soak, shared", (2, 256), false),
        of(TransportChoice::Shm, "soak, alone", (5, 128), true),
        of(TransportChoice::Grpc, "soak, alone over grpc", (1, 128), true),
    ];
    let start = |(kind, seed): (Kind, u64)| {
        let (stop, done) = (Arc::clone(stop), Arc::clone(done));
        std::thread::spawn(move || load::engines(&kind, seed, &stop, &done))
    };
    kinds.into_iter().zip(seed..).map(start).collect()
}

/// Waits until the daemon has nothing of anybody, and says what it still has if that takes too long.
async fn left_behind(client: &RawClient, done: &Done) -> (v1::StatsResponse, Vec<String>) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let stats = client.stats().await.expect("the daemon's numbers");
        let ready_bytes: u64 = stats.namespaces.iter().map(|n| n.ready_bytes).sum();
        let rows = [
            ("sessions", stats.sessions, 0),
            ("leases", stats.leases, 0),
            ("pins", stats.pins, 0),
            ("reservations", stats.reservations, 0),
            ("bytes of unfinished chunks", stats.inflight_bytes, 0),
            ("bytes in use that are no ready chunk's", stats.arena_used_bytes, ready_bytes),
            ("panics and plans that could not be read", done.faults.load(Ordering::Relaxed), 0),
        ];
        let wrong = rows.iter().filter(|(_, found, expected)| found != expected);
        let faults: Vec<_> =
            wrong.map(|(what, found, expected)| format!("{what}: {found}, not {expected}")).collect();
        if faults.is_empty() || Instant::now() > give_up {
            return (stats, faults);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn sentence(done: &Done, stats: &v1::StatsResponse) -> String {
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let mib = |counter| get(counter) >> 20;
    let evicted: u64 = stats.namespaces.iter().map(|n| n.evicted_chunks).sum();
    format!(
        "{} requests of {} engines, {} MiB loaded, {} MiB stored, {evicted} chunks evicted, {} loads failed, \
         {} parts not stored, {} resets, {} bad clients",
        get(&done.requests),
        get(&done.lives),
        mib(&done.loaded_bytes),
        mib(&done.stored_bytes),
        get(&done.failed_loads),
        get(&done.skipped_stores),
        get(&done.resets),
        get(&done.bad_clients),
    )
}

/// Everything that is sampled.
#[derive(Debug)]
struct Book(Vec<Series>);

impl Book {
    fn new() -> Self {
        let memory = Rule::NoGrowth { by: 3.0, share: 0.05 };
        // Clients come and go all the time: the means differ by chance.
        let few = |by| Rule::NoGrowth { by, share: 0.05 };
        let names = [
            ("daemon: private memory, MiB", memory),
            ("daemon: shared memory, MiB", memory),
            ("daemon: threads", few(1.0)),
            ("daemon: file descriptors", few(2.0)),
            ("clients: private memory, MiB", memory),
            ("clients: shared memory, MiB", Rule::NoGrowth { by: 6.0, share: 0.05 }),
            ("clients: threads", few(2.0)),
            ("clients: file descriptors", few(2.0)),
            ("arena in use, MiB", Rule::Still { by: 1.0, share: 0.02 }),
            ("bytes of ready chunks, MiB", Rule::Still { by: 1.0, share: 0.05 }),
            ("sessions", few(1.0)),
            ("leases", few(2.0)),
            ("reservations", few(6.0)),
        ];
        Self(names.into_iter().map(|(name, rule)| Series::new(name, rule)).collect())
    }

    fn sample(&mut self, daemon: u32, stats: &v1::StatsResponse) {
        let daemon = Usage::of(daemon).expect("the daemon lives");
        let clients = Usage::of_self().expect("so do we");
        let ready_bytes: u64 = stats.namespaces.iter().map(|n| n.ready_bytes).sum();
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let usage = |usage: Usage| {
            [
                mib(usage.private_bytes),
                mib(usage.shared_bytes),
                usage.threads as f64,
                usage.descriptors as f64,
            ]
        };
        let held = [
            mib(stats.arena_used_bytes),
            mib(ready_bytes),
            stats.sessions as f64,
            stats.leases as f64,
            stats.reservations as f64,
        ];
        let all = usage(daemon).into_iter().chain(usage(clients)).chain(held);
        self.0.iter_mut().zip(all).for_each(|(series, value)| series.values.push(value));
    }

    /// The newest sample of each, in one line.
    fn now(&self) -> String {
        let one = |series: &Series| {
            format!("{} {:.1}", series.name, series.values.last().copied().unwrap_or_default())
        };
        self.0.iter().map(one).collect::<Vec<_>>().join("; ")
    }
}
