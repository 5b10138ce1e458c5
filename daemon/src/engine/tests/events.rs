//! Whoever applies what a follower hears to an empty set has what lookups find, whatever was done and however slow it is.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::access::policy::DomainQuota;
use crate::index::journal::Change;

const KEYS: u32 = 6;
const COVERAGES: [u64; 3] = [0b0011, 0b0111, FULL];

/// What a watcher holds: the coverage of each chunk.
#[derive(Default, Debug)]
struct View {
    chunks: BTreeMap<(NamespaceDigest, ChunkId), u64>,
    /// The last word was that nothing is missing.
    complete: bool,
    begun: u64,
    lost: u64,
    next: u64,
}

impl View {
    /// Takes one piece of news; false: there was none.
    fn take(&mut self, follower: &mut Follower, most: usize) -> bool {
        match follower.take(most) {
            News::Begin { lost } => {
                (self.complete, self.next) = (false, follower.next_sequence());
                (self.begun, self.lost) = (self.begun + 1, self.lost + u64::from(lost));
                self.chunks.clear();
            }
            News::Snapshot(page) => {
                assert!(!self.complete, "a snapshot ends");
                for (namespace, chunk, coverage) in page {
                    self.chunks.insert((namespace.descriptor.digest(), chunk), coverage.bits());
                }
            }
            News::Changes(first, events) => {
                assert!(first == self.next && events.len() <= most);
                self.next += events.len() as u64;
                events
                    .into_iter()
                    .for_each(|event| self.apply(event.namespace.descriptor.digest(), event.change));
            }
            News::Complete => self.complete = true,
            News::Nothing => {
                assert!(self.complete, "who has heard everything is told that it is complete");
                return false;
            }
        }
        true
    }

    fn apply(&mut self, namespace: NamespaceDigest, change: Change) {
        match change {
            Change::Stored(chunk, coverage) => {
                let before = self.chunks.insert((namespace, chunk), coverage.bits());
                let grows = before
                    .is_none_or(|before| before != coverage.bits() && before & coverage.bits() == before);
                assert!(grows || !self.complete, "{chunk} was stored twice: {before:?}, {coverage:?}");
            }
            Change::Removed(chunk, _) => {
                let before = self.chunks.remove(&(namespace, chunk));
                assert!(before.is_some() || !self.complete, "{chunk} was removed before it was stored");
            }
            Change::Cleared => self.chunks.retain(|(of, _), _| *of != namespace),
        }
    }

    fn catch_up(&mut self, follower: &mut Follower) {
        while self.take(follower, 3) {}
    }
}

/// The domain where there is no policy.
fn nobody() -> Arc<str> {
    Arc::from("")
}

fn follower(bench: &Bench) -> Follower {
    bench.engine.follow(Position::Start, &nobody()).unwrap()
}

/// What lookups find of all the keys of these tests.
fn found(bench: &Bench) -> BTreeMap<(NamespaceDigest, ChunkId), u64> {
    let session = bench.session();
    let mut found = BTreeMap::new();
    for namespace in [a(), b()] {
        let chunks: Vec<_> = (0..2).flat_map(|group| (0..KEYS).map(move |n| chunk_of(group, n))).collect();
        let answer = bench.engine.lookup(session, namespace, &chunks, LeaseAsk::None).unwrap();
        for (chunk, answer) in chunks.into_iter().zip(answer.chunks) {
            if let ChunkAnswer::Ready { coverage, .. } = answer {
                found.insert((namespace, chunk), coverage.bits());
            }
        }
    }
    bench.engine.close_session(session);
    found
}

/// Stores as far as the engine lets it. Group 1 has two parts.
fn store(
    bench: &Bench,
    session: SessionId,
    namespace: NamespaceDigest,
    chunk: ChunkId,
    coverage: u64,
    parts: u16,
) {
    for part in 0..parts {
        let ask = ask_part(chunk, part, coverage);
        let answer = bench.engine.reserve(session, namespace, &[ask]).unwrap()[0];
        let ReserveAnswer::Reserved(id) = answer else { continue };
        let bytes = bytes_of(chunk, part, coverage);
        if let Ok(mut writer) = bench.engine.begin_write(session, id.get())
            && writer.write(0, &bytes).is_ok()
        {
            _ = writer.finish(ContentDigest::of(&bytes), coverage);
        }
    }
}

