//! Rules 3 and 7: reserve, write, publish, and every way it can end without a READY chunk.

use std::fs::File;

use tender_proto::shm::Mapping;

use super::*;

/// A session with a staging region and this side's map of it.
fn staged(bench: &Bench, bytes: u64) -> (SessionId, Mapping) {
    let session = bench.session();
    let handover = bench.engine.attach_staging(session, bytes).unwrap();
    (session, Mapping::read_write(&File::from(handover.staging.unwrap())).unwrap())
}

fn commit_ask(id: ReservationId, staging_offset: u64, bytes: &[u8], coverage_bits: u64) -> CommitAsk {
    let digest = ContentDigest::of(bytes);
    CommitAsk { reservation: id.get(), staging_offset, bytes: bytes.len() as u64, coverage_bits, digest }
}

#[test]
fn a_chunk_in_staging_becomes_ready_byte_for_byte() {
    let bench = Bench::with_slots(8);
    let (session, map) = staged(&bench, 4 * SLOT_BYTES);
    let batch: Vec<_> = (0..4u32)
        .map(|n| {
            let (at, bytes) = (u64::from(n) * SLOT_BYTES, bytes_of(chunk(n), 0, FULL));
            map.copy_in(at, &bytes).unwrap();
            commit_ask(bench.reserved(session, ask(chunk(n), FULL)), at, &bytes, FULL)
        })
        .collect();
    assert_eq!(bench.audit().inflight_bytes, 4 * SLOT_BYTES);
    for (answer, ask) in bench.engine.commit(session, &batch).unwrap().iter().zip(&batch) {
        let outcome = Ok(Stored { chunk_ready: true });
        assert_eq!(*answer, StoreAnswer { reservation: ask.reservation, outcome });
    }
    let lease = bench.lease(session, &[chunk(0), chunk(1), chunk(2), chunk(3)]);
    for n in 0..4u32 {
        let reader = bench.engine.read(session, lease, n as usize, PartIndex(0)).unwrap();
        assert_eq!(reader.as_ref(), bytes_of(chunk(n), 0, FULL));
        assert_eq!(reader.digest(), ContentDigest::of(reader.as_ref()));
        assert_eq!(reader.coverage(), full());
    }
    assert_eq!((bench.audit().inflight_bytes, bench.audit().reservations), (0, 0));
}

#[test]
fn a_flawed_commit_stores_nothing_and_the_key_can_be_put_at_once() {
    let bench = Bench::with_slots(4);
    let (session, map) = staged(&bench, SLOT_BYTES);
    let bytes = bytes_of(chunk(1), 0, 0b0111);
    map.copy_in(0, &bytes).unwrap();
    type Flaw = fn(&mut CommitAsk);
    let flaws: [(Flaw, Reason); 8] = [
        (|ask| ask.digest = ContentDigest::of(b"other"), Reason::BadDigest),
        (|ask| ask.staging_offset = 1, Reason::BadDigest),
        (|ask| ask.bytes -= 1, Reason::WrongSize),
        (|ask| ask.bytes = 0, Reason::WrongSize),
        // More blocks than were reserved and sent, then others.
        (|ask| ask.coverage_bits = FULL, Reason::BadCoverage),
        (|ask| ask.coverage_bits = 0b1110, Reason::BadCoverage),
        (|ask| ask.staging_offset = SLOT_BYTES, Reason::StagingRange),
        (|ask| ask.staging_offset = u64::MAX, Reason::StagingRange),
    ];
    for (flaw, reason) in flaws {
        let mut commit = commit_ask(bench.reserved(session, ask(chunk(1), 0b0111)), 0, &bytes, 0b0111);
        flaw(&mut commit);
        let before = bench.refusals(reason);
        assert_eq!(bench.engine.commit(session, &[commit]).unwrap()[0].outcome, Err(reason));
        assert_eq!(bench.refusals(reason), before + 1);
        assert_eq!(bench.look(session, 1), ChunkAnswer::Miss(Reason::NeverStored));
        let audit = bench.audit();
        assert_eq!((audit.used_bytes, audit.inflight_bytes, audit.reservations), (0, 0, 0));
    }
    let good = commit_ask(bench.reserved(session, ask(chunk(1), 0b0111)), 0, &bytes, 0b0111);
    assert!(bench.engine.commit(session, &[good]).unwrap()[0].outcome.is_ok());
    // Once more changes nothing.
    let again = bench.engine.commit(session, &[good]).unwrap()[0].outcome;
    assert_eq!(again, Err(Reason::UnknownReservation));
    assert!(bench.is_ready(session, 1));
}

