//! The scheduler's half of a client: it asks how much of a prompt the daemon holds and plans what moves.
//!
//! All calls come from one engine thread. The only one that waits is [`SchedulerSide::match_prefix`], and only for as
//! long as all calls of a step together stay within `step_budget`. What exceeds it all the same, such as the hashing of a
//! very long prompt, is counted. [`SchedulerSide::reset`] belongs to no step: it asks the daemon and waits.

mod defer;
mod lookup;
mod prefill;
mod residents;
#[cfg(test)]
mod tests;
mod wait;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tender_proto::{ChunkId, Descriptor, NamespaceDigest};
use tender_trace::{Parent, Side, names};

use crate::client::{Client, Purpose};
use crate::config::ClientConfig;
use crate::counters::Counters;
use crate::error::ClientError;
use crate::fuse::Fuse;
use crate::hash::{RequestInputs, Uncacheable};
use crate::lease::HeldLease;
use crate::plan::{Finish, PlanConfig, PlanCounters, Planner, StepInput, StepPlan};
use crate::transport::calls::LookupMark;
use defer::Asked;
use lookup::Lookup;
use prefill::Prefill;
pub use residents::Changes;
use residents::Residents;
use wait::Wait;

/// What the daemon holds of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match {
    /// This many tokens beyond the computed ones; at least 1.
    Hit(u64),
    /// Not known yet: schedule something else and ask again.
    Later,
    /// Nothing, or nobody who could say.
    None,
}

