//! What the daemon is told. Typed on the command line or written in a file (`flags`, `file`: the same
//! settings, each of which may be missing), it becomes a [`Config`] here: complete, checked, and the only form
//! that other modules see. Every default has its one home in `defaults`; the help text is made from it.

mod disk;
mod file;
mod flags;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use clap::{CommandFactory, FromArgMatches};
use tender_proto::limits::{FRAME_PAYLOAD_BYTES, MAX_BATCH_CHUNKS, MAX_PART_BYTES};

use crate::engine::{ArenaConfig, EngineConfig};
pub use crate::tier::peers::{DirectoryUri, PeersConfig};
pub use crate::tier::shared::{BadUri, SharedConfig, SharedUri};
pub use crate::tls::{ClientAuth, TlsConfig};
pub use disk::DiskConfig;
use flags::{Flags, Settings, SharedSettings, TlsSettings};
pub use flags::{HostPort, Listen, LogFormat};

/// Where examples and manifests answer probes and metrics (`--admin`); there is no default.
pub const ADMIN_PORT: u16 = 9470;
/// Where they serve engines and daemons of other hosts; there is no default.
pub const TCP_PORT: u16 = 9471;

/// Every default, and why.
mod defaults {
    use super::flags::{FileMode, LogFormat, Span};
    use crate::tls::ClientAuth;
    use bytesize::ByteSize;
    use std::time::Duration;

    pub(super) const NAME: &str = "default";
    /// Where the manifests and the client look for it.
    pub(super) const LISTEN: &str = "unix:/run/tender/tenderd.sock";
    pub(super) const SOCKET_MODE: FileMode = FileMode(0o600);
    /// Kubernetes kills 30 s after SIGTERM.
    pub(super) const DRAIN_GRACE: Span = Span(Duration::from_secs(20));
    pub(super) const ARENA_SIZE: ByteSize = ByteSize::gib(1);
    pub(super) const ARENA_PREFAULT: bool = true;
    /// Less than a hundredth of a core; 64 GiB take a quarter of an hour.
    pub(super) const SCRUB_RATE: ByteSize = ByteSize::mib(64);
    pub(super) const ARENA_DISCARD: bool = false;
    pub(super) const TAKE_OVER: bool = false;
    pub(super) const ALLOW_PLAINTEXT_TCP: bool = false;
    /// Whoever turns TLS on wants to know who calls.
    pub(super) const CLIENT_AUTH: ClientAuth = ClientAuth::Required;
    /// Longer than any load of a healthy client, short enough that a lost one's chunks come back soon.
    pub(super) const LEASE_DEFAULT: Span = Span(Duration::from_secs(10));
    pub(super) const LEASE_MAX: Span = Span(Duration::from_secs(60));
    pub(super) const RESERVATION_TIME: Span = Span(Duration::from_secs(30));
    pub(super) const MAX_SESSIONS: usize = 4096;
    pub(super) const MAX_LEASES_PER_SESSION: usize = 4096;
    pub(super) const MAX_PART: ByteSize = ByteSize::gib(1);
    pub(super) const MAX_STAGING: ByteSize = ByteSize::gib(1);
    pub(super) const MAX_TOTAL_STAGING: ByteSize = ByteSize::gib(4);
    pub(super) const MAX_NAMESPACES: usize = 256;
    pub(super) const MAX_CALLS_PER_CONNECTION: usize = 1024;
    /// A lookup's answer comes after the step that asked for it in any case, and a step takes about as long.
    pub(super) const TIER_LOOKUP_TIME: Span = Span(Duration::from_millis(20));
    /// Longer than any request waits: later ones profit.
    pub(super) const TIER_FETCH_TIME: Span = Span(Duration::from_secs(5));
    pub(super) const TIER_FETCHES: usize = 16;
    pub(super) const TIER_FETCH_BYTES: ByteSize = ByteSize::mib(256);
    pub(super) const TIER_WRITE_RATE: ByteSize = ByteSize::b(0);
    pub(super) const SHARED_MIN_HITS: u32 = 1;
    /// A thousandth of a large disk, and chunks of any size fit.
    pub(super) const DISK_SEGMENT_SIZE: ByteSize = ByteSize::mib(256);
    /// 22 TB a day: what a drive of 7 TB for three writes of itself a day can take.
    pub(super) const DISK_WRITE_RATE: ByteSize = ByteSize::mib(256);
    /// Enough to keep a flash disk busy with reads of a megabyte.
    pub(super) const DISK_READS: usize = 8;
    pub(super) const DISK_DISCARD: bool = false;
    /// One wave of a lookup's questions.
    pub(super) const SHARED_MAX_REQUESTS: usize = 64;
    /// Each holds two parts of 8 MiB; more of them would take the network from those who load.
    pub(super) const SHARED_MAX_UPLOADS: usize = 4;
    pub(super) const LOG_FORMAT: LogFormat = LogFormat::Text;
    pub(super) const LOG_LEVEL: &str = "info";

