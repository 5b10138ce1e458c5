//! One shard: its table, entries, the lists of what can be evicted, and what it evicted lately.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;
use tender_proto::Reason;

use super::evict::{Queue, Recency};
use super::queues::Lists;
use super::slab::Slab;
use super::state::State;
use super::version::Version;
use super::{Entry, Key, Place};
use crate::namespace::DomainIndex;
use crate::recent::Recent;

/// Evicted keys that each shard remembers, to tell a miss for want of room from one that was never stored, and what comes
/// back soon from what is new.
const REMEMBERED_EVICTIONS: usize = 16_384;

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) table: HashTable<u32>,
    pub(super) slab: Slab,
    pub(super) lists: Lists,
    /// With the numbers of their evictions.
    evicted: Recent<u64, u64>,
    evictions: u64,
}

impl Shard {
    pub(super) fn new() -> Self {
        Self {
            table: HashTable::new(),
            slab: Slab::default(),
            lists: Lists::default(),
            evicted: Recent::new(REMEMBERED_EVICTIONS),
            evictions: 0,
        }
    }

    pub(super) fn find(&self, hash: u64, key: Key<'_>) -> Option<u32> {
        let same = |slot: &u32| {
            self.slab
                .get(*slot)
                .is_some_and(|entry| entry.chunk == key.chunk && entry.namespace.index == key.namespace.index)
        };
        self.table.find(hash, same).copied()
    }
    /// Adds an entry that is not in; `None` when the shard has no number left.
    pub(super) fn add(&mut self, hash: u64, entry: Entry, rehash: impl Fn(&Entry) -> u64) -> Option<u32> {
        let slot = self.slab.insert(entry).ok()?;
        let slab = &self.slab;
        self.table.insert_unique(hash, slot, |slot| slab.get(*slot).map_or(0, &rehash));
        Some(slot)
    }
    pub(super) fn remove_if_empty(&mut self, slot: u32, hash: u64) {
        if self.slab.get(slot).is_some_and(Entry::is_empty) {
            self.slab.remove(slot);
            if let Ok(found) = self.table.find_entry(hash, |other| *other == slot) {
                found.remove();
            }
        }
    }
    pub(super) fn pending_mut(&mut self, slot: u32) -> Option<&mut super::Pending> {
        self.slab.get_mut(slot)?.pending.as_deref_mut()
    }

    /// Makes a complete pending version READY and returns the version whose place it took. It waits where that one did,
    /// or else in `queue`.
    pub(super) fn complete(&mut self, place: Place, queue: Queue, recency: &Recency) -> Option<Arc<Version>> {
        let superseded = self.retire(place, recency);
        let entry = self.slab.get_mut(place.slot)?;
        let version = entry.pending.take()?.into_version();
        let counters = &entry.namespace.counters;
        count(&counters.pending_chunks, -1);
        count(&counters.ready_chunks, 1);
        counters.ready_bytes.fetch_add(version.bytes(), Ordering::AcqRel);
        counters.stored_bytes.fetch_add(version.bytes(), Ordering::Relaxed);
        version.note_use(recency.next_number());
        entry.ready = Some(Arc::new(version));
        if superseded.is_none() {
            entry.begin(queue);
        }
        self.lists.push(&mut self.slab, place.slot, recency, place.shard);
        superseded
    }

    /// Puts in a version that an earlier daemon had; the newest so far.
    pub(super) fn restore(&mut self, place: Place, version: Version, recency: &Recency) {
        let Some(entry) = self.slab.get_mut(place.slot) else { return };
        let counters = &entry.namespace.counters;
        count(&counters.ready_chunks, 1);
        counters.ready_bytes.fetch_add(version.bytes(), Ordering::AcqRel);
        version.note_use(recency.next_number());
        entry.ready = Some(Arc::new(version));
        // What was used again is not written down.
        entry.begin(recency.eviction().queue_of_new(false));
        self.lists.push(&mut self.slab, place.slot, recency, place.shard);
    }

    /// What comes up as a victim on probation and was used there gets protected instead: then true. It must be evictable.
    pub(super) fn spare(&mut self, place: Place, recency: &Recency) -> bool {
        let used_on_probation = |entry: &Entry| entry.queue == Queue::Probation && entry.used_again;
        if !self.slab.get(place.slot).is_some_and(used_on_probation) {
            return false;
        }
        self.lists.remove(&mut self.slab, place.slot, recency, place.shard);
        if let Some(entry) = self.slab.get_mut(place.slot) {
            entry.begin(Queue::Protected);
        }
        self.lists.push(&mut self.slab, place.slot, recency, place.shard);
        true
    }

    /// Takes the READY version away from lookups. Its memory goes with the returned reference and the pins.
    pub(super) fn retire(&mut self, place: Place, recency: &Recency) -> Option<Arc<Version>> {
        let entry = self.slab.get_mut(place.slot)?;
        if entry.ready.is_some() && entry.pins == 0 {
            self.lists.remove(&mut self.slab, place.slot, recency, place.shard);
        }
        let entry = self.slab.get_mut(place.slot)?;
        let version = entry.ready.take()?;
        version.forget();
        // The remaining pins find out by comparing versions.
        entry.pins = 0;
        version.life.advance(State::Evicting);
        let counters = &entry.namespace.counters;
        count(&counters.ready_chunks, -1);
        counters.ready_bytes.fetch_sub(version.bytes(), Ordering::AcqRel);
        Some(version)
    }

    /// The next victim of a queue.
    pub(super) fn oldest(&self, queue: Queue) -> Option<u32> {
        self.lists.with_oldest(queue)?.oldest()
    }
    /// The next victim among those of one domain.
    pub(super) fn oldest_of(&self, domain: DomainIndex, queue: Queue) -> Option<u32> {
        self.lists.of(domain, queue)?.oldest()
    }
    /// Of each of the domain's queues: its bytes, and when its oldest entry came, `u64::MAX` without one.
    pub(super) fn standing_of(&self, domain: DomainIndex) -> [(u64, u64); Queue::ALL.len()] {
        let list = |queue| self.lists.of(domain, queue);
        Queue::ALL.map(|queue| list(queue).map_or((0, u64::MAX), |l| (l.bytes(), l.oldest_listed_at())))
    }

    pub(super) fn remember_evicted(&mut self, fingerprint: u64) {
        self.evictions += 1;
        self.evicted.remember(fingerprint, self.evictions);
    }
    /// Whether not more has been evicted since this than the shard has entries.
    pub(super) fn was_evicted_lately(&self, fingerprint: u64) -> bool {
        self.evicted.get(&fingerprint).is_some_and(|at| self.evictions - at < self.slab.len() as u64)
    }
    pub(super) fn why_missing(&self, fingerprint: u64) -> Reason {
        match self.evicted.get(&fingerprint) {
            Some(_) => Reason::Evicted,
            None => Reason::NeverStored,
        }
    }
}

/// Changes a gauge.
pub(super) fn count(gauge: &AtomicU64, by: i8) {
    gauge.fetch_add(i64::from(by).cast_unsigned(), Ordering::AcqRel);
}
