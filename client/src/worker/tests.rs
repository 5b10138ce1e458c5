//! A worker over real memory, against a daemon that keeps the contract or breaks it on demand.

mod device;

use std::num::NonZeroU32;
use std::time::Instant;

use proptest::prelude::*;
use tender_proto::{BlocksPerChunk, ChainHash, ChunkId, Coverage, Group, GroupKind, PartIndex, RankGeometry};

use super::*;
use crate::config::TransportChoice;
use crate::copy::Target;
use crate::fake::{FakeDaemon, Trick};
use crate::layout::{Axis, BufferDesc, GroupShard, LayerDesc, Writer, prove};
use crate::plan::{LoadItem, LoadJob, StoreJob};

const BOTH: [TransportChoice; 2] = [TransportChoice::Shm, TransportChoice::Grpc];
const POOL_BLOCKS: u32 = 40;
const BLOCKS_PER_CHUNK: u32 = 4;

/// What a page looks like, and how far apart they are.
#[derive(Clone, Debug)]
struct Shape {
    layers: usize,
    kv: u32,
    heads: u32,
    tokens: u32,
    cell_bytes: u64,
    padding_bytes: u64,
    /// All layers in one buffer, one after another inside a block, instead of a buffer for each.
    interleaved: bool,
}

impl Shape {
    const SMALL: Self =
        Self { layers: 2, kv: 2, heads: 2, tokens: 4, cell_bytes: 16, padding_bytes: 8, interleaved: false };

    fn row_bytes(&self) -> u64 {
        self.cell_bytes + self.padding_bytes
    }
    fn page_bytes(&self) -> u64 {
        self.row_bytes() * u64::from(self.kv * self.heads * self.tokens)
    }
    fn content_bytes(&self) -> u64 {
        self.cell_bytes * u64::from(self.kv * self.heads * self.tokens) * self.layers as u64
    }
}

#[expect(unsafe_code, reason = "the buffers of `Engine` outlive its worker")]
fn named(address: u64, bytes: u64) -> BufferDesc {
    // SAFETY: the tests keep the buffers until the worker is shut down, and look at blocks only after their
    // copies are over.
    unsafe { BufferDesc::new(address, bytes) }
}

/// The memory of an engine, and the groups of layers in it.
struct Engine {
    buffers: Vec<Vec<u8>>,
    shape: Shape,
    groups: usize,
}

impl Engine {
    fn new(shape: Shape, groups: usize) -> Self {
        let buffers = if shape.interleaved { groups } else { groups * shape.layers };
        let pages = if shape.interleaved { shape.layers as u64 } else { 1 };
        let len = usize::try_from(shape.page_bytes() * pages * u64::from(POOL_BLOCKS)).unwrap();
        let mut buffers = vec![vec![0; len]; buffers];
        for (i, buffer) in buffers.iter_mut().enumerate() {
            blake3::Hasher::new().update(&[u8::try_from(i).unwrap()]).finalize_xof().fill(buffer);
        }
        Self { buffers, shape, groups }
    }

    fn layout(&mut self) -> Arc<ProvedLayout> {
        let (shape, mut layers) = (self.shape.clone(), Vec::new());
        let page = shape.page_bytes();
        for at in 0..self.groups * shape.layers {
            let (group, layer) = (at / shape.layers, at % shape.layers);
            let (buffer, first, stride) = match shape.interleaved {
                true => (group, layer as u64 * page, page * shape.layers as u64),
                false => (at, 0, page),
            };
            let buffer = &mut self.buffers[buffer];
            let start = buffer.as_mut_ptr() as u64;
            let axis = |name, count, stride_bytes| Axis { name, count, stride_bytes };
            let rows = [shape.row_bytes(), shape.row_bytes() * u64::from(shape.tokens)];
            layers.push(LayerDesc {
                name: format!("layer.{at}"),
                group: GroupIndex(u16::try_from(group).unwrap()),
                address: start + first,
                buffer: named(start, buffer.len() as u64),
                blocks: POOL_BLOCKS,
                block_stride_bytes: stride,
                axes: vec![
                    axis('K', shape.kv, rows[1] * u64::from(shape.heads)),
                    axis('H', shape.heads, rows[1]),
                    axis('N', shape.tokens, rows[0]),
                ],
                cell_bytes: shape.cell_bytes,
                page_bytes: page,
                padding_bytes: page - shape.content_bytes() / shape.layers as u64,
                scales: None,
            });
        }
        Arc::new(prove(layers, POOL_BLOCKS).unwrap())
    }

