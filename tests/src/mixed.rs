//! An engine of several groups and ranks that does exactly what a test says: real planner, layout gate and workers, over
//! memory whose every slot names what it must hold. For cases that are told step by step; the random ones are the
//! [`oracle`](crate::oracle)'s.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tender_client::hash::RequestInputs;
use tender_client::layout::{GroupShard, ProvedLayout, Writer, prove};
use tender_client::plan::{
    BlockUpdate, Finish, PlanConfig, ScheduledRequest, StateHandoff, StepInput, StepPlan,
};
use tender_client::{ClientConfig, LoadDone, Match, SchedulerSide, TransportChoice, WorkerSide};
use tender_proto::{Descriptor, GroupIndex, GroupKind};

use crate::daemon::Daemon;
use crate::fixture;
use crate::oracle::groups::{GroupSpec, TensorShape};
use crate::oracle::memory::{Memory, Spot};
use crate::oracle::place::Arrangement;
use crate::oracle::truth::Truth;

/// Longer than any load or connection takes; a wait that needs more is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a block holds that nobody owns.
const POISON: u64 = 0x0dea_d0b1_0c00_0000;

/// Block tables, one for each group.
pub type Tables = Vec<Vec<u32>>;

/// A group of two layers, four heads (latents have none), chunks of `blocks_per_chunk` blocks.
pub fn group(kind: GroupKind, tokens_per_block: usize, blocks_per_chunk: u32) -> GroupSpec {
    GroupSpec {
        kind,
        tokens_per_block,
        blocks_per_chunk,
        window: 0,
        retained: 0,
        lookahead: 0,
        layers: 2,
        heads: if kind == GroupKind::MlaLatent { 0 } else { 4 },
        cell_bytes: 16,
        side: false,
        heads_first: true,
    }
}

/// Full attention.
pub fn full(tokens_per_block: usize, blocks_per_chunk: u32) -> GroupSpec {
    group(GroupKind::FullAttention, tokens_per_block, blocks_per_chunk)
}

/// A sliding window of so many tokens, the query's own included.
pub fn sliding(tokens_per_block: usize, blocks_per_chunk: u32, window: usize) -> GroupSpec {
    GroupSpec { window, ..group(GroupKind::SlidingWindow, tokens_per_block, blocks_per_chunk) }
}

/// A state at every `tokens_per_block` tokens.
pub fn states(tokens_per_block: usize) -> GroupSpec {
    group(GroupKind::Recurrent, tokens_per_block, 1)
}

/// One request's part in a step, without the words that never change.
pub fn scheduled(
    id: &str,
    computed: usize,
    count: usize,
    new: Vec<u32>,
    tables: &Tables,
) -> ScheduledRequest {
    ScheduledRequest {
        id: id.into(),
        computed_tokens: computed as u64,
        scheduled_tokens: count as u64,
        new_tokens: new,
        blocks: BlockUpdate::Replace(tables.clone()),
        states: Vec::new(),
    }
}

/// One rank.
#[derive(Debug)]
pub struct Rank {
    /// Dropped before the memory that it copies from and into.
    pub worker: WorkerSide,
    /// Its KV memory.
    pub memory: Memory,
    reports: Mutex<Vec<LoadDone>>,
}

/// The engine.
#[derive(Debug)]
pub struct Mixed {
    /// All ranks.
    pub ranks: Vec<Rank>,
    /// Its scheduler's half of the client.
    pub scheduler: SchedulerSide,
    specs: Vec<GroupSpec>,
    descriptor: Arc<Descriptor>,
}

impl Mixed {
    /// An engine of these groups on so many ranks, with a pool of 64 blocks. Heads are split among the ranks; latents
    /// are the same on all of them.
    pub fn new(config: &ClientConfig, model: &str, specs: &[GroupSpec], ranks: u32) -> Self {
        let shapes = specs.iter().map(|spec| spec.tensors(spec.heads / ranks)).collect();
        Self::with_tensors(config, model, specs, shapes, ranks)
    }

    /// The same, its chunks cut into so many parts, a multiple of its ranks, whatever those are: what it stores is for
    /// engines of other sizes too. With `scales`, every cell has its own at its end.
    pub fn sharing(
        config: &ClientConfig,
        model: &str,
        specs: &[GroupSpec],
        ranks: u32,
        parts: u32,
        scales: bool,
    ) -> Self {
        let shapes = specs.iter().map(|spec| spec.tensors(spec.heads / ranks)).collect();
        Self::build(config, model, specs, shapes, Cut { ranks, parts, scales })
    }

    /// The same with other tensors for each group.
    pub fn with_tensors(
        config: &ClientConfig,
        model: &str,
        specs: &[GroupSpec],
        shapes: Vec<Vec<TensorShape>>,
        ranks: u32,
    ) -> Self {
        Self::build(config, model, specs, shapes, Cut { ranks, parts: ranks, scales: false })
    }

