//! The device: forward passes over the ranks' memory. Before anything is written, everything that attention will
//! read is looked at.

use std::cell::RefCell;
use std::rc::Rc;

use rand::Rng;

use super::engine::Engine;
use super::memory::Spot;
use super::request::Live;
use super::truth::mix;
use super::{Failure, fail};

/// A step on its way to the device.
#[derive(Debug)]
pub struct Step {
    /// What the planner wants done around it.
    pub plan: Vec<u8>,
    /// Who takes part.
    pub shares: Vec<Share>,
    /// Blocks whose content nobody may expect any more once the step begins.
    pub scratch: Vec<u32>,
    /// What came of it, once executed.
    pub outcomes: Option<Vec<Outcome>>,
}

/// One request's part in a step.
#[derive(Debug)]
pub struct Share {
    /// The request.
    pub id: String,
    /// And its admission.
    pub admission: u32,
    /// Tokens computed before the step, as scheduled.
    pub computed: usize,
    /// Slots written.
    pub tokens: usize,
    /// Tokens sampled, if all drafts are right.
    pub samples: usize,
    /// Tables as of the step.
    pub tables: Vec<Vec<u32>>,
    /// The device's side of the request.
    pub live: Rc<RefCell<Live>>,
}

/// What a step did for one request.
#[derive(Debug)]
pub struct Outcome {
    /// The request.
    pub id: String,
    /// And its admission.
    pub admission: u32,
    /// Tokens sampled.
    pub sampled: Vec<u32>,
    /// Placeholders of the step.
    pub placeholders: usize,
    /// Slots of rejected drafts.
    pub rejected: usize,
    /// Slots, by group, that no later pass will write.
    pub settled: Vec<usize>,
}

impl Engine {
    /// Executes the first step that is not executed yet.
    pub(super) fn execute_next(&mut self) -> Result<(), Failure> {
        let Some(mut step) = self.flight.pop_front() else { return Ok(()) };
        if step.outcomes.is_none() {
            step.outcomes = Some(self.execute(&step)?);
        }
        self.flight.push_front(step);
        Ok(())
    }
    /// Executes the first step if need be, and takes over its results.
    pub(super) fn complete_next(&mut self) -> Result<(), Failure> {
        self.execute_next()?;
        if let Some(step) = self.flight.pop_front() {
            self.update(step.outcomes.unwrap_or_default());
        }
        Ok(())
    }

    fn execute(&mut self, step: &Step) -> Result<Vec<Outcome>, Failure> {
        for rank in &self.ranks {
            rank.worker.begin_step(&step.plan);
        }
        for &block in &step.scratch {
            let poison = mix(0xdead, self.rng.random());
            self.ranks.iter().for_each(|rank| rank.memory.poison(block, poison));
        }
        for share in &step.shares {
            self.check_reads(share)?;
        }
        let outcomes = step.shares.iter().map(|share| self.compute(share)).collect();
        for rank in &self.ranks {
            rank.worker.end_step(&step.plan);
            for done in rank.worker.poll() {
                self.reports.entry(done.request.clone()).or_default().push(done);
            }
        }
        Ok(outcomes)
    }

    /// Everything that attention reads for the first query, which reads furthest back.
    fn check_reads(&mut self, share: &Share) -> Result<(), Failure> {
        let mut live = share.live.borrow_mut();
        let start = live.computed;
        if start > share.computed || (start < share.computed && self.scenario.drafts == 0) {
            return Err(fail(format!("{}: the model engine lost count of {}", self.name(), share.id)));
        }
        for (index, group) in self.scenario.groups.clone().iter().enumerate() {
            let slots: Vec<usize> = if group.recurrent() {
                start.checked_sub(1).into_iter().collect()
            } else {
                (group.first_read(start)..live.settled[index].min(start)).collect()
            };
            for position in slots {
                let block = share.tables[index][position / group.tokens_per_block];
                let slot = if group.recurrent() { 0 } else { position % group.tokens_per_block };
                let truth = live.truth.first(position + 1 + group.lookahead);
                let spot = Spot { group: index, block, slot };
                self.stats.read_slots += 1;
                if let Some(rank) =
                    self.ranks.iter().position(|rank| block == 0 || !rank.memory.holds(spot, truth))
                {
                    return Err(self.account(share, &mut live, position, spot, rank));
                }
            }
        }
        Ok(())
    }

