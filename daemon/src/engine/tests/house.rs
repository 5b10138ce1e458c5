//! What tiers do through the daemon's own session.

use super::*;

fn house(bench: &Bench) -> House {
    House::open(&bench.engine).unwrap()
}

/// A chunk of two parts.
fn pair(n: u32) -> ChunkId {
    chunk_of(1, n)
}

fn write(filling: &mut Filling, chunk: ChunkId, part: u16) -> Result<(), Reason> {
    let bytes = bytes_of(chunk, part, FULL);
    filling.part(PartIndex(part)).unwrap().write(0, &bytes).unwrap();
    filling.finish(PartIndex(part), ContentDigest::of(&bytes))
}

#[test]
fn a_chunk_is_ready_when_its_last_part_is_in_and_reads_as_it_was_written() {
    let bench = Bench::with_slots(8);
    let (house, session) = (house(&bench), bench.session());
    let namespace = house.namespace(a()).unwrap();
    let mut filling = house.fill(&namespace, pair(1), full()).unwrap();
    assert_eq!(house.fill(&namespace, pair(1), full()).unwrap_err(), Unfilled::Already(Already::Pending));
    write(&mut filling, pair(1), 1).unwrap();
    assert!(house.read(&namespace, pair(1)).is_none());
    write(&mut filling, pair(1), 0).unwrap();
    let open = house.read(&namespace, pair(1)).unwrap();
    for part in 0..2 {
        assert_eq!(open.parts[usize::from(part)].as_ref(), bytes_of(pair(1), part, FULL));
    }
    assert_eq!(house.fill(&namespace, pair(1), full()).unwrap_err(), Unfilled::Already(Already::Ready));
    drop(open);
    let stats = bench.engine.stats();
    assert_eq!((stats.leases, stats.reservations), (0, 0));
    assert_eq!(stats.namespaces.iter().map(|ns| ns.lookups).sum::<u64>(), 0, "nobody asked");
    bench.engine.close_session(session);
}

#[test]
fn a_chunk_that_is_given_up_half_way_leaves_nothing() {
    let bench = Bench::with_slots(8);
    let (house, _session) = (house(&bench), bench.session());
    let namespace = house.namespace(a()).unwrap();
    let mut filling = house.fill(&namespace, pair(1), full()).unwrap();
    filling.part(PartIndex(0)).unwrap().write(0, &bytes_of(pair(1), 0, FULL)).unwrap();
    drop(filling);
    let audit = bench.audit();
    assert_eq!((audit.used_bytes, audit.reservations, audit.pending_chunks), (0, 0, 0));
    // One part verified, the other one not.
    let mut filling = house.fill(&namespace, pair(1), full()).unwrap();
    write(&mut filling, pair(1), 0).unwrap();
    let other = bytes_of(pair(2), 1, FULL);
    filling.part(PartIndex(1)).unwrap().write(0, &other).unwrap();
    let digest = ContentDigest::of(&bytes_of(pair(1), 1, FULL));
    assert_eq!(filling.finish(PartIndex(1), digest), Err(Reason::BadDigest));
    assert_eq!(filling.finish(PartIndex(1), digest), Err(Reason::Malformed), "it is over");
    drop(filling);
    bench.pass(RESERVATION);
    assert_eq!(bench.audit().used_bytes, 0);
    assert!(house.read(&namespace, pair(1)).is_none());
}

#[test]
fn what_was_asked_for_before_a_reset_does_not_come_after_it() {
    let bench = Bench::with_slots(8);
    let (house, _session) = (house(&bench), bench.session());
    let before = house.namespace(a()).unwrap();
    let mut filling = house.fill(&before, pair(1), full()).unwrap();
    bench.engine.reset(ResetScope::One(a()));
    let bytes = bytes_of(pair(1), 0, FULL);
    assert_eq!(
        filling.part(PartIndex(0)).unwrap().write(0, &bytes),
        Err(Reason::NamespaceReset),
        "a fill under way"
    );
    drop(filling);
    let late = house.fill(&before, pair(1), full()).unwrap_err();
    assert_eq!(late, Unfilled::Refused(Reason::NamespaceReset), "a fill that begins late");
    let after = house.namespace(a()).unwrap();
    drop(house.fill(&after, pair(1), full()).unwrap());
}

