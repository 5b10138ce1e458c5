//! Going through all READY versions, a little at a time, without counting as a use of any.

use std::sync::Arc;

use tender_proto::{ChunkId, Coverage, Reason};

use super::{Index, Pin, Place, SHARDS, ShardIndex, Version};
use crate::namespace::{Named, Namespace};

/// Where a walk has come to. What is stored behind it is seen in the next round.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    shard: u8,
    page: usize,
    /// Slots of the page that are still to come, last first.
    slots: Vec<u32>,
}

/// A version that was READY when it was met. Its bytes stay as long as this is held.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) chunk: ChunkId,
    pub(crate) version: Arc<Version>,
    place: Place,
}

impl Index {
    /// The next READY version; `None` at the end of a round, after which the next one begins.
    pub(crate) fn next_ready(&self, walk: &mut Walk) -> Option<Stored> {
        loop {
            let shard_index = ShardIndex(walk.shard);
            let shard = self.lock(shard_index);
            while let Some(slot) = walk.slots.pop() {
                if let Some(entry) = shard.slab.get(slot)
                    && let Some(version) = &entry.ready
                {
                    return Some(Stored {
                        namespace: Arc::clone(&entry.namespace),
                        chunk: entry.chunk,
                        version: Arc::clone(version),
                        place: Place { shard: shard_index, slot },
                    });
                }
            }
            if walk.page < shard.slab.pages() {
                walk.slots = shard.slab.slots_of_page(walk.page);
                walk.page += 1;
                continue;
            }
            walk.page = 0;
            walk.shard = (walk.shard + 1) % u8::try_from(SHARDS).unwrap_or(1);
            if walk.shard == 0 {
                return None;
            }
        }
    }

    /// What lookups find on the walk's next page; `None` at the end of a round. What is READY all the time of a round is
    /// met in it once.
    pub(crate) fn next_page(&self, walk: &mut Walk) -> Option<Vec<(Arc<Named>, ChunkId, Coverage)>> {
        while usize::from(walk.shard) < SHARDS {
            let shard = self.lock(ShardIndex(walk.shard));
            if walk.page < shard.slab.pages() {
                let slots = shard.slab.slots_of_page(walk.page);
                walk.page += 1;
                let found = |slot| {
                    let entry = shard.slab.get(slot)?;
                    let version = entry.ready.as_ref()?;
                    let current = version.epoch == entry.namespace.epoch();
                    current.then(|| (Arc::clone(&entry.namespace.named), entry.chunk, version.coverage))
                };
                return Some(slots.into_iter().filter_map(found).collect());
            }
            drop(shard);
            walk.page = 0;
            walk.shard += 1;
        }
        *walk = Walk::default();
        None
    }

    /// The versions that would go last of their queues and that nobody holds, newest first.
    pub(crate) fn newest(&self, most: usize) -> Vec<Stored> {
        let mut all = Vec::new();
        for shard_index in (0..).map(ShardIndex).take(SHARDS) {
            let shard = self.lock(shard_index);
            for (_, _, list) in shard.lists.all() {
                let mut next = list.newest();
                for _ in 0..most {
                    let Some((slot, entry)) = next.and_then(|slot| Some((slot, shard.slab.get(slot)?)))
                    else {
                        break;
                    };
                    if let Some(version) = &entry.ready {
                        let (namespace, version) = (Arc::clone(&entry.namespace), Arc::clone(version));
                        let place = Place { shard: shard_index, slot };
                        all.push((entry.listed_at, Stored { namespace, chunk: entry.chunk, version, place }));
                    }
                    next = Some(entry.older);
                }
            }
        }
        all.sort_unstable_by_key(|(listed_at, _)| std::cmp::Reverse(*listed_at));
        all.truncate(most);
        all.into_iter().map(|(_, stored)| stored).collect()
    }

    /// The version that is pinned, if lookups still find it.
    pub(crate) fn stored(&self, pin: &Pin) -> Option<Stored> {
        let shard = self.lock(pin.place().shard);
        let entry = shard.slab.get(pin.place().slot)?;
        let version = entry.ready.as_ref().filter(|ready| Arc::ptr_eq(ready, pin.version()))?;
        Some(Stored {
            namespace: Arc::clone(&entry.namespace),
            chunk: entry.chunk,
            version: Arc::clone(version),
            place: pin.place(),
        })
    }

    /// Takes a version away from lookups, if they still find it. Leases on it end as if it had been reset.
    pub(crate) fn quarantine(&self, stored: &Stored) -> bool {
        let mut shard = self.lock(stored.place.shard);
        let Some(entry) = shard.slab.get(stored.place.slot) else { return false };
        if !entry.ready.as_ref().is_some_and(|ready| Arc::ptr_eq(ready, &stored.version)) {
            return false;
        }
        let hash = self.hash(entry.key());
        self.note_removal(entry, Reason::BadDigest);
        let retired = shard.retire(stored.place, &self.recency);
        shard.remove_if_empty(stored.place.slot, hash);
        drop(shard);
        retired.is_some()
    }
}