    fn build(
        config: &ClientConfig,
        model: &str,
        specs: &[GroupSpec],
        shapes: Vec<Vec<TensorShape>>,
        cut: Cut,
    ) -> Self {
        let built: Vec<_> = (0..cut.ranks).map(|rank| memory(specs, &shapes, rank, cut)).collect();
        let descriptor = Arc::new(describe(model, specs, &built[0].1, cut.parts));
        let scheduler = SchedulerSide::new(config.clone(), PlanConfig::default()).expect("a scheduler side");
        scheduler.set_descriptor((*descriptor).clone()).expect("a descriptor that can be planned for");
        let rank = |(memory, layout): (Memory, ProvedLayout)| {
            let worker = WorkerSide::new(config.clone(), descriptor.clone(), Arc::new(layout));
            Rank { worker: worker.expect("a worker side"), memory, reports: Mutex::default() }
        };
        let ranks = built.into_iter().map(rank).collect();
        let mixed = Self { ranks, scheduler, specs: specs.to_vec(), descriptor };
        assert!(mixed.scheduler.wait_until_up(PATIENCE), "no session: {:?}", mixed.scheduler.counters());
        for Rank { worker, .. } in &mixed.ranks {
            assert!(worker.wait_until_up(PATIENCE), "no session: {:?}", worker.counters());
        }
        mixed.poison_all();
        mixed
    }

    /// What its chunks are stored under.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Checks that tokens `range` are right in every group, on every rank.
    pub fn check(&self, truth: &mut Truth, tables: &Tables, range: Range<usize>, what: &str) {
        for (group, table) in tables.iter().enumerate() {
            assert_eq!(self.wrong(truth, group, table, range.clone()), None, "{what}: group {group}");
        }
    }
    /// Writes what nobody expects into a block of every group.
    pub fn poison(&self, block: u32) {
        self.ranks.iter().for_each(|rank| rank.memory.poison(block, POISON));
    }
    /// The same for all blocks.
    pub fn poison_all(&self) {
        (0..POOL_BLOCKS).for_each(|block| self.poison(block));
    }
    /// Whether nobody wrote into these blocks of a group since they were poisoned, on any rank.
    pub fn untouched(&self, group: usize, blocks: &[u32]) -> bool {
        let slots = if self.specs[group].recurrent() { 1 } else { self.specs[group].tokens_per_block };
        let holds = |block: u32, slot| {
            self.ranks.iter().all(|rank| rank.memory.holds(Spot { group, block, slot }, POISON))
        };
        blocks.iter().all(|&block| (0..slots).all(|slot| holds(block, slot)))
    }

    /// Visits the slots that tokens `range` of a request have in a group, and the states that end there, with the
    /// fingerprint that each must hold.
    fn each_slot(
        &self,
        truth: &mut Truth,
        group: usize,
        table: &[u32],
        range: Range<usize>,
        mut visit: impl FnMut(Spot, u64),
    ) {
        let spec = &self.specs[group];
        for position in range {
            let (index, slot) = (position / spec.tokens_per_block, position % spec.tokens_per_block);
            let block = table.get(index).copied().unwrap_or(0);
            let last = slot + 1 == spec.tokens_per_block;
            if block == 0 || spec.recurrent() && !last {
                continue;
            }
            let slot = if spec.recurrent() { 0 } else { slot };
            visit(Spot { group, block, slot }, truth.first(position + 1 + spec.lookahead));
        }
    }

    /// A forward pass over tokens `range` of a request: writes every slot that its tables name.
    pub fn pass(&self, truth: &mut Truth, tables: &Tables, range: Range<usize>) {
        for (group, table) in tables.iter().enumerate() {
            self.each_slot(truth, group, table, range.clone(), |spot, fingerprint| {
                self.ranks.iter().for_each(|rank| rank.memory.write(spot, fingerprint));
            });
        }
    }
    /// The first position of `range` whose slot (or state) in a group is not what that pass would have written, on any
    /// rank; `None` when all are right. There must be something to look at.
    pub fn wrong(
        &self,
        truth: &mut Truth,
        group: usize,
        table: &[u32],
        range: Range<usize>,
    ) -> Option<String> {
        let (mut seen, mut wrong) = (0, None);
        self.each_slot(truth, group, table, range, |spot, fingerprint| {
            seen += 1;
            let bad = self.ranks.iter().position(|rank| !rank.memory.holds(spot, fingerprint));
            if let (Some(rank), None) = (bad, &wrong) {
                wrong = Some(format!("rank {rank}, {spot:?}: {:02x?}", self.ranks[rank].memory.look(spot)));
            }
        });
        assert!(seen > 0, "nothing was looked at");
        wrong
    }

