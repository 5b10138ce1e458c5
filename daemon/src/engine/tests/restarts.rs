//! What a daemon finds that begins on the arena of an earlier one. A kill is a copy of the file: whatever is in it at that
//! moment is what a killed daemon would have left.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::*;
use crate::arena::alloc::max_extents;
use crate::arena::record::{NamespaceRecord, RECORD_BYTES, Record};

/// Where records begin in the file.
const RECORDS_AT: u64 = 4096;

impl Bench {
    /// The next daemon after a kill at this moment.
    pub(super) fn killed(&self) -> Self {
        self.killed_with(|_| ())
    }
    /// The same, with something done to the file in between.
    fn killed_with(&self, damage: impl FnOnce(&fs::File)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = self.engine.config().clone();
        let place = dir.path().join("arena");
        fs::copy(&config.arena.place, &place).unwrap();
        damage(&fs::OpenOptions::new().read(true).write(true).open(&place).unwrap());
        config.arena.place = place;
        Self::on(dir, config).unwrap()
    }
    fn on(dir: TempDir, config: EngineConfig) -> Result<Self, StartError> {
        let clock = Arc::new(ManualClock::new());
        let engine = Engine::new(config, Arc::clone(&clock) as Arc<dyn Clock>)?;
        Ok(Self { engine: Arc::new(engine), clock, dir })
    }

    /// The bytes of all parts of a chunk, if it is READY.
    fn bytes(&self, session: SessionId, chunk: ChunkId) -> Option<(u64, Vec<Vec<u8>>)> {
        let ask = LeaseAsk::Lease { ttl: None, locate: false };
        let answer = self.engine.lookup(session, a(), &[chunk], ask).unwrap();
        let ChunkAnswer::Ready { coverage, .. } = &answer.chunks[0] else { return None };
        let lease = answer.lease.unwrap().id.get();
        let parts = usize::from(chunk.group.0) + 1;
        let read = |part| {
            let reader = self.engine.read(session, lease, 0, PartIndex(part)).unwrap();
            assert_eq!(ContentDigest::of(reader.as_ref()), reader.digest());
            reader.as_ref().to_vec()
        };
        let bytes = (0..u16::try_from(parts).unwrap()).map(read).collect();
        self.release(session, lease);
        Some((coverage.bits(), bytes))
    }
    fn put_part(
        &self,
        session: SessionId,
        chunk: ChunkId,
        part: u16,
        coverage: u64,
    ) -> Result<Stored, Reason> {
        let id = self.reserved(session, ask_part(chunk, part, coverage));
        self.write(session, id, &bytes_of(chunk, part, coverage), coverage)
    }
}

fn right(chunk: ChunkId, coverage: u64) -> Option<(u64, Vec<Vec<u8>>)> {
    Some((coverage, (0..=chunk.group.0).map(|part| bytes_of(chunk, part, coverage)).collect()))
}

#[test]
fn a_killed_daemons_successor_serves_what_was_ready_and_nothing_else() {
    let old = Bench::with_slots(16);
    let session = old.session();
    old.put(session, 1);
    old.put_part(session, chunk(2), 0, 0b0110).unwrap();
    let pair = chunk_of(1, 3);
    old.put_part(session, pair, 0, FULL).unwrap();
    old.put_part(session, pair, 1, FULL).unwrap();
    // Half a chunk, one that is being written, one that is reserved.
    old.put_part(session, chunk_of(1, 4), 1, FULL).unwrap();
    let writing = old.reserved(session, ask(chunk(5), FULL));
    let mut writer = old.engine.begin_write(session, writing.get()).unwrap();
    writer.write(0, &bytes_of(chunk(5), 0, FULL)).unwrap();
    old.reserved(session, ask(chunk(6), FULL));

    let new = old.killed();
    let restored = new.engine.restored();
    assert_eq!((restored.chunks, restored.dropped_parts, restored.dropped_records), (3, 1, 0));
    assert_eq!(restored.bytes, 3 * SLOT_BYTES + 2 * BLOCK_BYTES);
    let session = new.session();
    assert_eq!(new.bytes(session, chunk(1)), right(chunk(1), FULL));
    assert_eq!(new.bytes(session, chunk(2)), right(chunk(2), 0b0110));
    assert_eq!(new.bytes(session, pair), right(pair, FULL));
    for gone in [chunk_of(1, 4), chunk(5), chunk(6)] {
        assert_eq!(new.bytes(session, gone), None, "{gone}");
    }
    assert_eq!(new.audit().used_bytes, restored.bytes.next_multiple_of(4096));
    // What was half there can be stored anew.
    new.put(session, 5);
    new.put_part(session, chunk_of(1, 4), 0, FULL).unwrap();
    drop(writer);
}

