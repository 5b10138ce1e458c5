//! What a user chose, as numbers for this backend.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{DeviceConfig, DigestBy};

/// Copied in one go: long enough for the full rate of a link, short enough to share it.
const PIECE_BYTES: u64 = 4 << 20;
/// Registered with the driver in one go.
const PIN_BYTES: u64 = 64 << 20;
/// Room for the tables of launches on their way.
const WORD_BYTES: u64 = 2 << 20;

/// What happens to a store that finds the ring full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WhenFull {
    Skip,
    /// The engine's step waits for room, all its stores together no longer than this.
    Wait(Duration),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Settings {
    pub(super) ring_bytes: u64,
    pub(super) load_ring_bytes: u64,
    pub(super) bounce_bytes: u64,
    pub(super) piece_bytes: u64,
    pub(super) pin_bytes: u64,
    pub(super) word_bytes: u64,
    pub(super) when_full: WhenFull,
    pub(super) store_bytes_per_second: u64,
    pub(super) load_bytes_per_second: u64,
    pub(super) side_percent: u32,
    /// Copies use registered memory in place.
    pub(super) register: bool,
    /// No threads: whoever tests decides when something is registered.
    pub(super) step_by_step: bool,
    pub(super) digest: DigestBy,
    pub(super) kernel_cache: Option<PathBuf>,
}

impl Settings {
    pub(super) fn new(config: &DeviceConfig) -> Self {
        Self {
            ring_bytes: config.ring_bytes.as_u64(),
            // Two pieces at least, or copies could not overlap.
            load_ring_bytes: config.load_ring_bytes.as_u64().max(3 * PIECE_BYTES),
            bounce_bytes: config.bounce_bytes.as_u64().max(2 * PIECE_BYTES),
            piece_bytes: PIECE_BYTES,
            pin_bytes: PIN_BYTES,
            word_bytes: WORD_BYTES,
            when_full: match config.ring_wait {
                Duration::ZERO => WhenFull::Skip,
                budget => WhenFull::Wait(budget),
            },
            store_bytes_per_second: config.store_bytes_per_second.as_u64(),
            load_bytes_per_second: config.load_bytes_per_second.as_u64(),
            side_percent: config.side_percent,
            register: config.register_memory,
            step_by_step: false,
            digest: config.digest,
            kernel_cache: config.kernel_cache.clone(),
        }
    }
}
