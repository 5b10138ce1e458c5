//! Field reports on failed loads: 12, and the client's half of 21. A failure is a result: exactly the affected
//! blocks, counted once, never a served hit. (Six reads against a daemon that lies are in the client's own tests;
//! here the daemon is real. Three groups instead of one are in field_group_failures.rs.)
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tender_client::plan::{LoadItem, LoadJob, StepPlan};
use tender_client::{Address, TransportChoice};
use tender_proto::{ChunkId, Coverage};
use tender_tests::daemon::{ChildDaemon, Daemon, Setup, client_config};
use tender_tests::model::{ModelEngine, POISON, Shape};
use tender_tests::proxy::Proxy;
use tender_tests::{conserve, fixture};

fn prompt() -> Vec<u32> {
    (0..32).map(|n| n * 3 + 5).collect()
}

/// An engine whose four chunks of the prompt are stored.
async fn stored(engine: ModelEngine) -> Arc<ModelEngine> {
    tokio::task::spawn_blocking(move || {
        engine.wait_until_up();
        engine.run("store", &prompt());
        engine.flush();
        Arc::new(engine)
    })
    .await
    .unwrap()
}

/// The plan that loads these chunks, two blocks each, into blocks 1, 2, 3, ...
fn load_plan(engine: &ModelEngine, id: &str, chunks: &[ChunkId]) -> Vec<u8> {
    let blocks_per_chunk = engine.descriptor().groups[0].blocks_per_chunk;
    let mut next = 1;
    let items = chunks
        .iter()
        .map(|&chunk| {
            let blocks = (next..next + blocks_per_chunk.get()).collect();
            next += blocks_per_chunk.get();
            LoadItem { chunk, needed: Coverage::full(blocks_per_chunk), blocks }
        })
        .collect();
    StepPlan {
        loads: vec![LoadJob { request: id.into(), items, whole: false, trace: Default::default() }],
        ..StepPlan::default()
    }
    .encode()
}

/// Loads the chunks; the failed blocks, sorted. Every block of the pool is poisoned before.
fn load(engine: &ModelEngine, id: &str, plan: &[u8]) -> Vec<u32> {
    for block in 1..engine.memory.shape().pool_blocks {
        engine.memory.fill(block, POISON);
    }
    engine.worker.begin_step(plan);
    engine.worker.end_step(plan);
    let mut failed = engine.await_load(id).failed_blocks;
    failed.sort_unstable();
    assert!(engine.worker.poll().is_empty(), "one report for one load");
    failed
}

/// A read that fails: exactly `failed` is reported, the failure is counted, nothing of it counts as loaded.
fn check_failure(engine: &ModelEngine, id: &str, plan: &[u8], failed: &[u32], chunks: u64) {
    let before = engine.worker.counters();
    assert_eq!(load(engine, id, plan), failed, "{id}");
    let after = engine.worker.counters();
    let count = |c: &tender_client::Counters| c.load_failures.values().sum::<u64>();
    assert_eq!(count(&after), count(&before) + chunks, "{id}: {after:?}");
    assert_eq!((after.loads, after.loads_failed), (before.loads, before.loads_failed + 1), "{id}");
    assert_eq!(after.failed_blocks, before.failed_blocks + failed.len() as u64, "{id}");
    assert_eq!(after.panics, 0);
}

