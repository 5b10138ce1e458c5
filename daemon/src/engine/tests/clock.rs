//! Clocks that misbehave. The machine's monotonic clock should do none of this; a suspended machine, a stopped process
//! and a bad hypervisor have been seen to.

use proptest::prelude::*;

use super::*;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

#[test]
fn a_jump_forwards_ends_every_promise_and_nothing_that_is_stored() {
    let bench = Bench::with_slots(8);
    let session = bench.session();
    (1..=3).for_each(|n| bench.put(session, n));
    let lease = bench.lease(session, &[chunk(1), chunk(2)]);
    let waiting = bench.reserved(session, ask(chunk(4), FULL));
    let writing = bench.reserved(session, ask(chunk(5), FULL));
    let mut writer = bench.engine.begin_write(session, writing.get()).unwrap();
    writer.write(0, &bytes_of(chunk(5), 0, FULL)).unwrap();

    bench.pass(YEAR);
    assert_eq!(bench.release(session, lease), LeaseEnd::Expired);
    let late = writer.finish(ContentDigest::of(&bytes_of(chunk(5), 0, FULL)), FULL);
    assert_eq!(late.outcome, Err(Reason::ReservationExpired));
    let waited = bench.engine.begin_write(session, waiting.get());
    assert_eq!(waited.map(drop), Err(Reason::ReservationExpired));
    let audit = bench.audit();
    assert_eq!((audit.leases, audit.pins, audit.reservations, audit.writers), (0, 0, 0, 0));
    assert_eq!((audit.sessions, audit.ready_chunks, audit.used_bytes), (1, 3, 3 * SLOT_BYTES));

    // The session goes on, and so does every chunk.
    assert!((1..=3).all(|n| bench.is_ready(session, n)));
    bench.put(session, 4);
    let lease = bench.lease(session, &[chunk(4)]);
    assert_eq!(bench.release(session, lease), LeaseEnd::Live);
}

#[test]
fn while_the_clock_stands_still_everything_is_served_and_nothing_grows() {
    let bench = Bench::with_slots(4);
    let session = bench.session();
    for n in 0..500 {
        bench.put(session, n);
        let lease = bench.lease(session, &[chunk(n)]);
        bench.engine.sweep();
        assert_eq!(bench.release(session, lease), LeaseEnd::Live);
    }
    let leases: Vec<_> = (0..16).map(|_| bench.lease(session, &[chunk(499)])).collect();
    let ask = LeaseAsk::Lease { ttl: None, locate: false };
    let more = bench.engine.lookup(session, a(), &[chunk(499)], ask).unwrap_err();
    assert_eq!(more.reason, Reason::TooMany, "promises that do not end are bounded");
    bench.engine.close_session(session);
    assert_eq!((leases.len(), bench.audit().leases, bench.audit().pins), (16, 0, 0));
}

#[test]
fn a_step_back_is_a_clock_that_stands_still() {
    let bench = Bench::with_slots(8);
    let session = bench.session();
    bench.put(session, 1);
    let early = bench.lease(session, &[chunk(1)]);
    bench.clock.go_back(Duration::from_secs(3600));
    let late = bench.lease(session, &[chunk(1)]);
    let id = bench.reserved(session, ask(chunk(2), FULL));
    // By the clock that went back the later ones would end first, and hold their room until the earlier ones do.
    bench.pass(RESERVATION);
    assert_eq!(bench.audit().reservations, 1);
    assert_eq!(bench.release(session, late), LeaseEnd::Live);
    assert!(bench.engine.begin_write(session, id.get()).is_ok());
    bench.pass(Duration::from_secs(3600));
    assert_eq!(bench.release(session, early), LeaseEnd::Expired);
}

#[derive(Clone, Debug)]
enum Step {
    Forwards(u64),
    Back(u64),
    Reserve,
    Lease,
    Put,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0u64..12_000).prop_map(Step::Forwards),
        1 => (0u64..12_000).prop_map(Step::Back),
        2 => Just(Step::Reserve),
        1 => Just(Step::Lease),
        1 => Just(Step::Put),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the clock does: who is told that it is over holds nothing, and who holds something can use it.
    #[test]
    fn what_is_over_holds_nothing_whatever_the_clock_does(steps in proptest::collection::vec(step(), 1..40)) {
        let bench = Bench::with_slots(64);
        let session = bench.session();
        bench.put(session, 0);
        let (mut reserved, mut leased) = (Vec::new(), Vec::new());
        for (n, step) in (1..).zip(steps) {
            match step {
                Step::Forwards(millis) => bench.clock.advance(Duration::from_millis(millis)),
                Step::Back(millis) => bench.clock.go_back(Duration::from_millis(millis)),
                Step::Reserve => reserved.push(bench.reserved(session, ask(chunk(n), FULL))),
                Step::Lease if bench.audit().leases < 16 => leased.push(bench.lease(session, &[chunk(0)])),
                Step::Lease => {}
                Step::Put => bench.put(session, n),
            }
            bench.engine.sweep();
            bench.audit();
        }
        let (waiting, leases) = (bench.audit().reservations, bench.audit().leases);
        let usable = reserved.iter().filter(|id| bench.engine.begin_write(session, id.get()).is_ok()).count();
        let live = leased.iter().filter(|&&lease| bench.release(session, lease) == LeaseEnd::Live).count();
        prop_assert_eq!((usable as u64, live as u64), (waiting, leases));
        prop_assert!(bench.is_ready(session, 0));
    }
}
