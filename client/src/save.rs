//! The worker's stores: plan > gather > reserve > hash > commit or put.
//!
//! The engine waits for the gather only, on a device for its launch only: from then on the engine's blocks may change
//! (rule 6). The rest happens on threads of ours, which begin by waiting for the bytes where those are still on their
//! way into staging. A store that cannot go on is skipped and counted: a cache may forget.

use std::sync::Arc;
use std::time::Instant;

use tender_proto::mutant::{Mutant, active};
use tender_proto::{ChunkId, ContentDigest, Coverage, PartIndex, Reason};
use tender_trace::{Parent, Side, names};

use crate::client::Pace;
use crate::copy::EngineStream;
use crate::copy::carrier::{Filled, Gathering, Pack, Packed};
use crate::counters::Skip;
use crate::plan::StoreJob;
use crate::queue::Queue;
use crate::session::Session;
use crate::transport::StagedPart;
use crate::transport::calls::{ReserveAnswer, ReserveAsk};
use crate::worker::Rank;

/// Parts, and bytes, that go out together: enough to spread the cost of a call, few enough that staging is
/// given back soon and another thread can hash meanwhile.
const BATCH_PARTS: usize = 64;
const BATCH_BYTES: usize = 16 << 20;

/// A job in staging that waits for a thread: all parts of the chunk that this rank stores.
#[derive(Debug)]
pub(crate) struct Gathered {
    from: Origin,
    parts: Vec<GatheredPart>,
}

/// Where bytes in staging belong.
#[derive(Clone, Debug)]
struct Origin {
    /// Whose staging it is.
    session: Arc<Session>,
    /// The namespace's epoch before the gather: a reset since then makes the bytes stale.
    epoch: u64,
}

impl Origin {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.session, &other.session) && self.epoch == other.epoch
    }
}

#[derive(Debug)]
struct GatheredPart {
    chunk: ChunkId,
    part: PartIndex,
    coverage: Coverage,
    packed: Packed,
}

/// What all stores of a worker share.
#[derive(Debug)]
pub(crate) struct Saver {
    pub(crate) rank: Arc<Rank>,
    pub(crate) queue: Queue<Gathered>,
}

impl Saver {
    /// Takes a snapshot of the chunks' blocks as they are now, in the order of the engine's stream; storing it follows
    /// in the background. `planned_epoch` is that of the plan: what was planned before a reset is skipped. So is what the
    /// budget leaves no time for; the first chunk always has its turn.
    pub(crate) fn gather(&self, jobs: &[StoreJob], planned_epoch: Option<u64>, on: EngineStream) {
        if jobs.is_empty() {
            return;
        }
        let (begin, budget) = (Instant::now(), self.rank.client.config().gather_budget);
        let tally = self.rank.client.tally();
        let mut gathering = self.rank.carrier.gather(on);
        for (done, job) in jobs.iter().enumerate() {
            if done > 0 && begin.elapsed() >= budget {
                jobs[done..].iter().for_each(|_| tally.store_skipped(Skip::OverBudget));
                break;
            }
            if let Err(skip) = self.try_gather(job, planned_epoch, &mut *gathering) {
                tally.store_skipped(skip);
            }
        }
        gathering.finish();
        tally.step_took(begin.elapsed(), budget);
    }

    /// All parts of the chunk that this rank stores, or none: with one missing it would never be ready.
    fn try_gather(
        &self,
        job: &StoreJob,
        planned_epoch: Option<u64>,
        gathering: &mut dyn Gathering,
    ) -> Result<(), Skip> {
        let Rank { client, descriptor, layout, .. } = &*self.rank;
        let StoreJob { chunk, coverage, ref blocks } = *job;
        let session = client.session(self.rank.namespace).map_err(Skip::Refused)?;
        let transport = session.transport.as_ref().ok_or(Skip::Refused(Reason::Unsupported))?;
        let group = descriptor.group_of(chunk).map_err(|no| Skip::Refused(no.reason))?;
        // The copy sees a block list and a mask that agree; that both are of this group's chunks is known here.
        if coverage.blocks() != group.blocks_per_chunk {
            return Err(Skip::BadBlocks);
        }
        let epoch = session.epoch(self.rank.namespace);
        let overtaken = planned_epoch.is_some_and(|planned| planned != epoch);
        if overtaken && !active(Mutant::PlanOutlivesReset) {
            return Err(Skip::Refused(Reason::NamespaceReset));
        }
        let mut slots = Vec::new();
        for local in layout.parts(chunk.group).iter().filter(|local| local.writer.writes(&chunk)) {
            let part = local.part;
            let bytes = group.part_bytes(part, coverage).map_err(|no| Skip::Refused(no.reason))?;
            if bytes > session.limits.max_part_bytes {
                return Err(Skip::TooLarge);
            }
            slots.push((part, transport.staging().take(bytes)?));
        }
        if slots.is_empty() {
            // Other ranks that hold the same bytes store them.
            return Ok(());
        }
        // There is room for all of them.
        let mut parts = Vec::with_capacity(slots.len());
        for (part, slot) in slots {
            let packed = gathering.add(Pack { group: chunk.group, part, blocks, coverage }, slot)?;
            parts.push(GatheredPart { chunk, part, coverage, packed });
        }
        let from = Origin { session: Arc::clone(&session), epoch };
        self.queue.push(Gathered { from, parts }).map_err(|_| Skip::QueueFull)
    }

