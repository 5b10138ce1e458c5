//! Random operations against a model that says what each must answer. Only eviction is the engine's choice:
//! the model learns of it from misses, and insists that nothing promised was taken.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Room for 10 full parts, while up to 6 keys of 2 parts in each of 2 namespaces are stored.
const SLOTS: u64 = 10;
const KEYS: u32 = 6;
const PARTS: u16 = 2;
const COVERAGES: [u64; 3] = [0b0011, 0b0111, FULL];

#[derive(Clone, Debug)]
enum Op {
    Open,
    Close(usize),
    Lookup {
        session: usize,
        ns: usize,
        lease: bool,
    },
    Read {
        session: usize,
        lease: usize,
        chunk: usize,
    },
    Release {
        session: usize,
        lease: usize,
    },
    Reserve {
        session: usize,
        ns: usize,
        key: u32,
        part: u16,
        coverage: usize,
    },
    /// Begins to write and stays at it.
    Begin {
        session: usize,
        reservation: usize,
    },
    Finish {
        writer: usize,
        good: bool,
    },
    Drop {
        writer: usize,
    },
    Abort {
        session: usize,
        reservation: usize,
    },
    Pass {
        millis: u64,
    },
    Reset {
        ns: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let pick = 0usize..8;
    prop_oneof![
        1 => Just(Op::Open),
        1 => pick.clone().prop_map(Op::Close),
        4 => (pick.clone(), 0usize..2, any::<bool>())
            .prop_map(|(session, ns, lease)| Op::Lookup { session, ns, lease }),
        2 => (pick.clone(), pick.clone(), 0..KEYS as usize)
            .prop_map(|(session, lease, chunk)| Op::Read { session, lease, chunk }),
        2 => (pick.clone(), pick.clone()).prop_map(|(session, lease)| Op::Release { session, lease }),
        10 => (pick.clone(), 0usize..2, 0..KEYS, 0..PARTS, 0..COVERAGES.len())
            .prop_map(|(session, ns, key, part, coverage)| Op::Reserve { session, ns, key, part, coverage }),
        10 => (pick.clone(), 0usize..32).prop_map(|(session, reservation)| Op::Begin { session, reservation }),
        10 => (pick.clone(), prop::bool::weighted(0.9)).prop_map(|(writer, good)| Op::Finish { writer, good }),
        1 => pick.clone().prop_map(|writer| Op::Drop { writer }),
        1 => (pick.clone(), 0usize..32).prop_map(|(session, reservation)| Op::Abort { session, reservation }),
        2 => (0u64..6000).prop_map(|millis| Op::Pass { millis }),
        1 => (0usize..2).prop_map(|ns| Op::Reset { ns }),
    ]
}

type KeyOf = (usize, u32);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Slot {
    Empty,
    Held(usize),
    Done,
}

#[derive(Debug)]
struct Pending {
    coverage: u64,
    deadline: Instant,
    slots: [Slot; PARTS as usize],
}

/// A reservation that was ever given out.
#[derive(Debug)]
struct Given {
    id: ReservationId,
    session: SessionId,
    key: KeyOf,
    part: u16,
    coverage: u64,
    deadline: Instant,
    /// What a commit would hear; `None` while it is good.
    over: Option<Reason>,
    writing: bool,
}

#[derive(Debug)]
struct Lease {
    id: u64,
    session: SessionId,
    deadline: Instant,
    ns: usize,
    /// Coverage of each key that was READY.
    chunks: Vec<Option<u64>>,
}

struct Model {
    bench: Bench,
    sessions: Vec<SessionId>,
    ready: BTreeMap<KeyOf, u64>,
    pending: BTreeMap<KeyOf, Pending>,
    given: Vec<Given>,
    writers: Vec<(usize, PartWriter)>,
    leases: Vec<Lease>,
}

fn namespace(ns: usize) -> NamespaceDigest {
    [a(), b()][ns]
}

impl Model {
    fn new() -> Self {
        let bench = Bench::with_slots(SLOTS);
        let sessions = vec![bench.session()];
        let (ready, pending) = (BTreeMap::new(), BTreeMap::new());
        Self { bench, sessions, ready, pending, given: vec![], writers: vec![], leases: vec![] }
    }
    fn session(&self, pick: usize) -> Option<SessionId> {
        (!self.sessions.is_empty()).then(|| self.sessions[pick % self.sessions.len()])
    }
    fn now(&self) -> Instant {
        self.bench.clock.now()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Open if self.sessions.len() < 4 => self.sessions.push(self.bench.session()),
            Op::Open => {}
            Op::Close(pick) => self.close(pick),
            Op::Lookup { session, ns, lease } => self.lookup(session, ns, lease),
            Op::Read { session, lease, chunk } => self.read(session, lease, chunk),
            Op::Release { session, lease } => self.release(session, lease),
            Op::Reserve { session, ns, key, part, coverage } => {
                self.reserve(session, (ns, key), part, COVERAGES[coverage]);
            }
            Op::Begin { session, reservation } => self.begin(session, reservation),
            Op::Finish { writer, good } => self.finish(writer, good),
            Op::Drop { writer } => self.drop_writer(writer),
            Op::Abort { session, reservation } => self.abort(session, reservation),
            Op::Pass { millis } => self.pass(millis),
            Op::Reset { ns } => self.reset(ns),
        }
    }

