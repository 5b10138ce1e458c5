//! What the shared tier counts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::object::Damage;

/// Counters of one shared tier.
#[derive(Debug, Default)]
pub(crate) struct SharedStats {
    /// Chunks asked for and found.
    pub(super) found: AtomicU64,
    /// Chunks asked for and not found, for whatever reason.
    pub(super) not_found: AtomicU64,
    /// Questions and transfers that were not tried because the store was left alone.
    pub(super) skipped: AtomicU64,
    /// Requests that the store did not answer, or with an error.
    pub(super) errors: AtomicU64,
    /// Calls that were not over by their deadline.
    pub(super) late: AtomicU64,
    pub(super) fetched_chunks: AtomicU64,
    pub(super) fetched_bytes: AtomicU64,
    /// Objects that were gone when they were fetched.
    pub(super) gone: AtomicU64,
    pub(super) kept_chunks: AtomicU64,
    pub(super) kept_bytes: AtomicU64,
    /// Chunks that somebody had kept already.
    pub(super) kept_before: AtomicU64,
    pub(super) not_kept: AtomicU64,
    damaged: [AtomicU64; Damage::ALL.len()],
}

/// The counters at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct SharedCounts {
    pub(crate) found: u64,
    pub(crate) not_found: u64,
    pub(crate) skipped: u64,
    pub(crate) errors: u64,
    pub(crate) late: u64,
    pub(crate) fetched_chunks: u64,
    pub(crate) fetched_bytes: u64,
    pub(crate) gone: u64,
    pub(crate) kept_chunks: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) kept_before: u64,
    pub(crate) not_kept: u64,
    /// By kind, each with its name.
    pub(crate) damaged: Vec<(&'static str, u64)>,
}

pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl SharedStats {
    pub(super) fn damaged(&self, damage: Damage) {
        add(&self.damaged[damage as usize], 1);
    }

    /// All of them, as they are.
    pub(crate) fn counts(&self) -> SharedCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SharedCounts {
            found: read(&self.found),
            not_found: read(&self.not_found),
            skipped: read(&self.skipped),
            errors: read(&self.errors),
            late: read(&self.late),
            fetched_chunks: read(&self.fetched_chunks),
            fetched_bytes: read(&self.fetched_bytes),
            gone: read(&self.gone),
            kept_chunks: read(&self.kept_chunks),
            kept_bytes: read(&self.kept_bytes),
            kept_before: read(&self.kept_before),
            not_kept: read(&self.not_kept),
            damaged: Damage::ALL
                .iter()
                .map(|&kind| (kind.name(), read(&self.damaged[kind as usize])))
                .collect(),
        }
    }
}