/// The scheduler.
#[derive(Debug)]
pub struct SchedulerSide {
    client: Client,
    plan: PlanConfig,
    fuse: Fuse,
    state: Mutex<State>,
    residents: Mutex<Option<Residents>>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` until the workers have described their layout.
    planned: Option<Planned>,
    requests: HashMap<String, Request>,
    /// What the calls of this step have taken so far.
    spent: Duration,
    prefill: Prefill,
}

#[derive(Debug)]
struct Planned {
    planner: Planner,
    descriptor: Arc<Descriptor>,
    namespace: NamespaceDigest,
    /// As last known; plans carry it.
    epoch: Option<u64>,
}

#[derive(Debug, Default)]
struct Request {
    lookup: Lookup,
    /// The same question, asked again while the request waits for what is being fetched.
    again: Lookup,
    wait: Option<Wait>,
    /// Kept from the hit until the worker is done, so that nothing of it is evicted in between.
    lease: Option<HeldLease>,
    /// The engine's trace, or the one that its first lookup began.
    trace: Parent,
    /// What will be counted if the engine takes the request now: tokens asked for.
    asked_tokens: Option<u64>,
}

impl SchedulerSide {
    /// Starts a scheduler. Nothing matches and nothing is planned until [`SchedulerSide::set_descriptor`].
    pub fn new(config: ClientConfig, plan: PlanConfig) -> Result<Self, ClientError> {
        let client = Client::new(config, Purpose::Lookups)?;
        let fuse = Fuse::new(Arc::clone(client.tally()));
        Ok(Self { client, plan, fuse, state: Mutex::default(), residents: Mutex::default() })
    }

    /// Tells what the workers registered. Requests from before are not cached. Repeating the same descriptor
    /// changes nothing; another one begins anew.
    pub fn set_descriptor(&self, descriptor: Descriptor) -> Result<(), ClientError> {
        descriptor.check()?;
        let descriptor = Arc::new(descriptor);
        let mut state = self.state.lock();
        if state.planned.as_ref().is_some_and(|planned| planned.descriptor == descriptor) {
            return Ok(());
        }
        let planner = Planner::new(Arc::clone(&descriptor), self.plan.clone())?;
        let namespace = self.client.register(Arc::clone(&descriptor));
        state.requests.clear();
        state.planned = Some(Planned { planner, descriptor, namespace, epoch: None });
        Ok(())
    }

    /// A request came in. What makes it uncacheable is counted; it is then neither looked up nor stored.
    pub fn new_request(&self, id: &str, prompt_tokens: u64, inputs: Result<RequestInputs, Uncacheable>) {
        self.quietly("new_request", |state| {
            self.client.tally().requests.one();
            // An id that comes again is another request.
            state.requests.remove(id);
            let Some(planned) = &mut state.planned else { return };
            match inputs {
                Ok(inputs) => {
                    planned.planner.add_request(id, prompt_tokens, &inputs);
                    state.requests.insert(id.to_owned(), Request::default());
                }
                Err(why) => {
                    self.client.tally().uncacheable_requests.one();
                    tracing::debug!(request = id, %why, "not cached");
                }
            }
        });
    }

    /// The engine traces this request: what happens for it here is a part of that trace. After
    /// [`new_request`](Self::new_request).
    pub fn trace_request(&self, id: &str, traceparent: &str) {
        self.quietly("trace_request", |state| {
            if let Some(request) = state.requests.get_mut(id) {
                request.trace = Parent::parse(traceparent);
            }
        });
    }

    /// How many tokens beyond `computed` the daemon holds for this request. `tokens` are all its tokens so far.
    pub fn match_prefix(&self, id: &str, tokens: &[u32], computed: u64) -> Match {
        self.guarded("match_prefix", || Match::None, |state| self.try_match(state, id, tokens, computed))
    }

    /// Whether the last [`SchedulerSide::match_prefix`] of this request, which said "later", would still say so. Spares
    /// the caller the tokens, of which there may be very many, in every step until the answer comes.
    pub fn still_waits(&self, id: &str) -> bool {
        self.guarded(
            "still_waits",
            || false,
            |state| {
                let until = self.until(state.spent);
                let Some(request) = state.requests.get_mut(id) else { return false };
                let waits = match request.lookup.is_under_way() {
                    true => request.lookup.settle(&self.client, until).is_none(),
                    false => request.sleeps(&self.client, Instant::now()),
                };
                if waits {
                    self.client.tally().lookups_later.one();
                }
                waits
            },
        )
    }

    /// How long a call that begins now may wait, when those of its step before it have taken so much.
    fn until(&self, spent: Duration) -> Instant {
        Instant::now() + self.client.config().step_budget.saturating_sub(spent)
    }

    fn try_match(&self, state: &mut State, id: &str, tokens: &[u32], computed: u64) -> Match {
        let until = self.until(state.spent);
        let rate = state.prefill.tokens_per_second();
        let State { planned: Some(planned), requests, .. } = state else { return Match::None };
        let Some(request) = requests.get_mut(id) else { return Match::None };
        let keys = planned.planner.lookup_keys(id, tokens);
        request.asked_tokens = Some((tokens.len() as u64).saturating_sub(computed));
        if keys.is_empty() {
            return Match::None;
        }
        request.take_newer(&self.client, keys.len());
        request.lookup.forget_stale(keys.len());
        if let Lookup::None = request.lookup {
            request.lookup = self.ask(planned, keys.clone(), id, &mut request.trace);
        }
        let Some(answered) = request.lookup.settle(&self.client, until) else {
            self.client.tally().lookups_later.one();
            return Match::Later;
        };
        let asked = Asked { id, keys: &keys, num_tokens: tokens.len() as u64, computed };
        let hit = match answered.views.is_empty() {
            true => 0,
            false => planned.planner.hit_tokens(id, &answered.views, asked.num_tokens, computed),
        };
        if self.waits_for_fetch(planned, request, &asked, hit, rate) {
            self.client.tally().lookups_later.one();
            return Match::Later;
        }
        let Lookup::Answered(answered) = &mut request.lookup else { return Match::None };
        answered.count_misses(&self.client);
        if hit == 0 {
            answered.lease = None;
            return Match::None;
        }
        Match::Hit(hit)
    }

    /// `trace` is the request's; a lookup without begins one, which later ones and the load belong to.
    fn ask(&self, planned: &Planned, keys: Vec<ChunkId>, id: &str, trace: &mut Parent) -> Lookup {
        match self.client.session(planned.namespace) {
            Ok(session) => {
                let descriptor = Arc::clone(&planned.descriptor);
                let mark = LookupMark {
                    request_id: id.to_owned(),
                    store_after_requests: self.plan.store_after_requests,
                };
                let span = self.client.trace().span(names::LOOKUP, Side::Within, *trace);
                if trace.is_none() {
                    *trace = span.parent();
                }
                Lookup::start(&self.client, session, descriptor, planned.namespace, keys, mark, span)
            }
            Err(reason) => Lookup::failed(&self.client, reason),
        }
    }

    /// The engine has given the request its blocks and takes `external_tokens` of the match.
    pub fn allocated(&self, id: &str, blocks: &[Vec<u32>], external_tokens: u64) {
        self.quietly("allocated", |state| {
            let State { planned: Some(planned), requests, .. } = state else { return };
            let Some(request) = requests.get_mut(id) else { return };
            planned.planner.allocated(id, blocks, external_tokens);
            // Once for each admission, however often the engine asked before.
            if let Some(asked) = request.asked_tokens.take() {
                let tally = self.client.tally();
                tally.queries.one();
                tally.query_tokens.add(asked);
                tally.hit_tokens.add(external_tokens.min(asked));
            }
            // The next admission may wait anew.
            request.end_wait(&self.client);
            request.wait = None;
            let lease = std::mem::take(&mut request.lookup).into_lease();
            if external_tokens > 0 {
                request.lease = lease;
            }
        });
    }

    /// Plans a step; the bytes go to every worker. Empty when there is nothing to do.
    pub fn step(&self, mut input: StepInput) -> Vec<u8> {
        let plan = self.guarded("step", Vec::new, |state| {
            state.prefill.step(Instant::now(), &input);
            self.client.tally().prefill_tokens_per_second.set(state.prefill.measured());
            let State { planned: Some(planned), requests, .. } = state else { return Vec::new() };
            input.requests.retain(|scheduled| requests.contains_key(&scheduled.id));
            input.preempted.retain(|id| requests.contains_key(id));
            if let Ok(session) = self.client.session(planned.namespace) {
                planned.epoch = Some(session.epoch(planned.namespace));
            }
            let mut plan = StepPlan { epoch: planned.epoch, ..planned.planner.step(input) };
            for load in &mut plan.loads {
                load.trace = requests.get(&load.request).map_or(Parent::NONE, |request| request.trace);
            }
            plan.encode()
        });
        self.end_step();
        plan
    }

    /// The engine's next call belongs to another step.
    fn end_step(&self) {
        let took = std::mem::take(&mut self.state.lock().spent);
        self.client.tally().step_took(took, self.client.config().step_budget);
    }

    /// A request is over.
    pub fn finished(&self, id: &str, finish: Finish) {
        self.quietly("finished", |state| {
            if let Some(mut request) = state.requests.remove(id)
                && let Some(planned) = &mut state.planned
            {
                request.end_wait(&self.client);
                planned.planner.finished(id, &finish);
            }
        });
    }

    /// The workers are done with these requests' loads: their leases are given back.
    pub fn loads_finished(&self, ids: &[String]) {
        self.quietly("loads_finished", |state| {
            for id in ids {
                if let Some(request) = state.requests.get_mut(id) {
                    request.lease = None;
                }
            }
        });
    }

    /// Forgets everything stored in this namespace, here and at the daemon. False: the daemon could not be
    /// reached in time, and what it stored may still be found.
    pub fn reset(&self) -> bool {
        let namespace = self.guarded(
            "reset",
            || None,
            |state| {
                for request in state.requests.values_mut() {
                    *request = Request { trace: request.trace, ..Request::default() };
                }
                let planned = state.planned.as_mut()?;
                planned.planner.reset();
                Some(planned.namespace)
            },
        );
        // Outside the lock: it may take its whole deadline.
        let Some(namespace) = namespace else { return !self.fuse.is_blown() };
        match self.client.reset(namespace) {
            Ok(dropped) => {
                tracing::info!(chunks = dropped.chunks, "the daemon has forgotten this namespace");
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the daemon could not be told to forget");
                false
            }
        }
    }

    /// From now on [`SchedulerSide::take_changes`] tells which chunks of this namespace the daemon holds. Does nothing before
    /// [`SchedulerSide::set_descriptor`].
    pub fn watch(&self) -> Result<(), ClientError> {
        let namespace = self.state.lock().planned.as_ref().map(|planned| planned.namespace);
        if let Some(namespace) = namespace {
            *self.residents.lock() = Some(Residents::watch(self.client.config().clone(), namespace)?);
        }
        Ok(())
    }

    /// What the daemon has stored and lost since the last call.
    pub fn take_changes(&self) -> Changes {
        self.residents.lock().as_ref().map(Residents::take).unwrap_or_default()
    }

    /// Keys of the whole chunks of a request whose tokens were given, by group.
    pub fn known_keys(&self, id: &str) -> Vec<Vec<ChunkId>> {
        self.guarded("known_keys", Vec::new, |state| {
            state.planned.as_ref().map(|planned| planned.planner.known_keys(id)).unwrap_or_default()
        })
    }

    /// Waits until a session is up, for programs that want to begin warm.
    pub fn wait_until_up(&self, limit: Duration) -> bool {
        self.client.wait_until_up(limit)
    }

    /// What was planned and what could not be.
    pub fn plan_counters(&self) -> PlanCounters {
        self.guarded("plan_counters", PlanCounters::default, |state| {
            state.planned.as_ref().map(|planned| planned.planner.counters()).unwrap_or_default()
        })
    }

    /// This moment's numbers.
    pub fn counters(&self) -> Counters {
        self.client.counters()
    }

    /// Ends the session. Everything misses afterwards.
    pub fn shutdown(&self) {
        *self.residents.lock() = None;
        self.client.stop();
        self.client.end_trace();
    }

    /// For what has nothing to say.
    fn quietly(&self, what: &'static str, body: impl FnOnce(&mut State)) {
        self.guarded(what, || (), body);
    }

    fn guarded<T>(
        &self,
        what: &'static str,
        otherwise: impl FnOnce() -> T,
        body: impl FnOnce(&mut State) -> T,
    ) -> T {
        self.fuse.run(what, otherwise, || {
            let begin = Instant::now();
            let mut state = self.state.lock();
            let done = body(&mut state);
            state.spent += begin.elapsed();
            done
        })
    }
}
