//! Memory that looks like an engine's: 32 layers, each a pool of pages.
#![allow(unsafe_code, reason = "it plays the engine, whose memory is known by address only")]

use std::num::NonZeroU32;
use std::sync::Arc;

use tender_proto::limits::KEY_CHAIN_VERSION;
use tender_proto::{
    BlocksPerChunk, ChainHash, ChunkId, Coverage, Descriptor, Group, GroupIndex, GroupKind, RankGeometry,
    Refusal,
};

use super::failed;
use crate::error::ClientError;
use crate::layout::{BufferDesc, LayerDesc, ProvedLayout, prove};
use crate::plan::{LoadItem, LoadJob, StepPlan, StoreJob};

const LAYERS: usize = 32;
const BLOCKS_PER_CHUNK: usize = 16;
pub(super) const TOKENS_PER_BLOCK: u32 = 16;

/// An engine's cache of `chunks` chunks.
pub(super) struct EngineMemory {
    /// One for each layer; never freed, since layouts name it by address.
    layers: Vec<*mut u8>,
    page_bytes: usize,
    chunks: usize,
    pub(super) layout: Arc<ProvedLayout>,
    pub(super) descriptor: Arc<Descriptor>,
}

impl EngineMemory {
    /// Enough pages for `bytes` in chunks of `chunk_bytes`.
    pub(super) fn new(bytes: usize, chunk_bytes: usize) -> Result<Self, ClientError> {
        let page_bytes = chunk_bytes / (LAYERS * BLOCKS_PER_CHUNK);
        let chunks = bytes / chunk_bytes;
        // Block 0 is the null block.
        let blocks = 1 + chunks * BLOCKS_PER_CHUNK;
        let layer_bytes = blocks * page_bytes;
        let layer = |index: usize| {
            let pages = aligned(layer_bytes);
            for (at, byte) in pages.iter_mut().enumerate() {
                *byte = u8::try_from((at / 7 + index * 31) % 251).unwrap_or(0);
            }
            pages.as_mut_ptr()
        };
        let layers: Vec<_> = (0..LAYERS).map(layer).collect();
        let layout = prove(describe(&layers, layer_bytes, page_bytes, blocks), to_u32(blocks))
            .map_err(|no| failed("the layout", no))?;
        let layout = Arc::new(layout);
        let descriptor = Arc::new(descriptor(&layout, chunk_bytes)?);
        Ok(Self { layers, page_bytes, chunks, layout, descriptor })
    }

