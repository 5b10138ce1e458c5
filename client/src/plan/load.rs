//! The job that fetches exactly what was promised (rule 4).

use tender_proto::{Coverage, Descriptor};

use super::hit::locate;
use super::request::{Request, TokenRange};
use super::wire::LoadItem;

/// What became of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an engine that waits for a load that was refused waits for ever"]
pub enum Allocation {
    /// Nothing to load.
    NoLoad,
    /// The next plan loads this many tokens.
    Queued {
        /// Tokens.
        tokens: u64,
    },
    /// The engine's numbers do not fit what was promised, or its block table does not hold it: nothing is
    /// loaded. It must not count those tokens as computed.
    Refused,
}

/// The chunks and blocks that hold `range`; `None` when the range does not consist of whole blocks, a key is not
/// known, or a block is missing or null.
pub(super) fn items(
    request: &Request,
    descriptor: &Descriptor,
    tables: &[Vec<u32>],
    range: TokenRange,
) -> Option<Vec<LoadItem>> {
    if tables.len() != descriptor.groups.len() || range.start >= range.end {
        return None;
    }
    let mut items: Vec<LoadItem> = Vec::new();
    for (index, (group, table)) in descriptor.groups.iter().zip(tables).enumerate() {
        let tokens_per_block = u64::from(group.tokens_per_block.get());
        if range.start % tokens_per_block != 0 || range.end % tokens_per_block != 0 {
            return None;
        }
        let first_item = items.len();
        for block in range.start / tokens_per_block..range.end / tokens_per_block {
            let id = *table.get(usize::try_from(block).ok()?)?;
            if id == 0 {
                return None;
            }
            let (chunk, position) = locate(group, block);
            let chunk = request.chunk_id(index, chunk)?;
            if items[first_item..].last().is_none_or(|last| last.chunk != chunk) {
                items.push(LoadItem {
                    chunk,
                    needed: Coverage::empty(group.blocks_per_chunk),
                    blocks: vec![0; group.blocks_per_chunk.get() as usize],
                });
            }
            let item = items.last_mut()?;
            item.needed = item.needed.with(position);
            item.blocks[position as usize] = id;
        }
    }
    Some(items)
}
