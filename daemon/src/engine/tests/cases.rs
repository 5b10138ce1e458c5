//! Failures that other systems have had, each under its number in the project's list, at the engine.

use super::*;

#[test]
fn case_11_a_slow_reader_never_sees_its_slot_reused() {
    let bench = Bench::with_slots(4);
    let (slow, other) = (bench.session(), bench.session());
    (1..=4).for_each(|n| bench.put(slow, n));
    let lease = bench.lease(slow, &[chunk(1), chunk(2)]);
    let reader = bench.engine.read(slow, lease, 0, PartIndex(0)).unwrap();
    let first_half = reader.as_ref()[..100].to_vec();
    bench.pass(4 * LEASE);
    // Four new chunks want four slots; one is being read.
    let asks: Vec<_> = (5..=8).map(|n| ask(chunk(n), FULL)).collect();
    let answers = bench.engine.reserve(other, a(), &asks).unwrap();
    assert_eq!(answers[3], ReserveAnswer::Refused(Reason::NoSpace));
    for (n, answer) in (5..=7).zip(&answers) {
        let ReserveAnswer::Reserved(id) = answer else { panic!("{answers:?}") };
        bench.write(other, *id, &bytes_of(chunk(n), 0, FULL), FULL).unwrap();
    }
    // The same bytes all the way, and the reader can know that its time is up.
    assert_eq!(reader.as_ref(), bytes_of(chunk(1), 0, FULL));
    assert_eq!(reader.as_ref()[..100], first_half);
    assert!(reader.deadline() <= bench.clock.now());
    assert_eq!(bench.release(slow, lease), LeaseEnd::Expired);
    drop(reader);
    bench.put(other, 8);
}

#[test]
fn case_19_ready_means_every_byte_came_and_was_verified() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let bytes = bytes_of(chunk(1), 0, FULL);
    let digest = ContentDigest::of(&bytes);
    let begin = || {
        let id = bench.reserved(session, ask(chunk(1), FULL));
        bench.engine.begin_write(session, id.get()).unwrap()
    };
    let nothing_remains = || {
        assert_eq!(bench.look(session, 1), ChunkAnswer::Miss(Reason::NeverStored));
        let audit = bench.audit();
        assert_eq!((audit.used_bytes, audit.pending_chunks, audit.inflight_bytes), (0, 0, 0));
    };
    // (a) 60 % of the data, then the stream is gone.
    let mut writer = begin();
    writer.write(0, &bytes[..bytes.len() * 6 / 10]).unwrap();
    assert_eq!(bench.look(session, 1), ChunkAnswer::Pending);
    drop(writer);
    nothing_remains();
    // (b) All data, wrong checksum.
    let mut writer = begin();
    writer.write(0, &bytes).unwrap();
    assert_eq!(writer.finish(ContentDigest::of(b"else"), FULL).outcome, Err(Reason::BadDigest));
    nothing_remains();
    // (c) Fewer and more bytes than declared.
    let mut writer = begin();
    writer.write(0, &bytes[1..]).unwrap();
    assert_eq!(writer.finish(digest, FULL).outcome, Err(Reason::WrongSize));
    nothing_remains();
    let mut writer = begin();
    writer.write(0, &bytes).unwrap();
    assert_eq!(writer.write(bytes.len() as u64, &[0]), Err(Reason::WrongSize));
    drop(writer);
    nothing_remains();
    // (d) Declared length 0.
    let empty = ReserveAsk { bytes: 0, ..ask(chunk(1), FULL) };
    assert_eq!(bench.reserve(session, empty), ReserveAnswer::Refused(Reason::WrongSize));
    // The next put of the same key works.
    bench.put(session, 1);
    assert!(bench.is_ready(session, 1));
}

