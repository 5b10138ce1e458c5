//! The proof that the layers of one group share no byte.

use tender_kernels::Segment;

use super::desc::LayerDesc;
use super::footprint::{self, Footprint};
use super::grid::share_windows;
use super::refusal::{ByteRange, LayoutFault, LayoutRefusal};

/// Runs that all sweeps of one proof may look at: they take about 30 MB and a tenth of a second, once at start.
const MAX_SWEEP_RUNS: u64 = 1 << 20;

/// Cells that are tried when a layout cannot be proved, to say where it fails.
pub(super) const MAX_TRIES: u64 = 1 << 18;

pub(super) type Member<'a> = (&'a LayerDesc, &'a Footprint);

/// What a proof may still look at.
#[derive(Debug)]
pub(super) struct Budget(u64);

impl Budget {
    pub(super) fn new() -> Self {
        Self(MAX_SWEEP_RUNS)
    }
    /// Takes `runs` of it, if it has them.
    pub(super) fn take(&mut self, runs: u64) -> bool {
        let left = self.0.checked_sub(runs);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

/// Proves that no two (layer, block) pages of one group share a byte. Layers whose spans are apart need no further
/// look; the others are looked through in clusters.
pub(super) fn prove(members: &[Member<'_>], budget: &mut Budget) -> Result<(), LayoutRefusal> {
    let mut by_span = members.to_vec();
    by_span.sort_by_key(|(_, footprint)| footprint.span);
    let mut reach = 0;
    let mut cluster: Vec<Member<'_>> = Vec::new();
    for member in by_span {
        if member.1.span.start >= reach {
            cluster_apart(&cluster, budget)?;
            cluster.clear();
        }
        reach = reach.max(member.1.span.end);
        cluster.push(member);
    }
    cluster_apart(&cluster, budget)
}

fn cluster_apart(cluster: &[Member<'_>], budget: &mut Budget) -> Result<(), LayoutRefusal> {
    let [first, second, ..] = cluster else { return Ok(()) };
    if share_windows(cluster.iter().map(|(_, footprint)| &footprint.grid)) {
        let windows = first_windows(cluster)?;
        if budget.take(total_runs(&windows)) {
            return sweep(cluster, &windows);
        }
    }
    let everything: Vec<_> = cluster.iter().map(|(_, footprint)| footprint.whole.clone()).collect();
    if budget.take(total_runs(&everything)) {
        return sweep(cluster, &everything);
    }
    let tries = MAX_TRIES / (cluster.len() * cluster.len()) as u64;
    for (i, &one) in cluster.iter().enumerate() {
        for &other in &cluster[..i] {
            if let Some((a, b)) = find_meeting(one, other, tries, |_, _| true) {
                return Err(overlap(one, other, a, b));
            }
        }
    }
    Err(not_proved(*second, *first))
}

/// Each layer's cells in the first window.
fn first_windows(cluster: &[Member<'_>]) -> Result<Vec<Segment>, LayoutRefusal> {
    let window = |(layer, footprint): &Member<'_>| {
        footprint::segment(layer, footprint.grid.inside_blocks())
            .map_err(|fault| LayoutRefusal::new(&layer.name, fault))
    };
    cluster.iter().map(window).collect()
}

fn total_runs(segments: &[Segment]) -> u64 {
    segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.runs()))
}

/// Looks at every run of the segments, one for each layer: exact.
fn sweep(cluster: &[Member<'_>], segments: &[Segment]) -> Result<(), LayoutRefusal> {
    let mut runs: Vec<(ByteRange, usize)> = Vec::new();
    for (i, segment) in segments.iter().enumerate() {
        segment.for_each_run(&mut |offset| {
            let start = segment.base() + offset;
            runs.push((ByteRange { start, end: start + segment.run_bytes() }, i));
        });
    }
    runs.sort_unstable();
    // Runs of one layer are apart, and so are all before the first overlap: only the last one reaches into the next.
    match runs.windows(2).find(|pair| pair[1].0.start < pair[0].0.end) {
        Some(&[(b, j), (a, i)]) => Err(overlap(cluster[i], cluster[j], a, b)),
        _ => Ok(()),
    }
}

/// Two cells that share a byte and whose blocks are as wanted, if a look at some cells of each finds any. Two
/// stretches overlap exactly if one begins inside the other.
pub(super) fn find_meeting(
    one: Member<'_>,
    other: Member<'_>,
    tries: u64,
    wanted: impl Fn(u32, u32) -> bool,
) -> Option<(ByteRange, ByteRange)> {
    let look = |from: &Footprint, into: &Footprint| {
        let cells = from.grid.cells();
        let tries = cells.min(tries);
        // Neighbours first, then spread over all there are.
        let near = 0..tries;
        let far = (0..tries)
            .map(move |i| u64::try_from(u128::from(cells) * u128::from(i) / u128::from(tries)).unwrap_or(0));
        near.chain(far).find_map(|index| {
            let cell = from.grid.cell(index);
            let met = into.grid.cell_at(cell.bytes.start)?;
            wanted(cell.block, met.block).then_some((cell.bytes, met.bytes))
        })
    };
    look(one.1, other.1).or_else(|| look(other.1, one.1).map(|(b, a)| (a, b)))
}

fn overlap(one: Member<'_>, other: Member<'_>, first: ByteRange, second: ByteRange) -> LayoutRefusal {
    LayoutRefusal::new(&one.0.name, LayoutFault::LayerOverlap { other: other.0.name.clone(), first, second })
}

pub(super) fn not_proved(one: Member<'_>, other: Member<'_>) -> LayoutRefusal {
    let fault =
        LayoutFault::NotProved { other: other.0.name.clone(), first: one.1.span, second: other.1.span };
    LayoutRefusal::new(&one.0.name, fault)
}
