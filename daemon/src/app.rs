//! The daemon's life: bind, build, serve, drain, stop.

mod hand_over;
#[cfg(test)]
mod tests;
mod tiers;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use parking_lot::Mutex;
use tender_proto::{BootId, Refusal};
use tender_trace::Tracer;
use tokio::sync::{Notify, Semaphore, watch};

use crate::access::Access;
use crate::access::policy::PolicyError;
use crate::admin::{Admin, Sources};
use crate::clock::SystemClock;
use crate::config::{Config, Listen};
use crate::doors::{Accepting, Door, Place};
use crate::engine::{Engine, StartError};
use crate::fair::Fair;
use crate::fds::{self, Hands};
use crate::gate::{Bounds, Gate};
use crate::metrics::Metrics;
use crate::reload::Reload;
use crate::rpc::desk::{Desk, Facts};
use crate::rpc::status::RefusalLog;
use crate::rpc::{Shared, server};
use crate::shutdown::Phase;
use crate::takeover::{self, Entrance, TakeOverError, Terms};
use crate::task::{Task, blocking, spawn};
pub use crate::tier::disk::DiskError;
pub use crate::tier::shared::OpenError as SharedError;
use crate::tls::{Tls, TlsError};
pub use hand_over::{HandedOver, Successor};
use tiers::{DiskTrouble, Surroundings, Tiers};

/// How often ended leases and reservations are looked for.
const SWEEP: Duration = Duration::from_millis(100);
/// How long connections get to close once all work is over or the grace time is.
const CLOSE: Duration = Duration::from_secs(1);