#[test]
fn a_graceful_end_leaves_the_same_if_the_arena_is_to_be_kept() {
    let mut old = Bench::with(8, |config| config.arena.keep = true);
    let session = old.session();
    (0..5).for_each(|n| old.put(session, n));
    let config = old.engine.config().clone();
    let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::clone(&old.clock));
    let dir = std::mem::replace(&mut old.dir, dir);
    drop(old);
    let new = Bench::on(dir, config).unwrap();
    assert_eq!(new.engine.restored().chunks, 5);
    let session = new.session();
    (0..5).for_each(|n| assert_eq!(new.bytes(session, chunk(n)), right(chunk(n), FULL)));
    drop(clock);
}

#[test]
fn what_was_evicted_replaced_or_reset_does_not_come_back() {
    let old = Bench::with_slots(4);
    let session = old.session();
    (0..5).for_each(|n| old.put(session, n));
    assert!(!old.is_ready(session, 0));
    // Fewer blocks, then more of them: the later one takes the place, though a reader still holds the first.
    old.put_part(session, chunk(9), 0, 0b0011).unwrap();
    let held = old.lease(session, &[chunk(9)]);
    old.put_part(session, chunk(9), 0, 0b0111).unwrap();
    let new = old.killed();
    let after = new.session();
    assert_eq!(new.bytes(after, chunk(9)), right(chunk(9), 0b0111));
    assert_eq!(new.bytes(after, chunk(0)), None);
    let ready = (0..5).filter(|&n| old.is_ready(session, n)).count() as u64;
    assert_eq!(new.engine.restored().chunks, ready + 1);
    old.release(session, held);

    old.engine.reset(ResetScope::One(a()));
    let newer = old.killed();
    assert_eq!((newer.engine.restored().chunks, newer.audit().used_bytes), (0, 0));
}

#[test]
fn epochs_go_on_where_they_were() {
    let old = Bench::with_slots(4);
    let session = old.session();
    let [before, others] = [a(), b()].map(|namespace| old.engine.epoch(session, namespace).unwrap());
    old.engine.reset(ResetScope::One(a()));
    old.put(session, 1);
    let new = old.killed();
    let session = new.session();
    let epochs = [a(), b()].map(|namespace| new.engine.epoch(session, namespace).unwrap());
    assert_eq!(epochs, [before + 1, others]);
    assert!(new.is_ready(session, 1));
    // Bytes that were gathered before the reset stay refused.
    let (answers, epoch) =
        new.engine.reserve_gathered(session, a(), Some(before), &[ask(chunk(2), FULL)]).unwrap();
    assert_eq!((answers[0], epoch), (ReserveAnswer::Refused(Reason::NamespaceReset), before + 1));
}

/// An arena that is lost, or a namespace whose record is, begins anew; bytes of before a reset stay out all the same.
#[test]
fn an_epoch_of_a_namespace_that_was_lost_does_not_come_back() {
    let old = Bench::with_slots(4);
    let session = old.session();
    let before = old.engine.epoch(session, a()).unwrap();
    old.engine.reset(ResetScope::One(a()));
    let new = Bench::with_slots(4);
    let session = new.session();
    let (answers, epoch) =
        new.engine.reserve_gathered(session, a(), Some(before), &[ask(chunk(2), FULL)]).unwrap();
    assert_eq!(answers[0], ReserveAnswer::Refused(Reason::NamespaceReset));
    assert!(epoch != before && epoch != 0);
}

#[test]
fn a_namespace_that_comes_back_has_no_epoch_that_it_had() {
    // Room for four namespaces: `a` and `b` are in use by turns, the others push them out.
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let first = bench.engine.epoch(session, a()).unwrap();
    bench.engine.reset(ResetScope::One(a()));
    bench.engine.close_session(session);
    let other = bench.engine.open_session("test", 1).unwrap();
    for name in ["c", "d", "e", "f"] {
        let d = descriptor(name);
        bench.engine.register(other, d.clone(), d.digest(), None).unwrap();
    }
    bench.engine.close_session(other);
    let session = bench.session();
    assert!(![first, first + 1].contains(&bench.engine.epoch(session, a()).unwrap()));
}

