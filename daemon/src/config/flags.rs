//! Settings as they are typed or written: every one of them may be missing. The same structs are read from
//! the command line, from `TENDERD_*` variables and from the file, so that each setting is described once.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Parser, ValueEnum};
use serde::Deserialize;

use crate::tier::peers::DirectoryUri;
use crate::tls::ClientAuth;

/// Keeps KV cache chunks of inference engines in shared memory and serves them to engines on this host (through
/// its Unix socket and shared memory) and on others (over TCP).
///
/// Every setting can be given as a flag, as an environment variable, or in the file named by --config; a flag wins
/// over a variable, and a variable over the file. In the file, `--arena-size` is `size` in the table `[arena]`, and
/// likewise for [tls], [lease], [limits], [tiers], [disk], [directory], [peers], [shared] and [log].
///
/// Sizes are written like 512MiB or 64GiB, times like 500ms, 30s or 2m.
#[derive(Parser, Debug)]
#[command(name = "tenderd", version, after_help = AFTER_HELP)]
pub(super) struct Flags {
    /// TOML file with settings; an unknown key in it is an error.
    #[arg(long, value_name = "FILE", env = "TENDERD_CONFIG")]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) settings: Settings,
}

const AFTER_HELP: &str = "\
Signals: SIGTERM and SIGINT drain (not ready, refuse new work, finish what is under way) and end; a second one ends at
once. Exit status: 0 after a drain, 1 when it could not start or serve, 64 for wrong flags or configuration.";

