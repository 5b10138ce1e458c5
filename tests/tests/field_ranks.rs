//! Field report 18: which ranks hold which bytes. A chunk is there when all of its parts are; what is the same on every
//! rank is kept once, and every rank gets it.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::num::NonZeroU32;
use std::sync::Arc;

use tender_client::plan::{PlanConfig, StateHandoff};
use tender_client::{ClientError, SchedulerSide, TransportChoice};
use tender_proto::{Descriptor, GroupKind, PartIndex, RankGeometry, Reason, v1};
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::mixed::{Mixed, Tables, full, group, scheduled, sliding, states, tokens};
use tender_tests::oracle::groups::GroupSpec;
use tender_tests::oracle::truth::Truth;
use tender_tests::{conserve, fixture};

const RANKS: u32 = 4;

fn prompt() -> Truth {
    Truth::new(1, &(0..80).map(|n| n * 7 + 3).collect::<Vec<_>>(), &[])
}

/// A new engine of four ranks; its daemon's threads are left alone.
async fn engine(
    daemon: &Daemon,
    transport: TransportChoice,
    model: &'static str,
    groups: Vec<GroupSpec>,
) -> Arc<Mixed> {
    let config = daemon.client_config(transport);
    tokio::task::spawn_blocking(move || Arc::new(Mixed::new(&config, model, &groups, RANKS))).await.unwrap()
}

/// Computes 66 tokens into these tables, and gathers the same step on rank after rank, in two steps: all but one rank,
/// then that one. The tokens that a lookup finds before and after.
fn store_but_one(engine: &Mixed, tables: &Tables, late: usize) -> (usize, usize) {
    let all = tokens(&mut prompt(), 66);
    engine.arrive("stored", 66);
    let mut request = scheduled("stored", 0, 66, all.clone(), tables);
    request.states = vec![StateHandoff { group: 2, block: tables[2][1], boundary_tokens: 64 }];
    let plan = engine.plan(vec![request]);
    let early: Vec<_> = (0..engine.ranks.len()).filter(|&rank| rank != late).collect();
    engine.carry_out_on(&early, &plan, || engine.pass(&mut prompt(), tables, 0..66));
    engine.flush();
    let before = engine.would_hit("before", &all);
    engine.carry_out_on(&[late], &plan, || ());
    engine.flush();
    let after = engine.would_hit("after", &all);
    engine.finish("stored", 66, 66, tables, true);
    engine.poison_all();
    (before, after)
}

