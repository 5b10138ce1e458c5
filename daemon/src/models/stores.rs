//! Versions: pins and eviction, resets, writers that are late.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use tender_proto::{PartIndex, Reason};

use super::{Bench, RESERVATION, Verdict, chunk, content, holds_but_not_with, namespace};
use crate::engine::{LeaseAsk, LeaseEnd, ResetScope};
use crate::sync::Planted;

/// One thread leases and reads, the other stores so much that something must go.
fn a_reader_and_a_writer_without_room(verdict: &Verdict) {
    let bench = Bench::new();
    (0..16).for_each(|n| _ = bench.store(n).unwrap());
    loom::explore();
    let writer = {
        let bench = Arc::clone(&bench);
        thread::spawn(move || bench.reserve(99).map(drop))
    };
    let reader = {
        let (bench, verdict) = (Arc::clone(&bench), verdict.clone());
        thread::spawn(move || {
            let Some(lease) = bench.lease(0) else { return };
            verdict.wrong_if(!bench.is_ready(0));
            let read = bench.engine.read(bench.session, lease, 0, PartIndex(0));
            verdict.wrong_if(read.is_ok_and(|reader| reader.as_ref() != content(0)));
            let ends = bench.engine.release(bench.session, &[lease]).unwrap();
            verdict.wrong_if(ends != [LeaseEnd::Live]);
        })
    };
    reader.join().unwrap();
    let reserved = writer.join().unwrap();
    loom::stop_exploring();
    verdict.wrong_if(reserved.is_err());
    verdict.wrong_if(bench.engine.audit().is_err());
}

#[test]
fn what_is_leased_is_not_evicted() {
    holds_but_not_with(Planted::VictimNotLookedAtAgain, 2, a_reader_and_a_writer_without_room);
}

/// A part is published while its namespace is reset.
fn a_writer_and_a_reset(verdict: &Verdict) {
    let bench = Bench::new();
    bench.store(1).unwrap();
    let id = bench.reserve(2).unwrap();
    loom::explore();
    let writer = {
        let bench = Arc::clone(&bench);
        thread::spawn(move || _ = bench.write(id, 2))
    };
    bench.engine.reset(ResetScope::One(namespace()));
    // Both were reserved before the reset.
    verdict.wrong_if(bench.is_ready(1) || bench.is_ready(2));
    writer.join().unwrap();
    loom::stop_exploring();
    verdict.wrong_if(bench.is_ready(2));
    verdict.wrong_if(!bench.is_quiet() || bench.engine.stats().arena_used_bytes > 0);
}

#[test]
fn nothing_from_before_a_reset_is_found_or_left_after_it() {
    holds_but_not_with(Planted::SweptBeforeTheEpoch, 2, a_writer_and_a_reset);
}

/// A writer whose time is up publishes, while somebody else takes its place.
fn a_late_writer_and_its_successor(verdict: &Verdict) {
    let bench = Bench::new();
    let late = bench.reserve(1).unwrap();
    let mut writer = bench.engine.begin_write(bench.session, late.get()).unwrap();
    writer.write(0, &content(1)).unwrap();
    loom::explore();
    let successor = {
        let bench = Arc::clone(&bench);
        thread::spawn(move || {
            bench.clock.advance(RESERVATION);
            bench.engine.sweep();
            bench.reserve(1).ok()
        })
    };
    let published = writer.finish(tender_proto::ContentDigest::of(&content(1)), 1).outcome;
    let next = successor.join().unwrap();
    loom::stop_exploring();
    // Either the first was in time, and then the second need not store it; or the second holds its place alone.
    verdict.wrong_if(published.is_ok() == next.is_some());
    verdict.wrong_if(bench.engine.audit().is_err());
    if let Some(next) = next {
        verdict.wrong_if(bench.write(next, 1).is_err());
    }
    verdict.wrong_if(!bench.is_ready(1) || !bench.is_quiet());
}

#[test]
fn a_part_is_published_by_whoever_holds_its_place() {
    holds_but_not_with(Planted::HolderNotLookedAt, 2, a_late_writer_and_its_successor);
}

/// A lease runs out while it is released, and its bytes are given to somebody else.
fn a_slow_reader_and_an_eviction(verdict: &Verdict) {
    let bench = Bench::new();
    (0..16).for_each(|n| _ = bench.store(n).unwrap());
    // Everything else is held for longer, so that only chunk 0 can go.
    let others: Vec<_> = (1..16).map(chunk).collect();
    let held = LeaseAsk::Lease { ttl: None, locate: false };
    let held = bench.engine.lookup(bench.session, namespace(), &others, held).unwrap().lease.unwrap();
    let ask = LeaseAsk::Lease { ttl: Some(Duration::from_secs(1)), locate: true };
    let found = bench.engine.lookup(bench.session, namespace(), &[chunk(0)], ask).unwrap();
    let lease = found.lease.unwrap().id.get();
    loom::explore();
    let writer = {
        let bench = Arc::clone(&bench);
        thread::spawn(move || {
            bench.clock.advance(Duration::from_secs(1));
            bench.store(99).map(drop)
        })
    };
    // Through the map, as a local client reads: nothing holds the bytes but the lease.
    let seen = bench.engine.peek(&found.chunks[0]);
    let end = bench.engine.release(bench.session, &[lease]).unwrap()[0];
    let stored = writer.join().unwrap();
    loom::stop_exploring();
    verdict.wrong_if(end == LeaseEnd::Live && seen != content(0));
    bench.engine.release(bench.session, &[held.id.get()]).unwrap();
    // No room while the lease has ended and its pins have not: refused at once is right, too.
    verdict.wrong_if(!matches!(stored, Ok(()) | Err(Reason::NoSpace)) || !bench.is_quiet());
}

#[test]
fn a_lease_that_was_good_until_its_release_was_on_the_right_bytes() {
    holds_but_not_with(Planted::UnknownIsLive, 2, a_slow_reader_and_an_eviction);
}
