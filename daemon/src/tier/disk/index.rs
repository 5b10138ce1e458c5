//! Where each chunk lies. Less than 150 bytes of memory a chunk, the segments' lists of keys included.

use std::collections::HashMap;

use parking_lot::Mutex;
use tender_proto::{ChunkId, GroupIndex, NamespaceDigest};

/// Stands for namespace, generation, group and chain hash. The generation is drawn by chance and told to nobody, so no
/// client can choose two chunks with one key; a record's header has the whole names and is compared with them.
pub(super) type Key = [u8; 16];

/// Makes keys of one generation of a namespace.
#[derive(Debug)]
pub(super) struct Keys {
    namespace: NamespaceDigest,
    generation: u64,
    /// Chunks of one group come together.
    last: Option<(GroupIndex, Key)>,
}

impl Keys {
    pub(super) fn of(namespace: NamespaceDigest, generation: u64) -> Self {
        Self { namespace, generation, last: None }
    }
    pub(super) fn key(&mut self, chunk: ChunkId) -> Key {
        let tag = match self.last {
            Some((group, tag)) if group == chunk.group => tag,
            _ => self.tag(chunk.group),
        };
        self.last = Some((chunk.group, tag));
        let mut key = tag;
        key.iter_mut().zip(chunk.hash.as_bytes()).for_each(|(byte, hash)| *byte ^= hash);
        key
    }
    fn tag(&self, group: GroupIndex) -> Key {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.namespace.as_bytes());
        hasher.update(&self.generation.to_le_bytes()).update(&group.0.to_le_bytes());
        let mut tag = Key::default();
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        tag
    }
}

/// One record's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) coverage_bits: u64,
    pub(super) slot: u32,
    /// In blocks from the segment's start.
    pub(super) block: u32,
    /// In blocks, header included.
    pub(super) blocks: u32,
    /// It was read since it was written.
    pub(super) read: bool,
}

const SHARDS: usize = 64;

/// All of them, in shards, so that one that grows does not hold up all.
#[derive(Debug)]
pub(super) struct Index {
    shards: Vec<Mutex<HashMap<Key, Entry>>>,
}

impl Index {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
    fn shard(&self, key: &Key) -> &Mutex<HashMap<Key, Entry>> {
        &self.shards[usize::from(key[15]) % SHARDS]
    }
    pub(super) fn get(&self, key: &Key) -> Option<Entry> {
        self.shard(key).lock().get(key).copied()
    }
    /// Puts an entry in place of one that `older` says may go; false when it may not.
    pub(super) fn put(&self, key: Key, entry: Entry, older: impl FnOnce(&Entry) -> bool) -> bool {
        let mut shard = self.shard(&key).lock();
        if shard.get(&key).is_some_and(|old| !older(old)) {
            return false;
        }
        shard.insert(key, entry);
        true
    }
    /// It was read.
    pub(super) fn touch(&self, key: &Key, seen: Entry) {
        if let Some(entry) = self.shard(key).lock().get_mut(key).filter(|entry| is_at(entry, &seen)) {
            entry.read = true;
        }
    }
    /// Takes out the entry if it is still this record's.
    pub(super) fn remove(&self, key: &Key, seen: Entry) -> bool {
        self.remove_if(key, |entry| is_at(entry, &seen))
    }
    /// Takes out the entry if it lies in this segment.
    pub(super) fn remove_of(&self, key: &Key, slot: u32) {
        self.remove_if(key, |entry| entry.slot == slot);
    }
    fn remove_if(&self, key: &Key, which: impl FnOnce(&Entry) -> bool) -> bool {
        let mut shard = self.shard(key).lock();
        let found = shard.get(key).is_some_and(which);
        if found {
            shard.remove(key);
            // A shard that a reset or a shrunk load has emptied gives its memory back.
            if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
                shard.shrink_to_fit();
            }
        }
        found
    }
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

fn is_at(entry: &Entry, seen: &Entry) -> bool {
    (entry.slot, entry.block) == (seen.slot, seen.block)
}

#[cfg(test)]
mod tests {
    use tender_proto::ChainHash;

    use super::*;

    #[test]
    fn a_chunk_takes_less_than_150_bytes() {
        // The table doubles at 7/8, so it is 7/16 full at worst, with a byte beside each place; the segment's list of
        // keys may have twice the room that it needs while it grows.
        let place = size_of::<(Key, Entry)>() + 1;
        assert!(place * 16 / 7 + 2 * size_of::<Key>() < 150, "{place} bytes a place");
    }

    #[test]
    fn everything_that_names_a_chunk_decides_its_key() {
        let chunk =
            |group, byte| ChunkId { group: GroupIndex(group), hash: ChainHash::from_bytes([byte; 32]) };
        let namespace = |byte| NamespaceDigest::from_bytes([byte; 32]);
        let mut keys = Keys::of(namespace(1), 1);
        let mut all = vec![keys.key(chunk(0, 1)), keys.key(chunk(1, 1)), keys.key(chunk(0, 2))];
        assert_eq!(all[0], keys.key(chunk(0, 1)), "the same again");
        all.push(Keys::of(namespace(2), 1).key(chunk(0, 1)));
        all.push(Keys::of(namespace(1), 2).key(chunk(0, 1)));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 5);
    }
}