#[test]
fn case_21_a_reset_is_complete_before_it_answers() {
    let bench = Bench::with_slots(16);
    let (one, two) = (bench.session(), bench.session());
    (1..=4).for_each(|n| bench.put(one, n));
    let in_b =
        |session| bench.engine.lookup(session, b(), &[chunk(1)], LeaseAsk::None).unwrap().chunks.remove(0);
    let id = match bench.engine.reserve(one, b(), &[ask(chunk(1), FULL)]).unwrap()[0] {
        ReserveAnswer::Reserved(id) => id,
        other => panic!("{other:?}"),
    };
    bench.write(one, id, &bytes_of(chunk(1), 0, FULL), FULL).unwrap();
    let waiting = bench.reserved(two, ask(chunk(5), FULL));
    let begun = bench.reserved(two, ask(chunk(6), FULL));
    let mut writer = bench.engine.begin_write(two, begun.get()).unwrap();
    writer.write(0, &bytes_of(chunk(6), 0, FULL)).unwrap();
    let lease = bench.lease(two, &[chunk(1)]);

    let answer = bench.engine.reset(ResetScope::One(a()));
    assert_eq!(answer, ResetAnswer { dropped_chunks: 4, fenced_reservations: 2 });
    for session in [one, two] {
        for n in 1..=6 {
            assert_eq!(bench.look(session, n), ChunkAnswer::Miss(Reason::NeverStored), "chunk {n}");
        }
        assert!(matches!(in_b(session), ChunkAnswer::Ready { .. }), "the other namespace is untouched");
    }
    // What was pending cannot become READY, begun or not.
    let late = bench.write(two, waiting, &bytes_of(chunk(5), 0, FULL), FULL);
    assert_eq!(late, Err(Reason::NamespaceReset));
    let digest = ContentDigest::of(&bytes_of(chunk(6), 0, FULL));
    assert_eq!(writer.finish(digest, FULL).outcome, Err(Reason::NamespaceReset));
    assert!(!bench.is_ready(one, 5) && !bench.is_ready(one, 6));
    // Who holds a lease may finish reading.
    let reader = bench.engine.read(two, lease, 0, PartIndex(0)).unwrap();
    assert_eq!(reader.as_ref(), bytes_of(chunk(1), 0, FULL));
    drop(reader);
    assert_eq!(bench.release(two, lease), LeaseEnd::Live);
    // Twice is once; unknown is nothing; new data is found.
    assert_eq!(bench.engine.reset(ResetScope::One(a())), ResetAnswer::default());
    assert_eq!(bench.engine.reset(ResetScope::One(descriptor("x").digest())), ResetAnswer::default());
    bench.put(one, 1);
    assert!(bench.is_ready(two, 1));
    assert_eq!(bench.engine.reset(ResetScope::All).dropped_chunks, 2);
    assert_eq!(bench.audit().used_bytes, 0);
}

/// A reset first begins a new epoch and then walks the index; this is the moment between the two.
#[test]
fn case_21_a_reset_at_work_hides_and_fences_what_it_has_not_reached_yet() {
    let bench = Bench::with_slots(8);
    let session = bench.session();
    bench.put(session, 1);
    let id = bench.reserved(session, ask(chunk(2), FULL));
    let mut writer = bench.engine.begin_write(session, id.get()).unwrap();
    writer.write(0, &bytes_of(chunk(2), 0, FULL)).unwrap();
    bench.reserved(session, ask(chunk(3), FULL));
    bench.engine.core.namespaces.get(a()).unwrap().begin_epoch();
    let digest = ContentDigest::of(&bytes_of(chunk(2), 0, FULL));
    assert_eq!(writer.finish(digest, FULL).outcome, Err(Reason::NamespaceReset));
    for n in 1..=3 {
        assert_eq!(bench.look(session, n), ChunkAnswer::Miss(Reason::NeverStored), "chunk {n}");
    }
    assert_eq!(bench.reserve(session, ask(chunk(3), FULL)), ReserveAnswer::Refused(Reason::Throttled));
    // The walk frees what is left.
    let answer = bench.engine.reset(ResetScope::One(a()));
    assert_eq!(answer, ResetAnswer { dropped_chunks: 1, fenced_reservations: 1 });
    bench.put(session, 3);
}

#[test]
fn case_23_pending_ends_at_its_deadline() {
    let bench = Bench::with_slots(8);
    let (writer, reader) = (bench.session(), bench.session());
    [1, 3, 4].into_iter().for_each(|n| bench.put(writer, n));
    let id = bench.reserved(writer, ask(chunk(2), FULL));
    let window = [chunk(1), chunk(2), chunk(3), chunk(4)];
    let states = || bench.engine.lookup(reader, a(), &window, LeaseAsk::None).unwrap().chunks;
    let ready = |answer: &ChunkAnswer| matches!(answer, ChunkAnswer::Ready { .. });
    assert_eq!(states()[1], ChunkAnswer::Pending);
    assert!(ready(&states()[0]) && ready(&states()[2]) && ready(&states()[3]));
    // To the very deadline, and not a moment longer, sweep or no sweep.
    bench.clock.advance(RESERVATION - Duration::from_millis(1));
    assert_eq!(states()[1], ChunkAnswer::Pending);
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(states()[1], ChunkAnswer::Miss(Reason::NeverStored));
    let late = bench.write(writer, id, &bytes_of(chunk(2), 0, FULL), FULL);
    assert_eq!(late, Err(Reason::ReservationExpired));
    bench.engine.sweep();
    assert_eq!(bench.audit().used_bytes, 3 * SLOT_BYTES);
    let late = bench.write(writer, id, &bytes_of(chunk(2), 0, FULL), FULL);
    assert_eq!(late, Err(Reason::ReservationExpired));
    assert_eq!(bench.engine.stats().expired_reservations, 1);
    bench.put(reader, 2);
}

