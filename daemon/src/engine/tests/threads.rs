//! Many threads at once: what holds for one call after another holds for calls at the same time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;

const THREADS: u32 = 8;

/// Case 39 with real contention: lookup, reserve, write and read of the same few keys, in an arena that
/// cannot hold them all, with resets and dying sessions in between.
#[test]
fn case_39_a_stampede_stores_one_copy_and_reads_only_right_bytes() {
    let bench = Bench::with_slots(6);
    let (read, stored) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (bench, read, stored) = (&bench, &read, &stored);
            scope.spawn(move || {
                let mut session = bench.session();
                for round in 0..150u32 {
                    let n = (round * 7 + thread) % 8;
                    if let ReserveAnswer::Reserved(id) = bench.reserve(session, ask(chunk(n), FULL)) {
                        match bench.write(session, id, &bytes_of(chunk(n), 0, FULL), FULL) {
                            Ok(done) => stored.fetch_add(u64::from(done.chunk_ready), Ordering::Relaxed),
                            Err(Reason::NamespaceReset) => 0,
                            Err(other) => panic!("{other}"),
                        };
                    }
                    read.fetch_add(read_some(bench, session), Ordering::Relaxed);
                    match round % 50 {
                        17 if thread == 0 => drop(bench.engine.reset(ResetScope::One(a()))),
                        31 => {
                            bench.engine.close_session(session);
                            session = bench.session();
                        }
                        _ => bench.engine.sweep(),
                    }
                }
                bench.engine.close_session(session);
            });
        }
    });
    let audit = bench.audit();
    assert_eq!((audit.pins, audit.readers, audit.writers, audit.pending_chunks), (0, 0, 0, 0));
    assert_eq!((audit.inflight_bytes, audit.sessions), (0, 0));
    assert!(audit.used_bytes <= 6 * SLOT_BYTES);
    assert!(read.into_inner() > 0 && stored.into_inner() > 0);
}

/// Leases everything that is READY, checks every byte, and releases.
fn read_some(bench: &Bench, session: SessionId) -> u64 {
    let all: Vec<_> = (0..8).map(chunk).collect();
    let ask = LeaseAsk::Lease { ttl: None, locate: false };
    let answer = bench.engine.lookup(session, a(), &all, ask).unwrap();
    let Some(lease) = answer.lease else { return 0 };
    let mut read = 0;
    for (n, answer) in (0u32..).zip(&answer.chunks) {
        if matches!(answer, ChunkAnswer::Ready { .. }) {
            let reader = bench.engine.read(session, lease.id.get(), n as usize, PartIndex(0)).unwrap();
            assert_eq!(reader.as_ref(), bytes_of(chunk(n), 0, FULL));
            read += 1;
        }
    }
    assert_eq!(bench.release(session, lease.id.get()), LeaseEnd::Live);
    read
}

#[test]
fn a_thousand_sessions_come_and_go() {
    let bench = Bench::with(4, |config| config.max_sessions = 1000);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let sessions: Vec<_> = (0..250).map(|_| bench.session()).collect();
                for session in &sessions {
                    let _ = bench.reserve(*session, ask(chunk(1), FULL));
                }
                sessions.into_iter().for_each(|session| bench.engine.close_session(session));
            });
        }
    });
    let audit = bench.audit();
    assert_eq!((audit.sessions, audit.reservations, audit.used_bytes), (0, 0, 0));
}
