//! The worker's stores: plan > gather > reserve > hash > commit or put.
//!
//! The engine waits for the gather only; it ends with the bytes in staging (rule 6), and from then on the
//! engine's blocks may change. The rest happens on threads of ours. A store that cannot go on is skipped
//! and counted: a cache may forget.

use std::sync::Arc;
use std::time::Instant;

use tender_proto::mutant::{Mutant, active};
use tender_proto::{ChunkId, ContentDigest, Coverage, Descriptor, NamespaceDigest, PartIndex, Reason};

use crate::client::{Client, Pace};
use crate::copy::CopyBackend;
use crate::counters::Skip;
use crate::fuse::Fuse;
use crate::plan::StoreJob;
use crate::queue::Queue;
use crate::session::Session;
use crate::transport::StagedPart;
use crate::transport::calls::{ReserveAnswer, ReserveAsk};
use crate::transport::staging::Slot;

/// Parts, and bytes, that go out together: enough to spread the cost of a call, few enough that staging is
/// given back soon and another thread can hash meanwhile.
const BATCH_PARTS: usize = 64;
const BATCH_BYTES: usize = 16 << 20;

/// A part in staging that waits for a thread. Its slot belongs to the staging of `session`.
#[derive(Debug)]
pub(crate) struct Gathered {
    session: Arc<Session>,
    /// The namespace's epoch before the gather: a reset since then makes the bytes stale.
    epoch: u64,
    chunk: ChunkId,
    coverage: Coverage,
    slot: Slot,
}

/// What all stores of a worker share.
#[derive(Debug)]
pub(crate) struct Saver {
    pub(crate) client: Client,
    pub(crate) descriptor: Arc<Descriptor>,
    pub(crate) namespace: NamespaceDigest,
    pub(crate) part: PartIndex,
    pub(crate) copy: Arc<dyn CopyBackend>,
    pub(crate) fuse: Arc<Fuse>,
    pub(crate) queue: Queue<Gathered>,
}

impl Saver {
    /// Takes a snapshot of a chunk's blocks now; storing it follows in the background. `planned_epoch` is that of the
    /// plan: what was planned before a reset is skipped.
    pub(crate) fn gather(&self, job: &StoreJob, planned_epoch: Option<u64>) {
        if let Err(skip) = self.try_gather(job, planned_epoch) {
            self.client.tally().store_skipped(skip);
        }
    }

    fn try_gather(&self, job: &StoreJob, planned_epoch: Option<u64>) -> Result<(), Skip> {
        let session = self.client.session(self.namespace).map_err(Skip::Refused)?;
        let transport = session.transport.as_ref().ok_or(Skip::Refused(Reason::Unsupported))?;
        let group = self.descriptor.group_of(job.chunk).map_err(|no| Skip::Refused(no.reason))?;
        // The copy sees a block list and a mask that agree; that both are of this group's chunks is known here.
        if job.coverage.blocks() != group.blocks_per_chunk {
            return Err(Skip::BadBlocks);
        }
        let bytes = group.part_bytes(self.part, job.coverage).map_err(|no| Skip::Refused(no.reason))?;
        if bytes > session.limits.max_part_bytes {
            return Err(Skip::TooLarge);
        }
        let epoch = session.epoch(self.namespace);
        let overtaken = planned_epoch.is_some_and(|planned| planned != epoch);
        if overtaken && !active(Mutant::PlanOutlivesReset) {
            return Err(Skip::Refused(Reason::NamespaceReset));
        }
        let mut slot = transport.staging().take(bytes)?;
        self.copy.gather(job.chunk.group, &job.blocks, job.coverage, slot.fill()).map_err(|no| {
            tracing::warn!(%no, chunk = %job.chunk, "blocks of a store do not fit the layout");
            Skip::BadBlocks
        })?;
        let gathered =
            Gathered { session: Arc::clone(&session), epoch, chunk: job.chunk, coverage: job.coverage, slot };
        self.queue.push(gathered).map_err(|_| Skip::QueueFull)
    }

