//! Field reports on token and block arithmetic: 16, and what 23 and 29 say about the scheduler's side of a hit.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::sync::Arc;

use tender_client::{Match, TransportChoice};
use tender_proto::v1;
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::model::{ModelEngine, POISON, Prefixes, Shape};
use tender_tests::raw::item;
use tender_tests::{conserve, fixture};

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|n| n * 7 + 1).collect()
}

fn engine(daemon: &Daemon, transport: TransportChoice, model: &str, shape: Shape) -> Arc<ModelEngine> {
    Arc::new(ModelEngine::with_shape(daemon.client_config(transport), model, shape))
}

/// A load covers exactly [local, hit): nothing before it, nothing after it, and the count is not rounded up.
fn check_load(engine: &ModelEngine, id: &str, prompt: &[u32], local: usize, expected_hit: usize) {
    let shape = engine.memory.shape();
    let per_block = shape.tokens_per_block as usize;
    let mut request = engine.arrive(id, prompt);
    request.computed = local;
    let beyond = engine.look(&mut request);
    assert_eq!(beyond, expected_hit.saturating_sub(local), "{id}: prompt {}, local {local}", prompt.len());
    engine.allocate(&mut request, beyond).unwrap();
    for &block in &request.blocks {
        engine.memory.fill(block, POISON);
    }
    if beyond > 0 {
        let run = engine.load(&mut request, beyond);
        assert_eq!((run.loaded_tokens, run.failed_tokens), (beyond, 0), "{id}: {:?}", engine.counters());
        assert_eq!(request.computed, local + beyond, "{id}: never rounded up");
    }
    let prefixes = Prefixes::of(prompt);
    for (index, &block) in request.blocks.iter().enumerate() {
        let first = index * per_block;
        if (local..local + beyond).contains(&first) {
            let right =
                (first..first + per_block).all(|p| engine.memory.is_right(&request.blocks, &prefixes, p));
            assert!(right, "{id}: block {index} was loaded with other bytes");
        } else {
            assert!(
                engine.memory.is_filled(block, POISON),
                "{id}: block {index} is outside [{local}, {expected_hit})"
            );
        }
    }
    assert!(engine.memory.padding_is_untouched());
    engine.finish(request, true);
    engine.step(&mut []);
}

