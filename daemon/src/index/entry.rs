//! One key's versions, and who may store what under it.

use std::sync::Arc;
use std::time::Instant;

use tender_proto::{ChunkId, Reason, ReservationId};

use super::evict::{NONE, Queue, Recency};
use super::shard::count;
use super::version::{Pending, Slot, Version};
use super::{Door, Key, Wanted};
use crate::engine::Already;
use crate::namespace::Namespace;

/// Everything known about one key.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) namespace: Arc<Namespace>,
    pub(super) chunk: ChunkId,
    /// Pins on `ready`. In a list of its shard exactly when `ready` is there and this is 0.
    pub(super) pins: u32,
    /// Where `ready` waits when nobody holds it.
    pub(super) queue: Queue,
    /// Since it came into its queue.
    pub(super) used_again: bool,
    pub(super) newer: u32,
    pub(super) older: u32,
    /// Orders its list.
    pub(super) listed_at: u64,
    pub(super) ready: Option<Arc<Version>>,
    pub(super) pending: Option<Box<Pending>>,
}

impl Entry {
    pub(super) fn new(key: Key<'_>) -> Self {
        Self {
            namespace: Arc::clone(key.namespace),
            chunk: key.chunk,
            pins: 0,
            queue: Queue::Probation,
            used_again: false,
            newer: NONE,
            older: NONE,
            listed_at: 0,
            ready: None,
            pending: None,
        }
    }
    pub(super) fn key(&self) -> Key<'_> {
        Key { namespace: &self.namespace, chunk: self.chunk }
    }
    /// A version comes in that no other one was READY before.
    pub(super) fn begin(&mut self, queue: Queue) {
        (self.queue, self.used_again) = (queue, false);
    }
    /// An engine has found it. What one request does counts once, however often it looks and reads.
    pub(super) fn note_use(&mut self, recency: &Recency) {
        self.used_again = true;
        if let Some(version) = &self.ready {
            version.note_use(recency.next_number());
        }
    }
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_none() && self.pending.is_none()
    }

    pub(super) fn door(&self, wanted: Wanted<'_>) -> Door {
        let epoch = self.namespace.epoch();
        if let Some(version) = self.ready.as_ref().filter(|version| version.epoch == epoch) {
            if version.coverage.contains(wanted.coverage) {
                return Door::Already(Already::Ready);
            }
            // Taking its place would lose blocks that are stored.
            if !wanted.coverage.contains(version.coverage) {
                return Door::Refused(Reason::NotCovered);
            }
        }
        match &self.pending {
            None => Door::Open,
            // A reset is about to remove it.
            Some(pending) if pending.epoch != epoch => Door::Refused(Reason::Throttled),
            Some(pending) => match pending.slots.get(usize::from(wanted.part.0)) {
                None => Door::Refused(Reason::PartOutOfRange),
                Some(Slot::Held(_) | Slot::Done(..)) => Door::Already(Already::Pending),
                // Parts with different blocks make no chunk.
                Some(Slot::Empty) if pending.coverage != wanted.coverage => {
                    Door::Refused(Reason::BadCoverage)
                }
                Some(Slot::Empty) => Door::Open,
            },
        }
    }

    /// Goes in by an open door.
    pub(super) fn hold(&mut self, wanted: Wanted<'_>, id: ReservationId, deadline: Instant) {
        if self.pending.is_none() {
            count(&self.namespace.counters.pending_chunks, 1);
        }
        let epoch = self.namespace.epoch();
        let pending = self.pending.get_or_insert_with(|| {
            Box::new(Pending::new(id, wanted.coverage, epoch, deadline, wanted.parts))
        });
        if let Some(slot) = pending.slots.get_mut(usize::from(wanted.part.0)) {
            *slot = Slot::Held(id);
        }
    }
}
