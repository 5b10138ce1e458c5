//! A scheduler against a daemon that keeps the contract or breaks it on demand.

use std::num::NonZeroU32;
use std::time::Instant;

use tender_proto::{BlocksPerChunk, ChunkId, Coverage, Group, GroupIndex, GroupKind, RankGeometry};

use super::*;
use crate::fake::{FakeDaemon, Trick};
use crate::hash::{KeyChain, NamedInput};
use crate::plan::{BlockUpdate, ScheduledRequest};

const TOKENS_PER_BLOCK: u32 = 50;
const TOKENS_PER_CHUNK: u64 = 100;

struct Rig {
    daemon: FakeDaemon,
    scheduler: SchedulerSide,
}

pub(super) fn descriptor() -> Descriptor {
    let group = Group::new(
        GroupKind::FullAttention,
        NonZeroU32::new(TOKENS_PER_BLOCK).unwrap(),
        BlocksPerChunk::new(2).unwrap(),
        None,
        vec![32],
    );
    Descriptor {
        model: "m".into(),
        weights: "w".into(),
        kv_dtype: "float32".into(),
        quantisation: "none".into(),
        groups: vec![group.unwrap()],
        page_format: "HNC".into(),
        layout_fingerprint: [1; 32],
        ranks: RankGeometry::SINGLE,
        key_chain_version: tender_proto::limits::KEY_CHAIN_VERSION,
        domain: String::new(),
    }
}

impl Rig {
    fn start(change: impl FnOnce(&mut ClientConfig)) -> Self {
        let daemon = FakeDaemon::start();
        let mut config = ClientConfig::new(daemon.address.clone());
        // A test machine may be slow: what is not about waiting waits for the answer.
        config.step_budget = Duration::from_secs(20);
        config.lookup_deadline = Duration::from_secs(20);
        change(&mut config);
        let scheduler = SchedulerSide::new(config, PlanConfig::default()).unwrap();
        scheduler.set_descriptor(descriptor()).unwrap();
        assert!(scheduler.wait_until_up(Duration::from_secs(20)));
        Self { daemon, scheduler }
    }

    fn request(&self, id: &str, tokens: usize) -> Vec<u32> {
        self.scheduler.new_request(id, tokens as u64, Ok(RequestInputs::default()));
        prompt(tokens)
    }

    fn hold(&self, chunks: &[usize], tokens: &[u32]) {
        let mut chain = KeyChain::new(TOKENS_PER_CHUNK, 0, &RequestInputs::default());
        chain.extend(tokens);
        let full = Coverage::full(BlocksPerChunk::new(2).unwrap());
        for &at in chunks {
            self.daemon.hold(ChunkId { group: GroupIndex(0), hash: chain.hashes()[at] }, full);
        }
    }

