//! Which chunks a request's frontier makes storable (rules 1 to 3).

use tender_proto::{Coverage, Descriptor};

use super::config::PlanCounters;
use super::memory::Stored;
use super::request::Request;
use super::wire::StoreJob;

/// Jobs for the chunks below `frontier` that were not offered yet, and that nobody is known to have stored. A chunk
/// that the frontier cuts waits; its key would need tokens that are not known, or its slots are not written.
pub(super) fn jobs(
    request: &mut Request,
    descriptor: &Descriptor,
    frontier: u64,
    stored: &Stored,
    counters: &mut PlanCounters,
    jobs: &mut Vec<StoreJob>,
) {
    for (index, group) in descriptor.groups.iter().enumerate() {
        let whole_chunks = frontier / group.tokens_per_chunk();
        while request.groups[index].next_chunk < whole_chunks {
            let chunk = request.groups[index].next_chunk;
            let Some(id) = request.chunk_id(index, chunk) else { break };
            let state = &mut request.groups[index];
            let Some(blocks) = table_slice(&state.blocks, chunk, group.blocks_per_chunk.get()) else {
                counters.short_block_tables += 1;
                break;
            };
            state.next_chunk += 1;
            // The null block holds no data, whatever the frontier says.
            let coverage = (0..).zip(blocks).filter(|&(_, &block)| block != 0);
            let coverage = coverage.fold(Coverage::empty(group.blocks_per_chunk), |all, (i, _)| all.with(i));
            if coverage.is_empty() {
                continue;
            }
            if stored.covers(id, coverage) {
                counters.stores_known += 1;
                continue;
            }
            stored.remember(id, coverage);
            counters.stores += 1;
            jobs.push(StoreJob { chunk: id, coverage, blocks: blocks.to_vec() });
        }
    }
}

fn table_slice(table: &[u32], chunk: u64, blocks_per_chunk: u32) -> Option<&[u32]> {
    let (chunk, len) = (usize::try_from(chunk).ok()?, blocks_per_chunk as usize);
    let start = chunk.checked_mul(len)?;
    table.get(start..start.checked_add(len)?)
}
