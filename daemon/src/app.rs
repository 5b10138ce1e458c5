//! The daemon's life: bind, build, serve, drain, stop.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tender_proto::BootId;
use tender_proto::shm::fd_socket_path;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};

use crate::admin::{Admin, Sources};
use crate::clock::SystemClock;
use crate::config::{Config, Listen};
use crate::engine::{Engine, StartError};
use crate::fds;
use crate::metrics::Metrics;
use crate::rpc::status::RefusalLog;
use crate::rpc::{Shared, server};
use crate::shutdown::Phase;
use crate::task::{Task, blocking, spawn};

/// How often ended leases and reservations are looked for.
const SWEEP: Duration = Duration::from_millis(100);
/// How long connections get to close once all work is over or the grace time is.
const CLOSE: Duration = Duration::from_secs(1);

/// Small bites: a scrub does not hold up anybody for longer than a chunk takes.
const SCRUBS_PER_SECOND: u32 = 10;

/// Why the daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A place to listen is not to be had.
    #[error("cannot listen at {place}: {source}; is another daemon there, and may this user use the place?")]
    Bind {
        /// As configured.
        place: String,
        /// What the system said.
        source: io::Error,
    },
    /// The arena cannot be opened.
    #[error(transparent)]
    Arena(#[from] StartError),
    /// The system refused something else.
    #[error("cannot start {what}: {source}")]
    System {
        /// What was to be started.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A daemon that serves.
#[derive(Debug)]
pub struct RunningApp {
    engine: Arc<Engine>,
    phase: watch::Sender<Phase>,
    addresses: Vec<Listen>,
    grace: Duration,
    exit_when_unused: Option<Duration>,
    admin: Option<Admin>,
    servers: Vec<Task>,
    /// Sweep, prefault and the descriptor sockets: they end with this.
    helpers: Vec<Task>,
    _sockets: Vec<SocketFile>,
}

/// A socket that is open but not served yet.
enum Bound {
    Unix { grpc: UnixListener, fds: UnixListener },
    Tcp(TcpListener),
}

/// A socket's file; removed with this, unless somebody has put another one there meanwhile.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: inode(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|there| there == self.inode) {
            _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

impl RunningApp {
    /// Binds every socket first, so that a probe or an early client finds an open door, then opens the arena.
    pub async fn start(config: Config) -> Result<Self, AppError> {
        raise_open_files();
        let (phase, watched) = watch::channel(Phase::Starting);
        let (metrics, slot) = (Arc::new(Metrics::new()), Arc::new(OnceLock::new()));
        let mut sockets = Vec::new();
        let bound = bind_all(&config, &mut sockets).await?;
        let admin = config.admin.as_ref().map(|address| {
            let sources =
                Sources { phase: watched.clone(), metrics: Arc::clone(&metrics), engine: Arc::clone(&slot) };
            let place = || format!("{address} (admin)");
            std::net::TcpListener::bind(address.as_str())
                .and_then(|listener| Admin::start(listener, sources))
                .map_err(|source| AppError::Bind { place: place(), source })
        });
        let admin = admin.transpose()?;
        // The admin thread is joined when it is dropped, and ends with the phase.
        let stop = |_: &AppError| _ = phase.send_replace(Phase::Stopped);
        let engine = open_engine(&config).await.inspect_err(stop)?;
        _ = slot.set(Arc::clone(&engine));
        let shared = Arc::new(Shared {
            engine: Arc::clone(&engine),
            metrics,
            phase: watched,
            resets: watch::Sender::new(0),
            boot: BootId::from_random(rand::random()),
            started: Instant::now(),
            max_frame_bytes: config.max_frame_bytes,
            max_calls_per_connection: config.max_calls_per_connection,
            refusals: RefusalLog::default(),
            copies: Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(2, usize::from))),
        });
        let mut app = Self {
            engine,
            phase,
            addresses: Vec::new(),
            grace: config.drain_grace,
            exit_when_unused: config.exit_when_unused,
            admin,
            servers: Vec::new(),
            helpers: Vec::new(),
            _sockets: sockets,
        };
        for (place, bound) in bound {
            app.serve(&shared, bound);
            app.addresses.push(place);
        }
        app.help();
        if config.scrub_bytes_per_second > 0 {
            app.scrub(config.scrub_bytes_per_second);
        }
        Ok(app)
    }

    fn serve(&mut self, shared: &Arc<Shared>, bound: Bound) {
        let mut watched = self.phase.subscribe();
        let stop = async move { _ = watched.wait_for(|phase| *phase == Phase::Stopped).await };
        let shared = Arc::clone(shared);
        let ended = |result: Result<(), tonic::transport::Error>| {
            if let Err(error) = result {
                tracing::error!(%error, "a server has stopped");
            }
        };
        let server = match bound {
            Bound::Unix { grpc, fds } => {
                let engine = Arc::clone(&self.engine);
                self.helpers.push(spawn("descriptors", fds::serve(fds, engine)));
                spawn("unix server", async move { ended(server::serve_unix(shared, grpc, stop).await) })
            }
            Bound::Tcp(tcp) => {
                spawn("tcp server", async move { ended(server::serve_tcp(shared, tcp, stop).await) })
            }
        };
        self.servers.push(server);
    }

    /// Verifies at the configured rate. A chunk is read as a whole, so what was read too much is waited for.
    fn scrub(&mut self, bytes_per_second: u64) {
        let engine = Arc::clone(&self.engine);
        self.helpers.push(spawn("scrub", async move {
            let each_tick = bytes_per_second.div_ceil(u64::from(SCRUBS_PER_SECOND));
            let mut tick = tokio::time::interval(Duration::from_secs(1) / SCRUBS_PER_SECOND);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut owed = 0u64;
            loop {
                tick.tick().await;
                owed = owed.saturating_sub(each_tick);
                if owed > 0 {
                    continue;
                }
                let engine = Arc::clone(&engine);
                match blocking("scrub", move || engine.scrub(each_tick)).await {
                    Ok(read_bytes) => owed = read_bytes,
                    Err(error) => return tracing::error!(%error, "stored bytes are no longer verified"),
                }
            }
        }));
    }

    fn help(&mut self) {
        let engine = Arc::clone(&self.engine);
        self.helpers.push(spawn("sweep", async move {
            let mut tick = tokio::time::interval(SWEEP);
            loop {
                tick.tick().await;
                engine.sweep();
            }
        }));
        let (engine, phase) = (Arc::clone(&self.engine), self.phase.clone());
        self.helpers.push(spawn("prefault", async move {
            let work = blocking("prefault", move || engine.prefault(&log_progress()));
            if let Err(error) = work.await {
                tracing::error!(%error, "touching the arena's pages failed; first stores will be slow");
            }
            let ready = phase.send_if_modified(|now| {
                let starting = *now == Phase::Starting;
                if starting {
                    *now = Phase::Serving;
                }
                starting
            });
            if ready {
                tracing::info!("ready");
            }
        }));
    }

    /// Where clients connect, with real ports.
    pub fn addresses(&self) -> &[Listen] {
        &self.addresses
    }
    /// Where probes and metrics are, with the real port.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.address)
    }
    /// The engine, for tests and statistics.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
    /// This moment's phase, and its changes.
    pub fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Returns once no session has been open for the configured time; never if there is none.
    pub async fn unused(&self) {
        let Some(limit) = self.exit_when_unused else { return std::future::pending().await };
        let mut since = Instant::now();
        let mut tick = tokio::time::interval(SWEEP);
        while since.elapsed() < limit {
            tick.tick().await;
            if self.engine.stats().sessions > 0 {
                since = Instant::now();
            }
        }
    }

    /// Stops in order: not ready, nothing new, what runs may end within the grace time, then all connections close.
    pub async fn shutdown(mut self) {
        self.phase.send_replace(Phase::Draining { grace: self.grace });
        self.engine.begin_drain();
        let deadline = Instant::now() + self.grace;
        loop {
            let stats = self.engine.stats();
            if stats.leases == 0 && stats.reservations == 0 {
                break;
            }
            if Instant::now() >= deadline {
                let (leases, reservations) = (stats.leases, stats.reservations);
                tracing::warn!(leases, reservations, "the grace time is over; stopping what still runs");
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.phase.send_replace(Phase::Stopped);
        let closing = async {
            for server in &mut self.servers {
                server.ended().await;
            }
        };
        if tokio::time::timeout(CLOSE, closing).await.is_err() {
            tracing::debug!("connections were cut");
        }
    }
}

impl Drop for RunningApp {
    fn drop(&mut self) {
        // For whoever watches the phase, also when nobody called `shutdown`: the admin thread is joined after this.
        self.phase.send_replace(Phase::Stopped);
    }
}

/// Each session takes a connection and a staging region: a thousand of them are above the usual soft limit.
fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is; very many clients may be refused");
    }
}

