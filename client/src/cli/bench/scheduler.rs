//! What a step of an engine costs in the scheduler: 256 requests that each decode one token.

use std::time::{Duration, Instant};

use super::memory::EngineMemory;
use super::report::{Goal, Row, Unit, percentile};
use super::{Scene, failed};
use crate::config::ClientConfig;
use crate::error::ClientError;
use crate::hash::RequestInputs;
use crate::plan::{BlockUpdate, PlanConfig, ScheduledRequest, StepInput};
use crate::scheduler::{Match, SchedulerSide};

const REQUESTS: u32 = 256;
const GOAL: Goal = Goal::LessThan(1_000.0);
/// Of the shortest prompt. Each is one token longer than the one before, so that in each step one of them fills a chunk.
const PROMPT_TOKENS: u32 = 1024;
const TOKENS_PER_BLOCK: u32 = super::memory::TOKENS_PER_BLOCK;
/// Before what counts: the first steps plan the prompts.
const FIRST_STEPS: u32 = 20;
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn measure(scene: &Scene) -> Result<Vec<Row>, ClientError> {
    // For its descriptor: a scheduler touches no memory.
    let memory = EngineMemory::new(1 << 20, 1 << 20)?;
    let scheduler = SchedulerSide::new(ClientConfig::new(scene.daemon.local.clone()), PlanConfig::default())?;
    scheduler.set_descriptor((*memory.descriptor).clone())?;
    if !scheduler.wait_until_up(PATIENCE) {
        return Err(failed("a session", "no answer"));
    }
    admit(&scheduler)?;
    let mut micros = Vec::new();
    let steps = u32::try_from(scene.sizes.steps).unwrap_or(u32::MAX);
    for step in 0..FIRST_STEPS + steps {
        // Making the input is the engine's and Python's work.
        let input =
            StepInput { requests: (0..REQUESTS).map(|n| decode(n, step)).collect(), preempted: Vec::new() };
        let start = Instant::now();
        std::hint::black_box(scheduler.step(input));
        if step >= FIRST_STEPS {
            micros.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    let counters = scheduler.plan_counters();
    if counters.stores == 0 || counters.unknown_requests > 0 {
        return Err(failed("a step", format!("nothing was planned: {counters:?}")));
    }
    let row = |micros: &mut [f64], percent| {
        let name = format!("scheduler's step, {REQUESTS} running requests, p{percent}");
        Row::told(name, percentile(micros, percent), Unit::Micros)
    };
    Ok(vec![row(&mut micros, 50).goal(GOAL), row(&mut micros, 99)])
}

/// Every request asks what is stored of its prompt, gets its blocks, and computes its prompt.
fn admit(scheduler: &SchedulerSide) -> Result<(), ClientError> {
    let mut requests = Vec::new();
    for n in 0..REQUESTS {
        let (id, tokens) = (id(n), prompt(n));
        let blocks =
            BlockUpdate::Replace(vec![(0..tokens.len().div_ceil(16)).map(|block| table(n, block)).collect()]);
        scheduler.new_request(&id, tokens.len() as u64, Ok(RequestInputs::default()));
        let give_up = Instant::now() + PATIENCE;
        while scheduler.match_prefix(&id, &tokens, 0) == Match::Later {
            if Instant::now() > give_up {
                return Err(failed("a lookup", "no answer"));
            }
            scheduler.step(StepInput::default());
        }
        let BlockUpdate::Replace(tables) = &blocks else { continue };
        scheduler.allocated(&id, tables, 0);
        requests.push(ScheduledRequest {
            id,
            computed_tokens: 0,
            scheduled_tokens: tokens.len() as u64,
            new_tokens: Vec::new(),
            blocks,
            states: Vec::new(),
        });
    }
    scheduler.step(StepInput { requests, preempted: Vec::new() });
    Ok(())
}

/// A request's part in a step: the token of the step before becomes known and is computed.
fn decode(n: u32, step: u32) -> ScheduledRequest {
    let computed = prompt_tokens(n) + step;
    let opens_block = computed.is_multiple_of(TOKENS_PER_BLOCK);
    let new = opens_block.then(|| table(n, (computed / TOKENS_PER_BLOCK) as usize));
    ScheduledRequest {
        id: id(n),
        computed_tokens: computed.into(),
        scheduled_tokens: 1,
        new_tokens: vec![computed],
        blocks: BlockUpdate::Append(vec![new.into_iter().collect()]),
        states: Vec::new(),
    }
}

fn prompt_tokens(n: u32) -> u32 {
    PROMPT_TOKENS + n
}

/// No two requests begin alike.
fn prompt(n: u32) -> Vec<u32> {
    (0..prompt_tokens(n)).map(|token| token + n).collect()
}

fn id(n: u32) -> String {
    format!("cmpl-bench-{n:08x}")
}

/// The block that a request has at this place of its table.
fn table(n: u32, at: usize) -> u32 {
    1 + n + REQUESTS * u32::try_from(at).unwrap_or(0)
}
