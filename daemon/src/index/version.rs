//! One stored or growing copy of a chunk: the parts, their bytes' place and digests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tender_proto::mutant::{Mutant, active};
use tender_proto::{ContentDigest, Coverage, PartIndex, ReservationId};

use super::state::{Lifecycle, State};
use crate::admission::Permit;
use crate::arena::alloc::Extent;
use crate::arena::records::Slot as RecordSlot;

/// A part whose bytes are in the arena and match their digest.
#[derive(Debug)]
pub(crate) struct Part {
    /// Its place in the arena's catalogue, if there was room. Cleared before the bytes are freed.
    pub(crate) record: Option<RecordSlot>,
    /// Where. Dropping it frees the bytes.
    pub(crate) extent: Extent,
    /// What they hash to.
    pub(crate) digest: ContentDigest,
}

/// Chunks of one part are the rule and do without a second allocation.
#[derive(Debug)]
enum Parts {
    One(Part),
    Many(Box<[Part]>),
}

impl Parts {
    fn of(mut parts: Vec<Part>) -> Self {
        match parts.pop() {
            Some(only) if parts.is_empty() => Self::One(only),
            last => {
                parts.extend(last);
                Self::Many(parts.into_boxed_slice())
            }
        }
    }
}

/// A complete chunk. Its bytes live as long as anyone holds it; whether lookups find it is the index's say.
#[derive(Debug)]
pub(crate) struct Version {
    /// Which blocks it holds, the same in every part.
    pub(crate) coverage: Coverage,
    /// The namespace's epoch in which it was reserved. Older than the namespace's: forgotten by a reset.
    pub(crate) epoch: u32,
    pub(super) life: Lifecycle,
    /// The number of its last use, for its age. It decides nothing, so no model follows it.
    used_at: AtomicU64,
    parts: Parts,
}

impl Version {
    /// It is used now; uses are numbered.
    pub(super) fn note_use(&self, number: u64) {
        self.used_at.store(number, Ordering::Relaxed);
    }
    /// The number of its last use.
    pub(super) fn used_at(&self) -> u64 {
        self.used_at.load(Ordering::Relaxed)
    }
    /// Every part, in order.
    pub(crate) fn parts(&self) -> &[Part] {
        match &self.parts {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Many(parts) => parts,
        }
    }
    /// One part; `None` where there is none.
    pub(crate) fn part(&self, index: PartIndex) -> Option<&Part> {
        self.parts().get(usize::from(index.0))
    }
    /// A chunk that an earlier daemon had, with all its parts in order. Nobody finds it yet.
    pub(crate) fn restored(coverage: Coverage, epoch: u32, parts: Vec<Part>) -> Self {
        let life = Lifecycle::absent();
        [State::Reserved, State::Filling, State::Ready].into_iter().for_each(|state| life.advance(state));
        Self { coverage, epoch, life, used_at: AtomicU64::new(0), parts: Parts::of(parts) }
    }
    /// No later daemon finds it.
    pub(super) fn forget(&self) {
        self.parts().iter().filter_map(|part| part.record.as_ref()).for_each(RecordSlot::clear);
    }
    /// Bytes of all parts.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.extent.bytes()).sum()
    }
    /// Bytes that all parts take from the arena.
    pub(crate) fn footprint_bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.extent.footprint_bytes()).sum()
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        // A version that is still READY goes with the whole index.
        if self.life.state() == State::Evicting {
            self.life.advance(State::Absent);
        }
    }
}

/// One part of a version that is not READY yet.
#[derive(Debug)]
pub(super) enum Slot {
    /// Nobody stores it.
    Empty,
    /// Whoever has this reservation stores it.
    Held(ReservationId),
    /// It is in and verified. The permit stays until the chunk is READY: memory that cannot be evicted is
    /// in flight.
    Done(Part, Permit),
}

/// A version that is not READY yet.
#[derive(Debug)]
pub(super) struct Pending {
    /// The reservation that began it, which tells it from later ones of the same key.
    pub(super) first: ReservationId,
    /// The same for every part.
    pub(super) coverage: Coverage,
    /// The namespace's epoch when it began.
    pub(super) epoch: u32,
    /// READY by then, or gone.
    pub(super) deadline: Instant,
    pub(super) life: Lifecycle,
    pub(super) slots: Box<[Slot]>,
}

impl Pending {
    pub(super) fn new(
        first: ReservationId,
        coverage: Coverage,
        epoch: u32,
        deadline: Instant,
        parts: usize,
    ) -> Self {
        let life = Lifecycle::absent();
        life.advance(State::Reserved);
        let slots = (0..parts).map(|_| Slot::Empty).collect();
        Self { first, coverage, epoch, deadline, life, slots }
    }
    /// Writing has begun on one of the parts.
    pub(super) fn begin_filling(&self) {
        if self.life.state() == State::Reserved {
            self.life.advance(State::Filling);
        }
    }
    /// The slot that a reservation holds.
    pub(super) fn held_by(&mut self, part: PartIndex, id: ReservationId) -> Option<&mut Slot> {
        self.slots
            .get_mut(usize::from(part.0))
            .filter(|slot| matches!(slot, Slot::Held(holder) if *holder == id))
    }
    /// Reservations that are waiting or being written.
    pub(super) fn holders(&self) -> impl Iterator<Item = ReservationId> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Held(id) => Some(*id),
            Slot::Empty | Slot::Done(..) => None,
        })
    }
    /// Nobody stores any part and none is in.
    pub(super) fn is_abandoned(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, Slot::Empty))
    }
    /// Every part is in.
    pub(super) fn is_complete(&self) -> bool {
        let done = |slot: &Slot| matches!(slot, Slot::Done(..));
        self.slots.iter().all(done) || active(Mutant::PartMissing) && self.slots.iter().any(done)
    }
    /// The READY version of a complete one. The permits end here.
    pub(super) fn into_version(self) -> Version {
        self.life.advance(State::Ready);
        let parts = self
            .slots
            .into_iter()
            .filter_map(|slot| match slot {
                Slot::Done(part, _permit) => Some(part),
                Slot::Empty | Slot::Held(_) => None,
            })
            .collect();
        Version {
            coverage: self.coverage,
            epoch: self.epoch,
            life: self.life,
            used_at: AtomicU64::new(0),
            parts: Parts::of(parts),
        }
    }
}