    fn eventually(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done(self) {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn prompt(tokens: usize) -> Vec<u32> {
    (0..u32::try_from(tokens).unwrap()).collect()
}

fn table(tokens: u64) -> Vec<Vec<u32>> {
    let blocks = u32::try_from(tokens.div_ceil(u64::from(TOKENS_PER_BLOCK))).unwrap();
    vec![(1..=blocks).collect()]
}

/// Asked twice, loaded in two phases, chunks beyond a gap in the store: everything counts once, and only what
/// can be used counts as a hit. A request that opts out counts as nothing.
#[test]
fn field_40_counters_describe_what_happened() {
    let rig = Rig::start(|_| {});
    let tokens = rig.request("a", 1000);
    rig.hold(&[6, 7, 9], &tokens);
    for _ in 0..3 {
        assert_eq!(rig.scheduler.match_prefix("a", &tokens, 600), Match::Hit(200));
    }
    assert_eq!(rig.scheduler.counters().lookups, 1, "one lookup answers until it is used");
    assert_eq!(rig.scheduler.counters().queries, 0, "nothing is counted before the engine decides");
    rig.scheduler.allocated("a", &table(1000), 200);
    rig.scheduler.allocated("a", &table(1000), 0);
    rig.scheduler.new_request("b", 1000, Err(Uncacheable::Unnamed { what: "a mood".into() }));
    assert_eq!(rig.scheduler.match_prefix("b", &tokens, 0), Match::None);
    rig.scheduler.allocated("b", &table(1000), 0);
    let counters = rig.scheduler.counters();
    assert_eq!((counters.queries, counters.query_tokens, counters.hit_tokens), (1, 400, 200));
    assert_eq!((counters.requests, counters.uncacheable_requests), (2, 1));
    assert_eq!(counters.missed_chunks, 7);
}

#[test]
fn a_hit_is_leased_until_the_workers_are_done() {
    let rig = Rig::start(|_| {});
    let tokens = rig.request("a", 301);
    rig.hold(&[0, 1, 2], &tokens);
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::Hit(300));
    rig.scheduler.allocated("a", &table(301), 300);
    let plan = StepPlan::decode(&rig.scheduler.step(StepInput::default())).unwrap();
    assert_eq!(plan.loads.len(), 1);
    assert_eq!(rig.daemon.leases(), 1);
    rig.scheduler.loads_finished(&["a".into(), "nobody".into()]);
    rig.eventually("the lease is given back", |rig| rig.daemon.leases() == 0);
}

#[test]
fn an_end_before_the_answer_or_before_the_load_gives_the_lease_back() {
    let rig = Rig::start(|_| {});
    let finish = || Finish {
        num_tokens: 301,
        prompt_tokens: 301,
        computed_tokens: 0,
        aborted: true,
        blocks: table(0),
        tail_tokens: Vec::new(),
    };
    let tokens = rig.request("a", 301);
    rig.hold(&[0, 1, 2], &tokens);
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::Hit(300));
    rig.scheduler.finished("a", finish());
    rig.eventually("the lease is given back", |rig| rig.daemon.leases() == 0);
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::None);
    assert_eq!(rig.scheduler.counters().queries, 0, "it was never admitted");
}

#[test]
fn a_slow_answer_means_later_and_too_slow_means_none() {
    let rig = Rig::start(|config| {
        config.step_budget = Duration::from_millis(5);
        config.lookup_deadline = Duration::from_millis(200);
    });
    rig.daemon.play(Trick::Stall);
    let tokens = rig.request("a", 301);
    assert!(!rig.scheduler.still_waits("a"), "it was not asked for");
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::Later);
    assert!(rig.scheduler.still_waits("a"));
    rig.eventually("the deadline passes", |rig| {
        rig.scheduler.step(StepInput::default());
        !rig.scheduler.still_waits("a")
    });
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::None);
    let counters = rig.scheduler.counters();
    assert_eq!(counters.lookup_failures["deadline"], 1);
    assert!(counters.lookups_later >= 1);
}

#[test]
fn the_lookups_of_one_step_wait_together_no_longer_than_one() {
    let rig = Rig::start(|config| {
        config.step_budget = Duration::from_millis(200);
        config.breaker.failures = 1000;
    });
    rig.daemon.play(Trick::Stall);
    let start = Instant::now();
    for i in 0..100 {
        let id = format!("r{i}");
        let tokens = rig.request(&id, 301);
        assert_eq!(rig.scheduler.match_prefix(&id, &tokens, 0), Match::Later);
    }
    // One hundred times the wait would be twenty seconds.
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_step_over_its_budget_is_counted_and_the_next_one_begins_anew() {
    let rig = Rig::start(|config| {
        config.step_budget = Duration::from_millis(100);
        config.breaker.failures = 1000;
    });
    rig.daemon.play(Trick::Stall);
    for step in 1..4 {
        // The first lookup uses up all that the step has, and then a little: it is the last that waits.
        for id in [format!("a{step}"), format!("b{step}")] {
            let tokens = rig.request(&id, 301);
            assert_eq!(rig.scheduler.match_prefix(&id, &tokens, 0), Match::Later);
        }
        rig.scheduler.step(StepInput::default());
        let counters = rig.scheduler.counters();
        assert_eq!(counters.slow_steps, step);
        assert!(counters.longest_step_us >= 100_000, "{counters:?}");
    }
}

#[test]
fn a_reset_reaches_the_daemon_or_says_that_it_did_not() {
    let rig = Rig::start(|_| {});
    let tokens = rig.request("a", 301);
    rig.hold(&[0, 1, 2], &tokens);
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::Hit(300));
    assert!(rig.scheduler.reset());
    assert_eq!(rig.daemon.stored(), 0);
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::None);
    let nobody = ClientConfig::new("unix:/nonexistent/tender.sock".parse().unwrap());
    let scheduler = SchedulerSide::new(nobody, PlanConfig::default()).unwrap();
    assert!(scheduler.reset(), "nothing was ever stored without a descriptor");
    scheduler.set_descriptor(descriptor()).unwrap();
    assert!(!scheduler.reset());
}

