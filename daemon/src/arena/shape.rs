//! Where things lie in the arena's file: header, records, descriptors of namespaces, and then the chunks' bytes.

use super::alloc::{self, UNIT_BYTES};
use super::record::RECORD_BYTES;

/// Bytes of the header: a page.
const HEADER_BYTES: u64 = UNIT_BYTES;
/// Room for 256 descriptors of a page each, or fewer larger ones.
const DESCRIPTOR_BYTES: u64 = 256 * UNIT_BYTES;

/// Of one file. It follows from the pool's size alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Of the pool that chunks are stored in, whole pages.
    pub(super) pool_bytes: u64,
    /// One for every piece that the pools can have.
    pub(super) record_slots: u32,
}

impl Shape {
    pub(super) fn of(arena_bytes: u64) -> Self {
        let pool_bytes = arena_bytes - arena_bytes % UNIT_BYTES;
        let namespaces = u32::try_from(DESCRIPTOR_BYTES / UNIT_BYTES).unwrap_or(u32::MAX);
        Self { pool_bytes, record_slots: alloc::max_extents(pool_bytes) + namespaces }
    }
    /// Where the records start.
    pub(super) fn records(self) -> u64 {
        HEADER_BYTES
    }
    /// Where the descriptors start.
    pub(super) fn descriptors(self) -> u64 {
        let records = u64::from(self.record_slots) * RECORD_BYTES as u64;
        HEADER_BYTES + records.next_multiple_of(UNIT_BYTES)
    }
    /// Room for descriptors.
    pub(super) fn descriptor_bytes(self) -> u64 {
        DESCRIPTOR_BYTES
    }
    /// Where the pool starts.
    pub(super) fn pool(self) -> u64 {
        self.descriptors() + DESCRIPTOR_BYTES
    }
    /// The whole file.
    pub(super) fn file_bytes(self) -> u64 {
        self.pool() + self.pool_bytes
    }
}
