//! Who may call, and bad input: a typed refusal, nothing held, nobody else disturbed, and a counter.

use super::*;

#[test]
fn a_closed_or_made_up_session_can_do_nothing() {
    let bench = Bench::with_slots(4);
    let gone = bench.session();
    bench.engine.close_session(gone);
    bench.engine.close_session(gone);
    for session in [gone, SessionId::from_random([7; 16])] {
        let unknown = Reason::UnknownSession;
        let d = descriptor("a");
        assert_eq!(bench.engine.register(session, d.clone(), d.digest(), None).unwrap_err().reason, unknown);
        assert_eq!(bench.engine.lookup(session, a(), &[], LeaseAsk::None).unwrap_err().reason, unknown);
        assert_eq!(bench.engine.reserve(session, a(), &[]).unwrap_err().reason, unknown);
        assert_eq!(bench.engine.commit(session, &[]).unwrap_err().reason, unknown);
        assert_eq!(bench.engine.release(session, &[]).unwrap_err().reason, unknown);
        assert_eq!(bench.engine.abort(session, &[]).unwrap_err().reason, unknown);
        assert_eq!(bench.engine.begin_write(session, 1).unwrap_err(), unknown);
        assert_eq!(bench.engine.read(session, 1, 0, PartIndex(0)).unwrap_err(), unknown);
        assert_eq!(bench.engine.attach_staging(session, 4096).unwrap_err(), unknown);
    }
    assert_eq!(bench.refusals(Reason::UnknownSession), 18);
}

#[test]
fn a_namespace_must_be_registered_in_the_session_that_uses_it() {
    let bench = Bench::with_slots(4);
    bench.session();
    let other = bench.engine.open_session("late", 0).unwrap();
    let refusal = bench.engine.lookup(other, a(), &[chunk(1)], LeaseAsk::None).unwrap_err();
    assert_eq!(refusal.reason, Reason::UnknownNamespace);
    assert_eq!(bench.engine.reserve(other, a(), &[]).unwrap_err().reason, Reason::UnknownNamespace);
}

#[test]
fn a_descriptor_that_is_not_its_digest_is_a_conflict() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let mut other = descriptor("a");
    other.groups.pop();
    let refusal = bench.engine.register(session, other.clone(), a(), None).unwrap_err();
    assert_eq!(refusal.reason, Reason::NamespaceConflict);
    let d = descriptor("a");
    bench.engine.register(session, d.clone(), d.digest(), Some("prod")).unwrap();
    bench.engine.register(session, d.clone(), d.digest(), Some("prod")).unwrap();
    let refusal = bench.engine.register(session, other.clone(), other.digest(), Some("prod")).unwrap_err();
    assert_eq!(refusal.reason, Reason::NamespaceConflict);
    assert!(refusal.to_string().contains("prod"), "{refusal}");
    // The refused one left no trace.
    assert_eq!(bench.engine.stats().namespaces.len(), 2);
    assert_eq!(bench.engine.stats().namespaces[0].pinned_name.as_deref(), Some("prod"));
}

#[test]
fn a_namespace_has_a_few_names_and_one_more_is_refused() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let name = |namespace: &str, name: usize| {
        let d = descriptor(namespace);
        bench.engine.register(session, d.clone(), d.digest(), Some(&format!("{namespace}-{name}")))
    };
    let most = (0..1000).take_while(|&n| name("a", n).is_ok()).count();
    assert!((1..100).contains(&most), "{most} names of one namespace");
    assert_eq!(name("a", most).unwrap_err().reason, Reason::TooMany);
    name("a", 0).expect("one that it has");
    name("b", 0).expect("another namespace has names of its own");
}

#[test]
fn namespaces_that_nobody_uses_make_room_for_others() {
    let bench = Bench::with_slots(4);
    let first = bench.session();
    bench.put(first, 1);
    bench.engine.close_session(first);
    // a has a chunk; b is idle. Two more fit beside them, the third takes b's place.
    let session = bench.engine.open_session("many", 0).unwrap();
    for name in ["c", "d", "e"] {
        let d = descriptor(name);
        bench.engine.register(session, d.clone(), d.digest(), None).unwrap();
    }
    let d = descriptor("f");
    assert_eq!(
        bench.engine.register(session, d.clone(), d.digest(), None).unwrap_err().reason,
        Reason::TooMany
    );
    let known: Vec<_> = bench.engine.stats().namespaces.into_iter().map(|n| n.descriptor.model).collect();
    assert_eq!(known, ["a", "c", "d", "e"]);
}

#[test]
fn limits_on_sessions_batches_and_leases_are_refusals() {
    let bench = Bench::with(4, |config| {
        config.max_sessions = 2;
        config.max_batch_chunks = 2;
        config.max_leases_per_session = 1;
    });
    let session = bench.session();
    let second = bench.session();
    assert_eq!(bench.engine.open_session("third", 0).unwrap_err().reason, Reason::TooMany);
    bench.put(session, 1);
    let three = [chunk(1), chunk(2), chunk(3)];
    let refusal = bench.engine.lookup(session, a(), &three, LeaseAsk::None).unwrap_err();
    assert_eq!(refusal.reason, Reason::TooLarge);
    let lease = bench.lease(session, &[chunk(1)]);
    let again = LeaseAsk::Lease { ttl: None, locate: false };
    assert_eq!(bench.engine.lookup(session, a(), &[chunk(1)], again).unwrap_err().reason, Reason::TooMany);
    assert_eq!(bench.audit().pins, 1);
    bench.lease(second, &[chunk(1)]);
    assert_eq!(bench.release(session, lease), LeaseEnd::Live);
    bench.lease(session, &[chunk(1)]);
}

