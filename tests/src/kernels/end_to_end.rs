//! A cache on the device through a real `tenderd` and back: every byte compared, and the rates of both ways.
//!
//! This module is one of the few where unsafe code lives: it plays the engine, which names device memory by address.
#![allow(unsafe_code, reason = "describes device memory that this module keeps")]

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaSlice;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use tender_client::copy::EngineStream;
use tender_client::layout::{Axis, BufferDesc, LayerDesc, ProvedLayout, prove};
use tender_client::plan::{LoadItem, LoadJob, StepPlan, StoreJob};
use tender_client::{TransportChoice, WorkerSide};
use tender_proto::{BlocksPerChunk, ChainHash, ChunkId, Coverage, Descriptor, GroupIndex};

use super::gpu::Gpu;
use super::report::Report;
use super::{Outcome, same};
use crate::daemon::{Daemon, Setup};
use crate::fixture;

/// Longer than any round on any machine.
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCKS_PER_CHUNK: u32 = 16;
/// A new session's memory is registered with the driver in the background.
const SETTLE: Duration = Duration::from_secs(3);

/// How a model's cache looks.
struct Model {
    name: &'static str,
    layers: usize,
    /// A page's axes, the innermost one contiguous.
    axes: &'static [(char, u32)],
    cell_bytes: u64,
}

const MODELS: [Model; 2] = [
    // 16 tokens of 8 heads, 128 numbers of 2 bytes, keys and values.
    Model { name: "like Llama 3 8B", layers: 32, axes: &[('K', 2), ('H', 8), ('N', 16)], cell_bytes: 256 },
    // 64 tokens of one latent of 576 numbers of 2 bytes.
    Model { name: "like DeepSeek V3", layers: 61, axes: &[('N', 64)], cell_bytes: 1152 },
];

/// A cache on the device.
struct Cache {
    layers: Vec<CudaSlice<u8>>,
    layout: Arc<ProvedLayout>,
    descriptor: Arc<Descriptor>,
    chunks: u32,
    bytes: u64,
}

/// Stores and loads caches of the models' shapes, of about `bytes` each.
pub fn check(gpu: &Gpu, bytes: u64, report: &mut Report) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for model in MODELS {
        let mut cache = Cache::new(gpu, &model, bytes)?;
        let setup = Setup { arena_bytes: cache.bytes * 2 + (64 << 20), ..Setup::default() };
        let daemon = runtime.block_on(Daemon::start(setup));
        for transport in [TransportChoice::Shm, TransportChoice::Grpc] {
            let outcome = round(gpu, &model, &mut cache, &daemon, transport, report);
            let what = format!("store and load, {transport:?}").to_lowercase();
            report.checked(&what, model.name, outcome);
        }
        runtime.block_on(daemon.stop());
    }
    Ok(())
}

impl Cache {
    fn new(gpu: &Gpu, model: &Model, bytes: u64) -> Outcome<Self> {
        let page_bytes = model.axes.iter().fold(model.cell_bytes, |bytes, axis| bytes * u64::from(axis.1));
        let block_bytes = page_bytes * model.layers as u64;
        let chunk_bytes = block_bytes * u64::from(BLOCKS_PER_CHUNK);
        let chunks = u32::try_from((bytes / chunk_bytes).max(1))?;
        // As many again to load into; block 0 is the null block.
        let pool = 1 + 2 * chunks * BLOCKS_PER_CHUNK;
        let layer_bytes = page_bytes * u64::from(pool);
        let layers = (0..model.layers).map(|_| gpu.bytes(usize::try_from(layer_bytes)?));
        let layers = layers.collect::<Outcome<Vec<_>>>()?;
        let describe = |(index, memory): (usize, &CudaSlice<u8>)| {
            let address = gpu.address(memory);
            let mut stride_bytes = page_bytes;
            let axes = model.axes.iter().map(|&(name, count)| {
                stride_bytes /= u64::from(count);
                Axis { name, count, stride_bytes }
            });
            LayerDesc {
                name: format!("layer {index}"),
                group: GroupIndex(0),
                address,
                // SAFETY: the cache keeps the memory, and outlives its workers; blocks are read back only when their
                // loads were reported.
                buffer: unsafe { BufferDesc::new(address, layer_bytes) },
                blocks: pool,
                block_stride_bytes: page_bytes,
                axes: axes.collect(),
                cell_bytes: model.cell_bytes,
                page_bytes,
                padding_bytes: 0,
                scales: None,
            }
        };
        let layout = Arc::new(prove(layers.iter().enumerate().map(describe).collect(), pool)?);
        let descriptor = Arc::new(Descriptor {
            page_format: layout.page_format(),
            layout_fingerprint: layout.fingerprint(),
            ..fixture::descriptor(model.name, vec![fixture::group(16, BLOCKS_PER_CHUNK, &[block_bytes])])
        });
        Ok(Self { layers, layout, descriptor, chunks, bytes: u64::from(chunks) * chunk_bytes })
    }

