//! The proof of a whole layout: each layer for itself, then the layers of each group against each other.

use std::collections::HashSet;

use tender_kernels::PageMap;
use tender_proto::GroupIndex;

use super::desc::LayerDesc;
use super::footprint::Footprint;
use super::refusal::{ByteRange, LayoutFault, LayoutRefusal};

/// Runs that one group's proof may look at: they take about 30 MB and a tenth of a second, once at start.
const MAX_SWEEP_RUNS: u64 = 1 << 20;

/// A layout in which every content byte of a page is named once, every page of every block id below
/// [`pool_blocks`](Self::pool_blocks) lies in its buffer, and no two (layer, block) pages of one group share a byte.
#[derive(Clone, Debug)]
pub struct ProvedLayout {
    layers: Vec<LayerDesc>,
    page_maps: Vec<PageMap>,
    pool_blocks: u32,
}

/// Proves a layout, or says which layer cannot be believed and why. Layers keep their order: it is the order of
/// their bytes in a block. Layers of different groups may overlay each other, since a pool gives every block id
/// to one group at a time.
pub fn prove(mut layers: Vec<LayerDesc>, pool_blocks: u32) -> Result<ProvedLayout, LayoutRefusal> {
    // Block 0 holds no data, so a pool of one block has nothing to copy.
    if layers.is_empty() || pool_blocks < 2 {
        return Err(LayoutRefusal::new("", LayoutFault::Nothing));
    }
    let mut names = HashSet::new();
    let mut footprints = Vec::with_capacity(layers.len());
    for layer in &mut layers {
        let proved = Footprint::prove(layer, pool_blocks);
        footprints.push(proved.map_err(|fault| LayoutRefusal::new(&layer.name, fault))?);
    }
    for layer in &layers {
        if !names.insert((layer.group, layer.name.as_str())) {
            return Err(LayoutRefusal::new(&layer.name, LayoutFault::SameName));
        }
    }
    let mut page_maps = Vec::new();
    for group in 0.. {
        let members: Vec<_> =
            layers.iter().zip(&footprints).filter(|(layer, _)| layer.group == GroupIndex(group)).collect();
        if members.is_empty() {
            break;
        }
        apart(&members, pool_blocks)?;
        let pages = members.iter().map(|(_, footprint)| footprint.page.clone()).collect();
        let map = PageMap::new(pages);
        page_maps.push(map.map_err(|_| LayoutRefusal::new(&members[0].0.name, LayoutFault::Overflow))?);
    }
    if let Some(layer) = layers.iter().find(|layer| usize::from(layer.group.0) >= page_maps.len()) {
        return Err(LayoutRefusal::new(&layer.name, LayoutFault::GroupGap { group: layer.group.0 }));
    }
    Ok(ProvedLayout { layers, page_maps, pool_blocks })
}

impl ProvedLayout {
    /// The layers in registration order, their axes in physical order (largest stride first).
    pub fn layers(&self) -> &[LayerDesc] {
        &self.layers
    }
    /// Groups there are; their indexes have no gaps.
    pub fn groups(&self) -> usize {
        self.page_maps.len()
    }
    /// Blocks of the pool: ids of data are 1 to one less.
    pub fn pool_blocks(&self) -> u32 {
        self.pool_blocks
    }
    /// Packed bytes of one block of a group; `None` when there is no such group.
    pub fn block_bytes(&self, group: GroupIndex) -> Option<u64> {
        self.page_map(group).map(PageMap::block_bytes)
    }
    /// Where the bytes of a group's blocks lie; `None` when there is no such group.
    pub fn page_map(&self, group: GroupIndex) -> Option<&PageMap> {
        self.page_maps.get(usize::from(group.0))
    }
}

type Member<'a> = (&'a LayerDesc, &'a Footprint);

