//! gRPC: decode -> engine -> encode. The generated types stop here.
//!
//! `server` has the limits, `service` the calls with one answer, `session` the stream that a session lives by, `put`
//! and `get` the streams of bytes, `admin` what operators ask, `convert` the messages' way to the checked types.

mod admin;
mod convert;
mod get;
mod put;
pub(crate) mod server;
mod service;
mod session;

use std::sync::Arc;
use std::time::Instant;

use tender_proto::BootId;
use tokio::sync::{Semaphore, watch};

use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::shutdown::Phase;

/// What every call needs.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) boot: BootId,
    pub(crate) started: Instant,
    /// Whether local clients can get descriptors, that is, whether there is a Unix socket.
    pub(crate) shm_offered: bool,
    /// Commits that copy and hash at one time; more would only take the cores from lookups.
    pub(crate) copies: Semaphore,
}