    /// Stores until the queue is closed.
    pub(crate) fn work(&self) {
        loop {
            let (mut parts, mut bytes, mut session) = (0, 0, None);
            let fits = |next: &Gathered| {
                parts += 1;
                bytes += next.slot.len();
                // One batch is of one session and one epoch.
                let (same, epoch) = session.get_or_insert_with(|| (Arc::clone(&next.session), next.epoch));
                parts <= BATCH_PARTS.min(next.session.limits.max_batch_chunks)
                    && bytes <= BATCH_BYTES
                    && Arc::ptr_eq(same, &next.session)
                    && *epoch == next.epoch
            };
            let Some(mut taken) = self.queue.take(fits) else { return };
            let batch = taken.items();
            let count = batch.len();
            let skipped = || vec![Err(Skip::Disabled); count];
            let results = self.fuse.run("store", skipped, || self.store(batch));
            for skip in results.into_iter().filter_map(Result::err) {
                self.client.tally().store_skipped(skip);
            }
        }
    }

    /// Skips what nobody will store any more.
    pub(crate) fn close(&self) {
        for _ in self.queue.close() {
            self.client.tally().store_skipped(Skip::Refused(Reason::Unreachable));
        }
    }

    /// Reserving comes first: what the daemon already has is never hashed.
    fn store(&self, batch: Vec<Gathered>) -> Vec<Result<(), Skip>> {
        let Some((session, epoch)) = batch.first().map(|part| (Arc::clone(&part.session), part.epoch)) else {
            return Vec::new();
        };
        let deadline = Instant::now() + self.client.config().store_deadline;
        let asks: Vec<_> = batch.iter().map(|part| self.reserve_ask(part)).collect();
        let reserve = session.calls.reserve(self.namespace, epoch, &asks);
        let answers = match self.client.ask_blocking(&session, deadline, Pace::Quick, reserve) {
            Ok((answers, now)) => {
                session.learn_epoch(self.namespace, now);
                answers
            }
            Err(reason) => return vec![Err(Skip::Refused(reason)); batch.len()],
        };
        let mut results = Vec::with_capacity(batch.len());
        let (mut staged, mut sizes) = (Vec::new(), Vec::new());
        for (part, answer) in batch.into_iter().zip(answers) {
            match answer {
                ReserveAnswer::Reserved(reservation) => {
                    let digest = ContentDigest::of(part.slot.as_ref());
                    sizes.push(part.slot.len() as u64);
                    staged.push(StagedPart { reservation, coverage: part.coverage, digest, slot: part.slot });
                }
                ReserveAnswer::Already => {
                    self.client.tally().already_stored.one();
                    results.push(Ok(()));
                }
                ReserveAnswer::Refused(reason) => results.push(Err(Skip::Refused(reason))),
            }
        }
        results.extend(self.hand_over(&session, staged, &sizes, deadline));
        results
    }

    fn hand_over(
        &self,
        session: &Arc<Session>,
        staged: Vec<StagedPart>,
        sizes: &[u64],
        deadline: Instant,
    ) -> Vec<Result<(), Skip>> {
        let Some(transport) = session.transport.as_ref().filter(|_| !staged.is_empty()) else {
            return Vec::new();
        };
        let tally = self.client.tally();
        let outcomes = transport.store(&self.client, session, staged, deadline);
        let count = |(outcome, bytes): (Result<_, Reason>, &u64)| {
            let stored: crate::transport::calls::Stored = outcome.map_err(Skip::Refused)?;
            tally.stored_parts.one();
            tally.stored_bytes.add(*bytes);
            tally.stored_chunks.add(u64::from(stored.chunk_ready));
            Ok(())
        };
        outcomes.into_iter().zip(sizes).map(count).collect()
    }

    fn reserve_ask(&self, part: &Gathered) -> ReserveAsk {
        ReserveAsk {
            chunk: part.chunk,
            part: self.part,
            coverage: part.coverage,
            bytes: part.slot.len() as u64,
        }
    }
}
