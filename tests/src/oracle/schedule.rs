//! The scheduler: who takes part in the next pass, and with how many tokens.

use std::rc::Rc;

use rand::Rng;
use tender_client::Match;
use tender_client::plan::{BlockUpdate, ScheduledRequest, StateHandoff, StepInput};
use tender_proto::GroupIndex;

use super::engine::Engine;
use super::pass::{Share, Step};
use super::request::{Phase, Request};
use super::tables::PoolIsFull;
use super::{Failure, fail};

/// A step that is being put together.
#[derive(Debug, Default)]
struct Draft {
    budget: usize,
    requests: Vec<ScheduledRequest>,
    shares: Vec<Share>,
    /// Blocks that a load writes into.
    loading: Vec<u32>,
}

impl Engine {
    /// Schedules the next step and has it planned.
    pub(super) fn schedule(&mut self) -> Result<Step, Failure> {
        let mut draft = Draft { budget: self.scenario.token_budget, ..Draft::default() };
        let preemptions = self.stats.preemptions;
        self.schedule_running(&mut draft);
        if self.stats.preemptions == preemptions {
            self.schedule_waiting(&mut draft)?;
        }
        let input = StepInput { requests: draft.requests, preempted: std::mem::take(&mut self.preempted) };
        let plan = self.side.step(input);
        let mut scratch = self.pool.take_fresh();
        scratch.retain(|block| !draft.loading.contains(block));
        // Free and unnamed: the pass may do with them what it likes.
        if self.rng.random_bool(0.5) {
            scratch.extend(self.pool.dead());
        }
        scratch.sort_unstable();
        scratch.dedup();
        Ok(Step { plan, shares: draft.shares, scratch, outcomes: None })
    }

    fn schedule_running(&mut self, draft: &mut Draft) {
        let mut at = 0;
        while at < self.running.len() && draft.budget > 0 {
            let mut request = self.running.remove(at);
            let tokens = self.tokens_due(&request, draft.budget);
            if tokens == 0 {
                self.running.insert(at, request);
                at += 1;
                continue;
            }
            let computed = request.computed;
            self.free_skipped(&mut request, computed);
            let mut room = self.grow(&mut request, computed, computed + tokens);
            while room.is_err() && self.running.len() > at {
                let victim = self.running.pop().expect("counted");
                self.preempt(victim);
                room = self.grow(&mut request, computed, computed + tokens);
            }
            if room.is_err() {
                self.preempt(request);
                return;
            }
            self.take_part(&mut request, tokens, draft);
            self.running.insert(at, request);
            at += 1;
        }
    }

    fn schedule_waiting(&mut self, draft: &mut Draft) -> Result<(), Failure> {
        let mut at = 0;
        while at < self.waiting.len() && draft.budget > 0 && self.running.len() < self.scenario.max_running {
            let mut request = self.waiting.remove(at).expect("counted");
            if request.phase != Phase::Waiting {
                self.waiting.insert(at, request);
                at += 1;
                continue;
            }
            match self.admit(&mut request, draft)? {
                Admission::Runs => self.running.push(request),
                Admission::Loads | Admission::Later => {
                    self.waiting.insert(at, request);
                    at += 1;
                }
                Admission::NoRoom => {
                    self.waiting.insert(at, request);
                    self.make_room();
                    break;
                }
            }
        }
        Ok(())
    }

    /// Loaded requests may hold all blocks while nobody can go on: then one of them begins anew.
    fn make_room(&mut self) {
        let loading = self.waiting.iter().any(|request| matches!(request.phase, Phase::Loading { .. }));
        if loading || !self.running.is_empty() || !self.doomed.is_empty() {
            return;
        }
        let holder = self.waiting.iter().rposition(|request| request.computed > 0);
        if let Some(request) = holder.and_then(|at| self.waiting.remove(at)) {
            self.preempt(request);
            // Behind those who wait for its blocks.
            self.waiting.rotate_left(1);
        }
    }

    fn admit(&mut self, request: &mut Request, draft: &mut Draft) -> Result<Admission, Failure> {
        let (mut local, mut external) = (request.computed, 0);
        let new = local == 0;
        if new {
            request.restart(self.weights);
            local = self.take_cached(request);
            request.told_tokens = request.tokens.len();
            external = match self.side.match_prefix(&request.id, &request.tokens, local as u64) {
                Match::Hit(tokens) => usize::try_from(tokens).expect("fits"),
                Match::None => 0,
                Match::Later => {
                    self.free_tables(request);
                    return Ok(Admission::Later);
                }
            };
            self.check_offer(request, local, external)?;
            external = self.take_less(external);
        }
        if external > 0 {
            let end = local + external;
            self.free_skipped(request, end);
            if self.grow(request, end, end).is_err() {
                self.free_tables(request);
                return Ok(Admission::NoRoom);
            }
            self.side.allocated(&request.id, &request.tables, external as u64);
            request.start_at(end);
            let wait = self.rng.random_range(1..4) + u32::from(self.scenario.asynchronous);
            request.phase = Phase::Loading { until: self.step + wait, local };
            draft.loading.extend(request.tables.iter().flatten());
            return Ok(Admission::Loads);
        }
        if new {
            request.start_at(local);
        }
        let tokens = self.tokens_due(request, draft.budget);
        self.free_skipped(request, local);
        if tokens == 0 || self.grow(request, local, local + tokens) == Err(PoolIsFull) {
            if new {
                self.free_tables(request);
                request.computed = 0;
            }
            return Ok(if tokens == 0 { Admission::Later } else { Admission::NoRoom });
        }
        if new {
            self.side.allocated(&request.id, &request.tables, 0);
        }
        request.phase = Phase::Running;
        self.take_part(request, tokens, draft);
        Ok(Admission::Runs)
    }

