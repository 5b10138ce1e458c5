//! Field report 32: probes tell the truth about a daemon that is busy, starting, stopping or coming back from a kill, and
//! tell it at once.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tender_proto::v1;
use tender_tests::daemon::{ChildDaemon, SLOT_BLOCK_BYTES, Setup, http_status};
use tender_tests::raw::{Ask, RawClient, Target, collect, get_item};
use tender_tests::{fixture, pattern};

/// What a liveness probe waits at most (`timeoutSeconds: 1`).
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(300);

/// A daemon with an admin port; killed on drop.
struct Probed {
    child: Child,
    begun: Instant,
    dir: TempDir,
}

impl Probed {
    fn start(dir: TempDir, arena_bytes: u64, prefault: bool) -> Self {
        let setup = Setup { arena_bytes, ..Setup::default() };
        let begun = Instant::now();
        let child = ChildDaemon::with_setup(&setup, dir.path())
            .args(["--admin", "127.0.0.1:0", "--drain-grace", "3s", "--log-level", "warn"])
            .args(["--arena-prefault", if prefault { "true" } else { "false" }])
            .spawn()
            .unwrap();
        Self { child, begun, dir }
    }
    /// The port at which it listens first: the admin's is the only TCP port it has.
    async fn admin(&mut self) -> SocketAddr {
        let give_up = Instant::now() + PATIENCE;
        loop {
            assert_eq!(self.child.try_wait().unwrap(), None, "it has ended");
            if let Some(port) = listening_port(self.child.id()) {
                return SocketAddr::from(([127, 0, 0, 1], port));
            }
            assert!(Instant::now() < give_up, "no admin port");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    fn target(&self) -> Target {
        Target::Unix(self.dir.path().join("tenderd.sock"))
    }
    async fn until_ready(&mut self) -> SocketAddr {
        let admin = self.admin().await;
        let give_up = Instant::now() + PATIENCE;
        while http_status(&admin, "/ready").await != 200 {
            assert!(Instant::now() < give_up, "it does not become ready");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        admin
    }
    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }
    /// SIGKILL; the directory stays.
    fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }
}

impl Drop for Probed {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A TCP port on which a process listens, from what the kernel says of its sockets.
fn listening_port(pid: u32) -> Option<u16> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let inodes: Vec<String> = links
        .filter_map(|link| std::fs::read_link(link.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|name| Some(name.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok()?;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let listens =
            fields.get(3) == Some(&"0A") && inodes.iter().any(|inode| fields.get(9) == Some(&inode.as_str()));
        let port = fields.get(1)?.split_once(':')?.1;
        listens.then(|| u16::from_str_radix(port, 16).ok())?
    })
}

fn on_tmpfs() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// Asks for liveness until told to stop; the answers' times, in their order.
fn probe(admin: SocketAddr, stop: Arc<AtomicBool>) -> tokio::task::JoinHandle<Vec<Duration>> {
    tokio::spawn(async move {
        let mut times = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let asked = Instant::now();
            assert_eq!(http_status(&admin, "/live").await, 200, "it is alive");
            times.push(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        times
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn field_32_a_large_pool_is_live_at_once_and_ready_when_it_is() {
    let mut daemon = Probed::start(on_tmpfs(), 512 << 20, true);
    let admin = daemon.admin().await;
    assert_eq!(http_status(&admin, "/live").await, 200);
    let live_after = daemon.begun.elapsed();
    // What is asked before it is ready is answered: no.
    let mut before = 0;
    while http_status(&admin, "/ready").await != 200 {
        assert_eq!(http_status(&admin, "/live").await, 200, "live all the while");
        before += 1;
        assert!(daemon.begun.elapsed() < PATIENCE, "it does not become ready");
    }
    let ready_after = daemon.begun.elapsed();
    println!("live after {live_after:?}, ready after {ready_after:?}, {before} times not ready");
    assert!(live_after < Duration::from_secs(10), "the port is open before the pool is: {live_after:?}");
    assert!(before > 0 && live_after < ready_after, "not ready before its pool is: {ready_after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn field_32_after_a_kill_under_load_it_is_live_and_ready_again_and_serves_what_it_had() {
    let mut dir = on_tmpfs();
    let descriptor = fixture::small("field 32 kill", SLOT_BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    let mut stored = 0u64;
    for round in 0..3u64 {
        let mut daemon = Probed::start(dir, 64 << 20, true);
        daemon.until_ready().await;
        let client = RawClient::connect(&daemon.target()).await.unwrap();
        let session = client.open_registered(&descriptor).await;
        let all: Vec<_> = (0..stored).map(fixture::chunk).collect();
        let states = session.states(descriptor.digest(), &all).await;
        assert!(states.iter().all(|state| *state == v1::ChunkState::Ready), "round {round}: {states:?}");
        for n in stored..stored + 100 {
            session.must_store(&descriptor, fixture::chunk(n), fixture::PART, full).await;
        }
        stored += 100;
        // Somebody is storing when it dies.
        let under_way = tokio::spawn(async move {
            for n in 10_000.. {
                let bytes = pattern::blob(&descriptor_of(), fixture::chunk(n), fixture::PART, full);
                let size = bytes.len();
                let ask = tender_tests::raw::item(fixture::chunk(n), fixture::PART, full, size);
                let Ok(outcome) = session.reserve(descriptor_of().digest(), vec![ask]).await else { return };
                let frames = session.frames(outcome[0].reservation_id, full, &bytes, size);
                if session.put(frames).await.is_err() {
                    return;
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        dir = daemon.kill();
        under_way.await.unwrap();
    }
}

fn descriptor_of() -> tender_proto::Descriptor {
    fixture::small("field 32 kill", SLOT_BLOCK_BYTES)
}

/// Sixteen readers and writers of bulk at once.
#[tokio::test(flavor = "multi_thread")]
async fn field_32_liveness_answers_while_bulk_streams_take_every_core() {
    let mut daemon = Probed::start(on_tmpfs(), 64 << 20, false);
    let admin = daemon.until_ready().await;
    let descriptor = fixture::small("field 32 bulk", SLOT_BLOCK_BYTES * 4);
    let (namespace, full) = (descriptor.digest(), fixture::full(&descriptor));
    let stop = Arc::new(AtomicBool::new(false));
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..16u64 {
        let (target, descriptor, stop) = (daemon.target(), descriptor.clone(), stop.clone());
        lanes.spawn(async move {
            let client = RawClient::connect(&target).await.unwrap();
            let session = client.open_registered(&descriptor).await;
            let chunk = fixture::chunk(lane);
            session.must_store(&descriptor, chunk, fixture::PART, full).await;
            let mut read = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let lease = session.lookup(namespace, &[chunk], Ask::LEASE).await.unwrap().lease.unwrap().id;
                let stream = session.get(lease, vec![get_item(0, fixture::PART); 8]).await.unwrap();
                read += collect(stream, 8).await.unwrap().len() as u64;
                session.release(&[lease]).await.unwrap();
            }
            read
        });
    }
    let probing = probe(admin, stop.clone());
    tokio::time::sleep(Duration::from_secs(6)).await;
    stop.store(true, Ordering::Relaxed);
    let parts: u64 = lanes.join_all().await.into_iter().sum();
    let mut times = probing.await.unwrap();
    times.sort();
    let (median, slowest) = (times[times.len() / 2], *times.last().unwrap());
    println!(
        "{} probes during {parts} parts of 256 KiB: median {median:?}, slowest {slowest:?}",
        times.len()
    );
    assert!(parts > 100, "there was load: {parts}");
    assert!(
        slowest < PROBE_TIMEOUT * 2 && median < PROBE_TIMEOUT / 4,
        "median {median:?}, slowest {slowest:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn field_32_a_terminated_daemon_is_not_ready_first_and_ends_in_its_grace_time() {
    let mut daemon = Probed::start(on_tmpfs(), 16 << 20, false);
    let admin = daemon.until_ready().await;
    let descriptor = fixture::small("field 32 term", SLOT_BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    let client = RawClient::connect(&daemon.target()).await.unwrap();
    let session = client.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
    // A read that is under way when the signal comes is drained.
    let found = session.lookup(descriptor.digest(), &[fixture::chunk(1)], Ask::LEASE).await.unwrap();
    let lease = found.lease.unwrap().id;
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    let told = Instant::now();
    while http_status(&admin, "/ready").await == 200 {
        assert!(told.elapsed() < Duration::from_secs(2), "still ready after SIGTERM");
    }
    assert_eq!(http_status(&admin, "/live").await, 200, "draining is not dead");
    let stream = session.get(lease, vec![get_item(0, fixture::PART)]).await.unwrap();
    let read = collect(stream, 1).await.unwrap().remove(0).unwrap();
    pattern::assert_same(
        &read.bytes,
        &pattern::blob(&descriptor, fixture::chunk(1), fixture::PART, full),
        "drained",
    );
    assert_eq!(session.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    let status = loop {
        if let Some(status) = daemon.child.try_wait().unwrap() {
            break status;
        }
        assert!(told.elapsed() < Duration::from_secs(20), "it does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(
        status.success() && told.elapsed() < Duration::from_secs(10),
        "{status} after {:?}",
        told.elapsed()
    );
    assert!(
        Path::new("/dev/shm").exists() && !daemon.dir.path().join("tenderd.sock").exists(),
        "no socket is left"
    );
}

/// The bytes that a daemon re-attaches: it looks at what it finds in the file, and touches the pages anew.
const BIG: u64 = 256 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn field_32_a_daemon_that_re_attaches_a_big_arena_is_live_meanwhile_and_ready_after_it() {
    let mut daemon = Probed::start(on_tmpfs(), BIG, true);
    daemon.until_ready().await;
    let descriptor = fixture::small("field 32 big", SLOT_BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    let client = RawClient::connect(&daemon.target()).await.unwrap();
    let session = client.open_registered(&descriptor).await;
    for n in 0..50 {
        session.must_store(&descriptor, fixture::chunk(n), fixture::PART, full).await;
    }
    let mut daemon = Probed::start(daemon.kill(), BIG, true);
    let admin = daemon.admin().await;
    let mut not_ready = 0;
    loop {
        assert_eq!(http_status(&admin, "/live").await, 200, "live all the while");
        match http_status(&admin, "/ready").await {
            200 => break,
            code => assert_eq!(code, 503, "a clear no"),
        }
        not_ready += 1;
        assert!(daemon.begun.elapsed() < PATIENCE, "it does not become ready");
    }
    println!("{not_ready} times live and not ready; ready after {:?}", daemon.begun.elapsed());
    let client = RawClient::connect(&daemon.target()).await.unwrap();
    let session = client.open_registered(&descriptor).await;
    let all: Vec<_> = (0..50).map(fixture::chunk).collect();
    let states = session.states(descriptor.digest(), &all).await;
    assert!(states.iter().all(|state| *state == v1::ChunkState::Ready), "{states:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn field_32_a_wedged_daemon_answers_no_probe_and_answers_again_when_it_runs() {
    let mut daemon = Probed::start(on_tmpfs(), 16 << 20, false);
    let admin = daemon.until_ready().await;
    daemon.signal(nix::sys::signal::Signal::SIGSTOP);
    for path in ["/live", "/ready", "/metrics", "/status.json"] {
        // The kernel takes the connection, and nobody answers: a probe's time runs out, which counts as a failure.
        let asked = tokio::time::timeout(PROBE_TIMEOUT, http_status(&admin, path)).await;
        assert!(asked.is_err(), "{path}: a stopped process answers {asked:?}");
    }
    daemon.signal(nix::sys::signal::Signal::SIGCONT);
    assert_eq!(http_status(&admin, "/live").await, 200);
    assert_eq!(http_status(&admin, "/ready").await, 200, "it was never told to stop");
}
