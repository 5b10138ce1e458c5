//! The writer's side: reserve, write, verify, publish.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use tender_proto::{
    ContentDigest, Coverage, NamespaceDigest, PartIndex, Reason, Refusal, ReservationId, SessionId,
};

use super::history::Left;
use super::{CommitAsk, Core, Deadline, Engine, ReserveAnswer, ReserveAsk, StoreAnswer, Stored};
use crate::admission::Permit;
use crate::arena::WriteError;
use crate::arena::alloc::{Extent, footprint_bytes};
use crate::fault::{self, Fault};
use crate::index::{Door, Key, Part, Place, Wanted};
use crate::namespace::Namespace;
use crate::reservation::Claim;
use crate::session::Session;
use crate::staging::Staging;

/// Bytes that are copied and then hashed while they are still in the core's cache.
const COPY_PIECE_BYTES: u64 = 64 << 10;

impl Engine {
    /// Claims room and the right to write parts. Every item has its own outcome, given at once: nothing waits
    /// for room, and a refused item holds nothing.
    pub fn reserve(
        &self,
        session: SessionId,
        namespace: NamespaceDigest,
        asks: &[ReserveAsk],
    ) -> Result<Vec<ReserveAnswer>, Refusal> {
        self.reserve_gathered(session, namespace, None, asks).map(|(answers, _)| answers)
    }

    /// The same for bytes that were taken out of the engine in `epoch`: if a reset came since, every item is refused
    /// with [`Reason::NamespaceReset`]. The epoch of now comes with the answers.
    pub fn reserve_gathered(
        &self,
        session: SessionId,
        namespace: NamespaceDigest,
        epoch: Option<u32>,
        asks: &[ReserveAsk],
    ) -> Result<(Vec<ReserveAnswer>, u32), Refusal> {
        let core = &self.core;
        core.counted(|| {
            core.refuse_when_draining()?;
            core.refuse_large_batch(asks.len())?;
            let (session, namespace) = core.bound(session, namespace)?;
            let now = core.clock.now();
            // What is over must neither answer for a key nor hold room.
            core.sweep(now);
            let one = |ask: &ReserveAsk| match core.reserve(&session, &namespace, *ask, now) {
                Ok(id) => ReserveAnswer::Reserved(id),
                Err(Door::Already(already)) => ReserveAnswer::Already(already),
                Err(Door::Refused(reason)) => {
                    core.refusals.count(reason);
                    core.note(namespace.digest, ask.chunk, Left::Refused(reason));
                    ReserveAnswer::Refused(reason)
                }
                Err(Door::Open) => ReserveAnswer::Refused(Reason::Internal),
            };
            let overtaken = || epoch.is_some_and(|epoch| epoch != namespace.epoch());
            if overtaken() {
                return Ok((core.all_reset(asks.len()), namespace.epoch()));
            }
            let answers: Vec<_> = asks.iter().map(one).collect();
            // A reset that came meanwhile may have let some of them into its own epoch.
            if overtaken() {
                let held = answers.iter().filter_map(|answer| match answer {
                    ReserveAnswer::Reserved(id) => Some(id.get()),
                    ReserveAnswer::Already(_) | ReserveAnswer::Refused(_) => None,
                });
                self.abort(session.id, &held.collect::<Vec<_>>())?;
                return Ok((core.all_reset(asks.len()), namespace.epoch()));
            }
            Ok((answers, namespace.epoch()))
        })
    }

    /// Stores parts that lie in the session's staging region. It copies, hashes the arena's copy and compares:
    /// a client that changes its staging meanwhile stores nothing that was not verified. Takes time in
    /// proportion to the bytes. A reservation is over after this, whatever the outcome.
    pub fn commit(&self, session: SessionId, asks: &[CommitAsk]) -> Result<Vec<StoreAnswer>, Refusal> {
        let core = &self.core;
        core.counted(|| {
            core.refuse_large_batch(asks.len())?;
            let session = core.sessions.get(session)?;
            let staging = session.staging();
            let one = |ask: &CommitAsk| {
                let outcome = core.commit(session.id, staging.as_deref(), *ask);
                core.answer(ask.reservation, outcome)
            };
            Ok(asks.iter().map(one).collect())
        })
    }