    /// The yardstick: a plain copy of `from` into every page, in the order of the stored bytes.
    pub(super) fn copy_in(&mut self, from: &[u8]) {
        let mut pages = from.chunks_exact(self.page_bytes);
        for block in 1..=self.chunks * BLOCKS_PER_CHUNK {
            for &layer in &self.layers {
                let Some(page) = pages.next() else { return };
                // SAFETY: `layer` has 1 + chunks x blocks pages of this size, and only this thread uses them now.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        page.as_ptr(),
                        layer.add(block * self.page_bytes),
                        page.len(),
                    );
                }
            }
        }
    }

    /// Copies one chunk's pages out, in the order of its stored bytes.
    pub(super) fn chunk_out(&self, chunk: usize, to: &mut [u8]) {
        for (page, to) in self.pages(chunk).zip(to.chunks_exact_mut(self.page_bytes)) {
            // SAFETY: `page` is one of our pages of this size, which only this thread uses now; `to` is other memory.
            unsafe { std::ptr::copy_nonoverlapping(page, to.as_mut_ptr(), to.len()) }
        }
    }

    /// Copies one chunk's bytes into its pages.
    pub(super) fn chunk_in(&mut self, chunk: usize, from: &[u8]) {
        for (page, from) in self.pages(chunk).zip(from.chunks_exact(self.page_bytes)) {
            // SAFETY: as above, the other way.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), page, from.len()) }
        }
    }

    fn pages(&self, chunk: usize) -> impl Iterator<Item = *mut u8> {
        assert!(chunk < self.chunks, "a chunk that is not there");
        let first = 1 + chunk * BLOCKS_PER_CHUNK;
        let place = move |block: usize| block * self.page_bytes;
        (first..first + BLOCKS_PER_CHUNK).flat_map(move |block| {
            // Inside the layer, which has 1 + chunks x blocks pages.
            self.layers.iter().map(move |layer| layer.wrapping_add(place(block)))
        })
    }

    /// How many chunks it has.
    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    /// Stores all chunks under the keys of this round.
    pub(super) fn store_plan(&self, round: u64) -> StepPlan {
        self.store(&self.keys(round), 0)
    }

    /// Loads all chunks of that round.
    pub(super) fn load_plan(&self, round: u64) -> StepPlan {
        self.load(&self.keys(round))
    }

    /// Stores these chunks from the first `known` on. A chunk's pages are the ones at its position.
    pub(super) fn store(&self, chunks: &[ChunkId], known: usize) -> StepPlan {
        let job =
            |(at, &chunk): (usize, &ChunkId)| StoreJob { chunk, coverage: self.full(), blocks: blocks(at) };
        let jobs = chunks.iter().enumerate().skip(known);
        StepPlan { stores_after: jobs.map(job).collect(), ..StepPlan::default() }
    }

    /// Loads these chunks, each into the pages at its position.
    pub(super) fn load(&self, chunks: &[ChunkId]) -> StepPlan {
        let item =
            |(at, &chunk): (usize, &ChunkId)| LoadItem { chunk, needed: self.full(), blocks: blocks(at) };
        let items = chunks.iter().enumerate().map(item).collect();
        StepPlan {
            loads: vec![LoadJob { request: "bench".into(), items, whole: false, trace: Default::default() }],
            ..StepPlan::default()
        }
    }

    fn keys(&self, round: u64) -> Vec<ChunkId> {
        (0..self.chunks).map(|chunk| key(round, chunk)).collect()
    }

    fn full(&self) -> Coverage {
        Coverage::full(self.descriptor.groups[0].blocks_per_chunk)
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Zeroed memory that is never freed and begins on a page, as engines' tensors do. Between places that are not aligned
/// to each other a copy takes half as long again.
pub(super) fn aligned(bytes: usize) -> &'static mut [u8] {
    let pages = vec![Page([0; 4096]); bytes.div_ceil(4096)].leak();
    // SAFETY: the pages are plain bytes without padding, at least this many, and lent for ever to nobody else.
    unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), bytes) }
}

/// The key of a chunk of a round.
pub(super) fn key(round: u64, chunk: usize) -> ChunkId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&round.to_le_bytes()).update(&chunk.to_le_bytes());
    ChunkId { group: GroupIndex(0), hash: ChainHash::from(hasher.finalize()) }
}

fn blocks(chunk: usize) -> Vec<u32> {
    let first = to_u32(1 + chunk * BLOCKS_PER_CHUNK);
    (first..first + to_u32(BLOCKS_PER_CHUNK)).collect()
}

fn describe(layers: &[*mut u8], layer_bytes: usize, page_bytes: usize, blocks: usize) -> Vec<LayerDesc> {
    let layer = |(index, layer): (usize, &*mut u8)| {
        let address = layer.expose_provenance() as u64;
        LayerDesc {
            name: format!("layer {index}"),
            group: GroupIndex(0),
            address,
            // SAFETY: the memory is leaked, and a measurement lets nothing else touch it while copies run.
            buffer: unsafe { BufferDesc::new(address, layer_bytes as u64) },
            blocks: to_u32(blocks),
            block_stride_bytes: page_bytes as u64,
            axes: Vec::new(),
            cell_bytes: page_bytes as u64,
            page_bytes: page_bytes as u64,
            padding_bytes: 0,
            scales: None,
        }
    };
    layers.iter().enumerate().map(layer).collect()
}

fn descriptor(layout: &ProvedLayout, chunk_bytes: usize) -> Result<Descriptor, Refusal> {
    let group = Group::new(
        GroupKind::FullAttention,
        NonZeroU32::MIN.saturating_add(TOKENS_PER_BLOCK - 1),
        BlocksPerChunk::new(to_u32(BLOCKS_PER_CHUNK))?,
        None,
        vec![(chunk_bytes / BLOCKS_PER_CHUNK) as u64],
    )?;
    Ok(Descriptor {
        model: "tender bench".into(),
        weights: "none".into(),
        kv_dtype: "bytes".into(),
        quantisation: "none".into(),
        groups: vec![group],
        page_format: layout.page_format(),
        layout_fingerprint: layout.fingerprint(),
        ranks: RankGeometry::SINGLE,
        key_chain_version: KEY_CHAIN_VERSION,
        domain: String::new(),
    })
}

/// All numbers here are bounded by the bytes of a round.
fn to_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
