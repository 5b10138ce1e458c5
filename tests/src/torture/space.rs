//! What is stored under torture: a few namespaces of different shapes, and what every byte of theirs must be.

use tender_proto::{BlocksPerChunk, ChunkId, Coverage, Descriptor, Group, GroupKind, PartIndex};

use crate::fixture;
use crate::pattern::Place;

/// How much a store covers: each level has all that the one before it has.
pub const LEVELS: u64 = 3;

/// One chunk: index of its namespace, its group, its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Index into [`Space::namespaces`].
    pub namespace: usize,
    /// Group of the namespace.
    pub group: u16,
    /// Number within the group.
    pub n: u64,
}

/// Everything that may be stored.
#[derive(Clone, Debug)]
pub struct Space {
    /// The namespaces.
    pub namespaces: Vec<Descriptor>,
    /// Chunks of each group.
    pub chunks_per_group: u64,
}

impl Space {
    /// Three namespaces: one part; three parts of unequal size; two groups of two parts, one of them a window.
    pub fn new(name: &str, chunks_per_group: u64) -> Self {
        let window = Group::new(
            GroupKind::SlidingWindow,
            std::num::NonZeroU32::new(16).expect("tokens"),
            BlocksPerChunk::new(2).expect("blocks"),
            std::num::NonZeroU32::new(48),
            vec![6000, 6000],
        );
        let groups = [
            vec![fixture::group(16, 4, &[4096])],
            vec![fixture::group(16, 8, &[2048, 2048, 1000])],
            vec![fixture::group(16, 4, &[3000, 3000]), window.expect("a possible group")],
        ];
        let named = |(index, groups)| fixture::descriptor(&format!("{name} {index}"), groups);
        Self { namespaces: groups.into_iter().enumerate().map(named).collect(), chunks_per_group }
    }

    /// Every key there is.
    pub fn keys(&self, namespace: usize) -> Vec<Key> {
        let groups = 0..u16::try_from(self.namespaces[namespace].groups.len()).expect("few groups");
        groups
            .flat_map(|group| (0..self.chunks_per_group).map(move |n| Key { namespace, group, n }))
            .collect()
    }

    /// As it goes into a message.
    pub fn chunk(&self, key: Key) -> ChunkId {
        fixture::chunk_of(key.group, key.n)
    }

    /// Parts of a chunk.
    pub fn parts(&self, key: Key) -> Vec<PartIndex> {
        (0..self.group(key).parts()).map(|part| PartIndex(u16::try_from(part).expect("few parts"))).collect()
    }

    /// What a store of this level covers: holes at level 0, fewer at level 1, none at the last.
    pub fn coverage(&self, key: Key, level: u64) -> Coverage {
        let blocks = self.group(key).blocks_per_chunk;
        let mut coverage = Coverage::empty(blocks);
        let first = u32::try_from(key.n).expect("small numbers") % blocks.get();
        for block in 0..blocks.get() {
            let rank = u64::from(block) * 7 + key.n * 5 + u64::from(key.group);
            if level + 1 >= LEVELS || block == first || rank % LEVELS <= level {
                coverage = coverage.with(block);
            }
        }
        coverage
    }

    /// A coverage from its word; `None` if it is none of this chunk.
    pub fn coverage_of(&self, key: Key, bits: u64) -> Option<Coverage> {
        Coverage::new(bits, self.group(key).blocks_per_chunk).ok()
    }

    /// The bytes of a part as they are right in this epoch, and in no other.
    pub fn bytes(&self, key: Key, part: PartIndex, coverage: Coverage, epoch: u64) -> Vec<u8> {
        let descriptor = &self.namespaces[key.namespace];
        let block_bytes = self.group(key).block_bytes(part).expect("a part of the group");
        Place::new(descriptor.digest(), self.chunk(key), part).by(writer(epoch)).part(coverage, block_bytes)
    }

    /// Arena bytes that a chunk takes at most, rounding included.
    pub fn footprint_bytes(&self, key: Key) -> u64 {
        let blocks = u64::from(self.group(key).blocks_per_chunk.get());
        let group = self.group(key);
        self.parts(key)
            .into_iter()
            .map(|part| (group.block_bytes(part).expect("a part") * blocks).next_multiple_of(4096))
            .sum()
    }

    fn group(&self, key: Key) -> &Group {
        &self.namespaces[key.namespace].groups[usize::from(key.group)]
    }
}

/// The mark of an epoch in the bytes. Epochs that follow each other have different marks.
fn writer(epoch: u64) -> u16 {
    u16::try_from(epoch & 0xffff).expect("sixteen bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_grow_and_epochs_differ() {
        let space = Space::new("levels", 40);
        let mut with_holes = 0;
        for key in (0..3).flat_map(|namespace| space.keys(namespace)) {
            let levels: Vec<_> = (0..LEVELS).map(|level| space.coverage(key, level)).collect();
            assert!(!levels[0].is_empty() && levels[2].is_full());
            assert!(levels[1].contains(levels[0]) && levels[2].contains(levels[1]));
            with_holes += usize::from(!levels[0].is_full());
            let part = space.parts(key)[0];
            assert_ne!(space.bytes(key, part, levels[0], 7), space.bytes(key, part, levels[0], 8));
        }
        assert!(with_holes > 40);
    }
}