#[test]
fn a_daemon_that_gave_its_arena_away_changes_nothing_in_it() {
    let mut old = Bench::with_slots(4);
    let session = old.session();
    old.put(session, 1);
    let id = old.reserved(session, ask(chunk(2), FULL));
    let bytes = bytes_of(chunk(2), 0, FULL);
    let mut late = old.engine.begin_write(session, id.get()).unwrap();
    late.write(0, &bytes[..10]).unwrap();
    let lease = old.lease(session, &[chunk(1)]);
    let reader = old.engine.read(session, lease, 0, PartIndex(0)).unwrap();

    let file = old.engine.give_away().unwrap();
    let place = old.engine.config().arena.place.clone();
    let given = fs::read(&place).unwrap();
    assert!(late.write(10, &bytes[10..]).is_err());
    assert!(late.finish(ContentDigest::of(&bytes), FULL).outcome.is_err());
    assert_eq!(old.engine.release(session, &[lease]).unwrap_err().reason, Reason::UnknownSession);
    assert_eq!(old.engine.open_session("late", 1).unwrap_err().reason, Reason::Draining);
    old.engine.reset(ResetScope::All);
    old.engine.scrub(1 << 20);
    old.pass(Duration::from_secs(3600));
    drop(reader);
    assert!(fs::read(&place).unwrap() == given, "the file has changed");

    let config = old.engine.config().clone();
    let next = Engine::adopt(config, Arc::new(ManualClock::new()), file).unwrap();
    assert_eq!(next.restored().chunks, 1);
    // The folder stays, and the engine goes.
    drop(std::mem::replace(&mut old.engine, Arc::new(next)));
    assert!(place.exists(), "the file is the next one's to remove");
}

#[test]
fn nothing_of_a_session_outlives_a_daemon() {
    let old = Bench::with_slots(4);
    let session = old.session();
    old.put(session, 1);
    let lease = old.lease(session, &[chunk(1)]);
    let reservation = old.reserved(session, ask(chunk(2), FULL));
    let new = old.killed();
    assert_eq!(new.engine.release(session, &[lease]).unwrap_err().reason, Reason::UnknownSession);
    assert_eq!(new.engine.begin_write(session, reservation.get()).unwrap_err(), Reason::UnknownSession);
    let audit = new.audit();
    assert_eq!((audit.leases, audit.pins, audit.reservations, audit.ready_chunks), (0, 0, 0, 1));
}

#[test]
fn a_second_restart_finds_what_both_daemons_stored() {
    let first = Bench::with_slots(8);
    let session = first.session();
    first.put(session, 1);
    first.put_part(session, chunk(2), 0, 0b0001).unwrap();
    let second = first.killed();
    let session = second.session();
    second.put(session, 3);
    // Its reservations are numbered from the start again, and yet it is the newer one.
    second.put_part(session, chunk(2), 0, 0b0011).unwrap();
    let third = second.killed();
    let session = third.session();
    for (n, coverage) in [(1, FULL), (2, 0b0011), (3, FULL)] {
        assert_eq!(third.bytes(session, chunk(n)), right(chunk(n), coverage));
    }
}

#[test]
fn a_full_arena_comes_back_full_and_evicts_its_oldest_first() {
    let old = Bench::with_slots(8);
    let session = old.session();
    (0..8).for_each(|n| old.put(session, n));
    let new = old.killed();
    let session = new.session();
    assert_eq!(new.audit().free_bytes, 0);
    new.put(session, 100);
    let ready: Vec<_> = (0..8).filter(|&n| new.is_ready(session, n)).collect();
    assert_eq!(ready, (1..8).collect::<Vec<_>>());
}

#[test]
fn a_damaged_record_is_dropped_and_counted_and_no_other() {
    let old = Bench::with_slots(8);
    let session = old.session();
    (0..4).for_each(|n| old.put(session, n));
    // Slots 0 and 1 are the namespaces.
    let new = old.killed_with(|file| {
        let at = RECORDS_AT + 3 * RECORD_BYTES as u64 + 70;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    });
    assert_eq!((new.engine.restored().chunks, new.engine.restored().dropped_records), (3, 1));
    let session = new.session();
    let ready: Vec<_> = (0..4).filter(|&n| new.is_ready(session, n)).collect();
    assert_eq!(ready, [0, 2, 3]);
    assert_eq!(new.killed().engine.restored().dropped_records, 0, "it was cleared");
}

