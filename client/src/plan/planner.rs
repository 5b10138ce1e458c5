//! The planner: takes what the engine's scheduler says in the order it says it, and answers with plans.

use std::collections::HashMap;
use std::sync::Arc;

use tender_proto::limits::KEY_CHAIN_VERSION;
use tender_proto::mutant::{Mutant, active};
use tender_proto::{ChunkId, Coverage, Descriptor, Reason, Refusal};
use tender_trace::Parent;

use super::config::{PlanConfig, PlanCounters};
use super::hit::{self, Answers, ChunkView};
use super::memory::{Asked, Stored};
use super::request::{Offer, Request, TokenRange};
use super::step::{BlockUpdate, Finish, ScheduledRequest, StateHandoff, StepInput};
use super::store::{Reach, Stores};
use super::wire::{LoadJob, StepPlan, StoreJob};
use super::{frontier, load};
use crate::hash::RequestInputs;

/// Decides what is stored and loaded, for all requests of one engine.
///
/// Nothing here fails: what does not fit together is left out and counted ([`PlanCounters`]).
#[derive(Debug)]
pub struct Planner {
    descriptor: Arc<Descriptor>,
    config: PlanConfig,
    requests: HashMap<String, Request>,
    stored: Stored,
    asked: Asked,
    /// For the next plan's `stores_before`: the blocks are free by then, and untouched until its pass.
    ended_stores: Vec<StoreJob>,
    queued_loads: Vec<LoadJob>,
    counters: PlanCounters,
}

impl Planner {
    /// A planner for one namespace. Refused are ranks that hold parts of blocks, groups whose blocks never end together,
    /// and other versions of the key chain.
    pub fn new(descriptor: Arc<Descriptor>, config: PlanConfig) -> Result<Self, Refusal> {
        let unsupported =
            |subject: String, advice: &str| Err(Refusal::new(Reason::Unsupported, subject, advice));
        if hit::boundary_step(&descriptor, config.hit_unit).is_none() {
            return unsupported(
                "a model whose groups' blocks end together nowhere within 2^64 tokens".into(),
                "choose block sizes with common multiples; run without Tender",
            );
        }
        if descriptor.ranks.context_parallel.get() != 1 {
            return unsupported(
                format!("an engine of {} context-parallel ranks", descriptor.ranks.context_parallel),
                "a rank must hold whole blocks of tokens; run without Tender",
            );
        }
        if descriptor.key_chain_version != KEY_CHAIN_VERSION {
            return Err(Refusal::new(
                Reason::VersionMismatch,
                format!("key chain version {}", descriptor.key_chain_version),
                format!("this version makes keys of version {KEY_CHAIN_VERSION}"),
            ));
        }
        Ok(Self {
            stored: Stored::new(&config),
            asked: Asked::new(&config),
            descriptor,
            config,
            requests: HashMap::new(),
            ended_stores: Vec::new(),
            queued_loads: Vec::new(),
            counters: PlanCounters::default(),
        })
    }

    /// A request arrives. One that cannot be named by content is not added; whatever is said about it later
    /// is ignored. An id in use means that the engine's earlier request ended unseen: it is dropped.
    pub fn add_request(&mut self, id: &str, prompt_tokens: u64, inputs: &RequestInputs) {
        let request = Request::new(&self.descriptor, prompt_tokens, inputs);
        if self.requests.insert(id.to_owned(), request).is_some() {
            self.counters.replaced_requests += 1;
            self.drop_queued_load(id);
        }
    }

    /// Token ids given so far; the next `new_tokens` start behind them. `None` for an unknown request.
    pub fn known_tokens(&self, id: &str) -> Option<u64> {
        self.requests.get(id).map(Request::known_tokens)
    }

    /// Keys of all whole chunks of `tokens`, which are all tokens of the request so far; group after group. Empty
    /// for an unknown request. Draft groups have no key for a chunk before the tokens behind it are there.
    pub fn lookup_keys(&mut self, id: &str, tokens: &[u32]) -> Vec<ChunkId> {
        let Some(request) = self.requests.get_mut(id) else {
            self.counters.unknown_requests += 1;
            return Vec::new();
        };
        let new = usize::try_from(request.known_tokens()).ok().and_then(|known| tokens.get(known..));
        request.extend(new.unwrap_or_default());
        request.ask(&self.asked)
    }

    /// Keys of all whole chunks of a request whose tokens were given, by group; none for an unknown request.
    pub fn known_keys(&self, id: &str) -> Vec<Vec<ChunkId>> {
        let Some(request) = self.requests.get(id) else { return Vec::new() };
        let keys = |group| (0..).map_while(|chunk| request.chunk_id(group, chunk)).collect();
        (0..self.descriptor.groups.len()).map(keys).collect()
    }

