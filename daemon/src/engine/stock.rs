//! Chunks without bytes, for measurements of `tests/`: what holds chunks is filled without memory for what they hold.

use tender_proto::{ChunkId, ContentDigest, Coverage, NamespaceDigest, PartIndex, ReservationId};

use super::Engine;
use crate::arena::catalogue::PartEntry;
use crate::index::{Key, Part, Version};

impl Engine {
    /// Makes a chunk of one part READY whose bytes nobody has written, and with `record` writes it down as a part that was
    /// verified. False: there was no room, or the chunk was there.
    pub(crate) fn stock(&self, namespace: NamespaceDigest, chunk: ChunkId, bytes: u64, record: bool) -> bool {
        let core = &self.core;
        let Some(namespace) = core.namespaces.get(namespace) else { return false };
        let Ok(group) = namespace.descriptor.group_of(chunk) else { return false };
        let (Some(extent), Some(first)) = (core.arena.pool().allocate(bytes), ReservationId::new(1)) else {
            return false;
        };
        let (coverage, digest) = (Coverage::full(group.blocks_per_chunk), ContentDigest::of(&[]));
        let entry = PartEntry {
            namespace: namespace.entry.as_ref(),
            epoch: namespace.epoch(),
            first,
            chunk,
            part: PartIndex(0),
            coverage_bits: coverage.bits(),
            digest,
            extent: &extent,
        };
        let record = record.then(|| core.arena.catalogue().add_part(entry)).flatten();
        let parts = vec![Part { record, extent, digest }];
        let version = Version::restored(coverage, namespace.epoch(), parts);
        core.index.restore(Key { namespace: &namespace, chunk }, version)
    }
}
