//! The reader's side: lookup, lease, read, release.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tender_proto::{
    ChunkId, ContentDigest, Coverage, NamespaceDigest, PartIndex, Reason, Refusal, SessionId,
};

use super::{ChunkAnswer, Core, Engine, LeaseAsk, LeaseEnd, LeaseGrant, LookupAnswer, PartPlace};
use crate::fault::{self, Fault};
use crate::index::{Asker, Found, Key, Part, Pin};
use crate::lease::LeaseWish;
use crate::namespace::Namespace;

impl Engine {
    /// Answers for every chunk, in order, and leases those that are READY if asked. A group that the
    /// namespace does not have is a miss of its chunk.
    pub fn lookup(
        &self,
        session: SessionId,
        namespace: NamespaceDigest,
        chunks: &[ChunkId],
        ask: LeaseAsk,
    ) -> Result<LookupAnswer, Refusal> {
        self.lookup_with(session, namespace, chunks, ask, |_, _| {})
    }

    /// The same where others than the arena have a word on a chunk that is not there: that it is on its way, or why it
    /// cannot be had. What they say is the answer, and is what counts.
    pub(crate) fn lookup_with(
        &self,
        session: SessionId,
        namespace: NamespaceDigest,
        chunks: &[ChunkId],
        ask: LeaseAsk,
        amend: impl Fn(usize, &mut ChunkAnswer),
    ) -> Result<LookupAnswer, Refusal> {
        let core = &self.core;
        core.counted(|| {
            core.refuse_large_batch(chunks.len())?;
            let (session, namespace) = core.bound(session, namespace)?;
            let mut answer = core.lookup(session.id, &namespace, chunks, ask, Asker::Engine)?;
            for (index, chunk) in answer.chunks.iter_mut().enumerate() {
                if matches!(chunk, ChunkAnswer::Miss(_)) {
                    amend(index, chunk);
                }
            }
            count(&namespace, &answer.chunks);
            Ok(answer)
        })
    }

    /// The same for the daemon itself: no hit and no miss of anybody's, and no use of a chunk.
    pub(crate) fn look(
        &self,
        session: SessionId,
        namespace: NamespaceDigest,
        chunks: &[ChunkId],
        ask: LeaseAsk,
    ) -> Result<LookupAnswer, Refusal> {
        let core = &self.core;
        let (session, namespace) = core.bound(session, namespace)?;
        core.lookup(session.id, &namespace, chunks, ask, Asker::House)
    }

    /// Ends leases and says for each whether it was good until now. Ids that are unknown or another
    /// session's are [`LeaseEnd::Expired`], and nothing happens to them.
    pub fn release(&self, session: SessionId, leases: &[u64]) -> Result<Vec<LeaseEnd>, Refusal> {
        let core = &self.core;
        core.counted(|| {
            let session = core.sessions.get(session)?;
            Ok(core.leases.release(session.id, leases, core.clock.now()))
        })
    }

    /// Opens one part of a leased chunk; `chunk_index` is its position in the lookup. The bytes stay what they
    /// are for as long as the reader lives, but whoever reads on after [`PartReader::deadline`] will be told
    /// at the release that the lease had expired.
    pub fn read(
        &self,
        session: SessionId,
        lease: u64,
        chunk_index: usize,
        part: PartIndex,
    ) -> Result<PartReader, Reason> {
        let core = &self.core;
        core.read(session, lease, chunk_index, part).inspect_err(|&reason| core.refusals.count(reason))
    }
}

impl Core {
    fn lookup(
        &self,
        session: SessionId,
        namespace: &Arc<Namespace>,
        chunks: &[ChunkId],
        ask: LeaseAsk,
        asker: Asker,
    ) -> Result<LookupAnswer, Refusal> {
        let now = self.clock.now();
        let (lease, locate) = match ask {
            LeaseAsk::None => (None, false),
            LeaseAsk::Lease { ttl, locate } => {
                let limits = self.limits.load();
                (Some(ttl.unwrap_or(limits.default_lease).min(limits.max_lease)), locate)
            }
        };
        let mut pins = Vec::new();
        let mut answers = vec![ChunkAnswer::Pending; chunks.len()];
        // From the end, so that the chunks that others continue count as used last and go last.
        for (index, (answer, &chunk)) in answers.iter_mut().zip(chunks).enumerate().rev() {
            let found = match namespace.descriptor.group_of(chunk) {
                Ok(_) => self.index.lookup(Key { namespace, chunk }, now, asker, lease.is_some()),
                Err(refusal) => Found::Miss(refusal.reason),
            };
            *answer = match found {
                Found::Ready(coverage, pin) => {
                    let parts = match &pin {
                        Some(pin) if locate => {
                            pin.version().parts().iter().map(|p| self.place_of(p)).collect()
                        }
                        _ => Vec::new(),
                    };
                    pins.extend(pin.map(|pin| (index, pin)));
                    ChunkAnswer::Ready { coverage, parts }
                }
                Found::Pending => ChunkAnswer::Pending,
                Found::Miss(reason) => ChunkAnswer::Miss(reason),
            };
        }
        pins.reverse();
        let lease = match lease {
            Some(ttl) if !pins.is_empty() => {
                let wish = LeaseWish { session, deadline: now + ttl, asked: chunks.len(), pins };
                let id = self.leases.grant(wish).map_err(|reason| no_lease(reason, self))?;
                Some(LeaseGrant { id, ttl })
            }
            _ => None,
        };
        Ok(LookupAnswer { chunks: answers, lease })
    }

