//! Field reports on the order between an engine and its copies: 7, 8 and 9. Bytes are read only after they were
//! written and before they can be overwritten; destinations are free only after the last write.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_client::{Address, TransportChoice};
use tender_tests::daemon::{Daemon, Setup, client_config};
use tender_tests::model::{Active, ModelEngine, POISON, Shape};
use tender_tests::proxy::{Mode, Proxy};
use tender_tests::raw::RawSession;
use tender_tests::{conserve, fixture, pattern};

const B_BYTES: u8 = 0xb0;

fn tokens(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|n| seed.wrapping_mul(1_000_003).wrapping_add(n)).collect()
}

/// Runs an engine's blocking calls off the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

/// Large blocks, so that a load is much more than what sockets buffer.
fn heavy() -> Shape {
    Shape { cell_bytes: 64 << 10, pool_blocks: 24, ..Shape::default() }
}

/// An engine behind a proxy, with 4 chunks of a prompt stored.
async fn behind_proxy(daemon: &Daemon, prompt: &[u32]) -> (Arc<Proxy>, Arc<ModelEngine>) {
    let proxy = Arc::new(Proxy::start(daemon.tcp()).await.unwrap());
    let address = Address::Tcp { host: "127.0.0.1".into(), port: proxy.port() };
    let mut config = client_config(address, TransportChoice::Grpc);
    config.load_deadline = Duration::from_millis(800);
    config.staging_bytes = bytesize::ByteSize::mib(64);
    let engine = Arc::new(ModelEngine::with_shape(config, "field 07", heavy()));
    let (up, prompt) = (engine.clone(), prompt.to_vec());
    blocking(move || {
        up.wait_until_up();
        up.run("store", &prompt);
        up.flush();
    })
    .await;
    (proxy, engine)
}

