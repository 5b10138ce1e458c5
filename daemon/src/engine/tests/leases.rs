//! Rule 8: what a lease promises, when it ends, and who may use it.

use super::*;

#[test]
fn a_leased_chunk_is_never_evicted_and_the_oldest_other_goes() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    (1..=4).for_each(|n| bench.put(session, n));
    let lease = bench.lease(session, &[chunk(1), chunk(2)]);
    bench.put(session, 5);
    assert_eq!(bench.look(session, 3), ChunkAnswer::Miss(Reason::Evicted));
    bench.put(session, 6);
    assert_eq!(bench.look(session, 4), ChunkAnswer::Miss(Reason::Evicted));
    assert!(bench.is_ready(session, 1) && bench.is_ready(session, 2));
    assert_eq!(bench.release(session, lease), LeaseEnd::Live);
    assert_eq!(bench.engine.stats().namespaces[0].evicted_chunks, 2);
}

#[test]
fn the_last_chunk_of_a_prefix_is_evicted_before_those_it_depends_on() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    (1..=4).for_each(|n| bench.put(session, n));
    let prefix = [chunk(1), chunk(2), chunk(3), chunk(4)];
    let after_release = bench.lease(session, &prefix);
    bench.release(session, after_release);
    bench.put(session, 5);
    assert_eq!(bench.look(session, 4), ChunkAnswer::Miss(Reason::Evicted));
    bench.engine.lookup(session, a(), &prefix, LeaseAsk::None).unwrap();
    bench.look(session, 5);
    bench.put(session, 6);
    assert_eq!(bench.look(session, 3), ChunkAnswer::Miss(Reason::Evicted));
    assert!(bench.is_ready(session, 1) && bench.is_ready(session, 2) && bench.is_ready(session, 5));
}

#[test]
fn a_lease_ends_at_its_deadline_even_if_nobody_sweeps() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    bench.put(session, 1);
    let lease = bench.lease(session, &[chunk(1)]);
    bench.clock.advance(LEASE);
    assert_eq!(bench.engine.read(session, lease, 0, PartIndex(0)).unwrap_err(), Reason::LeaseExpired);
    assert_eq!(bench.release(session, lease), LeaseEnd::Expired);
    assert_eq!(bench.release(session, lease), LeaseEnd::Expired);
    assert_eq!((bench.audit().leases, bench.engine.stats().expired_leases), (0, 1));
}

#[test]
fn an_expired_lease_holds_nothing_after_the_sweep() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    (1..=4).for_each(|n| bench.put(session, n));
    let lease = bench.lease(session, &[chunk(1), chunk(2), chunk(3), chunk(4)]);
    assert_eq!(bench.reserve(session, ask(chunk(5), FULL)), ReserveAnswer::Refused(Reason::NoSpace));
    bench.pass(LEASE);
    assert_eq!((bench.audit().leases, bench.audit().pins), (0, 0));
    assert_eq!(bench.engine.read(session, lease, 0, PartIndex(0)).unwrap_err(), Reason::LeaseExpired);
    bench.put(session, 5);
}

#[test]
fn a_reservation_does_not_wait_for_the_sweep_to_find_room() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    (1..=4).for_each(|n| bench.put(session, n));
    bench.lease(session, &[chunk(1), chunk(2), chunk(3), chunk(4)]);
    bench.clock.advance(LEASE);
    bench.put(session, 5);
}

#[test]
fn wishes_are_cut_to_the_maximum_and_nothing_ready_means_no_lease() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    bench.put(session, 1);
    let long = LeaseAsk::Lease { ttl: Some(100 * LEASE), locate: false };
    let answer = bench.engine.lookup(session, a(), &[chunk(9), chunk(1)], long).unwrap();
    assert_eq!(answer.lease.unwrap().ttl, 4 * LEASE);
    assert_eq!(bench.engine.lookup(session, a(), &[chunk(9)], long).unwrap().lease, None);
    assert_eq!(bench.engine.lookup(session, a(), &[], long).unwrap().lease, None);
    let lease = answer.lease.unwrap().id.get();
    // Position 0 was not READY, 2 was not asked for.
    assert_eq!(bench.engine.read(session, lease, 0, PartIndex(0)).unwrap_err(), Reason::NeverStored);
    assert_eq!(bench.engine.read(session, lease, 2, PartIndex(0)).unwrap_err(), Reason::Malformed);
    assert_eq!(bench.engine.read(session, lease, 1, PartIndex(1)).unwrap_err(), Reason::PartOutOfRange);
    assert!(bench.engine.read(session, lease, 1, PartIndex(0)).is_ok());
}

