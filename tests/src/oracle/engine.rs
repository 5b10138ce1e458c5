//! The model engine: a scheduler with a block pool, ranks with memory, and the real client between them and a daemon.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_client::{ClientConfig, LoadDone, SchedulerSide, WorkerSide};
use tender_proto::{Descriptor, GroupIndex, RankGeometry};

use super::memory::Memory;
use super::pass::Step;
use super::pool::Pool;
use super::ranks::{self, Shard};
use super::request::{Inputs, Request};
use super::scenario::Scenario;
use super::truth::mix;
use super::{Failure, fail};
use crate::fixture;

/// Longer than any load, connection or store takes; a wait that needs more is a failure.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What a run was good for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Requests that ran to their end.
    pub finished: u64,
    /// Tokens that came from the daemon.
    pub loaded_tokens: u64,
    /// Loads that failed or brought less than was promised.
    pub failed_loads: u64,
    /// Slots and states that attention read.
    pub read_slots: u64,
    /// Requests that lost their blocks.
    pub preemptions: u64,
    /// Draft tokens that turned out wrong.
    pub rejected_drafts: u64,
}

/// One tensor-parallel rank.
#[derive(Debug)]
pub struct Rank {
    /// Its half of the client. Dropped before the memory it copies from and into.
    pub worker: WorkerSide,
    /// Its KV.
    pub memory: Memory,
}

/// One engine.
#[derive(Debug)]
pub struct Engine {
    pub(super) scenario: Rc<Scenario>,
    /// Number among the engines.
    pub(super) number: u64,
    pub(super) rng: StdRng,
    /// The scheduler's half of the client.
    pub side: SchedulerSide,
    /// The ranks.
    pub ranks: Vec<Rank>,
    pub(super) pool: Pool,
    pub(super) running: Vec<Request>,
    pub(super) waiting: VecDeque<Request>,
    /// Aborted while something was being loaded into their blocks.
    pub(super) doomed: Vec<Request>,
    pub(super) flight: VecDeque<Step>,
    pub(super) preempted: Vec<String>,
    /// Reports of loads by request, one from each rank.
    pub(super) reports: HashMap<String, Vec<LoadDone>>,
    pub(super) step: u32,
    pub(super) arrived: u32,
    /// Tokens of requests that ended, for others to go on from.
    pub(super) history: Vec<(Vec<u32>, Inputs)>,
    /// How often the weights changed.
    pub(super) weights: u64,
    /// So far.
    pub stats: Stats,
}

impl Engine {
    /// A new engine. All engines of one world have one namespace, but not one memory.
    pub fn new(
        scenario: &Rc<Scenario>,
        number: u64,
        config: ClientConfig,
        model: &str,
    ) -> Result<Self, Failure> {
        let count = scenario.ranks[usize::try_from(number).expect("few engines") % scenario.ranks.len()];
        let shards =
            (0..count).map(|rank| ranks::shard(scenario, rank, count)).collect::<Result<Vec<_>, _>>()?;
        let layout = &shards[0].layout;
        let groups = (0..).zip(&scenario.groups).map(|(index, spec)| {
            let group = GroupIndex(index);
            let part = layout.parts(group)[0].part;
            let bytes = layout.block_bytes(group, part).expect("the layout has the group");
            let parts =
                if spec.recurrent() { count } else { if spec.heads == 0 { 1 } else { scenario.parts } };
            spec.describe(vec![bytes; parts as usize])
        });
        let descriptor = Descriptor {
            page_format: layout.page_format(),
            layout_fingerprint: layout.fingerprint(),
            ranks: RankGeometry {
                tensor_parallel: NonZeroU32::new(scenario.parts).expect("at least one part"),
                ..RankGeometry::SINGLE
            },
            ..fixture::descriptor(model, groups.collect())
        };
        let refused = |no: tender_client::ClientError| fail(format!("the client refuses: {no}"));
        let side = SchedulerSide::new(config.clone(), scenario.plan.clone()).map_err(refused)?;
        side.set_descriptor(descriptor.clone()).map_err(refused)?;
        let descriptor = Arc::new(descriptor);
        let rank = |shard: Shard| {
            let worker = ranks::worker(config.clone(), Arc::clone(&descriptor), &shard).map_err(refused)?;
            Ok(Rank { worker, memory: shard.memory })
        };
        Ok(Self {
            scenario: Rc::clone(scenario),
            number,
            rng: StdRng::seed_from_u64(mix(scenario.seed, 100 + number)),
            side,
            ranks: shards.into_iter().map(rank).collect::<Result<_, _>>()?,
            pool: Pool::new(scenario.pool_blocks),
            running: Vec::new(),
            waiting: VecDeque::new(),
            doomed: Vec::new(),
            flight: VecDeque::new(),
            preempted: Vec::new(),
            reports: HashMap::new(),
            step: 0,
            arrived: 0,
            history: Vec::new(),
            weights: 0,
            stats: Stats::default(),
        })
    }

