//! What is stored, for whoever tells others of it.

use tender_proto::{ChunkId, ContentDigest, Coverage, NamespaceDigest};

use super::Engine;
use crate::index::{Stored, Walk};

/// A chunk that was READY when it was met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Toured {
    pub(crate) namespace: NamespaceDigest,
    /// The namespace's epoch in which it was reserved.
    pub(crate) epoch: u32,
    pub(crate) chunk: ChunkId,
    pub(crate) coverage: Coverage,
    /// Part p's at index p.
    pub(crate) digests: Vec<ContentDigest>,
}

impl Engine {
    /// At most `most` chunks from where the walk has come to, and whether that was the end of a round. Counts as no use
    /// of any.
    pub(crate) fn tour(&self, walk: &mut Walk, most: usize) -> (Vec<Toured>, bool) {
        let mut met = Vec::new();
        while met.len() < most {
            match self.core.index.next_ready(walk) {
                Some(stored) => met.push(Toured::of(&stored)),
                None => return (met, true),
            }
        }
        (met, false)
    }

    /// Chunks that lookups find, in all namespaces.
    pub(crate) fn ready_chunks(&self) -> u64 {
        let count = |namespace: &crate::namespace::Namespace| {
            namespace.counters.ready_chunks.load(std::sync::atomic::Ordering::Acquire)
        };
        self.core.namespaces.list().iter().map(|(namespace, _)| count(namespace)).sum()
    }

    /// The chunks that were used last, newest first. Those that somebody holds now are not among them.
    pub(crate) fn hottest(&self, most: usize) -> Vec<Toured> {
        self.core.index.newest(most).iter().map(Toured::of).collect()
    }
}

impl Toured {
    fn of(stored: &Stored) -> Self {
        Self {
            namespace: stored.namespace.digest,
            epoch: stored.version.epoch,
            chunk: stored.chunk,
            coverage: stored.version.coverage,
            digests: stored.version.parts().iter().map(|part| part.digest).collect(),
        }
    }
}
