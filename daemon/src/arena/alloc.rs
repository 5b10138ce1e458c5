//! Which ranges of the arena are taken. Pure bookkeeping: no memory is touched here.
//!
//! Ranges are counted in units of one page and rounded up to the allocator's size classes (8 for each power
//! of two). The allocator files a hole under the class below its size and searches from the class above a
//! request, so without the rounding it would not find a hole of exactly the size asked for: a full arena in
//! which one chunk was evicted would still have no room for the next one of the same size. The price is at
//! most an eighth of the bytes, and nothing for sizes of up to four significant bits.

use std::fmt;
use std::sync::Arc;

use offset_allocator::{Allocation, Allocator};

use crate::sync::Mutex;

/// Bytes of one unit: a page, so that parts never share one.
pub(crate) const UNIT_BYTES: u64 = 4096;

/// Largest pool. Far below where the allocator's 32-bit unit numbers end.
pub(crate) const MAX_POOL_BYTES: u64 = 8 << 40;

/// The allocator keeps 32 bytes for each possible extent, allocated at once. One for each eight units serves
/// an arena whose parts have 32 KiB on average; running out of them is like running out of room.
const UNITS_PER_NODE: u32 = 8;
const MIN_NODES: u32 = 4096;
const MAX_NODES: u32 = 1 << 24;

/// A range of pages that can be taken in pieces. Pieces give themselves back.
pub struct ExtentPool {
    capacity_units: u32,
    inner: Mutex<Inner>,
}

struct Inner {
    allocator: Allocator,
    used_units: u32,
}

/// One piece of a pool, owned: nobody else has any byte of it. Dropping it gives it back.
pub struct Extent {
    pool: Arc<ExtentPool>,
    allocation: Allocation,
    bytes: u64,
}

impl ExtentPool {
    /// A pool of the whole units in `bytes`; `None` below one unit and above `MAX_POOL_BYTES`.
    pub fn new(bytes: u64) -> Option<Arc<Self>> {
        Self::restore(bytes, &[]).map(|(pool, _)| pool)
    }

    /// The same with pieces that are taken already, given as offset and bytes. A piece that the pool cannot have, or
    /// that shares a page with one before it (by offset), comes back as `None`.
    ///
    /// The allocator cannot take a given range. But it cuts from the front of the only hole, so taking pieces and the
    /// gaps between them in order, and giving the gaps back at the end, leaves exactly the pieces. It searches one
    /// size class above a request; a guard behind the pool, never given back, keeps the hole large enough for that
    /// to the very end, and is taken itself because a power of two is its own class.
    pub(crate) fn restore(bytes: u64, pieces: &[(u64, u64)]) -> Option<(Arc<Self>, Vec<Option<Extent>>)> {
        let capacity_units = units_of_pool(bytes)?;
        let guard_units = (capacity_units / 2).next_power_of_two();
        let nodes = max_extents(bytes) + 2;
        let mut allocator = Allocator::with_max_allocs(capacity_units + guard_units, nodes);
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        order.sort_unstable_by_key(|&piece| pieces[piece]);
        let mut taken: Vec<Option<Allocation>> = vec![None; pieces.len()];
        let (mut gaps, mut end, mut used_units) = (Vec::new(), 0u32, 0);
        for piece in order {
            let (offset, bytes) = pieces[piece];
            let Some((start, units)) = units_of_piece(offset, bytes, capacity_units) else { continue };
            if start < end {
                continue;
            }
            if start > end {
                gaps.push(allocator.allocate(start - end)?);
            }
            let allocation = allocator.allocate(units)?;
            debug_assert_eq!(allocation.offset, start, "cut from the front of the only hole");
            taken[piece] = Some(allocation);
            end = start + units;
            used_units += units;
        }
        if end < capacity_units {
            gaps.push(allocator.allocate(capacity_units - end)?);
        }
        allocator.allocate(guard_units)?;
        gaps.into_iter().for_each(|gap| allocator.free(gap));
        let inner = Mutex::new(Inner { allocator, used_units });
        let pool = Arc::new(Self { capacity_units, inner });
        let extent = |(allocation, &(_, bytes)): (Option<Allocation>, &(u64, u64))| {
            Some(Extent { pool: Arc::clone(&pool), allocation: allocation?, bytes })
        };
        let extents = taken.into_iter().zip(pieces).map(extent).collect();
        Some((pool, extents))
    }