    pub(super) const DIRECTORY_PREFIX: &str = "tender";
    /// A daemon that is killed is named for so long; a third of it is the time of a round, see docs/directory.md.
    pub(super) const DIRECTORY_TTL: Span = Span(Duration::from_secs(90));
    /// A healthy store answers in a few milliseconds; lookups wait for less than this anyway.
    pub(super) const DIRECTORY_TIMEOUT: Span = Span(Duration::from_millis(500));
    /// A core of the store takes about ten times as many.
    pub(super) const DIRECTORY_PUBLISH_RATE: usize = 20_000;

    /// In-flight bytes are arena that holds nothing of use yet: half of it at most.
    pub(super) const INFLIGHT_SHARE: u64 = 2;
    /// One session may not take the others' turn.
    pub(super) const SESSION_INFLIGHT_SHARE: u64 = 2;
}

/// Complete and checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Of this daemon, for logs.
    pub name: String,
    /// At least one, all different.
    pub listen: Vec<Listen>,
    /// For `tls://` addresses; there whenever one is in `listen`.
    pub tls: Option<TlsConfig>,
    /// Who may do what; `None` for the rules without a policy.
    pub policy: Option<PathBuf>,
    /// Permission bits of the Unix sockets.
    pub socket_mode: u32,
    /// Where `/live`, `/ready` and `/metrics` are answered; `None` for nowhere.
    pub admin: Option<HostPort>,
    /// How long a drain waits for what is under way.
    pub drain_grace: Duration,
    /// End after this time without a session.
    pub exit_when_unused: Option<Duration>,
    /// Take over from a daemon that runs on the same arena.
    pub take_over: bool,
    /// Stored bytes that are verified again in the background each second; 0 for none.
    pub scrub_bytes_per_second: u64,
    /// Threads that serve calls, at least 1.
    pub worker_threads: usize,
    /// Payload of one frame, 1 byte to [`FRAME_PAYLOAD_BYTES`].
    pub max_frame_bytes: usize,
    /// Calls under way on one connection.
    pub max_calls_per_connection: usize,
    /// Files that keep chunks; `None` for none.
    pub disk: Option<DiskConfig>,
    /// A store that outlives the daemons; `None` for none.
    pub shared: Option<SharedConfig>,
    /// How log lines look.
    pub log_format: LogFormat,
    /// A filter in the words of `tracing`.
    pub log_level: String,
    /// Tiers below the arena.
    pub stack: StackConfig,
    /// Other daemons; `None` for nobody.
    pub peers: Option<PeersConfig>,
    /// The domain's own limits.
    pub engine: EngineConfig,
}

