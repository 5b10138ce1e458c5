//! A recount of the whole index from its entries.

use std::collections::BTreeMap;

use tender_proto::{PartIndex, ReservationId};

use super::evict::{NONE, Queue};
use super::queues::List;
use super::state::State;
use super::version::Slot;
use super::{Entry, Index, Part, Place, SHARDS, Shard, ShardIndex};

/// What the entries say.
#[derive(Debug, Default)]
pub(crate) struct IndexAudit {
    pub(crate) ready_chunks: u64,
    pub(crate) pending_chunks: u64,
    /// Parts that reservations hold, and where.
    pub(crate) held: BTreeMap<ReservationId, (Place, PartIndex)>,
    /// Offset and footprint of every extent, in bytes.
    pub(crate) extents: Vec<(u64, u64)>,
    /// Parts that are in the arena's catalogue.
    pub(crate) recorded_parts: u64,
    /// Permits of parts that wait for others.
    pub(crate) waiting_bytes: u64,
    /// Pins on each pinned READY version.
    pub(crate) pins: BTreeMap<Place, u32>,
    /// READY chunks, READY bytes and pending chunks of each namespace, by its index.
    pub(crate) namespaces: BTreeMap<u32, (u64, u64, u64)>,
}

impl Index {
    /// Recounts everything. Exact when nobody changes anything meanwhile; it locks one shard after another.
    pub(crate) fn audit(&self) -> Result<IndexAudit, String> {
        let mut found = IndexAudit::default();
        let (mut evictable_bytes, mut probation_bytes) = (0, 0);
        for shard_index in (0..).map(ShardIndex).take(SHARDS) {
            let shard = self.lock(shard_index);
            if shard.table.len() != shard.slab.len() {
                return Err(format!("{} keys for {} entries", shard.table.len(), shard.slab.len()));
            }
            for slot in (0..shard.slab.pages()).flat_map(|page| shard.slab.slots_of_page(page)) {
                let Some(entry) = shard.slab.get(slot) else { continue };
                let (hash, home) = self.locate(entry.key());
                if home != shard_index || shard.find(hash, entry.key()) != Some(slot) {
                    return Err(format!("{} cannot be found by its key", entry.chunk));
                }
                found.add(Place { shard: shard_index, slot }, entry)?;
            }
            let [probation, protected] = self.audit_lists(&shard, shard_index)?;
            evictable_bytes += probation + protected;
            probation_bytes += probation;
        }
        if evictable_bytes != self.evictable_bytes() {
            return Err(format!("{evictable_bytes} bytes evictable, {} counted", self.evictable_bytes()));
        }
        if probation_bytes != self.recency.probation_bytes() {
            let counted = self.recency.probation_bytes();
            return Err(format!("{probation_bytes} bytes on probation, {counted} counted"));
        }
        Ok(found)
    }

    /// The lists have exactly the evictable entries, each in that of its domain and queue. The bytes of each queue.
    fn audit_lists(&self, shard: &Shard, shard_index: ShardIndex) -> Result<[u64; Queue::ALL.len()], String> {
        let (mut bytes, mut listed) = ([0; Queue::ALL.len()], 0);
        for (domain, queue, list) in shard.lists.all() {
            let entries = audit_list(shard, list)?;
            if let Some(entry) =
                entries.iter().find(|entry| (entry.namespace.domain, entry.queue) != (domain, queue))
            {
                return Err(format!("{} is in the list of another domain or queue", entry.chunk));
            }
            bytes[queue.get()] += list.bytes();
            listed += entries.len();
        }
        let all = (0..shard.slab.pages()).flat_map(|page| shard.slab.slots_of_page(page));
        let evictable = all
            .filter_map(|slot| shard.slab.get(slot))
            .filter(|entry| entry.ready.is_some() && entry.pins == 0)
            .count();
        if listed != evictable {
            return Err(format!("{listed} entries listed, {evictable} evictable"));
        }
        for queue in Queue::ALL {
            let oldest = shard.lists.with_oldest(queue).map_or(u64::MAX, List::oldest_listed_at);
            if self.recency.announced(shard_index, queue) != oldest {
                return Err(format!("shard {shard_index:?} announces the wrong oldest entry of {queue:?}"));
            }
        }
        Ok(bytes)
    }
}

