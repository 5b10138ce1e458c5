//! From chunk keys to versions: what is READY, what is pending, who holds what, and what goes first.
//!
//! An entry has at most one READY version and at most one pending one; a pending version with more coverage
//! takes the READY one's place when it is complete. Nothing here touches chunk bytes, and no lock is held
//! while anybody does. Lock order: a shard, then the reservation table or the journal, then budgets, namespaces and
//! allocator.

mod audit;
mod entry;
mod evict;
pub(crate) mod journal;
mod pin;
mod queues;
mod shard;
mod slab;
pub(crate) mod state;
mod times;
mod version;
mod walk;

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tender_proto::{ChunkId, Coverage, NamespaceDigest, PartIndex, Reason, ReservationId};

use crate::admission::Permit;
use crate::arena::catalogue::{Catalogue, PartEntry};
use crate::engine::Already;
use crate::metrics::{AGE_SECONDS, Histogram, Spread};
use crate::namespace::{DomainIndex, Namespace};
use crate::sync::{Mutex, MutexGuard, Planted, planted};
pub(crate) use audit::{IndexAudit, recorded};
use entry::Entry;
pub use evict::Eviction;
use evict::{Queue, Recency};
use journal::{Change, Journal};
pub(crate) use pin::Pin;
use shard::Shard;
use state::State;
pub(crate) use version::{Part, Version};
use version::{Pending, Slot};
pub(crate) use walk::{Stored, Walk};

/// Enough that a dozen threads rarely meet, few enough that finding the oldest entry reads them all.
const SHARDS: usize = if cfg!(feature = "loom") { 2 } else { 16 };

#[cfg(not(feature = "loom"))]
type Hashes = hashbrown::DefaultHashBuilder;
/// A model does the same each time.
#[cfg(feature = "loom")]
type Hashes = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// One of the [`SHARDS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ShardIndex(u8);

impl ShardIndex {
    fn get(self) -> usize {
        usize::from(self.0)
    }
}

/// Where an entry is. It stays there as long as it lives; afterwards another entry may be there, which the
/// unique ids in pending slots and the identity of versions tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    shard: ShardIndex,
    slot: u32,
}

/// The key of a chunk, with its namespace looked up already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) namespace: &'a Arc<Namespace>,
    pub(crate) chunk: ChunkId,
}

/// One part of a chunk that somebody wants to store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: Key<'a>,
    pub(crate) part: PartIndex,
    pub(crate) coverage: Coverage,
    /// Parts of the chunk.
    pub(crate) parts: usize,
}

/// Whether a part may be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Door {
    Open,
    Already(Already),
    Refused(Reason),
}

/// What a lookup found.
#[derive(Debug)]
pub(crate) enum Found {
    /// With a pin if one was asked for.
    Ready(Coverage, Option<Pin>),
    Pending,
    Miss(Reason),
}

/// Who looks a chunk up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asker {
    /// An engine, or another daemon on behalf of one: what it finds is used.
    Engine,
    /// This daemon, which reads for its tiers or only wants to know.
    House,
}

/// What is there, for whoever only looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peeked {
    Ready(Coverage),
    Pending,
    Absent,
}

/// A version that did not get READY in time.
#[derive(Debug)]
pub(crate) struct Expired {
    pub(crate) namespace: NamespaceDigest,
    pub(crate) chunk: ChunkId,
    /// Reservations on it.
    pub(crate) holders: Vec<ReservationId>,
}

/// What made room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Evicted {
    pub(crate) namespace: NamespaceDigest,
    pub(crate) chunk: ChunkId,
}

/// What a reset forgot.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    pub(crate) ready_chunks: u64,
    /// Reservations of pending versions that went.
    pub(crate) fenced: Vec<ReservationId>,
}

/// The sharded index.
#[derive(Debug)]
pub(crate) struct Index {
    shards: [Mutex<Shard>; SHARDS],
    recency: Recency,
    evicted_ages: Histogram,
    hasher: Hashes,
    catalogue: Arc<Catalogue>,
    journal: Journal,
}

