//! One daemon and its engines, from the first step to the audit at the end.

use std::panic::catch_unwind;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_client::{Address, ClientConfig, TransportChoice};
use tokio::runtime::Runtime;

use super::engine::{Engine, PATIENCE, Stats};
use super::request::Request;
use super::scenario::Scenario;
use super::truth::mix;
use super::{Failure, fail};
use crate::conserve;
use crate::daemon::{Daemon, Setup};

/// More than any scenario's requests need to their end.
const STEPS_AT_ONCE: u32 = 4000;

/// Daemons of all worlds live on it.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
});

/// Runs a scenario from beginning to end. A panic on the way, of an audit for one, is a failure too.
pub fn run(scenario: &Scenario) -> Result<Stats, Failure> {
    let ran = catch_unwind(|| run_through(scenario));
    ran.unwrap_or_else(|panic| {
        let text =
            panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
        Err(fail(format!("a panic: {}", text.unwrap_or("of no words"))))
    })
}

fn run_through(scenario: &Scenario) -> Result<Stats, Failure> {
    let scenario = Rc::new(scenario.clone());
    let mut setup = Setup { arena_bytes: scenario.arena_bytes, ..Setup::default() };
    if scenario.parts > 1 {
        // A reset may reach one rank before its gather and another after: their chunk waits for its other part as long
        // as this.
        setup.reservation = Duration::from_secs(1);
    }
    let daemon = RUNTIME.block_on(Daemon::start(setup));
    let mut world = World { daemon: Some(daemon), engines: Vec::new(), scenario };
    let stats = world.play();
    world.engines.clear();
    let daemon = world.daemon.take().expect("it runs");
    if stats.is_ok() {
        RUNTIME
            .block_on(conserve::until(daemon.engine(), "all sessions are gone", |audit| audit.sessions == 0));
        // After a restart the daemon itself may still be reading what it holds.
        RUNTIME.block_on(conserve::quiet(daemon.engine()));
    }
    RUNTIME.block_on(daemon.stop());
    stats
}

struct World {
    daemon: Option<Daemon>,
    engines: Vec<Engine>,
    scenario: Rc<Scenario>,
}

impl World {
    fn play(&mut self) -> Result<Stats, Failure> {
        let scenario = Rc::clone(&self.scenario);
        let mut rng = StdRng::seed_from_u64(mix(scenario.seed, 2));
        for number in 0..scenario.engines {
            let engine = Engine::new(&scenario, u64::from(number), self.config(number), "oracle")?;
            engine.wait_until_up()?;
            self.engines.push(engine);
        }
        let happens = |rng: &mut StdRng, thousandths: u32| rng.random_range(0..1000) < thousandths;
        for _ in 0..scenario.steps {
            for engine in &mut self.engines {
                engine.tick()?;
            }
            if happens(&mut rng, scenario.chances.reset) {
                self.change_weights()?;
            }
            if happens(&mut rng, scenario.chances.drop) {
                let engine = rng.random_range(0..self.engines.len());
                self.engines[engine].reset()?;
            }
            if happens(&mut rng, scenario.chances.restart) {
                self.restart()?;
            }
        }
        self.finish()
    }

    fn config(&self, number: u32) -> ClientConfig {
        let daemon = self.daemon.as_ref().expect("it runs");
        let network = self.scenario.network && (u64::from(number) + self.scenario.seed).is_multiple_of(2);
        // A daemon that starts again has another port.
        let mut config = match daemon.tcp() {
            crate::raw::Target::Tcp(address) if network && self.scenario.chances.restart == 0 => {
                let address: Address = format!("tcp://{address}").parse().expect("an address");
                crate::daemon::client_config(address, TransportChoice::Auto)
            }
            _ => daemon.client_config(if network { TransportChoice::Grpc } else { TransportChoice::Shm }),
        };
        if self.scenario.racing {
            config.step_budget = Duration::from_millis(1);
        } else {
            config.store_threads = 1;
            config.load_threads = 1;
        }
        config.staging_bytes = bytesize::ByteSize::kib(if self.scenario.tight { 16 } else { 2048 });
        if self.scenario.hurried {
            config.load_deadline = Duration::from_micros(1500);
        }
        config
    }

    /// The model gets new weights, in all engines: nothing stored before is right any more.
    fn change_weights(&mut self) -> Result<(), Failure> {
        for engine in &mut self.engines {
            engine.settle_loads()?;
        }
        for engine in &mut self.engines {
            engine.change_weights()?;
        }
        // Often the workers hear of it before the steps that are on their way.
        std::thread::sleep(Duration::from_millis(3));
        Ok(())
    }

