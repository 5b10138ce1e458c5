//! What is fed with hostile bytes: each target is a plain function of bytes that panics when a rule is broken.
//!
//! `make fuzz` runs them under libFuzzer (crate `tests/fuzz`), which looks for bytes that lead somewhere new;
//! `tests/fuzz_corpus.rs` replays what it has kept, and every input that ever broke something, in each test run.
//!
//! * [`arena`]: an arena's file, edited, is opened by an engine. [`calls`]: every request, in sequences.
//! * [`answer`]: the answer of a `Get` at the client. [`packets`]: the descriptor socket.
//! * [`descriptor`], [`layout`], [`keys`], [`plan`], [`config`]: what is read and checked once.
//!
//! Bytes become drawn values where structure helps ([`arbitrary`]): then most inputs get past the first check.

pub mod answer;
pub mod arena;
pub mod calls;
pub mod config;
pub mod descriptor;
pub mod keys;
pub mod layout;
pub mod packets;
pub mod plan;
mod small;

use std::sync::LazyLock;

use tokio::runtime::{Builder, Runtime};

/// Panics when a rule is broken.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also the name of its folder under `tests/fuzz/corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("answer", answer::run),
    ("arena", arena::run),
    ("calls", calls::run),
    ("config", config::run),
    ("descriptor", descriptor::run),
    ("keys", keys::run),
    ("layout", layout::run),
    ("packets", packets::run),
    ("plan", plan::run),
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, run)| *run)
}

/// Runs a call to its end. One runtime for all inputs: making one costs more than most of them.
fn wait<T>(call: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap_or_else(|error| panic!("no runtime: {error}"))
    });
    RUNTIME.block_on(call)
}