    fn check_offer(&self, request: &Request, local: usize, external: usize) -> Result<(), Failure> {
        let end = local + external;
        if external == 0 {
            return Ok(());
        }
        let whole = self.scenario.groups.iter().all(|group| end.is_multiple_of(group.tokens_per_block));
        if end >= request.tokens.len() || !whole {
            let known = request.tokens.len();
            return Err(fail(format!(
                "{}: {} of {known} tokens is offered a hit up to {end}",
                self.name(),
                request.id
            )));
        }
        Ok(())
    }

    fn take_less(&mut self, external: usize) -> usize {
        let granule = self.scenario.hit_granule();
        if external > granule && self.chance(self.scenario.chances.take_less) {
            self.rng.random_range(0..external / granule) * granule
        } else {
            external
        }
    }

    /// Tokens of a request in the next pass.
    fn tokens_due(&mut self, request: &Request, budget: usize) -> usize {
        let all = request.tokens.len() + request.placeholders;
        // With these the request is at its limit: the step would be for nothing.
        if all >= request.limit && request.placeholders > 0 {
            return 0;
        }
        let due = all.saturating_sub(request.computed);
        if due == 1 && self.scenario.drafts > 0 {
            let drafts = self.rng.random_range(0..=self.scenario.drafts);
            return (due + drafts).min(budget);
        }
        let mut tokens = due.min(budget);
        if tokens > 4 && self.rng.random_bool(0.2) {
            tokens = self.rng.random_range(1..=tokens);
        }
        self.cut_at_state(request, tokens)
    }

    /// While a prompt is computed, passes end where a state is kept.
    fn cut_at_state(&self, request: &Request, tokens: usize) -> usize {
        let Some(period) = self.scenario.state_tokens() else { return tokens };
        let (start, known) = (request.computed, request.tokens.len());
        if start >= request.prompt.max(known - 1) {
            return tokens;
        }
        let last = known / period * period;
        let end = start + tokens;
        if end < last {
            (end / period * period).saturating_sub(start)
        } else if start < last && last < end {
            last - start
        } else {
            tokens
        }
    }

    /// Tells the planner and the device of a request's part in the step.
    fn take_part(&mut self, request: &mut Request, tokens: usize, draft: &mut Draft) {
        draft.budget -= tokens;
        let (computed, end) = (request.computed, request.computed + tokens);
        let states = self.scenario.groups.iter().enumerate().filter(|(_, group)| group.recurrent());
        let states =
            states.filter(|(_, group)| end.is_multiple_of(group.tokens_per_block)).map(|(index, group)| {
                let group_index = u16::try_from(index).expect("few groups");
                let block = request.tables[index][end / group.tokens_per_block - 1];
                StateHandoff { group: GroupIndex(group_index).0, block, boundary_tokens: end as u64 }
            });
        let states = states.collect();
        let lengths: Vec<usize> = request.tables.iter().map(Vec::len).collect();
        let blocks = match request.told_blocks.replace(lengths) {
            None => BlockUpdate::Replace(request.tables.clone()),
            Some(told) => BlockUpdate::Append(
                request.tables.iter().zip(told).map(|(table, told)| table[told..].to_vec()).collect(),
            ),
        };
        draft.requests.push(ScheduledRequest {
            id: request.id.clone(),
            computed_tokens: computed as u64,
            scheduled_tokens: tokens as u64,
            new_tokens: request.tokens[request.told_tokens..].to_vec(),
            blocks,
            states,
        });
        request.told_tokens = request.tokens.len();
        let all = request.tokens.len() + request.placeholders;
        let samples = if end >= all { 1 + end - all } else { 0 };
        draft.shares.push(Share {
            id: request.id.clone(),
            admission: request.admission,
            computed,
            tokens,
            samples,
            tables: request.tables.clone(),
            live: Rc::clone(&request.live),
        });
        request.placeholders += samples;
        request.computed = end;
    }

    pub(super) fn preempt(&mut self, mut request: Request) {
        self.stats.preemptions += 1;
        self.preempted.push(request.id.clone());
        self.free_tables(&mut request);
        request.restart(self.weights);
        self.waiting.push_front(request);
    }
}

enum Admission {
    Runs,
    Loads,
    Later,
    NoRoom,
}