    fn place_of(&self, part: &Part) -> PartPlace {
        PartPlace {
            offset_bytes: self.arena.file_offset(&part.extent),
            bytes: part.extent.bytes(),
            digest: part.digest,
        }
    }

    fn read(
        self: &Arc<Self>,
        session: SessionId,
        lease: u64,
        chunk_index: usize,
        part: PartIndex,
    ) -> Result<PartReader, Reason> {
        self.sessions.get(session).map_err(|refusal| refusal.reason)?;
        fault::check(Fault::PartOpen).map_err(|_| Reason::Internal)?;
        let (pin, deadline) = self.leases.pin(session, lease, chunk_index, self.clock.now())?;
        if pin.version().part(part).is_none() {
            return Err(Reason::PartOutOfRange);
        }
        Ok(PartReader { pin, part, deadline, counted: Reading::begin(self) })
    }
}

fn no_lease(reason: Reason, core: &Core) -> Refusal {
    match reason {
        Reason::TooMany => Refusal::new(
            reason,
            format!("one lease more than {} of a session", core.limits.load().max_leases_per_session),
            "release leases, or look up without one",
        ),
        _ => Refusal::new(reason, "a lease", "open a new session"),
    }
}

fn count(namespace: &Namespace, answers: &[ChunkAnswer]) {
    let counters = &namespace.counters;
    let (mut hits, mut pendings) = (0, 0);
    for answer in answers {
        match answer {
            ChunkAnswer::Ready { .. } => hits += 1,
            ChunkAnswer::Pending => pendings += 1,
            ChunkAnswer::Miss(reason) => counters.misses.count(*reason),
        }
    }
    counters.hits.fetch_add(hits, Ordering::Relaxed);
    counters.pendings.fetch_add(pendings, Ordering::Relaxed);
}

/// One part's bytes. While it lives they are neither freed nor changed, whatever happens to the lease.
#[derive(Debug)]
pub struct PartReader {
    // Fields are dropped in this order: a reader is counted until its pin has gone.
    pin: Pin,
    part: PartIndex,
    deadline: Instant,
    counted: Reading,
}

impl PartReader {
    /// Over all bytes of the part, as verified when they were stored.
    pub fn digest(&self) -> ContentDigest {
        self.part().digest
    }
    /// Which blocks the part holds.
    pub fn coverage(&self) -> Coverage {
        self.pin.version().coverage
    }
    /// The end of the lease it was opened under. Bytes that go out later will not be used.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
    /// Another one of the same part. It outlives the lease.
    pub(crate) fn again(&self) -> Self {
        let counted = Reading::begin(&self.counted.0);
        Self { pin: self.pin.clone(), part: self.part, deadline: self.deadline, counted }
    }
    fn part(&self) -> &Part {
        // Whether there is such a part was asked when the reader was made, and versions do not change.
        &self.pin.version().parts()[usize::from(self.part.0)]
    }
}

impl AsRef<[u8]> for PartReader {
    fn as_ref(&self) -> &[u8] {
        self.counted.0.arena.bytes(&self.part().extent)
    }
}

/// Counts one reader while it lives.
#[derive(Debug)]
struct Reading(Arc<Core>);

impl Reading {
    fn begin(core: &Arc<Core>) -> Self {
        core.readers.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(core))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(all(test, feature = "loom"))]
impl Engine {
    /// The bytes of a located part as they are now, whatever the lease says: as a client of this host sees them.
    pub(crate) fn peek(&self, answer: &ChunkAnswer) -> Vec<u8> {
        let ChunkAnswer::Ready { parts, .. } = answer else { return Vec::new() };
        self.core.arena.peek(parts[0].offset_bytes, parts[0].bytes)
    }
}