#[test]
fn a_namespace_that_two_records_name_is_restored_once() {
    let old = Bench::with_slots(8);
    let session = old.session();
    (0..4).for_each(|n| old.put(session, n));
    // Namespace a once more: its record where chunk 1 had its own, its descriptor on another page.
    let slots = u64::from(max_extents(8 * SLOT_BYTES)) + 256;
    let descriptors = RECORDS_AT + (slots * RECORD_BYTES as u64).next_multiple_of(4096);
    let new = old.killed_with(|file| {
        let mut raw = [0; RECORD_BYTES];
        file.read_exact_at(&mut raw, RECORDS_AT).unwrap();
        let Some(Record::Namespace(record)) = Record::decode(&raw) else { panic!("{raw:?}") };
        let mut descriptor = vec![0; usize::try_from(record.bytes).unwrap()];
        file.read_exact_at(&mut descriptor, descriptors + record.offset_bytes).unwrap();
        let again = Record::Namespace(NamespaceRecord { offset_bytes: 100 * 4096, ..record });
        file.write_all_at(&descriptor, descriptors + 100 * 4096).unwrap();
        file.write_all_at(&again.encode(), RECORDS_AT + 3 * RECORD_BYTES as u64).unwrap();
    });
    let restored = new.engine.restored();
    assert_eq!((restored.chunks, restored.dropped_parts, restored.dropped_records), (3, 0, 1));
    let session = new.session();
    let ready: Vec<_> = (0..4).filter(|&n| new.is_ready(session, n)).collect();
    assert_eq!(ready, [0, 2, 3]);
    assert_eq!(new.audit().used_bytes, 3 * SLOT_BYTES);
    assert_eq!(new.killed().engine.restored().dropped_records, 0, "it was cleared");
}

#[test]
fn without_its_namespace_no_chunk_is_served() {
    let old = Bench::with_slots(8);
    let session = old.session();
    (0..4).for_each(|n| old.put(session, n));
    let new = old.killed_with(|file| file.write_all_at(&[1; 8], RECORDS_AT).unwrap());
    let restored = new.engine.restored();
    assert_eq!((restored.chunks, restored.dropped_parts, restored.dropped_records), (0, 4, 1));
    assert_eq!(new.audit().used_bytes, 0);
}

#[test]
fn another_size_begins_with_nothing_and_so_does_who_says_so() {
    let old = Bench::with_slots(8);
    let session = old.session();
    old.put(session, 1);
    for (change, why) in [
        ((|config| config.arena.bytes *= 2) as fn(&mut EngineConfig), "another size"),
        (|config| config.arena.discard = true, "the operator said so"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = old.engine.config().clone();
        let place = dir.path().join("arena");
        fs::copy(&config.arena.place, &place).unwrap();
        config.arena.place = place;
        change(&mut config);
        let new = Bench::on(dir, config).unwrap();
        assert_eq!((new.engine.restored().chunks, new.engine.restored().discarded), (0, Some(why)));
        let session = new.session();
        new.put(session, 2);
        let again = new.killed();
        assert_eq!(again.engine.restored().chunks, u64::from(why == "another size"));
    }
}

#[test]
fn more_namespaces_than_the_catalogue_has_room_for_work_and_are_cold_after_a_restart() {
    let old = Bench::with(8, |config| config.max_namespaces = 1000);
    let session = old.session();
    let mut last = descriptor("a");
    for n in 0..300 {
        last = descriptor(&format!("model {n}"));
        old.engine.register(session, last.clone(), last.digest(), None).unwrap();
    }
    let answers = old.engine.reserve(session, last.digest(), &[ask(chunk(1), FULL)]).unwrap();
    let ReserveAnswer::Reserved(id) = answers[0] else { panic!("{answers:?}") };
    assert!(old.write(session, id, &bytes_of(chunk(1), 0, FULL), FULL).unwrap().chunk_ready);
    old.put(session, 2);
    assert_eq!(old.killed().engine.restored().chunks, 1);
}

#[test]
fn a_chunk_that_changed_in_memory_is_taken_out_for_good_and_no_other() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    (0..4).for_each(|n| bench.put(session, n));
    let ask = LeaseAsk::Lease { ttl: None, locate: true };
    let answer = bench.engine.lookup(session, a(), &[chunk(2)], ask).unwrap();
    let ChunkAnswer::Ready { parts: places, .. } = &answer.chunks[0] else { panic!("{answer:?}") };
    let at = places[0].offset_bytes + 5000;
    bench.release(session, answer.lease.unwrap().id.get());
    assert_eq!((bench.engine.scrub(u64::MAX), bench.engine.stats().quarantined_chunks), (4 * SLOT_BYTES, 0));

    let file =
        fs::OpenOptions::new().read(true).write(true).open(&bench.engine.config().arena.place).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    bench.engine.scrub(u64::MAX);
    assert_eq!(bench.engine.stats().quarantined_chunks, 1);
    let ready = |bench: &Bench, session| (0..4).filter(|&n| bench.is_ready(session, n)).collect::<Vec<_>>();
    assert_eq!(ready(&bench, session), [0, 1, 3]);
    assert_eq!(bench.audit().used_bytes, 3 * SLOT_BYTES);
    let next = bench.killed();
    let session = next.session();
    assert_eq!(ready(&next, session), [0, 1, 3]);
    next.put(session, 2);
}

