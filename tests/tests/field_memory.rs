//! Field report 30: the arena's memory is really there, is not more than was asked for, and is there again after a kill.
//! On a filesystem of its own, small and full, in a mount namespace (`unshare` and `nsenter` of util-linux).
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tender_proto::v1;
use tender_tests::attach::attach;
use tender_tests::daemon::{ChildDaemon, SLOT_BLOCK_BYTES, Setup, tenderd};
use tender_tests::raw::{RawClient, Target};
use tender_tests::{fixture, pattern};

const MIB: u64 = 1 << 20;

/// A process that holds a mount namespace open, with a tmpfs of 64 MiB in it.
struct SmallHost {
    holder: Child,
    // For sockets, outside of the small filesystem.
    dir: TempDir,
}

impl SmallHost {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("small")).unwrap();
        let script = "mount -t tmpfs -o size=64m none \"$1\" && echo mounted && exec cat";
        let mut holder = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
            .arg(dir.path().join("small"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare of util-linux is installed");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(
            line, "mounted\n",
            "this user may make user and mount namespaces (sysctl user.max_user_namespaces)"
        );
        Self { holder, dir }
    }
    /// The small filesystem as its processes see it.
    fn inside(&self) -> PathBuf {
        self.dir.path().join("small")
    }
    /// The same, seen from outside.
    fn outside(&self) -> PathBuf {
        let inside = self.inside();
        Path::new("/proc")
            .join(self.holder.id().to_string())
            .join("root")
            .join(inside.strip_prefix("/").unwrap())
    }
    /// `tenderd` with an arena of this size there.
    fn tenderd(&self, arena_bytes: u64) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--mount", "--target", &self.holder.id().to_string(), "--"]).arg(tenderd());
        command.args(["--listen", &format!("unix:{}", self.socket().display())]);
        command.arg("--arena-path").arg(self.inside().join("arena"));
        command.args(["--arena-size", &arena_bytes.to_string(), "--arena-prefault", "false"]);
        command.args(["--log-level", "warn"]).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
    fn socket(&self) -> PathBuf {
        self.dir.path().join("tenderd.sock")
    }
    async fn client(&self) -> RawClient {
        let give_up = Instant::now() + Duration::from_secs(20);
        loop {
            if let Ok(client) = RawClient::connect(&Target::Unix(self.socket())).await
                && client.ping().await.is_ok_and(|answer| answer.ready)
            {
                return client;
            }
            assert!(Instant::now() < give_up, "tenderd did not become ready");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    fn files(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.outside()).unwrap();
        names.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    }
    /// Takes every byte that is left.
    fn fill(&self) {
        let mut filler = File::create(self.outside().join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
        assert!(std::fs::write(self.outside().join("more"), [1; 4096]).is_err(), "it is full");
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

/// Kills on drop, so that a failing test leaves nothing.
struct Running(Child);

impl Running {
    fn kill(mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "it has ended by itself: SIGBUS?");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn field_30_a_pool_larger_than_its_filesystem_is_refused_and_leaves_what_was_there() {
    let host = SmallHost::new();
    let begin = Instant::now();
    let output = host.tenderd(256 * MIB).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(begin.elapsed() < Duration::from_secs(20), "within seconds, not {:?}", begin.elapsed());
    let available = (64 * MIB).to_string();
    assert!(
        text.contains("needs 27") && text.contains(&format!("{available} available")),
        "both numbers: {text}"
    );
    assert_eq!(host.files(), Vec::<String>::new(), "no file is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn field_30_a_pool_that_fits_is_there_when_others_fill_the_filesystem_and_after_a_kill() {
    let host = SmallHost::new();
    let descriptor = fixture::small("field 30", SLOT_BLOCK_BYTES);
    let (namespace, full) = (descriptor.digest(), fixture::full(&descriptor));
    let arena_bytes = 48 * MIB;
    let slots = arena_bytes / (4 * SLOT_BLOCK_BYTES);
    let running = Running(host.tenderd(arena_bytes).spawn().unwrap());
    host.client().await;
    host.fill();
    // Every slot is touched, with no byte to be had.
    let session = host.client().await.open_registered(&descriptor).await;
    for n in 0..slots {
        session.must_store(&descriptor, fixture::chunk(n), fixture::PART, full).await;
    }
    running.kill();

    // The next one needs no room that the first did not have, and serves all of it, bit for bit.
    let running = Running(host.tenderd(arena_bytes).spawn().unwrap());
    let session = host.client().await.open_registered(&descriptor).await;
    let all: Vec<_> = (0..slots).map(fixture::chunk).collect();
    let states = session.states(namespace, &all).await;
    let ready = states.iter().filter(|state| **state == v1::ChunkState::Ready).count() as u64;
    assert_eq!(ready, slots, "all that was READY");
    for &chunk in all.iter().step_by(7) {
        let (_, bytes) = session.read(namespace, chunk, fixture::PART).await.unwrap();
        pattern::assert_same(
            &bytes,
            &pattern::blob(&descriptor, chunk, fixture::PART, full),
            "after the kill",
        );
    }
    running.kill();

    // A larger pool than there is room for: refused, and what is there is left for a daemon that fits.
    let output = host.tenderd(60 * MIB).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let _running = Running(host.tenderd(arena_bytes).spawn().unwrap());
    let session = host.client().await.open_registered(&descriptor).await;
    let states = session.states(namespace, &all).await;
    assert!(states.iter().all(|state| *state == v1::ChunkState::Ready), "the refused daemon took nothing");
}

/// Bytes of shared memory in a process, and on the filesystem.
fn used_bytes(daemon: &ChildDaemon) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssShmem:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    let file = std::fs::metadata(daemon.dir().join("arena")).unwrap();
    (kib << 10, file.blocks() * 512)
}

#[tokio::test(flavor = "multi_thread")]
async fn field_30_the_memory_that_is_used_is_the_memory_that_was_asked_for() {
    let arena_bytes = 100 * MIB;
    let mut daemon = ChildDaemon::start(Setup { arena_bytes, ..Setup::default() }).await;
    let descriptor = fixture::small("field 30 growth", SLOT_BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    for round in 0..3 {
        let session = daemon.client().await.open_registered(&descriptor).await;
        let shared = attach(&daemon.socket(), &session, MIB).await;
        // More than fits: every slot is touched, and some twice.
        for n in 0..arena_bytes / (4 * SLOT_BLOCK_BYTES) + 20 {
            let bytes = pattern::blob(&descriptor, fixture::chunk(n + 7 * round), fixture::PART, full);
            let chunk = fixture::chunk(n + 7 * round);
            _ = shared.store(&session, descriptor.digest(), chunk, fixture::PART, full, &bytes).await;
        }
        let (resident, on_disk) = used_bytes(&daemon);
        let most = arena_bytes * 105 / 100;
        assert!(on_disk >= arena_bytes && on_disk <= most, "{on_disk} bytes for an arena of {arena_bytes}");
        // The session's staging is shared memory too.
        assert!(resident <= most + 2 * MIB, "{resident} bytes resident for an arena of {arena_bytes}");
        daemon.kill();
        daemon.restart().await;
    }
    let files = std::fs::read_dir(daemon.dir()).unwrap().count();
    assert!(files <= 4, "one arena, two sockets and what belongs to them: {files} files");
}