    fn close(&mut self, pick: usize) {
        let Some(session) = self.session(pick) else { return };
        self.bench.engine.close_session(session);
        self.sessions.retain(|open| *open != session);
        self.leases.retain(|lease| lease.session != session);
        for index in 0..self.given.len() {
            if self.given[index].session == session && self.given[index].over.is_none() {
                self.give_up(index, Reason::UnknownSession);
            }
        }
    }

    /// Frees the slot of a reservation; the version goes when nothing is left of it.
    fn give_up(&mut self, index: usize, reason: Reason) {
        let given = &mut self.given[index];
        given.over = Some(reason);
        let (key, part) = (given.key, usize::from(given.part));
        let Some(pending) = self.pending.get_mut(&key) else { return };
        if pending.slots[part] == Slot::Held(index) {
            pending.slots[part] = Slot::Empty;
            if pending.slots.iter().all(|slot| *slot == Slot::Empty) {
                self.pending.remove(&key);
            }
        }
    }

    fn lookup(&mut self, pick: usize, ns: usize, lease: bool) {
        let Some(session) = self.session(pick) else { return };
        let chunks: Vec<_> = (0..KEYS).map(|n| chunk_of(1, n)).collect();
        let ask = if lease { LeaseAsk::Lease { ttl: None, locate: true } } else { LeaseAsk::None };
        let answer = match self.bench.engine.lookup(session, namespace(ns), &chunks, ask) {
            Ok(answer) => answer,
            Err(refusal) => {
                let held = self.leases.iter().filter(|held| held.session == session).count();
                assert!(refusal.reason == Reason::TooMany && held >= 16, "{refusal}");
                return;
            }
        };
        let mut covered = Vec::new();
        for (n, answer) in (0..KEYS).zip(&answer.chunks) {
            let key = (ns, n);
            match answer {
                ChunkAnswer::Ready { coverage, parts } => {
                    assert_eq!(self.ready.get(&key), Some(&coverage.bits()), "{key:?}");
                    assert_eq!(parts.len(), if lease { usize::from(PARTS) } else { 0 });
                }
                other => {
                    // The engine may have evicted it, but only if nobody was promised it.
                    if self.ready.contains_key(&key) {
                        assert!(!self.is_promised(key), "{key:?} was leased and is {other:?}");
                        self.ready.remove(&key);
                        assert!(
                            matches!(other, ChunkAnswer::Miss(Reason::Evicted) | ChunkAnswer::Pending),
                            "{other:?}"
                        );
                    }
                    assert_eq!(*other == ChunkAnswer::Pending, self.pending.contains_key(&key), "{key:?}");
                }
            }
            covered.push(self.ready.get(&key).copied());
        }
        assert_eq!(answer.lease.is_some(), lease && covered.iter().any(Option::is_some));
        if let Some(LeaseGrant { id, ttl }) = answer.lease {
            let deadline = self.now() + ttl;
            self.leases.push(Lease { id: id.get(), session, deadline, ns, chunks: covered });
        }
    }

    /// A live lease holds what is READY now.
    fn is_promised(&self, (ns, n): KeyOf) -> bool {
        let current = self.ready.get(&(ns, n)).copied();
        self.leases.iter().any(|lease| lease.ns == ns && lease.chunks[n as usize] == current)
    }

    fn read(&mut self, pick: usize, lease: usize, n: usize) {
        let (Some(session), false) = (self.session(pick), self.leases.is_empty()) else { return };
        let lease = &self.leases[lease % self.leases.len()];
        let chunk = chunk_of(1, u32::try_from(n).unwrap());
        for part in 0..PARTS {
            let read = self.bench.engine.read(session, lease.id, n, PartIndex(part));
            match (lease.session == session, lease.chunks[n]) {
                (false, _) => assert_eq!(read.unwrap_err(), Reason::UnknownLease),
                (true, None) => assert_eq!(read.unwrap_err(), Reason::NeverStored),
                (true, Some(coverage)) => {
                    assert!(read.unwrap().as_ref() == bytes_of(chunk, part, coverage), "wrong bytes");
                }
            }
        }
    }