#[test]
fn verifying_a_chunk_is_no_use_of_it_and_goes_round() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    (0..4).for_each(|n| bench.put(session, n));
    // Piece by piece: each call reads at least what it may, and all come round to the start again.
    for _ in 0..9 {
        assert_eq!(bench.engine.scrub(1), SLOT_BYTES);
    }
    assert_eq!(bench.engine.stats().scrubbed_bytes, 9 * SLOT_BYTES);
    bench.put(session, 100);
    assert!(!bench.is_ready(session, 0), "the oldest was evicted");
    assert_eq!(Bench::with_slots(4).engine.scrub(u64::MAX), 0);
}

/// What happens to an arena between kills.
#[derive(Clone, Debug)]
enum Event {
    Put { n: u32, coverage: u64 },
    PutPair { n: u32, parts: u8 },
    Look { n: u32 },
    Reset,
    Kill,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0u32..12, 1u64..16).prop_map(|(n, coverage)| Event::Put { n, coverage }),
        3 => (0u32..6, 1u8..4).prop_map(|(n, parts)| Event::PutPair { n, parts }),
        3 => (0u32..12).prop_map(|n| Event::Look { n }),
        1 => Just(Event::Reset),
        2 => Just(Event::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// After every kill the successor serves exactly what its predecessor would have answered READY for.
    #[test]
    fn every_kill_leaves_exactly_what_was_ready(events in prop::collection::vec(event(), 1..40)) {
        let mut bench = Bench::with_slots(6);
        let mut session = bench.session();
        let everything = || (0..12).map(chunk).chain((0..6).map(|n| chunk_of(1, n)));
        for event in events {
            match event {
                Event::Put { n, coverage } => {
                    if let ReserveAnswer::Reserved(id) = bench.reserve(session, ask(chunk(n), coverage)) {
                        bench.write(session, id, &bytes_of(chunk(n), 0, coverage), coverage).unwrap();
                    }
                }
                Event::PutPair { n, parts } => {
                    for part in (0..2).filter(|part| parts >> part & 1 == 1) {
                        let asked = ask_part(chunk_of(1, n), part, FULL);
                        if let ReserveAnswer::Reserved(id) = bench.reserve(session, asked) {
                            bench.write(session, id, &bytes_of(chunk_of(1, n), part, FULL), FULL).unwrap();
                        }
                    }
                }
                Event::Look { n } => _ = bench.bytes(session, chunk(n)),
                Event::Reset => _ = bench.engine.reset(ResetScope::One(a())),
                Event::Kill => {
                    let before: BTreeMap<_, _> =
                        everything().map(|chunk| (chunk, bench.bytes(session, chunk))).collect();
                    let next = bench.killed();
                    session = next.session();
                    for (chunk, bytes) in before {
                        let coverage = bytes.as_ref().map(|(coverage, _)| *coverage);
                        prop_assert_eq!(next.bytes(session, chunk), bytes);
                        prop_assert_eq!(next.bytes(session, chunk), coverage.and_then(|c| right(chunk, c)));
                    }
                    prop_assert_eq!(next.engine.restored().dropped_records, 0);
                    next.audit();
                    bench = next;
                }
            }
        }
    }
}