#[test]
fn every_flaw_of_a_reservation_has_its_reason_and_holds_nothing() {
    let bench = Bench::with(4, |config| config.max_part_bytes = SLOT_BYTES - 1);
    let session = bench.session();
    let good = ask(chunk(1), 0b0111);
    let flawed = [
        (ReserveAsk { chunk: chunk_of(2, 1), ..good }, Reason::GroupOutOfRange),
        (ReserveAsk { part: PartIndex(1), ..good }, Reason::PartOutOfRange),
        (ReserveAsk { bytes: good.bytes - 1, ..good }, Reason::WrongSize),
        (ReserveAsk { bytes: good.bytes + BLOCK_BYTES, ..good }, Reason::WrongSize),
        (ReserveAsk { bytes: 0, ..good }, Reason::WrongSize),
        (ReserveAsk { coverage_bits: 0, bytes: 0, ..good }, Reason::BadCoverage),
        (ReserveAsk { coverage_bits: 0b10111, ..good }, Reason::BadCoverage),
        (ask(chunk(1), FULL), Reason::TooLarge),
    ];
    let asks: Vec<_> = flawed.iter().map(|(ask, _)| *ask).chain([good]).collect();
    let answers = bench.engine.reserve(session, a(), &asks).unwrap();
    for ((ask, reason), answer) in flawed.iter().zip(&answers) {
        assert_eq!(*answer, ReserveAnswer::Refused(*reason), "{ask:?}");
    }
    assert!(matches!(answers[8], ReserveAnswer::Reserved(_)), "the good one among them is not disturbed");
    assert_eq!((bench.refusals(Reason::WrongSize), bench.refusals(Reason::BadCoverage)), (3, 2));
    let audit = bench.audit();
    assert_eq!((audit.reservations, audit.inflight_bytes), (1, good.bytes));
}

#[test]
fn a_part_that_can_never_fit_is_refused_for_good() {
    let bench = Bench::with(4, |config| config.max_session_inflight_bytes = SLOT_BYTES / 2);
    let session = bench.session();
    assert_eq!(bench.engine.max_part_bytes(), SLOT_BYTES / 2);
    assert_eq!(bench.reserve(session, ask(chunk(1), FULL)), ReserveAnswer::Refused(Reason::TooLarge));
    let bench = Bench::with(4, |config| config.max_inflight_bytes = SLOT_BYTES);
    let session = bench.session();
    // Each part fits, the chunk of two parts does not.
    let part = ask(chunk_of(1, 1), FULL);
    assert_eq!(bench.reserve(session, part), ReserveAnswer::Refused(Reason::TooLarge));
}

#[test]
fn a_group_that_does_not_exist_is_a_miss_of_its_chunk_only() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    bench.put(session, 1);
    let asked = [chunk_of(9, 1), chunk(1)];
    let answer = bench.engine.lookup(session, a(), &asked, LeaseAsk::None).unwrap();
    assert_eq!(answer.chunks[0], ChunkAnswer::Miss(Reason::GroupOutOfRange));
    assert!(matches!(answer.chunks[1], ChunkAnswer::Ready { .. }));
}

#[test]
fn a_draining_daemon_finishes_what_was_begun_and_begins_nothing() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    bench.put(session, 1);
    let id = bench.reserved(session, ask(chunk(2), FULL));
    bench.engine.begin_drain();
    assert_eq!(bench.engine.open_session("late", 0).unwrap_err().reason, Reason::Draining);
    assert_eq!(bench.engine.reserve(session, a(), &[]).unwrap_err().reason, Reason::Draining);
    assert!(bench.write(session, id, &bytes_of(chunk(2), 0, FULL), FULL).is_ok());
    let lease = bench.lease(session, &[chunk(1), chunk(2)]);
    assert_eq!(bench.release(session, lease), LeaseEnd::Live);
}

#[test]
fn the_daemon_leaves_no_file_behind() {
    let bench = Bench::with_slots(4);
    let place = bench.engine.stats().arena_place;
    assert!(place.exists() && place.starts_with(bench.dir.path()));
    let session = bench.session();
    bench.put(session, 1);
    let lease = bench.lease(session, &[chunk(1)]);
    let reader = bench.engine.read(session, lease, 0, PartIndex(0)).unwrap();
    drop(bench);
    // Who still reads keeps the memory, and only that long.
    assert_eq!(reader.as_ref(), bytes_of(chunk(1), 0, FULL));
    drop(reader);
    assert!(!place.exists());
}

#[test]
fn counters_add_up() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    bench.put(session, 1);
    bench.reserved(session, ask(chunk(2), FULL));
    let asked = [chunk(1), chunk(2), chunk(3), chunk(4)];
    bench.engine.lookup(session, a(), &asked, LeaseAsk::None).unwrap();
    let stats = &bench.engine.stats().namespaces[0];
    assert_eq!((stats.lookups, stats.hits, stats.pendings), (4, 1, 1));
    assert_eq!(stats.misses, [(Reason::NeverStored, 2)]);
    assert_eq!((stats.ready_chunks, stats.pending_chunks), (1, 1));
    assert_eq!((stats.ready_bytes, stats.stored_bytes), (SLOT_BYTES, SLOT_BYTES));
}