    fn release(&mut self, pick: usize, lease: usize) {
        let (Some(session), false) = (self.session(pick), self.leases.is_empty()) else { return };
        let index = lease % self.leases.len();
        let own = self.leases[index].session == session;
        let end = self.bench.release(session, self.leases[index].id);
        assert_eq!(end, if own { LeaseEnd::Live } else { LeaseEnd::Expired });
        if own {
            self.leases.remove(index);
        }
    }

    fn reserve(&mut self, pick: usize, key: KeyOf, part: u16, coverage: u64) {
        let Some(session) = self.session(pick) else { return };
        let wanted = ask_part(chunk_of(1, key.1), part, coverage);
        let answer = self.bench.engine.reserve(session, namespace(key.0), &[wanted]).unwrap()[0];
        let ready_answer = matches!(
            answer,
            ReserveAnswer::Already(Already::Ready) | ReserveAnswer::Refused(Reason::NotCovered)
        );
        if let Some(&stored) = self.ready.get(&key) {
            // COVERAGES are a chain: less or equal is there already.
            let expected = stored & coverage == coverage;
            if expected != ready_answer {
                assert!(expected && !self.is_promised(key), "{key:?}: {answer:?}");
                self.ready.remove(&key);
            }
        }
        if ready_answer {
            assert!(self.ready.contains_key(&key), "{answer:?}");
            return;
        }
        let slot = self.pending.get(&key).map(|p| (p.slots[usize::from(part)], p.coverage, p.deadline));
        match (slot, answer) {
            (Some((Slot::Held(_) | Slot::Done, ..)), ReserveAnswer::Already(Already::Pending)) => {}
            (Some((Slot::Empty, other, _)), ReserveAnswer::Refused(Reason::BadCoverage))
                if other != coverage => {}
            (Some((Slot::Empty, same, deadline)), ReserveAnswer::Reserved(id)) if same == coverage => {
                self.note_reserved(session, id, key, part, coverage, deadline);
            }
            (None, ReserveAnswer::Reserved(id)) => {
                let deadline = self.now() + RESERVATION;
                self.pending
                    .insert(key, Pending { coverage, deadline, slots: [Slot::Empty; PARTS as usize] });
                self.note_reserved(session, id, key, part, coverage, deadline);
            }
            (None | Some((Slot::Empty, ..)), ReserveAnswer::Refused(Reason::NoSpace)) => {
                let audit = self.bench.audit();
                assert!(audit.pins + audit.pending_chunks + audit.writers > 0, "no room in an idle arena");
            }
            (slot, answer) => panic!("{key:?} part {part}: {slot:?} answered {answer:?}"),
        }
    }

    fn note_reserved(
        &mut self,
        session: SessionId,
        id: ReservationId,
        key: KeyOf,
        part: u16,
        coverage: u64,
        deadline: Instant,
    ) {
        let slot = Slot::Held(self.given.len());
        if let Some(pending) = self.pending.get_mut(&key) {
            pending.slots[usize::from(part)] = slot;
        }
        self.given.push(Given { id, session, key, part, coverage, deadline, over: None, writing: false });
    }

    fn begin(&mut self, pick: usize, reservation: usize) {
        let (Some(session), false) = (self.session(pick), self.given.is_empty()) else { return };
        // The latest ones are the most interesting.
        let index = self.given.len() - 1 - reservation % self.given.len();
        let given = &mut self.given[index];
        let begun = self.bench.engine.begin_write(session, given.id.get());
        match (given.over, given.session == session, given.writing) {
            (Some(_), false, _) => assert!(begun.is_err()),
            (Some(reason), true, false) => assert_eq!(begun.unwrap_err(), reason),
            (None, false, _) => assert_eq!(begun.unwrap_err(), Reason::NotOwner),
            (_, true, true) => assert_eq!(begun.unwrap_err(), Reason::UnknownReservation),
            (None, true, false) => {
                given.writing = true;
                self.writers.push((index, begun.unwrap()));
            }
        }
    }

