//! What is refused so that others are not disturbed, and how long promises are kept.

use bytesize::ByteSize;
use clap::Args;
use serde::Deserialize;

use super::shown::{Change, shown};
use crate::config::values::Span;

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Leases: what a reader was promised is kept until they end")]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct LeaseSettings {
    /// Time of a lease whose reader asked for none.
    #[arg(id = "lease-default", long = "lease-default", value_name = "TIME", env = "TENDERD_LEASE_DEFAULT")]
    pub(in crate::config) default: Option<Span>,
    /// Longer wishes are cut to this.
    #[arg(id = "lease-max", long = "lease-max", value_name = "TIME", env = "TENDERD_LEASE_MAX")]
    pub(in crate::config) max: Option<Span>,
}
overlay!(LeaseSettings { default, max } {});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Limits: beyond them calls are refused, and others are not disturbed")]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct LimitSettings {
    /// From a chunk's first reservation until it must be complete.
    #[arg(long, value_name = "TIME", env = "TENDERD_RESERVATION_TIME")]
    pub(in crate::config) reservation_time: Option<Span>,
    /// Bytes of unfinished chunks.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_INFLIGHT")]
    pub(in crate::config) max_inflight: Option<ByteSize>,
    /// The same for one session.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_SESSION_INFLIGHT")]
    pub(in crate::config) max_session_inflight: Option<ByteSize>,
    /// Open sessions.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_SESSIONS")]
    pub(in crate::config) max_sessions: Option<usize>,
    /// Live leases of one session.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_LEASES_PER_SESSION")]
    pub(in crate::config) max_leases_per_session: Option<usize>,
    /// One part (one rank's bytes) of a chunk.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_PART")]
    pub(in crate::config) max_part: Option<ByteSize>,
    /// Staging region of one session.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_STAGING")]
    pub(in crate::config) max_staging: Option<ByteSize>,
    /// Staging regions of all sessions. They are memory beside the arena.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_TOTAL_STAGING")]
    pub(in crate::config) max_total_staging: Option<ByteSize>,
    /// Chunks in one lookup, reserve or commit.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_BATCH_CHUNKS")]
    pub(in crate::config) max_batch_chunks: Option<usize>,
    /// Namespaces that are known at one time.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_NAMESPACES")]
    pub(in crate::config) max_namespaces: Option<usize>,
    /// Memory that remembers which chunks are not there any more and why, and what was asked for of late, so that `tender
    /// explain` can tell; 0 for none.
    #[arg(long, value_name = "SIZE", env = "TENDERD_HISTORY")]
    pub(in crate::config) history: Option<ByteSize>,
    /// Payload of one frame, both ways.
    #[arg(long, value_name = "SIZE", env = "TENDERD_MAX_FRAME")]
    pub(in crate::config) max_frame: Option<ByteSize>,
    /// Calls under way on one connection; open sessions do not count.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_CALLS_PER_CONNECTION")]
    pub(in crate::config) max_calls_per_connection: Option<usize>,
    /// Connections over the network, and the same number over Unix sockets; at most a quarter of the open files each.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_CONNECTIONS")]
    pub(in crate::config) max_connections: Option<usize>,
    /// Connections of one host, of one certificate, or of one local user other than the daemon's own and root.
    #[arg(long, value_name = "N", env = "TENDERD_MAX_CONNECTIONS_PER_PEER")]
    pub(in crate::config) max_connections_per_peer: Option<usize>,
}
overlay!(LimitSettings {
    reservation_time, max_inflight, max_session_inflight, max_sessions, max_leases_per_session, max_part, max_staging,
    max_total_staging, max_batch_chunks, max_namespaces, history, max_frame, max_calls_per_connection,
    max_connections, max_connections_per_peer
} {});
