//! Which chunk goes when room is needed.

use proptest::prelude::*;

use super::*;

/// Of two domains, and never full: what goes is asked for here.
struct Domains {
    bench: Bench,
    session: SessionId,
}

impl Domains {
    fn new(eviction: Eviction) -> Self {
        let bench = Bench::with(128, |config| config.eviction = eviction);
        let session = bench.engine.open_session("test", 1).unwrap();
        for domain in 0..2 {
            let d = Self::descriptor(domain);
            bench.engine.register(session, d.clone(), d.digest(), None).unwrap();
        }
        Self { bench, session }
    }
    fn descriptor(domain: usize) -> Descriptor {
        descriptor("a").in_domain(["x", "y"][domain])
    }
    fn namespace(domain: usize) -> NamespaceDigest {
        Self::descriptor(domain).digest()
    }
    fn put(&self, domain: usize, n: u32) {
        let (engine, full) = (&self.bench.engine, ask(chunk(n), FULL));
        let answers = engine.reserve(self.session, Self::namespace(domain), &[full]).unwrap();
        let ReserveAnswer::Reserved(id) = answers[0] else { panic!("{answers:?}") };
        let stored = self.bench.write(self.session, id, &bytes_of(chunk(n), 0, FULL), FULL);
        assert_eq!(stored, Ok(Stored { chunk_ready: true }));
    }
    /// An engine's lookup, or the daemon's own.
    fn look(&self, domain: usize, n: u32, house: bool, lease: bool) -> Option<u64> {
        let ask = if lease { LeaseAsk::Lease { ttl: None, locate: false } } else { LeaseAsk::None };
        let (engine, namespace, chunks) = (&self.bench.engine, Self::namespace(domain), [chunk(n)]);
        let answer = if house {
            engine.look(self.session, namespace, &chunks, ask)
        } else {
            engine.lookup(self.session, namespace, &chunks, ask)
        };
        answer.unwrap().lease.map(|lease| lease.id.get())
    }
    /// Makes room, in one domain or anywhere.
    fn evict(&self, domain: Option<usize>) -> Option<ChunkId> {
        let core = &self.bench.engine.core;
        let evicted = match domain {
            Some(domain) => {
                core.index.evict_next_of(core.namespaces.get(Self::namespace(domain)).unwrap().domain)
            }
            None => core.index.evict_next(),
        };
        evicted.map(|evicted| evicted.chunk)
    }
}

/// A chunk as the model knows it.
#[derive(Debug)]
struct Kept {
    n: u32,
    domain: usize,
    is_protected: bool,
    is_used: bool,
    leases: Vec<u64>,
}

/// All chunks, in the order in which they were stored, used or let go.
#[derive(Debug, Default)]
struct Model(Vec<Kept>);