/// Changes bytes of a stored chunk in the arena's file and lets the daemon find that.
fn damage(bench: &Bench, session: SessionId, namespace: NamespaceDigest, chunk: ChunkId) {
    let ask = LeaseAsk::Lease { ttl: None, locate: true };
    let answer = bench.engine.lookup(session, namespace, &[chunk], ask).unwrap();
    let (ChunkAnswer::Ready { parts, .. }, Some(lease)) = (&answer.chunks[0], answer.lease) else { return };
    let file = File::options().write(true).open(&bench.engine.config().arena.place).unwrap();
    file.write_all_at(b"what nobody has stored", parts[0].offset_bytes).unwrap();
    bench.engine.suspects(session, lease.id.get(), &[0]).verify();
    bench.engine.release(session, &[lease.id.get()]).unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    Store { ns: usize, group: u16, key: u32, coverage: usize, parts: u16 },
    Damage { ns: usize, group: u16, key: u32 },
    Reset { ns: Option<usize> },
    Pass,
    Listen { most: usize, times: usize },
    Compare,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (0usize..2, 0u16..2, 0..KEYS, 0..COVERAGES.len(), 1u16..=2).prop_map(
            |(ns, group, key, coverage, parts)| Op::Store { ns, group, key, coverage, parts: parts.min(group + 1) }
        ),
        2 => (0usize..2, 0u16..2, 0..KEYS).prop_map(|(ns, group, key)| Op::Damage { ns, group, key }),
        2 => prop::option::weighted(0.8, 0usize..2).prop_map(|ns| Op::Reset { ns }),
        1 => Just(Op::Pass),
        6 => (1usize..4, 1usize..6).prop_map(|(most, times)| Op::Listen { most, times }),
        3 => Just(Op::Compare),
    ]
}

fn namespace(ns: usize) -> NamespaceDigest {
    [a(), b()][ns]
}

proptest! {
    #[test]
    fn a_watcher_that_was_told_everything_has_what_lookups_find(
        ops in prop::collection::vec(op(), 1..150), kept in 1usize..12,
    ) {
        let bench = Bench::with_slots(8);
        bench.engine.keep_changes(kept);
        let session = bench.session();
        let (mut view, mut follower) = (View::default(), follower(&bench));
        for op in ops {
            match op {
                Op::Store { ns, group, key, coverage, parts } => {
                    store(&bench, session, namespace(ns), chunk_of(group, key), COVERAGES[coverage], parts);
                }
                Op::Damage { ns, group, key } => {
                    damage(&bench, session, namespace(ns), chunk_of(group, key));
                }
                Op::Reset { ns } => {
                    bench.engine.reset(ns.map_or(ResetScope::All, |ns| ResetScope::One(namespace(ns))));
                }
                Op::Pass => bench.pass(2 * RESERVATION),
                Op::Listen { most, times } => _ = (0..times).all(|_| view.take(&mut follower, most)),
                Op::Compare => {
                    view.catch_up(&mut follower);
                    prop_assert_eq!(&view.chunks, &found(&bench));
                }
            }
        }
        view.catch_up(&mut follower);
        prop_assert_eq!(&view.chunks, &found(&bench));
        prop_assert_eq!(view.begun, view.lost + 1);
    }
}

/// Threads that store, and how far they are.
struct Storing {
    bench: Bench,
    going_on: AtomicBool,
    changes: AtomicU64,
}

const ROUNDS: u32 = 400;

impl Storing {
    /// Stores more than there is room for, resets and damages.
    fn store(&self, thread: u32) {
        let session = self.bench.session();
        for round in 0..ROUNDS {
            let (key, group) = ((round * 5 + thread) % KEYS, u16::from(round % 3 == 0));
            let (ns, chunk) = (namespace((round as usize / 7) % 2), chunk_of(group, key));
            store(&self.bench, session, ns, chunk, COVERAGES[round as usize % 3], group + 1);
            self.changes.fetch_add(1, Ordering::Relaxed);
            match round % 80 {
                33 => drop(self.bench.engine.reset(ResetScope::One(ns))),
                71 if thread == 0 => drop(self.bench.engine.reset(ResetScope::All)),
                79 => damage(&self.bench, session, ns, chunk),
                _ => {}
            }
        }
        self.bench.engine.close_session(session);
    }

    /// Waits for so many changes, or the end.
    fn wait_for(&self, changes: u64) {
        while self.going_on.load(Ordering::Acquire) && self.changes.load(Ordering::Relaxed) < changes {
            thread::yield_now();
        }
    }

    /// Listens from the change `begin` on, each time when `pause` more were made, until all is over and heard.
    fn watch(&self, begin: u64, pause: u64) -> View {
        self.wait_for(begin);
        let (mut view, mut follower) = (View::default(), follower(&self.bench));
        loop {
            self.wait_for(self.changes.load(Ordering::Relaxed) + pause);
            let over = !self.going_on.load(Ordering::Acquire);
            if !view.take(&mut follower, 7) {
                if over {
                    return view;
                }
                thread::yield_now();
            }
        }
    }
}