/// Proves that the layers of one group share no byte. Layers whose spans are apart need no further look; the
/// others are looked through in clusters.
fn apart(members: &[Member<'_>], pool_blocks: u32) -> Result<(), LayoutRefusal> {
    let mut by_span = members.to_vec();
    by_span.sort_by_key(|(_, footprint)| footprint.span);
    let mut reach = 0;
    let mut budget = MAX_SWEEP_RUNS;
    let mut cluster: Vec<Member<'_>> = Vec::new();
    for member in by_span {
        if member.1.span.start >= reach {
            cluster_apart(&cluster, pool_blocks, &mut budget)?;
            cluster.clear();
        }
        reach = reach.max(member.1.span.end);
        cluster.push(member);
    }
    cluster_apart(&cluster, pool_blocks, &mut budget)
}

fn cluster_apart(cluster: &[Member<'_>], pool_blocks: u32, budget: &mut u64) -> Result<(), LayoutRefusal> {
    let [first, second, ..] = cluster else { return Ok(()) };
    let runs = |of: fn(&Footprint) -> u64| {
        cluster.iter().fold(0u64, |sum, (_, footprint)| sum.saturating_add(of(footprint)))
    };
    if runs(|footprint| footprint.whole.runs()) <= *budget {
        *budget -= runs(|footprint| footprint.whole.runs());
        return sweep_everything(cluster);
    }
    let period = first.0.block_stride_bytes;
    let periodic = cluster.iter().all(|(layer, footprint)| {
        layer.block_stride_bytes == period && footprint.page_extent_bytes <= period
    });
    if periodic && runs(|footprint| footprint.page.runs()) <= *budget {
        *budget -= runs(|footprint| footprint.page.runs());
        return sweep_one_period(cluster, period, pool_blocks);
    }
    Err(not_proved(*second, *first))
}

/// One contiguous piece of a layer: where it lies and whose it is.
type Run = (ByteRange, usize);

/// Looks at every run of every block: exact.
fn sweep_everything(cluster: &[Member<'_>]) -> Result<(), LayoutRefusal> {
    let mut runs: Vec<Run> = Vec::new();
    for (i, (_, footprint)) in cluster.iter().enumerate() {
        let whole = &footprint.whole;
        whole.for_each_run(&mut |offset| {
            let start = whole.base() + offset;
            runs.push((ByteRange { start, end: start + whole.run_bytes() }, i));
        });
    }
    match first_overlap(&mut runs) {
        Some(((a, i), (b, j))) => Err(overlap(cluster[i], cluster[j], a, b)),
        None => Ok(()),
    }
}

/// Looks at one block of each layer, addresses taken modulo the block stride that all of them have. What is
/// apart there is apart in all blocks. What meets there may be blocks of different ids that are too far from each
/// other to exist, so that is said to be an overlap only if both exist.
fn sweep_one_period(cluster: &[Member<'_>], period: u64, pool_blocks: u32) -> Result<(), LayoutRefusal> {
    let mut runs: Vec<Run> = Vec::new();
    for (i, (_, footprint)) in cluster.iter().enumerate() {
        let page = &footprint.page;
        page.for_each_run(&mut |offset| {
            let start = (page.base() + offset) % period;
            let end = start + page.run_bytes();
            runs.push((ByteRange { start, end: end.min(period) }, i));
            if end > period {
                runs.push((ByteRange { start: 0, end: end - period }, i));
            }
        });
    }
    let Some(((a, i), (b, j))) = first_overlap(&mut runs) else { return Ok(()) };
    let (one, other) = (cluster[i], cluster[j]);
    // The multiple of the period that brings the one's overlapping byte onto the other's.
    let common = a.start.max(b.start);
    let place = |(layer, _): Member<'_>| {
        let phase = layer.address % period;
        let inside = if common >= phase { common - phase } else { period - (phase - common) };
        layer.address + inside
    };
    let (here, there) = (place(one), place(other));
    if here.abs_diff(there) / period < u64::from(pool_blocks) {
        let meeting = here.max(there);
        let at = ByteRange { start: meeting, end: meeting + (a.end.min(b.end) - common) };
        return Err(overlap(one, other, at, at));
    }
    Err(not_proved(one, other))
}

/// The first two runs, by address, that share a byte. Runs of one layer are known to be apart.
fn first_overlap(runs: &mut [Run]) -> Option<(Run, Run)> {
    runs.sort_unstable();
    // All runs before are apart, so only the last one can reach into the next.
    runs.windows(2).find(|pair| pair[1].0.start < pair[0].0.end).map(|pair| (pair[1], pair[0]))
}

fn overlap(one: Member<'_>, other: Member<'_>, first: ByteRange, second: ByteRange) -> LayoutRefusal {
    LayoutRefusal::new(&one.0.name, LayoutFault::LayerOverlap { other: other.0.name.clone(), first, second })
}

fn not_proved(one: Member<'_>, other: Member<'_>) -> LayoutRefusal {
    let fault =
        LayoutFault::NotProved { other: other.0.name.clone(), first: one.1.span, second: other.1.span };
    LayoutRefusal::new(&one.0.name, fault)
}