    /// Tokens beyond `computed` that can be loaded, by the answers to the keys of the last
    /// [`lookup_keys`](Self::lookup_keys). The hit ends below `num_tokens`, where blocks of all groups end and every
    /// group has what the next token reads.
    pub fn hit_tokens(&mut self, id: &str, answers: &[ChunkView], num_tokens: u64, computed: u64) -> u64 {
        let Some(request) = self.requests.get_mut(id) else {
            self.counters.unknown_requests += 1;
            return 0;
        };
        request.offer = None;
        let Some(answers) = Answers::split(answers, &request.asked_keys) else { return 0 };
        if let Some(range) = request.loading.take() {
            // Asked again without having been scheduled: nothing of that load was good.
            request.fail_load(range, computed, &self.descriptor, &self.stored);
            self.counters.loads_failed += 1;
        }
        for index in 0..self.descriptor.groups.len() {
            for (chunk, answer) in (0..).zip(answers.of(index)) {
                let Some(key) = request.chunk_id(index, chunk) else { continue };
                match answer {
                    ChunkView::Ready(coverage) => self.stored.remember(key, *coverage),
                    ChunkView::Pending => {}
                    ChunkView::Miss => self.stored.forget(key),
                }
            }
        }
        let end = answers.boundary(&self.descriptor, self.config.hit_unit, num_tokens, computed);
        if end <= computed || request.load_failed {
            return 0;
        }
        request.offer = Some(Offer { range: TokenRange { start: computed, end }, answers });
        end - computed
    }

    /// What [`hit_tokens`](Self::hit_tokens) would say to other answers. Nothing is promised.
    pub fn hit_tokens_if(&self, id: &str, answers: &[ChunkView], num_tokens: u64, computed: u64) -> u64 {
        let Some(request) = self.requests.get(id).filter(|request| !request.load_failed) else { return 0 };
        let Some(answers) = Answers::split(answers, &request.asked_keys) else { return 0 };
        let end = answers.boundary(&self.descriptor, self.config.hit_unit, num_tokens, computed);
        end.saturating_sub(computed)
    }

    /// The engine has allocated blocks (all of the request's, one table per group) and counts `external_tokens`
    /// behind the computed ones as loaded once the load is reported. If that is not what was promised, or the
    /// tables do not hold it, nothing is loaded: the load is planned so that it fails.
    pub fn allocated(&mut self, id: &str, blocks: &[Vec<u32>], external_tokens: u64) {
        if external_tokens == 0 {
            return;
        }
        let Some(request) = self.requests.get_mut(id) else {
            self.counters.unknown_requests += 1;
            return;
        };
        let offer = request.offer.take();
        let range = offer.as_ref().and_then(|Offer { range, answers }| {
            let end = range.start.checked_add(external_tokens).filter(|&end| end <= range.end)?;
            // A shorter hit than was promised needs other windows and another state.
            let served = end == range.end || answers.serve(&self.descriptor, range.start, end);
            (served && request.loading.is_none()).then_some(TokenRange { start: range.start, end })
        });
        let items = range.and_then(|range| load::items(request, &self.descriptor, blocks, range));
        if items.is_none() {
            self.counters.loads_refused += 1;
        }
        // The engine waits for this load, and takes everything from here on for loaded unless it hears otherwise.
        let start = offer.map_or(0, |offer| offer.range.start);
        request.loading = Some(range.unwrap_or(TokenRange { start, end: u64::MAX }));
        let items = items.unwrap_or_else(|| load::doomed_items(&self.descriptor, blocks, start));
        self.queued_loads.push(LoadJob {
            request: id.to_owned(),
            items,
            whole: load::is_whole(&self.descriptor),
            // The scheduler knows it.
            trace: Parent::NONE,
        });
    }

    /// The plan of a step that was just scheduled.
    pub fn step(&mut self, step: StepInput) -> StepPlan {
        for id in &step.preempted {
            let Some(request) = self.requests.get_mut(id) else {
                self.counters.unknown_requests += 1;
                continue;
            };
            // It lost its blocks between two steps (when an engine resets its cache) or at the start of this one. A load
            // that waits here is into blocks it was given since: the engine waits for it.
            let loading = request.loading.filter(|_| self.queued_loads.iter().any(|job| job.request == *id));
            request.lose_blocks();
            request.loading = loading;
        }
        let mut stores_after = Vec::new();
        for scheduled in step.requests {
            self.advance(scheduled, &mut stores_after);
        }
        if active(Mutant::SnapshotLate) {
            std::mem::swap(&mut self.ended_stores, &mut stores_after);
        } else if active(Mutant::EndedStoresLate) {
            stores_after.append(&mut self.ended_stores);
        }
        let loads = std::mem::take(&mut self.queued_loads);
        self.counters.loads += loads.len() as u64;
        if active(Mutant::SnapshotLate) {
            return StepPlan { loads, stores_after, ..StepPlan::default() };
        }
        StepPlan { stores_before: std::mem::take(&mut self.ended_stores), loads, stores_after, epoch: None }
    }

