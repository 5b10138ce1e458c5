//! A recount of the whole index from its entries.

use std::collections::BTreeMap;

use tender_proto::{PartIndex, ReservationId};

use super::evict::NONE;
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
        let mut evictable_bytes = 0;
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
            evictable_bytes += self.audit_list(&shard, shard_index)?;
        }
        if evictable_bytes != self.evictable_bytes() {
            return Err(format!("{evictable_bytes} bytes evictable, {} counted", self.evictable_bytes()));
        }
        Ok(found)
    }

    /// The recency list has exactly the evictable entries, newest first, linked both ways.
    fn audit_list(&self, shard: &Shard, shard_index: ShardIndex) -> Result<u64, String> {
        let (mut bytes, mut listed, mut newer) = (0, 0, None::<(u32, u64)>);
        let mut at = shard.lru.newest();
        while let Some(slot) = at {
            let entry = shard.slab.get(slot).ok_or("a listed entry is gone")?;
            let version = entry.ready.as_ref().ok_or("a listed entry has nothing to evict")?;
            if entry.pins > 0 {
                return Err(format!("{} is pinned and evictable", entry.chunk));
            }
            if newer.is_some_and(|(slot, used_at)| slot != entry.newer || used_at <= entry.used_at) {
                return Err(format!("{} is out of order", entry.chunk));
            }
            (bytes, listed) = (bytes + version.footprint_bytes(), listed + 1);
            newer = Some((slot, entry.used_at));
            at = (entry.older != NONE).then_some(entry.older);
        }
        let all = (0..shard.slab.pages()).flat_map(|page| shard.slab.slots_of_page(page));
        let evictable = all
            .filter_map(|slot| shard.slab.get(slot))
            .filter(|entry| entry.ready.is_some() && entry.pins == 0)
            .count();
        if listed != evictable || shard.lru.oldest() != newer.map(|(slot, _)| slot) {
            return Err(format!("{listed} entries listed, {evictable} evictable"));
        }
        let oldest = newer.map_or(u64::MAX, |(_, used_at)| used_at);
        if self.recency.oldest_of(shard_index) != oldest {
            return Err(format!("shard {shard_index:?} announces the wrong oldest entry"));
        }
        Ok(bytes)
    }
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
