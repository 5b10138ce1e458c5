//! Settings as they are typed or written: every one of them may be missing. The same structs are read from
//! the command line, from `TENDERD_*` variables and from the file, so that each setting is described once.

// First: the tables' files use it.
/// Takes each field from `self`, else from `lower`.
macro_rules! overlay {
    ($name:ident { $($field:ident),* } { $($table:ident),* }) => {
        impl $name {
            pub(in crate::config) fn over(self, lower: Self) -> Self {
                Self {
                    $($field: self.$field.or(lower.$field),)*
                    $($table: self.$table.over(lower.$table),)*
                }
            }
            /// Takes from `newer` what is wanted, and notes every difference. Keys are those of the file; `table` is this
            /// one's name and a dot.
            pub(in crate::config) fn adopt(
                &mut self,
                newer: &Self,
                table: &str,
                wanted: &dyn Fn(&str) -> bool,
                changes: &mut Vec<Change>,
            ) {
                $(if self.$field != newer.$field {
                    let key = format!("{table}{}", stringify!($field));
                    let (used, old, new) = (wanted(&key), shown(&self.$field), shown(&newer.$field));
                    if used {
                        self.$field = newer.$field.clone();
                    }
                    changes.push(Change { key, old, new, used });
                })*
                $(self.$table.adopt(&newer.$table, concat!(stringify!($table), "."), wanted, changes);)*
            }
        }
    };
}
pub(super) mod arena;
pub(super) mod directory;
pub(super) mod disk;
pub(super) mod limits;
pub(super) mod shared;
pub(super) mod shown;
pub(super) mod tiers;
pub(super) mod tls;
pub(super) mod trace;

use std::path::PathBuf;

use clap::{Args, Parser};
use serde::Deserialize;

use super::values::{FileMode, HostPort, Listen, LogFormat, Span};
use arena::ArenaSettings;
use directory::{DirectorySettings, PeerSettings};
use disk::DiskSettings;
use limits::{LeaseSettings, LimitSettings};
use shared::SharedSettings;
use shown::{Change, shown};
use tiers::TierSettings;
use tls::TlsSettings;
use trace::TraceSettings;

/// Keeps KV cache chunks of inference engines in shared memory and serves them to engines on this host (through
/// its Unix socket and shared memory) and on others (over TCP).
///
/// Every setting can be given as a flag, as an environment variable, or in the file named by --config; a flag wins
/// over a variable, and a variable over the file. In the file, `--arena-size` is `size` in the table `[arena]`, and
/// likewise for [tls], [lease], [limits], [tiers], [disk], [directory], [peers], [shared], [log] and [trace].
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
    /// Answer HTTP GET /live, /ready and /metrics here, for example 127.0.0.1:9470. It has its own thread, so bulk
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
    #[command(flatten)]
    pub(super) trace: TraceSettings,
}
overlay!(Settings {
    name, listen, allow_plaintext_tcp, policy, socket_mode, admin, drain_grace, exit_when_unused, take_over,
    worker_threads
} {
    tls, arena, lease, limits, tiers, disk, directory, peers, shared, log, trace
});

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
