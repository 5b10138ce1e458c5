//! `tenderd`: keeps KV cache chunks in shared memory and serves them to engines on this host and others.
//!
//! Modules in the order of the data path, callers first:
//!
//! ```text
//! engine -> { session, namespace } -> { lease, reservation, admission } -> index -> arena
//!                 \-> staging: where local clients leave bytes for the arena
//! ```
//!
//! Leaves that anyone may use: `clock`, `counters`, `ids`, `recent`.

pub mod arena;
pub mod clock;
pub mod engine;

mod admission;
mod counters;
mod ids;
mod index;
mod lease;
mod namespace;
mod recent;
mod reservation;
mod session;
mod staging;
