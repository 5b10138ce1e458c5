//! Real daemons for tests: one inside the test's process, whose engine can be recounted, and one as a child
//! process, which can be killed. Each has its own directory, sockets and arena.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tender_client::{Address, ClientConfig, TransportChoice};
use tender_daemon::app::{HandedOver, RunningApp, Successor};
use tender_daemon::config::{Config, HostPort, Listen};
use tender_daemon::engine::{Engine, Eviction};
use tender_proto::limits::FRAME_PAYLOAD_BYTES;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::hostile::Manner;
use crate::raw::{RawClient, Target};

/// Block size at which a chunk of [`crate::fixture::small`] fills one slot of [`Setup::slots`] exactly.
pub const SLOT_BLOCK_BYTES: u64 = 16 << 10;

/// Generous: a debug build on a busy machine.
pub(crate) const START_DEADLINE: Duration = Duration::from_secs(20);

/// What tests choose about a daemon; everything else is its default.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Bytes for chunks.
    pub arena_bytes: u64,
    /// A lease's time where none is asked for.
    pub default_lease: Duration,
    /// Longer wishes are cut to it.
    pub max_lease: Duration,
    /// Time from the first reservation of a chunk to READY.
    pub reservation: Duration,
    /// Sessions at one time.
    pub max_sessions: usize,
    /// Namespaces at one time.
    pub max_namespaces: usize,
    /// Payload of one frame, both ways.
    pub max_frame_bytes: usize,
    /// Whether it verifies what it holds in the background.
    pub scrub: bool,
    /// What a child process logs.
    pub log_level: &'static str,
    /// What goes first. Tests that push out what was used before choose LRU.
    pub eviction: Eviction,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            arena_bytes: 64 << 20,
            default_lease: Duration::from_secs(30),
            max_lease: Duration::from_secs(60),
            reservation: Duration::from_secs(30),
            max_sessions: 4096,
            max_namespaces: 4096,
            max_frame_bytes: FRAME_PAYLOAD_BYTES,
            scrub: true,
            log_level: "warn",
            eviction: Eviction::TwoQueue,
        }
    }
}

impl Setup {
    /// Room for exactly this many chunks of `fixture::small(_, SLOT_BLOCK_BYTES)`.
    pub fn slots(count: u64) -> Self {
        Self { arena_bytes: count * 4 * SLOT_BLOCK_BYTES, ..Self::default() }
    }

    fn config(&self, dir: &Path) -> Config {
        let any_port: HostPort = "127.0.0.1:0".parse().expect("a place to listen");
        let mut config = Config {
            listen: vec![Listen::Unix(dir.join("tenderd.sock")), Listen::Tcp(any_port.clone())],
            admin: Some(any_port),
            drain_grace: Duration::from_secs(2),
            max_frame_bytes: self.max_frame_bytes,
            ..Config::default()
        };
        if !self.scrub {
            config.scrub_bytes_per_second = 0;
        }
        let engine = &mut config.engine;
        engine.eviction = self.eviction;
        engine.arena.place = dir.join("arena");
        engine.arena.bytes = self.arena_bytes;
        engine.arena.prefault = false;
        engine.arena.keep = false;
        engine.default_lease = self.default_lease;
        engine.max_lease = self.max_lease;
        engine.reservation = self.reservation;
        engine.max_sessions = self.max_sessions;
        engine.max_namespaces = self.max_namespaces;
        config
    }
}

/// A daemon in this process.
#[derive(Debug)]
pub struct Daemon {
    app: RunningApp,
    socket: PathBuf,
    tcp: String,
    admin: SocketAddr,
    setup: Setup,
    // Removed last.
    dir: TempDir,
}