/// One watcher is quick, one falls behind again and again, and one begins late.
#[test]
fn watchers_beside_many_threads_have_in_the_end_what_lookups_find() {
    let (going_on, changes) = (AtomicBool::new(true), AtomicU64::new(0));
    let storing = Storing { bench: Bench::with_slots(8), going_on, changes };
    storing.bench.engine.keep_changes(32);
    thread::scope(|scope| {
        let storing = &storing;
        let watchers = [(0, 0), (0, 100), (u64::from(ROUNDS), 0)]
            .map(|(begin, pause)| scope.spawn(move || storing.watch(begin, pause)));
        let stores = [0, 1, 2, 3].map(|thread| scope.spawn(move || storing.store(thread)));
        let ended = stores.map(thread::ScopedJoinHandle::join);
        storing.going_on.store(false, Ordering::Release);
        ended.into_iter().for_each(|ended| ended.unwrap());
        let views = watchers.map(|watcher| watcher.join().unwrap());
        let found = found(&storing.bench);
        for view in &views {
            assert_eq!(view.chunks, found);
        }
        assert!(views[1].lost > 0, "the slow one never fell behind: {views:?}");
    });
}

#[test]
fn a_watcher_goes_on_where_it_was_or_is_told_that_it_cannot() {
    let bench = Bench::with_slots(8);
    bench.engine.keep_changes(4);
    let session = bench.session();
    let (mut view, mut first) = (View::default(), follower(&bench));
    bench.put(session, 0);
    view.catch_up(&mut first);
    let at = first.next_sequence();
    drop(first);
    bench.put(session, 1);
    let mut second = bench.engine.follow(Position::At(at), &nobody()).unwrap();
    view.catch_up(&mut second);
    assert_eq!((view.chunks.clone(), view.begun), (found(&bench), 1));
    (2..8).for_each(|n| bench.put(session, n));
    for place in [at, 0, u64::MAX] {
        let mut lost = bench.engine.follow(Position::At(place), &nobody()).unwrap();
        assert!(matches!(lost.take(1), News::Begin { lost: true }), "{place}");
    }
}

#[test]
fn followers_have_a_limit_and_leave_their_place() {
    let bench = Bench::with_slots(4);
    let all: Vec<_> = (0..64).map(|_| follower(&bench)).collect();
    assert_eq!(bench.engine.follow(Position::Start, &nobody()).unwrap_err().reason, Reason::TooMany);
    drop(all);
    follower(&bench);
}

#[test]
fn a_domain_with_all_watchers_that_it_may_have_leaves_others_theirs() {
    let bench = Bench::with_slots(4);
    let [greedy, other, limited]: [Arc<str>; 3] = ["greedy", "other", "limited"].map(Arc::from);
    let follow = |domain| bench.engine.follow(Position::Start, domain);
    let mut all: Vec<_> = (0..32).map(|_| follow(&greedy).unwrap()).collect();
    assert_eq!(follow(&greedy).unwrap_err().reason, Reason::OverQuota);
    all.push(follow(&other).unwrap());
    let quota = DomainQuota { watchers: 1, ..DomainQuota::default() };
    bench.engine.set_quotas([(Arc::clone(&limited), quota)].into());
    all.push(follow(&limited).unwrap());
    assert_eq!(follow(&limited).unwrap_err().reason, Reason::OverQuota);
    drop(all);
    follow(&limited).unwrap();
}

/// Otherwise whoever registers ever new namespaces would make the daemon grow.
#[test]
fn changes_keep_no_more_descriptors_than_they_may_and_who_misses_them_is_told() {
    let bench = Bench::with_slots(8);
    let one = descriptor("model 10").in_domain("").encode().len();
    bench.engine.keep_descriptors(3 * one);
    let (mut view, mut slow) = (View::default(), follower(&bench));
    view.catch_up(&mut slow);
    for n in 10..20 {
        let descriptor = descriptor(&format!("model {n}"));
        let session = bench.engine.open_session("test", 1).unwrap();
        bench.engine.register(session, descriptor.clone(), descriptor.digest(), None).unwrap();
        store(&bench, session, descriptor.digest(), chunk(n), FULL, 1);
        // Nothing is left of it but its changes.
        bench.engine.reset(ResetScope::One(descriptor.digest()));
        bench.engine.close_session(session);
        assert_eq!(bench.engine.kept_namespaces(), 3.min(n as usize - 9));
    }
    view.catch_up(&mut slow);
    assert_eq!((view.chunks, view.lost), (BTreeMap::new(), 1));
}

#[test]
fn what_an_earlier_daemon_left_is_in_the_snapshot() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    bench.put(session, 1);
    let next = bench.killed();
    let (mut view, mut follower) = (View::default(), follower(&next));
    view.catch_up(&mut follower);
    assert_eq!(view.chunks, BTreeMap::from([((a(), chunk(1)), FULL)]));
}
