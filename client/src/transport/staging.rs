//! Room for parts between gathering and storing (rule 6).
//!
//! A region cut into slots by an offset allocator. Taking a slot never waits: full means the store is skipped.
//! A slot frees itself when dropped; [`Slot::abandon`] keeps it taken, for when the daemon may still read it.

use std::sync::Arc;

use offset_allocator::{Allocation, Allocator};
use parking_lot::Mutex;
use tender_proto::shm::Mapping;

use super::region;
use crate::counters::Skip;

/// Slots begin on page boundaries: neighbours share no cache line, and 32-bit units reach 16 TiB.
const UNIT_BYTES: u64 = 4096;

/// More slots than this are never in use at one time.
const MAX_SLOTS: u32 = 128 << 10;

/// The staging region of one session.
#[derive(Debug)]
pub(crate) struct Staging {
    region: Mapping,
    room: Mutex<Room>,
}

struct Room {
    allocator: Allocator,
    taken_bytes: u64,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("taken_bytes", &self.taken_bytes).finish_non_exhaustive()
    }
}

impl Staging {
    pub(crate) fn new(region: Mapping) -> Arc<Self> {
        let units = u32::try_from(region.len() as u64 / UNIT_BYTES).unwrap_or(u32::MAX);
        let allocator = Allocator::with_max_allocs(units, books(units));
        let room = Room { allocator, taken_bytes: 0 };
        Arc::new(Self { region, room: Mutex::new(room) })
    }

    pub(crate) fn region(&self) -> &Mapping {
        &self.region
    }

    /// Bytes in slots, rounded up to whole pages.
    #[cfg(test)]
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.room.lock().taken_bytes
    }

    /// Room for `bytes`, which is not 0.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Slot, Skip> {
        if bytes == 0 || bytes > self.region.len() as u64 {
            return Err(Skip::TooLarge);
        }
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).map_err(|_| Skip::TooLarge)?;
        let len = usize::try_from(bytes).map_err(|_| Skip::TooLarge)?;
        let mut room = self.room.lock();
        let allocation = room.allocator.allocate(units).ok_or(Skip::StagingFull)?;
        room.taken_bytes += u64::from(units) * UNIT_BYTES;
        Ok(Slot { staging: Arc::clone(self), allocation: Some(allocation), len, units })
    }
}

/// Entries of the allocator's books: one for each slot or gap, and two that it keeps to itself. They are made at once, 32
/// bytes each, so a region has no more of them than it has pages: sessions come and go, and blocks of megabytes for each
/// would spread the process over its heap.
fn books(units: u32) -> u32 {
    units.min(MAX_SLOTS) + 2
}

/// A range of a staging region that belongs to whoever holds this.
pub(crate) struct Slot {
    staging: Arc<Staging>,
    /// `None` once abandoned.
    allocation: Option<Allocation>,
    len: usize,
    units: u32,
}

impl Slot {
    pub(crate) fn offset_bytes(&self) -> u64 {
        self.allocation.map_or(0, |a| u64::from(a.offset) * UNIT_BYTES)
    }
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// The region that it is cut from.
    pub(crate) fn staging(&self) -> &Arc<Staging> {
        &self.staging
    }
    /// The bytes, to be filled.
    pub(crate) fn fill(&mut self) -> &mut [u8] {
        region::fillable(&self.staging.region, self.offset_bytes(), self.len).unwrap_or_default()
    }
    /// Never frees the range: it stays taken until the region itself goes with its session.
    pub(crate) fn abandon(mut self) {
        self.allocation = None;
    }
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        region::filled(&self.staging.region, self.offset_bytes(), self.len).unwrap_or_default()
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({}..+{})", self.offset_bytes(), self.len)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take() {
            let mut room = self.staging.room.lock();
            room.allocator.free(allocation);
            room.taken_bytes -= u64::from(self.units) * UNIT_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staging(pages: u64) -> Arc<Staging> {
        Staging::new(region::private(pages * UNIT_BYTES).unwrap())
    }

    #[test]
    fn a_full_region_says_so_and_has_room_again_after_a_drop() {
        let staging = staging(4);
        let held: Vec<_> = (0..4).map(|_| staging.take(UNIT_BYTES).unwrap()).collect();
        assert_eq!(staging.take(1).unwrap_err(), Skip::StagingFull);
        drop(held);
        assert_eq!(staging.taken_bytes(), 0);
        assert!(staging.take(4 * UNIT_BYTES).is_ok());
        assert_eq!(staging.take(5 * UNIT_BYTES).unwrap_err(), Skip::TooLarge);
        assert_eq!(staging.take(0).unwrap_err(), Skip::TooLarge);
    }

    #[test]
    fn the_books_of_a_region_grow_with_it_and_every_page_can_be_a_slot() {
        for pages in [1, 2, 3, 300] {
            let staging = staging(pages);
            let held: Vec<_> = (0..pages).map(|_| staging.take(1).unwrap()).collect();
            assert_eq!(staging.take(1).unwrap_err(), Skip::StagingFull);
            // Every second one is free, so no two gaps become one.
            let mut rest: Vec<_> = held.into_iter().step_by(2).collect();
            rest.extend((0..pages / 2).map(|_| staging.take(UNIT_BYTES).unwrap()));
            assert_eq!(staging.taken_bytes(), pages * UNIT_BYTES);
        }
        assert_eq!((books(2048), books(u32::MAX)), (2050, MAX_SLOTS + 2));
    }

    #[test]
    fn an_abandoned_slot_is_never_given_out_again() {
        let staging = staging(2);
        staging.take(UNIT_BYTES).unwrap().abandon();
        let _other = staging.take(UNIT_BYTES).unwrap();
        assert_eq!(staging.take(1).unwrap_err(), Skip::StagingFull);
    }

    proptest::proptest! {
        #[test]
        fn slots_never_overlap(sizes in proptest::collection::vec(1u64..20_000, 1..60), keep: u64) {
            let staging = staging(64);
            let mut held: Vec<(Slot, u8)> = Vec::new();
            for (i, bytes) in sizes.into_iter().enumerate() {
                let mark = u8::try_from(i % 251).unwrap();
                if let Ok(mut slot) = staging.take(bytes) {
                    slot.fill().fill(mark);
                    held.push((slot, mark));
                }
                if keep >> (i % 64) & 1 == 0 && !held.is_empty() {
                    held.swap_remove(i % held.len());
                }
                for (slot, mark) in &held {
                    proptest::prop_assert!(slot.as_ref().iter().all(|b| b == mark));
                    proptest::prop_assert!(slot.offset_bytes() + slot.len() as u64 <= 64 * UNIT_BYTES);
                }
            }
            drop(held);
            proptest::prop_assert_eq!(staging.taken_bytes(), 0);
        }
    }
}