    /// Stores until the queue is closed.
    pub(crate) fn work(&self) {
        loop {
            let (mut parts, mut bytes, mut origin) = (0, 0, None);
            let fits = |next: &Gathered| {
                parts += next.parts.len();
                bytes += next.parts.iter().map(|part| part.packed.len()).sum::<usize>();
                // One batch is of one session and one epoch.
                let origin = origin.get_or_insert_with(|| next.from.clone());
                parts <= BATCH_PARTS.min(origin.session.limits.max_batch_chunks)
                    && bytes <= BATCH_BYTES
                    && origin.is(&next.from)
            };
            let Some(mut taken) = self.queue.take(fits) else { return };
            let Some(from) = origin else { continue };
            let mut rest: Vec<_> = taken.items().into_iter().flat_map(|job| job.parts).collect();
            // One chunk alone may have more parts than one call takes.
            while !rest.is_empty() {
                let later = rest.split_off(rest.len().min(from.session.limits.max_batch_chunks.max(1)));
                let batch = std::mem::replace(&mut rest, later);
                let count = batch.len();
                let skipped = || vec![Err(Skip::Disabled); count];
                let begin = Instant::now();
                let span = self.rank.client.trace().span(names::STORE, Side::Within, Parent::NONE);
                span.set(names::CHUNKS, names::count(count));
                let results = self.rank.fuse.run("store", skipped, || {
                    let _in = span.enter();
                    self.store(&from, batch)
                });
                self.rank.client.tally().store_us.add_time(begin);
                self.rank.blow_if_lost();
                for skip in results.into_iter().filter_map(Result::err) {
                    self.rank.client.tally().store_skipped(skip);
                }
            }
        }
    }

    /// Skips what nobody will store any more.
    pub(crate) fn close(&self) {
        for _ in self.queue.close() {
            self.rank.client.tally().store_skipped(Skip::Refused(Reason::Unreachable));
        }
    }

    /// Reserving comes before hashing: what the daemon already has is never hashed.
    fn store(&self, Origin { session, epoch }: &Origin, batch: Vec<GatheredPart>) -> Vec<Result<(), Skip>> {
        let Rank { client, namespace, .. } = &*self.rank;
        let deadline = Instant::now() + client.config().store_deadline;
        let mut results = Vec::with_capacity(batch.len());
        let mut here = Vec::with_capacity(batch.len());
        for GatheredPart { chunk, part, coverage, packed } in batch {
            match packed.wait(deadline) {
                Ok(Filled { slot, digest }) => {
                    let bytes = slot.len() as u64;
                    here.push((ReserveAsk { chunk, part, coverage, bytes }, slot, digest));
                }
                Err(skip) => results.push(Err(skip)),
            }
        }
        if here.is_empty() {
            return results;
        }
        let asks: Vec<_> = here.iter().map(|(ask, ..)| *ask).collect();
        let reserve = session.calls.reserve(*namespace, *epoch, &asks);
        let answers = match client.ask_blocking(session, deadline, Pace::Quick, reserve) {
            Ok((answers, now)) => {
                session.learn_epoch(*namespace, now);
                answers
            }
            Err(reason) => {
                results.resize(results.len() + here.len(), Err(Skip::Refused(reason)));
                return results;
            }
        };
        let (mut staged, mut sizes) = (Vec::new(), Vec::new());
        for ((ask, slot, digest), answer) in here.into_iter().zip(answers) {
            match answer {
                ReserveAnswer::Reserved(reservation) => {
                    let digest = digest.unwrap_or_else(|| ContentDigest::of(slot.as_ref()));
                    sizes.push(ask.bytes);
                    staged.push(StagedPart { reservation, coverage: ask.coverage, digest, slot });
                }
                ReserveAnswer::Already => {
                    client.tally().already_stored.one();
                    results.push(Ok(()));
                }
                ReserveAnswer::Refused(reason) => results.push(Err(Skip::Refused(reason))),
            }
        }
        results.extend(self.hand_over(session, staged, &sizes, deadline));
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
        let tally = self.rank.client.tally();
        let outcomes = transport.store(&self.rank.client, session, staged, deadline);
        let count = |(outcome, bytes): (Result<_, Reason>, &u64)| {
            let stored: crate::transport::calls::Stored = outcome.map_err(Skip::Refused)?;
            tally.stored_parts.one();
            tally.stored_bytes.add(*bytes);
            tally.stored_chunks.add(u64::from(stored.chunk_ready));
            Ok(())
        };
        outcomes.into_iter().zip(sizes).map(count).collect()
    }
}
