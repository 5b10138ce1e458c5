//! The stack over tiers that fail in every way: one fetch for all who ask, nothing that lies is ever READY, nothing of
//! before a reset comes after it, nothing is left over.

mod resets;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tender_proto::{ChunkId, Reason, SessionId};

use super::fake::{FakeTier, Heard, Trick};
use super::stack::Stack;
use super::{Kept, Sought, Tier, TierKind};
use crate::config::{Config, StackConfig};
use crate::engine::tests::{Bench, FULL, a, b, bytes_of, chunk, chunk_of};
use crate::engine::{LeaseAsk, ResetScope};

/// Long enough for the slowest machine: a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

struct Rig {
    stack: Stack,
    session: SessionId,
    tiers: Vec<Arc<FakeTier>>,
    bench: Bench,
}

impl Rig {
    fn new(kinds: &[TierKind]) -> Self {
        Self::with(kinds, |_| ())
    }
    fn with(kinds: &[TierKind], adjust: impl FnOnce(&mut StackConfig)) -> Self {
        Self::over(Bench::with_slots(64), kinds.iter().map(|&kind| FakeTier::new(kind)).collect(), adjust)
    }
    fn over(bench: Bench, tiers: Vec<Arc<FakeTier>>, adjust: impl FnOnce(&mut StackConfig)) -> Self {
        let mut config = StackConfig { fetch_time: PATIENCE, shared_min_hits: 2, ..Config::default().stack };
        adjust(&mut config);
        let session = bench.session();
        let all = tiers.iter().map(|tier| Arc::clone(tier) as Arc<dyn Tier>).collect();
        let stack = Stack::open(&bench.engine, all, config).unwrap();
        Self { stack, session, tiers, bench }
    }
    fn tier(&self) -> &FakeTier {
        &self.tiers[0]
    }
    async fn seek(&self, chunks: &[ChunkId]) -> Vec<Sought> {
        self.stack.seek(a(), chunks, Instant::now() + PATIENCE).await
    }
    /// Seeks chunks of which all must be on their way.
    async fn comes(&self, chunks: &[ChunkId]) {
        let sought = self.seek(chunks).await;
        assert!(sought.iter().all(is_coming), "{sought:?}");
    }
    fn is_ready(&self, n: u32) -> bool {
        self.bench.is_ready(self.session, n)
    }
    fn failures(&self, at: usize, why: &str) -> u64 {
        self.stack.stats()[at].lane.failures.get(why).copied().unwrap_or(0)
    }
    fn under_way(&self) -> u64 {
        self.stack.stats().iter().map(|tier| tier.lane.under_way).sum()
    }
    async fn idle(&self) {
        eventually("no fetch is under way", || self.under_way() == 0).await;
    }
    /// After a stop nothing is left of the stack, and the recount agrees.
    async fn end(self) {
        self.stack.stop(Instant::now() + PATIENCE).await;
        self.bench.engine.close_session(self.session);
        let audit = self.bench.audit();
        let left = (audit.sessions, audit.leases, audit.pins, audit.readers);
        assert_eq!(left, (0, 0, 0, 0));
        assert_eq!(
            (audit.reservations, audit.writers, audit.pending_chunks, audit.inflight_bytes),
            (0, 0, 0, 0)
        );
        for tier in &self.tiers {
            assert_eq!(Arc::strong_count(tier), 1, "{:?} is let go of", tier.kind());
        }
    }
}

fn is_coming(sought: &Sought) -> bool {
    matches!(sought, Sought::Coming { expected_ms } if *expected_ms > 0)
}