    /// Begins to write a reserved part piece by piece.
    pub fn begin_write(&self, session: SessionId, reservation: u64) -> Result<PartWriter, Reason> {
        let core = &self.core;
        core.begin_write(session, reservation).inspect_err(|&reason| core.refusals.count(reason))
    }

    /// Gives reservations back. Those that are over, being written, or another session's stay as they are; each is told
    /// why.
    pub fn abort(&self, session: SessionId, reservations: &[u64]) -> Result<Vec<Option<Reason>>, Refusal> {
        let core = &self.core;
        core.counted(|| {
            let session = core.sessions.get(session)?;
            let one = |&raw: &u64| match core.reservations.abort(session.id, raw) {
                Ok((id, claim)) => {
                    core.unhold(claim.place, claim.part, id);
                    None
                }
                Err(reason) => {
                    core.refusals.count(reason);
                    Some(reason)
                }
            };
            Ok(reservations.iter().map(one).collect())
        })
    }
}

impl Core {
    /// Gives a part back, and remembers that nothing came of its chunk if nobody else has a part of it.
    pub(super) fn unhold(&self, place: Place, part: PartIndex, id: ReservationId) {
        if let Some((namespace, chunk)) = self.index.unhold(place, part, id) {
            self.note(namespace, chunk, Left::GivenUp);
        }
    }

    /// The answers to items that a reset has overtaken.
    fn all_reset(&self, items: usize) -> Vec<ReserveAnswer> {
        (0..items).for_each(|_| self.refusals.count(Reason::NamespaceReset));
        vec![ReserveAnswer::Refused(Reason::NamespaceReset); items]
    }

    fn reserve(
        &self,
        session: &Session,
        namespace: &Arc<Namespace>,
        ask: ReserveAsk,
        now: Instant,
    ) -> Result<ReservationId, Door> {
        let (coverage, parts) = self.check_ask(namespace, ask).map_err(Door::Refused)?;
        let key = Key { namespace, chunk: ask.chunk };
        let wanted = Wanted { key, part: ask.part, coverage, parts };
        // Who need not send is told so before any room is looked for.
        match self.index.knock(wanted) {
            Door::Open => {}
            closed => return Err(closed),
        }
        let permit = Permit::take(&self.inflight, &session.budget, ask.bytes).map_err(Door::Refused)?;
        let permit = match &session.share {
            Some(share) => permit.within(&share.inflight).map_err(Door::Refused)?,
            None => permit,
        };
        let permit = permit.counted_in(&namespace.inflight);
        // Before room is made in the arena: a domain at its quota makes it among its own.
        let more_chunks = u64::from(!self.index.is_pending(key));
        if !self.keep_to_quota(namespace, more_chunks) {
            return Err(Door::Refused(Reason::OverQuota));
        }
        let extent = self.allocate(ask.bytes).ok_or(Door::Refused(Reason::NoSpace))?;
        let id = self.reservations.next_id().map_err(Door::Refused)?;
        let held = self.index.hold(wanted, id, now + self.limits.load().reservation, |place, deadline| {
            let claim = Claim {
                namespace: Arc::clone(namespace),
                chunk: ask.chunk,
                part: ask.part,
                coverage,
                place,
                deadline,
                extent,
                permit,
            };
            self.reservations.insert(session.id, id, claim)
        })?;
        if held.began {
            self.deadlines.lock().push_back(Deadline { at: held.deadline, place: held.place, first: id });
        }
        if !self.keep_to_quota(namespace, 0) {
            if let Ok((id, claim)) = self.reservations.abort(session.id, id.get()) {
                self.unhold(claim.place, claim.part, id);
            }
            return Err(Door::Refused(Reason::OverQuota));
        }
        Ok(id)
    }

