//! The lists that victims are taken from. Each shard has some for each domain, so that a domain at its quota finds its own
//! victim as fast as anybody's is found; of each domain one for each [`Queue`].
//!
//! They hold exactly the evictable entries: a pinned entry leaves its list and comes back with its last pin, so finding a
//! victim never skips over anything. The links are in the entries.

use hashbrown::HashMap;

use super::evict::{NONE, Queue, Recency};
use super::slab::Slab;
use super::{Entry, ShardIndex};
use crate::namespace::DomainIndex;

/// One list.
#[derive(Debug)]
pub(super) struct List {
    newest: u32,
    oldest: u32,
    /// Of the oldest entry; `u64::MAX` without one.
    oldest_listed_at: u64,
    /// That evicting all of it would free.
    bytes: u64,
}

impl Default for List {
    fn default() -> Self {
        Self { newest: NONE, oldest: NONE, oldest_listed_at: u64::MAX, bytes: 0 }
    }
}

impl List {
    /// The entry that came last.
    pub(super) fn newest(&self) -> Option<u32> {
        (self.newest != NONE).then_some(self.newest)
    }
    /// The next victim.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }
    /// When the next victim came; `u64::MAX` without one.
    pub(super) fn oldest_listed_at(&self) -> u64 {
        self.oldest_listed_at
    }
    /// Arena bytes of all in it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts an entry in front. True: it is the oldest, too.
    fn push(&mut self, slab: &mut Slab, slot: u32, bytes: u64) -> bool {
        let next = self.newest;
        let Some(entry) = slab.get_mut(slot) else { return false };
        (entry.newer, entry.older) = (NONE, next);
        let listed_at = entry.listed_at;
        if let Some(next) = slab.get_mut(next) {
            next.newer = slot;
        } else {
            (self.oldest, self.oldest_listed_at) = (slot, listed_at);
        }
        self.newest = slot;
        self.bytes += bytes;
        self.oldest == slot
    }

    /// Takes an entry out that is in. True: it was the oldest.
    fn remove(&mut self, slab: &mut Slab, slot: u32, bytes: u64) -> bool {
        let Some(entry) = slab.get_mut(slot) else { return false };
        let (newer, older) = (entry.newer, entry.older);
        (entry.newer, entry.older) = (NONE, NONE);
        match slab.get_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        self.bytes -= bytes;
        if let Some(entry) = slab.get_mut(older) {
            entry.newer = newer;
            return false;
        }
        self.oldest = newer;
        self.oldest_listed_at = slab.get(newer).map_or(u64::MAX, |entry| entry.listed_at);
        true
    }
}

/// All lists of a shard. A domain without an evictable entry has none.
#[derive(Debug, Default)]
pub(super) struct Lists {
    domains: HashMap<DomainIndex, [List; Queue::ALL.len()]>,
}

impl Lists {
    /// Every list.
    pub(super) fn all(&self) -> impl Iterator<Item = (DomainIndex, Queue, &List)> {
        self.domains
            .iter()
            .flat_map(|(domain, lists)| Queue::ALL.into_iter().zip(lists).map(|(q, list)| (*domain, q, list)))
    }
    /// One domain's list of a queue; `None` when nothing of the domain can be evicted.
    pub(super) fn of(&self, domain: DomainIndex, queue: Queue) -> Option<&List> {
        Some(&self.domains.get(&domain)?[queue.get()])
    }
    /// The list that the next victim of a queue is in, whosever it is.
    pub(super) fn with_oldest(&self, queue: Queue) -> Option<&List> {
        self.domains.values().map(|lists| &lists[queue.get()]).min_by_key(|list| list.oldest_listed_at)
    }

    /// Puts an entry in front of its queue.
    pub(super) fn push(&mut self, slab: &mut Slab, slot: u32, recency: &Recency, shard: ShardIndex) {
        let Some(entry) = slab.get_mut(slot) else { return };
        entry.listed_at = recency.next_number();
        let (domain, queue, bytes) = (entry.namespace.domain, entry.queue, footprint_bytes(entry));
        recency.add(queue, bytes);
        if self.domains.entry(domain).or_default()[queue.get()].push(slab, slot, bytes) {
            self.publish(queue, recency, shard);
        }
    }

    /// Takes an entry out. It must be in, and still have the version and the queue that it was put in with.
    pub(super) fn remove(&mut self, slab: &mut Slab, slot: u32, recency: &Recency, shard: ShardIndex) {
        let Some(entry) = slab.get(slot) else { return };
        let (domain, queue, bytes) = (entry.namespace.domain, entry.queue, footprint_bytes(entry));
        let Some(lists) = self.domains.get_mut(&domain) else { return };
        let was_oldest = lists[queue.get()].remove(slab, slot, bytes);
        if lists.iter().all(|list| list.oldest == NONE) {
            self.domains.remove(&domain);
        }
        recency.subtract(queue, bytes);
        if was_oldest {
            self.publish(queue, recency, shard);
        }
    }

    fn publish(&self, queue: Queue, recency: &Recency, shard: ShardIndex) {
        recency.announce(shard, queue, self.with_oldest(queue).map_or(u64::MAX, List::oldest_listed_at));
    }
}

fn footprint_bytes(entry: &Entry) -> u64 {
    entry.ready.as_ref().map_or(0, |version| version.footprint_bytes())
}