async fn eventually(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tiers_are_asked_in_order_and_each_only_for_what_those_before_lack() {
    let rig = Rig::new(&[TierKind::Disk, TierKind::Peers, TierKind::Shared]);
    rig.tiers[0].hold(&[chunk(0)]);
    rig.tiers[1].hold(&[chunk(0), chunk(1)]);
    rig.tiers[2].hold(&[chunk(2)]);
    let sought = rig.seek(&[chunk(0), chunk(1), chunk(2), chunk(3)]).await;
    assert!(sought[..3].iter().all(is_coming), "{sought:?}");
    assert_eq!(sought[3], Sought::Absent(None));
    eventually("all are there", || (0..3).all(|n| rig.is_ready(n))).await;
    let asked = |at: usize| rig.tiers[at].heard.lock()[0].clone();
    assert_eq!(asked(0), Heard::Find(vec![chunk(0), chunk(1), chunk(2), chunk(3)]));
    assert_eq!(asked(1), Heard::Find(vec![chunk(1), chunk(2), chunk(3)]));
    assert_eq!(asked(2), Heard::Find(vec![chunk(2), chunk(3)]));
    for at in 0..3 {
        assert_eq!(rig.tiers[at].fetches(), [chunk(u32::try_from(at).unwrap())]);
    }
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_39_sixteen_readers_of_one_chunk_are_one_fetch() {
    let rig = Arc::new(Rig::new(&[TierKind::Peers]));
    rig.tier().hold(&[chunk_of(1, 0)]);
    rig.tier().stop();
    let readers: Vec<_> = (0..16)
        .map(|_| {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move { rig.seek(&[chunk_of(1, 0)]).await })
        })
        .collect();
    for reader in readers {
        assert!(reader.await.unwrap().iter().all(is_coming));
    }
    assert!(rig.stack.expected_ms(a(), chunk_of(1, 0)).is_some());
    rig.tier().go(1 << 10);
    rig.idle().await;
    assert_eq!(rig.tier().fetches(), [chunk_of(1, 0)]);
    assert_eq!(rig.stack.expected_ms(a(), chunk_of(1, 0)), None);
    let stats = rig.stack.stats();
    assert_eq!((stats[0].lane.begun, stats[0].lane.brought), (1, 1));
    Arc::into_inner(rig).unwrap().end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_39_when_the_first_tier_fails_the_next_one_brings_it() {
    for trick in [Trick::Gone, Trick::Away, Trick::Lie, Trick::SayOnly] {
        let rig = Rig::new(&[TierKind::Disk, TierKind::Peers, TierKind::Shared]);
        *rig.tiers[0].trick.lock() = trick;
        // The tier between does not have it.
        for at in [0, 2] {
            rig.tiers[at].hold(&[chunk(1)]);
        }
        rig.comes(&[chunk(1)]).await;
        eventually("it is there", || rig.is_ready(1)).await;
        assert_eq!((rig.tiers[0].fetches(), rig.tiers[1].fetches()), (vec![chunk(1)], vec![]));
        assert_eq!(rig.tiers[2].fetches(), [chunk(1)], "{trick:?}");
        rig.idle().await;
        assert_eq!(rig.stack.stats()[0].lane.failures.values().sum::<u64>(), 1);
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tier_that_hangs_leaves_time_for_those_behind_it() {
    let rig = Rig::with(&[TierKind::Peers, TierKind::Shared], |config| {
        config.fetch_time = Duration::from_secs(2);
    });
    *rig.tiers[0].trick.lock() = Trick::Hang;
    rig.tiers.iter().for_each(|tier| tier.hold(&[chunk(1)]));
    rig.comes(&[chunk(1)]).await;
    eventually("it is there", || rig.is_ready(1)).await;
    assert_eq!(rig.failures(0, "deadline"), 1);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_fails_is_a_miss_and_is_not_begun_again_at_once() {
    let rig = Rig::new(&[TierKind::Peers]);
    rig.tier().hold(&[chunk(1)]);
    rig.tier().fail_first.store(1, Ordering::Release);
    rig.comes(&[chunk(1)]).await;
    rig.idle().await;
    assert_eq!(rig.seek(&[chunk(1)]).await, [Sought::Absent(None)]);
    assert_eq!(rig.tier().fetches().len(), 1);
    let begun = Instant::now();
    while !is_coming(&rig.seek(&[chunk(1)]).await[0]) {
        assert!(begun.elapsed() < PATIENCE, "it is never tried again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eventually("it is there", || rig.is_ready(1)).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_lie_are_never_ready() {
    let rig = Rig::new(&[TierKind::Peers]);
    *rig.tier().trick.lock() = Trick::Lie;
    rig.tier().hold(&[chunk(1), chunk_of(1, 1)]);
    rig.comes(&[chunk(1), chunk_of(1, 1)]).await;
    rig.idle().await;
    let answer =
        rig.bench.engine.lookup(rig.session, a(), &[chunk(1), chunk_of(1, 1)], LeaseAsk::None).unwrap();
    assert!(answer.chunks.iter().all(|answer| !matches!(answer, crate::engine::ChunkAnswer::Ready { .. })));
    assert_eq!(rig.failures(0, "corrupt"), 2);
    assert_eq!(rig.seek(&[chunk(1)]).await, [Sought::Absent(Some(Reason::BadDigest))]);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_behind_a_gap_is_fetched_where_a_hit_needs_all_before() {
    let rig = Rig::new(&[TierKind::Peers]);
    rig.tier().hold(&[chunk(0), chunk(2), chunk_of(1, 2)]);
    let sought = rig.seek(&[chunk(0), chunk(1), chunk(2), chunk_of(1, 2)]).await;
    let comes: Vec<bool> = sought.iter().map(is_coming).collect();
    assert_eq!(comes, [true, false, false, true], "groups have gaps of their own");
    rig.idle().await;
    assert_eq!(rig.tier().fetches().len(), 2);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_comes_from_its_front_and_so_many_at_one_time() {
    let rig = Rig::with(&[TierKind::Peers], |config| config.fetches = 3);
    let all: Vec<_> = (0..12).map(chunk).collect();
    rig.tier().hold(&all);
    rig.tier().stop();
    rig.comes(&all).await;
    eventually("three are under way", || rig.tier().under_way.load(Ordering::Acquire) == 3).await;
    let mut first = rig.tier().fetches();
    first.sort_unstable();
    let mut expected = all[..3].to_vec();
    expected.sort_unstable();
    assert_eq!(first, expected);
    rig.tier().go(1 << 10);
    eventually("all are there", || (0..12).all(|n| rig.is_ready(n))).await;
    assert_eq!(rig.tier().most_under_way.load(Ordering::Acquire), 3);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_bytes_than_may_be_on_their_way_are_not_begun_and_counted() {
    // A chunk counts 64 KiB at least.
    let rig = Rig::with(&[TierKind::Peers], |config| config.fetch_bytes = 128 << 10);
    let all: Vec<_> = (0..4).map(chunk).collect();
    rig.tier().hold(&all);
    rig.tier().stop();
    let sought = rig.seek(&all).await;
    assert!(sought[..2].iter().all(is_coming));
    assert_eq!(sought[2], Sought::Absent(Some(Reason::Throttled)));
    assert_eq!(sought[3], Sought::Absent(None), "of no use without the one before");
    assert_eq!(rig.stack.stats()[0].lane.throttled, 1);
    rig.tier().go(1 << 10);
    rig.idle().await;
    rig.comes(&all[2..]).await;
    eventually("all are there", || (0..4).all(|n| rig.is_ready(n))).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_takes_no_longer_than_its_deadline_and_a_slow_tier_leaves_time_for_the_next() {
    let rig = Rig::new(&[TierKind::Disk, TierKind::Peers]);
    *rig.tiers[0].find_takes.lock() = Duration::from_secs(3600);
    rig.tiers[1].hold(&[chunk(1)]);
    let sought = rig.stack.seek(a(), &[chunk(1)], Instant::now() + Duration::from_secs(1)).await;
    assert!(is_coming(&sought[0]), "{sought:?}");
    assert_eq!(rig.stack.stats()[0].late_finds, 1);
    *rig.tiers[1].find_takes.lock() = Duration::from_secs(3600);
    let begun = Instant::now();
    let sought = rig.stack.seek(a(), &[chunk(2)], begun + Duration::from_millis(50)).await;
    assert_eq!(sought, [Sought::Absent(None)]);
    assert!(begun.elapsed() < PATIENCE);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_stored_goes_down_and_peers_hear_what_is_lost() {
    let bench = Bench::with_slots(4);
    let tiers = [TierKind::Disk, TierKind::Peers].map(FakeTier::new).to_vec();
    let rig = Rig::over(bench, tiers, |_| ());
    let (disk, peers) = (&rig.tiers[0], &rig.tiers[1]);
    for n in 0..8 {
        rig.bench.put(rig.session, n);
        let told = || peers.heard.lock().contains(&Heard::Keep(chunk(n)));
        eventually("it goes down", || disk.kept.lock().contains_key(&chunk(n)) && told()).await;
    }
    assert_eq!(disk.kept.lock()[&chunk(7)], bytes_of(chunk(7), 0, FULL));
    // Not always the first four: what a tier still reads is passed over.
    let gone: Vec<_> = (0..8).filter(|&n| !rig.is_ready(n)).map(chunk).collect();
    assert_eq!(gone.len(), 4);
    let is_withdrawn = |chunk: &ChunkId| {
        peers.heard.lock().iter().any(|h| matches!(h, Heard::Withdraw(all) if all.contains(chunk)))
    };
    eventually("what is lost is withdrawn", || gone.iter().all(is_withdrawn)).await;
    let withdrawn = (0..8).map(chunk).filter(is_withdrawn).count();
    assert_eq!(withdrawn, 4, "what is here is not withdrawn");
    assert!(!disk.heard.lock().iter().any(|heard| matches!(heard, Heard::Withdraw(_))));
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tier_is_not_given_what_it_brought_and_peers_hear_of_everything() {
    let rig = Rig::with(&[TierKind::Disk, TierKind::Peers, TierKind::Shared], |c| c.shared_min_hits = 0);
    for (at, tier) in (0..3).zip(&rig.tiers) {
        tier.hold(&[chunk(at)]);
    }
    rig.comes(&[chunk(0), chunk(1), chunk(2)]).await;
    let kept = |at: usize| {
        let mut kept = rig.tiers[at].kept();
        kept.sort_unstable();
        kept
    };
    let sorted = |all: &[u32]| {
        let mut all: Vec<_> = all.iter().map(|&n| chunk(n)).collect();
        all.sort_unstable();
        all
    };
    eventually("all is passed on", || {
        kept(0) == sorted(&[1, 2]) && kept(1) == sorted(&[0, 1, 2]) && kept(2) == sorted(&[0, 1])
    })
    .await;
    rig.stack.used(a(), || vec![chunk(2)]);
    rig.bench.put(rig.session, 9);
    eventually("later news came", || kept(2) == sorted(&[0, 1, 9])).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shared_tier_is_given_what_requests_have_found_often_enough_once() {
    let rig = Rig::with(&[TierKind::Shared], |config| config.shared_min_hits = 2);
    rig.bench.put(rig.session, 1);
    rig.bench.put(rig.session, 2);
    rig.stack.used(a(), || vec![chunk(1), chunk(2)]);
    rig.stack.used(a(), || vec![chunk(1)]);
    eventually("it is given", || rig.tier().kept() == [chunk(1)]).await;
    rig.stack.used(a(), || vec![chunk(1)]);
    rig.stack.used(a(), || vec![chunk(1)]);
    rig.stack.used(a(), || vec![chunk(2)]);
    eventually("the other follows", || rig.tier().kept() == [chunk(1), chunk(2)]).await;
    // A reset begins the count anew.
    rig.bench.engine.reset(ResetScope::One(a()));
    rig.stack.forget(ResetScope::One(a())).await.unwrap();
    rig.bench.put(rig.session, 1);
    rig.stack.used(a(), || vec![chunk(1)]);
    rig.stack.used(a(), || vec![chunk(1)]);
    eventually("it is given again", || rig.tier().kept().len() == 3).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tier_that_cannot_keep_up_holds_up_nobody_and_what_is_dropped_is_counted() {
    let rig = Rig::with(&[TierKind::Shared, TierKind::Peers], |config| config.shared_min_hits = 0);
    rig.tiers[0].stop();
    let begun = Instant::now();
    for n in 0..32 {
        rig.bench.put(rig.session, n);
    }
    for _ in 0..20_000 {
        rig.stack.used(a(), || vec![chunk(0)]);
    }
    assert!(begun.elapsed() < PATIENCE);
    eventually("the other tier hears all", || rig.tiers[1].kept().len() == 32).await;
    assert!(rig.tiers[0].kept().len() < 32);
    assert!(rig.stack.stats()[0].keeps.dropped > 0);
    assert_eq!(rig.stack.stats()[1].keeps.dropped, 0);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_of_keeping_are_counted() {
    for (kept, count) in [
        (Kept::Yes, [1, 0, 0, 0]),
        (Kept::Unwanted, [0, 1, 0, 0]),
        (Kept::Throttled, [0, 0, 1, 0]),
        (Kept::Failed, [0, 0, 0, 1]),
    ] {
        let rig = Rig::new(&[TierKind::Disk]);
        *rig.tier().keeps.lock() = kept;
        rig.bench.put(rig.session, 1);
        eventually("it is counted", || {
            let keeps = rig.stack.stats().remove(0).keeps;
            [keeps.kept, keeps.unwanted, keeps.throttled, keeps.failed] == count
        })
        .await;
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_the_middle_leaves_nothing() {
    let rig = Rig::new(&[TierKind::Disk, TierKind::Peers]);
    let all: Vec<_> = (0..30).map(chunk).collect();
    rig.tiers[1].hold(&all);
    rig.tiers.iter().for_each(|tier| tier.stop());
    rig.bench.put(rig.session, 40);
    rig.comes(&all).await;
    eventually("fetches are under way", || rig.tiers[1].under_way.load(Ordering::Acquire) > 0).await;
    eventually("one is being kept", || !rig.tiers[0].kept().is_empty()).await;
    rig.stack.stop(Instant::now() + PATIENCE).await;
    assert_eq!(rig.seek(&all).await, vec![Sought::Absent(None); 30], "nothing begins after it");
    assert_eq!((rig.under_way(), rig.stack.held()), (0, (0, 0, 0)));
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_begins_nothing_and_tells_every_tier() {
    let rig = Rig::new(&[TierKind::Disk, TierKind::Peers]);
    rig.tiers[1].hold(&[chunk(1)]);
    rig.stack.drain(Instant::now() + PATIENCE).await;
    assert!(rig.tiers.iter().all(|tier| tier.has_heard(&Heard::Drain)));
    assert_eq!(rig.seek(&[chunk(1)]).await, [Sought::Absent(Some(Reason::Throttled))]);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tier_that_panics_is_a_failed_fetch_and_the_next_ones_have_their_turn() {
    let rig = Rig::with(&[TierKind::Peers], |config| config.fetches = 1);
    rig.tier().hold(&[chunk(1), chunk_of(1, 1)]);
    *rig.tier().trick.lock() = Trick::Panic;
    rig.comes(&[chunk(1)]).await;
    rig.idle().await;
    *rig.tier().trick.lock() = Trick::Bring;
    rig.comes(&[chunk(1), chunk_of(1, 1)]).await;
    eventually("it is there", || rig.is_ready(1)).await;
    rig.end().await;
}

/// Whatever tiers do, what is READY is right, and when all is over nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn tiers_that_do_anything_leave_an_arena_that_is_right() {
    for seed in 0..6 {
        let kinds = [TierKind::Disk, TierKind::Peers, TierKind::Shared];
        let tiers: Vec<_> =
            (0..).zip(kinds).map(|(at, kind)| FakeTier::seeded(kind, seed * 10 + at)).collect();
        let rig = Rig::over(Bench::with_slots(32), tiers, |config| {
            config.fetch_time = Duration::from_millis(300);
            config.shared_min_hits = 0;
        });
        let all: Vec<_> = (0..24).map(|n| chunk_of(u16::from(n % 3 == 0), n)).collect();
        for tier in &rig.tiers {
            tier.hold(&all);
            *tier.trick.lock() = Trick::Any;
        }
        for round in 0..4 {
            for &one in &all {
                rig.seek(&[one]).await;
            }
            if round == 2 {
                rig.bench.engine.reset(ResetScope::One(a()));
                rig.stack.forget(ResetScope::One(a())).await.unwrap();
                rig.tiers.iter().for_each(|tier| tier.hold(&all));
            }
            rig.idle().await;
        }
        for &one in &all {
            let ask = LeaseAsk::Lease { ttl: None, locate: false };
            let answer = rig.bench.engine.lookup(rig.session, a(), &[one], ask).unwrap();
            let Some(lease) = answer.lease else { continue };
            for part in 0..=one.group.0 {
                let read =
                    rig.bench.engine.read(rig.session, lease.id.get(), 0, tender_proto::PartIndex(part));
                assert_eq!(read.unwrap().as_ref(), bytes_of(one, part, FULL), "seed {seed}");
            }
            rig.bench.engine.release(rig.session, &[lease.id.get()]).unwrap();
        }
        // Parts that were finished of chunks that did not come whole stay until their time is over.
        rig.stack.stop(Instant::now() + PATIENCE).await;
        rig.bench.pass(Duration::from_secs(3600));
        rig.end().await;
    }
}

#[tokio::test]
async fn who_holds_a_chunk_is_told_and_nothing_is_fetched() {
    let rig = Rig::new(&[TierKind::Disk, TierKind::Shared]);
    rig.tiers[0].hold(&[chunk(1)]);
    rig.tiers[1].hold(&[chunk(1), chunk(2)]);
    let chunks = [chunk(1), chunk(2), chunk(3)];
    let asked = |namespace| rig.stack.holders(namespace, &chunks, Instant::now() + PATIENCE);
    let expected = vec![Some(TierKind::Disk), Some(TierKind::Shared), None];
    assert_eq!(asked(a()).await, expected);
    // A namespace that is not there has nothing, whatever its name.
    assert_eq!(asked(tender_proto::NamespaceDigest::parse(&[7; 32]).unwrap()).await, vec![None; 3]);
    assert!(rig.tiers.iter().all(|tier| tier.fetches().is_empty()));
    assert_eq!(rig.stack.stats()[0].asked_chunks, 0, "it is no lookup");
    // One that does not answer keeps nobody longer than its share.
    *rig.tiers[0].find_takes.lock() = Duration::from_secs(3600);
    let holders = rig.stack.holders(a(), &chunks, Instant::now() + Duration::from_millis(200)).await;
    assert_eq!(holders, vec![Some(TierKind::Shared), Some(TierKind::Shared), None]);
    rig.end().await;
}