async fn bind_all(config: &Config, sockets: &mut Vec<SocketFile>) -> Result<Vec<(Listen, Bound)>, AppError> {
    let mut bound = Vec::new();
    for place in &config.listen {
        let failed = |source| AppError::Bind { place: place.to_string(), source };
        bound.push(match place {
            Listen::Unix(path) => {
                make_parent(path).map_err(failed)?;
                free_stale(path).await.map_err(failed)?;
                let grpc = UnixListener::bind(path).map_err(failed)?;
                sockets.push(SocketFile::of(path).map_err(failed)?);
                let fd_path = fd_socket_path(path);
                _ = std::fs::remove_file(&fd_path);
                let fds = fds::bind_packets(&fd_path).map_err(failed)?;
                sockets.push(SocketFile::of(&fd_path).map_err(failed)?);
                for path in [path, &fd_path] {
                    let mode = std::fs::Permissions::from_mode(config.socket_mode);
                    std::fs::set_permissions(path, mode).map_err(failed)?;
                }
                (place.clone(), Bound::Unix { grpc, fds })
            }
            Listen::Tcp(address) => {
                let tcp = TcpListener::bind(address.as_str()).await.map_err(failed)?;
                let real = tcp.local_addr().map_err(failed)?;
                let real = format!("tcp://{real}")
                    .parse()
                    .map_err(|_| failed(io::ErrorKind::AddrNotAvailable.into()))?;
                (real, Bound::Tcp(tcp))
            }
        });
    }
    Ok(bound)
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)
}

/// Removes a socket that a dead daemon left. One that answers, or a file that is no socket, is left alone.
async fn free_stale(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    match tokio::net::UnixStream::connect(path).await {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody answers there already")),
        Err(_) => std::fs::remove_file(path),
    }
}

async fn open_engine(config: &Config) -> Result<Arc<Engine>, AppError> {
    let settings = config.engine.clone();
    let opening = blocking("open arena", move || Engine::new(settings, Arc::new(SystemClock)));
    let opened = opening
        .await
        .map_err(|error| AppError::System { what: "the arena's thread", source: io::Error::other(error) })?;
    Ok(Arc::new(opened?))
}

/// Logs every tenth of the arena.
fn log_progress() -> impl Fn(u64, u64) + Sync {
    let logged = std::sync::atomic::AtomicU64::new(0);
    move |done, total| {
        let tenth = done.saturating_mul(10).checked_div(total).unwrap_or(10);
        if tenth > logged.fetch_max(tenth, std::sync::atomic::Ordering::Relaxed) {
            tracing::info!(percent = tenth * 10, "touching the arena's pages");
        }
    }
}
