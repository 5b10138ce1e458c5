//! Block tables: what is allocated, given back while a request runs, and shared through the prefix cache.

use super::engine::Engine;
use super::request::Request;

/// The pool has too few free blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PoolIsFull;

impl Engine {
    /// Gives back the blocks that no later pass reads, before the step is even scheduled.
    pub(super) fn free_skipped(&mut self, request: &mut Request, computed: usize) {
        for (index, group) in self.scenario.groups.iter().enumerate() {
            let first = group.first_kept(computed) / group.tokens_per_block;
            let table = &mut request.tables[index];
            let end = first.min(table.len());
            for at in (request.freed[index]..end).rev() {
                self.pool.give_back(std::mem::take(&mut table[at]));
            }
            request.freed[index] = request.freed[index].max(end);
        }
    }

    /// Extends the tables to hold `slots` tokens of which `computed` will be there. Blocks that attention will not
    /// read any more are left null. Nothing changes if the pool has too few blocks.
    pub(super) fn grow(
        &mut self,
        request: &mut Request,
        computed: usize,
        slots: usize,
    ) -> Result<(), PoolIsFull> {
        let groups = self.scenario.groups.clone();
        let wanted = groups.iter().zip(&request.tables).map(|(group, table)| {
            let (start, end) = (table.len(), slots.div_ceil(group.tokens_per_block).max(table.len()));
            // A state goes into the block in which the step ends; a window's block is needed while it is seen.
            let first = if group.recurrent() {
                (end - 1).max(start)
            } else {
                (group.first_kept(computed) / group.tokens_per_block).clamp(start, end)
            };
            (first, end)
        });
        let wanted: Vec<_> = wanted.collect();
        if wanted.iter().map(|(first, end)| end - first).sum::<usize>() > self.pool.free_blocks() {
            return Err(PoolIsFull);
        }
        for ((first, end), table) in wanted.into_iter().zip(&mut request.tables) {
            table.resize(first.max(table.len()), 0);
            for _ in first..end {
                table.push(self.pool.take().expect("counted before"));
            }
        }
        Ok(())
    }

    /// The longest hit in the engine's own prefix cache, taken: its blocks are in the tables.
    pub(super) fn take_cached(&mut self, request: &mut Request) -> usize {
        let groups = self.scenario.groups.clone();
        let granule = self.scenario.hit_granule();
        let longest = (request.tokens.len() - 1) / granule * granule;
        let hit = (1..=longest / granule).rev().map(|n| n * granule).find(|&end| {
            (0..groups.len()).all(|group| {
                let first = self.first_needed(group, end);
                (first..end / groups[group].tokens_per_block)
                    .all(|block| self.cached(request, group, block).is_some())
            })
        });
        let Some(hit) = hit else { return 0 };
        for (index, group) in groups.iter().enumerate() {
            let first = self.first_needed(index, hit);
            let mut table = vec![0; first];
            for block in first..hit / group.tokens_per_block {
                let block = self.cached(request, index, block).expect("found before");
                self.pool.share(block);
                table.push(block);
            }
            request.freed[index] = first;
            request.cached[index] = table.len();
            request.tables[index] = table;
        }
        hit
    }

    /// The first block that a group must have for a hit that ends at `end`.
    fn first_needed(&self, group: usize, end: usize) -> usize {
        let group = &self.scenario.groups[group];
        if group.recurrent() {
            end / group.tokens_per_block - 1
        } else {
            group.first_kept(end) / group.tokens_per_block
        }
    }

    fn cached(&self, request: &Request, group: usize, block: usize) -> Option<u32> {
        let spec = &self.scenario.groups[group];
        let tokens = (block + 1) * spec.tokens_per_block + spec.lookahead;
        (tokens <= request.tokens.len())
            .then(|| self.pool.find((group, request.live.borrow_mut().truth.first(tokens))))
            .flatten()
    }

    /// Names the request's blocks whose slots are settled in the prefix cache.
    pub(super) fn cache_settled(&mut self, request: &mut Request, settled: &[usize]) {
        let mut live = request.live.borrow_mut();
        for (index, group) in self.scenario.groups.iter().enumerate() {
            let tokens_per_block = group.tokens_per_block;
            let end = settled[index] / tokens_per_block;
            let first = if group.recurrent() {
                // Only a state that is exactly at a boundary has a name.
                if !settled[index].is_multiple_of(tokens_per_block) || end == 0 {
                    continue;
                }
                end - 1
            } else {
                request.cached[index]
            };
            for block in first..end {
                let fingerprint = live.truth.first((block + 1) * tokens_per_block + group.lookahead);
                if let Some(&id) = request.tables[index].get(block) {
                    self.pool.cache((index, fingerprint), id);
                }
            }
            request.cached[index] = request.cached[index].max(end);
        }
    }

    /// Gives back all that a request holds.
    pub(super) fn free_tables(&mut self, request: &mut Request) {
        for table in &mut request.tables {
            for block in table.drain(..).rev() {
                self.pool.give_back(block);
            }
        }
    }
}
