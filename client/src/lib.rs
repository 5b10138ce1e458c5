//! Puts an engine on Tender.
//!
//! In the order of the data path:
//!
//! ```text
//! scheduler process                     worker process
//!   SchedulerSide (scheduler)             WorkerSide (worker)
//!     hash > plan > StepPlan  --bytes-->    save: copy (gather) > transport > daemon
//!     lookup, lease                         load: lookup, lease > transport > copy (scatter) > release
//! ```
//!
//! * [`hash`]: what names a chunk. [`layout`]: where its bytes lie in the engine, proved before use.
//! * [`plan`]: what is stored and loaded when, pure. [`copy`]: engine memory to staging and back.
//! * [`SchedulerSide`], [`WorkerSide`]: the two halves that an engine calls; `save` and `load` are the second's.
//! * [`Client`]: one daemon, one session kept up (`session`, `retry`, `breaker`); `transport` moves the bytes.
//! * [`events`]: what a daemon stores and loses, for routers.
//! * [`admin`], [`cli`]: an operator's questions, and the tool `tender` that asks them.
//!
//! Nothing of this raises into an engine step or waits without a limit: a lost daemon is a cache that misses.

pub mod admin;
mod breaker;
pub mod cli;
mod client;
mod config;
pub mod copy;
mod counters;
mod credentials;
mod error;
pub mod events;
#[cfg(test)]
mod fake;
mod fuse;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod hash;
pub mod layout;
mod lease;
mod load;
#[cfg(all(test, feature = "loom"))]
mod models;
pub mod plan;
mod queue;
mod retry;
mod runtime;
mod save;
mod scheduler;
mod session;
mod sync;
mod transport;
mod worker;

pub use client::{Client, Purpose};
pub use config::{
    Address, BreakerConfig, ClientConfig, DEFAULT_ADDRESS, DeviceConfig, DigestBy, TransportChoice,
};
pub use counters::Counters;
pub use credentials::{Credentials, TlsConfig};
pub use error::ClientError;
pub use hash::Uncacheable;
pub use load::LoadDone;
pub use scheduler::{Changes, Match, SchedulerSide};
pub use tender_trace::TraceConfig;
pub use worker::WorkerSide;
