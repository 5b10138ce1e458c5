//! A tiny engine drives the planner through random schedules: a pool of blocks with sharing, chunked prefill, drafts,
//! ids that become known late, preemption, aborts, loads that take steps or fail. A slot holds a fingerprint of
//! the tokens up to it, or poison. Whatever a plan stores must be what its key says; whatever attention reads must
//! have been written.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_proto::{ChainHash, ChunkId, Coverage};

use super::tests::geometry;
use super::*;
use crate::hash::{KeyChain, RequestInputs};

const TOKENS_PER_BLOCK: usize = 4;
const BLOCKS_PER_CHUNK: usize = 2;
const TOKENS_PER_CHUNK: usize = TOKENS_PER_BLOCK * BLOCKS_PER_CHUNK;
const POOL_BLOCKS: usize = 24;
const POISON: u64 = 0;

/// A mistake built in on purpose, to see that it is found.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mistake {
    None,
    /// The end counts the last sampled token as written.
    LastToken,
    /// Draft tokens are told as if they were known.
    DraftsKnown,
    /// Blocks that are free already are gathered after the pass.
    LateGather,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    Waiting,
    /// Until this step.
    Loading(u32),
    Running,
}

#[derive(Debug)]
struct Active {
    id: String,
    tokens: Vec<u32>,
    prompt: usize,
    limit: usize,
    /// Tokens whose ids the planner has.
    told: usize,
    table: Vec<u32>,
    /// Blocks the planner has; `None` when it gets the whole table next.
    told_blocks: Option<usize>,
    computed: usize,
    phase: Phase,
}

/// A request's share of a pass.
struct Share {
    id: String,
    from: usize,
    /// What is written: real tokens, then drafts.
    inputs: Vec<u32>,
    drafts: Vec<u32>,
}

struct Engine {
    rng: StdRng,
    planner: Planner,
    mistake: Mistake,
    step: u32,
    slots: Vec<u64>,
    holders: Vec<u32>,
    /// Blocks given out in this step: their old content is still there until the pass begins.
    fresh: Vec<u32>,
    active: Vec<Active>,
    next_id: u32,
    /// What each key's slots must hold.
    expected: HashMap<ChainHash, Vec<u64>>,
    stored: HashMap<ChunkId, (Coverage, Vec<u64>)>,
    landing: Vec<(u32, LoadJob)>,
    stores: u64,
    loaded_tokens: u64,
}

/// What the slot of the last of `tokens` holds. Never poison.
fn fingerprint(tokens: &[u32]) -> u64 {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let hash = blake3::hash(&bytes);
    u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap()) | 1
}

impl Engine {
    fn new(seed: u64, mistake: Mistake) -> Self {
        let descriptor = geometry(TOKENS_PER_BLOCK as u32, BLOCKS_PER_CHUNK as u32);
        let mut holders = vec![0; POOL_BLOCKS];
        holders[0] = 1;
        Self {
            rng: StdRng::seed_from_u64(seed),
            planner: Planner::new(Arc::new(descriptor), PlanConfig::default()).unwrap(),
            mistake,
            step: 0,
            slots: vec![POISON; POOL_BLOCKS * TOKENS_PER_BLOCK],
            holders,
            fresh: Vec::new(),
            active: Vec::new(),
            next_id: 0,
            expected: HashMap::new(),
            stored: HashMap::new(),
            landing: Vec::new(),
            stores: 0,
            loaded_tokens: 0,
        }
    }

    fn run(&mut self, steps: u32) -> Result<(), String> {
        while self.step < steps {
            self.step += 1;
            if self.active.len() < 5 && self.rng.random_bool(0.6) {
                self.arrive();
            }
            let (input, shares) = self.schedule();
            let plan = StepPlan::decode(&self.planner.step(input).encode()).map_err(|no| no.to_string())?;
            self.execute(plan, &shares)?;
            self.update(shares);
        }
        Ok(())
    }

