//! All faults of the data path at once, drawn by chance, under several threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tender_daemon::engine::{LeaseAsk, ReserveAnswer};
use tender_daemon::fault::{Fault, Faults};
use tender_proto::{PartIndex, Reason};
use tender_tests::fixture;

use super::{Bench, EIO, ENOSPC, open};

const THREADS: u64 = 4;
const ROUNDS: u64 = 300;
const CHUNKS: u64 = 96;

#[test]
fn nothing_is_lost_or_leaked_in_a_storm_of_faults() {
    let faults = Faults::begin();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let bench = Arc::new(Bench::with(open(dir.path(), super::ARENA_BYTES).unwrap()));
    let all = [
        (Fault::Allocate, 5, ENOSPC),
        (Fault::PartWrite, 3, EIO),
        (Fault::PartOpen, 5, EIO),
        (Fault::RecordWrite, 5, ENOSPC),
        (Fault::ScrubRead, 2, EIO),
    ];
    for (fault, percent, errno) in all {
        faults.sometimes(fault, percent, errno);
    }
    let (stored, read, refused) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (bench, stored, read, refused) = (&bench, &stored, &read, &refused);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let n = (thread * 31 + round * 7) % CHUNKS;
                    match bench.store(n) {
                        Ok(()) => _ = stored.fetch_add(1, Ordering::Relaxed),
                        // Another thread's reservation of the same chunk may have been given up meanwhile.
                        Err(Reason::Internal | Reason::NoSpace) => {
                            _ = refused.fetch_add(1, Ordering::Relaxed)
                        }
                        Err(other) => panic!("{other}"),
                    }
                    read.fetch_add(u64::from(read_one(bench, (n + 1) % CHUNKS)), Ordering::Relaxed);
                    if round % 50 == thread {
                        bench.engine.scrub(1 << 20);
                        bench.engine.sweep();
                    }
                }
            });
        }
    });
    for (fault, ..) in all {
        assert!(faults.happened(fault) > 0, "{fault:?} never happened");
        faults.never(fault);
    }
    let counts = [&stored, &read, &refused].map(|count| count.load(Ordering::Relaxed));
    assert!(counts.iter().all(|&count| count > 0), "stored, read, refused: {counts:?}");
    bench.quiet();
    // What is there is right, and the engine is as good as new.
    (0..CHUNKS).for_each(|n| _ = bench.serves(n));
    bench.store(1000).unwrap();
    assert!(bench.serves(1000));
    bench.quiet();
    assert!(!matches!(bench.reserve(1000), ReserveAnswer::Refused(_)));
}

/// Whether it was there and could be opened; then its bytes are right.
fn read_one(bench: &Bench, n: u64) -> bool {
    let (ask, namespace) = (LeaseAsk::Lease { ttl: None, locate: false }, bench.descriptor.digest());
    let Ok(found) = bench.engine.lookup(bench.session, namespace, &[fixture::chunk(n)], ask) else {
        return false;
    };
    let Some(lease) = found.lease else { return false };
    let read = bench.engine.read(bench.session, lease.id.get(), 0, PartIndex(0));
    let right = read.map(|reader| reader.as_ref() == bench.content(n));
    bench.engine.release(bench.session, &[lease.id.get()]).unwrap();
    match right {
        Ok(right) => {
            assert!(right, "chunk {n} has other bytes");
            true
        }
        Err(reason) => {
            assert_eq!(reason, Reason::Internal);
            false
        }
    }
}