#[test]
fn case_23_a_slow_writer_is_cut_off_and_its_key_is_free() {
    let bench = Bench::with_slots(4);
    let (slow, quick) = (bench.session(), bench.session());
    let id = bench.reserved(slow, ask(chunk(1), FULL));
    let mut writer = bench.engine.begin_write(slow, id.get()).unwrap();
    writer.write(0, &[0; 100]).unwrap();
    bench.pass(RESERVATION);
    // Its memory is its own until it lets go, but the key is not.
    assert_eq!((bench.audit().writers, bench.audit().used_bytes), (1, SLOT_BYTES));
    bench.put(quick, 1);
    assert_eq!(writer.write(100, &[0; 100]), Err(Reason::ReservationExpired));
    drop(writer);
    assert!(bench.is_ready(slow, 1));
    assert_eq!(bench.audit().used_bytes, SLOT_BYTES);
}

#[test]
fn case_23_a_part_that_is_finished_too_late_is_refused_even_if_nobody_sweeps() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let id = bench.reserved(session, ask(chunk(1), FULL));
    let mut writer = bench.engine.begin_write(session, id.get()).unwrap();
    let bytes = bytes_of(chunk(1), 0, FULL);
    writer.write(0, &bytes).unwrap();
    bench.clock.advance(RESERVATION);
    let outcome = writer.finish(ContentDigest::of(&bytes), FULL).outcome;
    assert_eq!(outcome, Err(Reason::ReservationExpired));
    assert!(!bench.is_ready(session, 1));
    assert_eq!(bench.audit().used_bytes, 0);
}

#[test]
fn case_25_a_full_pool_says_so_at_once() {
    let bench = Bench::with_slots(4);
    let (one, two) = (bench.session(), bench.session());
    bench.put(one, 1);
    bench.put(one, 2);
    let lease = bench.lease(one, &[chunk(1), chunk(2)]);
    let pending: Vec<_> = (3..=4).map(|n| bench.reserved(one, ask(chunk(n), FULL)).get()).collect();
    assert_eq!(bench.reserve(two, ask(chunk(5), FULL)), ReserveAnswer::Refused(Reason::NoSpace));
    // Nothing was lost for the sake of a refusal.
    assert!(bench.is_ready(two, 1) && bench.is_ready(two, 2));
    // A batch of six on two free slots: each item has its own outcome, the failed ones hold nothing.
    bench.engine.abort(one, &pending).unwrap();
    let batch: Vec<_> = (5..=10).map(|n| ask(chunk(n), FULL)).collect();
    let answers = bench.engine.reserve(two, a(), &batch).unwrap();
    assert!(answers[..2].iter().all(|answer| matches!(answer, ReserveAnswer::Reserved(_))));
    assert!(answers[2..].iter().all(|answer| *answer == ReserveAnswer::Refused(Reason::NoSpace)));
    assert_eq!((bench.audit().reservations, bench.audit().inflight_bytes), (2, 2 * SLOT_BYTES));
    // Two clients with two pending each: neither waits for the other.
    assert_eq!(bench.reserve(one, ask(chunk(11), FULL)), ReserveAnswer::Refused(Reason::NoSpace));
    assert_eq!(bench.release(one, lease), LeaseEnd::Live);
    bench.put(one, 11);
}

#[test]
fn case_25_a_hopeless_request_evicts_nothing() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    (1..=3).for_each(|n| bench.put(session, n));
    bench.lease(session, &[chunk(1), chunk(2)]);
    // 16 blocks fit 4 slots; 2 slots are pinned, 1 is free, 1 can be evicted.
    let ids: Vec<_> = (10..14).map(|n| bench.reserve(session, ask(chunk(n), 0b0111))).collect();
    let reserved = ids.iter().filter(|id| matches!(id, ReserveAnswer::Reserved(_))).count();
    assert_eq!(reserved, 2);
    assert!(bench.is_ready(session, 1) && bench.is_ready(session, 2));
}