    /// The daemon stops and comes back with what it held.
    fn restart(&mut self) -> Result<(), Failure> {
        let sessions: Vec<_> = self.engines.iter().map(Engine::sessions).collect();
        let daemon = self.daemon.take().expect("it runs");
        self.daemon = Some(RUNTIME.block_on(daemon.restart()));
        if self.scenario.racing {
            // They find it by and by.
            return Ok(());
        }
        let give_up = Instant::now() + PATIENCE;
        for (engine, before) in self.engines.iter().zip(sessions) {
            while engine.sessions().iter().zip(&before).any(|(now, before)| now <= before) {
                if Instant::now() > give_up {
                    return Err(fail(format!("{}: no session after a restart", engine.name())));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            engine.wait_until_up()?;
        }
        Ok(())
    }

    /// All requests run to their end; then nothing may be left anywhere.
    fn finish(&mut self) -> Result<Stats, Failure> {
        let mut stats = Stats::default();
        for engine in &mut self.engines {
            engine.close();
            let (mut steps, begun) = (0, Instant::now());
            while !engine.idle() {
                engine.tick()?;
                steps += 1;
                if steps <= STEPS_AT_ONCE {
                    continue;
                }
                // Steps without work are quick, and a request may be waiting for a daemon that is slow.
                std::thread::sleep(Duration::from_millis(1));
                if begun.elapsed() > PATIENCE {
                    return Err(fail(format!("{}: requests never end: {}", engine.name(), engine.left())));
                }
            }
            // What became final by finishing goes out with one more step.
            engine.tick()?;
            engine.drain()?;
            engine.flush()?;
            engine.check_counters()?;
            stats.add(&engine.stats);
        }
        RUNTIME.block_on(conserve::quiet(self.daemon.as_ref().expect("it runs").engine()));
        Ok(stats)
    }
}

impl Stats {
    /// Sums.
    pub fn add(&mut self, other: &Self) {
        self.finished += other.finished;
        self.loaded_tokens += other.loaded_tokens;
        self.failed_loads += other.failed_loads;
        self.read_slots += other.read_slots;
        self.preemptions += other.preemptions;
        self.rejected_drafts += other.rejected_drafts;
    }
}

impl Engine {
    /// Sessions that each side opened so far.
    fn sessions(&self) -> Vec<u64> {
        let workers = self.ranks.iter().map(|rank| rank.worker.counters().sessions);
        std::iter::once(self.side.counters().sessions).chain(workers).collect()
    }

    fn reset(&mut self) -> Result<(), Failure> {
        self.pool.forget();
        let give_up = Instant::now() + PATIENCE;
        while !self.side.reset() {
            if Instant::now() > give_up {
                return Err(fail(format!("{}: the reset is not heard", self.name())));
            }
        }
        Ok(())
    }

    fn change_weights(&mut self) -> Result<(), Failure> {
        self.weights += 1;
        self.reset()?;
        // Some engines begin their requests anew, others let them end under the old weights.
        if self.rng.random_bool(0.5) {
            while let Some(request) = self.running.pop() {
                self.preempt(request);
            }
        }
        Ok(())
    }

    /// Who is still there.
    fn left(&self) -> String {
        let all = self.running.iter().chain(&self.waiting).chain(&self.doomed);
        let one = |request: &Request| {
            let Request { id, phase, computed, placeholders, limit, stop, prompt, tokens, .. } = request;
            let known = tokens.len();
            format!(
                "{id} {phase:?} prompt {prompt} known {known} computed {computed} + {placeholders}, {limit}/{stop}; "
            )
        };
        let free = self.pool.free_blocks();
        all.map(one).chain([format!("{free} blocks free, {} in flight", self.flight.len())]).collect()
    }

    /// What must be true of the client's own numbers.
    fn check_counters(&self) -> Result<(), Failure> {
        let plan = self.side.plan_counters();
        let wrong = |what: &str| Err(fail(format!("{}: {what}: {plan:?}", self.name())));
        if self.pool.held_blocks() > 0 {
            return wrong("blocks are held by nobody");
        }
        if plan.unknown_requests + plan.replaced_requests + plan.short_block_tables > 0 {
            return wrong("the planner did not understand the engine");
        }
        let sides =
            std::iter::once(self.side.counters()).chain(self.ranks.iter().map(|rank| rank.worker.counters()));
        for counters in sides {
            let skipped = [
                "bad_blocks",
                "malformed",
                "wrong_size",
                "bad_digest",
                "not_covered",
                "internal",
                "disabled",
            ];
            let failed = ["bad_digest", "malformed", "wrong_size", "internal"];
            let bad = counters.panics + counters.bad_plans > 0
                || skipped.iter().any(|reason| counters.stores_skipped.contains_key(*reason))
                || failed.iter().any(|reason| counters.load_failures.contains_key(*reason));
            if bad {
                return Err(fail(format!("{}: what must not happen was counted: {counters:?}", self.name())));
            }
        }
        Ok(())
    }
}
