//! One shard: its table, entries, recency list, and what it evicted lately.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;
use tender_proto::Reason;

use super::evict::{Lru, Recency};
use super::slab::Slab;
use super::state::State;
use super::version::Version;
use super::{Entry, Key, Place};
use crate::recent::Recent;

/// Evicted keys that each shard remembers, to tell a miss for want of room from one that was never stored.
const REMEMBERED_EVICTIONS: usize = 4096;

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) table: HashTable<u32>,
    pub(super) slab: Slab,
    pub(super) lru: Lru,
    evicted: Recent<u64, ()>,
}

impl Shard {
    pub(super) fn new() -> Self {
        Self {
            table: HashTable::new(),
            slab: Slab::default(),
            lru: Lru::new(),
            evicted: Recent::new(REMEMBERED_EVICTIONS),
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

    /// Makes a complete pending version READY and returns the version whose place it took.
    pub(super) fn complete(&mut self, place: Place, recency: &Recency) -> Option<Arc<Version>> {
        let superseded = self.retire(place, recency);
        let entry = self.slab.get_mut(place.slot)?;
        let version = entry.pending.take()?.into_version();
        let counters = &entry.namespace.counters;
        count(&counters.pending_chunks, -1);
        count(&counters.ready_chunks, 1);
        counters.ready_bytes.fetch_add(version.bytes(), Ordering::AcqRel);
        counters.stored_bytes.fetch_add(version.bytes(), Ordering::Relaxed);
        entry.ready = Some(Arc::new(version));
        self.lru.push(&mut self.slab, place.slot, recency, place.shard);
        superseded
    }

    /// Puts in a version that an earlier daemon had; the newest so far.
    pub(super) fn restore(&mut self, place: Place, version: Version, recency: &Recency) {
        let Some(entry) = self.slab.get_mut(place.slot) else { return };
        let counters = &entry.namespace.counters;
        count(&counters.ready_chunks, 1);
        counters.ready_bytes.fetch_add(version.bytes(), Ordering::AcqRel);
        entry.ready = Some(Arc::new(version));
        self.lru.push(&mut self.slab, place.slot, recency, place.shard);
    }

    /// Takes the READY version away from lookups. Its memory goes with the returned reference and the pins.
    pub(super) fn retire(&mut self, place: Place, recency: &Recency) -> Option<Arc<Version>> {
        let entry = self.slab.get_mut(place.slot)?;
        if entry.ready.is_some() && entry.pins == 0 {
            self.lru.remove(&mut self.slab, place.slot, recency, place.shard);
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

    pub(super) fn remember_evicted(&mut self, fingerprint: u64) {
        self.evicted.remember(fingerprint, ());
    }
    pub(super) fn why_missing(&self, fingerprint: u64) -> Reason {
        match self.evicted.get(&fingerprint) {
            Some(()) => Reason::Evicted,
            None => Reason::NeverStored,
        }
    }
}

/// Changes a gauge.
pub(super) fn count(gauge: &AtomicU64, by: i8) {
    gauge.fetch_add(i64::from(by).cast_unsigned(), Ordering::AcqRel);
}