    /// The coverage and the number of parts of the chunk, once everything about the item fits.
    fn check_ask(&self, namespace: &Namespace, ask: ReserveAsk) -> Result<(Coverage, usize), Reason> {
        let group = namespace.descriptor.group_of(ask.chunk).map_err(|refusal| refusal.reason)?;
        let coverage =
            Coverage::new(ask.coverage_bits, group.blocks_per_chunk).map_err(|refusal| refusal.reason)?;
        if coverage.is_empty() {
            return Err(Reason::BadCoverage);
        }
        let bytes = group.part_bytes(ask.part, coverage).map_err(|refusal| refusal.reason)?;
        if ask.bytes != bytes {
            return Err(Reason::WrongSize);
        }
        // Until its last part is in, a chunk's parts are all in flight: one that cannot fit never gets READY.
        let chunk_bytes: u64 = (0..).map(PartIndex).map_while(|part| group.block_bytes(part)).sum::<u64>()
            * u64::from(coverage.count());
        let limits = self.limits.load();
        let most = self.max_part_bytes.min(limits.max_session_inflight_bytes);
        if bytes > most || chunk_bytes > limits.max_inflight_bytes {
            return Err(Reason::TooLarge);
        }
        Ok((coverage, group.parts()))
    }

    /// Room for a part, made by evicting chunks whose turn it is. `None` at once when that cannot
    /// make enough.
    fn allocate(&self, bytes: u64) -> Option<Extent> {
        let pool = self.arena.pool();
        loop {
            if !fault::hit(Fault::Allocate)
                && let Some(extent) = pool.allocate(bytes)
            {
                return Some(extent);
            }
            let free = pool.capacity_bytes() - pool.used_bytes();
            // Evicting everything for a part that does not fit even then would help nobody.
            if free + self.index.evictable_bytes() < footprint_bytes(bytes) {
                return None;
            }
            let evicted = self.index.evict_next()?;
            self.evicted(evicted, Left::Evicted);
        }
    }

    fn begin_write(self: &Arc<Self>, session: SessionId, reservation: u64) -> Result<PartWriter, Reason> {
        let of_client = self.sessions.get(session).map_err(|refusal| refusal.reason)?.owner.is_client();
        let (id, claim) = self.reservations.begin(session, reservation, self.clock.now())?;
        self.index.begin_filling(claim.place, claim.part, id);
        let held = Held { core: Arc::clone(self), id, of_client, claim: Some(claim) };
        Ok(PartWriter { held, hasher: blake3::Hasher::new(), written_bytes: 0 })
    }

    fn commit(
        self: &Arc<Self>,
        session: SessionId,
        staging: Option<&Staging>,
        ask: CommitAsk,
    ) -> Result<Stored, Reason> {
        let mut writer = self.begin_write(session, ask.reservation)?;
        if ask.bytes != writer.bytes() {
            return Err(Reason::WrongSize);
        }
        let staging = staging.ok_or(Reason::StagingRange)?;
        let end = ask.staging_offset.checked_add(ask.bytes).ok_or(Reason::StagingRange)?;
        if end > staging.bytes() {
            return Err(Reason::StagingRange);
        }
        writer.copy_from(staging, ask.staging_offset)?;
        writer.publish(ask.digest, ask.coverage_bits)
    }

    /// The item's outcome, counted when it is a refusal.
    fn answer(&self, reservation: u64, outcome: Result<Stored, Reason>) -> StoreAnswer {
        if let Err(reason) = outcome {
            self.refusals.count(reason);
        }
        StoreAnswer { reservation, outcome }
    }
}

/// Writes one reserved part. Dropping it unfinished gives the reservation up, and the memory with it.
#[derive(Debug)]
pub struct PartWriter {
    held: Held,
    hasher: blake3::Hasher,
    written_bytes: u64,
}

