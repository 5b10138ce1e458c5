//! Several hosts on this machine, as network namespaces: `tests/hosts.sh` makes them, and this takes them down again.
//! They share the file system, so that a test outside reaches a daemon on any of them through its Unix socket.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::daemon::{ChildDaemon, Setup};
use crate::raw::{RawClient, Target};

/// Followed by the process id of the test.
const PREFIX: &str = "tender-hosts";

/// Breakers open again and publish anew within it, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Some hosts behind one bridge, numbered from 1.
#[derive(Debug)]
pub struct Hosts {
    name: String,
    count: usize,
}

impl Hosts {
    /// Makes them, and takes down what killed tests have left. One set for each process.
    pub fn up(count: usize) -> Self {
        let hosts = Self { name: format!("{PREFIX}{}", std::process::id()), count };
        hosts.script(&["sweep", PREFIX]);
        hosts.script(&["up", &hosts.name, &count.to_string()]);
        hosts
    }

    /// Its address on their network.
    pub fn address(&self, host: usize) -> String {
        assert!((1..=self.count).contains(&host), "there is no host {host}");
        format!("10.77.0.{host}")
    }

    /// The same program with the same arguments and environment, on that host.
    pub fn on(&self, host: usize, program: &Command) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.place(host)])
            .arg(program.get_program())
            .args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Nothing that others send arrives there, and nobody hears it; nobody is told.
    pub fn black_hole(&self, host: usize) {
        self.script(&["black-hole", &self.name, &host.to_string()]);
    }
    /// Its own network is gone, and it knows.
    pub fn cut(&self, host: usize) {
        self.script(&["cut", &self.name, &host.to_string()]);
    }
    /// What it sends leaves at this rate, in the words of `tc`.
    pub fn throttle(&self, host: usize, rate: &str) {
        self.script(&["throttle", &self.name, &host.to_string(), rate]);
    }
    /// As at first.
    pub fn heal(&self, host: usize) {
        self.script(&["heal", &self.name, &host.to_string()]);
    }

    fn place(&self, host: usize) -> String {
        self.address(host);
        format!("{}-{host}", self.name)
    }

    fn script(&self, arguments: &[&str]) {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("hosts.sh");
        let output = Command::new(script).args(arguments).output().expect("tests/hosts.sh runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tests/hosts.sh {}: {said}", arguments.join(" "));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.script(&["down", &self.name]);
    }
}

/// A daemon on a host, told where the directory is. It is killed when dropped.
#[derive(Debug)]
pub struct Site {
    process: Child,
    dir: TempDir,
}

impl Site {
    /// Starts one and waits until it is ready.
    pub async fn start(hosts: &Hosts, host: usize, directory: &Directory, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
        let place = format!("tcp://{}:7070", hosts.address(host));
        let mut program = ChildDaemon::with_setup(&Setup::default(), dir.path());
        program.args(["--listen", &place, "--allow-plaintext-tcp", "--advertise", &place]);
        program.args(["--directory", &directory.uri, "--log-level", "warn"]).args(flags);
        let process = hosts.on(host, &program).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let site = Self { process: process.expect("ip runs"), dir };
        wait_for("tenderd is ready", async || {
            let Ok(client) = RawClient::connect(&Target::Unix(site.socket())).await else { return false };
            client.ping().await.is_ok_and(|answer| answer.ready)
        })
        .await;
        site
    }
    /// Its Unix socket, which is reached from everywhere.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("tenderd.sock")
    }
    /// A client over that.
    pub async fn client(&self) -> RawClient {
        RawClient::connect(&Target::Unix(self.socket())).await.expect("a connection")
    }
    /// SIGKILL: no destructor, no farewell.
    pub fn kill(&mut self) {
        self.process.kill().expect("our own child");
        self.process.wait().expect("our own child");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A Redis server on a host. It is killed when dropped.
#[derive(Debug)]
pub struct Directory {
    /// Where daemons find it.
    pub uri: String,
    process: Child,
    place: String,
    dir: TempDir,
}

impl Directory {
    const PORT: &str = "6379";

    /// Starts one that keeps nothing, and waits until it answers.
    pub async fn start(hosts: &Hosts, host: usize) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let uri = format!("redis://{}:{}", hosts.address(host), Self::PORT);
        let process = Self::spawn(hosts, host, &dir);
        let directory = Self { uri, process, place: hosts.place(host), dir };
        directory.wait_until_up().await;
        directory
    }
    /// The same once more, after [`Directory::kill`].
    pub async fn restart(&mut self, hosts: &Hosts, host: usize) {
        self.process = Self::spawn(hosts, host, &self.dir);
        self.wait_until_up().await;
    }
    /// It forgets everything.
    pub fn flush(&self) {
        assert_eq!(self.ask(&["flushall"]).as_deref(), Some("OK\n"));
    }
    /// SIGSTOP: its connections stay open and it says nothing.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }
    /// SIGCONT.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }
    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill().expect("our own child");
        self.process.wait().expect("our own child");
    }

    fn spawn(hosts: &Hosts, host: usize, dir: &TempDir) -> Child {
        let mut program = Command::new("redis-server");
        program.args(["--port", Self::PORT, "--bind", "0.0.0.0", "--protected-mode", "no"]);
        program.args(["--save", "", "--appendonly", "no", "--dir"]).arg(dir.path());
        let process = hosts.on(host, &program).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        process.expect("ip runs")
    }
    async fn wait_until_up(&self) {
        wait_for("redis-server answers (is it installed? scripts/setup.sh does it)", async || {
            self.ask(&["ping"]).as_deref() == Some("PONG\n")
        })
        .await;
    }
    fn ask(&self, words: &[&str]) -> Option<String> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.place, "redis-cli", "-p", Self::PORT]).args(words);
        String::from_utf8(command.output().ok()?.stdout).ok()
    }
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).expect("a process id");
        nix::sys::signal::kill(Pid::from_raw(pid), signal).expect("our own child");
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Waits for what must come about on a machine that may be slow.
pub async fn wait_for(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