impl Daemon {
    /// Starts one and waits until it is ready.
    pub async fn start(setup: Setup) -> Self {
        Self::start_in(setup, tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs")).await
    }
    /// The same with what only few tests choose.
    pub async fn start_with(setup: Setup, adjust: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
        let mut config = setup.config(dir.path());
        adjust(&mut config);
        let app = RunningApp::start(config).await.expect("the daemon starts");
        let mut phase = app.phase();
        phase.wait_for(|phase| phase.is_ready()).await.expect("it becomes ready");
        Self::of(app, setup, dir)
    }
    async fn start_in(setup: Setup, dir: TempDir) -> Self {
        let give_up = Instant::now() + START_DEADLINE;
        let app = loop {
            match RunningApp::start(setup.config(dir.path())).await {
                Ok(app) => break app,
                // Calls that were cut off may hold the arena of the daemon before for a moment.
                Err(error) => assert!(Instant::now() < give_up, "the daemon does not start: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let mut phase = app.phase();
        phase.wait_for(|phase| phase.is_ready()).await.expect("it becomes ready");
        Self::of(app, setup, dir)
    }
    fn of(app: RunningApp, setup: Setup, dir: TempDir) -> Self {
        let tcp = app.addresses().iter().find_map(|place| match place {
            Listen::Tcp(address) => Some(address.to_string()),
            Listen::Unix(_) | Listen::Tls(_) => None,
        });
        Self {
            socket: dir.path().join("tenderd.sock"),
            tcp: tcp.expect("a port"),
            admin: app.admin_address().expect("an admin port"),
            app,
            setup,
            dir,
        }
    }
    /// Its engine, to recount.
    pub fn engine(&self) -> &Engine {
        self.app.engine()
    }
    /// The gRPC socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
    /// The Unix socket as a target.
    pub fn unix(&self) -> Target {
        Target::Unix(self.socket.clone())
    }
    /// The TCP port as a target.
    pub fn tcp(&self) -> Target {
        Target::Tcp(self.tcp.clone())
    }
    /// Where health and metrics are served.
    pub fn admin(&self) -> &SocketAddr {
        &self.admin
    }
    /// A client over the Unix socket.
    pub async fn client(&self) -> RawClient {
        RawClient::connect(&self.unix()).await.expect("a connection")
    }
    /// A client over TCP.
    pub async fn tcp_client(&self) -> RawClient {
        RawClient::connect(&self.tcp()).await.expect("a connection")
    }
    /// A client with windows so small that the daemon cannot send a chunk ahead.
    pub async fn slow_client(&self) -> RawClient {
        RawClient::connect_with(&self.unix(), 16 << 10, 64 << 10).await.expect("a connection")
    }
    /// A real client's configuration for this daemon.
    pub fn client_config(&self, transport: TransportChoice) -> ClientConfig {
        client_config(Address::Unix(self.socket.clone()), transport)
    }
    /// Stops it as SIGTERM would.
    pub async fn stop(self) {
        drop(self.stop_in_place().await);
    }
    /// The same, with its folder left for another one.
    pub async fn stop_in_place(self) -> TempDir {
        self.app.shutdown().await;
        self.dir
    }
    /// Its life, for tests that play a part in it.
    pub fn app(&self) -> &RunningApp {
        &self.app
    }
    /// Lets a successor have the arena and the sockets, and becomes whatever serves then: itself where the successor
    /// ended too early.
    pub async fn hand_over(self, successor: Successor) -> Option<Self> {
        let Self { app, setup, dir, .. } = self;
        match app.hand_over(successor).await.expect("no trouble of its own") {
            HandedOver::Given => None,
            HandedOver::Kept(app) => Some(Self::of(*app, setup, dir)),
        }
    }
    /// What a daemon is told that takes over from this one.
    pub fn successor_config(&self) -> Config {
        Config { take_over: true, ..self.setup.config(self.dir.path()) }
    }
    /// Another daemon takes over, as `tenderd --take-over` would.
    pub async fn take_over(self) -> Self {
        self.take_over_with(|_| ()).await
    }
    /// The same with what only few tests choose.
    pub async fn take_over_with(self, adjust: impl FnOnce(&mut Config)) -> Self {
        let mut config = self.successor_config();
        adjust(&mut config);
        let next = tokio::spawn(RunningApp::start(config));
        let Self { app, setup, dir, .. } = self;
        let successor = app.successor().await;
        match app.hand_over(successor).await.expect("no trouble of its own") {
            HandedOver::Given => {}
            HandedOver::Kept(_) => panic!("nobody took over: {:?}", next.await),
        }
        Self::of(next.await.expect("no panic").expect("it takes over"), setup, dir)
    }
    /// Stops it and starts it again on the same socket, with an empty arena; other ports.
    pub async fn restart(self) -> Self {
        let Self { app, setup, dir, .. } = self;
        app.shutdown().await;
        Self::start_in(setup, dir).await
    }
}

/// A real client's configuration with patience for a slow machine.
pub fn client_config(address: Address, transport: TransportChoice) -> ClientConfig {
    ClientConfig {
        transport,
        staging_bytes: bytesize::ByteSize::mib(8),
        reconnect_min: Duration::from_millis(20),
        reconnect_max: Duration::from_millis(200),
        step_budget: Duration::from_secs(5),
        gather_budget: Duration::from_secs(5),
        lookup_deadline: Duration::from_secs(5),
        client_name: "tests".into(),
        ..ClientConfig::new(address)
    }
}

/// The status of a GET on the admin port, or 0 when nobody answers.
pub async fn http_status(admin: &SocketAddr, path: &str) -> u16 {
    http_get(admin, path).await.map_or(0, |(status, _)| status)
}

/// Status and body of a GET on the admin port.
pub async fn http_get(admin: &SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(admin).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: tenderd\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

/// The program `tenderd`, built once if it is not there.
pub fn tenderd() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| program("tender-daemon", "tenderd"))
}

/// The program `tender`, the same way.
pub fn tender() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| program("tender-client", "tender"))
}

fn program(package: &str, name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    // target/PROFILE/deps/TEST, or target/PROFILE/BIN.
    let mut profile = test.parent().expect("a folder");
    if profile.ends_with("deps") {
        profile = profile.parent().expect("a profile's folder");
    }
    // Whoever builds the whole workspace has built it, with the features of all: again would be from the ground up.
    let built = profile.join(name);
    if std::env::var_os("TENDER_TESTS_BUILT").is_some() && built.is_file() {
        return built;
    }
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "-p", package, "--bin", name]);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    let target = profile.parent().expect("a target folder");
    let status = build.arg("--target-dir").arg(target).current_dir(workspace).status();
    assert!(status.expect("cargo runs").success(), "{name} does not build");
    built
}