#[test]
fn a_commit_without_staging_is_refused() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let bytes = bytes_of(chunk(1), 0, FULL);
    let commit = commit_ask(bench.reserved(session, ask(chunk(1), FULL)), 0, &bytes, FULL);
    assert_eq!(bench.engine.commit(session, &[commit]).unwrap()[0].outcome, Err(Reason::StagingRange));
}

#[test]
fn staging_is_one_region_within_limits_and_goes_with_its_session() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    assert_eq!(bench.engine.attach_staging(session, (1 << 20) + 1).unwrap_err(), Reason::TooLarge);
    let (session, map) = staged(&bench, 5000);
    let again = bench.engine.attach_staging(session, 5000).unwrap();
    map.copy_in(0, b"same").unwrap();
    let mut seen = [0; 4];
    let theirs = Mapping::read_only(&File::from(again.staging.unwrap())).unwrap();
    theirs.copy_out(0, &mut seen).unwrap();
    assert_eq!((&seen, again.staging_bytes), (b"same", 8192));
    bench.engine.attach_staging(session, 1 << 20).unwrap();
    assert_eq!(bench.engine.stats().staging_bytes, 1 << 20);
    let second = staged(&bench, 1 << 20).0;
    let third = bench.session();
    assert_eq!(bench.engine.attach_staging(third, 1).unwrap_err(), Reason::NoSpace);
    bench.engine.close_session(session);
    bench.engine.close_session(second);
    assert_eq!(bench.engine.stats().staging_bytes, 0);
}

#[test]
fn a_reservation_is_its_owners_alone() {
    let bench = Bench::with_slots(4);
    let (owner, thief) = (bench.session(), bench.session());
    let id = bench.reserved(owner, ask(chunk(1), FULL));
    let bytes = bytes_of(chunk(1), 0, FULL);
    assert_eq!(bench.write(thief, id, &bytes, FULL), Err(Reason::NotOwner));
    let outcome = bench.engine.commit(thief, &[commit_ask(id, 0, &bytes, FULL)]).unwrap()[0].outcome;
    assert_eq!(outcome, Err(Reason::NotOwner));
    bench.engine.abort(thief, &[id.get(), 0, 12345]).unwrap();
    assert_eq!((bench.refusals(Reason::NotOwner), bench.refusals(Reason::UnknownReservation)), (3, 2));
    assert_eq!(bench.write(owner, id, &bytes, FULL), Ok(Stored { chunk_ready: true }));
}

#[test]
fn an_aborted_reservation_gives_everything_back() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let id = bench.reserved(session, ask(chunk(1), FULL));
    bench.engine.abort(session, &[id.get()]).unwrap();
    assert_eq!(bench.look(session, 1), ChunkAnswer::Miss(Reason::NeverStored));
    assert_eq!((bench.audit().used_bytes, bench.audit().inflight_bytes), (0, 0));
    let late = bench.write(session, id, &bytes_of(chunk(1), 0, FULL), FULL);
    assert_eq!(late, Err(Reason::UnknownReservation));
}

