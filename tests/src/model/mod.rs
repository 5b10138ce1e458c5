//! A model engine: a scheduler with a block pool, a worker with paged memory, and the real client sides between
//! them and a daemon. Before every forward pass "attention" looks at every slot it would read; a slot that does
//! not hold exactly what a forward pass wrote for these tokens is a failure.

mod memory;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use std::sync::Mutex;

use tender_client::hash::RequestInputs;
use tender_client::layout::prove;
use tender_client::plan::{BlockUpdate, Finish, PlanConfig, ScheduledRequest, StepInput};
use tender_client::{ClientConfig, Counters, LoadDone, Match, SchedulerSide, WorkerSide};
use tender_proto::{ChunkId, Descriptor, GroupIndex, PartIndex};

use crate::fixture;
use crate::stall::Watch;
pub use memory::{Memory, POISON, Prefixes, Shape};

/// Longer than any load or connection takes; a wait that needs more is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// One request inside the engine.
#[derive(Clone, Debug)]
pub struct Active {
    /// Its name.
    pub id: String,
    /// All its tokens so far.
    pub tokens: Vec<u32>,
    /// Its block table.
    pub blocks: Vec<u32>,
    /// Tokens whose KV is there.
    pub computed: usize,
    prompt_tokens: usize,
    prefixes: Prefixes,
    given_tokens: usize,
    given_blocks: usize,
}

/// What became of a whole request.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Run {
    /// Tokens that came from the daemon.
    pub loaded_tokens: usize,
    /// Tokens that were promised and had to be computed after all.
    pub failed_tokens: usize,
}

/// The engine.
#[derive(Debug)]
pub struct ModelEngine {
    /// Its worker's half of the client. Dropped before the memory it copies from and into.
    pub worker: WorkerSide,
    /// Its KV memory.
    pub memory: Memory,
    /// Its scheduler's half.
    pub scheduler: SchedulerSide,
    /// How long each kind of call kept it waiting.
    pub watch: Watch,
    descriptor: Arc<Descriptor>,
    pool: Mutex<Pool>,
}

#[derive(Debug)]
struct Pool {
    free: Vec<u32>,
    // Freed since the last step: their old bytes may still be read until the next step has begun.
    freed: Vec<u32>,
}

impl ModelEngine {
    /// The default shape.
    pub fn new(config: ClientConfig, model: &str) -> Self {
        Self::with_shape(config, model, Shape::default())
    }

    /// Another shape.
    pub fn with_shape(config: ClientConfig, model: &str, shape: Shape) -> Self {
        let memory = Memory::new(shape);
        let layout = Arc::new(prove(memory.describe(), shape.pool_blocks).expect("a provable layout"));
        assert_eq!(layout.block_bytes(GroupIndex(0), PartIndex(0)), Some(shape.block_bytes()));
        let group = fixture::group(shape.tokens_per_block, shape.blocks_per_chunk, &[shape.block_bytes()]);
        let descriptor = Arc::new(Descriptor {
            page_format: layout.page_format(),
            layout_fingerprint: layout.fingerprint(),
            ..fixture::descriptor(model, vec![group])
        });
        let scheduler = SchedulerSide::new(config.clone(), PlanConfig::default()).expect("a scheduler side");
        scheduler.set_descriptor((*descriptor).clone()).expect("a descriptor that can be planned for");
        let worker = WorkerSide::new(config, descriptor.clone(), layout).expect("a worker side");
        let free = (1..shape.pool_blocks).rev().collect();
        let pool = Mutex::new(Pool { free, freed: Vec::new() });
        Self { memory, scheduler, worker, watch: Watch::default(), descriptor, pool }
    }

    /// What its chunks are stored under.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }
    /// Waits until both sides have a session.
    pub fn wait_until_up(&self) {
        assert!(self.scheduler.wait_until_up(PATIENCE), "no session: {:?}", self.counters());
        assert!(self.worker.wait_until_up(PATIENCE), "no session: {:?}", self.counters());
    }
    /// Waits until everything gathered is stored or skipped.
    pub fn flush(&self) {
        assert!(self.worker.flush(PATIENCE), "stores did not end: {:?}", self.counters());
    }
    /// Both sides' numbers: scheduler, worker.
    pub fn counters(&self) -> (Counters, Counters) {
        (self.scheduler.counters(), self.worker.counters())
    }
    /// Keys of all whole chunks of these tokens.
    pub fn keys(&self, tokens: &[u32]) -> Vec<ChunkId> {
        crate::keys::chunks_of(tokens, self.memory.shape().tokens_per_chunk() as u64)
    }