    /// Carries a plan out on some ranks.
    pub fn carry_out_on(&self, ranks: &[usize], plan: &StepPlan, pass: impl FnOnce()) {
        let plan = plan.encode();
        ranks.iter().for_each(|&rank| self.ranks[rank].worker.begin_step(&plan));
        pass();
        ranks.iter().for_each(|&rank| self.ranks[rank].worker.end_step(&plan));
    }
    /// Carries a plan out on all ranks.
    pub fn carry_out(&self, plan: &StepPlan, pass: impl FnOnce()) {
        let all: Vec<_> = (0..self.ranks.len()).collect();
        self.carry_out_on(&all, plan, pass);
    }
    /// Waits until everything gathered is stored or skipped.
    pub fn flush(&self) {
        for Rank { worker, .. } in &self.ranks {
            assert!(worker.flush(PATIENCE), "stores did not end: {:?}", worker.counters());
        }
    }

    /// A request comes in.
    pub fn arrive(&self, id: &str, prompt_tokens: usize) {
        self.arrive_with(id, prompt_tokens, RequestInputs::default());
    }
    /// A request comes in with something besides tokens.
    pub fn arrive_with(&self, id: &str, prompt_tokens: usize, inputs: RequestInputs) {
        self.scheduler.new_request(id, prompt_tokens as u64, Ok(inputs));
    }
    /// The plan of a step.
    pub fn plan(&self, requests: Vec<ScheduledRequest>) -> StepPlan {
        let plan = self.scheduler.step(StepInput { requests, preempted: Vec::new() });
        StepPlan::decode(&plan).expect("a plan that can be read")
    }
    /// Tokens beyond `computed` that are promised to a request.
    pub fn look(&self, id: &str, tokens: &[u32], computed: usize) -> usize {
        let give_up = Instant::now() + PATIENCE;
        loop {
            match self.scheduler.match_prefix(id, tokens, computed as u64) {
                Match::Hit(beyond) => return usize::try_from(beyond).expect("fits"),
                Match::None => return 0,
                Match::Later => assert!(Instant::now() < give_up, "'later' for ever"),
            }
            // A new step, a new time to wait.
            assert!(self.plan(Vec::new()).is_empty(), "nothing is due");
        }
    }
    /// Tokens promised to a request that comes for nothing else, and whose promise ends with it.
    pub fn would_hit(&self, id: &str, tokens: &[u32]) -> usize {
        self.arrive(id, tokens.len());
        let beyond = self.look(id, tokens, 0);
        self.finish(id, tokens.len(), 0, &Vec::new(), true);
        beyond
    }
    /// The engine takes so much of a promise into these tables; the plan that loads it.
    pub fn take(&self, id: &str, tables: &Tables, tokens: usize) -> StepPlan {
        self.scheduler.allocated(id, tables, tokens as u64);
        self.plan(Vec::new())
    }
    /// Waits for every rank's report of a load. Exactly one comes from each; those of other loads are kept for whoever
    /// asks for them.
    pub fn await_load(&self, id: &str) -> Vec<LoadDone> {
        let give_up = Instant::now() + PATIENCE;
        let one = |rank: &Rank| loop {
            let mut reports = rank.reports.lock().expect("no panic while it is held");
            reports.extend(rank.worker.poll());
            if let Some(at) = reports.iter().position(|done| done.request == id) {
                break reports.remove(at);
            }
            drop(reports);
            assert!(Instant::now() < give_up, "the load of {id} was never reported");
            std::thread::sleep(Duration::from_micros(200));
        };
        let done = self.ranks.iter().map(one).collect();
        self.scheduler.loads_finished(&[id.to_owned()]);
        done
    }
    /// Whether some rank has reported a load that nobody has waited for.
    pub fn more_reports(&self) -> bool {
        let any = |rank: &Rank| {
            let mut reports = rank.reports.lock().expect("no panic while it is held");
            reports.extend(rank.worker.poll());
            !reports.is_empty()
        };
        self.ranks.iter().any(any)
    }
    /// Looks, takes all of it, and waits: the tokens that were loaded, by all ranks. A failure is a panic.
    pub fn load(&self, id: &str, tokens: &[u32], computed: usize, tables: &Tables) -> usize {
        let beyond = self.look(id, tokens, computed);
        assert!(beyond > 0, "{id}: no hit");
        let plan = self.take(id, tables, beyond);
        self.carry_out(&plan, || ());
        for done in self.await_load(id) {
            assert!(!done.failed && done.failed_blocks.is_empty(), "{done:?}");
        }
        beyond
    }
    /// A request ends; what became final by that goes out with the next plan.
    pub fn finish(&self, id: &str, num_tokens: usize, computed: usize, tables: &Tables, aborted: bool) {
        let finish = Finish {
            num_tokens: num_tokens as u64,
            prompt_tokens: num_tokens as u64,
            computed_tokens: computed as u64,
            aborted,
            blocks: tables.clone(),
            tail_tokens: Vec::new(),
        };
        self.scheduler.finished(id, finish);
    }