/// How long the last spans may take on their way to the collector.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// How often a drain looks whether it is over.
const DRAIN_TICK: Duration = Duration::from_millis(20);

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
    /// The daemon that runs did not hand over.
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
    /// The tiers below the arena cannot work.
    #[error("cannot use the tiers below the arena: {0}")]
    Tiers(Refusal),
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The disk tier's folder cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The shared store cannot be used.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// The directory's URI cannot be used.
    #[error("cannot use the directory: {0}")]
    Directory(redis::RedisError),
    /// Other daemons would be told of an address that is none.
    #[error("other daemons cannot reach this one: give --advertise tls://HOST:PORT")]
    Unreachable,
    /// Spans cannot be sent.
    #[error(transparent)]
    Trace(#[from] tender_trace::OpenError),
    /// The system refused something else.
    #[error("cannot start {what}: {source}")]
    System {
        /// What was to be started.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl AppError {
    fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// A daemon that serves.
#[derive(Debug)]
pub struct RunningApp {
    /// As it began.
    config: Config,
    /// The same with what was reloaded since.
    in_force: Arc<Mutex<Config>>,
    engine: Arc<Engine>,
    /// Below the arena, if there are any.
    tiers: Tiers,
    phase: watch::Sender<Phase>,
    addresses: Vec<Listen>,
    admin: Option<Admin>,
    servers: Vec<Task>,
    /// Sweep, prefault and the descriptor sockets: they end with this.
    helpers: Vec<Task>,
    /// Where a successor comes to.
    entrance: Option<Entrance>,
    doors: Arc<[Door]>,
    tls: Option<Arc<Tls>>,
    gates: Gates,
    /// Rung by an operator.
    drain: Arc<Notify>,
    trace: Tracer,
}

/// How many connections get in: engines of this host have places of their own.
#[derive(Debug)]
struct Gates {
    local: Arc<Gate>,
    network: Arc<Gate>,
}

impl Gates {
    fn new(config: &Config, metrics: &Arc<Metrics>) -> Self {
        let Config { max_connections, max_connections_per_peer, .. } = *config;
        let all = max_connections.min(affordable_connections());
        if all < max_connections {
            let advice = "raise the limit of open files to have the configured number";
            tracing::warn!(connections = all, configured = max_connections, "fewer connections: {advice}");
        }
        let bounds = Bounds { all, each: max_connections_per_peer.min(all) };
        Self { local: Gate::new("local", bounds, metrics), network: Gate::new("network", bounds, metrics) }
    }
}

/// What decides who gets in and what they may do.
struct Guards {
    access: Arc<Access>,
    tls: Option<Arc<Tls>>,
}

impl Guards {
    fn load(config: &Config) -> Result<Self, AppError> {
        let access = Arc::new(Access::load(config.policy.clone())?);
        let tls = config.tls.clone().map(Tls::load).transpose()?.map(Arc::new);
        Ok(Self { access, tls })
    }
}

impl RunningApp {
    /// Binds every socket first, so that a probe or an early client finds an open door, then opens the arena. If the
    /// configuration says so, both come from the daemon that runs there.
    pub async fn start(config: Config) -> Result<Self, AppError> {
        raise_open_files();
        // Before anything is taken from a daemon that runs: with these it would be for nothing.
        Guards::load(&config)?;
        let taken = if config.take_over { takeover::take(&config).await? } else { None };
        match taken {
            Some(taken) => Self::succeed(config, taken).await,
            None => {
                let doors = Self::open_all(&config).await?;
                Self::begin(config, doors, None, DiskTrouble::Ends).await
            }
        }
    }

    async fn open_all(config: &Config) -> Result<Arc<[Door]>, AppError> {
        let mut doors = Vec::new();
        for place in Place::all_of(config) {
            let opened = Door::open(place.clone(), config.socket_mode).await;
            doors.push(opened.map_err(|source| AppError::Bind { place: place.to_string(), source })?);
        }
        Ok(doors.into())
    }

    /// Serves at these doors. With an arena that another daemon had until now, at once; else while its pages are touched.
    async fn begin(
        config: Config,
        doors: Arc<[Door]>,
        arena: Option<File>,
        disk_trouble: DiskTrouble,
    ) -> Result<Self, AppError> {
        let (phase, watched) = watch::channel(Phase::Starting);
        let (metrics, slot) = (Arc::new(Metrics::new()), Arc::new(OnceLock::new()));
        let stack_slot = Arc::new(OnceLock::new());
        let Guards { access, tls } = Guards::load(&config)?;
        metrics.count_access(&access);
        tls.iter().for_each(|tls| metrics.watch_certificates(tls));
        let trace = Tracer::open(&config.trace, "tenderd", &config.name)?;
        metrics.count_spans(&trace);
        let admin = open_admin(&doors, || Sources {
            phase: watched.clone(),
            metrics: Arc::clone(&metrics),
            engine: Arc::clone(&slot),
            stack: Arc::clone(&stack_slot),
            history: Default::default(),
            auditing: tokio::sync::Mutex::default(),
        })?;
        // The admin thread is joined when it is dropped, and ends with the phase.
        let (resident, stop) = (arena.is_some(), |_: &AppError| _ = phase.send_replace(Phase::Stopped));
        let engine = open_engine(&config, arena).await.inspect_err(stop)?;
        engine.set_quotas(access.quotas());
        _ = slot.set(Arc::clone(&engine));
        let addresses = addresses_of(&doors)?;
        let around = Surroundings {
            engine: &engine,
            metrics: &metrics,
            addresses: &addresses,
            tls: tls.as_ref(),
            disk_trouble,
        };
        let tiers = Tiers::open(&config, around).await.inspect_err(stop)?;
        if let Some(stack) = &tiers.stack {
            _ = stack_slot.set(Arc::clone(stack));
        }
        let gates = Gates::new(&config, &metrics);
        let shared = Arc::new(Shared {
            engine: Arc::clone(&engine),
            stack: tiers.stack.clone(),
            peers: tiers.peers.clone(),
            access,
            fair: Fair::new(config.worker_threads),
            metrics,
            phase: watched,
            boot: BootId::from_random(rand::random()),
            started: Instant::now(),
            max_frame_bytes: config.max_frame_bytes,
            max_calls_per_connection: config.max_calls_per_connection,
            refusals: RefusalLog::default(),
            copies: Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(2, usize::from))),
            doubts: Arc::new(Semaphore::new(1)),
            trace: trace.clone(),
            desk: Desk { facts: Facts::of(&config, &addresses, tls.as_ref()), ..Desk::default() },
        });
        if resident {
            phase.send_replace(Phase::Serving);
        }
        let mut app = Self {
            engine,
            tiers,
            phase,
            addresses,
            admin,
            gates,
            servers: Vec::new(),
            helpers: Vec::new(),
            entrance: None,
            doors,
            in_force: Arc::new(Mutex::new(config.clone())),
            config,
            tls,
            drain: Arc::clone(&shared.desk.drain),
            trace,
        };
        app.open_doors(&shared)?;
        app.help();
        if app.config.scrub_bytes_per_second > 0 {
            app.scrub(app.config.scrub_bytes_per_second);
        }
        Ok(app)
    }

    fn open_doors(&mut self, shared: &Arc<Shared>) -> Result<(), AppError> {
        let doors = Arc::clone(&self.doors);
        for door in doors.iter() {
            let failed = |source| AppError::Bind { place: door.place.to_string(), source };
            if door.address().map_err(failed)?.is_some() {
                self.serve(shared, door.accepting().map_err(failed)?)?;
            }
        }
        let reload = Reload {
            tls: self.tls.clone(),
            access: Arc::clone(&shared.access),
            engine: Arc::clone(&self.engine),
            metrics: Arc::clone(&shared.metrics),
            in_force: Arc::clone(&self.in_force),
        };
        self.helpers.push(spawn("reload", reload.watch()));
        let terms = Terms {
            arena_place: self.config.engine.arena.place.clone(),
            arena_bytes: self.config.engine.arena.bytes,
            drain: self.hand_over_grace(),
        };
        match Entrance::open(terms, doors) {
            Ok(entrance) => self.entrance = Some(entrance),
            Err(error) => tracing::warn!(%error, "no other tenderd can take over from this one"),
        }
        Ok(())
    }

    fn serve(&mut self, shared: &Arc<Shared>, accepting: Accepting) -> Result<(), AppError> {
        let mut watched = self.phase.subscribe();
        let stop = async move { _ = watched.wait_for(|phase| *phase == Phase::Stopped).await };
        let shared = Arc::clone(shared);
        let ended = |result: Result<(), tonic::transport::Error>| {
            if let Err(error) = result {
                tracing::error!(%error, "a server has stopped");
            }
        };
        let server = match accepting {
            Accepting::Unix { grpc, fds } => {
                let (engine, phase) = (Arc::clone(&self.engine), self.phase.subscribe());
                let (access, metrics) = (Arc::clone(&shared.access), Arc::clone(&shared.metrics));
                let hands = Hands { engine, access };
                self.helpers
                    .push(spawn("descriptors", async move { fds::serve(fds, hands, &metrics, phase).await }));
                let gate = Arc::clone(&self.gates.local);
                spawn("unix server", async move { ended(server::serve_unix(shared, grpc, gate, stop).await) })
            }
            Accepting::Tcp(tcp) => {
                let gate = Arc::clone(&self.gates.network);
                spawn("tcp server", async move { ended(server::serve_tcp(shared, tcp, gate, stop).await) })
            }
            Accepting::Tls(tcp) => {
                // The configuration has no such place without certificates.
                let tls = self.tls.clone().ok_or_else(|| {
                    AppError::system("TLS without a certificate")(io::ErrorKind::InvalidInput.into())
                })?;
                let gate = Arc::clone(&self.gates.network);
                spawn(
                    "tls server",
                    async move { ended(server::serve_tls(shared, tcp, tls, gate, stop).await) },
                )
            }
        };
        self.servers.push(server);
        Ok(())
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
            if let Err(error) = work.await.map_err(io::Error::other).and_then(|touched| touched) {
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
        let Some(limit) = self.config.exit_when_unused else { return std::future::pending().await };
        let mut since = Instant::now();
        let mut tick = tokio::time::interval(SWEEP);
        while since.elapsed() < limit {
            tick.tick().await;
            let (own_sessions, ..) = self.held_by_tiers();
            if self.engine.stats().sessions > own_sessions {
                since = Instant::now();
            }
        }
    }

    /// Returns once an operator has asked for a drain.
    pub async fn drain_asked(&self) {
        self.drain.notified().await;
    }

    /// Stops in order: not ready, nothing new, what runs may end within the grace time, then all connections close.
    pub async fn shutdown(mut self) {
        let grace = self.config.drain_grace;
        // A successor that comes now begins when this daemon has ended.
        self.entrance = None;
        // Whoever hears of the drain is refused from then on.
        self.engine.begin_drain();
        self.phase.send_replace(Phase::Draining { grace });
        tokio::join!(self.idle_within(grace), self.drain_tiers(Instant::now() + grace));
        self.close().await;
        self.doors.iter().for_each(Door::remove_files);
    }

    /// Waits until no client holds a lease or a reservation, but not for longer than this.
    async fn idle_within(&self, grace: Duration) {
        let deadline = Instant::now() + grace;
        loop {
            // What of its own began or ended in between is not subtracted.
            let (_, leases_before, reservations_before) = self.held_by_tiers();
            let stats = self.engine.stats();
            let (_, leases_after, reservations_after) = self.held_by_tiers();
            let leases = stats.leases.saturating_sub(leases_before.min(leases_after));
            let reservations = stats.reservations.saturating_sub(reservations_before.min(reservations_after));
            if leases == 0 && reservations == 0 {
                return;
            }
            if Instant::now() >= deadline {
                tracing::warn!(leases, reservations, "the grace time is over; stopping what still runs");
                return;
            }
            tokio::time::sleep(DRAIN_TICK).await;
        }
    }

    /// Ends sessions, connections and servers.
    async fn close(&mut self) {
        self.phase.send_replace(Phase::Stopped);
        let closing = async {
            for server in &mut self.servers {
                server.ended().await;
            }
        };
        if tokio::time::timeout(CLOSE, closing).await.is_err() {
            tracing::debug!("connections were cut");
        }
        let trace = self.trace.clone();
        _ = blocking("last spans", move || trace.close(LAST_SPANS)).await;
    }
}

impl Drop for RunningApp {
    fn drop(&mut self) {
        // For whoever watches the phase, also when nobody called `shutdown`: the admin thread is joined after this.
        self.phase.send_replace(Phase::Stopped);
    }
}

/// Where clients connect, with real ports.
fn addresses_of(doors: &[Door]) -> Result<Vec<Listen>, AppError> {
    let address = |door: &Door| {
        door.address().map_err(|source| AppError::Bind { place: door.place.to_string(), source })
    };
    Ok(doors.iter().map(address).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
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

/// A quarter of the descriptors for each gate, and the other half for everything else.
fn affordable_connections() -> usize {
    getrlimit(Resource::RLIMIT_NOFILE)
        .map_or(usize::MAX, |(soft, _)| usize::try_from(soft / 4).unwrap_or(usize::MAX).max(1))
}

/// Answers probes at the door for them, if there is one.
fn open_admin(doors: &[Door], sources: impl Fn() -> Sources) -> Result<Option<Admin>, AppError> {
    let mut admin = None;
    for door in doors {
        let failed = |source| AppError::Bind { place: door.place.to_string(), source };
        let Some(listener) = door.admin_listener().map_err(failed)? else { continue };
        let started = Admin::start(listener, sources());
        let failed = |source| AppError::System { what: "the thread that answers probes", source };
        admin = Some(started.map_err(failed)?);
    }
    Ok(admin)
}

async fn open_engine(config: &Config, arena: Option<File>) -> Result<Arc<Engine>, AppError> {
    let (settings, clock) = (config.engine.clone(), Arc::new(SystemClock));
    let opening = blocking("open arena", move || match arena {
        Some(file) => Engine::adopt(settings, clock, file),
        None => Engine::new(settings, clock),
    });
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