/// A list is linked both ways, newest first, and has the bytes that it says. Its entries.
fn audit_list<'a>(shard: &'a Shard, list: &List) -> Result<Vec<&'a Entry>, String> {
    let (mut bytes, mut entries) = (0, Vec::new());
    let (mut newer, mut at) = (NONE, list.newest());
    while let Some(slot) = at {
        let entry = shard.slab.get(slot).ok_or("a listed entry is gone")?;
        let version = entry.ready.as_ref().ok_or("a listed entry has nothing to evict")?;
        if entry.pins > 0 {
            return Err(format!("{} is pinned and evictable", entry.chunk));
        }
        let follows = entries.last().is_none_or(|newer: &&Entry| newer.listed_at > entry.listed_at);
        if entry.newer != newer || !follows {
            return Err(format!("{} is out of order", entry.chunk));
        }
        bytes += version.footprint_bytes();
        entries.push(entry);
        newer = slot;
        at = (entry.older != NONE).then_some(entry.older);
    }
    let oldest = entries.last().map_or(u64::MAX, |entry| entry.listed_at);
    if (list.oldest().unwrap_or(NONE), list.oldest_listed_at(), list.bytes()) != (newer, oldest, bytes) {
        return Err("a list says the wrong oldest entry or bytes".into());
    }
    Ok(entries)
}

/// Parts of these that are in the arena's catalogue.
pub(crate) fn recorded(parts: &[Part]) -> u64 {
    parts.iter().filter(|part| part.record.is_some()).count() as u64
}

impl IndexAudit {
    fn add(&mut self, place: Place, entry: &Entry) -> Result<(), String> {
        if entry.is_empty() {
            return Err(format!("{} is kept for nothing", entry.chunk));
        }
        let (mut ready, mut ready_bytes, mut pending_count) = (0, 0, 0);
        if let Some(version) = &entry.ready {
            if version.life.state() != State::Ready {
                return Err(format!("{} is found but {:?}", entry.chunk, version.life.state()));
            }
            (ready, ready_bytes) = (1, version.bytes());
            let extents = version.parts().iter().map(|part| &part.extent);
            self.extents.extend(extents.map(|extent| (extent.offset_bytes(), extent.footprint_bytes())));
            self.recorded_parts += recorded(version.parts());
            if entry.pins > 0 {
                self.pins.insert(place, entry.pins);
            }
        } else if entry.pins > 0 {
            return Err(format!("{} has pins on nothing", entry.chunk));
        }
        if let Some(pending) = &entry.pending {
            pending_count = 1;
            if !matches!(pending.life.state(), State::Reserved | State::Filling)
                || pending.is_abandoned()
                || pending.is_complete()
            {
                return Err(format!("{} is stuck: {pending:?}", entry.chunk));
            }
            for (part, slot) in (0..).map(PartIndex).zip(&pending.slots) {
                match slot {
                    Slot::Empty => {}
                    Slot::Held(id) => {
                        self.held.insert(*id, (place, part));
                    }
                    Slot::Done(part, permit) => {
                        self.extents.push((part.extent.offset_bytes(), part.extent.footprint_bytes()));
                        self.waiting_bytes += permit.bytes();
                        self.recorded_parts += recorded(std::slice::from_ref(part));
                    }
                }
            }
        }
        self.ready_chunks += ready;
        self.pending_chunks += pending_count;
        let sums = self.namespaces.entry(entry.namespace.index).or_default();
        *sums = (sums.0 + ready, sums.1 + ready_bytes, sums.2 + pending_count);
        Ok(())
    }
}