/// A daemon in a process of its own. It is killed when dropped.
#[derive(Debug)]
pub struct ChildDaemon {
    setup: Setup,
    dir: TempDir,
    process: Child,
}

impl ChildDaemon {
    /// Starts one and waits until it answers.
    pub async fn start(setup: Setup) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
        let process = Self::spawn(&setup, dir.path());
        let daemon = Self { setup, dir, process };
        daemon.wait_until_ready().await;
        daemon
    }
    /// Runs `tenderd` that should not come up, with this configuration file, until it ends.
    pub fn run_to_end(dir: &Path, arena: &Path, arena_bytes: u64, config_file: &str) -> Output {
        let file = dir.join("tenderd.toml");
        std::fs::write(&file, config_file).expect("a file");
        let mut command = Self::command(dir);
        command.arg("--arena-path").arg(arena).arg("--config").arg(&file);
        command.arg("--arena-size").arg(arena_bytes.to_string());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tenderd runs");
        let give_up = Instant::now() + START_DEADLINE;
        while child.try_wait().expect("a child").is_none() {
            if Instant::now() > give_up {
                child.kill().expect("our own child");
                panic!("tenderd came up instead of refusing");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.wait_with_output().expect("its output")
    }
    /// SIGKILL: no destructor, no farewell.
    pub fn kill(&mut self) {
        self.process.kill().expect("our own child");
        self.process.wait().expect("our own child");
    }
    /// SIGSTOP: it stands still, its connections stay open, until [`ChildDaemon::go_on`]. Returns when all of its
    /// threads have stopped: until one of them has got round to the signal, the others serve on.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
        let give_up = Instant::now() + START_DEADLINE;
        while !self.has_stopped() {
            assert!(Instant::now() < give_up, "tenderd does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    fn has_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("our own child");
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let status = std::fs::read_to_string(task.expect("a thread").path().join("status"));
            // A thread that has ended meanwhile does nothing either.
            status.map_or(true, |status| status.contains("State:\tT"))
        };
        tasks.into_iter().all(stopped)
    }
    /// SIGCONT.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("our own child");
    }
    /// The same sockets and arena again.
    pub async fn restart(&mut self) {
        self.process = Self::spawn(&self.setup, self.dir.path());
        self.wait_until_ready().await;
    }
    /// SIGTERM, and its exit status once it has ended.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        ended(&mut self.process).await
    }
    /// Another one takes over. Returns once the one before has ended, with its exit status.
    pub async fn take_over(&mut self) -> ExitStatus {
        let next = self.successor(&[]).spawn().expect("tenderd runs");
        let mut old = std::mem::replace(&mut self.process, next);
        let status = ended(&mut old).await;
        self.wait_until_ready().await;
        status
    }
    /// A command for one that takes over, with these arguments more.
    pub fn successor(&self, arguments: &[&str]) -> Command {
        let mut command = Self::serving(&self.setup, self.dir.path());
        command.arg("--take-over").args(arguments);
        command
    }
    /// From now on this process is meant.
    pub fn replace(&mut self, process: Child) -> Child {
        std::mem::replace(&mut self.process, process)
    }
    /// The gRPC socket's path.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("tenderd.sock")
    }
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
    /// Where its sockets and its arena lie.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
    /// A client over the Unix socket.
    pub async fn client(&self) -> RawClient {
        RawClient::connect(&Target::Unix(self.socket())).await.expect("a connection")
    }
    /// A real client's configuration for this daemon.
    pub fn client_config(&self, transport: TransportChoice) -> ClientConfig {
        client_config(Address::Unix(self.socket()), transport)
    }

    fn command(dir: &Path) -> Command {
        let mut command = Command::new(tenderd());
        command.arg("--listen").arg(format!("unix:{}", dir.join("tenderd.sock").display()));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TENDERD_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null());
        command
    }

    fn spawn(setup: &Setup, dir: &Path) -> Child {
        Self::serving(setup, dir).spawn().expect("tenderd runs")
    }

    fn serving(setup: &Setup, dir: &Path) -> Command {
        let mut command = Self::with_setup(setup, dir);
        command.args(["--log-level", setup.log_level]);
        command
    }

    /// The program with these settings, its sockets and its arena in `dir`.
    pub fn with_setup(setup: &Setup, dir: &Path) -> Command {
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        let mut command = Self::command(dir);
        command
            .arg("--arena-path")
            .arg(dir.join("arena"))
            .args(["--arena-size", &setup.arena_bytes.to_string()])
            .args(["--lease-default", &millis(setup.default_lease), "--lease-max", &millis(setup.max_lease)])
            // A flag may say otherwise.
            .env("TENDERD_ARENA_PREFAULT", "false")
            .args(["--reservation-time", &millis(setup.reservation)])
            .args(["--eviction", if setup.eviction == Eviction::Lru { "lru" } else { "two-queue" }])
            .stdout(Stdio::null());
        command
    }

    /// Waits until it answers a ping and is ready.
    pub async fn wait_until_ready(&self) {
        let give_up = Instant::now() + START_DEADLINE;
        loop {
            if let Ok(client) = RawClient::connect(&Target::Unix(self.socket())).await
                && client.ping().await.is_ok_and(|answer| answer.ready)
            {
                return;
            }
            assert!(Instant::now() < give_up, "tenderd did not become ready");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Waits for a child's own end.
pub async fn ended(child: &mut Child) -> ExitStatus {
    let give_up = Instant::now() + START_DEADLINE;
    loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            return status;
        }
        assert!(Instant::now() < give_up, "tenderd does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Drop for ChildDaemon {
    fn drop(&mut self) {
        // It may have been killed already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A client in a process of its own: `tender-test-peer` in the state it was asked for.
#[derive(Debug)]
pub struct Peer(tokio::process::Child);

impl Peer {
    /// Starts the program at `path` for the namespace `fixture::small(model, SLOT_BLOCK_BYTES)` and waits until
    /// it is in the state `what`.
    pub async fn start(path: &str, socket: &Path, model: &str, what: &str) -> Self {
        let mut command = tokio::process::Command::new(path);
        command.arg(socket).args([model, &SLOT_BLOCK_BYTES.to_string(), what]);
        let (peer, line) = Self::spawn(command).await;
        assert_eq!(line, "ready", "the peer failed");
        peer
    }
    /// Starts the program at `path` as a daemon that does not keep the contract, see [`crate::hostile`]. Its address.
    pub async fn hostile(path: &str, manner: Manner, part_bytes: u64, coverage_bits: u64) -> (Self, Address) {
        let mut command = tokio::process::Command::new(path);
        command.args(["hostile", &part_bytes.to_string(), &coverage_bits.to_string()]);
        command.arg(format!("{manner:?}"));
        let (peer, port) = Self::spawn(command).await;
        (peer, format!("tcp://127.0.0.1:{port}").parse().expect("an address"))
    }
    /// The process and the first line that it prints.
    async fn spawn(mut command: tokio::process::Command) -> (Self, String) {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the peer runs");
        let output = child.stdout.take().expect("piped");
        let mut line = String::new();
        let mut output = BufReader::new(output);
        let reading = tokio::time::timeout(START_DEADLINE, output.read_line(&mut line));
        reading.await.expect("the peer gets ready").expect("its output");
        (Self(child), line.trim().to_owned())
    }
    /// SIGKILL: no destructor, no farewell.
    pub async fn kill(mut self) {
        self.0.kill().await.expect("our own child");
    }
}