    /// A request that computes `count` tokens in one pass into these tables and ends: everything of it is stored that
    /// may be. `handed_off` are the states that the pass leaves, as (group, block, boundary).
    pub fn store(
        &self,
        id: &str,
        truth: &mut Truth,
        count: usize,
        tables: &Tables,
        handed_off: &[(u16, u32, u64)],
    ) {
        self.arrive(id, count);
        let mut request = scheduled(id, 0, count, tokens(truth, count), tables);
        request.states = handed_off
            .iter()
            .map(|&(group, block, boundary_tokens)| StateHandoff { group, block, boundary_tokens })
            .collect();
        let plan = self.plan(vec![request]);
        self.carry_out(&plan, || self.pass(truth, tables, 0..count));
        self.finish(id, count, count, tables, false);
        self.carry_out(&self.plan(Vec::new()), || ());
        self.flush();
    }
}

/// Starts an engine of one rank and runs `test` with it, away from the daemon's threads.
pub async fn with_engine<T: Send + 'static>(
    daemon: &Daemon,
    transport: TransportChoice,
    model: &'static str,
    groups: Vec<GroupSpec>,
    test: impl FnOnce(&Mixed) -> T + Send + 'static,
) -> (Arc<Mixed>, T) {
    let config = daemon.client_config(transport);
    let run = move || {
        let engine = Mixed::new(&config, model, &groups, 1);
        let outcome = test(&engine);
        (Arc::new(engine), outcome)
    };
    tokio::task::spawn_blocking(run).await.expect("no panic")
}

/// The first tokens of a request.
pub fn tokens(truth: &mut Truth, count: usize) -> Vec<u32> {
    (0..count).map(|position| truth.token(position)).collect()
}

/// The blocks that a plan's only load is to fill, of all groups; in order, each once.
pub fn needed_blocks(plan: &StepPlan, id: &str) -> BTreeSet<u32> {
    let job = plan.loads.iter().find(|job| job.request == id).expect("a load of that request");
    job.items.iter().flat_map(|item| item.needed.iter().map(|i| item.blocks[i as usize])).collect()
}

/// Makes one chunk of a planned load unreadable: the one that fills `block` of `group`.
pub fn lose(plan: &mut StepPlan, id: &str, group: u16, block: u32) {
    let job = plan.loads.iter_mut().find(|job| job.request == id).expect("a load of that request");
    let fills = |item: &&mut tender_client::plan::LoadItem| {
        item.chunk.group == GroupIndex(group) && item.blocks.contains(&block)
    };
    let item = job.items.iter_mut().find(fills).expect("an item that fills the block");
    item.chunk = fixture::chunk_of(group, 404);
}

const POOL_BLOCKS: u32 = 64;

/// How heads are split: among ranks, and into the parts of chunks.
#[derive(Clone, Copy, Debug)]
struct Cut {
    ranks: u32,
    parts: u32,
    scales: bool,
}

fn memory(specs: &[GroupSpec], shapes: &[Vec<TensorShape>], rank: u32, cut: Cut) -> (Memory, ProvedLayout) {
    let Cut { ranks, parts, scales } = cut;
    let orders = vec![0; specs.len()];
    let apart = Arrangement::Apart { orders, padding: 0, scales };
    let first_heads = specs.iter().map(|spec| rank * spec.heads / ranks).collect();
    let memory = Memory::new(shapes, first_heads, &apart, POOL_BLOCKS);
    let shard = |spec: &GroupSpec| {
        if spec.heads == 0 {
            return GroupShard { writer: Writer { replica: rank, replicas: ranks }, ..GroupShard::WHOLE };
        }
        let small = |n: u32| u16::try_from(n).expect("few ranks");
        let count = small(parts / ranks);
        GroupShard { parts: small(parts), first: small(rank) * count, count, writer: Writer::ALONE }
    };
    let shards: Vec<_> = specs.iter().map(shard).collect();
    let layout = prove(memory.describe(), POOL_BLOCKS).and_then(|layout| layout.shard(&shards));
    (memory, layout.expect("a provable layout"))
}

fn describe(model: &str, specs: &[GroupSpec], layout: &ProvedLayout, parts: u32) -> Descriptor {
    let group = |(index, spec): (u16, &GroupSpec)| {
        let own = &layout.parts(GroupIndex(index))[0];
        let parts = if spec.heads == 0 { 1 } else { parts as usize };
        spec.describe(vec![own.block_bytes(); parts])
    };
    Descriptor {
        page_format: layout.page_format(),
        layout_fingerprint: layout.fingerprint(),
        ..fixture::descriptor(model, (0..).zip(specs).map(group).collect())
    }
}
