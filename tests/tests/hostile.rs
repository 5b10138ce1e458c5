//! Whatever a daemon or the network does, the engine is spared: no call of its step waits, its process does not grow, no
//! byte lands after a load was reported, and every slot that it reads is right.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tender_client::{Address, BreakerConfig, ClientConfig, TransportChoice};
use tender_tests::daemon::{ChildDaemon, Daemon, Peer, Setup, client_config};
use tender_tests::hostile::Manner;
use tender_tests::model::{Active, ModelEngine, Shape};
use tender_tests::process::Usage;
use tender_tests::proxy::{Mode, Proxy};
use tender_tests::raw::Ask;

/// Processes are measured as a whole: one test at a time, also where tests share a process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Below the shortest deadline of a call to the daemon: a scheduler's call that waits for one takes longer. Far above its
/// budget, since a thread of ours that holds a lock may have no processor for a while when the machine is busy.
const STALL: Duration = Duration::from_millis(200);
/// The same for a worker's call, below the deadlines of loads and stores.
const GATHER_STALL: Duration = Duration::from_millis(600);
/// What may be under way: staging, a message, windows of two connections.
const GROWTH_BYTES: u64 = 96 << 20;
/// Helpers that come and go with a session.
const MORE_THREADS: u64 = 6;
const PATIENCE: Duration = Duration::from_secs(60);
const HANDED_ON: u8 = 0xa7;

/// The defaults where they are about waiting, and otherwise patience that suits a test.
fn config(address: Address, transport: TransportChoice) -> ClientConfig {
    let defaults = ClientConfig::default();
    ClientConfig {
        step_budget: defaults.step_budget,
        lookup_deadline: defaults.lookup_deadline,
        connect_deadline: Duration::from_millis(500),
        load_deadline: Duration::from_millis(800),
        store_deadline: Duration::from_millis(800),
        breaker: BreakerConfig { open_min: Duration::from_millis(100), ..BreakerConfig::default() },
        ..client_config(address, transport)
    }
}

/// Chunks of 192 KiB: a read of some of them takes several frames.
fn large() -> Shape {
    Shape { cell_bytes: 4096, pool_blocks: 256, ..Shape::default() }
}

fn prompt(n: u32) -> Vec<u32> {
    (0..40).map(|position| n << 8 | position).collect()
}

async fn on_the_engines_thread<T: Send + 'static>(
    engine: &Arc<ModelEngine>,
    work: impl FnOnce(&ModelEngine) -> T + Send + 'static,
) -> T {
    let engine = Arc::clone(engine);
    tokio::task::spawn_blocking(move || work(&engine)).await.unwrap()
}

/// Requests old and new, one after another, for so long. Every slot is looked at by the engine itself.
fn drive(engine: &ModelEngine, what: &str, time: Duration) {
    drop(engine.watch.take());
    let (before, begin) = (Usage::of_self().unwrap(), Instant::now());
    let mut most = before;
    let mut n = 0;
    while begin.elapsed() < time || n < 3 {
        n += 1;
        let tokens = if n % 2 == 0 { prompt(n % 8) } else { prompt(1000 + n) };
        engine.run(&format!("{what} {n}"), &tokens);
        let now = Usage::of_self().unwrap();
        most.private_bytes = most.private_bytes.max(now.private_bytes);
        most.threads = most.threads.max(now.threads);
        most.descriptors = most.descriptors.max(now.descriptors);
    }
    let longest = engine.watch.take();
    println!("{what}: {n} requests, longest calls {longest:?}, {before:?} to {most:?}");
    for (call, took) in &longest {
        let stall = if call.ends_with("_step") { GATHER_STALL } else { STALL };
        assert!(*took < stall, "{what}: {call} waited for {took:?}");
    }
    assert!(most.private_bytes < before.private_bytes + GROWTH_BYTES, "{what}: {before:?} to {most:?}");
    assert!(most.threads <= before.threads + MORE_THREADS, "{what}: {before:?} to {most:?}");
    assert!(most.descriptors <= before.descriptors + 8, "{what}: {before:?} to {most:?}");
    let (scheduler, worker) = engine.counters();
    assert_eq!((scheduler.panics, worker.panics), (0, 0), "{what}");
    assert!(scheduler.longest_step_us > 0, "steps are measured");
}