    /// Chunks from block 1 on, or those behind them.
    fn blocks(&self, chunk: u32, again: bool) -> Vec<u32> {
        let first = 1 + (chunk + if again { self.chunks } else { 0 }) * BLOCKS_PER_CHUNK;
        (first..first + BLOCKS_PER_CHUNK).collect()
    }

    /// Where the pages of the first chunks lie in a layer, or of those behind them.
    fn half_at(&self, layer: &CudaSlice<u8>, again: bool) -> Range<usize> {
        let blocks = self.chunks as usize * BLOCKS_PER_CHUNK as usize;
        let page = layer.len() / (1 + 2 * blocks);
        let first = page + if again { page * blocks } else { 0 };
        first..first + page * blocks
    }

    fn half(&self, gpu: &Gpu, layer: &CudaSlice<u8>, again: bool) -> Outcome<Vec<u8>> {
        let all = gpu.stream().clone_dtoh(&layer.slice(self.half_at(layer, again)))?;
        gpu.stream().synchronize()?;
        Ok(all)
    }
}

fn key(transport: TransportChoice, chunk: u32) -> ChunkId {
    let hash = blake3::hash(format!("{transport:?} {chunk}").as_bytes());
    ChunkId { group: GroupIndex(0), hash: ChainHash::from(hash) }
}

/// One worker's life: all chunks are stored while the next pass runs over them, and come back to other blocks.
fn round(
    gpu: &Gpu,
    model: &Model,
    cache: &mut Cache,
    daemon: &Daemon,
    transport: TransportChoice,
    report: &mut Report,
) -> Outcome<()> {
    let mut config = daemon.client_config(transport);
    config.staging_bytes = bytesize::ByteSize(cache.bytes + cache.bytes / 4);
    config.device.ring_bytes = bytesize::ByteSize(cache.bytes + cache.bytes / 4);
    (config.load_deadline, config.store_deadline) = (PATIENCE, PATIENCE);
    let worker = WorkerSide::on_cuda(0, config, Arc::clone(&cache.descriptor), Arc::clone(&cache.layout))?;
    if !worker.wait_until_up(PATIENCE) {
        return Err("no session".into());
    }
    if !gpu.is_fake() {
        std::thread::sleep(SETTLE);
    }
    let stream = EngineStream(gpu.stream().cu_stream().expose_provenance() as u64);
    let mut random = StdRng::seed_from_u64(7);
    let mut written = Vec::new();
    for layer in &mut cache.layers {
        let mut bytes = vec![0u8; layer.len()];
        random.fill_bytes(&mut bytes);
        gpu.stream().memcpy_htod(&bytes, layer)?;
        gpu.stream().synchronize()?;
        written.push(bytes);
    }
    let full = Coverage::full(BlocksPerChunk::new(BLOCKS_PER_CHUNK)?);
    let job =
        |chunk| StoreJob { chunk: key(transport, chunk), coverage: full, blocks: cache.blocks(chunk, false) };
    let plan = StepPlan { stores_after: (0..cache.chunks).map(job).collect(), ..StepPlan::default() };
    let (plan, begun) = (plan.encode(), Instant::now());
    worker.end_step_on(&plan, stream);
    let engine_waited = begun.elapsed();
    // The next pass is begun at once, over the very blocks.
    for layer in &mut cache.layers {
        gpu.stream().memset_zeros(layer)?;
    }
    let flushed = worker.flush(PATIENCE);
    let stored = begun.elapsed();
    gpu.stream().synchronize()?;
    let counters = worker.counters();
    if !flushed || counters.stored_parts != u64::from(cache.chunks) {
        return Err(format!("not all was stored: {counters:?}").into());
    }
    let item =
        |chunk| LoadItem { chunk: key(transport, chunk), needed: full, blocks: cache.blocks(chunk, true) };
    let loads = vec![LoadJob {
        request: "r".into(),
        items: (0..cache.chunks).map(item).collect(),
        whole: false,
        trace: Default::default(),
    }];
    let (plan, begun) = (StepPlan { loads, ..StepPlan::default() }.encode(), Instant::now());
    worker.begin_step_on(&plan, stream);
    while worker.poll().is_empty() {
        if begun.elapsed() > PATIENCE {
            return Err("a load was never reported".into());
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    let loaded = begun.elapsed();
    let counters = worker.counters();
    if counters.failed_blocks > 0 || counters.loads != 1 {
        return Err(format!("not all was loaded: {counters:?}").into());
    }
    for (layer, expected) in cache.layers.iter().zip(&written) {
        same(model.name, &cache.half(gpu, layer, true)?, &expected[cache.half_at(layer, false)])?;
        if cache.half(gpu, layer, false)?.iter().any(|&byte| byte != 0) {
            return Err("something wrote to blocks that no load had".into());
        }
    }
    worker.shutdown();
    let rate = |time: Duration| cache.bytes as f64 / 1e9 / time.as_secs_f64().max(1e-9);
    let name = |what| format!("{what}, {transport:?}").to_lowercase();
    report.rate(&name("store end to end"), model.name, rate(stored), None);
    report.rate(&name("load end to end"), model.name, rate(loaded), None);
    report.figure(&name("a step's wait"), model.name, format!("{engine_waited:.1?}"), String::new(), "");
    Ok(())
}
