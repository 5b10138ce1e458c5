//! Gather and scatter of whole chunks on the host, beside one memcpy of the same bytes in the same run: what counts
//! is the ratio.
#![allow(unsafe_code, reason = "describes buffers of the benchmark's own")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tender_client::copy::{CopyBackend, HostCopy, Target};
use tender_client::layout::{Axis, BufferDesc, LayerDesc, ProvedLayout, prove};
use tender_proto::{BlocksPerChunk, Coverage, GroupIndex, PartIndex};

const GROUP: GroupIndex = GroupIndex(0);
const PART: PartIndex = PartIndex(0);
const LAYERS: u32 = 16;
const HEADS: u32 = 8;
const TOKENS: u32 = 16;
const CELL_BYTES: u64 = 256;
const BLOCKS_PER_CHUNK: u32 = 16;
/// Twice a large L3, so that pages come from memory.
const POOL_BLOCKS: u32 = 512;

/// Layers side by side, heads outermost in a page, `head_padding` bytes behind each head.
fn layout(memory: &mut Vec<u8>, head_padding: u64) -> Arc<ProvedLayout> {
    let head = u64::from(TOKENS) * CELL_BYTES + head_padding;
    let page = u64::from(HEADS) * head;
    let len = page * u64::from(POOL_BLOCKS) * u64::from(LAYERS);
    memory.resize(usize::try_from(len).expect("a 64-bit machine"), 1);
    let base = memory.as_mut_ptr().expose_provenance() as u64;
    let layers = (0..LAYERS).map(|i| LayerDesc {
        name: format!("layer {i}"),
        group: GROUP,
        address: base + u64::from(i) * page * u64::from(POOL_BLOCKS),
        // SAFETY: the memory outlives the layout and is used by this benchmark only.
        buffer: unsafe { BufferDesc::new(base, len) },
        blocks: POOL_BLOCKS,
        block_stride_bytes: page,
        axes: vec![
            Axis { name: 'H', count: HEADS, stride_bytes: head },
            Axis { name: 'N', count: TOKENS, stride_bytes: CELL_BYTES },
        ],
        cell_bytes: CELL_BYTES,
        page_bytes: page,
        padding_bytes: u64::from(HEADS) * head_padding,
        scales: None,
    });
    Arc::new(prove(layers.collect(), POOL_BLOCKS).expect("a layout that holds"))
}

fn copies(c: &mut Criterion) {
    let chunk = Coverage::full(BlocksPerChunk::new(BLOCKS_PER_CHUNK).expect("1 to 64"));
    for (name, padding) in [("one run per page", 0), ("one run per head", 64)] {
        let mut memory = Vec::new();
        let layout = layout(&mut memory, padding);
        let block_bytes = layout.block_bytes(GROUP, PART).expect("one group");
        let bytes = block_bytes * u64::from(BLOCKS_PER_CHUNK);
        let mut packed = vec![0u8; usize::try_from(bytes).expect("a 64-bit machine")];
        let other = packed.clone();
        let copy = HostCopy::new(layout);
        let mut next = 0;
        // Blocks all over the pool, in no order.
        let mut blocks = move || {
            next += 1;
            let id = |i| 1 + (next * 131 + i * 37) % (POOL_BLOCKS - 1);
            (0..BLOCKS_PER_CHUNK).map(id).collect::<Vec<_>>()
        };
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Bytes(bytes));
        group.bench_function("memcpy", |b| b.iter(|| packed.copy_from_slice(black_box(&other))));
        group
            .bench_function("gather", |b| b.iter(|| copy.gather(GROUP, PART, &blocks(), chunk, &mut packed)));
        group.bench_function("scatter", |b| {
            b.iter(|| {
                let to = Target { group: GROUP, part: PART, blocks: &blocks(), stored: chunk, needed: chunk };
                copy.scatter(&to, 0, &packed)
            })
        });
        group.finish();
    }
}

criterion_group!(benches, copies);
criterion_main!(benches);