    fn arrive(&mut self) {
        // Few different beginnings, so that prefixes are shared; ids come again.
        let beginning = self.rng.random_range(0..3u32);
        let prompt = self.rng.random_range(1..30usize);
        let tail = self.rng.random_range(0..prompt.min(6) + 1);
        let mut tokens: Vec<u32> = (0..prompt as u32).map(|i| beginning * 1000 + i).collect();
        for token in &mut tokens[prompt - tail..] {
            *token = self.rng.random_range(0..4);
        }
        let id = format!("r{}", self.next_id % 7);
        if self.active.iter().any(|one| one.id == id) {
            return;
        }
        self.next_id += 1;
        self.planner.add_request(&id, prompt as u64, &RequestInputs::default());
        let limit = prompt + self.rng.random_range(1..24usize);
        self.active.push(Active {
            id,
            tokens,
            prompt,
            limit,
            told: 0,
            table: Vec::new(),
            told_blocks: None,
            computed: 0,
            phase: Phase::Waiting,
        });
    }

    fn take_block(&mut self) -> Option<u32> {
        let free: Vec<usize> = (0..POOL_BLOCKS).filter(|&block| self.holders[block] == 0).collect();
        let &block = free.get(self.rng.random_range(0..free.len().max(1)))?;
        self.holders[block] = 1;
        self.fresh.push(block as u32);
        Some(block as u32)
    }

    fn give_back(&mut self, table: &[u32]) {
        for &block in table {
            self.holders[block as usize] -= 1;
        }
    }

    /// Extends a table to hold `slots`; false when the pool is empty.
    fn grow(&mut self, at: usize, slots: usize) -> bool {
        while self.active[at].table.len() * TOKENS_PER_BLOCK < slots {
            let Some(block) = self.take_block() else { return false };
            self.active[at].table.push(block);
        }
        true
    }

    fn schedule(&mut self) -> (StepInput, Vec<Share>) {
        let (mut input, mut shares) = (StepInput::default(), Vec::new());
        for at in 0..self.active.len() {
            if self.active[at].phase != Phase::Running {
                continue;
            }
            let share = self.share(at);
            while !self.grow(at, share.from + share.inputs.len()) {
                // The youngest goes, if need be this one.
                let Some(victim) =
                    (at..self.active.len()).rev().find(|&i| self.active[i].phase == Phase::Running)
                else {
                    break;
                };
                self.preempt(victim);
                input.preempted.push(self.active[victim].id.clone());
                if victim == at {
                    break;
                }
            }
            if self.active[at].phase == Phase::Running {
                input.requests.push(self.tell(at, &share));
                shares.push(share);
            }
        }
        if input.preempted.is_empty() {
            for at in 0..self.active.len() {
                if self.active[at].phase == Phase::Waiting && self.admit(at) {
                    let share = self.share(at);
                    if self.grow(at, share.from + share.inputs.len()) {
                        input.requests.push(self.tell(at, &share));
                        shares.push(share);
                    } else {
                        let table = std::mem::take(&mut self.active[at].table);
                        self.give_back(&table);
                        self.active[at].phase = Phase::Waiting;
                        self.active[at].computed = 0;
                    }
                }
            }
        }
        (input, shares)
    }

    fn preempt(&mut self, at: usize) {
        let one = &mut self.active[at];
        (one.computed, one.phase, one.told_blocks) = (0, Phase::Waiting, None);
        let table = std::mem::take(&mut one.table);
        self.give_back(&table);
    }

    /// What a request computes in this step: some of what is missing, with drafts once it decodes.
    fn share(&mut self, at: usize) -> Share {
        let missing = self.active[at].tokens.len() - self.active[at].computed;
        let n = if missing > 1 { self.rng.random_range(1..=missing) } else { missing };
        let drafts: Vec<u32> = if n == missing && self.rng.random_bool(0.4) {
            (0..self.rng.random_range(1..4)).map(|_| self.rng.random_range(0..4)).collect()
        } else {
            Vec::new()
        };
        let one = &self.active[at];
        let mut inputs = one.tokens[one.computed..one.computed + n].to_vec();
        inputs.extend(&drafts);
        Share { id: one.id.clone(), from: one.computed, inputs, drafts }
    }