    /// Bytes of the pool.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.capacity_units) * UNIT_BYTES
    }
    /// Bytes of all live extents, rounding included.
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.inner.lock().used_units) * UNIT_BYTES
    }
    /// A request of this size would succeed if nothing were taken.
    pub fn largest_extent_bytes(&self) -> u64 {
        // Size classes have four significant bits.
        let cut = (u32::BITS - self.capacity_units.leading_zeros()).saturating_sub(4);
        u64::from(self.capacity_units >> cut << cut) * UNIT_BYTES
    }
    /// A request of this size would succeed now.
    pub fn largest_free_bytes(&self) -> u64 {
        u64::from(self.inner.lock().allocator.storage_report().largest_free_region) * UNIT_BYTES
    }

    /// Takes a range of at least `bytes` bytes; `None` when no hole is large enough, or for 0 bytes.
    pub fn allocate(self: &Arc<Self>, bytes: u64) -> Option<Extent> {
        let units = class_units(bytes).filter(|&units| units <= self.capacity_units)?;
        let mut inner = self.inner.lock();
        let allocation = inner.allocator.allocate(units)?;
        inner.used_units += units;
        drop(inner);
        Some(Extent { pool: Arc::clone(self), allocation, bytes })
    }

    /// Compares this module's count with the allocator's own.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let inner = self.inner.lock();
        let report = inner.allocator.storage_report();
        // The allocator reports no free space at all once it is out of nodes.
        let out_of_nodes = report.total_free_space == 0;
        if out_of_nodes || report.total_free_space + inner.used_units == self.capacity_units {
            return Ok(());
        }
        Err(format!(
            "{} units used and {} free do not make {}",
            inner.used_units, report.total_free_space, self.capacity_units
        ))
    }
}

/// Most pieces that a pool of so many bytes has at one time.
pub(crate) fn max_extents(pool_bytes: u64) -> u32 {
    let units = units_of_pool(pool_bytes).unwrap_or(0);
    (units / UNITS_PER_NODE).clamp(MIN_NODES, MAX_NODES)
}

fn units_of_pool(bytes: u64) -> Option<u32> {
    let units = u32::try_from(bytes / UNIT_BYTES).ok()?;
    (units > 0 && bytes <= MAX_POOL_BYTES).then_some(units)
}

/// First unit and units of a piece that lies in the pool and begins with a page.
fn units_of_piece(offset_bytes: u64, bytes: u64, capacity_units: u32) -> Option<(u32, u32)> {
    let units = class_units(bytes)?;
    let start = u32::try_from(offset_bytes / UNIT_BYTES).ok()?;
    let inside = start.checked_add(units).is_some_and(|end| end <= capacity_units);
    (inside && offset_bytes.is_multiple_of(UNIT_BYTES)).then_some((start, units))
}

/// Units that a request takes; `None` for 0 bytes and for more than any pool has.
fn class_units(bytes: u64) -> Option<u32> {
    if bytes == 0 || bytes > MAX_POOL_BYTES {
        return None;
    }
    let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).ok()?;
    Some(offset_allocator::ext::min_allocator_size(units))
}

/// Bytes of the arena that a part of `bytes` bytes takes.
pub(crate) fn footprint_bytes(bytes: u64) -> u64 {
    class_units(bytes).map_or(u64::MAX, |units| u64::from(units) * UNIT_BYTES)
}

impl Extent {
    /// Where it starts in the pool.
    pub fn offset_bytes(&self) -> u64 {
        u64::from(self.allocation.offset) * UNIT_BYTES
    }
    /// The bytes that were asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// The bytes it takes from the pool.
    pub fn footprint_bytes(&self) -> u64 {
        footprint_bytes(self.bytes)
    }
    /// Whether it is a piece of this pool.
    pub(crate) fn is_of(&self, pool: &Arc<ExtentPool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        let units = class_units(self.bytes).unwrap_or_default();
        let mut inner = self.pool.inner.lock();
        inner.allocator.free(self.allocation);
        inner.used_units -= units;
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extent({}..+{})", self.offset_bytes(), self.bytes)
    }
}