    /// A request ends. What became final by that goes into the next plan's `stores_before`.
    pub fn finished(&mut self, id: &str, end: &Finish) {
        let Some(mut request) = self.requests.remove(id) else {
            self.counters.unknown_requests += 1;
            return;
        };
        self.drop_queued_load(id);
        request.extend(&end.tail_tokens);
        // Slots that a load was to fill count as computed for the engine; whether it did is not known here.
        let filled = request.loading.map_or(u64::MAX, |range| range.start);
        let frontier = frontier::ended(end, request.known_tokens()).min(filled);
        if request.preempted || !request.replace_tables(&end.blocks) {
            return;
        }
        request.prompt_tokens = end.prompt_tokens;
        let reach = Reach { frontier, freed_at: end.computed_tokens, ended: true };
        let mut jobs = std::mem::take(&mut self.ended_stores);
        self.store(&mut request, reach, &[], &mut jobs);
        self.ended_stores = jobs;
    }

    /// These chunks are known to be stored, with this coverage.
    pub fn stored_elsewhere(&mut self, chunks: &[(ChunkId, Coverage)]) {
        for &(chunk, coverage) in chunks {
            self.stored.remember(chunk, coverage);
        }
    }

    /// These chunks are known to be lost; whoever computes them next stores them again.
    pub fn forget(&mut self, chunks: &[ChunkId]) {
        for &chunk in chunks {
            self.stored.forget(chunk);
        }
    }

    /// The engine dropped its cache, and with it everything that was to be stored. Requests that go on do so
    /// without storing what they had computed before.
    pub fn reset(&mut self) {
        self.stored = Stored::new(&self.config);
        self.ended_stores.clear();
        self.counters.loads_dropped += self.queued_loads.len() as u64;
        self.queued_loads.clear();
        for request in self.requests.values_mut() {
            request.offer = None;
            request.predates_reset = true;
        }
    }

    /// What was done and declined so far.
    pub fn counters(&self) -> PlanCounters {
        self.counters
    }

    fn advance(&mut self, scheduled: ScheduledRequest, jobs: &mut Vec<StoreJob>) {
        let Some(mut request) = self.requests.remove(&scheduled.id) else {
            self.counters.unknown_requests += 1;
            return;
        };
        request.extend(&scheduled.new_tokens);
        let computed = scheduled.computed_tokens;
        let loaded = request.loading.take();
        if let Some(range) = loaded.filter(|range| computed < range.end) {
            request.fail_load(range, computed, &self.descriptor, &self.stored);
            self.counters.loads_failed += 1;
        }
        request.rewind(computed, &self.descriptor);
        let tables_fit = match scheduled.blocks {
            BlockUpdate::Replace(tables) => {
                request.preempted = false;
                // What a load brought may be as old as the reset.
                request.predates_reset &= loaded.is_some();
                request.replace_tables(&tables)
            }
            BlockUpdate::Append(tables) => request.append_tables(&tables),
        };
        if tables_fit {
            let frontier = frontier::running(computed, scheduled.scheduled_tokens, request.known_tokens());
            let reach = Reach { frontier, freed_at: computed, ended: false };
            self.store(&mut request, reach, &scheduled.states, jobs);
        } else {
            self.counters.short_block_tables += 1;
        }
        self.requests.insert(scheduled.id, request);
    }

    fn store(
        &mut self,
        request: &mut Request,
        reach: Reach,
        states: &[StateHandoff],
        jobs: &mut Vec<StoreJob>,
    ) {
        if request.predates_reset && !active(Mutant::ResetForgotten) {
            return;
        }
        let frontier = frontier::capped(reach.frontier, request.prompt_tokens, &self.config);
        let mut stores = Stores {
            descriptor: &self.descriptor,
            config: &self.config,
            stored: &self.stored,
            asked: &self.asked,
            counters: &mut self.counters,
            jobs,
        };
        stores.chunks(request, Reach { frontier, ..reach });
        stores.states(request, states, frontier);
    }

    fn drop_queued_load(&mut self, id: &str) {
        let before = self.queued_loads.len();
        self.queued_loads.retain(|job| job.request != id);
        self.counters.loads_dropped += (before - self.queued_loads.len()) as u64;
    }
}