    /// One step: what happens by chance, a schedule, and the pass that is due.
    pub fn tick(&mut self) -> Result<(), Failure> {
        self.step += 1;
        if self.arrived < self.scenario.requests && self.rng.random_bool(0.4) {
            self.arrive();
        }
        if self.chance(self.scenario.chances.forget) {
            self.pool.forget();
        }
        if self.chance(self.scenario.chances.abort) {
            self.abort_one();
        }
        // The device may be ahead of what the scheduler has heard.
        if self.scenario.asynchronous && self.rng.random_bool(0.5) {
            self.execute_next()?;
        }
        self.deliver_loads()?;
        let step = self.schedule()?;
        self.flight.push_back(step);
        while self.flight.len() > usize::from(self.scenario.asynchronous) {
            self.complete_next()?;
        }
        if !self.scenario.racing || self.rng.random_bool(0.1) {
            self.flush()?;
        }
        Ok(())
    }

    /// Completes every pass that was scheduled.
    pub fn drain(&mut self) -> Result<(), Failure> {
        while !self.flight.is_empty() {
            self.complete_next()?;
        }
        Ok(())
    }
    /// Nothing is left to do.
    pub fn idle(&self) -> bool {
        let passes = self.flight.iter().any(|step| !step.shares.is_empty());
        self.running.is_empty() && self.waiting.is_empty() && self.doomed.is_empty() && !passes
    }
    /// No more requests come.
    pub fn close(&mut self) {
        self.arrived = self.scenario.requests;
    }
    /// Waits until everything gathered is stored or skipped.
    pub fn flush(&self) -> Result<(), Failure> {
        let done = self.ranks.iter().all(|rank| rank.worker.flush(PATIENCE));
        if done { Ok(()) } else { Err(fail(format!("{}: stores do not end", self.name()))) }
    }
    /// Waits until all sides have a session.
    pub fn wait_until_up(&self) -> Result<(), Failure> {
        let up = self.side.wait_until_up(PATIENCE)
            && self.ranks.iter().all(|rank| rank.worker.wait_until_up(PATIENCE));
        if up {
            Ok(())
        } else {
            Err(fail(format!("{}: no session: {:?}", self.name(), self.side.counters())))
        }
    }
    /// In accounts.
    pub fn name(&self) -> String {
        format!("engine {} step {}", self.number, self.step)
    }
    pub(super) fn chance(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.rng.random_range(0..1000) < thousandths
    }

    fn abort_one(&mut self) {
        let (running, waiting) = (self.running.len(), self.waiting.len());
        if running + waiting == 0 {
            return;
        }
        let victim = self.rng.random_range(0..running + waiting);
        let request = if victim < running {
            self.running.remove(victim)
        } else {
            self.waiting.remove(victim - running).expect("it is there")
        };
        self.end(request, true);
    }
}
