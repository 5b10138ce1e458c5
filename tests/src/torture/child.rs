//! The daemon under torture: a child process that is killed, stopped, continued and started again, always on the same
//! sockets and the same arena.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::daemon::{ChildDaemon, START_DEADLINE, Setup, http_get};
use crate::raw::{RawClient, Target};

/// A drain is over by then, and a second more for the connections.
pub(super) const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// The daemon.
#[derive(Debug)]
pub(super) struct Victim {
    setup: Setup,
    now: Boot,
    boots: u32,
    // Removed last.
    dir: TempDir,
}

/// One process of it.
#[derive(Debug)]
struct Boot {
    process: Child,
    log: PathBuf,
}

/// Who is killed while one daemon takes over from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dies {
    Nobody,
    Old,
    New,
}

impl Victim {
    /// Starts one in a directory of its own.
    pub(super) async fn start(setup: Setup) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
        let now = Boot::start(&setup, &dir, 0, &[]);
        let mut victim = Self { setup, now, boots: 0, dir };
        victim.until_ready().await;
        victim
    }
    /// Starts the next one and does not wait for it.
    pub(super) fn spawn_again(&mut self) {
        self.now = self.next(&[]);
    }
    fn next(&mut self, arguments: &[&str]) -> Boot {
        self.boots += 1;
        Boot::start(&self.setup, &self.dir, self.boots, arguments)
    }
    /// Waits until it serves.
    pub(super) async fn until_ready(&mut self) {
        let give_up = Instant::now() + START_DEADLINE;
        while !self.is_ready().await {
            assert!(self.is_alive(), "tenderd ended: {}", self.now.log());
            assert!(Instant::now() < give_up, "tenderd did not become ready: {}", self.now.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    async fn is_ready(&self) -> bool {
        match RawClient::connect(&Target::Unix(self.socket())).await {
            Ok(client) => client.ping().await.is_ok_and(|answer| answer.ready),
            Err(_) => false,
        }
    }
    /// Another one takes over; one of the two may be killed after a while. Somebody serves at the end, by itself or,
    /// if both are gone, because it was started again.
    pub(super) async fn hand_over(&mut self, dies: Dies, after: Duration) {
        let mut next = self.next(&["--take-over"]);
        if dies != Dies::Nobody {
            tokio::time::sleep(after).await;
        }
        match dies {
            Dies::Nobody => {
                let mut old = std::mem::replace(&mut self.now, next);
                old.ended().await;
                self.until_ready().await;
            }
            Dies::Old => {
                self.now.kill();
                // It has what it needs, or finds nobody, or gives up.
                self.now = next;
                self.until_ready_or_ended().await;
            }
            Dies::New => {
                next.kill();
                // The old one goes on, unless it had already given everything away.
                self.until_ready_or_ended().await;
            }
        }
    }
    async fn until_ready_or_ended(&mut self) {
        let give_up = Instant::now() + START_DEADLINE;
        while self.is_alive() && !self.is_ready().await {
            assert!(Instant::now() < give_up, "nobody serves, and somebody lives: {}", self.now.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if !self.is_alive() {
            self.spawn_again();
            self.until_ready().await;
        }
    }
    /// The gRPC socket's path.
    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("tenderd.sock")
    }

    /// SIGKILL, and the end of the process.
    pub(super) fn kill(&mut self) {
        self.now.kill();
    }
    /// SIGTERM: it drains and ends by itself.
    pub(super) fn terminate(&self) {
        self.now.signal(Signal::SIGTERM);
    }
    /// SIGSTOP.
    pub(super) fn stop(&self) {
        self.now.signal(Signal::SIGSTOP);
    }
    /// SIGCONT.
    pub(super) fn go_on(&self) {
        self.now.signal(Signal::SIGCONT);
    }
    /// Waits until it has ended by itself, in time and without an error.
    pub(super) async fn ended(&mut self) {
        self.now.ended().await;
    }
    /// It has not ended by itself.
    pub(super) fn is_alive(&mut self) -> bool {
        self.now.process.try_wait().expect("our own child").is_none()
    }

    /// What the daemon says of a recount: numbers by name, or what does not fit.
    pub(super) async fn audit(&self) -> Result<Vec<(String, u64)>, String> {
        let (status, body) = http_get(&self.admin()?, "/audit").await.map_err(|error| error.to_string())?;
        if status != 200 {
            return Err(body);
        }
        let pair = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        body.lines().map(pair).collect::<Option<_>>().ok_or(body)
    }

    /// Where the admin port is, from the log of this boot: it says so a moment after it serves.
    fn admin(&self) -> Result<SocketAddr, String> {
        let log = self.now.log();
        let place = log.split_once("admin=\"").and_then(|(_, rest)| rest.split_once('"'));
        place.and_then(|(place, _)| place.parse().ok()).ok_or_else(|| format!("no admin port in: {log}"))
    }
}

impl Boot {
    fn start(setup: &Setup, dir: &TempDir, number: u32, arguments: &[&str]) -> Self {
        let path = dir.path().join(format!("log.{number}"));
        let log = std::fs::File::create(&path).expect("a file");
        let grace = format!("{}ms", DRAIN_GRACE.as_millis());
        let mut command = ChildDaemon::with_setup(setup, dir.path());
        command
            .args(["--admin", "127.0.0.1:0", "--drain-grace", &grace])
            .args(["--log-level", "warn,tender_daemon::run=info"])
            .args(arguments)
            .stderr(log);
        Self { process: command.spawn().expect("tenderd runs"), log: path }
    }
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("our own child");
    }
    fn kill(&mut self) {
        self.process.kill().expect("our own child");
        self.process.wait().expect("our own child");
        self.check_log();
    }
    async fn ended(&mut self) {
        let give_up = Instant::now() + DRAIN_GRACE + START_DEADLINE;
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("our own child") {
                break status;
            }
            assert!(Instant::now() < give_up, "tenderd does not end: {}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert!(status.success(), "tenderd ended with {status}: {}", self.log());
        self.check_log();
    }
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
    /// Nothing a daemon may live through is an error or a panic.
    fn check_log(&self) {
        let log = self.log();
        let bad = log.lines().find(|line| line.contains("ERROR") || line.contains("panicked"));
        assert!(bad.is_none(), "tenderd says: {}", bad.unwrap_or_default());
    }
}

impl Drop for Boot {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