/// A claim that is being written. Its drop makes the part free for others, unless it was published.
#[derive(Debug)]
struct Held {
    core: Arc<Core>,
    id: ReservationId,
    /// Not brought by a tier.
    of_client: bool,
    /// Gone once published.
    claim: Option<Claim>,
}

/// Why a file was not read into a part.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The part cannot be written any more.
    Refused(Reason),
    /// The system refused it.
    Io(io::Error),
}

impl PartWriter {
    /// Bytes of the part.
    pub fn bytes(&self) -> u64 {
        self.held.claim.as_ref().map_or(0, |claim| claim.extent.bytes())
    }
    /// Bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }
    /// The part must be finished by then.
    pub fn deadline(&self) -> Instant {
        self.held.claim.as_ref().map_or_else(|| self.held.core.clock.now(), |claim| claim.deadline)
    }

    /// Appends bytes; `offset_bytes` must be where the last ones ended. Refused, with nothing written:
    /// [`Reason::Malformed`] for a gap or a repetition, [`Reason::WrongSize`] past the part's end, and
    /// whatever has ended the reservation meanwhile.
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), Reason> {
        let core = Arc::clone(&self.held.core);
        self.append(offset_bytes, bytes).inspect_err(|&reason| core.refusals.count(reason))
    }

    /// Appends bytes of a file, read straight into the arena. For direct I/O, what was written before, `file_at` and
    /// `len` are whole blocks.
    pub(crate) fn read_from(&mut self, file: &File, file_at: u64, len: u64) -> Result<(), ReadError> {
        let core = Arc::clone(&self.held.core);
        let at = self.written_bytes;
        if len > self.bytes() - at {
            return Err(ReadError::Refused(Reason::WrongSize));
        }
        self.held.check_alive().map_err(ReadError::Refused)?;
        let claim = self.held.claim.as_mut().ok_or(ReadError::Refused(Reason::Internal))?;
        core.arena.read_from(&mut claim.extent, at, file, file_at, len).map_err(ReadError::Io)?;
        self.hash(at, len).map_err(ReadError::Refused)
    }

    /// Whether the bytes written so far have this digest.
    pub(crate) fn matches(&self, digest: ContentDigest) -> bool {
        ContentDigest::from(self.hasher.finalize()) == digest
    }

    /// Verifies and publishes the part. Short or other bytes than the digest's are refused and freed.
    pub fn finish(self, digest: ContentDigest, coverage_bits: u64) -> StoreAnswer {
        let core = Arc::clone(&self.held.core);
        let reservation = self.held.id.get();
        core.answer(reservation, self.publish(digest, coverage_bits))
    }

    fn append(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), Reason> {
        let core = Arc::clone(&self.held.core);
        let at = self.written_bytes;
        if offset_bytes != at {
            return Err(Reason::Malformed);
        }
        if bytes.len() as u64 > self.bytes() - at {
            return Err(Reason::WrongSize);
        }
        self.held.check_alive()?;
        let claim = self.held.claim.as_mut().ok_or(Reason::Internal)?;
        fault::check(Fault::PartWrite).map_err(|_| Reason::Internal)?;
        core.arena.write(&mut claim.extent, at, bytes).map_err(|error| no_write(error, Reason::Internal))?;
        // Nobody can change them, and they are in the caches, where the arena's copy is not.
        self.hasher.update(bytes);
        self.written_bytes = at + bytes.len() as u64;
        Ok(())
    }

    fn copy_from(&mut self, staging: &Staging, from: u64) -> Result<(), Reason> {
        let core = Arc::clone(&self.held.core);
        while self.written_bytes < self.bytes() {
            let at = self.written_bytes;
            let len = COPY_PIECE_BYTES.min(self.bytes() - at);
            let claim = self.held.claim.as_mut().ok_or(Reason::Internal)?;
            fault::check(Fault::PartWrite).map_err(|_| Reason::Internal)?;
            core.arena
                .write_from(&mut claim.extent, at, staging.map(), from + at, len)
                .map_err(|error| no_write(error, Reason::StagingRange))?;
            self.hash(at, len)?;
        }
        Ok(())
    }

    /// Hashes what lies in the arena now, not what it was copied from.
    fn hash(&mut self, at: u64, len: u64) -> Result<(), Reason> {
        let claim = self.held.claim.as_ref().ok_or(Reason::Internal)?;
        let start = usize::try_from(at).map_err(|_| Reason::Internal)?;
        let end = usize::try_from(at + len).map_err(|_| Reason::Internal)?;
        let bytes = self.held.core.arena.bytes(&claim.extent).get(start..end).ok_or(Reason::Internal)?;
        self.hasher.update(bytes);
        self.written_bytes = at + len;
        Ok(())
    }

    fn publish(self, digest: ContentDigest, coverage_bits: u64) -> Result<Stored, Reason> {
        let core = Arc::clone(&self.held.core);
        let key = self.held.claim.as_ref().map(|claim| (claim.namespace.digest, claim.chunk));
        let published = self.verify_and_publish(digest, coverage_bits);
        // After the claim was given up, which leaves a weaker word.
        if let (Err(reason), Some((namespace, chunk))) = (published, key) {
            core.note(namespace, chunk, Left::Refused(reason));
        }
        published
    }

    fn verify_and_publish(mut self, digest: ContentDigest, coverage_bits: u64) -> Result<Stored, Reason> {
        let claim = self.held.claim.as_ref().ok_or(Reason::Internal)?;
        if self.written_bytes != claim.extent.bytes() {
            return Err(Reason::WrongSize);
        }
        if coverage_bits != claim.coverage.bits() {
            return Err(Reason::BadCoverage);
        }
        if ContentDigest::from(self.hasher.finalize()) != digest {
            if self.held.core.arena.is_given_away() {
                return Err(Reason::Draining);
            }
            let (namespace, chunk, part) = (claim.namespace.digest, claim.chunk, claim.part);
            tracing::warn!(%namespace, %chunk, %part, "bytes do not match their digest and were not stored");
            return Err(Reason::BadDigest);
        }
        self.held.publish(digest)
    }
}