#[test]
fn pieces_must_come_in_order_without_gaps_and_add_up() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let bytes = bytes_of(chunk(1), 0, FULL);
    let (half, digest) = (bytes.len() / 2, ContentDigest::of(&bytes));
    let begin = || {
        let id = bench.reserved(session, ask(chunk(1), FULL));
        bench.engine.begin_write(session, id.get()).unwrap()
    };
    let mut writer = begin();
    assert_eq!(writer.write(1, &bytes), Err(Reason::Malformed));
    writer.write(0, &bytes[..half]).unwrap();
    assert_eq!(writer.write(0, &bytes[..half]), Err(Reason::Malformed));
    assert_eq!(writer.write(half as u64, &bytes), Err(Reason::WrongSize));
    writer.write(half as u64, &bytes[half..]).unwrap();
    writer.write(2 * half as u64, &[]).unwrap();
    assert_eq!((writer.written_bytes(), writer.bytes()), (SLOT_BYTES, SLOT_BYTES));
    assert_eq!(writer.finish(digest, FULL).outcome, Ok(Stored { chunk_ready: true }));
    // Short: refused, and gone.
    bench.engine.reset(ResetScope::All);
    let mut writer = begin();
    writer.write(0, &bytes[..half]).unwrap();
    assert_eq!(writer.finish(digest, FULL).outcome, Err(Reason::WrongSize));
    assert_eq!(bench.audit().used_bytes, 0);
}

#[test]
fn budgets_throttle_each_session_and_all_together() {
    let bench = Bench::with(8, |config| {
        config.max_session_inflight_bytes = 2 * SLOT_BYTES;
        config.max_inflight_bytes = 3 * SLOT_BYTES;
    });
    let (one, two) = (bench.session(), bench.session());
    let asks: Vec<_> = (0..3).map(|n| ask(chunk(n), FULL)).collect();
    let answers = bench.engine.reserve(one, a(), &asks).unwrap();
    let ReserveAnswer::Reserved(id) = answers[1] else { panic!("{answers:?}") };
    assert_eq!(answers[2], ReserveAnswer::Refused(Reason::Throttled));
    bench.reserved(two, asks[2]);
    assert_eq!(bench.reserve(two, ask(chunk(3), FULL)), ReserveAnswer::Refused(Reason::Throttled));
    assert_eq!(bench.write(one, id, &bytes_of(chunk(1), 0, FULL), FULL), Ok(Stored { chunk_ready: true }));
    bench.reserved(two, ask(chunk(3), FULL));
}

#[test]
fn parts_from_different_sessions_make_one_chunk() {
    let bench = Bench::with_slots(4);
    let ranks = [bench.session(), bench.session()];
    let shared = chunk_of(1, 1);
    let ids = [0u16, 1].map(|p| bench.reserved(ranks[usize::from(p)], ask_part(shared, p, FULL)));
    let write = |p: u16| {
        let rank = usize::from(p);
        bench.write(ranks[rank], ids[rank], &bytes_of(shared, p, FULL), FULL)
    };
    assert_eq!(write(1), Ok(Stored { chunk_ready: false }));
    // It waits: unevictable, so still in flight.
    assert_eq!(bench.audit().inflight_bytes, 2 * SLOT_BYTES);
    let again = bench.reserve(ranks[0], ask_part(shared, 1, FULL));
    assert_eq!(again, ReserveAnswer::Already(Already::Pending));
    assert_eq!(write(0), Ok(Stored { chunk_ready: true }));
    assert_eq!((bench.audit().inflight_bytes, bench.audit().ready_chunks), (0, 1));
    assert_eq!(bench.reserve(ranks[0], ask_part(shared, 0, FULL)), ReserveAnswer::Already(Already::Ready));
}

#[test]
fn parts_of_one_chunk_have_equal_coverage() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let shared = chunk_of(1, 1);
    bench.reserved(session, ask_part(shared, 0, 0b0111));
    let other = bench.reserve(session, ask_part(shared, 1, FULL));
    assert_eq!(other, ReserveAnswer::Refused(Reason::BadCoverage));
    bench.reserved(session, ask_part(shared, 1, 0b0111));
}