#[test]
fn another_sessions_lease_cannot_be_read_or_released() {
    let bench = Bench::with_slots(4);
    let (owner, other) = (bench.session(), bench.session());
    bench.put(owner, 1);
    let lease = bench.lease(owner, &[chunk(1)]);
    assert_eq!(bench.engine.read(other, lease, 0, PartIndex(0)).unwrap_err(), Reason::UnknownLease);
    assert_eq!(bench.release(other, lease), LeaseEnd::Expired);
    assert_eq!(bench.release(other, 0), LeaseEnd::Expired);
    assert_eq!(bench.release(owner, lease), LeaseEnd::Live);
    assert_eq!(bench.engine.read(owner, lease, 0, PartIndex(0)).unwrap_err(), Reason::UnknownLease);
}

#[test]
fn a_session_that_ends_takes_its_leases_with_it() {
    let bench = Bench::with_slots(4);
    let (dying, other) = (bench.session(), bench.session());
    (1..=4).for_each(|n| bench.put(dying, n));
    bench.lease(dying, &[chunk(1), chunk(2), chunk(3), chunk(4)]);
    let theirs = bench.lease(other, &[chunk(4)]);
    bench.engine.close_session(dying);
    assert_eq!((bench.audit().leases, bench.audit().pins), (1, 1));
    (5..=7).for_each(|n| bench.put(other, n));
    assert_eq!(bench.release(other, theirs), LeaseEnd::Live);
}

#[test]
fn each_holder_counts_for_itself() {
    let bench = Bench::with_slots(4);
    let (one, two) = (bench.session(), bench.session());
    bench.put(one, 1);
    let leases = [bench.lease(one, &[chunk(1), chunk(1)]), bench.lease(two, &[chunk(1)])];
    assert_eq!(bench.audit().pins, 3);
    let reader = bench.engine.read(two, leases[1], 0, PartIndex(0)).unwrap();
    bench.release(one, leases[0]);
    bench.release(two, leases[1]);
    // The reader alone holds it now.
    (2..=4).for_each(|n| bench.put(one, n));
    bench.put(one, 5);
    assert!(bench.is_ready(one, 1));
    drop(reader);
    assert_eq!(bench.audit().readers, 0);
}

#[test]
fn located_parts_lie_where_the_map_of_a_client_shows_them() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    let two_parts = chunk_of(1, 7);
    for part in [0, 1] {
        let id = bench.reserved(session, ask_part(two_parts, part, 0b0110));
        bench.write(session, id, &bytes_of(two_parts, part, 0b0110), 0b0110).unwrap();
    }
    let handover = bench.engine.attach_staging(session, 0).unwrap();
    assert!(handover.staging.is_none());
    let map = tender_proto::shm::Mapping::read_only(&std::fs::File::from(handover.arena)).unwrap();
    assert_eq!(map.len() as u64, handover.arena_bytes);
    let located = LeaseAsk::Lease { ttl: None, locate: true };
    let answer = bench.engine.lookup(session, a(), &[two_parts], located).unwrap();
    let ChunkAnswer::Ready { coverage, parts } = &answer.chunks[0] else { panic!("{answer:?}") };
    assert_eq!((coverage.bits(), parts.len()), (0b0110, 2));
    for (part, place) in (0..).zip(parts) {
        let expected = bytes_of(two_parts, part, 0b0110);
        let mut seen = vec![0; expected.len()];
        map.copy_out(place.offset_bytes, &mut seen).unwrap();
        assert_eq!((seen, place.bytes), (expected.clone(), expected.len() as u64));
        assert_eq!(place.digest, ContentDigest::of(&expected));
    }
}
