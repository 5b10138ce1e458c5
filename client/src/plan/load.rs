//! The job that fetches exactly what was promised (rule 4).

use tender_proto::mutant::{Mutant, active};
use tender_proto::{ChainHash, ChunkId, Coverage, Descriptor, GroupIndex, GroupKind};

use super::hit::is_ignored;
use super::needs::{self, locate};
use super::request::{Request, TokenRange};
use super::wire::LoadItem;

/// A key that no chain ends in: nobody stores it, so its load fails.
const NO_SUCH_CHUNK: ChainHash = ChainHash::from_bytes([0; 32]);

/// Whether an engine can use what came of a load that failed in part: only where every block is good for itself.
pub(super) fn is_whole(descriptor: &Descriptor) -> bool {
    if active(Mutant::LoadFailsInPart) {
        return false;
    }
    let alone = |kind| matches!(kind, GroupKind::FullAttention | GroupKind::MlaLatent);
    !matches!(&descriptor.groups[..], [group] if alone(group.kind))
}

/// The chunks and blocks that a hit over `range` needs; `None` when the range does not consist of whole blocks, a key is
/// not known, or a block is missing. A null block is missing, but not where the engine's window has passed it: what it
/// left without a block it does not read.
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
        if is_ignored(index, descriptor) {
            continue;
        }
        let tokens_per_block = needs::tokens_per_block(group);
        if [range.start, range.end].iter().any(|edge| !edge.is_multiple_of(tokens_per_block)) {
            return None;
        }
        let first_item = items.len();
        for block in needs::blocks(group, range.start, range.end) {
            let id = *table.get(usize::try_from(block).ok()?)?;
            if id == 0 {
                match group.kind {
                    GroupKind::SlidingWindow | GroupKind::ChunkedLocal => continue,
                    GroupKind::FullAttention | GroupKind::MlaLatent | GroupKind::Recurrent => return None,
                }
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

/// Loads that fail, for all blocks of the tables from token `start` on: the engine hears that it must compute them. There
/// is at least one, since a load of nothing would be reported as a success, and a load that is not reported is waited
/// for.
pub(super) fn doomed_items(descriptor: &Descriptor, tables: &[Vec<u32>], start: u64) -> Vec<LoadItem> {
    let mut items = Vec::new();
    for ((index, group), table) in (0..).zip(&descriptor.groups).zip(tables) {
        let first = usize::try_from(start / needs::tokens_per_block(group)).unwrap_or(usize::MAX);
        let first = first.min(table.len().saturating_sub(1));
        let per_chunk = group.blocks_per_chunk.get() as usize;
        for ids in table[first..].chunks(per_chunk) {
            let mut blocks = ids.to_vec();
            blocks.resize(per_chunk, 0);
            let listed = (0..group.blocks_per_chunk.get()).zip(ids).filter(|&(_, &id)| id != 0);
            let needed = listed.fold(Coverage::empty(group.blocks_per_chunk), |all, (i, _)| all.with(i));
            if !needed.is_empty() {
                items.push(LoadItem { chunk: no_such_chunk(index), needed, blocks });
            }
        }
    }
    if let (true, Some(group)) = (items.is_empty(), descriptor.groups.first()) {
        let blocks = vec![0; group.blocks_per_chunk.get() as usize];
        items.push(LoadItem {
            chunk: no_such_chunk(0),
            needed: Coverage::full(group.blocks_per_chunk),
            blocks,
        });
    }
    items
}

fn no_such_chunk(group: u16) -> ChunkId {
    ChunkId { group: GroupIndex(group), hash: NO_SUCH_CHUNK }
}
