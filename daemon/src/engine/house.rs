//! The daemon's own session: through it tiers read what is stored and store what they bring, under the same rules as
//! any client.

use std::sync::Arc;

use tender_proto::{
    ChunkId, ContentDigest, Coverage, Descriptor, LeaseId, NamespaceDigest, PartIndex, Reason, Refusal,
    SessionId,
};

use super::{
    Already, ChunkAnswer, Engine, LeaseAsk, LookupAnswer, PartReader, PartWriter, ReserveAnswer, ReserveAsk,
};
use crate::session::Owner;
use crate::tier::TierNamespace;

/// The session; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct House {
    engine: Arc<Engine>,
    session: SessionId,
}

/// A chunk that is being brought in: all its parts are reserved. Dropping it gives up those that are not finished.
#[derive(Debug)]
pub(crate) struct Filling {
    /// Part p at index p; taken to be finished.
    parts: Vec<Option<PartWriter>>,
    coverage: Coverage,
}

/// Why a chunk cannot be brought in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unfilled {
    /// There is no need to.
    Already(Already),
    /// There is no room, no such chunk, or the namespace was reset.
    Refused(Reason),
}

/// A READY chunk under a lease of the house, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct OpenChunk {
    /// Part p at index p.
    pub(crate) parts: Vec<PartReader>,
    pub(crate) coverage: Coverage,
    _lease: HouseLease,
}

/// A lease of the house, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct HouseLease {
    engine: Arc<Engine>,
    pub(crate) session: SessionId,
    pub(crate) lease: LeaseId,
}

impl Drop for HouseLease {
    fn drop(&mut self) {
        _ = self.engine.release(self.session, &[self.lease.get()]);
    }
}

impl House {
    /// Opens the session.
    pub(crate) fn open(engine: &Arc<Engine>) -> Result<Self, Refusal> {
        let session = engine.open_session_of(Owner::house(), "tiers", std::process::id())?;
        Ok(Self { engine: Arc::clone(engine), session })
    }

    /// The engine behind it.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Its leases and reservations now.
    pub(crate) fn held(&self) -> (u64, u64) {
        let core = &self.engine.core;
        (core.leases.held_by(self.session), core.reservations.held_by(self.session))
    }

    /// A namespace that somebody has registered, as it is now.
    pub(crate) fn namespace(&self, digest: NamespaceDigest) -> Option<TierNamespace> {
        let namespace = self.engine.core.namespaces.get(digest)?;
        Some(TierNamespace { digest, descriptor: namespace.descriptor.clone(), epoch: namespace.epoch() })
    }

    /// The same for one that perhaps nobody here has registered; `None` when there are too many.
    pub(crate) fn know(&self, descriptor: &Descriptor) -> Option<TierNamespace> {
        let digest = descriptor.digest();
        self.engine.register(self.session, descriptor.clone(), digest, None).ok()?;
        self.namespace(digest)
    }

    /// All that somebody has registered.
    pub(crate) fn namespaces(&self) -> Vec<TierNamespace> {
        let all = self.engine.core.namespaces.list();
        all.iter().filter_map(|(namespace, _)| self.namespace(namespace.digest)).collect()
    }

    /// Bytes of all parts of a chunk whose every block is stored.
    pub(crate) fn full_chunk_bytes(&self, digest: NamespaceDigest, chunk: ChunkId) -> Option<u64> {
        let namespace = self.engine.core.namespaces.get(digest)?;
        let group = namespace.descriptor.group_of(chunk).ok()?;
        let blocks: u64 = (0..).map(PartIndex).map_while(|part| group.block_bytes(part)).sum();
        Some(blocks * u64::from(group.blocks_per_chunk.get()))
    }

    /// The epoch of a namespace now; `None` when nobody knows it any more.
    pub(crate) fn epoch(&self, digest: NamespaceDigest) -> Option<u32> {
        Some(self.engine.core.namespaces.get(digest)?.epoch())
    }

    /// Whether a chunk is READY. Nobody counts this as a question.
    pub(crate) fn has(&self, namespace: &TierNamespace, chunk: ChunkId) -> bool {
        let look = || {
            self.bind(namespace).ok()?;
            self.engine.look(self.session, namespace.digest, &[chunk], LeaseAsk::None).ok()
        };
        look().is_some_and(|answer| matches!(answer.chunks[..], [ChunkAnswer::Ready { .. }]))
    }

