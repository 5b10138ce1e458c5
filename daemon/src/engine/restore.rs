//! A start on an arena that an earlier daemon left: every chunk that was READY is served at once, nothing else is.
//!
//! Takes time by the number of chunks. The bytes are not read: they were verified before they were written down, and a
//! reader over the network verifies them again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tender_proto::{ChunkId, Coverage};

use super::Core;
use crate::arena::catalogue::OldNamespace;
use crate::arena::record::{PartRecord, VersionId};
use crate::arena::{Old, OldPart};
use crate::index::{Key, Part, Version};
use crate::namespace::Namespace;

/// What was found when the daemon began.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// Chunks that are READY again.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Parts that were left out: of chunks that had not all parts, of an epoch that is over, or replaced.
    pub dropped_parts: u64,
    /// Records that were damaged or named what cannot be.
    pub dropped_records: u64,
    /// There was an arena, and nothing of it could be served: why.
    pub discarded: Option<&'static str>,
    /// How long it took, the file's checks included.
    pub took: Duration,
}

/// One version's parts, as they come.
type Versions = HashMap<(u32, ChunkId, VersionId), Vec<OldPart>>;

impl Core {
    pub(super) fn restore(&self, old: Old, begin: Instant) -> Restored {
        let mut restored = Restored {
            dropped_records: old.dropped_records,
            discarded: old.discarded,
            ..Restored::default()
        };
        let records = old.namespaces.len();
        let namespaces: HashMap<u32, Arc<Namespace>> = each_once(old.namespaces)
            .map(|old| (old.entry.slot_index(), self.namespaces.restore(old)))
            .collect();
        restored.dropped_records += (records - namespaces.len()) as u64;
        let all_parts = old.parts.len() as u64;
        let mut versions = Versions::new();
        for part in old.parts {
            let PartRecord { namespace_slot, chunk, version, .. } = part.record;
            versions.entry((namespace_slot, chunk, version)).or_default().push(part);
        }
        let mut in_order: Vec<_> = versions.into_iter().collect();
        // The newest first, so that of two versions of a key the newer one is found.
        let written = |parts: &[OldPart]| parts.iter().map(|part| part.record.sequence).max();
        in_order.sort_unstable_by_key(|((_, _, version), parts)| {
            std::cmp::Reverse((version.boot, written(parts)))
        });
        let mut whole = Vec::new();
        let mut seen = HashSet::new();
        for ((slot, chunk, _), parts) in in_order {
            let Some(namespace) = namespaces.get(&slot) else { continue };
            if let Some(version) = whole_version(namespace, parts)
                && seen.insert((slot, chunk))
            {
                whole.push((namespace, chunk, version));
            }
        }
        let mut kept_parts = 0;
        // The oldest goes in first and is evicted first.
        for (namespace, chunk, version) in whole.into_iter().rev() {
            let (parts, bytes) = (version.parts().len() as u64, version.bytes());
            if self.index.restore(Key { namespace, chunk }, version) {
                restored.chunks += 1;
                restored.bytes += bytes;
                kept_parts += parts;
            }
        }
        restored.dropped_parts = all_parts - kept_parts;
        restored.took = self.clock.now().saturating_duration_since(begin);
        restored.log();
        restored
    }
}

/// Of several records of one namespace, which only damage can make, the one of the latest epoch, else the first. What
/// names another one goes with it: its place may be taken by another namespace's record next.
fn each_once(old: Vec<OldNamespace>) -> impl Iterator<Item = OldNamespace> {
    let mut kept = HashMap::new();
    for old in &old {
        let this = (std::cmp::Reverse(old.epoch), old.entry.slot_index());
        kept.entry(old.descriptor.digest()).and_modify(|best| *best = this.min(*best)).or_insert(this);
    }
    let kept: HashSet<u32> = kept.into_values().map(|(_, slot)| slot).collect();
    old.into_iter().filter(move |old| kept.contains(&old.entry.slot_index()))
}

/// The chunk, if every part of it is there and all of them agree with each other and with the namespace.
fn whole_version(namespace: &Namespace, mut parts: Vec<OldPart>) -> Option<Version> {
    parts.sort_unstable_by_key(|part| part.record.part);
    let first = parts.first()?.record;
    let group = namespace.descriptor.group_of(first.chunk).ok()?;
    let coverage = Coverage::new(first.coverage_bits, group.blocks_per_chunk).ok()?;
    if coverage.is_empty() || first.epoch != namespace.epoch() || parts.len() != group.parts() {
        return None;
    }
    let agrees = |(index, part): (usize, &OldPart)| {
        let record = part.record;
        usize::from(record.part.0) == index
            && record.coverage_bits == first.coverage_bits
            && record.epoch == first.epoch
            && group.part_bytes(record.part, coverage) == Ok(record.bytes)
    };
    if !parts.iter().enumerate().all(agrees) {
        return None;
    }
    let part = |old: OldPart| Part { record: Some(old.slot), extent: old.extent, digest: old.record.digest };
    Some(Version::restored(coverage, first.epoch, parts.into_iter().map(part).collect()))
}

impl Restored {
    fn log(&self) {
        if let Some(why) = self.discarded {
            tracing::warn!(why, "the arena's old contents are dropped; beginning with nothing");
        }
        if self.dropped_records > 0 {
            tracing::warn!(
                records = self.dropped_records,
                "records of the arena were damaged and are dropped"
            );
        }
        if self.chunks > 0 || self.dropped_parts > 0 {
            tracing::info!(
                chunks = self.chunks, bytes = self.bytes, dropped_parts = self.dropped_parts, took = ?self.took,
                "the arena serves what an earlier daemon stored"
            );
        }
    }
}
