//! What the scheduler hears: sampled tokens, ended loads; and what it does about it.

use std::time::Instant;

use tender_client::LoadDone;
use tender_client::plan::Finish;

use super::engine::{Engine, PATIENCE};
use super::pass::Outcome;
use super::request::{Phase, Request};
use super::{Failure, fail};

impl Engine {
    /// Takes over what a step brought.
    pub(super) fn update(&mut self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            if let Some(at) = self.running.iter().position(|request| request.id == outcome.id) {
                let mut request = self.running.remove(at);
                if self.apply(&mut request, outcome) {
                    self.running.insert(at, request);
                } else {
                    self.end(request, false);
                }
            } else if let Some(at) = self.waiting.iter().position(|request| request.id == outcome.id) {
                let mut request = self.waiting.remove(at).expect("found");
                if self.apply(&mut request, outcome) {
                    self.waiting.insert(at, request);
                } else {
                    self.end(request, false);
                }
            }
        }
    }

    /// False when the request is at its end.
    fn apply(&mut self, request: &mut Request, outcome: Outcome) -> bool {
        if request.admission > outcome.admission + 1 {
            // Preempted and begun anew before this was known: it will be sampled again.
            return true;
        }
        let end = request.limit.min(request.stop);
        let room = end.saturating_sub(request.tokens.len());
        request.tokens.extend(outcome.sampled.into_iter().take(room));
        if request.admission == outcome.admission {
            request.placeholders -= outcome.placeholders;
            request.computed -= outcome.rejected;
            self.cache_settled(request, &outcome.settled);
        }
        request.tokens.len() < end
    }

    /// A request is over, one way or the other.
    pub(super) fn end(&mut self, mut request: Request, aborted: bool) {
        let untold = request.tokens[request.told_tokens.min(request.tokens.len())..].to_vec();
        let held = request.tables.iter().any(|table| !table.is_empty());
        let finish = Finish {
            num_tokens: request.tokens.len() as u64,
            prompt_tokens: request.prompt as u64,
            computed_tokens: request.computed as u64,
            aborted,
            blocks: if held { request.tables.clone() } else { Vec::new() },
            tail_tokens: untold,
        };
        self.side.finished(&request.id, finish);
        self.history.push((request.tokens.clone(), request.inputs.clone()));
        self.stats.finished += u64::from(!aborted);
        if matches!(request.phase, Phase::Loading { .. }) {
            // Its blocks are being written into: they are free when that is over.
            self.doomed.push(request);
        } else {
            self.free_tables(&mut request);
        }
    }

    /// Loads whose time has come are waited for and taken over.
    pub(super) fn deliver_loads(&mut self) -> Result<(), Failure> {
        for at in 0..self.waiting.len() {
            let Phase::Loading { until, local } = self.waiting[at].phase else { continue };
            if until <= self.step {
                let done = self.await_load(&self.waiting[at].id.clone())?;
                let mut request = self.waiting.remove(at).expect("counted");
                self.take_load(&mut request, local, &done);
                self.waiting.insert(at, request);
            }
        }
        let mut doomed = std::mem::take(&mut self.doomed);
        let due =
            |request: &Request, step| matches!(request.phase, Phase::Loading { until, .. } if until <= step);
        for request in doomed.extract_if(.., |request| due(request, self.step)).collect::<Vec<_>>() {
            let mut request = request;
            self.await_load(&request.id)?;
            self.free_tables(&mut request);
        }
        self.doomed.extend(doomed);
        Ok(())
    }

    /// Waits until every load is over, passes included that begin them.
    pub(super) fn settle_loads(&mut self) -> Result<(), Failure> {
        let loading = |request: &Request| matches!(request.phase, Phase::Loading { .. });
        if self.waiting.iter().any(loading) || !self.doomed.is_empty() {
            self.drain()?;
            let step = std::mem::replace(&mut self.step, u32::MAX);
            let done = self.deliver_loads();
            self.step = step;
            done?;
        }
        Ok(())
    }

    /// Every rank reports each load once.
    fn await_load(&mut self, id: &str) -> Result<LoadDone, Failure> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            for rank in &self.ranks {
                for done in rank.worker.poll() {
                    self.reports.entry(done.request.clone()).or_default().push(done);
                }
            }
            if self.reports.get(id).is_some_and(|reports| reports.len() >= self.ranks.len()) {
                break;
            }
            if Instant::now() > give_up {
                let counters = self.ranks[0].worker.counters();
                return Err(fail(format!(
                    "{}: the load of {id} is never reported: {counters:?}",
                    self.name()
                )));
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        self.side.loads_finished(&[id.to_owned()]);
        let mut reports = self.reports.remove(id).expect("just seen").into_iter();
        let mut all = reports.next().expect("at least one rank");
        for other in reports {
            all.failed |= other.failed;
            all.failed_blocks.extend(other.failed_blocks);
        }
        Ok(all)
    }

    /// What came counts as computed.
    fn take_load(&mut self, request: &mut Request, local: usize, done: &LoadDone) {
        request.phase = Phase::Waiting;
        let promised = request.computed;
        let good = if done.failed {
            0
        } else {
            // Only where one group of full attention is all there is.
            let failed = request.tables[0].iter().position(|block| done.failed_blocks.contains(block));
            failed.map_or(promised, |block| {
                (block * self.scenario.groups[0].tokens_per_block).clamp(local, promised)
            })
        };
        self.stats.failed_loads += u64::from(good < promised);
        self.stats.loaded_tokens += good.saturating_sub(local) as u64;
        if good == 0 {
            self.free_tables(request);
            request.restart(self.weights);
            return;
        }
        request.start_at(good);
        let settled = vec![good; self.scenario.groups.len()];
        self.cache_settled(request, &settled);
    }
}