    fn tell(&mut self, at: usize, share: &Share) -> ScheduledRequest {
        // Ids of sampled tokens may become known a step late.
        let late = usize::from(self.rng.random_bool(0.3));
        let one = &mut self.active[at];
        let planner_knows = self.planner.known_tokens(&one.id).unwrap() as usize;
        one.told = one.told.max(planner_knows);
        let known = one.tokens.len().saturating_sub(late).max(one.told).max(one.prompt);
        let mut new_tokens = one.tokens.get(one.told..known).unwrap_or_default().to_vec();
        one.told = known;
        if self.mistake == Mistake::DraftsKnown && known == one.tokens.len() {
            new_tokens.extend(&share.drafts);
        }
        let blocks = match one.told_blocks {
            Some(told) => BlockUpdate::Append(vec![one.table[told..].to_vec()]),
            None => BlockUpdate::Replace(vec![one.table.clone()]),
        };
        one.told_blocks = Some(one.table.len());
        ScheduledRequest {
            id: one.id.clone(),
            computed_tokens: share.from as u64,
            scheduled_tokens: share.inputs.len() as u64,
            new_tokens,
            blocks,
            states: Vec::new(),
        }
    }

    /// Finds what is there for a waiting request; true when it can compute now, false when it loads or must wait.
    fn admit(&mut self, at: usize) -> bool {
        if self.active[at].computed == 0 {
            self.share_prefix(at);
            let (id, tokens) = (self.active[at].id.clone(), self.active[at].tokens.clone());
            let local = self.active[at].computed;
            let keys = self.planner.lookup_keys(&id, &tokens);
            let answers: Vec<ChunkView> = keys
                .iter()
                .map(|key| match self.stored.get(key) {
                    Some(_) if self.rng.random_bool(0.05) => ChunkView::Pending,
                    Some((coverage, _)) => ChunkView::Ready(*coverage),
                    None => ChunkView::Miss,
                })
                .collect();
            let external = self.planner.hit_tokens(&id, &answers, tokens.len() as u64, local as u64) as usize;
            assert!(external == 0 || local + external < tokens.len());
            assert_eq!((local + external) % TOKENS_PER_BLOCK, 0);
            if external > 0 && self.grow(at, local + external) {
                self.planner.allocated(&id, &[self.active[at].table.clone()], external as u64);
                self.active[at].computed = local + external;
                self.active[at].phase = Phase::Loading(u32::MAX);
                return false;
            }
        }
        self.active[at].phase = Phase::Running;
        true
    }

    /// Takes over whole blocks of a request that began with the same tokens, at least one token short of the end.
    fn share_prefix(&mut self, at: usize) {
        let table = std::mem::take(&mut self.active[at].table);
        self.give_back(&table);
        let own = &self.active[at].tokens;
        let common = |other: &Active| {
            let equal = own.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
            equal.min(own.len() - 1).min(other.computed) / TOKENS_PER_BLOCK
        };
        let running = self.active.iter().filter(|other| other.phase == Phase::Running);
        let Some((blocks, table)) =
            running.map(|other| (common(other), other.table.clone())).max_by_key(|&(blocks, _)| blocks)
        else {
            return;
        };
        for &block in &table[..blocks] {
            self.holders[block as usize] += 1;
        }
        self.active[at].table = table[..blocks].to_vec();
        self.active[at].computed = blocks * TOKENS_PER_BLOCK;
    }