impl Index {
    pub(crate) fn new(catalogue: Arc<Catalogue>, eviction: Eviction) -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Mutex::new(Shard::new())),
            recency: Recency::new(eviction),
            evicted_ages: Histogram::new(AGE_SECONDS),
            hasher: Hashes::default(),
            catalogue,
            journal: Journal::new(),
        })
    }

    /// Puts in a chunk that an earlier daemon had. False: the key has one already, or there is no room for an entry.
    pub(crate) fn restore(&self, key: Key<'_>, version: Version) -> bool {
        let (hash, shard_index) = self.locate(key);
        let mut shard = self.lock(shard_index);
        if shard.find(hash, key).is_some() {
            return false;
        }
        let Some(slot) = shard.add(hash, Entry::new(key), |entry| self.hash(entry.key())) else {
            return false;
        };
        shard.restore(Place { shard: shard_index, slot }, version, &self.recency);
        true
    }

    /// Finds a chunk and counts that as a use of it if an engine asks. With `pin` it cannot be evicted until the pin
    /// goes; then it comes in front of its queue.
    pub(crate) fn lookup(self: &Arc<Self>, key: Key<'_>, now: Instant, asker: Asker, pin: bool) -> Found {
        let (hash, shard_index) = self.locate(key);
        let mut guard = self.lock(shard_index);
        let shard = &mut *guard;
        let epoch = key.namespace.epoch();
        let Some(slot) = shard.find(hash, key) else {
            return Found::Miss(shard.why_missing(self.fingerprint(hash, epoch)));
        };
        let Some(entry) = shard.slab.get_mut(slot) else { return Found::Miss(Reason::Internal) };
        if let Some(version) = entry.ready.as_ref().filter(|version| version.epoch == epoch) {
            let (coverage, version) = (version.coverage, pin.then(|| Arc::clone(version)));
            let moves = entry.pins == 0 && (pin || asker == Asker::Engine);
            entry.pins += u32::from(pin);
            if asker == Asker::Engine {
                entry.note_use(&self.recency);
            }
            if moves {
                shard.lists.remove(&mut shard.slab, slot, &self.recency, shard_index);
            }
            if moves && !pin {
                shard.lists.push(&mut shard.slab, slot, &self.recency, shard_index);
            }
            let place = Place { shard: shard_index, slot };
            let pin = version.map(|version| Pin { index: Arc::clone(self), place, version });
            return Found::Ready(coverage, pin);
        }
        match &entry.pending {
            Some(pending) if pending.epoch == epoch && now < pending.deadline => Found::Pending,
            _ => Found::Miss(shard.why_missing(self.fingerprint(hash, epoch))),
        }
    }

    /// What is there, without counting as a use of it.
    pub(crate) fn peek(&self, key: Key<'_>, now: Instant) -> Peeked {
        let (hash, shard_index) = self.locate(key);
        let shard = self.lock(shard_index);
        let epoch = key.namespace.epoch();
        let Some(entry) = shard.find(hash, key).and_then(|slot| shard.slab.get(slot)) else {
            return Peeked::Absent;
        };
        let ready = entry.ready.as_ref().filter(|version| version.epoch == epoch);
        match (ready, &entry.pending) {
            (Some(version), _) => Peeked::Ready(version.coverage),
            (None, Some(pending)) if pending.epoch == epoch && now < pending.deadline => Peeked::Pending,
            (None, _) => Peeked::Absent,
        }
    }

    /// Whether a part may be stored now. Taking it may still find the door closed.
    pub(crate) fn knock(&self, wanted: Wanted<'_>) -> Door {
        let (hash, shard_index) = self.locate(wanted.key);
        let shard = self.lock(shard_index);
        let entry = shard.find(hash, wanted.key).and_then(|slot| shard.slab.get(slot));
        entry.map_or(Door::Open, |entry| entry.door(wanted))
    }

    /// Whether a version is being stored: one more part of it is not one more chunk.
    pub(crate) fn is_pending(&self, key: Key<'_>) -> bool {
        let (hash, shard_index) = self.locate(key);
        let shard = self.lock(shard_index);
        let entry = shard.find(hash, key).and_then(|slot| shard.slab.get(slot));
        entry.is_some_and(|entry| entry.pending.is_some())
    }

    /// Takes a part for a reservation of a version that has until `deadline`, or the earlier one of the version
    /// that has begun. `install` makes the reservation known while the shard is locked, so that whatever
    /// removes the pending version finds it.
    pub(crate) fn hold(
        &self,
        wanted: Wanted<'_>,
        id: ReservationId,
        deadline: Instant,
        install: impl FnOnce(Place, Instant) -> Result<(), Reason>,
    ) -> Result<Held, Door> {
        let (hash, shard_index) = self.locate(wanted.key);
        let mut shard = self.lock(shard_index);
        let slot = match shard.find(hash, wanted.key) {
            Some(slot) => slot,
            None => shard
                .add(hash, Entry::new(wanted.key), |entry| self.hash(entry.key()))
                .ok_or(Door::Refused(Reason::TooMany))?,
        };
        let place = Place { shard: shard_index, slot };
        let Some(entry) = shard.slab.get_mut(slot) else { return Err(Door::Refused(Reason::Internal)) };
        let began = entry.pending.is_none();
        let deadline = entry.pending.as_ref().map_or(deadline, |pending| pending.deadline);
        let held = match entry.door(wanted) {
            Door::Open => install(place, deadline).map_err(Door::Refused),
            closed => Err(closed),
        };
        if held.is_ok() {
            entry.hold(wanted, id, deadline);
        }
        shard.remove_if_empty(slot, hash);
        held.map(|()| Held { place, deadline, began })
    }

    /// A reservation's writer has begun.
    pub(crate) fn begin_filling(&self, place: Place, part: PartIndex, id: ReservationId) {
        let mut shard = self.lock(place.shard);
        if let Some(pending) = shard.pending_mut(place.slot)
            && pending.held_by(part, id).is_some()
        {
            pending.begin_filling();
        }
    }

    /// Puts a verified part in. The last one makes the chunk READY and retires what was READY before.
    pub(crate) fn publish(
        &self,
        place: Place,
        part_index: PartIndex,
        id: ReservationId,
        now: Instant,
        mut part: Part,
        permit: Permit,
    ) -> Result<bool, Reason> {
        let mut guard = self.lock(place.shard);
        let shard = &mut *guard;
        let entry = shard.slab.get_mut(place.slot).ok_or(Reason::Superseded)?;
        let pending = entry.pending.as_mut().ok_or(Reason::Superseded)?;
        let current = pending.epoch == entry.namespace.epoch();
        let in_time = now < pending.deadline;
        let (epoch, first, coverage) = (pending.epoch, pending.first, pending.coverage);
        let holder = match pending.slots.get(usize::from(part_index.0)) {
            Some(Slot::Held(holder)) if planted(Planted::HolderNotLookedAt) => {
                pending.begin_filling();
                *holder
            }
            _ => id,
        };
        let slot = pending.held_by(part_index, holder).ok_or(Reason::Superseded)?;
        if !current {
            return Err(Reason::NamespaceReset);
        }
        if !in_time {
            return Err(Reason::ReservationExpired);
        }
        // Verified, and not to be found before it is written down.
        part.record = self.catalogue.add_part(PartEntry {
            namespace: entry.namespace.entry.as_ref(),
            epoch,
            first,
            chunk: entry.chunk,
            part: part_index,
            coverage_bits: coverage.bits(),
            digest: part.digest,
            extent: &part.extent,
        });
        if part.record.is_none() && self.catalogue.is_given_away() {
            return Err(Reason::Draining);
        }
        *slot = Slot::Done(part, permit);
        if !pending.is_complete() {
            return Ok(false);
        }
        let queue = self.queue_of_new(shard, place, epoch);
        let superseded = shard.complete(place, queue, &self.recency);
        if let Some(entry) = shard.slab.get(place.slot) {
            self.journal.write(&entry.namespace, epoch, Change::Stored(entry.chunk, coverage));
        }
        drop(guard);
        drop(superseded);
        Ok(true)
    }

    /// Gives a part back that a reservation held. The version goes when nobody else has a part of it: then whose it was.
    pub(crate) fn unhold(
        &self,
        place: Place,
        part: PartIndex,
        id: ReservationId,
    ) -> Option<(NamespaceDigest, ChunkId)> {
        let mut shard = self.lock(place.shard);
        let pending = shard.pending_mut(place.slot)?;
        *pending.held_by(part, id)? = Slot::Empty;
        if !pending.is_abandoned() {
            return None;
        }
        let key = shard.slab.get(place.slot).map(|entry| (entry.namespace.digest, entry.chunk));
        self.forget_pending(&mut shard, place.slot);
        key
    }

    /// Removes a pending version that `first` began, if it is still there and its time is up.
    pub(crate) fn expire(&self, place: Place, first: ReservationId, now: Instant) -> Option<Expired> {
        let mut shard = self.lock(place.shard);
        let pending = shard.pending_mut(place.slot)?;
        if pending.first != first || now < pending.deadline {
            return None;
        }
        let entry = shard.slab.get(place.slot)?;
        let (namespace, chunk) = (entry.namespace.digest, entry.chunk);
        let pending = self.forget_pending(&mut shard, place.slot)?;
        drop(shard);
        Some(Expired { namespace, chunk, holders: pending.holders().collect() })
    }

    /// Removes everything of an epoch that is over, a page of entries under each lock. `forgot` is told of each chunk that
    /// was READY, under that lock.
    pub(crate) fn drop_stale(&self, forgot: &dyn Fn(&Namespace, ChunkId)) -> Dropped {
        let mut dropped = Dropped::default();
        for shard_index in (0..).map(ShardIndex).take(SHARDS) {
            let pages = self.lock(shard_index).slab.pages();
            for page in 0..pages {
                self.drop_stale_of_page(shard_index, page, forgot, &mut dropped);
            }
        }
        dropped
    }

    fn drop_stale_of_page(
        &self,
        shard_index: ShardIndex,
        page: usize,
        forgot: &dyn Fn(&Namespace, ChunkId),
        dropped: &mut Dropped,
    ) {
        let mut gone = Vec::new();
        let mut shard = self.lock(shard_index);
        for slot in shard.slab.slots_of_page(page) {
            let Some(entry) = shard.slab.get(slot) else { continue };
            let epoch = entry.namespace.epoch();
            let stale_ready = entry.ready.as_ref().is_some_and(|version| version.epoch != epoch);
            let stale_pending = entry.pending.as_ref().is_some_and(|pending| pending.epoch != epoch);
            let hash = self.hash(entry.key());
            if stale_ready {
                forgot(&entry.namespace, entry.chunk);
            }
            if stale_pending && let Some(pending) = self.forget_pending(&mut shard, slot) {
                dropped.fenced.extend(pending.holders());
            }
            if stale_ready {
                gone.extend(shard.retire(Place { shard: shard_index, slot }, &self.recency));
                shard.remove_if_empty(slot, hash);
                dropped.ready_chunks += 1;
            }
        }
        // Freeing memory of a whole page of versions waits until others can have the shard.
        drop(shard);
        drop(gone);
    }

    /// Evicts the chunk whose turn it is; `None` when nothing can be evicted.
    pub(crate) fn evict_next(&self) -> Option<Evicted> {
        self.evict_where(|| self.recency.next_victim(), Shard::oldest)
    }

    /// The same among those of one domain. It looks at nothing of others.
    pub(crate) fn evict_next_of(&self, domain: DomainIndex) -> Option<Evicted> {
        self.evict_where(|| self.next_victim_of(domain), |shard, queue| shard.oldest_of(domain, queue))
    }

    fn evict_where(
        &self,
        next_victim: impl Fn() -> Option<(Queue, ShardIndex)>,
        oldest: impl Fn(&Shard, Queue) -> Option<u32>,
    ) -> Option<Evicted> {
        while let Some((queue, shard_index)) = next_victim() {
            let mut shard = self.lock(shard_index);
            // Somebody may have used or evicted it since; then look again.
            let Some(slot) = oldest(&shard, queue) else { continue };
            let place = Place { shard: shard_index, slot };
            if shard.spare(place, &self.recency) {
                continue;
            }
            if planted(Planted::VictimNotLookedAtAgain) {
                drop(shard);
                shard = self.lock(shard_index);
            }
            return self.evict(shard, place);
        }
        None
    }

    fn next_victim_of(&self, domain: DomainIndex) -> Option<(Queue, ShardIndex)> {
        let shards = (0..).map(ShardIndex).take(SHARDS);
        // Bytes and age of both queues in each shard.
        let standings: Vec<_> = shards.map(|shard| self.lock(shard).standing_of(domain)).collect();
        let bytes = |queue: Queue| standings.iter().map(|queues| queues[queue.get()].0).sum::<u64>();
        let probation_bytes = bytes(Queue::Probation);
        evict::choose(probation_bytes + bytes(Queue::Protected), probation_bytes, |queue| {
            evict::oldest(|shard| standings[shard.get()][queue.get()].1)
        })
    }

    /// Where a chunk of this epoch begins that becomes READY.
    fn queue_of_new(&self, shard: &Shard, place: Place, epoch: u32) -> Queue {
        let entry = shard.slab.get(place.slot);
        let hash = entry.map(|entry| self.hash(entry.key()));
        let is_back_soon = hash.is_some_and(|hash| shard.was_evicted_lately(self.fingerprint(hash, epoch)));
        self.recency.eviction().queue_of_new(is_back_soon)
    }

    /// How long it is since the start, for the ages of what is evicted. Whoever sweeps says so.
    pub(crate) fn tell_time(&self, since_start: Duration) {
        self.recency.tell_time(since_start);
    }
    /// How long evicted chunks had not been used, in seconds.
    pub(crate) fn evicted_ages(&self) -> Spread {
        self.evicted_ages.spread()
    }

    /// Takes a chunk out of its shard, which is locked until its memory goes; `None` if nothing is there any more.
    fn evict(&self, mut shard: MutexGuard<'_, Shard>, place: Place) -> Option<Evicted> {
        let entry = shard.slab.get(place.slot)?;
        let (hash, namespace, chunk) = (self.hash(entry.key()), Arc::clone(&entry.namespace), entry.chunk);
        if let Some(version) = &entry.ready {
            self.evicted_ages.observe(self.recency.age_seconds(version.used_at()));
        }
        self.note_removal(entry, Reason::Evicted);
        let version = shard.retire(place, &self.recency);
        shard.remember_evicted(self.fingerprint(hash, namespace.epoch()));
        shard.remove_if_empty(place.slot, hash);
        drop(shard);
        namespace.counters.evicted_chunks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        version.map(|_freed| Evicted { namespace: namespace.digest, chunk })
    }

    /// Arena bytes that evicting everything evictable would free.
    pub(crate) fn evictable_bytes(&self) -> u64 {
        self.recency.evictable_bytes()
    }

    /// What changes, in order.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Begins an epoch of a namespace: nothing of the one before is found any more. See [`Journal::begin_epoch`].
    pub(crate) fn begin_epoch(&self, namespace: &Arc<Namespace>, is_known: impl FnOnce() -> bool) {
        self.journal.begin_epoch(namespace, is_known);
    }

    /// Before the READY version is retired, that is, while its namespace cannot be idle.
    fn note_removal(&self, entry: &Entry, why: Reason) {
        if let Some(version) = &entry.ready {
            self.journal.write(&entry.namespace, version.epoch, Change::Removed(entry.chunk, why));
        }
    }

    fn forget_pending(&self, shard: &mut Shard, slot: u32) -> Option<Box<Pending>> {
        let entry = shard.slab.get_mut(slot)?;
        let hash = self.hash(entry.key());
        let pending = entry.pending.take()?;
        pending.life.advance(State::Absent);
        shard::count(&entry.namespace.counters.pending_chunks, -1);
        shard.remove_if_empty(slot, hash);
        Some(pending)
    }

    fn locate(&self, key: Key<'_>) -> (u64, ShardIndex) {
        let hash = self.hash(key);
        // The table inside a shard uses the lowest and the highest bits.
        let bits = u8::try_from(hash >> 40 & (SHARDS as u64 - 1)).unwrap_or_default();
        (hash, ShardIndex(bits))
    }
    fn hash(&self, key: Key<'_>) -> u64 {
        self.hasher.hash_one((key.namespace.index, key.chunk))
    }
    /// Of a key in one epoch: what a reset forgot is not remembered as evicted.
    fn fingerprint(&self, hash: u64, epoch: u32) -> u64 {
        self.hasher.hash_one((hash, epoch))
    }
    fn lock(&self, shard: ShardIndex) -> MutexGuard<'_, Shard> {
        self.shards[shard.get()].lock()
    }
}

/// A part that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) place: Place,
    /// The version's, which may have begun earlier than this reservation.
    pub(crate) deadline: Instant,
    /// This reservation began the version.
    pub(crate) began: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The goal is 256 bytes for a chunk of one part, at any number of chunks.
    #[test]
    fn the_index_costs_less_than_256_bytes_for_a_chunk() {
        let counts_of_arc_and_malloc = 2 * size_of::<usize>() + size_of::<usize>();
        let version = (size_of::<Version>() + counts_of_arc_and_malloc).next_multiple_of(16);
        // A table of 4-byte slots and 1-byte tags, just after it has doubled.
        let table = (size_of::<u32>() + 1) * 16 / 7;
        let allocator_node = 32;
        // Entries lie in pages, so their number is not rounded up.
        let all = size_of::<Option<Entry>>() + version + table + allocator_node;
        assert!(all < 256, "{all} bytes");
    }
}