/// Takes each field from `self`, else from `lower`.
macro_rules! overlay {
    ($name:ident { $($field:ident),* } { $($table:ident),* }) => {
        impl $name {
            pub(super) fn over(self, lower: Self) -> Self {
                Self {
                    $($field: self.$field.or(lower.$field),)*
                    $($table: self.$table.over(lower.$table),)*
                }
            }
        }
    };
}

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    /// Name of this daemon in its default arena path and in logs.
    #[arg(long, value_name = "NAME", env = "TENDERD_NAME")]
    pub(super) name: Option<String>,
    /// Where engines connect: unix:PATH, tls://HOST:PORT or tcp://HOST:PORT. May be repeated. Port 0 takes a free port.
    /// Local engines get shared memory only through a Unix socket (its companion PATH.fd hands out the descriptors).
    /// tls:// needs --tls-cert and --tls-key; tcp:// is not encrypted and needs --allow-plaintext-tcp.
    #[arg(long, value_name = "ADDRESS", env = "TENDERD_LISTEN", value_delimiter = ',')]
    pub(super) listen: Option<Vec<Listen>>,
    /// Let tcp:// addresses be used, whose callers nobody can tell apart and whose bytes anybody on the way can read and
    /// change: in a trusted network only.
    #[arg(
        long,
        value_name = "true|false",
        env = "TENDERD_ALLOW_PLAINTEXT_TCP",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub(super) allow_plaintext_tcp: Option<bool>,
    /// TOML file that says which identities are which tenant, what they may do and how much; see docs/security.md. Read
    /// again on SIGHUP and when it changes.
    #[arg(long, value_name = "FILE", env = "TENDERD_POLICY")]
    pub(super) policy: Option<PathBuf>,
    /// File mode of the Unix sockets, octal. Descriptors are handed to processes of the daemon's own user and of
    /// root only, whatever the mode.
    #[arg(long, value_name = "MODE", env = "TENDERD_SOCKET_MODE")]
    pub(super) socket_mode: Option<FileMode>,
    /// Answer HTTP GET /live, /ready and /metrics here, for example 127.0.0.1:7071. It has its own thread, so bulk
    /// work does not delay it. /audit recounts all that is held: it takes time by the number of chunks, and is exact
    /// while nobody is at work.
    #[arg(long, value_name = "HOST:PORT", env = "TENDERD_ADMIN")]
    pub(super) admin: Option<HostPort>,
    /// How long a drain waits for what is under way.
    #[arg(long, value_name = "TIME", env = "TENDERD_DRAIN_GRACE")]
    pub(super) drain_grace: Option<Span>,
    /// Drain and end once no session has been open for this long, counted from the start too.
    #[arg(long, value_name = "TIME", env = "TENDERD_EXIT_WHEN_UNUSED")]
    pub(super) exit_when_unused: Option<Span>,
    /// Take over from the daemon that holds the arena, if there is one: its sockets and its arena, without a gap. Where
    /// none runs, start as usual. All places to listen that both have go over with everybody who waits there.
    #[arg(
        long,
        value_name = "true|false",
        env = "TENDERD_TAKE_OVER",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub(super) take_over: Option<bool>,
    /// Threads that serve calls.
    #[arg(long, value_name = "N", env = "TENDERD_WORKER_THREADS")]
    pub(super) worker_threads: Option<usize>,
    #[command(flatten)]
    pub(super) tls: TlsSettings,
    #[command(flatten)]
    pub(super) arena: ArenaSettings,
    #[command(flatten)]
    pub(super) lease: LeaseSettings,
    #[command(flatten)]
    pub(super) limits: LimitSettings,
    #[command(flatten)]
    pub(super) tiers: TierSettings,
    #[command(flatten)]
    pub(super) disk: DiskSettings,
    #[command(flatten)]
    pub(super) directory: DirectorySettings,
    #[command(flatten)]
    pub(super) peers: PeerSettings,
    #[command(flatten)]
    pub(super) shared: SharedSettings,
    #[command(flatten)]
    pub(super) log: LogSettings,
}
overlay!(Settings {
    name, listen, allow_plaintext_tcp, policy, socket_mode, admin, drain_grace, exit_when_unused, take_over,
    worker_threads
} {
    tls, arena, lease, limits, tiers, disk, directory, peers, shared, log
});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(
    next_help_heading = "TLS, for tls:// addresses; files are read again on SIGHUP and when they change"
)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TlsSettings {
    /// The daemon's certificate with its chain, PEM.
    #[arg(id = "tls-cert", long = "tls-cert", value_name = "FILE", env = "TENDERD_TLS_CERT")]
    pub(super) cert: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(id = "tls-key", long = "tls-key", value_name = "FILE", env = "TENDERD_TLS_KEY")]
    pub(super) key: Option<PathBuf>,
    /// Authorities that may have signed the certificates of clients and of other daemons, PEM.
    #[arg(id = "tls-client-ca", long = "tls-client-ca", value_name = "FILE", env = "TENDERD_TLS_CLIENT_CA")]
    pub(super) client_ca: Option<PathBuf>,
    /// Whether clients must show a certificate: required, optional (for those with a bearer token), or none.
    #[arg(
        id = "tls-client-auth",
        long = "tls-client-auth",
        value_name = "WHAT",
        env = "TENDERD_TLS_CLIENT_AUTH"
    )]
    pub(super) client_auth: Option<ClientAuth>,
}
overlay!(TlsSettings { cert, key, client_ca, client_auth } {});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Arena: the shared memory that holds the chunks")]
#[serde(deny_unknown_fields, default)]
pub(super) struct ArenaSettings {
    /// Bytes for chunks. All of it is reserved at the start; a filesystem or memory limit that is too small is an
    /// error then, not later.
    #[arg(id = "arena-size", long = "arena-size", value_name = "SIZE", env = "TENDERD_ARENA_SIZE")]
    pub(super) size: Option<ByteSize>,
    /// File of the arena, on a memory filesystem.
    #[arg(id = "arena-path", long = "arena-path", value_name = "FILE", env = "TENDERD_ARENA_PATH")]
    pub(super) path: Option<PathBuf>,
    /// Touch every page in the background after the start; ready once done. A first touch is many times slower than
    /// a later one.
    #[arg(
        id = "arena-prefault",
        long = "arena-prefault",
        value_name = "true|false",
        env = "TENDERD_ARENA_PREFAULT"
    )]
    pub(super) prefault: Option<bool>,
    /// Leave the file when the daemon ends, so that the next one serves at once what it holds. A daemon that is killed
    /// leaves it in any case.
    #[arg(id = "arena-keep", long = "arena-keep", value_name = "true|false", env = "TENDERD_ARENA_KEEP")]
    pub(super) keep: Option<bool>,
    /// Stored bytes that are read again each second and compared with their digests; 0 for none. What has changed is
    /// taken out, counted and logged.
    #[arg(
        id = "arena-scrub-rate",
        long = "arena-scrub-rate",
        value_name = "SIZE",
        env = "TENDERD_ARENA_SCRUB_RATE"
    )]
    pub(super) scrub_rate: Option<ByteSize>,
    /// Begin with nothing, whatever the arena's file holds: also if a newer tenderd or somebody else made it.
    #[arg(
        id = "discard-arena",
        long = "discard-arena",
        value_name = "true|false",
        env = "TENDERD_DISCARD_ARENA",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub(super) discard: Option<bool>,
}
overlay!(ArenaSettings { size, path, prefault, keep, scrub_rate, discard } {});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Leases: what a reader was promised is kept until they end")]
#[serde(deny_unknown_fields, default)]
pub(super) struct LeaseSettings {
    /// Time of a lease whose reader asked for none.
    #[arg(id = "lease-default", long = "lease-default", value_name = "TIME", env = "TENDERD_LEASE_DEFAULT")]
    pub(super) default: Option<Span>,
    /// Longer wishes are cut to this.
    #[arg(id = "lease-max", long = "lease-max", value_name = "TIME", env = "TENDERD_LEASE_MAX")]
    pub(super) max: Option<Span>,
}
overlay!(LeaseSettings { default, max } {});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Limits: beyond them calls are refused, and others are not disturbed")]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitSettings {
    /// From a chunk's first reservation until it must be complete.
    #[arg(long, value_name = "TIME", env = "TENDERD_RESERVATION_TIME")]
    pub(super) reservation_time: Option<Span>,
    /// Bytes of unfinished chunks.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_INFLIGHT")]
    pub(super) max_inflight: Option<ByteSize>,
    /// The same for one session.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_SESSION_INFLIGHT")]
    pub(super) max_session_inflight: Option<ByteSize>,
    /// Open sessions.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_SESSIONS")]
    pub(super) max_sessions: Option<usize>,
    /// Live leases of one session.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_LEASES_PER_SESSION")]
    pub(super) max_leases_per_session: Option<usize>,
    /// One part (one rank's bytes) of a chunk.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_PART")]
    pub(super) max_part: Option<ByteSize>,
    /// Staging region of one session.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_STAGING")]
    pub(super) max_staging: Option<ByteSize>,
    /// Staging regions of all sessions. They are memory beside the arena.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_TOTAL_STAGING")]
    pub(super) max_total_staging: Option<ByteSize>,
    /// Chunks in one lookup, reserve or commit.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_BATCH_CHUNKS")]
    pub(super) max_batch_chunks: Option<usize>,
    /// Namespaces that are known at one time.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_NAMESPACES")]
    pub(super) max_namespaces: Option<usize>,
    /// Payload of one frame, both ways.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_FRAME")]
    pub(super) max_frame: Option<ByteSize>,
    /// Calls under way on one connection; open sessions do not count.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_CALLS_PER_CONNECTION")]
    pub(super) max_calls_per_connection: Option<usize>,
    /// Connections over the network, and the same number over Unix sockets; at most a quarter of the open files each.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_CONNECTIONS")]
    pub(super) max_connections: Option<usize>,
    /// Connections of one host, of one certificate, or of one local user other than the daemon's own and root.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_CONNECTIONS_PER_PEER")]
    pub(super) max_connections_per_peer: Option<usize>,
}
overlay!(LimitSettings {
    reservation_time, max_inflight, max_session_inflight, max_sessions, max_leases_per_session, max_part, max_staging,
    max_total_staging, max_batch_chunks, max_namespaces, max_frame, max_calls_per_connection, max_connections, max_connections_per_peer
} {});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Tiers: where chunks are kept and found beyond the arena")]
#[serde(deny_unknown_fields, default)]
pub(super) struct TierSettings {
    /// How long a lookup may take to ask the tiers for what the arena does not hold.
    #[arg(
        id = "tier-lookup-time",
        long = "tier-lookup-time",
        value_name = "TIME",
        env = "TENDERD_TIER_LOOKUP_TIME"
    )]
    pub(super) lookup_time: Option<Span>,
    /// A chunk that takes longer to come is given up.
    #[arg(
        id = "tier-fetch-time",
        long = "tier-fetch-time",
        value_name = "TIME",
        env = "TENDERD_TIER_FETCH_TIME"
    )]
    pub(super) fetch_time: Option<Span>,
    /// Chunks that one tier brings at one time.
    #[arg(id = "tier-fetches", long = "tier-fetches", value_name = "N", env = "TENDERD_TIER_FETCHES")]
    pub(super) fetches: Option<usize>,
    /// Bytes of all chunks that are on their way; more are not begun.
    #[arg(
        id = "tier-fetch-bytes",
        long = "tier-fetch-bytes",
        value_name = "SIZE",
        env = "TENDERD_TIER_FETCH_BYTES"
    )]
    pub(super) fetch_bytes: Option<ByteSize>,
    /// Bytes that each of disk and shared tier is given to keep in a second; 0 for no bound.
    #[arg(
        id = "tier-write-rate",
        long = "tier-write-rate",
        value_name = "SIZE",
        env = "TENDERD_TIER_WRITE_RATE"
    )]
    pub(super) write_rate: Option<ByteSize>,
    /// Requests that must have found a chunk before the shared tier is given it; 0: it is given everything at once.
    #[arg(
        id = "shared-min-hits",
        long = "shared-min-hits",
        value_name = "N",
        env = "TENDERD_SHARED_MIN_HITS"
    )]
    pub(super) shared_min_hits: Option<u32>,
}
overlay!(TierSettings { lookup_time, fetch_time, fetches, fetch_bytes, write_rate, shared_min_hits } {});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Disk: files of this host that keep chunks which leave the arena")]
#[serde(deny_unknown_fields, default)]
pub(super) struct DiskSettings {
    /// Folder for the files, of its own and there already; nothing is kept on disk without one.
    #[arg(id = "disk-path", long = "disk-path", value_name = "DIR", env = "TENDERD_DISK_PATH")]
    pub(super) path: Option<PathBuf>,
    /// Bytes that the folder may take. All of it is reserved at the start.
    #[arg(id = "disk-size", long = "disk-size", value_name = "SIZE", env = "TENDERD_DISK_SIZE")]
    pub(super) size: Option<ByteSize>,
    /// Bytes of one file. What is oldest is given up a file at a time; a chunk must fit into one.
    #[arg(
        id = "disk-segment-size",
        long = "disk-segment-size",
        value_name = "SIZE",
        env = "TENDERD_DISK_SEGMENT_SIZE"
    )]
    pub(super) segment_size: Option<ByteSize>,
    /// Bytes that are written each second at most; chunks beyond that are not kept on disk.
    #[arg(
        id = "disk-write-rate",
        long = "disk-write-rate",
        value_name = "SIZE",
        env = "TENDERD_DISK_WRITE_RATE"
    )]
    pub(super) write_rate: Option<ByteSize>,
    /// Chunks that are read at one time.
    #[arg(id = "disk-reads", long = "disk-reads", value_name = "N", env = "TENDERD_DISK_READS")]
    pub(super) reads: Option<usize>,
    /// Begin with nothing, whatever the folder holds: also if another version of tenderd wrote it.
    #[arg(
        id = "discard-disk",
        long = "discard-disk",
        value_name = "true|false",
        env = "TENDERD_DISCARD_DISK",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub(super) discard: Option<bool>,
}
overlay!(DiskSettings { path, size, segment_size, write_rate, reads, discard } {});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Shared store: chunks that outlive all daemons")]
#[serde(deny_unknown_fields, default)]
pub(super) struct SharedSettings {
    /// Where it is: fs:///FOLDER, s3://BUCKET/PREFIX?endpoint=URL&region=NAME, or redis://HOST:PORT/DB?prefix=NAME&ttl=TIME.
    /// No secrets here.
    // Read as plain text: an error of the parsers would repeat it, and somebody may have put a password in.
    #[arg(id = "shared-uri", long = "shared-uri", value_name = "URI", env = "TENDERD_SHARED_URI")]
    pub(super) uri: Option<String>,
    /// TOML file with access_key_id and secret_access_key (and session_token), or username and password. Without it, S3
    /// looks where AWS's own tools do (AWS_ACCESS_KEY_ID and so on) and Redis takes REDISCLI_AUTH.
    #[arg(
        id = "shared-credentials",
        long = "shared-credentials",
        value_name = "FILE",
        env = "TENDERD_SHARED_CREDENTIALS"
    )]
    pub(super) credentials: Option<PathBuf>,
    /// Requests under way at once.
    #[arg(
        id = "shared-max-requests",
        long = "shared-max-requests",
        value_name = "N",
        env = "TENDERD_SHARED_MAX_REQUESTS"
    )]
    pub(super) max_requests: Option<usize>,
    /// Chunks being written at once; one more is not kept.
    #[arg(
        id = "shared-max-uploads",
        long = "shared-max-uploads",
        value_name = "N",
        env = "TENDERD_SHARED_MAX_UPLOADS"
    )]
    pub(super) max_uploads: Option<usize>,
}
overlay!(SharedSettings { uri, credentials, max_requests, max_uploads } {});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Directory: which daemon holds what, in a store of the Redis protocol")]
#[serde(deny_unknown_fields, default)]
pub(super) struct DirectorySettings {
    /// Where it is: redis://HOST:PORT, rediss://HOST:PORT (TLS), redis+sentinel://HOST:PORT,HOST:PORT/SERVICE or
    /// redis+cluster://HOST:PORT,HOST:PORT, with USER:PASSWORD@ in front of the hosts if need be. Give it as a variable or
    /// in the file where others can see this host's command lines.
    #[arg(id = "directory-uri", long = "directory", value_name = "URI", env = "TENDERD_DIRECTORY")]
    pub(super) uri: Option<DirectoryUri>,
    /// In front of all keys. Daemons with the same prefix share chunks.
    #[arg(
        id = "directory-prefix",
        long = "directory-prefix",
        value_name = "NAME",
        env = "TENDERD_DIRECTORY_PREFIX"
    )]
    pub(super) prefix: Option<String>,
    /// How long what a daemon says in it is good unless it is said again.
    #[arg(id = "directory-ttl", long = "directory-ttl", value_name = "TIME", env = "TENDERD_DIRECTORY_TTL")]
    pub(super) ttl: Option<Span>,
    /// How long an answer may take.
    #[arg(
        id = "directory-timeout",
        long = "directory-timeout",
        value_name = "TIME",
        env = "TENDERD_DIRECTORY_TIMEOUT"
    )]
    pub(super) timeout: Option<Span>,
    /// Chunks that it is told of again each second at most. All of them should be within a third of --directory-ttl.
    #[arg(
        id = "directory-publish-rate",
        long = "directory-publish-rate",
        value_name = "N",
        env = "TENDERD_DIRECTORY_PUBLISH_RATE"
    )]
    pub(super) publish_rate: Option<usize>,
}
overlay!(DirectorySettings { uri, prefix, ttl, timeout, publish_rate } {});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Peers: other daemons, found through the directory")]
#[serde(deny_unknown_fields, default)]
pub(super) struct PeerSettings {
    /// Where other daemons reach this one: tcp://HOST:PORT.
    #[arg(long, value_name = "ADDRESS", env = "TENDERD_ADVERTISE")]
    pub(super) advertise: Option<Listen>,
}
overlay!(PeerSettings { advertise } {});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Log (to standard error)")]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogSettings {
    /// Text for people or one JSON object a line.
    #[arg(id = "log-format", long = "log-format", value_name = "FORMAT", env = "TENDERD_LOG_FORMAT")]
    pub(super) format: Option<LogFormat>,
    /// error, warn, info, debug or trace; also by module, for example info,tender_daemon::rpc=debug.
    #[arg(id = "log-level", long = "log-level", value_name = "LEVEL", env = "TENDERD_LOG_LEVEL")]
    pub(super) level: Option<String>,
}
overlay!(LogSettings { format, level } {});