#[test]
fn without_a_daemon_everything_misses_and_plans_go_on() {
    let nobody = ClientConfig::new("unix:/nonexistent/tender.sock".parse().unwrap());
    let scheduler = SchedulerSide::new(nobody, PlanConfig::default()).unwrap();
    scheduler.new_request("early", 301, Ok(RequestInputs::default()));
    scheduler.set_descriptor(descriptor()).unwrap();
    let tokens = prompt(301);
    assert_eq!(scheduler.match_prefix("early", &tokens, 0), Match::None);
    scheduler.new_request("a", 301, Ok(RequestInputs::default()));
    let start = Instant::now();
    assert_eq!(scheduler.match_prefix("a", &tokens, 0), Match::None);
    assert!(start.elapsed() < Duration::from_secs(5));
    scheduler.allocated("a", &table(301), 0);
    let scheduled = |id: &str| ScheduledRequest {
        id: id.into(),
        computed_tokens: 0,
        scheduled_tokens: 301,
        new_tokens: Vec::new(),
        blocks: BlockUpdate::Replace(table(301)),
        states: Vec::new(),
    };
    let requests = vec![scheduled("a"), scheduled("early"), scheduled("nobody")];
    let plan = scheduler.step(StepInput { requests, preempted: vec!["nobody".into()] });
    assert_eq!(StepPlan::decode(&plan).unwrap().stores_after.len(), 3, "one for each whole chunk");
    let counters = scheduler.counters();
    assert_eq!((counters.query_tokens, counters.hit_tokens), (301, 0));
    assert_eq!(counters.lookup_failures["unreachable"], 1);
}

#[test]
fn requests_with_other_inputs_share_nothing() {
    let rig = Rig::start(|_| {});
    let tokens = prompt(301);
    rig.hold(&[0, 1, 2], &tokens);
    let salted = RequestInputs::new(vec![NamedInput::Salt("tenant".into())], Vec::new()).unwrap();
    rig.scheduler.new_request("salted", 301, Ok(salted));
    assert_eq!(rig.scheduler.match_prefix("salted", &tokens, 0), Match::None);
}

#[test]
fn a_descriptor_that_cannot_be_planned_for_is_refused() {
    let rig = Rig::start(|_| {});
    let mut parts_of_blocks = descriptor();
    parts_of_blocks.ranks.context_parallel = 2.try_into().unwrap();
    assert!(rig.scheduler.set_descriptor(parts_of_blocks).is_err());
    rig.scheduler.set_descriptor(descriptor()).unwrap();
}

#[test]
fn after_shutdown_everything_misses() {
    let rig = Rig::start(|_| {});
    let tokens = rig.request("a", 301);
    rig.hold(&[0, 1, 2], &tokens);
    rig.scheduler.shutdown();
    rig.eventually("the session ends", |rig| rig.scheduler.counters().session == "down");
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::None);
}