impl fmt::Debug for ExtentPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtentPool({} of {} bytes used)", self.used_bytes(), self.capacity_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_freed_extent_has_room_for_another_of_its_size() {
        for units in 1..200u64 {
            let bytes = units * UNIT_BYTES;
            let pool = ExtentPool::new(4 * footprint_bytes(bytes)).unwrap();
            let mut held: Vec<_> = (0..4).map(|_| pool.allocate(bytes).unwrap()).collect();
            assert!(pool.allocate(bytes).is_none());
            held.remove(2);
            assert!(pool.allocate(bytes).is_some(), "{units} units");
        }
    }

    #[test]
    fn rounding_costs_at_most_an_eighth() {
        for units in 1..100_000u64 {
            assert!(footprint_bytes(units * UNIT_BYTES) <= (units * UNIT_BYTES).div_ceil(8) * 9 + UNIT_BYTES);
        }
        // Sizes of up to four significant bits cost nothing.
        for layers in [8u64, 9, 10, 12, 14, 15, 28, 36, 40, 48, 80] {
            let bytes = layers * 64 * 1024;
            assert_eq!(footprint_bytes(bytes), bytes);
        }
    }

    #[test]
    fn the_largest_extent_is_what_an_empty_pool_can_give() {
        for units in (1..3000).chain([1 << 20, (1 << 20) + 1, 3_000_001]) {
            let pool = ExtentPool::new(units * UNIT_BYTES).unwrap();
            assert_eq!(pool.largest_extent_bytes(), pool.largest_free_bytes(), "{units} units");
            assert!(pool.allocate(pool.largest_extent_bytes()).is_some(), "{units} units");
        }
    }

    #[test]
    fn impossible_requests_are_refused() {
        let pool = ExtentPool::new(10 * UNIT_BYTES).unwrap();
        assert!(pool.allocate(0).is_none());
        assert!(pool.allocate(11 * UNIT_BYTES).is_none());
        assert!(pool.allocate(u64::MAX).is_none());
        assert!(ExtentPool::new(UNIT_BYTES - 1).is_none());
        assert!(ExtentPool::new(MAX_POOL_BYTES + 1).is_none());
    }

    #[test]
    fn running_out_of_nodes_is_running_out_of_room() {
        let pool = ExtentPool::new(2 * u64::from(MIN_NODES) * UNIT_BYTES).unwrap();
        let mut held = Vec::new();
        while let Some(extent) = pool.allocate(1) {
            held.push(extent);
        }
        assert!(held.len() as u64 >= u64::from(MIN_NODES) - 2);
        held.clear();
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.allocate(pool.capacity_bytes()).is_some());
    }

    #[test]
    fn pieces_that_cannot_be_are_not_restored() {
        let page = UNIT_BYTES;
        let pieces = [
            (0, page),
            (0, 1),
            (page + 1, page),
            (3 * page, 2 * page),
            (4 * page, page),
            (15 * page, 2 * page),
            (u64::MAX - page + 1, page),
            (5 * page, 0),
        ];
        let (pool, extents) = ExtentPool::restore(16 * page, &pieces).unwrap();
        let restored: Vec<_> =
            extents.iter().map(|extent| extent.as_ref().map(Extent::offset_bytes)).collect();
        // Of two at one place the smaller comes first.
        assert_eq!(restored, [None, Some(0), None, Some(3 * page), None, None, None, None]);
        assert_eq!((pool.used_bytes(), pool.audit()), (3 * page, Ok(())));
    }

    proptest! {
        /// What a pool held is held by the restored one, at its place, and everything else is free.
        #[test]
        fn a_restored_pool_holds_exactly_what_the_old_one_did(
            sizes in prop::collection::vec((1u64..200_000, any::<bool>()), 1..60),
            capacity in 256u64..700,
        ) {
            let bytes = capacity * UNIT_BYTES;
            let old = ExtentPool::new(bytes).unwrap();
            let all: Vec<_> = sizes.iter().filter_map(|&(size, keep)| Some((old.allocate(size)?, keep))).collect();
            let kept: Vec<_> = all.into_iter().filter_map(|(extent, keep)| keep.then_some(extent)).collect();
            let pieces: Vec<_> = kept.iter().map(|extent| (extent.offset_bytes(), extent.bytes())).collect();
            let (pool, extents) = ExtentPool::restore(bytes, &pieces).unwrap();
            let restored: Vec<_> =
                extents.iter().flatten().map(|extent| (extent.offset_bytes(), extent.bytes())).collect();
            prop_assert_eq!(&restored, &pieces);
            prop_assert_eq!(pool.used_bytes(), old.used_bytes());
            prop_assert_eq!(pool.largest_free_bytes(), old.largest_free_bytes());
            prop_assert_eq!(pool.audit(), Ok(()));
            drop(extents);
            prop_assert_eq!(pool.used_bytes(), 0);
            prop_assert_eq!(pool.largest_free_bytes(), ExtentPool::new(bytes).unwrap().largest_free_bytes());
        }

        /// No two extents share a byte, nothing is lost, and freed neighbours become one hole again.
        #[test]
        fn extents_never_overlap_and_all_bytes_come_back(
            steps in prop::collection::vec((any::<bool>(), 1u64..300_000, any::<prop::sample::Index>()), 1..200)
        ) {
            let pool = ExtentPool::new(256 * UNIT_BYTES).unwrap();
            let mut live: Vec<Extent> = Vec::new();
            for (take, bytes, which) in steps {
                if take {
                    live.extend(pool.allocate(bytes));
                } else if !live.is_empty() {
                    live.swap_remove(which.index(live.len()));
                }
                let mut ranges: Vec<_> =
                    live.iter().map(|e| (e.offset_bytes(), e.offset_bytes() + e.footprint_bytes())).collect();
                ranges.sort_unstable();
                prop_assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0));
                prop_assert!(ranges.last().is_none_or(|last| last.1 <= pool.capacity_bytes()));
                prop_assert_eq!(ranges.iter().map(|r| r.1 - r.0).sum::<u64>(), pool.used_bytes());
                prop_assert_eq!(pool.audit(), Ok(()));
            }
            live.clear();
            prop_assert_eq!(pool.used_bytes(), 0);
            prop_assert!(pool.allocate(pool.capacity_bytes()).is_some());
        }
    }
}