/// How log lines look.
#[derive(ValueEnum, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Words that do not make a value, and what would.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

fn unreadable(text: &str, advice: &str) -> Unreadable {
    Unreadable(format!("'{}': {advice}", text.escape_debug()))
}

/// Reads a type from a string of the file by its `FromStr`, so that flags and file agree.
macro_rules! from_string {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = Unreadable;
            fn try_from(text: String) -> Result<Self, Unreadable> {
                text.parse()
            }
        }
    };
}

/// An address to listen on, as configured.
#[derive(Deserialize, Clone, PartialEq, Eq, Hash, Debug)]
#[serde(try_from = "String")]
pub enum Listen {
    /// A Unix socket, and beside it `PATH.fd` for descriptors.
    Unix(PathBuf),
    /// A TCP port, without encryption.
    Tcp(HostPort),
    /// A TCP port that speaks TLS.
    Tls(HostPort),
}
from_string!(Listen);

impl FromStr for Listen {
    type Err = Unreadable;
    fn from_str(text: &str) -> Result<Self, Unreadable> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(unreadable(text, "name the socket's path: unix:/run/tender/tenderd.sock")),
                path => Ok(Self::Unix(path.into())),
            };
        }
        if let Some(rest) = text.strip_prefix("tls:") {
            return Ok(Self::Tls(rest.strip_prefix("//").unwrap_or(rest).parse()?));
        }
        match text.strip_prefix("tcp:") {
            Some(rest) => Ok(Self::Tcp(rest.strip_prefix("//").unwrap_or(rest).parse()?)),
            None => Err(unreadable(text, "write unix:PATH, tls://HOST:PORT or tcp://HOST:PORT")),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(at) => write!(f, "tcp://{at}"),
            Self::Tls(at) => write!(f, "tls://{at}"),
        }
    }
}