#[test]
fn case_29_what_was_promised_is_delivered_and_uncollected_promises_end() {
    let bench = Bench::with_slots(8);
    let (reader, other) = (bench.session(), bench.session());
    let six: Vec<_> = (1..=6).map(chunk).collect();
    (1..=6).for_each(|n| bench.put(other, n));
    let lease = bench.lease(reader, &six);
    let mut stored = 0;
    for n in 10..18 {
        if let ReserveAnswer::Reserved(id) = bench.reserve(other, ask(chunk(n), FULL)) {
            bench.write(other, id, &bytes_of(chunk(n), 0, FULL), FULL).unwrap();
            stored += 1;
        }
    }
    assert_eq!(stored, 8, "the other client stores through the two free slots");
    bench.pass(Duration::from_millis(500));
    for (index, n) in (1..=6).enumerate() {
        let part = bench.engine.read(reader, lease, index, PartIndex(0)).unwrap();
        assert_eq!(part.as_ref(), bytes_of(chunk(n), 0, FULL));
    }
    assert_eq!(bench.release(reader, lease), LeaseEnd::Live);
    // Taken in part, never collected, or asked for again: every variant ends with no pins.
    let partly = bench.lease(reader, &six);
    bench.engine.read(reader, partly, 5, PartIndex(0)).unwrap();
    bench.lease(reader, &six[..2]);
    bench.lease(reader, &six[..2]);
    assert_eq!(bench.audit().pins, 10);
    assert_eq!(bench.release(reader, partly), LeaseEnd::Live);
    bench.pass(LEASE);
    assert_eq!((bench.audit().pins, bench.audit().leases), (0, 0));
    // Those that come are held, so all room is that of the six.
    for n in 20..28 {
        bench.put(other, n);
        bench.lease(other, &[chunk(n)]);
    }
    assert!(six.iter().zip(1..).all(|(_, n)| !bench.is_ready(reader, n)));
}

#[test]
fn case_39_losers_hear_it_before_they_send_and_one_copy_stays() {
    let bench = Bench::with_slots(8);
    let clients: Vec<_> = (0..4).map(|_| bench.session()).collect();
    let first = bench.reserved(clients[0], ask(chunk(1), FULL));
    for client in &clients {
        assert_eq!(bench.reserve(*client, ask(chunk(1), FULL)), ReserveAnswer::Already(Already::Pending));
    }
    bench.write(clients[0], first, &bytes_of(chunk(1), 0, FULL), FULL).unwrap();
    for client in &clients {
        assert_eq!(bench.reserve(*client, ask(chunk(1), FULL)), ReserveAnswer::Already(Already::Ready));
    }
    let twice = [ask(chunk(2), FULL), ask(chunk(2), FULL)];
    let answers = bench.engine.reserve(clients[1], a(), &twice).unwrap();
    assert!(matches!(answers[0], ReserveAnswer::Reserved(_)));
    assert_eq!(answers[1], ReserveAnswer::Already(Already::Pending));
    let audit = bench.audit();
    assert_eq!((audit.used_bytes, audit.ready_chunks, audit.pending_chunks), (2 * SLOT_BYTES, 1, 1));
    // If the leader fails, another takes over at once.
    bench.engine.close_session(clients[1]);
    bench.put(clients[2], 2);
}

#[test]
fn case_21_bytes_gathered_before_a_reset_cannot_be_stored_after_it() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let before = bench.engine.epoch(session, a()).unwrap();
    let others = bench.engine.epoch(session, b()).unwrap();
    bench.engine.reset(ResetScope::One(a()));
    let late = |namespace, epoch| {
        bench.engine.reserve_gathered(session, namespace, Some(epoch), &[ask(chunk(1), FULL)]).unwrap()
    };
    let (answers, now) = late(a(), before);
    assert_eq!(answers, [ReserveAnswer::Refused(Reason::NamespaceReset)]);
    assert_eq!(bench.audit().reservations, 0);
    // The answer tells the epoch that later gathers belong to, and other namespaces have theirs.
    assert!(matches!(late(a(), now).0[0], ReserveAnswer::Reserved(_)));
    assert!(matches!(late(b(), others).0[0], ReserveAnswer::Reserved(_)));
}