/// A rig whose daemon has chunks below: which, what it expects of each, and what it takes.
fn with_below(
    change: impl FnOnce(&mut ClientConfig),
    prompt_tokens: usize,
    here: &[usize],
    below: &[(usize, u64, Option<u64>)],
) -> (Rig, Vec<u32>) {
    let rig = Rig::start(change);
    let tokens = rig.request("a", prompt_tokens);
    rig.hold(here, &tokens);
    let mut chain = KeyChain::new(TOKENS_PER_CHUNK, 0, &RequestInputs::default());
    chain.extend(&tokens);
    let full = Coverage::full(BlocksPerChunk::new(2).unwrap());
    for &(at, expected_ms, takes_ms) in below {
        let chunk = ChunkId { group: GroupIndex(0), hash: chain.hashes()[at] };
        rig.daemon.hold_below(
            chunk,
            full,
            Duration::from_millis(expected_ms),
            takes_ms.map(Duration::from_millis),
        );
    }
    (rig, tokens)
}

impl Rig {
    /// Steps as an engine does until the request can be scheduled; how often it was told "later".
    fn schedule(&self, id: &str, tokens: &[u32]) -> (Match, u64) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut later = 0;
        loop {
            assert!(Instant::now() < deadline, "'later' for ever");
            match self.scheduler.match_prefix(id, tokens, 0) {
                Match::Later => later += 1,
                found => return (found, later),
            }
            while self.scheduler.still_waits(id) {
                self.scheduler.step(StepInput::default());
                std::thread::sleep(Duration::from_millis(1));
                assert!(Instant::now() < deadline, "it waits for ever");
            }
            self.scheduler.step(StepInput::default());
        }
    }

    /// Lets the scheduler measure a slow engine: 128 tokens take at least half a second.
    fn measure_slow_engine(&self) {
        let tokens = self.request("slow", 128);
        let step = |scheduled_tokens, new_tokens| StepInput {
            requests: vec![ScheduledRequest {
                id: "slow".into(),
                computed_tokens: 0,
                scheduled_tokens,
                new_tokens,
                blocks: BlockUpdate::Replace(table(128)),
                states: Vec::new(),
            }],
            preempted: Vec::new(),
        };
        self.scheduler.step(step(128, tokens));
        std::thread::sleep(Duration::from_millis(500));
        self.scheduler.step(step(1, Vec::new()));
        let rate = self.scheduler.counters().prefill_tokens_per_second;
        assert!((1..=256).contains(&rate), "{rate}");
    }
}

/// All chunks from `first` up to `end`, which the daemon expects after so long, and that take so long.
fn chunks(
    first: usize,
    end: usize,
    expected_ms: u64,
    takes_ms: Option<u64>,
) -> Vec<(usize, u64, Option<u64>)> {
    (first..end).map(|at| (at, expected_ms, takes_ms)).collect()
}

fn patient(config: &mut ClientConfig) {
    config.fetch_wait = Duration::from_secs(20);
}

#[test]
fn a_fetch_faster_than_computing_is_waited_for_and_the_hit_grows() {
    let (rig, tokens) = with_below(patient, 5_001, &[0, 1], &chunks(2, 49, 50, Some(80)));
    rig.measure_slow_engine();
    let (found, later) = rig.schedule("a", &tokens);
    assert_eq!(found, Match::Hit(4900));
    assert!(later >= 1);
    rig.eventually("leases of answers before are given back", |rig| rig.daemon.leases() == 1);
    rig.scheduler.allocated("a", &table(5_001), 4900);
    let counters = rig.scheduler.counters();
    assert_eq!((counters.fetch_waits, counters.late_fetch_waits), (1, 0));
    assert!(counters.fetch_wait_ms >= 40, "{counters:?}");
    assert_eq!((counters.queries, counters.hit_tokens), (1, 4900));
    assert_eq!(counters.missed_chunks, 1, "once, however often it was asked for");
}