/// A name or address, and a port; an IPv6 address stands in brackets.
#[derive(Deserialize, Clone, PartialEq, Eq, Hash, Debug)]
#[serde(try_from = "String")]
pub struct HostPort(String);
from_string!(HostPort);

impl HostPort {
    /// As the system's resolver takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// Whether the host is one, and not every address of this host.
    pub(crate) fn is_one_host(&self) -> bool {
        let host = self.0.rsplit_once(':').map_or("", |(host, _)| host);
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        !bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified()) && bare != "*"
    }
    /// 0 where the system chooses.
    pub(crate) fn port(&self) -> u16 {
        self.0.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0)
    }
}

impl FromStr for HostPort {
    type Err = Unreadable;
    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let advice = "write HOST:PORT, for example 127.0.0.1:7070 or [::1]:7070";
        let (host, port) = text.rsplit_once(':').ok_or_else(|| unreadable(text, advice))?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let plain = !host.is_empty() && !host.contains([':', '/', '[', ']', ' ']);
        match (bare.is_some() || plain, port.parse::<u16>()) {
            (true, Ok(_)) => Ok(Self(text.to_owned())),
            _ => Err(unreadable(text, advice)),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A time as people write it.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(try_from = "String")]
pub(super) struct Span(pub(super) Duration);
from_string!(Span);

impl FromStr for Span {
    type Err = Unreadable;
    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let parsed = humantime::parse_duration(text);
        parsed
            .map(Self)
            .map_err(|_| unreadable(text, "write a time with its unit, for example 500ms, 30s or 2m"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// Permission bits, octal.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(try_from = "String")]
pub(super) struct FileMode(pub(super) u32);
from_string!(FileMode);

impl FromStr for FileMode {
    type Err = Unreadable;
    fn from_str(text: &str) -> Result<Self, Unreadable> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err(unreadable(text, "write a file mode in octal digits, for example 0600 or 0660")),
        }
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}