    /// A request comes in.
    pub fn arrive(&self, id: &str, tokens: &[u32]) -> Active {
        let inputs = Ok(RequestInputs::default());
        self.watch.time("new_request", || self.scheduler.new_request(id, tokens.len() as u64, inputs));
        Active {
            id: id.into(),
            tokens: tokens.to_vec(),
            blocks: Vec::new(),
            computed: 0,
            prompt_tokens: tokens.len(),
            prefixes: Prefixes::of(tokens),
            given_tokens: 0,
            given_blocks: 0,
        }
    }

    /// How many tokens beyond the computed ones the daemon holds for it.
    pub fn look(&self, request: &mut Active) -> usize {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let found = self.watch.time("match_prefix", || {
                self.scheduler.match_prefix(&request.id, &request.tokens, request.computed as u64)
            });
            request.given_tokens = request.tokens.len();
            match found {
                Match::Hit(tokens) => return usize::try_from(tokens).expect("fits"),
                Match::None => return 0,
                Match::Later => assert!(Instant::now() < give_up, "'later' for ever"),
            }
            self.step(&mut []);
        }
    }

    /// Gives the request blocks for all its tokens and tells how many tokens will be loaded into them. `Err` when
    /// the pool is too small.
    pub fn allocate(&self, request: &mut Active, external_tokens: usize) -> Result<(), PoolIsFull> {
        self.grow(request)?;
        let external = external_tokens as u64;
        let table = std::slice::from_ref(&request.blocks);
        self.watch.time("allocated", || self.scheduler.allocated(&request.id, table, external));
        Ok(())
    }

    fn grow(&self, request: &mut Active) -> Result<(), PoolIsFull> {
        let needed = request.tokens.len().div_ceil(self.memory.shape().tokens_per_block as usize);
        let mut pool = self.pool.lock().expect("no panic while it is held");
        let missing = needed.saturating_sub(request.blocks.len());
        let from = pool.free.len().checked_sub(missing).ok_or(PoolIsFull)?;
        request.blocks.extend(pool.free.drain(from..));
        Ok(())
    }

    /// Begins the loads that were allocated, waits for them and takes over what came.
    pub fn load(&self, request: &mut Active, external_tokens: usize) -> Run {
        self.step(&mut []);
        let done = self.await_load(&request.id);
        self.take_load(request, external_tokens, &done)
    }

    /// Waits for the report of this request's load. Exactly one comes.
    pub fn await_load(&self, id: &str) -> LoadDone {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let reports = self.watch.time("poll", || self.worker.poll());
            if let Some(done) = reports.into_iter().find(|done| done.request == id) {
                self.watch.time("loads_finished", || self.scheduler.loads_finished(&[id.to_owned()]));
                return done;
            }
            assert!(Instant::now() < give_up, "the load of {id} was never reported: {:?}", self.counters());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// What came counts as computed, up to the first block that failed.
    pub fn take_load(&self, request: &mut Active, external_tokens: usize, done: &LoadDone) -> Run {
        let tokens = self.memory.shape().tokens_per_block as usize;
        let failed: HashSet<_> = done.failed_blocks.iter().collect();
        let promised = request.computed + external_tokens;
        let first_failed = request.blocks.iter().position(|block| failed.contains(block));
        let good = first_failed.map_or(promised, |block| (block * tokens).clamp(request.computed, promised));
        let run = Run { loaded_tokens: good - request.computed, failed_tokens: promised - good };
        request.computed = good;
        run
    }

    /// One engine step: plan, gather what ended, forward pass, gather what it made final. Each entry is a request
    /// and how many of its tokens the step computes.
    pub fn step(&self, batch: &mut [(&mut Active, usize)]) {
        self.step_with(batch, || {});
    }

    /// The same with something that happens inside the forward pass, before its writes.
    pub fn step_with(&self, batch: &mut [(&mut Active, usize)], device_delay: impl Fn()) {
        let plan = self.plan(batch);
        self.watch.time("begin_step", || self.worker.begin_step(&plan));
        self.poison_freed();
        for (request, count) in batch.iter() {
            device_delay();
            self.forward(request, *count);
        }
        self.watch.time("end_step", || self.worker.end_step(&plan));
        for (request, count) in batch {
            request.computed += *count;
        }
    }

    /// The plan of a step, not yet carried out.
    pub fn plan(&self, batch: &mut [(&mut Active, usize)]) -> Vec<u8> {
        let requests = batch
            .iter_mut()
            .map(|(request, count)| {
                self.grow(request).expect("blocks for a scheduled request");
                let new_tokens = request.tokens[request.given_tokens..].to_vec();
                let new_blocks = vec![request.blocks[request.given_blocks..].to_vec()];
                let blocks = match request.given_blocks {
                    0 => BlockUpdate::Replace(new_blocks),
                    _ => BlockUpdate::Append(new_blocks),
                };
                request.given_tokens = request.tokens.len();
                request.given_blocks = request.blocks.len();
                ScheduledRequest {
                    id: request.id.clone(),
                    computed_tokens: request.computed as u64,
                    scheduled_tokens: *count as u64,
                    new_tokens,
                    blocks,
                    states: Vec::new(),
                }
            })
            .collect();
        let input = StepInput { requests, preempted: Vec::new() };
        self.watch.time("step", || self.scheduler.step(input))
    }

    /// Looks at everything attention reads, then writes `count` positions.
    pub fn forward(&self, request: &Active, count: usize) {
        for position in 0..request.computed {
            assert!(
                self.memory.is_right(&request.blocks, &request.prefixes, position),
                "request {}: attention reads a wrong slot at position {position} of {} (block {})",
                request.id,
                request.computed,
                request.blocks[position / self.memory.shape().tokens_per_block as usize],
            );
        }
        for position in request.computed..request.computed + count {
            self.memory.write(&request.blocks, &request.prefixes, position);
        }
    }

    /// A token was sampled; its KV is not there yet.
    pub fn sample(&self, request: &mut Active, token: u32) {
        request.tokens.push(token);
        request.prefixes = Prefixes::of(&request.tokens);
    }

    /// The request is over. Its blocks are free at once.
    pub fn finish(&self, request: Active, aborted: bool) {
        let finish = Finish {
            num_tokens: request.tokens.len() as u64,
            prompt_tokens: request.prompt_tokens as u64,
            computed_tokens: request.computed as u64,
            aborted,
            blocks: if request.blocks.is_empty() { Vec::new() } else { vec![request.blocks.clone()] },
            tail_tokens: request.tokens[request.given_tokens..].to_vec(),
        };
        self.watch.time("finished", || self.scheduler.finished(&request.id, finish));
        let mut pool = self.pool.lock().expect("no panic while it is held");
        for block in request.blocks {
            if !pool.free.contains(&block) {
                pool.freed.push(block);
                pool.free.push(block);
            }
        }
    }

    fn poison_freed(&self) {
        let mut pool = self.pool.lock().expect("no panic while it is held");
        let Pool { free, freed } = &mut *pool;
        let still_free: HashSet<_> = free.iter().collect();
        for block in freed.drain(..) {
            if still_free.contains(&block) {
                self.memory.fill(block, POISON);
            }
        }
    }

    /// A whole request: lookup, load, chunked prefill, two sampled tokens, end.
    pub fn run(&self, id: &str, prompt: &[u32]) -> Run {
        let mut request = self.arrive(id, prompt);
        let hit = self.look(&mut request);
        self.allocate(&mut request, hit).expect("a pool that is large enough");
        let run = if hit > 0 { self.load(&mut request, hit) } else { Run::default() };
        while request.computed < request.tokens.len() {
            let count = (request.tokens.len() - request.computed).min(24);
            self.step(&mut [(&mut request, count)]);
            if request.computed == request.tokens.len() && request.tokens.len() < prompt.len() + 2 {
                let next = u32::try_from(request.tokens.len()).expect("fits") ^ 0x5555;
                self.sample(&mut request, next);
            }
        }
        self.finish(request, false);
        // What became final by finishing is gathered in the next step.
        self.step(&mut []);
        run
    }
}

/// The block pool has no room for the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolIsFull;