async fn six_reads(transport: TransportChoice) {
    let daemon = Daemon::start(Setup::default()).await;
    let engine = ModelEngine::new(daemon.client_config(transport), "field 12");
    let engine = stored(engine).await;
    let keys = engine.keys(&prompt());
    let session = daemon.client().await.open_registered(engine.descriptor()).await;
    // Stored with its first block only: shorter than what is needed of it.
    let half = Coverage::empty(fixture::full(engine.descriptor()).blocks()).with(0);
    let short = fixture::chunk(500);
    session.must_store(engine.descriptor(), short, fixture::PART, half).await;
    let unknown = fixture::chunk(404);
    let checked = engine.clone();
    tokio::task::spawn_blocking(move || {
        let engine = checked;
        // All is well: the reference.
        assert_eq!(load(&engine, "good", &load_plan(&engine, "good", &keys)), [0u32; 0]);
        // An unknown key in the middle: its two blocks and no others.
        let plan = load_plan(&engine, "unknown", &[keys[0], unknown, keys[1]]);
        check_failure(&engine, "unknown", &plan, &[3, 4], 1);
        assert!(
            engine.memory.is_filled(3, POISON) && engine.memory.is_filled(4, POISON),
            "and nothing landed there"
        );
        // Less stored than is needed.
        let plan = load_plan(&engine, "short", &[short, keys[1]]);
        check_failure(&engine, "short", &plan, &[1, 2], 1);
        // A block index out of the pool: refused before any copy.
        let good = StepPlan::decode(&load_plan(&engine, "index", &keys[..2])).unwrap();
        let mut wild = good;
        wild.loads[0].items[0].blocks[1] = 105_022;
        let failed = load(&engine, "index", &wild.encode());
        assert!(failed.contains(&1) && failed.contains(&105_022), "{failed:?}");
        assert!(engine.memory.is_filled(1, POISON), "refused before any copy");
        // A plan that is not one.
        engine.worker.begin_step(b"\xff\xff\xff\xff");
        assert_eq!(engine.worker.counters().bad_plans, 1);
    })
    .await
    .unwrap();
    // A slot that now holds another key: everything was dropped and others came.
    session.client.reset(engine.descriptor().digest()).await.unwrap();
    for n in 0..8 {
        session
            .must_store(
                engine.descriptor(),
                fixture::chunk(n),
                fixture::PART,
                fixture::full(engine.descriptor()),
            )
            .await;
    }
    tokio::task::spawn_blocking(move || {
        let keys = engine.keys(&prompt());
        let plan = load_plan(&engine, "stale", &keys[..2]);
        check_failure(&engine, "stale", &plan, &[1, 2, 3, 4], 2);
        // The request is computed instead, and is right.
        let run = engine.run("recomputed", &prompt());
        assert_eq!(run.loaded_tokens, 0);
    })
    .await
    .unwrap();
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_12_a_failed_load_is_never_done_over_shm() {
    six_reads(TransportChoice::Shm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_12_a_failed_load_is_never_done_over_grpc() {
    six_reads(TransportChoice::Grpc).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_12_a_stream_cut_at_sixty_percent_is_a_failed_load() {
    let daemon = Daemon::start(Setup { arena_bytes: 128 << 20, ..Setup::default() }).await;
    let proxy = Proxy::start(daemon.tcp()).await.unwrap();
    let address = Address::Tcp { host: "127.0.0.1".into(), port: proxy.port() };
    let shape = Shape { cell_bytes: 32 << 10, pool_blocks: 24, ..Shape::default() };
    let mut config = client_config(address, TransportChoice::Grpc);
    config.staging_bytes = bytesize::ByteSize::mib(64);
    let engine = stored(ModelEngine::with_shape(config, "field 12 cut", shape)).await;
    let bytes = 4 * 2 * shape.block_bytes();
    tokio::task::spawn_blocking(move || {
        let keys = engine.keys(&prompt());
        let before = engine.worker.counters();
        let plan = load_plan(&engine, "cut", &keys);
        proxy.cut_after(bytes * 6 / 10);
        let failed = load(&engine, "cut", &plan);
        // What was not read in full, or whose lease could not be confirmed, is reported; all of its blocks.
        assert!(failed.len() >= 4, "at least the last two chunks: {failed:?}");
        let after = engine.worker.counters();
        assert_eq!((after.loads, after.loads_failed), (before.loads, before.loads_failed + 1), "{after:?}");
        assert!(after.load_failures.values().sum::<u64>() >= 2, "{after:?}");
        // Run as the engine would: it recomputes and goes on, right in every slot.
        engine.run("after the cut", &prompt());
    })
    .await
    .unwrap();
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_21_a_reset_by_the_engine_is_complete_or_an_error() {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let mut config = daemon.client_config(TransportChoice::Auto);
    config.reset_deadline = Duration::from_millis(500);
    let engine = stored(ModelEngine::new(config, "field 21")).await;
    let checked = engine.clone();
    tokio::task::spawn_blocking(move || {
        let engine = checked;
        assert_eq!(engine.run("warm", &prompt()).loaded_tokens, 28, "all but the last block");
        assert!(engine.scheduler.reset(), "{:?}", engine.counters());
        assert_eq!(
            engine.run("cold", &prompt()).loaded_tokens,
            0,
            "nothing from before, no local memory of it"
        );
        engine.flush();
        // Stored again although the planner had stored these keys before. The first stores may still be refused: a
        // worker that has not heard of the reset yet gathers under the old epoch.
        let give_up = Instant::now() + Duration::from_secs(20);
        while engine.run("warm again", &prompt()).loaded_tokens == 0 {
            assert!(Instant::now() < give_up, "{:?}", engine.counters());
            engine.flush();
        }
        engine.flush();
    })
    .await
    .unwrap();
    daemon.kill();
    tokio::task::spawn_blocking(move || {
        assert!(!engine.scheduler.reset(), "unreachable means an error, not success");
    })
    .await
    .unwrap();
}