    fn account(&self, share: &Share, live: &mut Live, position: usize, spot: Spot, rank: usize) -> Failure {
        let group = &self.scenario.groups[spot.group];
        let memory = &self.ranks[rank].memory;
        // Whose is it? Perhaps the same request's at another position.
        let whose = (0..live.known + 8)
            .find(|&other| memory.holds(spot, live.truth.first(other + 1 + group.lookahead)))
            .map_or("nobody's that this request knows".to_owned(), |other| {
                format!("its own of position {other}")
            });
        fail(format!(
            "{}, rank {rank}: {} reads a wrong slot: group {} ({:?}, {} tokens a block, {} blocks a chunk, window {}), \
             position {position} of {} computed ({} scheduled), block {}, slot {}; it holds {:02x?}, which is {whose}; \
             table {:?}",
            self.name(),
            share.id,
            spot.group,
            group.kind,
            group.tokens_per_block,
            group.blocks_per_chunk,
            group.window,
            live.computed,
            share.tokens,
            spot.block,
            spot.slot,
            memory.look(spot),
            share.tables[spot.group],
        ))
    }

    /// Writes the share's slots and samples.
    fn compute(&mut self, share: &Share) -> Outcome {
        let mut live = share.live.borrow_mut();
        let live = &mut *live;
        let start = live.computed;
        let end = start + share.tokens;
        let real_end = end.min(live.known);
        // What the drafter guesses for the slots behind the known tokens.
        let drafts: Vec<u32> = (real_end..end)
            .map(|position| if self.rng.random_bool(0.6) { live.truth.token(position) } else { 5000 })
            .collect();
        let accepted =
            (real_end..).zip(&drafts).take_while(|&(at, &draft)| live.truth.token(at) == draft).count();
        let astray = live.truth.astray(real_end, &drafts);
        for (index, group) in self.scenario.groups.iter().enumerate() {
            if group.recurrent() {
                let block = share.tables[index][(end - 1) / group.tokens_per_block];
                let state = live.truth.first(end);
                self.write(Spot { group: index, block, slot: 0 }, state);
                live.settled[index] = end;
                continue;
            }
            for position in live.settled[index]..end {
                let block = share.tables[index][position / group.tokens_per_block];
                let slot = position % group.tokens_per_block;
                // Draft layers run when it is known which drafts were right.
                let right = if group.lookahead == 0 { real_end } else { real_end + accepted };
                let fingerprint = if position + group.lookahead < right {
                    live.truth.first(position + 1 + group.lookahead)
                } else if group.lookahead == 0 {
                    astray[position - real_end]
                } else {
                    // They guess what comes; the next pass computes it again.
                    mix(live.truth.first(real_end), self.rng.random())
                };
                self.write(Spot { group: index, block, slot }, fingerprint);
            }
            let settled = (real_end + accepted).saturating_sub(group.lookahead);
            live.settled[index] = live.settled[index].max(settled);
        }
        let mut sampled = Vec::new();
        if real_end == live.known && share.samples > 0 {
            sampled.extend((live.known..=live.known + accepted).map(|position| live.truth.token(position)));
            live.computed = live.known + accepted;
            live.known += sampled.len();
        } else {
            live.computed = end;
        }
        let rejected = drafts.len() - accepted;
        self.stats.rejected_drafts += rejected as u64;
        Outcome {
            id: share.id.clone(),
            admission: share.admission,
            sampled,
            placeholders: share.samples,
            rejected,
            settled: live.settled.clone(),
        }
    }

    fn write(&self, spot: Spot, fingerprint: u64) {
        // A slot behind a window that moved on while the step was on its way: there is nothing to write to.
        if spot.block != 0 {
            self.ranks.iter().for_each(|rank| rank.memory.write(spot, fingerprint));
        }
    }
}
