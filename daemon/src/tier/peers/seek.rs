//! Who holds what: generations, then the directory, then what is remembered until the fetch.

use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashSet;
use tender_proto::{ChunkId, Coverage, Descriptor, NamespaceDigest, PartIndex};
use tokio::time::timeout_at;

use super::PeerTier;
use super::entry::Holder;
use super::link::LinkError;
use super::publisher::Op;
use crate::tier::generations::Learned;
use crate::tier::{Available, Tier, TierNamespace};

/// Who can be asked for a chunk.
#[derive(Debug)]
pub(super) struct Candidates {
    pub(super) generation: u64,
    /// The most blocks first.
    pub(super) list: Vec<Candidate>,
}

#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) holder: Holder,
    pub(super) coverage: Coverage,
    pub(super) address: Arc<str>,
}

impl PeerTier {
    /// The generation in which the caller's epoch is. The directory is asked the first time.
    pub(super) async fn generation(
        &self,
        namespace: &TierNamespace,
        deadline: Instant,
    ) -> Result<Option<u64>, LinkError> {
        if let Some(known) = self.generations.of(namespace.digest, namespace.epoch) {
            return Ok(Some(known));
        }
        let seen = self.directory.generation(namespace.digest, deadline).await?;
        self.heard(namespace.digest, seen, deadline).await;
        Ok(self.generations.of(namespace.digest, namespace.epoch))
    }

    /// Learns a generation, and has a lost one restored. What takes longer than the deadline goes on behind the caller.
    pub(super) async fn heard(&self, namespace: NamespaceDigest, seen: u64, deadline: Instant) {
        let learning = self.generations.learn(namespace, seen);
        if let Ok(Learned::Lost(_)) = timeout_at(deadline.into(), learning).await {
            self.outbox.put(Op::Restore(namespace));
        }
    }

    pub(super) async fn look(
        &self,
        namespace: &TierNamespace,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Result<Vec<Option<Available>>, LinkError> {
        let nothing = Ok(vec![None; chunks.len()]);
        let Some(generation) = self.generation(namespace, deadline).await? else { return nothing };
        let found = self.directory.find(namespace.digest, generation, chunks, deadline).await?;
        if found.generation != generation {
            self.heard(namespace.digest, found.generation, deadline).await;
            return nothing;
        }
        self.resolve(&found.holders, deadline).await?;
        let one = |(&chunk, holders): (&ChunkId, &Vec<Holder>)| {
            self.remember(namespace, generation, chunk, holders)
        };
        Ok(chunks.iter().zip(&found.holders).map(one).collect())
    }

    /// Asks for the addresses of daemons that were not heard of lately.
    async fn resolve(&self, holders: &[Vec<Holder>], deadline: Instant) -> Result<(), LinkError> {
        let ids: HashSet<_> = holders.iter().flatten().map(|holder| holder.daemon).collect();
        let unknown: Vec<_> = ids.into_iter().filter(|id| !self.addresses.contains_key(id)).collect();
        let addresses = self.directory.addresses(&unknown, deadline).await?;
        for (id, address) in unknown.into_iter().zip(addresses) {
            self.addresses.insert(id, address.map(Arc::from));
        }
        Ok(())
    }

    fn remember(
        &self,
        namespace: &TierNamespace,
        generation: u64,
        chunk: ChunkId,
        holders: &[Holder],
    ) -> Option<Available> {
        let group = namespace.descriptor.group_of(chunk).ok()?;
        let candidate = |holder: &Holder| {
            let coverage = match holder.entry.coverage {
                None => Coverage::full(group.blocks_per_chunk),
                Some(bits) => Coverage::new(bits, group.blocks_per_chunk)
                    .ok()
                    .filter(|coverage| !coverage.is_empty())?,
            };
            let address = self.addresses.get(&holder.daemon).flatten()?;
            // An address of its own is one of a daemon before it.
            let usable = *address != *self.address && self.pool.peer(&address).allows();
            usable.then_some(Candidate { holder: *holder, coverage, address })
        };
        let mut list: Vec<_> = holders.iter().filter_map(candidate).collect();
        list.sort_by_key(|candidate| std::cmp::Reverse(candidate.coverage.count()));
        let coverage = list.first()?.coverage;
        let bytes = chunk_bytes(&namespace.descriptor, chunk, coverage)?;
        self.candidates.insert((namespace.digest, chunk), Arc::new(Candidates { generation, list }));
        Some(Available { bytes, coverage: Some(coverage) })
    }

    /// Who was found lately, in the generation of the caller's epoch; else the directory is asked again.
    pub(super) async fn candidates(
        &self,
        namespace: &TierNamespace,
        chunk: ChunkId,
        deadline: Instant,
    ) -> Option<Arc<Candidates>> {
        let known = || {
            let generation = self.generations.of(namespace.digest, namespace.epoch)?;
            let found = self.candidates.get(&(namespace.digest, chunk))?;
            (found.generation == generation).then_some(found)
        };
        if let Some(found) = known() {
            return Some(found);
        }
        self.find(namespace, &[chunk], deadline).await;
        known()
    }
}

/// Bytes of all parts.
pub(super) fn chunk_bytes(descriptor: &Descriptor, chunk: ChunkId, coverage: Coverage) -> Option<u64> {
    let group = descriptor.group_of(chunk).ok()?;
    let part = |part| group.part_bytes(PartIndex(part), coverage).ok();
    (0..u16::try_from(group.parts()).ok()?).map(part).sum()
}