/// Waits until a prompt is served again.
fn until_served(engine: &ModelEngine, what: &str) {
    let begin = Instant::now();
    let mut n = 0;
    while engine.run(&format!("{what}, again {n}"), &prompt(0)).loaded_tokens == 0 {
        assert!(begin.elapsed() < PATIENCE, "{what}: never served again: {:?}", engine.counters());
        engine.flush();
        std::thread::sleep(Duration::from_millis(20));
        n += 1;
    }
}

/// A load that is promised and not begun.
fn promised(engine: &ModelEngine, what: &str) -> (Active, usize) {
    let mut request = engine.arrive(what, &prompt(0));
    let hit = engine.look(&mut request);
    assert!(hit > 0, "{what}: {:?}", engine.counters());
    engine.allocate(&mut request, hit).unwrap();
    (request, hit)
}

/// Begins the load, waits for its report and hands the blocks that failed on to somebody else, as an engine may.
fn fail_to_load(engine: &ModelEngine, what: &str, request: &Active) -> Vec<u32> {
    engine.step(&mut []);
    let failed = engine.await_load(&request.id).failed_blocks;
    assert!(!failed.is_empty(), "{what}: the load did not fail");
    failed.iter().for_each(|&block| engine.memory.fill(block, HANDED_ON));
    failed
}

fn nothing_has_landed(engine: &ModelEngine, what: &str, request: Active, failed: &[u32]) {
    for &block in failed {
        assert!(engine.memory.is_filled(block, HANDED_ON), "{what}: a byte landed late in block {block}");
    }
    engine.finish(request, true);
    engine.step(&mut []);
}

async fn engine(config: ClientConfig, name: &str, shape: Shape) -> Arc<ModelEngine> {
    let name = name.to_owned();
    let build = move || Arc::new(ModelEngine::with_shape(config, &name, shape));
    tokio::task::spawn_blocking(build).await.unwrap()
}

