//! The job that fetches exactly what was promised (rule 4).

use tender_proto::{ChainHash, ChunkId, Coverage, Descriptor, GroupIndex};

use super::hit::locate;
use super::request::{Request, TokenRange};
use super::wire::LoadItem;

/// A key that no chain ends in: nobody stores it, so its load fails.
const NO_SUCH_CHUNK: ChainHash = ChainHash::from_bytes([0; 32]);

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
        if [range.start, range.end].iter().any(|edge| !edge.is_multiple_of(tokens_per_block)) {
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

/// Loads that fail, for all blocks of the tables from token `start` on: the engine hears that it must compute them. A
/// load of nothing would be reported as a success, and a load that is not reported is waited for.
pub(super) fn doomed_items(descriptor: &Descriptor, tables: &[Vec<u32>], start: u64) -> Vec<LoadItem> {
    let mut items = Vec::new();
    for ((index, group), table) in (0..).zip(&descriptor.groups).zip(tables) {
        let first = start / u64::from(group.tokens_per_block.get());
        let first = usize::try_from(first).unwrap_or(usize::MAX).min(table.len().saturating_sub(1));
        let per_chunk = group.blocks_per_chunk.get() as usize;
        for ids in table[first..].chunks(per_chunk) {
            let mut blocks = ids.to_vec();
            blocks.resize(per_chunk, 0);
            let listed = (0..group.blocks_per_chunk.get()).take(ids.len());
            let needed = listed.fold(Coverage::empty(group.blocks_per_chunk), Coverage::with);
            let chunk = ChunkId { group: GroupIndex(index), hash: NO_SUCH_CHUNK };
            items.push(LoadItem { chunk, needed, blocks });
        }
    }
    items
}