/// Late bytes of a daemon that has given its arena away are its own fault to nobody: the successor is there already.
fn no_write(error: WriteError, out_of_range: Reason) -> Reason {
    match error {
        WriteError::OutOfRange => out_of_range,
        WriteError::GivenAway => Reason::Draining,
    }
}

impl Held {
    /// Whether publishing can still succeed.
    fn check_alive(&self) -> Result<(), Reason> {
        let over = self.claim.as_ref().is_none_or(|claim| self.core.clock.now() >= claim.deadline);
        match self.core.reservations.ended(self.id) {
            Some(reason) => Err(reason),
            None if over => Err(Reason::ReservationExpired),
            None => Ok(()),
        }
    }

    fn publish(&mut self, digest: ContentDigest) -> Result<Stored, Reason> {
        let Claim { namespace, chunk, place, part, extent, permit, .. } =
            self.claim.take().ok_or(Reason::Internal)?;
        let now = self.core.clock.now();
        let verified = Part { record: None, extent, digest };
        let published = self.core.index.publish(place, part, self.id, now, verified, permit);
        if published.is_err() {
            self.core.unhold(place, part, self.id);
        }
        if published == Ok(true) && self.of_client {
            self.core.tell(|watcher| watcher.stored(namespace.digest, chunk));
        }
        // Why the part is no longer ours is known where it was taken away.
        let why = |reason| self.core.reservations.ended(self.id).unwrap_or(reason);
        published.map(|chunk_ready| Stored { chunk_ready }).map_err(why)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.core.unhold(claim.place, claim.part, self.id);
        }
        self.core.reservations.finish(self.id);
    }
}