impl Model {
    fn make_last(&mut self, at: usize) {
        let kept = self.0.remove(at);
        self.0.push(kept);
    }
    fn victim(&mut self, domain: Option<usize>) -> Option<u32> {
        let can_go =
            |kept: &Kept| kept.leases.is_empty() && domain.is_none_or(|domain| kept.domain == domain);
        loop {
            let all = self.0.iter().filter(|kept| can_go(kept)).count();
            let on_probation = self.0.iter().filter(|kept| can_go(kept) && !kept.is_protected).count();
            let protected_goes = 2 * on_probation < all;
            let at = self.0.iter().position(|kept| can_go(kept) && kept.is_protected == protected_goes)?;
            if protected_goes || !self.0[at].is_used {
                return Some(self.0.remove(at).n);
            }
            (self.0[at].is_protected, self.0[at].is_used) = (true, false);
            self.make_last(at);
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put { domain: usize },
    Look { at: usize, house: bool, lease: bool },
    Release { at: usize },
    Evict { domain: Option<usize> },
}

fn op() -> impl Strategy<Value = Op> {
    let at = 0usize..64;
    prop_oneof![
        6 => (0usize..2).prop_map(|domain| Op::Put { domain }),
        6 => (at.clone(), prop::bool::weighted(0.2), prop::bool::weighted(0.3))
            .prop_map(|(at, house, lease)| Op::Look { at, house, lease }),
        2 => at.prop_map(|at| Op::Release { at }),
        3 => prop::option::of(0usize..2).prop_map(|domain| Op::Evict { domain }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Every key is stored once, so that nothing comes back after it went.
    #[test]
    fn the_victim_is_the_one_that_a_plain_list_names(
        is_lru in any::<bool>(),
        ops in prop::collection::vec(op(), 1..100),
    ) {
        let domains = Domains::new(if is_lru { Eviction::Lru } else { Eviction::TwoQueue });
        let (mut model, mut next) = (Model::default(), 0);
        for op in ops {
            match op {
                Op::Put { domain } => {
                    domains.put(domain, next);
                    let (is_protected, is_used, leases) = (is_lru, false, Vec::new());
                    model.0.push(Kept { n: next, domain, is_protected, is_used, leases });
                    next += 1;
                }
                Op::Look { at, house, lease } => {
                    let Some(at) = at.checked_rem(model.0.len()) else { continue };
                    let kept = &mut model.0[at];
                    if lease && kept.leases.len() == 2 {
                        continue;
                    }
                    let was_held = !kept.leases.is_empty();
                    kept.leases.extend(domains.look(kept.domain, kept.n, house, lease));
                    kept.is_used |= !house;
                    if !was_held && !lease && !house {
                        model.make_last(at);
                    }
                }
                Op::Release { at } => {
                    let Some(at) = at.checked_rem(model.0.len()) else { continue };
                    let Some(lease) = model.0[at].leases.pop() else { continue };
                    domains.bench.release(domains.session, lease);
                    if model.0[at].leases.is_empty() {
                        model.make_last(at);
                    }
                }
                Op::Evict { domain } => {
                    prop_assert_eq!(domains.evict(domain), model.victim(domain).map(chunk));
                }
            }
            domains.bench.audit();
        }
    }
}

#[test]
fn a_flood_does_not_push_out_what_is_used_again() {
    for (eviction, survives) in [(Eviction::TwoQueue, true), (Eviction::Lru, false)] {
        let bench = Bench::with(8, |config| config.eviction = eviction);
        let session = bench.session();
        (1..=4).for_each(|n| bench.put(session, n));
        (1..=4).for_each(|n| assert!(bench.is_ready(session, n)));
        (100..150).for_each(|n| bench.put(session, n));
        (1..=4).for_each(|n| assert_eq!(bench.is_ready(session, n), survives, "{n} with {eviction:?}"));
    }
}

#[test]
fn what_was_used_once_goes_in_time_when_others_are_used() {
    let bench = Bench::with_slots(8);
    let session = bench.session();
    bench.put(session, 0);
    bench.is_ready(session, 0);
    // Each is used once, so all get protected in their turn.
    for n in 1..50 {
        bench.put(session, n);
        bench.is_ready(session, n);
    }
    assert!(!bench.is_ready(session, 0));
}

#[test]
fn what_comes_back_soon_after_it_went_outlives_what_is_new() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    (1..=5).for_each(|n| bench.put(session, n));
    assert_eq!(bench.look(session, 1), ChunkAnswer::Miss(Reason::Evicted));
    bench.put(session, 1);
    bench.put(session, 6);
    (100..150).for_each(|n| bench.put(session, n));
    assert!(bench.is_ready(session, 1) && !bench.is_ready(session, 6));
}

#[test]
fn what_the_daemon_reads_for_itself_is_not_used() {
    let domains = Domains::new(Eviction::TwoQueue);
    (0..4).for_each(|n| domains.put(0, n));
    for (n, house) in [(0, true), (1, false)] {
        let lease = domains.look(0, n, house, true).unwrap();
        domains.look(0, n, house, false);
        domains.bench.release(domains.session, lease);
    }
    let gone = [(); 3].map(|()| domains.evict(None));
    assert_eq!(gone, [2, 3, 0].map(|n| Some(chunk(n))));
}

#[test]
fn a_domain_makes_room_with_its_own_whatever_others_have() {
    let domains = Domains::new(Eviction::TwoQueue);
    (0..20).for_each(|n| domains.put(0, n));
    domains.put(1, 20);
    domains.put(1, 21);
    domains.look(1, 20, false, false);
    assert_eq!(domains.evict(Some(1)), Some(chunk(21)), "it was not used again");
    assert_eq!(domains.evict(Some(1)), Some(chunk(20)));
    assert_eq!(domains.evict(Some(1)), None, "no chunk of the other domain");
    assert_eq!(domains.bench.audit().ready_chunks, 20);
}

#[test]
fn after_a_replacement_a_chunk_waits_where_it_was() {
    let bench = Bench::with_slots(8);
    let session = bench.session();
    let id = bench.reserved(session, ask(chunk(1), 0b0011));
    bench.write(session, id, &bytes_of(chunk(1), 0, 0b0011), 0b0011).unwrap();
    assert!(bench.is_ready(session, 1));
    // With more blocks, in the place of the one that was used.
    bench.put(session, 1);
    (100..150).for_each(|n| bench.put(session, n));
    assert!(bench.is_ready(session, 1));
}