#[test]
fn a_dying_ranks_part_can_be_taken_at_once_and_the_finished_one_waits() {
    let bench = Bench::with_slots(4);
    let (dying, other) = (bench.session(), bench.session());
    let shared = chunk_of(1, 1);
    let lost = bench.reserved(dying, ask_part(shared, 0, FULL));
    let mut writer = bench.engine.begin_write(dying, lost.get()).unwrap();
    writer.write(0, &[1; 100]).unwrap();
    let done = bench.reserved(dying, ask_part(shared, 1, FULL));
    bench.write(dying, done, &bytes_of(shared, 1, FULL), FULL).unwrap();
    bench.engine.close_session(dying);
    // Its stream may still be winding down; that neither blocks nor disturbs the next writer.
    assert_eq!(bench.audit().writers, 1);
    let id = bench.reserved(other, ask_part(shared, 0, FULL));
    assert_eq!(writer.write(100, &[1; 100]), Err(Reason::UnknownSession));
    drop(writer);
    let stored = bench.write(other, id, &bytes_of(shared, 0, FULL), FULL);
    assert_eq!(stored, Ok(Stored { chunk_ready: true }));
}

#[test]
fn a_finished_part_whose_chunk_is_never_completed_goes_at_the_deadline() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let shared = chunk_of(1, 1);
    let id = bench.reserved(session, ask_part(shared, 1, FULL));
    bench.write(session, id, &bytes_of(shared, 1, FULL), FULL).unwrap();
    bench.engine.close_session(session);
    assert_eq!((bench.audit().pending_chunks, bench.audit().used_bytes), (1, SLOT_BYTES));
    bench.pass(RESERVATION);
    assert_eq!((bench.audit().pending_chunks, bench.audit().used_bytes), (0, 0));
}

#[test]
fn more_coverage_supersedes_and_readers_of_the_old_version_finish() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let store = |coverage| {
        let id = bench.reserved(session, ask(chunk(1), coverage));
        bench.write(session, id, &bytes_of(chunk(1), 0, coverage), coverage).unwrap();
    };
    store(0b0011);
    let lease = bench.lease(session, &[chunk(1)]);
    let covered = |bits| ask(chunk(1), bits);
    assert_eq!(bench.reserve(session, covered(0b0010)), ReserveAnswer::Already(Already::Ready));
    // Other blocks instead of more: what is stored would be lost.
    assert_eq!(bench.reserve(session, covered(0b1100)), ReserveAnswer::Refused(Reason::NotCovered));
    let bigger = bench.reserved(session, covered(0b0111));
    assert!(bench.is_ready(session, 1), "the old version serves until the new one is complete");
    bench.write(session, bigger, &bytes_of(chunk(1), 0, 0b0111), 0b0111).unwrap();
    let ChunkAnswer::Ready { coverage, .. } = bench.look(session, 1) else { panic!() };
    assert_eq!(coverage.bits(), 0b0111);
    let old = bench.engine.read(session, lease, 0, PartIndex(0)).unwrap();
    assert_eq!((old.as_ref(), old.coverage().bits()), (&bytes_of(chunk(1), 0, 0b0011)[..], 0b0011));
    drop(old);
    assert_eq!(bench.release(session, lease), LeaseEnd::Live);
    assert_eq!(bench.audit().used_bytes, 3 * BLOCK_BYTES);
}

#[test]
fn a_failed_upgrade_leaves_the_old_version() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let id = bench.reserved(session, ask(chunk(1), 0b0011));
    bench.write(session, id, &bytes_of(chunk(1), 0, 0b0011), 0b0011).unwrap();
    let id = bench.reserved(session, ask(chunk(1), FULL));
    assert_eq!(bench.write(session, id, &bytes_of(chunk(1), 0, FULL), 0b0111), Err(Reason::BadCoverage));
    bench.reserved(session, ask(chunk(1), FULL));
    bench.pass(RESERVATION);
    let ChunkAnswer::Ready { coverage, .. } = bench.look(session, 1) else { panic!() };
    assert_eq!(coverage.bits(), 0b0011);
    assert_eq!(bench.engine.stats().expired_reservations, 1);
}
