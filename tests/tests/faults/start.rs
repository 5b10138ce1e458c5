//! Starts that fail: what is said, what is left, and what of an old arena survives.

use std::fs;
use std::os::fd::AsFd;

use nix::fcntl::{FallocateFlags, fallocate};
use tender_daemon::app::{AppError, RunningApp};
use tender_daemon::config::{Config, Listen};
use tender_daemon::engine::StartError;
use tender_daemon::fault::{Fault, Faults};

use super::{ARENA_BYTES, Bench, EAGAIN, EIO, EMFILE, ENOMEM, ENOSPC, files, open};

/// Fails a start with this fault and looks at the sentence.
fn refused(faults: &Faults, fault: Fault, errno: i32, dir: &std::path::Path, arena_bytes: u64) {
    faults.always(fault, errno);
    let error = open(dir, arena_bytes).expect_err("the start must fail");
    assert!(faults.happened(fault) > 0, "{fault:?} was not met");
    faults.never(fault);
    let StartError::Io { source, .. } = &error else { panic!("{fault:?}: {error:?}") };
    assert_eq!(source.raw_os_error(), Some(errno), "{fault:?}: {error}");
    assert!(error.to_string().contains(&dir.join("arena").display().to_string()), "{error}");
}

#[test]
fn a_start_that_fails_leaves_no_file() {
    let faults = Faults::begin();
    let dir = tempfile::tempdir().unwrap();
    for (fault, errno) in [
        (Fault::ArenaOpen, EMFILE),
        (Fault::ArenaCut, EIO),
        (Fault::ArenaHeader, ENOSPC),
        (Fault::ArenaHeaderShort, ENOSPC),
        (Fault::ArenaReserve, ENOSPC),
        (Fault::ArenaReserve, EIO),
        (Fault::ArenaMap, ENOMEM),
    ] {
        refused(&faults, fault, errno, dir.path(), ARENA_BYTES);
        assert!(files(dir.path()).is_empty(), "{fault:?} left {:?}", files(dir.path()));
    }
    // Nothing sticks.
    let bench = Bench::on(dir.path());
    bench.store(1).unwrap();
    assert!(bench.serves(1));
}

/// A hole is where a page of the old arena is not reserved any more; the start must reserve it.
fn punch_hole(file: &std::path::Path) {
    let file = fs::OpenOptions::new().write(true).open(file).unwrap();
    let len = i64::try_from(file.metadata().unwrap().len()).unwrap();
    let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file.as_fd(), how, len - 4096, 4096).unwrap();
}

#[test]
fn an_old_arena_survives_every_start_that_fails() {
    let faults = Faults::begin();
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::on(dir.path());
    (0..5).for_each(|n| bench.store(n).unwrap());
    drop(bench);
    punch_hole(&dir.path().join("arena"));
    for (fault, errno) in [
        (Fault::ArenaOpen, EIO),
        (Fault::ArenaRead, EIO),
        (Fault::ArenaHeader, ENOSPC),
        (Fault::ArenaHeaderShort, EIO),
        (Fault::ArenaReserve, ENOSPC),
        (Fault::ArenaMap, ENOMEM),
    ] {
        refused(&faults, fault, errno, dir.path(), ARENA_BYTES);
        assert_eq!(files(dir.path()), ["arena"], "{fault:?}");
    }
    let bench = Bench::on(dir.path());
    assert_eq!((bench.engine.restored().chunks, bench.engine.restored().dropped_records), (5, 0));
    assert!((0..5).all(|n| bench.serves(n)));
}

#[test]
fn an_arena_of_another_size_that_cannot_be_emptied_keeps_what_it_has() {
    let faults = Faults::begin();
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::on(dir.path());
    bench.store(1).unwrap();
    drop(bench);
    refused(&faults, Fault::ArenaCut, EIO, dir.path(), 2 * ARENA_BYTES);
    let bench = Bench::on(dir.path());
    assert!(bench.serves(1));
    drop(bench);
    // Once it is emptied there is nothing to keep, and a file without an arena in it helps nobody.
    refused(&faults, Fault::ArenaReserve, ENOSPC, dir.path(), 2 * ARENA_BYTES);
    assert!(files(dir.path()).is_empty());
}

fn config(dir: &std::path::Path) -> Config {
    let mut config = Config {
        listen: vec![Listen::Unix(dir.join("t.sock")), "tcp://127.0.0.1:0".parse().unwrap()],
        admin: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::default()
    };
    config.engine = super::settings(dir, ARENA_BYTES);
    config.engine.arena.keep = false;
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_cannot_start_leaves_no_socket_no_file_and_no_thread() {
    let faults = Faults::begin();
    let dir = tempfile::tempdir().unwrap();
    faults.always(Fault::Thread, EAGAIN);
    let error = RunningApp::start(config(dir.path())).await.unwrap_err();
    assert!(matches!(error, AppError::System { .. }), "{error}");
    assert!(error.to_string().contains("probes"), "{error}");
    assert!(files(dir.path()).is_empty(), "{:?}", files(dir.path()));
    faults.never(Fault::Thread);

    // The admin thread runs already when the arena fails.
    faults.always(Fault::ArenaReserve, ENOSPC);
    let error = RunningApp::start(config(dir.path())).await.unwrap_err();
    assert!(matches!(error, AppError::Arena(_)), "{error}");
    assert!(files(dir.path()).is_empty(), "{:?}", files(dir.path()));
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let names = threads.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
    assert!(!names.into_iter().any(|name| name.starts_with("tenderd-admin")));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_cannot_be_touched_and_threads_that_do_not_start_only_cost_time() {
    let faults = Faults::begin();
    for (fault, errno) in [(Fault::Thread, EAGAIN), (Fault::ArenaPopulate, EIO)] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        config.admin = None;
        config.engine.arena.prefault = true;
        faults.always(fault, errno);
        let app = RunningApp::start(config).await.unwrap();
        app.phase().wait_for(|phase| phase.is_ready()).await.unwrap();
        assert!(fault != Fault::ArenaPopulate || faults.happened(fault) > 0);
        faults.never(fault);
        app.shutdown().await;
    }
    // The one thread that there is does all of it.
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::on(dir.path());
    faults.always(Fault::Thread, EAGAIN);
    let touched = std::sync::atomic::AtomicU64::new(0);
    let most = |done, _| _ = touched.fetch_max(done, std::sync::atomic::Ordering::Relaxed);
    bench.engine.prefault(&most).unwrap();
    assert_eq!(touched.into_inner(), bench.engine.arena_file_bytes());
}
