//! `tenderd`: keeps KV cache chunks in shared memory and serves them to engines on this host and others.
//!
//! Modules in the order of the data path, callers first:
//!
//! ```text
//! engine -> { namespace, lease, admission, index } -> arena
//!           staging: where local clients leave bytes for the arena
//! clock: time, for everyone who has deadlines
//! ```

pub mod arena;
pub mod clock;
pub mod engine;
