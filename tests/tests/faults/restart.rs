//! Faults while the arena's file is told what it holds: the chunk is served as usual, and the next daemon serves it or
//! does not know it, but never serves anything else.

use std::os::fd::AsFd;
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};
use tender_daemon::fault::{Fault, Faults};

use super::{ARENA_BYTES, Bench, EIO, ENOSPC};

/// The arena as a kill at this moment would leave it, in a folder of its own.
fn killed(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("arena"), copy.path().join("arena")).unwrap();
    copy
}

#[test]
fn a_part_without_a_record_is_served_and_not_found_by_the_next_daemon() {
    let faults = Faults::begin();
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::on(dir.path());
    bench.store(1).unwrap();
    faults.next(Fault::RecordWrite, 1, ENOSPC);
    bench.store(2).unwrap();
    bench.store(3).unwrap();
    assert!((1..=3).all(|n| bench.serves(n)));
    bench.quiet();
    let next = killed(dir.path());
    let next = Bench::on(next.path());
    let served: Vec<_> = (1..=3).filter(|&n| next.serves(n)).collect();
    assert_eq!((served, next.engine.restored().dropped_records), (vec![1, 3], 0));
    next.quiet();
}

#[test]
fn a_namespace_that_cannot_be_written_down_is_served_and_begins_anew() {
    let faults = Faults::begin();
    for fault in [Fault::DescriptorWrite, Fault::RecordWrite] {
        let dir = tempfile::tempdir().unwrap();
        faults.next(fault, 1, EIO);
        let bench = Bench::on(dir.path());
        (1..=3).for_each(|n| bench.store(n).unwrap());
        assert!((1..=3).all(|n| bench.serves(n)));
        bench.quiet();
        let copy = killed(dir.path());
        let next = Bench::on(copy.path());
        assert_eq!((next.engine.restored().chunks, next.engine.audit().unwrap().used_bytes), (0, 0));
        next.store(1).unwrap();
        assert!(next.serves(1) && !next.serves(2));
        next.quiet();
    }
}

#[test]
fn half_a_record_is_dropped_and_counted_and_its_bytes_are_free() {
    let faults = Faults::begin();
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::on(dir.path());
    bench.store(1).unwrap();
    faults.next(Fault::RecordTorn, 1, EIO);
    bench.store(2).unwrap();
    bench.store(3).unwrap();
    // The daemon that wrote it is dead in this play; its successor reads what is there.
    let next = killed(dir.path());
    let next = Bench::on(next.path());
    let restored = next.engine.restored();
    assert_eq!((restored.chunks, restored.dropped_records), (2, 1));
    assert!(next.serves(1) && !next.serves(2) && next.serves(3));
    next.quiet();
    next.store(2).unwrap();
    assert!(next.serves(2));
}

/// A page that somebody took out of the file reads as zeros: that is no chunk's content.
#[test]
fn pages_that_are_punched_out_of_the_arena_are_found_by_the_scrub() {
    let faults = Faults::begin();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let bench = Bench::on(dir.path());
    (0..4).for_each(|n| bench.store(n).unwrap());
    let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("arena")).unwrap();
    let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let pool = i64::try_from(bench.engine.arena_file_bytes() - ARENA_BYTES).unwrap();
    fallocate(file.as_fd(), how, pool, i64::try_from(ARENA_BYTES).unwrap()).unwrap();
    bench.engine.scrub(u64::MAX);
    assert_eq!(bench.engine.stats().quarantined_chunks, 4);
    assert!((0..4).all(|n| !bench.serves(n)));
    bench.quiet();
    // The memory is as good as before.
    (0..4).for_each(|n| bench.store(n).unwrap());
    assert!((0..4).all(|n| bench.serves(n)));
    drop(faults);
}
