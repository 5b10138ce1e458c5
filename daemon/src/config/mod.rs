//! What the daemon is told. Typed on the command line or written in a file (`flags`, `file`: the same
//! settings, each of which may be missing), it becomes a [`Config`] here: complete, checked, and the only form
//! that other modules see (`check`). Every default has its one home in `defaults`; the help text is made from it. `keys` says
//! which may change while the daemon runs, `reread` what a changed file means for it. docs/configuration.md is made from
//! all that, see `docs`.

mod check;
mod defaults;
mod disk;
#[cfg(test)]
mod docs;
mod file;
mod flags;
mod keys;
mod reread;
#[cfg(test)]
mod tests;
mod values;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use clap::{CommandFactory, FromArgMatches};
use tender_proto::limits::FRAME_PAYLOAD_BYTES;

use crate::engine::EngineConfig;
pub use crate::tier::peers::{DirectoryUri, PeersConfig};
pub use crate::tier::shared::{BadUri, SharedConfig, SharedUri};
pub use crate::tls::{ClientAuth, TlsConfig};
use check::{at_least_one, unusable};
pub use disk::DiskConfig;
use flags::limits::LimitSettings;
pub(crate) use flags::shown::Change;
use flags::{Flags, Settings};
pub use reread::Source;
pub use tender_trace::TraceConfig;
pub use values::{HostPort, Listen, LogFormat};

/// Where examples and manifests answer probes and metrics (`--admin`); there is no default.
pub const ADMIN_PORT: u16 = 9470;
/// Where they serve engines and daemons of other hosts; there is no default.
pub const TCP_PORT: u16 = 9471;

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
    /// Connections over the network, and the same number over Unix sockets.
    pub max_connections: usize,
    /// Of them those of one host, one certificate, or one local user other than the daemon's own and root.
    pub max_connections_per_peer: usize,
    /// Files that keep chunks; `None` for none.
    pub disk: Option<DiskConfig>,
    /// A store that outlives the daemons; `None` for none.
    pub shared: Option<SharedConfig>,
    /// How log lines look.
    pub log_format: LogFormat,
    /// A filter in the words of `tracing`.
    pub log_level: String,
    /// Where spans go.
    pub trace: TraceConfig,
    /// Tiers below the arena.
    pub stack: StackConfig,
    /// Other daemons; `None` for nobody.
    pub peers: Option<PeersConfig>,
    /// The domain's own limits.
    pub engine: EngineConfig,
    /// Where all this was read, to read it again.
    pub source: Source,
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
        Source::load(flags)
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
        let (max_connections, max_connections_per_peer) = connections(&settings.limits)?;
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
            listen: check::listen_on(listen, settings.allow_plaintext_tcp, &settings.tls)?,
            tls: check::tls(settings.tls.clone())?,
            policy: settings.policy.clone(),
            socket_mode: socket_mode.unwrap_or(defaults::SOCKET_MODE).0,
            admin,
            drain_grace: drain_grace.unwrap_or(defaults::DRAIN_GRACE).0,
            exit_when_unused: exit_when_unused.map(|span| span.0),
            take_over: take_over.unwrap_or(defaults::TAKE_OVER),
            scrub_bytes_per_second: settings.arena.scrub_rate.unwrap_or(defaults::SCRUB_RATE).as_u64(),
            worker_threads: at_least_one(
                "worker-threads",
                worker_threads.unwrap_or_else(check::worker_threads_of_host),
            )?,
            max_frame_bytes,
            max_calls_per_connection: at_least_one(
                "max-calls-per-connection",
                calls.unwrap_or(defaults::MAX_CALLS_PER_CONNECTION),
            )?,
            max_connections,
            max_connections_per_peer,
            disk: disk::check(&settings.disk)?,
            shared: check::shared(&settings.shared)?,
            log_format: settings.log.format.unwrap_or(defaults::LOG_FORMAT),
            log_level: level,
            trace: settings.trace.config(),
            stack: check::stack(&settings)?,
            peers: check::peers(&settings)?,
            engine: check::engine(&settings, &name)?,
            name,
            source: Source::default(),
        })
    }
}

/// In all, and of one peer.
fn connections(limits: &LimitSettings) -> Result<(usize, usize), ConfigError> {
    let all = limits.max_connections.unwrap_or(defaults::MAX_CONNECTIONS);
    let each = limits.max_connections_per_peer.unwrap_or(defaults::MAX_CONNECTIONS_PER_PEER);
    Ok((at_least_one("max-connections", all)?, at_least_one("max-connections-per-peer", each)?))
}

/// The command line, with every default in its help.
fn command() -> clap::Command {
    Flags::command().mut_args(|arg| {
        let Some(default) = defaults::text(arg.get_id().as_str()) else { return arg };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.help(format!("{} [default: {default}]", help.trim_end_matches('.'))).long_help(None)
    })
}
