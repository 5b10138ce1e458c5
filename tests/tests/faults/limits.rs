//! The program under real limits of the system, without any fault of ours in it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tender_tests::attach::FdSocket;
use tender_tests::daemon::tenderd;
use tender_tests::fixture;
use tender_tests::raw::{RawClient, Target};

use super::{BLOCK_BYTES, files};

const PATIENCE: Duration = Duration::from_secs(30);

/// `tenderd` under a limit of the shell's, as `ulimit` takes it.
fn limited(limit: &str, dir: &Path, arena: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]).arg(tenderd());
    command.arg("--listen").arg(format!("unix:{}", dir.join("t.sock").display()));
    command.arg("--arena-path").arg(dir.join("arena")).args(["--arena-size", arena, "--log-level", "warn"]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TENDERD_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Running {
    async fn until_ready(&self, dir: &Path) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            if let Ok(client) = RawClient::connect(&Target::Unix(dir.join("t.sock"))).await
                && client.ping().await.is_ok_and(|answer| answer.ready)
            {
                return;
            }
            assert!(Instant::now() < give_up, "tenderd did not become ready");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    /// Waits for its end and returns what it said.
    fn said(mut self) -> (Option<i32>, String) {
        let mut text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (self.0.wait().unwrap().code(), text)
    }
}

#[test]
fn an_arena_that_cannot_be_mapped_ends_the_start_with_a_sentence_and_leaves_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    // Address space for the program and its threads, and not for the arena.
    let child = Running(limited("-v 900000", dir.path(), "1GiB").spawn().unwrap());
    let (code, text) = child.said();
    assert!(code == Some(1) && text.contains("map") && text.contains("arena"), "{code:?} {text}");
    assert!(!text.contains("panicked"), "{text}");
    assert!(files(dir.path()).is_empty(), "{:?}", files(dir.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_descriptors_the_daemon_serves_who_is_in_and_lets_others_in_later() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let daemon = Running(limited("-n 48", dir.path(), "16MiB").spawn().unwrap());
    daemon.until_ready(dir.path()).await;
    let target = Target::Unix(dir.path().join("t.sock"));
    let descriptor = fixture::small("limits", BLOCK_BYTES);
    let session = RawClient::connect(&target).await.unwrap().open_registered(&descriptor).await;
    // More connections than it has descriptors. Of calls it serves a quarter as many, and closes the others; who comes for
    // shared memory beyond what is left waits in the kernel's queue.
    let socket = dir.path().join("t.sock");
    let crowd: Vec<_> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let lines: Vec<_> = (0..100).map(|_| FdSocket::connect(&socket).unwrap()).collect();
    let open = || std::fs::read_dir(format!("/proc/{}/fd", daemon.0.id())).unwrap().count();
    let give_up = Instant::now() + PATIENCE;
    while open() < 48 {
        assert!(Instant::now() < give_up, "{} of 48 descriptors are in use", open());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let full = fixture::full(&descriptor);
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
    assert!(session.read(descriptor.digest(), fixture::chunk(1), fixture::PART).await.is_some());
    drop((crowd, lines));
    let give_up = Instant::now() + PATIENCE;
    let late = loop {
        // Their places are free as soon as the daemon has heard that they have gone.
        if let Ok(client) = RawClient::connect(&target).await
            && client.ping().await.is_ok()
        {
            break client.open_registered(&descriptor).await;
        }
        assert!(Instant::now() < give_up, "nobody is let in any more");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(late.read(descriptor.digest(), fixture::chunk(1), fixture::PART).await.is_some());
}

/// Whoever may write the arena's file may also cut it; then touching what is gone is a bus error. The daemon does not
/// survive that, and what comes after it begins with an empty arena instead of wrong bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_arena_was_cut_says_so_and_its_successor_begins_anew() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let daemon = Running(limited("-c 0", dir.path(), "16MiB").spawn().unwrap());
    daemon.until_ready(dir.path()).await;
    let target = Target::Unix(dir.path().join("t.sock"));
    let descriptor = fixture::small("limits", BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    let session = RawClient::connect(&target).await.unwrap().open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
    std::fs::OpenOptions::new().write(true).open(dir.path().join("arena")).unwrap().set_len(8192).unwrap();
    // Its own scrub may have touched it before.
    let found =
        session.lookup(descriptor.digest(), &[fixture::chunk(1)], tender_tests::raw::Ask::LEASE).await;
    if let Ok(found) = found
        && let Some(lease) = found.lease
        && let Ok(stream) = session.get(lease.id, vec![tender_tests::raw::get_item(0, fixture::PART)]).await
    {
        tender_tests::raw::collect(stream, 1).await.expect_err("the daemon is gone");
    }
    let (code, text) = daemon.said();
    assert_ne!(code, Some(0));
    assert!(text.contains("was cut") && text.contains("arena"), "{text}");
    let next = Running(limited("-c 0", dir.path(), "16MiB").spawn().unwrap());
    next.until_ready(dir.path()).await;
    let session = RawClient::connect(&target).await.unwrap().open_registered(&descriptor).await;
    assert!(session.read(descriptor.digest(), fixture::chunk(1), fixture::PART).await.is_none());
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
    assert!(session.read(descriptor.digest(), fixture::chunk(1), fixture::PART).await.is_some());
}