async fn store_prompts(engine: &Arc<ModelEngine>) {
    on_the_engines_thread(engine, |engine| {
        engine.wait_until_up();
        for n in 0..8 {
            engine.run(&format!("store {n}"), &prompt(n));
            engine.flush();
        }
        until_served(engine, "stored");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_breaks_the_contract_costs_misses_and_nothing_else() {
    let _alone = ALONE.lock().await;
    let shape = large();
    for manner in Manner::ALL {
        let part_bytes = shape.block_bytes() * u64::from(shape.blocks_per_chunk);
        let path = env!("CARGO_BIN_EXE_tender-test-peer");
        let (peer, address) = Peer::hostile(path, manner, part_bytes, 0b11).await;
        let engine = engine(config(address, TransportChoice::Grpc), "hostile", shape).await;
        on_the_engines_thread(&engine, move |engine| {
            // Where there is a session at all, it is there soon.
            engine.worker.wait_until_up(Duration::from_millis(500));
            drive(engine, &format!("{manner:?}"), Duration::from_millis(2500));
        })
        .await;
        peer.kill().await;
        let ending = Instant::now();
        tokio::task::spawn_blocking(move || drop(engine)).await.unwrap();
        assert!(
            ending.elapsed() < Duration::from_secs(10),
            "{manner:?}: the end took {:?}",
            ending.elapsed()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_breaks_costs_misses_and_no_byte_lands_late() {
    let _alone = ALONE.lock().await;
    let daemon = Daemon::start(Setup::default()).await;
    let proxy = Arc::new(Proxy::start(daemon.tcp()).await.unwrap());
    let address = format!("tcp://127.0.0.1:{}", proxy.port()).parse().unwrap();
    let engine = engine(config(address, TransportChoice::Grpc), "broken network", large()).await;
    store_prompts(&engine).await;
    let modes = [
        Mode::Delay(Duration::from_millis(40)),
        Mode::Drip(Duration::from_millis(5)),
        Mode::Garble,
        Mode::BlackHole,
        Mode::StopReading,
        Mode::Refuse,
    ];
    for mode in modes {
        let what = format!("{mode:?}");
        let breaking = (Arc::clone(&proxy), what.clone());
        on_the_engines_thread(&engine, move |engine| {
            let (proxy, what) = breaking;
            until_served(engine, &what);
            let (request, _) = promised(engine, &what);
            proxy.set(mode);
            let failed = fail_to_load(engine, &what, &request);
            drive(engine, &what, Duration::from_secs(1));
            proxy.set(Mode::Pass);
            std::thread::sleep(Duration::from_millis(700));
            nothing_has_landed(engine, &what, request, &failed);
            until_served(engine, &what);
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_at_random_cost_misses_and_nothing_else() {
    let _alone = ALONE.lock().await;
    let daemon = Daemon::start(Setup::default()).await;
    let proxy = Arc::new(Proxy::start(daemon.tcp()).await.unwrap());
    let address = format!("tcp://127.0.0.1:{}", proxy.port()).parse().unwrap();
    let engine = engine(config(address, TransportChoice::Grpc), "cut", large()).await;
    store_prompts(&engine).await;
    let cutting = tokio::spawn({
        let proxy = Arc::clone(&proxy);
        async move {
            loop {
                let (pause, bytes) = (rand::random_range(1..150), rand::random_range(0..2_000_000));
                tokio::time::sleep(Duration::from_millis(pause)).await;
                proxy.cut_after(bytes);
            }
        }
    });
    on_the_engines_thread(&engine, |engine| drive(engine, "cut", Duration::from_secs(4))).await;
    cutting.abort();
    proxy.cut_after(u64::MAX >> 1);
    proxy.cut();
    on_the_engines_thread(&engine, |engine| until_served(engine, "cut")).await;
}

/// How long a daemon is stopped; `TENDER_STOP_SECONDS` makes it longer.
fn stop_time() -> Duration {
    let seconds = std::env::var("TENDER_STOP_SECONDS").map_or(7, |text| text.parse().expect("seconds"));
    Duration::from_secs(seconds)
}

/// Longer than a session outlives a silent daemon, so that reconnecting to one is part of it.
async fn a_stopped_and_a_killed_daemon(transport: TransportChoice) {
    let _alone = ALONE.lock().await;
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let address = Address::Unix(daemon.socket());
    let engine = engine(config(address, transport), "stopped", large()).await;
    store_prompts(&engine).await;
    let calm = Usage::of_self().unwrap();
    let (request, _) = on_the_engines_thread(&engine, |engine| promised(engine, "stopped")).await;
    daemon.pause();
    let failed = on_the_engines_thread(&engine, move |engine| {
        let failed = fail_to_load(engine, "stopped", &request);
        drive(engine, "stopped", stop_time());
        (failed, request)
    })
    .await;
    daemon.go_on();
    on_the_engines_thread(&engine, move |engine| {
        let (failed, request) = failed;
        std::thread::sleep(Duration::from_secs(1));
        nothing_has_landed(engine, "stopped", request, &failed);
        until_served(engine, "stopped");
    })
    .await;
    daemon.kill();
    on_the_engines_thread(&engine, |engine| drive(engine, "killed", Duration::from_secs(2))).await;
    daemon.restart().await;
    on_the_engines_thread(&engine, |engine| until_served(engine, "killed")).await;
    let after = Usage::of_self().unwrap();
    assert!(after.threads <= calm.threads + 2, "{calm:?} to {after:?}");
    assert!(after.descriptors <= calm.descriptors + 4, "{calm:?} to {after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_and_a_killed_daemon_cost_misses_and_nothing_else_shm() {
    a_stopped_and_a_killed_daemon(TransportChoice::Shm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_and_a_killed_daemon_cost_misses_and_nothing_else_grpc() {
    a_stopped_and_a_killed_daemon(TransportChoice::Grpc).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_arena_full_of_what_others_hold_costs_stores_and_nothing_else() {
    let _alone = ALONE.lock().await;
    let shape = large();
    let chunks = 8;
    let arena_bytes = chunks * shape.block_bytes() * u64::from(shape.blocks_per_chunk);
    let daemon = Daemon::start(Setup { arena_bytes, ..Setup::default() }).await;
    let address = Address::Unix(daemon.socket().to_owned());
    let engine = engine(config(address, TransportChoice::Shm), "full", shape).await;
    let keys = on_the_engines_thread(&engine, |engine| {
        engine.wait_until_up();
        let tokens: Vec<u32> = (0..8 * 8).collect();
        engine.run("fill", &tokens);
        engine.flush();
        engine.keys(&tokens)
    })
    .await;
    let other = daemon.client().await.open_registered(engine.descriptor()).await;
    let held = other.lookup(engine.descriptor().digest(), &keys, Ask::LEASE.for_ms(60_000)).await.unwrap();
    assert!(held.lease.is_some());
    on_the_engines_thread(&engine, |engine| {
        drive(engine, "full", Duration::from_secs(2));
        engine.flush();
        let (_, worker) = engine.counters();
        assert!(worker.stores_skipped["no_space"] > 0, "{worker:?}");
    })
    .await;
    drop(other);
    on_the_engines_thread(&engine, |engine| until_served(engine, "full")).await;
}