    /// Reserves all parts of a chunk that was stored in the namespace's epoch.
    pub(crate) fn fill(
        &self,
        namespace: &TierNamespace,
        chunk: ChunkId,
        coverage: Coverage,
    ) -> Result<Filling, Unfilled> {
        let refused = |refusal: Refusal| Unfilled::Refused(refusal.reason);
        let group = namespace.descriptor.group_of(chunk).map_err(refused)?;
        let ask = |part: PartIndex| {
            let bytes = group.part_bytes(part, coverage)?;
            Ok(ReserveAsk { chunk, part, coverage_bits: coverage.bits(), bytes })
        };
        let parts = (0..).map(PartIndex).take(group.parts());
        let asks: Vec<_> = parts.map(ask).collect::<Result<_, Refusal>>().map_err(refused)?;
        self.bind(namespace).map_err(refused)?;
        let (answers, _) = self
            .engine
            .reserve_gathered(self.session, namespace.digest, Some(namespace.epoch), &asks)
            .map_err(refused)?;
        let reserved: Vec<u64> = answers.iter().filter_map(reservation).collect();
        if reserved.len() < answers.len() {
            _ = self.engine.abort(self.session, &reserved);
            let no = answers.into_iter().find_map(|answer| match answer {
                ReserveAnswer::Reserved(_) => None,
                ReserveAnswer::Already(already) => Some(Unfilled::Already(already)),
                ReserveAnswer::Refused(reason) => Some(Unfilled::Refused(reason)),
            });
            return Err(no.unwrap_or(Unfilled::Refused(Reason::Internal)));
        }
        let begin = |&id: &u64| self.engine.begin_write(self.session, id).map(Some);
        match reserved.iter().map(begin).collect::<Result<_, Reason>>() {
            Ok(parts) => Ok(Filling { parts, coverage }),
            Err(reason) => {
                _ = self.engine.abort(self.session, &reserved);
                Err(Unfilled::Refused(reason))
            }
        }
    }

    /// Leases those of the chunks that are READY: an answer for each, and a lease if any is. Nobody counts this as a
    /// question.
    pub(crate) fn lease(
        &self,
        namespace: &TierNamespace,
        chunks: &[ChunkId],
    ) -> Result<(Vec<ChunkAnswer>, Option<HouseLease>), Refusal> {
        self.bind(namespace)?;
        let ask = LeaseAsk::Lease { ttl: None, locate: false };
        let LookupAnswer { chunks, lease } = self.engine.look(self.session, namespace.digest, chunks, ask)?;
        let lease = lease.map(|lease| HouseLease {
            engine: Arc::clone(&self.engine),
            session: self.session,
            lease: lease.id,
        });
        Ok((chunks, lease))
    }

    /// A READY chunk to read. Nobody counts this as a question.
    pub(crate) fn read(&self, namespace: &TierNamespace, chunk: ChunkId) -> Option<OpenChunk> {
        let (answers, lease) = self.lease(namespace, &[chunk]).ok()?;
        let lease = lease?;
        let &[ChunkAnswer::Ready { coverage, .. }] = &answers[..] else { return None };
        let group = namespace.descriptor.group_of(chunk).ok()?;
        let part = |part| self.engine.read(self.session, lease.lease.get(), 0, part).ok();
        let parts = (0..).map(PartIndex).take(group.parts()).map(part).collect::<Option<_>>()?;
        Some(OpenChunk { parts, coverage, _lease: lease })
    }

    fn bind(&self, namespace: &TierNamespace) -> Result<(), Refusal> {
        let core = &self.engine.core;
        // What nobody knows any more is not made known again: there is nobody to bring anything for.
        let known = core.namespaces.get(namespace.digest).ok_or_else(|| {
            Refusal::new(
                Reason::UnknownNamespace,
                format!("the namespace {}", namespace.digest),
                "register it",
            )
        })?;
        core.sessions.get(self.session)?.bind(namespace.digest, &known).map(drop)
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.engine.close_session(self.session);
    }
}

fn reservation(answer: &ReserveAnswer) -> Option<u64> {
    match answer {
        ReserveAnswer::Reserved(id) => Some(id.get()),
        ReserveAnswer::Already(_) | ReserveAnswer::Refused(_) => None,
    }
}

impl Filling {
    /// The writer of a part that is not finished.
    pub(crate) fn part(&mut self, part: PartIndex) -> Option<&mut PartWriter> {
        self.parts.get_mut(usize::from(part.0))?.as_mut()
    }

    /// Verifies all parts, then publishes them. One that was published without the others would be in the way of whoever
    /// has better ones, until its reservation ends; so if any does not match, none is. Part p has the digest at index p.
    pub(crate) fn finish_all(mut self, digests: &[ContentDigest]) -> Result<(), Reason> {
        if digests.len() != self.parts.len() {
            return Err(Reason::PartOutOfRange);
        }
        let parts = || (0..).map(PartIndex).zip(digests);
        if !parts().all(|(part, &digest)| self.matches(part, digest)) {
            return Err(Reason::BadDigest);
        }
        for (part, &digest) in parts() {
            self.finish(part, digest)?;
        }
        Ok(())
    }

    fn matches(&self, part: PartIndex, digest: ContentDigest) -> bool {
        let writer = self.parts.get(usize::from(part.0)).and_then(Option::as_ref);
        writer.is_some_and(|writer| writer.matches(digest))
    }

    /// Verifies and publishes a part; the last one makes the chunk READY.
    pub(crate) fn finish(&mut self, part: PartIndex, digest: ContentDigest) -> Result<(), Reason> {
        let slot = self.parts.get_mut(usize::from(part.0)).ok_or(Reason::PartOutOfRange)?;
        let writer = slot.take().ok_or(Reason::Malformed)?;
        writer.finish(digest, self.coverage.bits()).outcome.map(drop)
    }
}