/// How tiers below the arena are used, whichever they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackConfig {
    /// How long a lookup may take to ask them.
    pub lookup_time: Duration,
    /// A fetch that takes longer, its time in the queue included, has failed.
    pub fetch_time: Duration,
    /// Fetches that one tier does at one time, at least 1.
    pub fetches: usize,
    /// Bytes of all fetches that have begun and not ended; what is more is not begun.
    pub fetch_bytes: u64,
    /// Bytes that each tier is given to keep in a second; 0 for no bound.
    pub write_bytes_per_second: u64,
    /// Requests that must have found a chunk before the shared tier is given it; 0: it is given all that is stored.
    pub shared_min_hits: u32,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Flags or variables; also `--help` and `--version`.
    #[error("{0}")]
    Flags(#[from] clap::Error),
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Unreadable {
        /// As given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file has an unknown key or a value that means nothing.
    #[error("the configuration {} is wrong: {source}", path.display())]
    Malformed {
        /// As given.
        path: PathBuf,
        /// Line, key and what is allowed there.
        source: Box<toml::de::Error>,
    },
    /// A readable value that does not work, alone or with another.
    #[error("--{flag} {value}: {advice}")]
    Unusable {
        /// Its flag.
        flag: &'static str,
        /// What was chosen, wherever.
        value: String,
        /// What would work.
        advice: String,
    },
}

impl Default for Config {
    /// With every setting at its default.
    fn default() -> Self {
        Self::check(Settings::default())
            .unwrap_or_else(|error| unreachable!("the defaults fit together: {error}"))
    }
}

impl Config {
    /// From command-line arguments (the first is the program's name), the environment, and the file they name.
    pub fn load(args: impl IntoIterator<Item = OsString>) -> Result<Self, ConfigError> {
        let matches = command().try_get_matches_from(args)?;
        let flags = Flags::from_arg_matches(&matches)?;
        let file = flags.config.as_deref().map(file::read).transpose()?.unwrap_or_default();
        Self::check(flags.settings.over(file))
    }

    /// From the text of a file alone; `path` is for its errors.
    pub fn from_toml(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::check(file::parse(path, text)?)
    }

    fn check(settings: Settings) -> Result<Self, ConfigError> {
        let Settings {
            name,
            listen,
            socket_mode,
            admin,
            drain_grace,
            exit_when_unused,
            take_over,
            worker_threads,
            ..
        } = settings.clone();
        let name = name.unwrap_or_else(|| defaults::NAME.into());
        if name.is_empty()
            || name.len() > 64
            || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        {
            return Err(unusable(
                "name",
                name.escape_debug(),
                "use 1 to 64 letters, digits, dots, dashes, underscores",
            ));
        }
        let max_frame = settings.limits.max_frame.map_or(FRAME_PAYLOAD_BYTES as u64, |size| size.as_u64());
        let max_frame_bytes = usize::try_from(max_frame).unwrap_or(usize::MAX);
        if !(1..=FRAME_PAYLOAD_BYTES).contains(&max_frame_bytes) {
            return Err(unusable(
                "max-frame",
                ByteSize(max_frame),
                format!("use 1 B to {}", ByteSize(FRAME_PAYLOAD_BYTES as u64)),
            ));
        }
        let calls = settings.limits.max_calls_per_connection;
        if take_over == Some(true) && settings.arena.discard == Some(true) {
            return Err(unusable(
                "discard-arena",
                true,
                "not with --take-over, which keeps what the arena holds",
            ));
        }
        let level = settings.log.level.clone().unwrap_or_else(|| defaults::LOG_LEVEL.into());
        if level.parse::<tracing_subscriber::EnvFilter>().is_err() {
            return Err(unusable(
                "log-level",
                level,
                "use error, warn, info, debug, trace, or module=level, separated by commas",
            ));
        }
        Ok(Self {
            listen: listen_on(listen, settings.allow_plaintext_tcp, &settings.tls)?,
            tls: tls(settings.tls.clone())?,
            policy: settings.policy.clone(),
            socket_mode: socket_mode.unwrap_or(defaults::SOCKET_MODE).0,
            admin,
            drain_grace: drain_grace.unwrap_or(defaults::DRAIN_GRACE).0,
            exit_when_unused: exit_when_unused.map(|span| span.0),
            take_over: take_over.unwrap_or(defaults::TAKE_OVER),
            scrub_bytes_per_second: settings.arena.scrub_rate.unwrap_or(defaults::SCRUB_RATE).as_u64(),
            worker_threads: at_least_one(
                "worker-threads",
                worker_threads.unwrap_or_else(worker_threads_of_host),
            )?,
            max_frame_bytes,
            max_calls_per_connection: at_least_one(
                "max-calls-per-connection",
                calls.unwrap_or(defaults::MAX_CALLS_PER_CONNECTION),
            )?,
            disk: disk::check(&settings.disk)?,
            shared: shared(&settings.shared)?,
            log_format: settings.log.format.unwrap_or(defaults::LOG_FORMAT),
            log_level: level,
            stack: stack(&settings)?,
            peers: peers(&settings)?,
            engine: engine(&settings, &name)?,
            name,
        })
    }
}

fn stack(settings: &Settings) -> Result<StackConfig, ConfigError> {
    let tiers = &settings.tiers;
    let time = |flag, time: Option<flags::Span>, default: flags::Span| match time.unwrap_or(default) {
        flags::Span(zero) if zero.is_zero() => Err(unusable(flag, flags::Span(zero), "must be more than 0")),
        flags::Span(time) => Ok(time),
    };
    let fetch_bytes = tiers.fetch_bytes.unwrap_or(defaults::TIER_FETCH_BYTES).as_u64();
    if fetch_bytes == 0 {
        return Err(unusable("tier-fetch-bytes", ByteSize(fetch_bytes), "must be more than 0"));
    }
    Ok(StackConfig {
        lookup_time: time("tier-lookup-time", tiers.lookup_time, defaults::TIER_LOOKUP_TIME)?,
        fetch_time: time("tier-fetch-time", tiers.fetch_time, defaults::TIER_FETCH_TIME)?,
        fetches: at_least_one("tier-fetches", tiers.fetches.unwrap_or(defaults::TIER_FETCHES))?,
        fetch_bytes,
        write_bytes_per_second: tiers.write_rate.unwrap_or(defaults::TIER_WRITE_RATE).as_u64(),
        shared_min_hits: tiers.shared_min_hits.unwrap_or(defaults::SHARED_MIN_HITS),
    })
}

fn peers(settings: &Settings) -> Result<Option<PeersConfig>, ConfigError> {
    let (directory, peers) = (&settings.directory, &settings.peers);
    let advertise = peers.advertise.as_ref().map(advertised).transpose()?;
    let Some(uri) = directory.uri.clone() else {
        return match advertise {
            Some(address) => Err(unusable("advertise", address, "nobody reads it without --directory")),
            None => Ok(None),
        };
    };
    let prefix = directory.prefix.clone().unwrap_or_else(|| defaults::DIRECTORY_PREFIX.into());
    if prefix.is_empty()
        || prefix.len() > 64
        || !prefix.bytes().all(|b| b.is_ascii_graphic() && !b"{}".contains(&b))
    {
        let advice = "use 1 to 64 printable characters without spaces and braces";
        return Err(unusable("directory-prefix", prefix.escape_debug(), advice));
    }
    let ttl = directory.ttl.unwrap_or(defaults::DIRECTORY_TTL);
    if ttl.0 < Duration::from_secs(3) || ttl.0.subsec_nanos() != 0 {
        return Err(unusable("directory-ttl", ttl, "use whole seconds, at least 3s"));
    }
    let timeout = directory.timeout.unwrap_or(defaults::DIRECTORY_TIMEOUT);
    if timeout.0.is_zero() {
        return Err(unusable("directory-timeout", timeout, "must be more than 0"));
    }
    let rate = directory.publish_rate.unwrap_or(defaults::DIRECTORY_PUBLISH_RATE);
    let config = PeersConfig {
        directory: uri,
        prefix,
        ttl: ttl.0,
        timeout: timeout.0,
        advertise,
        entries_per_second: at_least_one("directory-publish-rate", rate)?,
    };
    let reachable = |listen: &Listen| matches!(listen, Listen::Tcp(at) | Listen::Tls(at) if at.is_one_host());
    if config.advertise.is_none() && !settings.listen.iter().flatten().any(reachable) {
        let advice = "other daemons must reach this one: listen at tls://HOST:PORT of this host, or give --advertise \
                      tls://HOST:PORT";
        return Err(unusable("directory", config.directory, advice));
    }
    Ok(Some(config))
}

fn advertised(address: &Listen) -> Result<Listen, ConfigError> {
    match address {
        Listen::Tcp(at) | Listen::Tls(at) if at.is_one_host() && at.port() != 0 => Ok(address.clone()),
        _ => Err(unusable("advertise", address, "give tls://HOST:PORT as other hosts connect to this one")),
    }
}

fn engine(settings: &Settings, name: &str) -> Result<EngineConfig, ConfigError> {
    let (arena, lease, limits) = (&settings.arena, &settings.lease, &settings.limits);
    let bytes = arena.size.unwrap_or(defaults::ARENA_SIZE).as_u64();
    let inflight = limits.max_inflight.map_or(bytes / defaults::INFLIGHT_SHARE, |size| size.as_u64());
    let session_share = inflight / defaults::SESSION_INFLIGHT_SHARE;
    let config = EngineConfig {
        arena: ArenaConfig {
            place: arena.path.clone().unwrap_or_else(|| default_arena_path(name)),
            bytes,
            prefault: arena.prefault.unwrap_or(defaults::ARENA_PREFAULT),
            keep: arena.keep.unwrap_or(settings.exit_when_unused.is_none()),
            discard: arena.discard.unwrap_or(defaults::ARENA_DISCARD),
        },
        default_lease: lease.default.unwrap_or(defaults::LEASE_DEFAULT).0,
        max_lease: lease.max.unwrap_or(defaults::LEASE_MAX).0,
        reservation: limits.reservation_time.unwrap_or(defaults::RESERVATION_TIME).0,
        max_inflight_bytes: inflight,
        max_session_inflight_bytes: limits.max_session_inflight.map_or(session_share, |size| size.as_u64()),
        max_sessions: at_least_one("max-sessions", limits.max_sessions.unwrap_or(defaults::MAX_SESSIONS))?,
        max_leases_per_session: at_least_one(
            "max-leases-per-session",
            limits.max_leases_per_session.unwrap_or(defaults::MAX_LEASES_PER_SESSION),
        )?,
        max_part_bytes: limits.max_part.unwrap_or(defaults::MAX_PART).as_u64(),
        max_staging_bytes: limits.max_staging.unwrap_or(defaults::MAX_STAGING).as_u64(),
        max_total_staging_bytes: limits.max_total_staging.unwrap_or(defaults::MAX_TOTAL_STAGING).as_u64(),
        max_batch_chunks: at_least_one(
            "max-batch-chunks",
            limits.max_batch_chunks.unwrap_or(MAX_BATCH_CHUNKS),
        )?,
        max_namespaces: at_least_one(
            "max-namespaces",
            limits.max_namespaces.unwrap_or(defaults::MAX_NAMESPACES),
        )?,
    };
    fits_together(&config)?;
    Ok(config)
}

fn shared(settings: &SharedSettings) -> Result<Option<SharedConfig>, ConfigError> {
    let max_requests =
        at_least_one("shared-max-requests", settings.max_requests.unwrap_or(defaults::SHARED_MAX_REQUESTS))?;
    let max_uploads =
        at_least_one("shared-max-uploads", settings.max_uploads.unwrap_or(defaults::SHARED_MAX_UPLOADS))?;
    let Some(uri) = &settings.uri else { return Ok(None) };
    let uri = uri.parse::<SharedUri>().map_err(|BadUri(why)| unusable("shared-uri", "as given", why))?;
    let missing = uri.folder().filter(|folder| !folder.is_dir());
    if missing.is_some() {
        return Err(unusable("shared-uri", &uri, "there is no such folder; mount or make it first"));
    }
    if let Some(file) = settings.credentials.as_deref().filter(|file| !file.is_file()) {
        return Err(unusable("shared-credentials", file.display(), "there is no such file"));
    }
    Ok(Some(SharedConfig { uri, credentials: settings.credentials.clone(), max_requests, max_uploads }))
}

fn fits_together(config: &EngineConfig) -> Result<(), ConfigError> {
    let span = |time: Duration| flags::Span(time);
    if !config.arena.place.is_absolute() {
        return Err(unusable("arena-path", config.arena.place.display(), "give an absolute path"));
    }
    if config.default_lease.is_zero() || config.default_lease > config.max_lease {
        let advice =
            format!("must be more than 0 and at most --lease-max, which is {}", span(config.max_lease));
        return Err(unusable("lease-default", span(config.default_lease), advice));
    }
    if config.reservation.is_zero() {
        return Err(unusable("reservation-time", span(config.reservation), "must be more than 0"));
    }
    for (flag, bytes, most) in [
        ("max-inflight", config.max_inflight_bytes, u64::MAX),
        ("max-session-inflight", config.max_session_inflight_bytes, config.max_inflight_bytes),
        ("max-part", config.max_part_bytes, MAX_PART_BYTES),
        ("max-staging", config.max_staging_bytes, config.max_total_staging_bytes),
    ] {
        if bytes == 0 || bytes > most {
            return Err(unusable(
                flag,
                ByteSize(bytes),
                format!("must be more than 0 and at most {}", ByteSize(most)),
            ));
        }
    }
    if config.max_batch_chunks > MAX_BATCH_CHUNKS {
        return Err(unusable(
            "max-batch-chunks",
            config.max_batch_chunks,
            format!("must be at most {MAX_BATCH_CHUNKS}"),
        ));
    }
    Ok(())
}

fn listen_on(
    listen: Option<Vec<Listen>>,
    allow_plaintext_tcp: Option<bool>,
    tls: &TlsSettings,
) -> Result<Vec<Listen>, ConfigError> {
    let listen = match listen {
        Some(listen) => listen,
        None => vec![Listen::Unix(defaults::LISTEN.trim_start_matches("unix:").into())],
    };
    if listen.is_empty() {
        return Err(unusable("listen", "[]", "name at least one address"));
    }
    for (i, address) in listen.iter().enumerate() {
        if listen[..i].contains(address) && !address.to_string().ends_with(":0") {
            return Err(unusable("listen", address, "is named twice"));
        }
        if let (Listen::Tcp(_), false) =
            (address, allow_plaintext_tcp.unwrap_or(defaults::ALLOW_PLAINTEXT_TCP))
        {
            let advice = "it is not encrypted, and nobody can tell its callers apart: use tls:// with --tls-cert and \
                          --tls-key, or say --allow-plaintext-tcp where the network is trusted";
            return Err(unusable("listen", address, advice));
        }
        if let (Listen::Tls(_), None) = (address, &tls.cert) {
            return Err(unusable("listen", address, "give --tls-cert and --tls-key"));
        }
        if let Listen::Unix(path) = address {
            // sun_path holds 107 bytes, and the descriptor socket's name is 3 longer.
            if !path.is_absolute() || path.as_os_str().len() > 104 {
                return Err(unusable("listen", address, "give an absolute path of at most 104 bytes"));
            }
        }
    }
    Ok(listen)
}

fn tls(settings: TlsSettings) -> Result<Option<TlsConfig>, ConfigError> {
    let shown = |path: &Option<PathBuf>| path.as_deref().unwrap_or(Path::new("")).display().to_string();
    let client_auth = settings.client_auth.unwrap_or(defaults::CLIENT_AUTH);
    let TlsSettings { cert, key, client_ca, .. } = settings;
    match (cert, key) {
        (Some(cert), Some(key)) => {
            if client_ca.is_none() && client_auth != ClientAuth::None {
                let advice =
                    "clients must show a certificate: give --tls-client-ca, or say --tls-client-auth none";
                return Err(unusable("tls-cert", cert.display(), advice));
            }
            Ok(Some(TlsConfig { cert, key, client_ca, client_auth }))
        }
        (cert @ Some(_), None) => Err(unusable("tls-cert", shown(&cert), "give --tls-key too")),
        (None, key @ Some(_)) => Err(unusable("tls-key", shown(&key), "give --tls-cert too")),
        (None, None) if client_ca.is_some() => {
            Err(unusable("tls-client-ca", shown(&client_ca), "give --tls-cert and --tls-key too"))
        }
        (None, None) => Ok(None),
    }
}

fn default_arena_path(name: &str) -> PathBuf {
    format!("/dev/shm/tender-{name}.arena").into()
}

fn worker_threads_of_host() -> usize {
    // Two at least: a call that hashes must not hold up a lookup on a one-core host either.
    std::thread::available_parallelism().map_or(2, |n| n.get().max(2))
}

fn at_least_one(flag: &'static str, n: usize) -> Result<usize, ConfigError> {
    if n == 0 { Err(unusable(flag, n, "must be at least 1")) } else { Ok(n) }
}

fn unusable(flag: &'static str, value: impl ToString, advice: impl Into<String>) -> ConfigError {
    ConfigError::Unusable { flag, value: value.to_string(), advice: advice.into() }
}

/// The command line, with every default in its help.
fn command() -> clap::Command {
    Flags::command().mut_args(|arg| {
        let Some(default) = default_text(arg.get_id().as_str()) else { return arg };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{} [default: {default}]", help.trim_end_matches('.'))).long_help(None)
    })
}

fn default_text(id: &str) -> Option<String> {
    let size = |size: ByteSize| size.to_string();
    Some(match id {
        "name" => defaults::NAME.into(),
        "listen" => defaults::LISTEN.into(),
        "socket_mode" => defaults::SOCKET_MODE.to_string(),
        "admin" => "not answered".into(),
        "drain_grace" => defaults::DRAIN_GRACE.to_string(),
        "exit_when_unused" => "never".into(),
        "allow_plaintext_tcp" => defaults::ALLOW_PLAINTEXT_TCP.to_string(),
        "policy" => "none: all may read and write, and local callers do everything".into(),
        "tls-cert" | "tls-key" | "tls-client-ca" => "none".into(),
        "tls-client-auth" => format!("{:?}", defaults::CLIENT_AUTH).to_lowercase(),
        "take_over" => defaults::TAKE_OVER.to_string(),
        "worker_threads" => "one for each CPU, at least 2".into(),
        "arena-size" => size(defaults::ARENA_SIZE),
        "arena-path" => default_arena_path("NAME").display().to_string(),
        "arena-prefault" => defaults::ARENA_PREFAULT.to_string(),
        "arena-keep" => "true, but false with --exit-when-unused".into(),
        "arena-scrub-rate" => size(defaults::SCRUB_RATE),
        "discard-arena" => defaults::ARENA_DISCARD.to_string(),
        "directory-uri" => "none".into(),
        "directory-prefix" => defaults::DIRECTORY_PREFIX.into(),
        "directory-ttl" => defaults::DIRECTORY_TTL.to_string(),
        "directory-timeout" => defaults::DIRECTORY_TIMEOUT.to_string(),
        "directory-publish-rate" => defaults::DIRECTORY_PUBLISH_RATE.to_string(),
        "advertise" => "the first --listen tls://HOST:PORT or tcp://HOST:PORT of one host".into(),
        "lease-default" => defaults::LEASE_DEFAULT.to_string(),
        "lease-max" => defaults::LEASE_MAX.to_string(),
        "reservation_time" => defaults::RESERVATION_TIME.to_string(),
        "max_inflight" => format!("arena size / {}", defaults::INFLIGHT_SHARE),
        "max_session_inflight" => format!("--max-inflight / {}", defaults::SESSION_INFLIGHT_SHARE),
        "max_sessions" => defaults::MAX_SESSIONS.to_string(),
        "max_leases_per_session" => defaults::MAX_LEASES_PER_SESSION.to_string(),
        "max_part" => size(defaults::MAX_PART),
        "max_staging" => size(defaults::MAX_STAGING),
        "max_total_staging" => size(defaults::MAX_TOTAL_STAGING),
        "max_batch_chunks" => MAX_BATCH_CHUNKS.to_string(),
        "max_namespaces" => defaults::MAX_NAMESPACES.to_string(),
        "max_frame" => size(ByteSize(FRAME_PAYLOAD_BYTES as u64)),
        "max_calls_per_connection" => defaults::MAX_CALLS_PER_CONNECTION.to_string(),
        "tier-lookup-time" => defaults::TIER_LOOKUP_TIME.to_string(),
        "tier-fetch-time" => defaults::TIER_FETCH_TIME.to_string(),
        "tier-fetches" => defaults::TIER_FETCHES.to_string(),
        "tier-fetch-bytes" => size(defaults::TIER_FETCH_BYTES),
        "tier-write-rate" => size(defaults::TIER_WRITE_RATE),
        "shared-min-hits" => defaults::SHARED_MIN_HITS.to_string(),
        "disk-path" => "none".into(),
        "disk-size" => "none: it must be given with --disk-path".into(),
        "disk-segment-size" => size(defaults::DISK_SEGMENT_SIZE),
        "disk-write-rate" => size(defaults::DISK_WRITE_RATE),
        "disk-reads" => defaults::DISK_READS.to_string(),
        "discard-disk" => defaults::DISK_DISCARD.to_string(),
        "shared-uri" => "none".into(),
        "shared-credentials" => "the environment".into(),
        "shared-max-requests" => defaults::SHARED_MAX_REQUESTS.to_string(),
        "shared-max-uploads" => defaults::SHARED_MAX_UPLOADS.to_string(),
        "log-format" => format!("{:?}", defaults::LOG_FORMAT).to_lowercase(),
        "log-level" => defaults::LOG_LEVEL.into(),
        _ => return None,
    })
}