    fn execute(&mut self, plan: StepPlan, shares: &[Share]) -> Result<(), String> {
        if self.mistake != Mistake::LateGather {
            self.gather(&plan.stores_before)?;
        }
        // What a block held before is no longer anybody's.
        for block in std::mem::take(&mut self.fresh) {
            let start = block as usize * TOKENS_PER_BLOCK;
            self.slots[start..start + TOKENS_PER_BLOCK].fill(POISON);
        }
        for job in plan.loads {
            let lands = self.step + self.rng.random_range(0..4);
            if let Some(one) = self.active.iter_mut().find(|one| one.id == job.request) {
                one.phase = Phase::Loading(lands);
            }
            self.landing.push((lands, job));
        }
        for share in shares {
            let one = self.active.iter().find(|one| one.id == share.id).unwrap();
            let (table, mut tokens) = (one.table.clone(), one.tokens[..share.from].to_vec());
            for position in 0..share.from {
                if self.slots[place(&table, position)] != fingerprint(&one.tokens[..=position]) {
                    return Err(format!("request {} reads slot {position}, which is not its own", one.id));
                }
            }
            for &token in &share.inputs {
                let slot = place(&table, tokens.len());
                tokens.push(token);
                self.slots[slot] = fingerprint(&tokens);
            }
        }
        if self.mistake == Mistake::LateGather {
            self.gather(&plan.stores_before)?;
        }
        self.expect_keys();
        self.gather(&plan.stores_after)
    }

    /// Notes what every key of the tokens so far stands for.
    fn expect_keys(&mut self) {
        for one in &self.active {
            let mut chain = KeyChain::new(TOKENS_PER_CHUNK as u64, 0, &RequestInputs::default());
            chain.extend(&one.tokens);
            for (hash, chunk) in chain.hashes().iter().zip(0..) {
                let slots = chunk * TOKENS_PER_CHUNK..(chunk + 1) * TOKENS_PER_CHUNK;
                let prints = || slots.map(|position| fingerprint(&one.tokens[..=position])).collect();
                self.expected.entry(*hash).or_insert_with(prints);
            }
        }
    }

    fn gather(&mut self, jobs: &[StoreJob]) -> Result<(), String> {
        for job in jobs {
            let expected =
                self.expected.get(&job.chunk.hash).ok_or("a key of tokens that nobody has".to_owned())?;
            for i in job.coverage.iter() {
                for slot in 0..TOKENS_PER_BLOCK {
                    let held = self.slots[job.blocks[i as usize] as usize * TOKENS_PER_BLOCK + slot];
                    if held != expected[i as usize * TOKENS_PER_BLOCK + slot] {
                        return Err(format!("{} holds in block {i}, slot {slot}: {held:x}", job.chunk));
                    }
                }
            }
            self.stores += 1;
            self.stored.insert(job.chunk, (job.coverage, expected.clone()));
        }
        Ok(())
    }

    fn land(&mut self) {
        let now = self.step;
        let (landed, later) = std::mem::take(&mut self.landing).into_iter().partition(|(at, _)| *at <= now);
        self.landing = later;
        let landed: Vec<(u32, LoadJob)> = landed;
        for (_, job) in landed {
            let mut failed = Vec::new();
            for item in &job.items {
                let lost = self.rng.random_bool(0.1);
                let source =
                    self.stored.get(&item.chunk).filter(|(coverage, _)| coverage.contains(item.needed));
                let source = source.filter(|_| !lost).map(|(_, slots)| slots.clone());
                for i in item.needed.iter() {
                    let block = item.blocks[i as usize];
                    let start = block as usize * TOKENS_PER_BLOCK;
                    let from = i as usize * TOKENS_PER_BLOCK;
                    match &source {
                        Some(slots) => self.slots[start..start + TOKENS_PER_BLOCK]
                            .copy_from_slice(&slots[from..from + TOKENS_PER_BLOCK]),
                        None => failed.push(block),
                    }
                }
                if lost {
                    self.stored.remove(&item.chunk);
                }
            }
            // Its request may have been aborted meanwhile; its blocks were held for the load.
            match self.active.iter().position(|one| one.id == job.request && one.phase != Phase::Waiting) {
                Some(at) => self.loaded(at, &failed),
                None => unreachable!("aborts wait for the load"),
            }
        }
    }

