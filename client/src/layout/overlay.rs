//! The proof that groups which lie over each other keep their blocks apart.
//!
//! One pool of block ids serves all groups, and each id belongs to one group at a time. So layers of different groups
//! may have the same bytes for the same id, but never for different ones.

use super::apart::{Budget, MAX_TRIES, Member, find_meeting, not_proved};
use super::grid::share_windows;
use super::refusal::{BlockBytes, ByteRange, LayoutFault, LayoutRefusal};

/// Proves that no block of one layer shares a byte with a block of another id of a layer of another group.
pub(super) fn prove(
    members: &[Member<'_>],
    pool_blocks: u32,
    budget: &mut Budget,
) -> Result<(), LayoutRefusal> {
    let mut by_span = members.to_vec();
    by_span.sort_by_key(|(_, footprint)| footprint.span);
    for (i, &one) in by_span.iter().enumerate() {
        for &other in by_span[i + 1..].iter().take_while(|(_, next)| next.span.start < one.1.span.end) {
            if one.0.group != other.0.group {
                blocks_apart(one, other, pool_blocks, budget)?;
            }
        }
    }
    Ok(())
}

fn blocks_apart(
    one: Member<'_>,
    other: Member<'_>,
    pool_blocks: u32,
    budget: &mut Budget,
) -> Result<(), LayoutRefusal> {
    if share_windows([&one.1.grid, &other.1.grid].into_iter()) {
        return Ok(());
    }
    let runs = one.1.page.runs().saturating_add(other.1.page.runs()).saturating_mul(u64::from(pool_blocks));
    if budget.take(runs) {
        return sweep(one, other, pool_blocks);
    }
    Err(match find_meeting(one, other, MAX_TRIES, |a, b| a != b) {
        Some((first, second)) => meeting(one, other, first, second),
        None => not_proved(one, other),
    })
}

/// Looks at every run of every block of both layers: exact.
fn sweep(one: Member<'_>, other: Member<'_>, pool_blocks: u32) -> Result<(), LayoutRefusal> {
    let mut runs: Vec<(ByteRange, usize, u32)> = Vec::new();
    for (i, (_, footprint)) in [one, other].into_iter().enumerate() {
        let page = &footprint.page;
        for block in 0..pool_blocks {
            let base = page.base() + u64::from(block) * page.block_stride_bytes();
            page.for_each_run(&mut |offset| {
                let start = base + offset;
                runs.push((ByteRange { start, end: start + page.run_bytes() }, i, block));
            });
        }
    }
    runs.sort_unstable();
    // Runs of one layer are apart, so of each layer only the last one can reach into the next run of the other.
    let mut last: [Option<(ByteRange, u32)>; 2] = [None, None];
    for (range, i, block) in runs {
        if let Some((met, id)) = last[1 - i]
            && range.start < met.end
            && id != block
        {
            let (first, second) = if i == 0 { (range, met) } else { (met, range) };
            return Err(meeting(one, other, first, second));
        }
        last[i] = Some((range, block));
    }
    Ok(())
}

fn meeting(one: Member<'_>, other: Member<'_>, first: ByteRange, second: ByteRange) -> LayoutRefusal {
    let block = |(_, footprint): Member<'_>, bytes: ByteRange| {
        // The bytes are the layer's, so there is a cell.
        BlockBytes { block: footprint.grid.cell_at(bytes.start).map_or(0, |cell| cell.block), bytes }
    };
    let fault = LayoutFault::BlockOverlap {
        other: other.0.name.clone(),
        first: block(one, first),
        second: block(other, second),
    };
    LayoutRefusal::new(&one.0.name, fault)
}