#[test]
fn a_chunk_that_does_not_fit_holds_nothing_of_the_arena() {
    let bench = Bench::with_slots(4);
    let (house, session) = (house(&bench), bench.session());
    let namespace = house.namespace(a()).unwrap();
    (0..3).for_each(|n| bench.put(session, n));
    let lease = bench.lease(session, &[chunk(0), chunk(1), chunk(2)]);
    let no = house.fill(&namespace, pair(1), full()).unwrap_err();
    assert_eq!(no, Unfilled::Refused(Reason::NoSpace), "one of two parts has room");
    assert_eq!(bench.audit().reservations, 0);
    bench.release(session, lease);
    drop(house.fill(&namespace, pair(1), full()).unwrap());
}

#[test]
fn the_house_takes_no_clients_place_and_keeps_no_namespace_from_being_forgotten() {
    let bench = Bench::with(8, |config| config.max_sessions = 1);
    let house = house(&bench);
    let session = bench.session();
    bench.put(session, 1);
    let namespace = house.namespace(a()).unwrap();
    assert!(house.has(&namespace, chunk(1)) && house.read(&namespace, chunk(1)).is_some());
    bench.engine.reset(ResetScope::All);
    bench.engine.close_session(session);
    let session = bench.engine.open_session("another model", 1).unwrap();
    for name in ["c", "d", "e", "f"] {
        let d = descriptor(name);
        bench.engine.register(session, d.clone(), d.digest(), None).unwrap();
    }
    assert!(house.namespace(a()).is_none());
    let unknown = house.fill(&namespace, chunk(1), full()).unwrap_err();
    assert_eq!(unknown, Unfilled::Refused(Reason::UnknownNamespace));
    // It comes back with another epoch: what was asked for before does not come.
    bench.engine.close_session(session);
    bench.session();
    let late = house.fill(&namespace, chunk(1), full()).unwrap_err();
    assert_eq!(late, Unfilled::Refused(Reason::NamespaceReset));
    drop(house.fill(&house.namespace(a()).unwrap(), chunk(1), full()).unwrap());
}

#[derive(Debug, Default)]
struct Ear(Mutex<Vec<(char, ChunkId)>>);
impl Watcher for Ear {
    fn stored(&self, _: NamespaceDigest, chunk: ChunkId) {
        self.0.lock().push(('s', chunk));
    }
    fn lost(&self, _: NamespaceDigest, chunk: ChunkId) {
        self.0.lock().push(('l', chunk));
    }
}

#[test]
fn a_watcher_hears_what_clients_store_and_what_leaves() {
    let bench = Bench::with_slots(4);
    let (house, session) = (house(&bench), bench.session());
    let ear = Arc::new(Ear::default());
    assert!(bench.engine.watch(Arc::clone(&ear) as Arc<dyn Watcher>));
    (0..5).for_each(|n| bench.put(session, n));
    // A store that fails is none, and what the house brings is known to it.
    let id = bench.reserved(session, ask(chunk(8), FULL));
    assert!(bench.write(session, id, &bytes_of(chunk(7), 0, FULL)[..5], FULL).is_err());
    let namespace = house.namespace(a()).unwrap();
    let mut filling = house.fill(&namespace, chunk(9), full()).unwrap();
    write(&mut filling, chunk(9), 0).unwrap();
    let heard = ear.0.lock().clone();
    let told = |word, n| heard.contains(&(word, chunk(n)));
    assert!((0..5).all(|n| told('s', n)) && !told('s', 8) && !told('s', 9), "{heard:?}");
    assert!(told('l', 0) && told('l', 1) && !told('l', 9), "{heard:?}");
}
