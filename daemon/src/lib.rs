//! `tenderd`: keeps KV cache chunks in shared memory and serves them to engines on this host and others.
//!
//! Modules in the order of the data path, callers first:
//!
//! ```text
//! run -> app -> rpc, fds -> engine
//! engine -> { session, namespace } -> { lease, reservation, admission } -> index -> arena
//!                 \-> staging: where local clients leave bytes for the arena
//! rpc -> tier (disk, other daemons, a shared store) -> engine
//! ```
//!
//! Beside the path: `config`, `doors` (where it listens), `takeover` (one daemon after another without a gap), `shutdown`
//! (phases and signals), `bus_error` (the last words), `admin` (probes and metrics over HTTP).
//! `tls` (certificates), `access` (identities, policy, audit), `gate` (how many connections), `accept` (the loop of every
//! listening socket), `share` (what a tenant may take), `fair` (turns between tenants), `reload` (changed files),
//! `log` (lines on standard error).
//! For the fuzz targets and measurements of `tests/` alone: `fuzzing`.
//! Leaves that anyone may use: `task`, `metrics`, `clock`, `counters`, `ids`, `recent`, `sync` (locks), and `fault` (what
//! tests break).

pub mod app;
pub mod arena;
pub mod clock;
pub mod config;
pub mod engine;
pub mod fault;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod shutdown;

mod accept;
mod access;
mod admin;
mod admission;
mod bus_error;
mod counters;
mod doors;
mod fair;
mod fds;
mod gate;
mod ids;
mod index;
mod lease;
mod log;
mod metrics;
#[cfg(all(test, feature = "loom"))]
mod models;
mod namespace;
#[cfg(test)]
mod pages;
mod recent;
mod reload;
mod reservation;
mod rpc;
mod run;
mod seldom;
mod session;
mod share;
mod staging;
mod sync;
mod takeover;
mod task;
mod tier;
mod tls;

pub use admin::{LIVE_PATH, METRICS_PATH, READY_PATH};
pub use run::run;
