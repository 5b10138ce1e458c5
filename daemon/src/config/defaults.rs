//! Every default, and why.

use std::time::Duration;

use bytesize::ByteSize;
use tender_proto::limits::{FRAME_PAYLOAD_BYTES, MAX_BATCH_CHUNKS};
use tender_trace::Ratio;

use super::check::default_arena_path;
use super::flags::shown::Shown;
use super::values::{FileMode, LogFormat, Span};
use crate::engine::Eviction;
use crate::tls::ClientAuth;

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
/// Some 150,000 chunks, and requests that asked for as many.
pub(super) const HISTORY: ByteSize = ByteSize::mib(8);
pub(super) const MAX_CALLS_PER_CONNECTION: usize = 1024;
/// A process has one or two for each session, and some for what operators ask.
pub(super) const MAX_CONNECTIONS: usize = 8192;
/// All engines of a node, also behind one address; four hosts do not take everything from the others.
pub(super) const MAX_CONNECTIONS_PER_PEER: usize = 2048;
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

/// It finds more at nearly all sizes of both traces in docs/benchmarks.md.
pub(super) const EVICTION: Eviction = Eviction::TwoQueue;

/// In-flight bytes are arena that holds nothing of use yet: half of it at most.
pub(super) const INFLIGHT_SHARE: u64 = 2;
/// One session may not take the others' turn.
pub(super) const SESSION_INFLIGHT_SHARE: u64 = 2;

/// A setting's default in words; `None` for what has none.
pub(super) fn text(id: &str) -> Option<String> {
    let size = |size: ByteSize| size.to_string();
    Some(match id {
        "name" => NAME.into(),
        "listen" => LISTEN.into(),
        "socket_mode" => SOCKET_MODE.to_string(),
        "admin" => "not answered".into(),
        "drain_grace" => DRAIN_GRACE.to_string(),
        "exit_when_unused" => "never".into(),
        "allow_plaintext_tcp" => ALLOW_PLAINTEXT_TCP.to_string(),
        "policy" => "none: all may read and write, and local callers do everything".into(),
        "tls-cert" | "tls-key" | "tls-client-ca" => "none".into(),
        "tls-client-auth" => format!("{:?}", CLIENT_AUTH).to_lowercase(),
        "take_over" => TAKE_OVER.to_string(),
        "worker_threads" => "two more than there are CPUs".into(),
        "arena-size" => size(ARENA_SIZE),
        "arena-path" => default_arena_path("NAME").display().to_string(),
        "arena-prefault" => ARENA_PREFAULT.to_string(),
        "arena-keep" => "true, but false with --exit-when-unused".into(),
        "arena-scrub-rate" => size(SCRUB_RATE),
        "eviction" => EVICTION.shown(),
        "discard-arena" => ARENA_DISCARD.to_string(),
        "directory-uri" => "none".into(),
        "directory-prefix" => DIRECTORY_PREFIX.into(),
        "directory-ttl" => DIRECTORY_TTL.to_string(),
        "directory-timeout" => DIRECTORY_TIMEOUT.to_string(),
        "directory-publish-rate" => DIRECTORY_PUBLISH_RATE.to_string(),
        "advertise" => "the first --listen tls://HOST:PORT or tcp://HOST:PORT of one host".into(),
        "lease-default" => LEASE_DEFAULT.to_string(),
        "lease-max" => LEASE_MAX.to_string(),
        "reservation_time" => RESERVATION_TIME.to_string(),
        "max_inflight" => format!("arena size / {}", INFLIGHT_SHARE),
        "max_session_inflight" => format!("--max-inflight / {}", SESSION_INFLIGHT_SHARE),
        "max_sessions" => MAX_SESSIONS.to_string(),
        "max_leases_per_session" => MAX_LEASES_PER_SESSION.to_string(),
        "max_part" => size(MAX_PART),
        "max_staging" => size(MAX_STAGING),
        "max_total_staging" => size(MAX_TOTAL_STAGING),
        "max_batch_chunks" => MAX_BATCH_CHUNKS.to_string(),
        "max_namespaces" => MAX_NAMESPACES.to_string(),
        "history" => size(HISTORY),
        "max_frame" => size(ByteSize(FRAME_PAYLOAD_BYTES as u64)),
        "max_calls_per_connection" => MAX_CALLS_PER_CONNECTION.to_string(),
        "max_connections" => MAX_CONNECTIONS.to_string(),
        "max_connections_per_peer" => MAX_CONNECTIONS_PER_PEER.to_string(),
        "tier-lookup-time" => TIER_LOOKUP_TIME.to_string(),
        "tier-fetch-time" => TIER_FETCH_TIME.to_string(),
        "tier-fetches" => TIER_FETCHES.to_string(),
        "tier-fetch-bytes" => size(TIER_FETCH_BYTES),
        "tier-write-rate" => size(TIER_WRITE_RATE),
        "shared-min-hits" => SHARED_MIN_HITS.to_string(),
        "disk-path" => "none".into(),
        "disk-size" => "none: it must be given with --disk-path".into(),
        "disk-segment-size" => size(DISK_SEGMENT_SIZE),
        "disk-write-rate" => size(DISK_WRITE_RATE),
        "disk-reads" => DISK_READS.to_string(),
        "discard-disk" => DISK_DISCARD.to_string(),
        "shared-uri" => "none".into(),
        "shared-credentials" => "the environment".into(),
        "shared-max-requests" => SHARED_MAX_REQUESTS.to_string(),
        "shared-max-uploads" => SHARED_MAX_UPLOADS.to_string(),
        "log-format" => format!("{:?}", LOG_FORMAT).to_lowercase(),
        "log-level" => LOG_LEVEL.into(),
        "trace-endpoint" => "none: no span is recorded".into(),
        "trace-ratio" => Ratio::default().to_string(),
        _ => return None,
    })
}
