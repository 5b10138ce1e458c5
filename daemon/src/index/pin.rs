//! What keeps a version where it is.

use std::sync::Arc;

use super::shard::Shard;
use super::{Entry, Index, Place, Version};

/// Keeps a version from being evicted, and its bytes from being freed. Dropping it takes its shard's lock.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(super) index: Arc<Index>,
    pub(super) place: Place,
    pub(super) version: Arc<Version>,
}

impl Pin {
    /// What is held.
    pub(crate) fn version(&self) -> &Arc<Version> {
        &self.version
    }
    /// Where its entry is or was.
    pub(crate) fn place(&self) -> Place {
        self.place
    }
    /// Whether lookups still find this version.
    pub(crate) fn is_current(&self) -> bool {
        self.current(&mut self.index.lock(self.place.shard)).is_some()
    }
    fn current<'a>(&self, shard: &'a mut Shard) -> Option<&'a mut Entry> {
        let entry = shard.slab.get_mut(self.place.slot)?;
        // A version that somebody holds keeps its address, so equal addresses mean the same version.
        entry.ready.as_ref().is_some_and(|ready| Arc::ptr_eq(ready, &self.version)).then_some(entry)
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        let mut shard = self.index.lock(self.place.shard);
        if let Some(entry) = self.current(&mut shard) {
            entry.pins += 1;
        }
        Self { index: Arc::clone(&self.index), place: self.place, version: Arc::clone(&self.version) }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut guard = self.index.lock(self.place.shard);
        let shard = &mut *guard;
        if let Some(entry) = self.current(shard) {
            entry.pins -= 1;
            if entry.pins == 0 {
                shard.lists.push(&mut shard.slab, self.place.slot, &self.index.recency, self.place.shard);
            }
        }
    }
}