async fn hit_table(transport: TransportChoice) {
    let daemon = Daemon::start(Setup::default()).await;
    let base = Shape { padding_bytes: 8, ..Shape::default() };
    let of = |tokens_per_block, blocks_per_chunk| Shape { tokens_per_block, blocks_per_chunk, ..base };
    let units = [
        // The case's two rows: load units of 32 and 16 tokens.
        (of(32, 1), [0, 0, 32, 32, 32, 32, 64, 64]),
        (of(16, 1), [16, 16, 32, 32, 48, 48, 64, 64]),
        // Chunks of two blocks: never more than the row above, and less where the prompt ends inside a chunk, which
        // then has no key (rule 2).
        (of(16, 2), [0, 16, 32, 32, 32, 48, 64, 64]),
    ];
    for (shape, hits) in units {
        let unit = shape.tokens_per_block;
        let engine =
            engine(&daemon, transport, &format!("field 16 U={unit} of {}", shape.tokens_per_chunk()), shape);
        tokio::task::spawn_blocking(move || {
            engine.wait_until_up();
            let stored = tokens(64);
            assert_eq!(engine.run("store", &stored).loaded_tokens, 0);
            engine.flush();
            for (length, hit) in [31, 32, 33, 48, 63, 64, 65, 96].into_iter().zip(hits) {
                for local in [0, 16, 32] {
                    // The engine's own hits end on its blocks and before the prompt's last token.
                    if local % unit == 0 && local < length {
                        let id = format!("U={unit} {length}/{local}");
                        check_load(&engine, &id, &tokens(length), local as usize, hit);
                    }
                }
            }
            let (scheduler, worker) = engine.counters();
            assert!(scheduler.hit_tokens <= scheduler.query_tokens, "{scheduler:?}");
            assert_eq!(worker.loads_failed, 0, "{worker:?}");
        })
        .await
        .unwrap();
    }
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_16_a_hit_ends_on_a_block_and_leaves_a_token_over_shm() {
    hit_table(TransportChoice::Shm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_16_a_hit_ends_on_a_block_and_leaves_a_token_over_grpc() {
    hit_table(TransportChoice::Grpc).await;
}

/// The second half of case 23: [READY, READY, MISS, PENDING] answers from the ready pair without waiting.
#[tokio::test(flavor = "multi_thread")]
async fn field_23_a_pending_chunk_behind_a_miss_holds_nobody_up() {
    let daemon = Daemon::start(Setup::default()).await;
    let engine = engine(&daemon, TransportChoice::Auto, "field 23", Shape::default());
    let prompt = tokens(40);
    let keys = engine.keys(&prompt);
    let writer = daemon.client().await.open_registered(engine.descriptor()).await;
    let full = fixture::full(engine.descriptor());
    for &key in &keys[..2] {
        writer.must_store(engine.descriptor(), key, fixture::PART, full).await;
    }
    let bytes = usize::try_from(2 * engine.memory.shape().block_bytes()).unwrap();
    let namespace = engine.descriptor().digest();
    writer.reserve_one(namespace, item(keys[3], fixture::PART, full, bytes)).await.unwrap();
    let states = writer.states(namespace, &keys[..4]).await;
    use v1::ChunkState::{Miss, Pending, Ready};
    assert_eq!(states, [Ready, Ready, Miss, Pending]);
    tokio::task::spawn_blocking(move || {
        engine.wait_until_up();
        let request = engine.arrive("window", &prompt);
        let found = engine.scheduler.match_prefix(&request.id, &prompt, 0);
        assert_eq!(found, Match::Hit(16), "at once, from the two that are ready");
        engine.finish(request, true);
        // The window ends in PENDING at its very first chunk: no hit, and no "later" because of it.
        let other = engine.arrive("first pending", &prompt[..9]);
        engine.finish(other, true);
    })
    .await
    .unwrap();
}

/// Case 29 on the scheduler's side: a promise that nobody collects ends, whatever becomes of the request.
#[tokio::test(flavor = "multi_thread")]
async fn field_29_a_promise_ends_with_its_request_however_that_ends() {
    let daemon = Daemon::start(Setup::default()).await;
    let engine = engine(&daemon, TransportChoice::Auto, "field 29", Shape::default());
    let prompt = tokens(49);
    {
        let (engine, prompt) = (engine.clone(), prompt.clone());
        tokio::task::spawn_blocking(move || {
            engine.wait_until_up();
            engine.run("store", &prompt);
            engine.flush();
        })
        .await
        .unwrap();
    }
    let pins = || conserve::audit(daemon.engine()).pins;
    let look = |id: &'static str| {
        let (engine, prompt) = (engine.clone(), prompt.clone());
        tokio::task::spawn_blocking(move || {
            let mut request = engine.arrive(id, &prompt);
            assert_eq!(engine.look(&mut request), 48, "six chunks are promised");
            request
        })
    };
    // Aborted before allocation.
    let request = look("aborted").await.unwrap();
    assert!(pins() >= 6);
    engine.finish(request, true);
    assert_eq!(conserve::quiet(daemon.engine()).await.pins, 0);
    // The engine computes all of it itself.
    let mut request = look("computed").await.unwrap();
    engine.allocate(&mut request, 0).unwrap();
    assert_eq!(conserve::quiet(daemon.engine()).await.pins, 0);
    engine.finish(request, true);
    // The engine takes only the last 2 of 6: its own cache had the first 4.
    let mut request = look("took two").await.unwrap();
    request.computed = 32;
    let (moved, taken) = (engine.clone(), {
        let engine = engine.clone();
        tokio::task::spawn_blocking(move || {
            assert_eq!(engine.look(&mut request), 16);
            engine.allocate(&mut request, 16).unwrap();
            engine.load(&mut request, 16);
            request
        })
        .await
        .unwrap()
    });
    assert_eq!(conserve::quiet(daemon.engine()).await.pins, 0, "after the load nothing is held");
    moved.finish(taken, true);
    // Evictable again: a reset drops all of them and their memory comes back.
    let session = daemon.client().await.open_registered(engine.descriptor()).await;
    session.client.reset(engine.descriptor().digest()).await.unwrap();
    assert_eq!(conserve::quiet(daemon.engine()).await.used_bytes, 0);
}