    fn descriptor(&self) -> Descriptor {
        let group = Group::new(
            GroupKind::FullAttention,
            NonZeroU32::new(self.shape.tokens).unwrap(),
            BlocksPerChunk::new(BLOCKS_PER_CHUNK).unwrap(),
            None,
            vec![self.shape.content_bytes()],
        );
        Descriptor {
            model: "m".into(),
            weights: "w".into(),
            kv_dtype: "float32".into(),
            quantisation: "none".into(),
            groups: vec![group.unwrap(); self.groups],
            page_format: "KHNC".into(),
            layout_fingerprint: [1; 32],
            ranks: RankGeometry::SINGLE,
            key_chain_version: 1,
            domain: String::new(),
        }
    }

    /// What block `to` must be after block `from` of `other` was loaded into it: content moved, padding kept.
    fn expect_copied(&mut self, other: &Self, group: usize, from: u32, to: u32) {
        let (row, cell) = (self.shape.row_bytes(), self.shape.cell_bytes);
        let pages = if self.shape.interleaved { self.shape.layers as u64 } else { 1 };
        let block_bytes = self.shape.page_bytes() * pages;
        let per_group = if self.shape.interleaved { 1 } else { self.shape.layers };
        for buffer in group * per_group..(group + 1) * per_group {
            for at in (0..block_bytes).step_by(usize::try_from(row).unwrap()) {
                let range = |block: u32| {
                    let start = usize::try_from(u64::from(block) * block_bytes + at).unwrap();
                    start..start + usize::try_from(cell).unwrap()
                };
                let bytes = other.buffers[buffer][range(from)].to_vec();
                self.buffers[buffer][range(to)].copy_from_slice(&bytes);
            }
        }
    }
}

struct Rig {
    daemon: FakeDaemon,
    worker: WorkerSide,
    engine: Engine,
}

impl Rig {
    fn start(transport: TransportChoice, shape: Shape, groups: usize) -> Self {
        Self::start_with(shape, groups, |config| config.transport = transport)
    }

    fn start_with(shape: Shape, groups: usize, change: impl FnOnce(&mut ClientConfig)) -> Self {
        let daemon = FakeDaemon::start();
        let mut engine = Engine::new(shape, groups);
        let mut config = ClientConfig::new(daemon.address.clone());
        config.verify_shm_reads = true;
        config.staging_bytes = bytesize::ByteSize::mib(4);
        change(&mut config);
        let layout = engine.layout();
        let descriptor = Arc::new(engine.descriptor());
        let worker = WorkerSide::new(config, descriptor, layout).unwrap();
        assert!(worker.wait_until_up(Duration::from_secs(20)));
        Self { daemon, worker, engine }
    }

    fn store(&self, jobs: Vec<StoreJob>) {
        let plan = StepPlan { stores_after: jobs, ..StepPlan::default() };
        self.worker.end_step(&plan.encode());
        assert!(self.worker.flush(Duration::from_secs(20)));
    }