    fn finish(&mut self, pick: usize, good: bool) {
        if self.writers.is_empty() {
            return;
        }
        let (index, mut writer) = self.writers.remove(pick % self.writers.len());
        let (key, part, coverage) =
            (self.given[index].key, self.given[index].part, self.given[index].coverage);
        let bytes = bytes_of(chunk_of(1, key.1), part, coverage);
        let over = self.given[index].over;
        self.given[index].writing = false;
        if let Err(reason) = writer.write(0, &bytes) {
            assert_eq!(Some(reason), over);
            self.given[index].over = Some(Reason::UnknownReservation);
            return;
        }
        let digest = ContentDigest::of(if good { &bytes } else { b"other bytes" });
        let outcome = writer.finish(digest, coverage).outcome;
        assert_eq!(over, None, "a write was accepted after the end");
        self.bench.audit();
        if !good {
            assert_eq!(outcome, Err(Reason::BadDigest));
            self.give_up(index, Reason::UnknownReservation);
            return;
        }
        self.given[index].over = Some(Reason::UnknownReservation);
        let pending = self.pending.get_mut(&key).unwrap();
        pending.slots[usize::from(part)] = Slot::Done;
        let chunk_ready = pending.slots.iter().all(|slot| *slot == Slot::Done);
        assert_eq!(outcome, Ok(Stored { chunk_ready }));
        if chunk_ready {
            self.pending.remove(&key);
            self.ready.insert(key, coverage);
        }
    }

    fn drop_writer(&mut self, pick: usize) {
        if self.writers.is_empty() {
            return;
        }
        let (index, writer) = self.writers.remove(pick % self.writers.len());
        drop(writer);
        self.given[index].writing = false;
        self.give_up(index, Reason::UnknownReservation);
    }

    fn abort(&mut self, pick: usize, reservation: usize) {
        let (Some(session), false) = (self.session(pick), self.given.is_empty()) else { return };
        let index = self.given.len() - 1 - reservation % self.given.len();
        let given = &self.given[index];
        self.bench.engine.abort(session, &[given.id.get()]).unwrap();
        if given.session == session && given.over.is_none() && !given.writing {
            self.give_up(index, Reason::UnknownReservation);
        }
    }

    fn pass(&mut self, millis: u64) {
        self.bench.pass(Duration::from_millis(millis));
        let now = self.now();
        self.leases.retain(|lease| lease.deadline > now);
        self.pending.retain(|_, pending| pending.deadline > now);
        for given in &mut self.given {
            if given.over.is_none() && given.deadline <= now {
                given.over = Some(Reason::ReservationExpired);
            }
        }
    }

    fn reset(&mut self, ns: usize) {
        self.bench.engine.reset(ResetScope::One(namespace(ns)));
        self.ready.retain(|key, _| key.0 != ns);
        self.pending.retain(|key, _| key.0 != ns);
        for given in &mut self.given {
            if given.over.is_none() && given.key.0 == ns {
                given.over = Some(Reason::NamespaceReset);
            }
        }
    }

    /// The recount agrees with itself and with the model.
    fn check(&self) {
        let audit = self.bench.audit();
        let promised: usize = self.leases.iter().map(|lease| lease.chunks.iter().flatten().count()).sum();
        let waiting = self.given.iter().filter(|given| given.over.is_none() && !given.writing).count();
        assert_eq!(audit.sessions, self.sessions.len() as u64);
        assert_eq!((audit.leases, audit.pins), (self.leases.len() as u64, promised as u64));
        assert_eq!((audit.reservations, audit.writers), (waiting as u64, self.writers.len() as u64));
        assert_eq!(audit.pending_chunks, self.pending.len() as u64);
        assert!(audit.ready_chunks <= self.ready.len() as u64);
    }

    /// Once everybody has gone nothing is held, and everything can be evicted.
    fn quiesce(mut self) {
        self.writers.clear();
        while !self.sessions.is_empty() {
            self.close(0);
        }
        self.pass(60_000);
        let audit = self.bench.audit();
        let held = (audit.leases, audit.pins, audit.reservations, audit.writers, audit.pending_chunks);
        assert_eq!(held, (0, 0, 0, 0, 0));
        assert_eq!((audit.inflight_bytes, audit.used_bytes + audit.free_bytes), (0, SLOTS * SLOT_BYTES));
        let last = self.bench.session();
        (0..u32::try_from(SLOTS).unwrap()).for_each(|n| self.bench.put(last, 100 + n));
    }
}

proptest! {
    #[test]
    fn any_sequence_of_calls_answers_as_the_model_says(ops in prop::collection::vec(op(), 1..120)) {
        let mut model = Model::new();
        for op in ops {
            model.apply(op);
            model.check();
        }
        model.quiesce();
    }
}
