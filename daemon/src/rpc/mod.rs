//! gRPC: decode -> engine -> encode. The generated types stop here.
//!
//! `front` brings connections, `entry` finds out who calls before a message is read, `trace` whose trace it is, `server` has the limits, `service` the calls with one answer (`lookup` the one that asks other tiers), `session` the
//! stream that a session lives by, `put` and `get` the streams of bytes, `frames` what the latter writes, `pace` how fast,
//! `events` the stream of changes, `peer` what other daemons ask, `admin` what operators ask (`explain`, `desk`, `verify` the longer answers), `caller` who asks, `convert` the messages'
//! way to the checked types, `status` the refusals' way out, `typed` that of the refusals that gRPC makes itself.

mod admin;
mod caller;
mod convert;
pub(crate) mod desk;
mod entry;
mod events;
mod explain;
mod frames;
mod front;
mod get;
mod lookup;
mod pace;
mod peer;
mod put;
pub(crate) mod server;
mod service;
mod session;
pub(crate) mod status;
mod trace;
mod typed;
mod verify;

use std::sync::Arc;
use std::time::Instant;

use tender_proto::BootId;
use tender_trace::Tracer;
use tokio::sync::{Semaphore, watch};

use crate::access::Access;
use crate::engine::Engine;
use crate::fair::Fair;
use crate::metrics::Metrics;
use crate::shutdown::Phase;
use crate::tier::Stack;
use crate::tier::peers::PeerTier;
use status::RefusalLog;

/// What every call needs.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    /// Tiers below the arena, if there are any.
    pub(crate) stack: Option<Arc<Stack>>,
    pub(crate) access: Arc<Access>,
    pub(crate) fair: Arc<Fair>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) boot: BootId,
    pub(crate) started: Instant,
    /// Payload of one frame, both ways.
    pub(crate) max_frame_bytes: usize,
    /// Calls under way on one connection.
    pub(crate) max_calls_per_connection: usize,
    pub(crate) refusals: RefusalLog,
    /// Commits that copy and hash at one time; more would only take the cores from lookups.
    pub(crate) copies: Arc<Semaphore>,
    /// Of one: whoever looks into what readers doubt.
    pub(crate) doubts: Arc<Semaphore>,
    /// Where calls are traced.
    pub(crate) trace: Tracer,
    /// For operators.
    pub(crate) desk: desk::Desk,
    /// What answers other daemons; `None` where no directory is configured.
    pub(crate) peers: Option<Arc<PeerTier>>,
}
