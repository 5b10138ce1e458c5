//! Real Redis servers for tests: one, one with a replica and a sentinel, and a cluster. Each has a free port and a folder of
//! its own, keeps nothing, and is killed when dropped.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Generous: a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// One server.
#[derive(Debug)]
pub struct Redis {
    port: u16,
    arguments: Vec<String>,
    process: Child,
    // Removed last.
    dir: TempDir,
}

impl Redis {
    /// Starts one and waits until it answers.
    pub fn start() -> Self {
        Self::with(&[])
    }
    /// The same with more arguments.
    pub fn with(arguments: &[&str]) -> Self {
        let give_up = Instant::now() + PATIENCE;
        loop {
            // Somebody else may take the port between finding and using it.
            let server = Self::spawn_on(free_port(), arguments);
            if let Some(server) = server.answers() {
                return server;
            }
            assert!(Instant::now() < give_up, "redis-server does not start");
        }
    }

    fn spawn_on(port: u16, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let process = spawn(port, dir.path(), &arguments);
        Self { port, arguments, process, dir }
    }

    fn answers(mut self) -> Option<Self> {
        let give_up = Instant::now() + PATIENCE;
        while Instant::now() < give_up {
            if self.process.try_wait().expect("our own child").is_some() {
                return None;
            }
            if ping(self.port) {
                return Some(self);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Where it is.
    pub fn port(&self) -> u16 {
        self.port
    }
    /// Where it is, as a daemon is told.
    pub fn uri(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
    /// What it answers, as redis-cli prints it.
    pub fn command(&self, words: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.arg("-p").arg(self.port.to_string()).args(words);
        let output = command.output().expect("redis-cli is there: run scripts/setup.sh");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
    /// SIGSTOP: connections stay open, and nothing is answered until [`Redis::go_on`].
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
    /// Again on the same port, empty.
    pub fn restart(&mut self) {
        let give_up = Instant::now() + PATIENCE;
        while !ping(self.port) {
            assert!(Instant::now() < give_up, "redis-server does not start again");
            if self.process.try_wait().expect("our own child").is_some() {
                self.process = spawn(self.port, self.dir.path(), &self.arguments);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("our own child");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// A primary named `main`, its replica, and a sentinel.
#[derive(Debug)]
pub struct Sentinel {
    /// Where writes go at first.
    pub primary: Redis,
    /// Takes over when the primary is gone.
    pub replica: Redis,
    sentinel: Redis,
}

impl Sentinel {
    /// Starts all three and waits until the sentinel knows both servers.
    pub fn start() -> Self {
        let primary = Redis::with(&["--repl-diskless-sync-delay", "0"]);
        let port = primary.port.to_string();
        let replica = Redis::with(&["--replicaof", &format!("127.0.0.1 {port}")]);
        let sentinel = Redis::with(&["--sentinel"]);
        let set = |words: &[&str]| assert_eq!(sentinel.command(words), "OK", "{words:?}");
        set(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &port, "1"]);
        set(&["SENTINEL", "SET", "main", "down-after-milliseconds", "500"]);
        set(&["SENTINEL", "SET", "main", "failover-timeout", "3000"]);
        let started = Self { primary, replica, sentinel };
        let port = started.replica.port.to_string();
        wait_until("the sentinel knows the replica", || {
            started.sentinel.command(&["SENTINEL", "REPLICAS", "main"]).contains(&port)
                && started.replica.command(&["INFO", "replication"]).contains("master_link_status:up")
        });
        started
    }
    /// Where it is, as a daemon is told.
    pub fn uri(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/main", self.sentinel.port)
    }
    /// Kills the primary and waits until the replica is one.
    pub fn fail_over(&mut self) {
        self.primary.kill();
        wait_until("the replica takes over", || {
            self.replica.command(&["INFO", "replication"]).contains("role:master")
        });
    }
}

/// Three servers that share the keys.
#[derive(Debug)]
pub struct Cluster {
    /// All primaries.
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// Starts them and waits until all slots are served.
    pub fn start() -> Self {
        let node = || {
            let bus = free_port().to_string();
            Redis::with(&[
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                "5000",
            ])
        };
        let nodes: Vec<_> = (0..3).map(|_| node()).collect();
        let places: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(&places).args(["--cluster-replicas", "0", "--cluster-yes"]);
        let output = create.output().expect("redis-cli is there: run scripts/setup.sh");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        wait_until("the cluster serves", || {
            nodes.iter().all(|node| node.command(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
        });
        Self { nodes }
    }
    /// Where it is, as a daemon is told.
    pub fn uri(&self) -> String {
        let places: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+cluster://{}", places.join(","))
    }
}

fn spawn(port: u16, dir: &Path, arguments: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    if arguments.iter().any(|argument| argument == "--sentinel") {
        let config = dir.join("sentinel.conf");
        let text = format!("port {port}\nbind 127.0.0.1\ndir {}\n", dir.display());
        std::fs::write(&config, text).expect("a file");
        command.arg(config).args(arguments);
    } else {
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.arg("--dir").arg(dir).args(["--daemonize", "no"]).args(arguments);
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.expect("redis-server is not installed, and these tests need it: run scripts/setup.sh")
}

fn ping(port: u16) -> bool {
    let asked = || -> std::io::Result<[u8; 5]> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    asked().is_ok_and(|answer| &answer == b"+PONG")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < give_up, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