/// (a) Split heads: with one rank's shard missing there is no hit, whatever the others stored; with all of them every
/// rank gets its own heads back.
async fn split_heads(transport: TransportChoice) {
    let daemon = Daemon::start(Setup::default()).await;
    let groups = vec![full(16, 2), sliding(16, 2, 40), states(32)];
    let engine = engine(&daemon, transport, "field 18 split", groups).await;
    tokio::task::spawn_blocking(move || {
        let tables = vec![(21..=25).collect(), (31..=35).collect(), vec![41, 42]];
        assert_eq!(store_but_one(&engine, &tables, 2), (0, 64), "three of four shards are nothing");
        for rank in &engine.ranks {
            let counters = rank.worker.counters();
            // Two chunks of each attention group and a state.
            assert_eq!((counters.stored_parts, counters.already_stored), (5, 0), "{counters:?}");
        }
        let fresh = vec![vec![1, 2, 3, 4], vec![0, 6, 7, 8], vec![0, 9]];
        let all = tokens(&mut prompt(), 66);
        engine.arrive("again", 66);
        assert_eq!(engine.load("again", &all, 0, &fresh), 64);
        for (group, table) in fresh.iter().enumerate() {
            assert_eq!(engine.wrong(&mut prompt(), group, table, 32..64), None, "group {group}");
        }
        engine.finish("again", 66, 64, &Vec::new(), true);
    })
    .await
    .unwrap();
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_18_a_chunk_without_one_ranks_heads_is_a_miss_over_shm() {
    split_heads(TransportChoice::Shm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_18_a_chunk_without_one_ranks_heads_is_a_miss_over_grpc() {
    split_heads(TransportChoice::Grpc).await;
}

/// (b) A replicated latent: one copy serves four ranks, and is charged once.
#[tokio::test(flavor = "multi_thread")]
async fn field_18_a_replicated_latent_is_kept_once_and_loaded_by_all() {
    let daemon = Daemon::start(Setup::default()).await;
    let groups = vec![group(GroupKind::MlaLatent, 16, 1)];
    let engine = engine(&daemon, TransportChoice::Auto, "field 18 latent", groups).await;
    let block_bytes = engine.descriptor().groups[0].block_bytes(PartIndex(0)).unwrap();
    let moved = engine.clone();
    tokio::task::spawn_blocking(move || {
        let engine = moved;
        engine.store("stored", &mut prompt(), 66, &vec![(21..=25).collect()], &[]);
        engine.poison_all();
        let stored: Vec<_> = engine.ranks.iter().map(|rank| rank.worker.counters().stored_parts).collect();
        assert_eq!(stored.iter().sum::<u64>(), 4, "four chunks, each once: {stored:?}");
        engine.arrive("again", 66);
        let fresh = vec![vec![1, 2, 3, 4]];
        assert_eq!(engine.load("again", &tokens(&mut prompt(), 66), 0, &fresh), 64);
        assert_eq!(engine.wrong(&mut prompt(), 0, &fresh[0], 0..64), None);
        engine.finish("again", 66, 64, &Vec::new(), true);
    })
    .await
    .unwrap();
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!(audit.ready_chunks, 4);
    let room = 4 * block_bytes.next_multiple_of(4096);
    assert!(audit.used_bytes <= room, "{} bytes for four blocks of {block_bytes}", audit.used_bytes);
}

/// Ranks that hold the same bytes take turns, chunk by chunk, and need no word of each other for it.
#[test]
fn field_18_every_replicated_chunk_has_exactly_one_writer() {
    use tender_client::layout::Writer;
    let mut written = [0; RANKS as usize];
    for n in 0..400 {
        let chunk = fixture::chunk(n);
        let writers: Vec<_> =
            (0..RANKS).filter(|&replica| Writer { replica, replicas: RANKS }.writes(&chunk)).collect();
        assert_eq!(writers.len(), 1, "chunk {n}");
        written[writers[0] as usize] += 1;
    }
    assert!(written.iter().all(|&count| count > 50), "they share the work: {written:?}");
}

/// A descriptor of two parts, whose ranks split something else than heads.
fn two_parts(model: &str, first: u64, second: u64, ranks: RankGeometry) -> Descriptor {
    Descriptor { ranks, ..fixture::descriptor(model, vec![fixture::group(16, 4, &[first, second])]) }
}

fn two() -> NonZeroU32 {
    NonZeroU32::new(2).unwrap()
}

/// One of two parts is a miss for a client that asks, whatever the parts stand for; with the other it is there.
async fn one_of_two_parts(descriptor: Descriptor) {
    let daemon = Daemon::start(Setup::default()).await;
    let writer = daemon.client().await.open_registered(&descriptor).await;
    let reader = daemon.tcp_client().await.open_registered(&descriptor).await;
    let (chunk, full) = (fixture::chunk(1), fixture::full(&descriptor));
    let first = writer.must_store(&descriptor, chunk, PartIndex(1), full).await;
    assert!(!first.chunk_ready);
    let states = reader.states(descriptor.digest(), &[chunk]).await;
    assert_ne!(states, [v1::ChunkState::Ready]);
    for part in [PartIndex(0), PartIndex(1)] {
        assert!(reader.read(descriptor.digest(), chunk, part).await.is_none(), "part {part} alone");
    }
    assert!(writer.must_store(&descriptor, chunk, PartIndex(0), full).await.chunk_ready);
    for part in [PartIndex(0), PartIndex(1)] {
        let (_, bytes) = reader.read(descriptor.digest(), chunk, part).await.unwrap();
        let expected = tender_tests::pattern::blob(&descriptor, chunk, part, full);
        tender_tests::pattern::assert_same(&bytes, &expected, "a part");
    }
    conserve::quiet(daemon.engine()).await;
}

/// (c) Ranks that hold different tokens.
#[tokio::test(flavor = "multi_thread")]
async fn field_18_one_context_parallel_shard_is_a_miss() {
    let ranks = RankGeometry { context_parallel: two(), ..RankGeometry::SINGLE };
    one_of_two_parts(two_parts("field 18 cp", 1000, 1000, ranks)).await;
}

/// (d) Ranks that hold different layers.
#[tokio::test(flavor = "multi_thread")]
async fn field_18_one_pipeline_stage_is_a_miss() {
    let ranks = RankGeometry { pipeline_parallel: two(), ..RankGeometry::SINGLE };
    one_of_two_parts(two_parts("field 18 pp", 3000, 1000, ranks)).await;
}

/// A rank that holds parts of blocks cannot be planned for, and is told so instead of getting half of its tokens.
#[tokio::test(flavor = "multi_thread")]
async fn field_18_an_engine_of_context_parallel_ranks_is_refused() {
    let daemon = Daemon::start(Setup::default()).await;
    let config = daemon.client_config(TransportChoice::Auto);
    let refused = tokio::task::spawn_blocking(move || {
        let side = SchedulerSide::new(config, PlanConfig::default()).unwrap();
        let ranks = RankGeometry { context_parallel: two(), ..RankGeometry::SINGLE };
        side.set_descriptor(two_parts("field 18 cp planned", 1000, 1000, ranks)).unwrap_err()
    })
    .await
    .unwrap();
    let ClientError::Refused(refusal) = &refused else { panic!("{refused:?}") };
    assert_eq!(refusal.reason, Reason::Unsupported);
    assert!(refused.to_string().contains("2 context-parallel ranks"), "{refused}");
}

/// Where ranks of another number would hold other bytes, they have other names for them.
#[tokio::test(flavor = "multi_thread")]
async fn field_18_sizes_of_another_rank_geometry_are_another_namespace() {
    let daemon = Daemon::start(Setup::default()).await;
    let config = daemon.client_config(TransportChoice::Auto);
    tokio::task::spawn_blocking(move || {
        let four = Mixed::new(&config, "field 18 sizes", &[full(16, 2)], 4);
        let two = Mixed::new(&config, "field 18 sizes", &[full(16, 2)], 2);
        // Four heads on four ranks are parts of one head, on two ranks of two: not the same bytes under one key.
        let bytes = |engine: &Mixed| engine.descriptor().groups[0].block_bytes(PartIndex(0));
        assert_eq!(bytes(&two), bytes(&four).map(|bytes| 2 * bytes));
        assert_ne!(four.descriptor().digest(), two.descriptor().digest());
        four.store("stored", &mut prompt(), 66, &vec![(21..=25).collect()], &[]);
        let all = tokens(&mut prompt(), 66);
        assert_eq!((four.would_hit("own", &all), two.would_hit("other", &all)), (64, 0));
    })
    .await
    .unwrap();
    conserve::quiet(daemon.engine()).await;
}
