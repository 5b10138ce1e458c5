//! Which chunks a request's frontier makes storable (rules 1 to 3).

use tender_proto::mutant::{Mutant, active};
use tender_proto::{ChunkId, Coverage, Descriptor, Group, GroupKind};

use super::config::{PlanConfig, PlanCounters};
use super::memory::{Asked, Stored};
use super::needs;
use super::request::Request;
use super::step::StateHandoff;
use super::wire::StoreJob;

/// How far a request's slots are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// Slots before it are final (rule 1).
    pub(super) frontier: u64,
    /// Tokens that were computed when the engine last let go of blocks: what lies wholly before the window there may be
    /// somebody else's by now, whatever the table says.
    pub(super) freed_at: u64,
    /// No more passes will come.
    pub(super) ended: bool,
}

/// Collects store jobs, and counts what was left out.
#[derive(Debug)]
pub(super) struct Stores<'a> {
    pub(super) descriptor: &'a Descriptor,
    pub(super) config: &'a PlanConfig,
    pub(super) stored: &'a Stored,
    pub(super) asked: &'a Asked,
    pub(super) counters: &'a mut PlanCounters,
    pub(super) jobs: &'a mut Vec<StoreJob>,
}

impl Stores<'_> {
    /// The chunks before the frontier that were not offered yet. A chunk that the frontier cuts waits; its key would need
    /// tokens that are not known, or its slots are not written.
    pub(super) fn chunks(&mut self, request: &mut Request, reach: Reach) {
        for (index, group) in self.descriptor.groups.iter().enumerate() {
            if group.kind != GroupKind::Recurrent {
                self.chunks_of(request, index, group, reach);
            }
        }
    }

    fn chunks_of(&mut self, request: &mut Request, index: usize, group: &Group, reach: Reach) {
        let whole_chunks = group_frontier(group, reach) / group.tokens_per_chunk();
        let first_live_block = match active(Mutant::FreedWindowGathered) {
            true => 0,
            false => needs::first_live_block(group, reach.freed_at),
        };
        while request.groups[index].next_chunk < whole_chunks {
            let chunk = request.groups[index].next_chunk;
            let Some(id) = request.chunk_id(index, chunk) else { break };
            let state = &mut request.groups[index];
            let per_chunk = group.blocks_per_chunk;
            let wrong = active(Mutant::BlockSizeForChunk) && index > 0;
            let start = chunk * u64::from(if wrong { group.tokens_per_block.get() } else { per_chunk.get() });
            let Some(blocks) = table_slice(&state.blocks, start, per_chunk.get()) else {
                self.counters.short_block_tables += 1;
                break;
            };
            state.next_chunk += 1;
            let first_block = chunk * u64::from(per_chunk.get());
            let mut coverage = Coverage::empty(per_chunk);
            let mut kept = vec![0; blocks.len()];
            for (position, &block) in (0..).zip(blocks) {
                // The null block holds no data, whatever the frontier says.
                if block != 0 && first_block + u64::from(position) >= first_live_block {
                    coverage = coverage.with(position);
                    kept[position as usize] = block;
                }
            }
            if active(Mutant::LastBlockOnly) && coverage.has(per_chunk.get() - 1) {
                (coverage, kept) = (Coverage::full(per_chunk), blocks.to_vec());
            }
            self.offer(id, coverage, kept);
        }
    }

    /// The states that a pass leaves at boundaries.
    pub(super) fn states(&mut self, request: &Request, states: &[StateHandoff], frontier: u64) {
        for state in states {
            match self.state_chunk(request, state, frontier) {
                Some((id, coverage)) => self.offer(id, coverage, vec![state.block]),
                None => self.counters.states_left_out += 1,
            }
        }
    }

    fn state_chunk(
        &self,
        request: &Request,
        state: &StateHandoff,
        frontier: u64,
    ) -> Option<(ChunkId, Coverage)> {
        let group = self.descriptor.groups.get(usize::from(state.group))?;
        let tokens_per_block = needs::tokens_per_block(group);
        let good = group.kind == GroupKind::Recurrent
            && state.block != 0
            && state.boundary_tokens <= frontier
            && state.boundary_tokens.is_multiple_of(tokens_per_block);
        let ends = if active(Mutant::StateBoundary) { 2 } else { 1 };
        let chunk = (state.boundary_tokens / tokens_per_block).checked_sub(ends).filter(|_| good)?;
        Some((request.chunk_id(usize::from(state.group), chunk)?, Coverage::full(group.blocks_per_chunk)))
    }

    fn offer(&mut self, chunk: ChunkId, coverage: Coverage, blocks: Vec<u32>) {
        if coverage.is_empty() {
            return;
        }
        let left_out = if self.config.complete_chunks_only && !coverage.is_full() {
            &mut self.counters.stores_incomplete
        } else if self.stored.makes_needless(chunk, coverage) {
            &mut self.counters.stores_known
        } else if !self.asked.enough(chunk) {
            &mut self.counters.stores_unasked
        } else {
            self.stored.remember(chunk, coverage);
            self.jobs.push(StoreJob { chunk, coverage, blocks });
            &mut self.counters.stores
        };
        *left_out += 1;
    }
}

/// Draft layers write a slot from the tokens behind it, and again with every draft: they are a chunk behind while passes
/// may come, and by what they look ahead when none will.
fn group_frontier(group: &Group, reach: Reach) -> u64 {
    let behind = match (group.lookahead_tokens, reach.ended) {
        (0, _) => 0,
        (_, false) if active(Mutant::DraftsNotHeldBack) => 0,
        (_, false) => group.tokens_per_chunk(),
        (tokens, true) => u64::from(tokens),
    };
    reach.frontier.saturating_sub(behind)
}

fn table_slice(table: &[u32], start: u64, blocks: u32) -> Option<&[u32]> {
    let start = usize::try_from(start).ok()?;
    table.get(start..start.checked_add(blocks as usize)?)
}