#[test]
fn a_fetch_slower_than_computing_is_not_waited_for_and_what_is_there_is_used() {
    // By the assumed speed, 200 tokens take 10 ms.
    let (rig, tokens) = with_below(|_| {}, 401, &[0, 1], &[(2, 500, Some(1)), (3, 500, Some(1))]);
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::Hit(200));
    let counters = rig.scheduler.counters();
    assert_eq!((counters.fetch_waits, counters.lookups, counters.missed_chunks), (0, 1, 2));
    // They were fetched all the same: the next request finds them.
    std::thread::sleep(Duration::from_millis(20));
    let tokens = rig.request("b", 401);
    assert_eq!(rig.scheduler.match_prefix("b", &tokens, 0), Match::Hit(400));
}

#[test]
fn chunks_that_add_nothing_to_the_hit_are_not_waited_for() {
    // Chunk 1 is nowhere.
    let (rig, tokens) = with_below(|_| {}, 401, &[0], &[(2, 1, Some(1)), (3, 1, Some(1))]);
    rig.measure_slow_engine();
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::Hit(100));
    assert_eq!(rig.scheduler.counters().fetch_waits, 0);
}

#[test]
fn field_23_a_wait_ends_at_its_bound_with_what_is_there() {
    let bound = |config: &mut ClientConfig| config.fetch_wait = Duration::from_secs(1);
    let mut below = chunks(3, 50, 20, None);
    below.push((2, 20, Some(20)));
    let (rig, tokens) = with_below(bound, 5_001, &[0, 1], &below);
    rig.measure_slow_engine();
    // 4800 tokens would take seconds: only the bound ends this. One chunk came meanwhile.
    let begun = Instant::now();
    let (found, _) = rig.schedule("a", &tokens);
    assert_eq!(found, Match::Hit(300));
    assert!(begun.elapsed() < Duration::from_secs(20));
    let counters = rig.scheduler.counters();
    assert_eq!((counters.fetch_waits, counters.late_fetch_waits), (1, 1));
    // Never again for this admission.
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::Hit(300));
    assert_eq!(rig.scheduler.counters().fetch_waits, 1);
}

#[test]
fn nobody_waits_where_the_user_does_not_want_it() {
    let never = |config: &mut ClientConfig| config.fetch_wait = Duration::ZERO;
    let (rig, tokens) = with_below(never, 5_001, &[], &[(0, 1, None)]);
    rig.measure_slow_engine();
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::None);
}

#[test]
fn an_abort_while_waiting_leaves_no_lease_and_counts_its_time() {
    let (rig, tokens) = with_below(patient, 5_001, &[0, 1], &chunks(2, 50, 1000, None));
    rig.measure_slow_engine();
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::Later);
    std::thread::sleep(Duration::from_millis(60));
    // The question that is asked again may be under way.
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::Later);
    let end = Finish {
        num_tokens: 5_001,
        prompt_tokens: 5_001,
        computed_tokens: 0,
        aborted: true,
        blocks: table(0),
        tail_tokens: Vec::new(),
    };
    rig.scheduler.finished("a", end);
    rig.eventually("all leases are given back", |rig| rig.daemon.leases() == 0);
    assert!(rig.scheduler.counters().fetch_wait_ms >= 60);
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::None);
}

#[test]
fn a_daemon_that_falls_silent_during_a_wait_ends_it_with_what_was_there() {
    let quick = |config: &mut ClientConfig| {
        patient(config);
        config.lookup_deadline = Duration::from_secs(1);
    };
    let (rig, tokens) = with_below(quick, 5_001, &[0, 1], &chunks(2, 50, 1900, None));
    rig.measure_slow_engine();
    assert_eq!(rig.scheduler.match_prefix("a", &tokens, 0), Match::Later);
    rig.daemon.play(Trick::Stall);
    let (found, _) = rig.schedule("a", &tokens);
    assert_eq!(found, Match::Hit(200));
    assert_eq!(rig.scheduler.counters().lookup_failures["deadline"], 1);
}