/// Begins the load of 4 chunks and waits until the first bytes came.
fn begin_load(engine: &ModelEngine, proxy: &Proxy, id: &str, prompt: &[u32]) -> Active {
    let mut request = engine.arrive(id, prompt);
    let hit = engine.look(&mut request);
    assert_eq!(hit, 32, "four chunks of eight tokens");
    engine.allocate(&mut request, hit).unwrap();
    proxy.set(Mode::Delay(Duration::from_millis(10)));
    let before = proxy.daemon_bytes();
    engine.step(&mut []);
    while proxy.daemon_bytes() < before + (256 << 10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn field_07_blocks_of_an_aborted_load_are_free_only_when_nothing_can_land() {
    let default_lease = Duration::from_secs(3);
    let daemon = Daemon::start(Setup { arena_bytes: 128 << 20, default_lease, ..Setup::default() }).await;
    let prompt = tokens(7, 33);
    let (proxy, engine) = behind_proxy(&daemon, &prompt).await;
    blocking({
        let (proxy, engine, prompt) = (proxy.clone(), engine.clone(), prompt.clone());
        move || {
            // Aborted in the middle; the network stalls and the load runs into its deadline.
            let request = begin_load(&engine, &proxy, "A", &prompt);
            let blocks = request.blocks.clone();
            engine.finish(request, true);
            proxy.set(Mode::StopReading);
            let done = engine.await_load("A");
            assert!(!done.failed_blocks.is_empty(), "a stalled load cannot have come in whole");
            // "Free" was said: B gets the blocks and writes at once; then the late bytes come.
            for &block in &blocks {
                engine.memory.fill(block, B_BYTES);
            }
            proxy.set(Mode::Pass);
            std::thread::sleep(Duration::from_millis(300));
            for &block in &blocks {
                assert!(engine.memory.is_filled(block, B_BYTES), "a late write landed in B's block {block}");
            }
            assert!(engine.worker.poll().is_empty(), "exactly one completion");
        }
    })
    .await;
    blocking({
        let (proxy, engine, prompt) = (proxy.clone(), engine.clone(), prompt.clone());
        move || {
            // Aborted after the last byte and before the completion is polled; and aborted twice.
            let give_up = Instant::now() + Duration::from_secs(20);
            let mut request = engine.arrive("C", &prompt);
            while engine.look(&mut request) == 0 {
                assert!(Instant::now() < give_up, "the client recovers: {:?}", engine.counters());
                std::thread::sleep(Duration::from_millis(20));
                engine.finish(request, true);
                request = engine.arrive("C", &prompt);
            }
            engine.allocate(&mut request, 32).unwrap();
            let before = engine.worker.counters();
            engine.step(&mut []);
            while engine.worker.counters().loads + engine.worker.counters().loads_failed
                == before.loads + before.loads_failed
            {
                assert!(Instant::now() < give_up);
                std::thread::sleep(Duration::from_millis(1));
            }
            engine.finish(request.clone(), true);
            engine.finish(request, true);
            assert_eq!(engine.await_load("C").request, "C");
            assert!(engine.worker.poll().is_empty(), "exactly one completion");
            // Nothing is held for it, on any side.
            proxy.set(Mode::Pass);
        }
    })
    .await;
    conserve::quiet(daemon.engine()).await;

    // Aborted, then the server is gone.
    let last = blocking({
        let (proxy, engine, prompt) = (proxy.clone(), engine.clone(), prompt.clone());
        move || begin_load(&engine, &proxy, "D", &prompt)
    })
    .await;
    let blocks = last.blocks.clone();
    engine.finish(last, true);
    proxy.set(Mode::Refuse);
    blocking(move || {
        let done = engine.await_load("D");
        assert!(!done.failed_blocks.is_empty());
        for &block in &blocks {
            engine.memory.fill(block, B_BYTES);
        }
        std::thread::sleep(Duration::from_millis(100));
        assert!(blocks.iter().all(|&block| engine.memory.is_filled(block, B_BYTES)));
        assert!(engine.worker.poll().is_empty(), "exactly one completion");
    })
    .await;
    conserve::quiet(daemon.engine()).await;
}

/// What the daemon holds of these tokens is what a forward pass wrote for them, or nothing. Returns how much.
async fn stored_is_right(session: &RawSession, engine: &ModelEngine, tokens: &[u32], what: &str) -> usize {
    let prefixes = tender_tests::model::Prefixes::of(tokens);
    let mut found = 0;
    for (index, key) in engine.keys(tokens).into_iter().enumerate() {
        let read = session.read(engine.descriptor().digest(), key, fixture::PART).await;
        if let Some((_, bytes)) = read {
            let expected = prefixes.part(engine.memory.shape(), index);
            pattern::assert_same(&bytes, &expected, &format!("{what}, chunk {index}"));
            found += 1;
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn field_08_a_block_may_be_handed_on_while_its_store_is_still_under_way() {
    // A lookup that its asker gave up on may have been granted a lease all the same; that ends by its time.
    let daemon = Daemon::start(Setup { default_lease: Duration::from_secs(1), ..Setup::default() }).await;
    let proxy = Arc::new(Proxy::start(daemon.tcp()).await.unwrap());
    let address = Address::Tcp { host: "127.0.0.1".into(), port: proxy.port() };
    let mut config = client_config(address, TransportChoice::Grpc);
    // Loads and lookups that meet the stalled network give up soon.
    config.lookup_deadline = Duration::from_millis(200);
    let engine = Arc::new(ModelEngine::new(config, "field 08"));
    let a_tokens = tokens(8, 16);
    blocking({
        let (engine, proxy, a_tokens) = (engine.clone(), proxy.clone(), a_tokens.clone());
        move || {
            engine.wait_until_up();
            let mut a = engine.arrive("A", &a_tokens);
            assert_eq!(engine.look(&mut a), 0);
            engine.allocate(&mut a, 0).unwrap();
            // The store of A's blocks cannot leave the process.
            proxy.set(Mode::StopReading);
            engine.step(&mut [(&mut a, 16)]);
            // A is preempted; its blocks go to B without external tokens, and B writes at once.
            for &block in &a.blocks {
                engine.memory.fill(block, B_BYTES);
            }
            // Re-admitted while its job is pending: 0 hits or "ask later", never a crash.
            let mut again = engine.arrive("A", &a_tokens);
            assert_eq!(engine.look(&mut again), 0);
            // And finished while its job is pending.
            engine.finish(again, true);
            proxy.set(Mode::Pass);
            engine.flush();
        }
    })
    .await;
    let session = daemon.client().await.open_registered(engine.descriptor()).await;
    let found = stored_is_right(&session, &engine, &a_tokens, "A's key").await;
    assert_eq!(
        found,
        2,
        "the snapshot was taken, so both chunks could still be stored: {:?}",
        engine.counters()
    );
    conserve::quiet(daemon.engine()).await;
}

/// One seeded schedule: one or two requests, odd chunk sizes, writes that trickle in while the step runs, decode
/// steps, aborts; every block is overwritten as soon as the step is over and the request does not need it.
fn schedule(engine: &ModelEngine, seed: u64) -> Vec<Vec<u32>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut requests: Vec<Active> = (0..rng.random_range(1..=2u32))
        .map(|n| {
            let length = rng.random_range(1..=30);
            let seed = u32::try_from(seed).unwrap() * 2 + n;
            let mut request = engine.arrive(&format!("{seed}"), &tokens(seed, length));
            engine.look(&mut request);
            engine.allocate(&mut request, 0).unwrap();
            request
        })
        .collect();
    let mut over = Vec::new();
    let goals: Vec<usize> = requests.iter().map(|r| r.tokens.len() + rng.random_range(0..12)).collect();
    let mut live: Vec<(Active, usize)> = requests.drain(..).zip(goals).collect();
    while !live.is_empty() {
        let counts: Vec<usize> = live
            .iter()
            .map(|(request, _)| (request.tokens.len() - request.computed).min(rng.random_range(1..=13)))
            .collect();
        let spins = rng.random_range(0..200);
        let mut batch: Vec<_> = live.iter_mut().map(|(request, _)| request).zip(counts).collect();
        engine.step_with(&mut batch, || (0..spins).for_each(|_| std::hint::spin_loop()));
        for (mut request, goal) in std::mem::take(&mut live) {
            let aborted = rng.random_ratio(1, 30);
            let complete = request.computed == request.tokens.len();
            if complete {
                engine.sample(&mut request, rng.random());
            }
            if aborted || (complete && request.tokens.len() >= goal) {
                over.push(request.tokens.clone());
                engine.finish(request, aborted);
            } else {
                live.push((request, goal));
            }
        }
    }
    // What became final by finishing.
    engine.step(&mut []);
    over
}

#[tokio::test(flavor = "multi_thread")]
async fn field_09_every_stored_blob_is_what_the_step_wrote() {
    let daemon = Daemon::start(Setup { arena_bytes: 256 << 20, ..Setup::default() }).await;
    let config = daemon.client_config(TransportChoice::Auto);
    let engine = Arc::new(ModelEngine::new(config, "field 09"));
    let session = daemon.client().await.open_registered(engine.descriptor()).await;
    {
        let engine = engine.clone();
        blocking(move || engine.wait_until_up()).await;
    }
    let (mut stored, mut whole) = (0, 0);
    for batch in 0..20u64 {
        let running = engine.clone();
        let requests = blocking(move || {
            let requests: Vec<_> =
                (batch * 50..batch * 50 + 50).flat_map(|seed| schedule(&running, seed)).collect();
            running.flush();
            requests
        })
        .await;
        for tokens in requests {
            stored += stored_is_right(&session, &engine, &tokens, "a blob").await;
            whole += tokens.len() / 8;
        }
    }
    assert!(stored * 10 > whole * 7, "most whole chunks were stored: {stored} of {whole}");
    let (_, worker) = engine.counters();
    assert!(worker.stores_skipped.is_empty() && worker.panics == 0, "{worker:?}");
    // Loads followed at once by compute that reads them: the model's attention checks every slot.
    blocking(move || {
        for seed in 0..100 {
            let prompt = tokens(seed * 2, 30);
            engine.run(&format!("again {seed}"), &prompt);
        }
        assert!(engine.counters().1.loaded_bytes > 0);
    })
    .await;
    conserve::quiet(daemon.engine()).await;
}

/// The check of case 9 can fail: a gather before the forward pass stores poison.
#[tokio::test(flavor = "multi_thread")]
async fn field_09_the_check_notices_a_gather_that_comes_too_early() {
    let daemon = Daemon::start(Setup::default()).await;
    let engine = Arc::new(ModelEngine::new(daemon.client_config(TransportChoice::Auto), "field 09 early"));
    let prompt = tokens(99, 8);
    let early = engine.clone();
    let (prompt, early) = blocking(move || {
        early.wait_until_up();
        let mut request = early.arrive("early", &prompt);
        early.look(&mut request);
        early.allocate(&mut request, 0).unwrap();
        let plan = early.plan(&mut [(&mut request, 8)]);
        early.worker.begin_step(&plan);
        early.worker.end_step(&plan);
        early.forward(&request, 8);
        early.flush();
        (prompt, early)
    })
    .await;
    let session = daemon.client().await.open_registered(engine.descriptor()).await;
    let key = early.keys(&prompt)[0];
    let (_, bytes) = session.read(engine.descriptor().digest(), key, fixture::PART).await.unwrap();
    assert!(bytes.iter().all(|&byte| byte == POISON));
}