    fn load(&self, items: Vec<LoadItem>) -> LoadDone {
        let loads = vec![LoadJob { request: "r".into(), items, whole: false, trace: Default::default() }];
        self.worker.begin_step(&StepPlan { loads, ..StepPlan::default() }.encode());
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(done) = self.worker.poll().pop() {
                return done;
            }
            assert!(Instant::now() < deadline, "the load was never reported");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn chunk(group: usize, n: u8) -> ChunkId {
    let group = GroupIndex(u16::try_from(group).unwrap());
    ChunkId { group, hash: ChainHash::from_bytes([n; 32]) }
}

fn coverage(bits: u64) -> Coverage {
    Coverage::new(bits & 0b1111, BlocksPerChunk::new(BLOCKS_PER_CHUNK).unwrap()).unwrap()
}

fn blocks(first: u32) -> Vec<u32> {
    (first..first + BLOCKS_PER_CHUNK).collect()
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1usize..4, 1u32..3, 1u32..4, 1u32..5, 1u64..40, 0u64..9, any::<bool>()).prop_map(
        |(layers, kv, heads, tokens, cell_bytes, padding_bytes, interleaved)| Shape {
            layers,
            kv,
            heads,
            tokens,
            cell_bytes,
            padding_bytes,
            interleaved,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn random_layouts_come_back_bit_for_bit_and_nothing_else_changes(
        shape in shapes(),
        groups in 1usize..3,
        stored in proptest::collection::vec(1u64..16, 1..4),
        wanted: u64,
    ) {
        for transport in BOTH {
            let mut rig = Rig::start(transport, shape.clone(), groups);
            let before = Engine::new(shape.clone(), groups);
            let chunks: Vec<_> = (0..groups)
                .flat_map(|group| stored.iter().enumerate().map(move |(n, &bits)| (group, n, coverage(bits))))
                .collect();
            let first = |n: usize| 1 + u32::try_from(n).unwrap() * BLOCKS_PER_CHUNK;
            rig.store(chunks.iter().map(|&(group, n, coverage)| StoreJob {
                chunk: chunk(group, u8::try_from(n).unwrap()), coverage, blocks: blocks(first(n)),
            }).collect());
            let counters = rig.worker.counters();
            prop_assert_eq!(counters.stored_parts, chunks.len() as u64, "{:?}", counters);
            prop_assert_eq!(counters.stored_bytes, rig.worker_bytes(&chunks));
            let mut expected = Engine::new(shape.clone(), groups);
            let mut items = Vec::new();
            for &(group, n, covered) in &chunks {
                let needed = coverage(covered.bits() & (wanted >> (4 * n)));
                let target = first(n) + 20;
                for i in needed.iter() {
                    expected.expect_copied(&before, group, first(n) + i, target + i);
                }
                items.push(LoadItem {
                    chunk: chunk(group, u8::try_from(n).unwrap()), needed, blocks: blocks(target),
                });
            }
            let done = rig.load(items);
            prop_assert_eq!(done.failed_blocks, Vec::<u32>::new(), "{:?}", rig.worker.counters());
            rig.worker.shutdown();
            prop_assert!(rig.engine.buffers == expected.buffers, "{:?}: memory differs", transport);
            rig.engine.buffers.clear();
        }
    }
}

impl Rig {
    fn worker_bytes(&self, chunks: &[(usize, usize, Coverage)]) -> u64 {
        let block = self.engine.shape.content_bytes();
        chunks.iter().map(|(_, _, coverage)| block * u64::from(coverage.count())).sum()
    }
}

/// Reads that fail, each with one and with three groups and over both transports: failures of exactly the
/// blocks that were to come from it, nothing counted as served, and the engine's memory as it was but for the content
/// of those blocks.
#[test]
fn field_12_a_failed_load_is_never_reported_as_done() {
    let tricks = [
        Trick::Miss,
        Trick::OtherLength,
        Trick::CutAt(60),
        Trick::OtherBytes,
        Trick::OutOfRange,
        Trick::NothingButOk,
    ];
    for transport in BOTH {
        for groups in [1, 3] {
            let rig = Rig::start(transport, Shape::SMALL, groups);
            let full = coverage(0b1111);
            let first = |group: usize| 1 + u32::try_from(group).unwrap() * BLOCKS_PER_CHUNK;
            let job =
                |group| StoreJob { chunk: chunk(group, 0), coverage: full, blocks: blocks(first(group)) };
            rig.store((0..groups).map(job).collect());
            for trick in tricks {
                if trick == Trick::CutAt(60) && transport == TransportChoice::Shm {
                    continue;
                }
                // The last group is the victim: what came before it in a stream is untouched by it.
                let victim = groups - 1;
                rig.daemon.play_on(u32::try_from(victim).unwrap(), trick);
                let before = rig.worker.counters();
                let memory = rig.engine.buffers.clone();
                let needed = coverage(0b0110);
                let item =
                    |group| LoadItem { chunk: chunk(group, 0), needed, blocks: blocks(first(group) + 16) };
                let done = rig.load((0..groups).map(item).collect());
                let case = format!("{transport:?}, {groups} groups, {trick:?}");
                assert_eq!(done.failed_blocks, [first(victim) + 17, first(victim) + 18], "{case}");
                let after = rig.worker.counters();
                assert_eq!(after.loads, before.loads, "{case}");
                assert_eq!(after.loads_failed, before.loads_failed + 1, "{case}");
                assert_eq!(after.failed_blocks, before.failed_blocks + 2, "{case}");
                assert_eq!(after.loaded_parts, before.loaded_parts + victim as u64, "{case}");
                let failures: u64 = after.load_failures.values().sum();
                assert_eq!(failures, before.load_failures.values().sum::<u64>() + 1, "{case}");
                let blocks_of_victim = [first(victim) + 17, first(victim) + 18];
                let mut unchanged = Engine::new(Shape::SMALL, groups);
                unchanged.buffers.clone_from(&rig.engine.buffers);
                let before = Engine { buffers: memory, shape: Shape::SMALL, groups };
                for block in blocks_of_victim {
                    unchanged.expect_copied(&before, victim, block, block);
                }
                let first_of_victim = victim * Shape::SMALL.layers;
                assert!(unchanged.buffers[first_of_victim..] == before.buffers[first_of_victim..], "{case}");
            }
        }
    }
}

#[test]
fn a_step_gathers_for_as_long_as_it_may_and_one_chunk_at_least() {
    let rig = Rig::start_with(Shape::SMALL, 1, |config| config.gather_budget = Duration::from_nanos(1));
    let job = |n| StoreJob { chunk: chunk(0, n), coverage: coverage(0b1111), blocks: blocks(1) };
    rig.store((0..5).map(job).collect());
    let counters = rig.worker.counters();
    assert_eq!(counters.stored_parts, 1);
    assert_eq!(counters.stores_skipped["over_budget"], 4);
    assert_eq!(counters.slow_steps, 1);
    rig.store(vec![job(9)]);
    assert_eq!(rig.worker.counters().stored_parts, 2, "every step gets its turn");
}

#[test]
fn a_lease_that_ended_fails_the_whole_load() {
    for transport in BOTH {
        let rig = Rig::start(transport, Shape::SMALL, 1);
        rig.store(vec![StoreJob { chunk: chunk(0, 0), coverage: coverage(15), blocks: blocks(1) }]);
        rig.daemon.play(Trick::LeaseEnds);
        let done = rig.load(vec![LoadItem { chunk: chunk(0, 0), needed: coverage(15), blocks: blocks(17) }]);
        assert_eq!(done.failed_blocks, blocks(17));
        let counters = rig.worker.counters();
        assert_eq!((counters.loaded_parts, counters.loaded_bytes), (0, 0));
        assert_eq!(counters.load_failures["lease_expired"], 1);
    }
}

#[test]
fn a_block_that_was_not_stored_is_not_loaded() {
    let rig = Rig::start(TransportChoice::Shm, Shape::SMALL, 1);
    rig.store(vec![StoreJob { chunk: chunk(0, 0), coverage: coverage(0b0001), blocks: blocks(1) }]);
    let done = rig.load(vec![LoadItem { chunk: chunk(0, 0), needed: coverage(0b0011), blocks: blocks(17) }]);
    assert_eq!(done.failed_blocks, [17, 18]);
    assert_eq!(rig.worker.counters().load_failures["not_covered"], 1);
}

#[test]
fn a_load_from_a_silent_daemon_fails_at_its_deadline() {
    let rig = Rig::start_with(Shape::SMALL, 1, |config| config.load_deadline = Duration::from_millis(100));
    rig.daemon.play(Trick::Stall);
    let done = rig.load(vec![LoadItem { chunk: chunk(0, 0), needed: coverage(1), blocks: blocks(1) }]);
    assert_eq!(done.failed_blocks, [1]);
    assert_eq!(rig.worker.counters().load_failures["deadline"], 1);
}

#[test]
fn a_daemon_that_never_answers_is_asked_no_more() {
    let rig = Rig::start_with(Shape::SMALL, 1, |config| {
        config.load_deadline = Duration::from_millis(20);
        config.breaker.failures = 2;
        config.breaker.open_min = Duration::from_secs(3600);
        config.breaker.open_max = Duration::from_secs(3600);
    });
    rig.daemon.play(Trick::Stall);
    for _ in 0..5 {
        rig.load(vec![LoadItem { chunk: chunk(0, 0), needed: coverage(1), blocks: blocks(1) }]);
    }
    let counters = rig.worker.counters();
    assert_eq!((counters.breaker.as_str(), counters.breaker_opened), ("open", 1));
    assert_eq!(rig.daemon.state.lookups.load(std::sync::atomic::Ordering::Relaxed), 2);
    assert_eq!(counters.load_failures["breaker_open"], 3);
}

#[test]
fn shutdown_is_quick_and_reports_what_was_under_way() {
    let rig = Rig::start_with(Shape::SMALL, 1, |config| {
        config.load_deadline = Duration::from_secs(3600);
        config.load_threads = 1;
    });
    rig.daemon.play(Trick::Stall);
    let item = || LoadItem { chunk: chunk(0, 0), needed: coverage(1), blocks: blocks(1) };
    let load = |n: usize| LoadJob {
        request: n.to_string(),
        items: vec![item()],
        whole: false,
        trace: Default::default(),
    };
    let plan = StepPlan { loads: (0..5).map(load).collect(), ..StepPlan::default() };
    rig.worker.begin_step(&plan.encode());
    let start = Instant::now();
    rig.worker.shutdown();
    assert!(start.elapsed() < Duration::from_secs(20));
    let mut done: Vec<_> = rig.worker.poll().into_iter().map(|done| done.request).collect();
    done.sort();
    assert_eq!(done, ["0", "1", "2", "3", "4"]);
}

#[test]
fn without_a_daemon_loads_fail_and_stores_are_skipped_at_once() {
    let mut engine = Engine::new(Shape::SMALL, 1);
    let config = ClientConfig::new("unix:/nonexistent/tender.sock".parse().unwrap());
    let (descriptor, layout) = (Arc::new(engine.descriptor()), engine.layout());
    let worker = WorkerSide::new(config, descriptor, layout).unwrap();
    let store = StoreJob { chunk: chunk(0, 0), coverage: coverage(1), blocks: blocks(1) };
    let item = LoadItem { chunk: chunk(0, 0), needed: coverage(1), blocks: blocks(1) };
    let load = LoadJob { request: "r".into(), items: vec![item], whole: false, trace: Default::default() };
    let plan = StepPlan {
        stores_before: vec![store.clone()],
        loads: vec![load],
        stores_after: vec![store],
        epoch: None,
    };
    let plan = plan.encode();
    worker.begin_step(&plan);
    worker.end_step(&plan);
    assert!(worker.flush(Duration::from_secs(20)));
    assert_eq!(worker.poll(), [LoadDone { request: "r".into(), failed_blocks: vec![1], failed: false }]);
    assert_eq!(worker.counters().stores_skipped["unreachable"], 2);
}

#[test]
fn a_daemon_that_goes_away_is_used_again_when_it_is_back() {
    for transport in BOTH {
        let rig = Rig::start_with(Shape::SMALL, 1, |config| {
            config.transport = transport;
            config.reconnect_min = Duration::from_millis(5);
        });
        rig.store(vec![StoreJob { chunk: chunk(0, 0), coverage: coverage(15), blocks: blocks(1) }]);
        let load =
            || rig.load(vec![LoadItem { chunk: chunk(0, 0), needed: coverage(15), blocks: blocks(17) }]);
        assert!(load().failed_blocks.is_empty());
        rig.daemon.play(Trick::Gone);
        let deadline = Instant::now() + Duration::from_secs(20);
        while rig.worker.counters().session == "up" {
            assert!(Instant::now() < deadline, "the loss was never noticed");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(load().failed_blocks, blocks(17));
        rig.daemon.play(Trick::None);
        assert!(rig.worker.wait_until_up(Duration::from_secs(20)));
        assert!(load().failed_blocks.is_empty());
        let counters = rig.worker.counters();
        assert_eq!((counters.sessions, counters.sessions_lost), (2, 1), "{transport:?}");
    }
}

#[test]
fn full_staging_skips_and_counts() {
    let rig = Rig::start_with(Shape::SMALL, 1, |config| {
        config.staging_bytes = bytesize::ByteSize::kib(8);
        config.store_deadline = Duration::from_millis(300);
        config.store_threads = 1;
    });
    rig.daemon.play(Trick::Stall);
    let job = |n| StoreJob { chunk: chunk(0, n), coverage: coverage(15), blocks: blocks(1) };
    rig.store((0..5).map(job).collect());
    let skipped = rig.worker.counters().stores_skipped;
    assert_eq!((skipped["staging_full"], skipped["deadline"]), (3, 2));
}

/// With one of its parts missing a chunk would never be ready, so nothing of it is kept.
#[test]
fn a_chunk_of_which_not_all_parts_can_be_staged_is_skipped_whole() {
    let daemon = FakeDaemon::start();
    let mut engine = Engine::new(Shape::SMALL, 1);
    let mut config = ClientConfig::new(daemon.address.clone());
    // Three slots, where a chunk's two parts take two.
    config.staging_bytes = bytesize::ByteSize::kib(12);
    config.store_deadline = Duration::from_millis(300);
    config.store_threads = 1;
    let mut descriptor = engine.descriptor();
    let half = engine.shape.content_bytes() / 2;
    let tokens = NonZeroU32::new(engine.shape.tokens).unwrap();
    let blocks_per_chunk = BlocksPerChunk::new(BLOCKS_PER_CHUNK).unwrap();
    descriptor.groups =
        vec![Group::new(GroupKind::FullAttention, tokens, blocks_per_chunk, None, vec![half; 2]).unwrap()];
    let both = GroupShard { parts: 2, first: 0, count: 2, writer: Writer::ALONE };
    let layout = engine.layout().as_ref().clone().shard(&[both]).unwrap();
    let worker = WorkerSide::new(config, Arc::new(descriptor), Arc::new(layout)).unwrap();
    assert!(worker.wait_until_up(Duration::from_secs(20)));
    let rig = Rig { daemon, worker, engine };
    rig.daemon.play(Trick::Stall);
    let job = |n| StoreJob { chunk: chunk(0, n), coverage: coverage(15), blocks: blocks(1) };
    rig.store(vec![job(0), job(1)]);
    let counters = rig.worker.counters();
    // The first one's two parts were given up at the deadline.
    assert_eq!((counters.stores_skipped["staging_full"], counters.stores_skipped["deadline"]), (1, 2));
    // And the room of both is free again.
    rig.daemon.play(Trick::None);
    rig.store(vec![job(2)]);
    let counters = rig.worker.counters();
    assert_eq!((counters.stored_parts, counters.stored_bytes), (2, 8 * half));
    assert_eq!(rig.daemon.stored(), 1);
}

#[test]
fn what_the_daemon_has_is_not_sent_again_and_what_it_refuses_is_counted() {
    let rig = Rig::start(TransportChoice::Auto, Shape::SMALL, 1);
    let job = |n| StoreJob { chunk: chunk(0, n), coverage: coverage(15), blocks: blocks(1) };
    rig.store(vec![job(0)]);
    rig.store(vec![job(0), job(1)]);
    let counters = rig.worker.counters();
    assert_eq!((counters.stored_parts, counters.already_stored, counters.stored_chunks), (2, 1, 2));
    rig.daemon.play(Trick::NoSpace);
    rig.store(vec![job(2)]);
    assert_eq!(rig.worker.counters().stores_skipped["no_space"], 1);
    assert_eq!(rig.worker.counters().transport, "shm");
}

#[test]
fn what_was_planned_before_a_reset_and_comes_after_it_is_skipped() {
    let rig = Rig::start(TransportChoice::Shm, Shape::SMALL, 1);
    let job = |n: u8| StoreJob { chunk: chunk(0, n), coverage: coverage(0b1111), blocks: blocks(1) };
    // The stand-in's namespaces are in epoch 1, and the worker knows it; the scheduler did not when it planned.
    for (n, epoch) in [(1, Some(0)), (2, Some(1)), (3, None)] {
        let plan = StepPlan { stores_before: vec![job(n)], epoch, ..StepPlan::default() };
        rig.worker.begin_step(&plan.encode());
    }
    assert!(rig.worker.flush(Duration::from_secs(20)));
    let counters = rig.worker.counters();
    assert_eq!(counters.stored_parts, 2);
    assert_eq!(counters.stores_skipped.get("namespace_reset"), Some(&1), "{counters:?}");
}

#[test]
fn garbage_plans_are_counted_and_harmless() {
    let rig = Rig::start(TransportChoice::Auto, Shape::SMALL, 1);
    rig.worker.begin_step(&[0xff; 40]);
    rig.worker.end_step(&[0xff; 40]);
    assert_eq!(rig.worker.counters().bad_plans, 2);
    // Blocks outside the pool and the null block: refused by the copy, the rest goes on.
    let outside = StoreJob { chunk: chunk(0, 0), coverage: coverage(1), blocks: blocks(POOL_BLOCKS) };
    let null = StoreJob { chunk: chunk(0, 1), coverage: coverage(1), blocks: vec![0; 4] };
    rig.store(vec![outside, null]);
    assert_eq!(rig.worker.counters().stores_skipped["bad_blocks"], 2);
    assert_eq!(rig.worker.counters().panics, 0);
}

#[test]
fn a_panic_fails_its_load_and_switches_the_worker_off() {
    #[derive(Debug)]
    struct Bomb;
    impl CopyBackend for Bomb {
        fn gather(
            &self,
            _: GroupIndex,
            _: PartIndex,
            _: &[u32],
            _: Coverage,
            to: &mut [u8],
        ) -> Result<(), crate::copy::CopyRefusal> {
            to.fill(1);
            Ok(())
        }
        fn scatter(&self, _: &Target<'_>, _: u64, _: &[u8]) -> Result<(), crate::copy::CopyRefusal> {
            panic!("on purpose")
        }
    }
    let daemon = FakeDaemon::start();
    let mut engine = Engine::new(Shape::SMALL, 1);
    let config = ClientConfig::new(daemon.address.clone());
    let (descriptor, layout) = (Arc::new(engine.descriptor()), engine.layout());
    let worker = WorkerSide::with_backend(config, descriptor, layout, Arc::new(Bomb)).unwrap();
    assert!(worker.wait_until_up(Duration::from_secs(20)));
    let rig = Rig { daemon, worker, engine };
    rig.store(vec![StoreJob { chunk: chunk(0, 0), coverage: coverage(15), blocks: blocks(1) }]);
    let item = || LoadItem { chunk: chunk(0, 0), needed: coverage(15), blocks: blocks(17) };
    assert_eq!(rig.load(vec![item()]).failed_blocks, blocks(17));
    assert_eq!(rig.load(vec![item()]).failed_blocks, blocks(17));
    rig.store(vec![StoreJob { chunk: chunk(0, 1), coverage: coverage(15), blocks: blocks(1) }]);
    let counters = rig.worker.counters();
    assert_eq!((counters.panics, counters.stored_parts), (1, 1));
    // The lease of the load that panicked is given back in the background.
    let deadline = Instant::now() + Duration::from_secs(20);
    while rig.daemon.leases() > 0 {
        assert!(Instant::now() < deadline, "the lease was kept");
        std::thread::sleep(Duration::from_millis(2));
    }
}