    fn loaded(&mut self, at: usize, failed: &[u32]) {
        let one = &mut self.active[at];
        let good = one.table.iter().position(|block| failed.contains(block)).unwrap_or(one.table.len());
        one.computed = one.computed.min(good * TOKENS_PER_BLOCK);
        one.phase = Phase::Waiting;
        self.loaded_tokens += one.computed as u64;
        if one.computed == 0 {
            let table = std::mem::take(&mut one.table);
            self.give_back(&table);
        }
    }

    fn update(&mut self, shares: Vec<Share>) {
        for share in shares {
            let at = self.active.iter().position(|one| one.id == share.id).unwrap();
            let accepted = self.rng.random_range(0..=share.drafts.len());
            let sampled = self.rng.random_range(0..4);
            let one = &mut self.active[at];
            let real = share.inputs.len() - share.drafts.len();
            one.computed = share.from + real;
            if one.computed == one.tokens.len() {
                one.tokens.extend(&share.drafts[..accepted]);
                one.computed = one.tokens.len();
                one.tokens.push(sampled);
            }
        }
        self.expect_keys();
        self.land();
        let mut at = 0;
        while at < self.active.len() {
            let one = &self.active[at];
            let aborted = self.rng.random_bool(0.03);
            let done = one.phase == Phase::Running && one.tokens.len() >= one.limit;
            if done || aborted { self.end(at, !done) } else { at += 1 }
        }
    }

    fn end(&mut self, at: usize, aborted: bool) {
        let one = self.active.remove(at);
        let beyond = u64::from(self.mistake == Mistake::LastToken);
        let told = one.told.max(self.planner.known_tokens(&one.id).unwrap() as usize);
        self.planner.finished(
            &one.id,
            &Finish {
                num_tokens: one.tokens.len() as u64 + beyond,
                prompt_tokens: one.prompt as u64,
                computed_tokens: one.computed as u64 + beyond,
                aborted,
                blocks: vec![one.table.clone()],
                tail_tokens: one.tokens.get(told..).unwrap_or_default().to_vec(),
            },
        );
        // Blocks that a load may still write to stay taken until it has landed; here it lands at once.
        self.landing.retain(|(_, job)| job.request != one.id);
        self.give_back(&one.table);
    }
}

fn place(table: &[u32], position: usize) -> usize {
    table[position / TOKENS_PER_BLOCK] as usize * TOKENS_PER_BLOCK + position % TOKENS_PER_BLOCK
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_stored_slot_is_what_its_key_says(seed: u64) {
        let mut engine = Engine::new(seed, Mistake::None);
        prop_assert_eq!(engine.run(120), Ok(()));
        prop_assert!(engine.stores > 0);
    }
}

#[test]
fn the_model_reaches_what_it_is_for() {
    let (mut loaded, mut counters) = (0, PlanCounters::default());
    for seed in 0..40 {
        let mut engine = Engine::new(seed, Mistake::None);
        engine.run(120).unwrap();
        let seen = engine.planner.counters();
        loaded += engine.loaded_tokens;
        counters.loads += seen.loads;
        counters.loads_failed += seen.loads_failed;
        counters.stores_known += seen.stores_known;
        assert_eq!((seen.unknown_requests, seen.short_block_tables, seen.loads_refused), (0, 0, 0));
    }
    assert!(loaded > 1000 && counters.loads > 100, "{loaded} tokens loaded, {counters:?}");
    assert!(counters.loads_failed > 10 && counters.stores_known > 100, "{counters:?}");
}

#[test]
fn a_planted_mistake_is_found() {
    for mistake in [Mistake::LastToken, Mistake::DraftsKnown, Mistake::LateGather] {
        let found = (0..50).any(|seed| Engine::new(seed, mistake).run(120).is_err());
        assert!(found, "{mistake:?}");
    }
}
