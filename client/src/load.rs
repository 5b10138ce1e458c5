//! The worker's loads: lookup > lease > read, verify and scatter > wait for the copies > release.
//!
//! Over a network, bytes are scattered as they come and verified on the way: what turns out to be wrong lies in blocks
//! that were promised to this load and are reported as failed.
//!
//! One thread takes a whole load from its lookup to its report, so that a load is reported only after the last
//! byte of it was copied: the engine may hand the blocks on as soon as it hears of it. Every wait on the way
//! ends with the deadline, with the session, or with the client, whichever comes first; but copies that a device has begun are
//! waited for to their end, since nobody can call them back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tender_proto::mutant::{Mutant, active, read_fails};
use tender_proto::{PartIndex, Reason};
use tender_trace::{Side, names};

use crate::client::Pace;
use crate::copy::carrier::Fence;
use crate::copy::{CopyRefusal, Target};
use crate::lease::HeldLease;
use crate::plan::{LoadItem, LoadJob};
use crate::queue::Queue;
use crate::session::Session;
use crate::transport::calls::{ChunkAnswer, LookupAsk};
use crate::transport::{ReadAsk, ReadItem, Transport};
use crate::worker::Rank;

/// A lease outlasts the load it is for by this much, or the release of a load that used all its time would
/// come too late.
const LEASE_MARGIN: Duration = Duration::from_secs(1);

/// A load that is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadDone {
    /// Whose load it was.
    pub request: String,
    /// The engine's blocks that did not get their bytes and must be recomputed. Empty: all is well.
    pub failed_blocks: Vec<u32>,
    /// Nothing of it may be used, and the engine goes on from before it. Never set unless the job was
    /// [`whole`](LoadJob::whole).
    pub failed: bool,
}

/// A load that waits for a thread.
#[derive(Debug)]
pub(crate) struct Pending {
    job: LoadJob,
    deadline: Instant,
    /// What its writes come after.
    after: Fence,
}

/// What all loads of a worker share.
#[derive(Debug)]
pub(crate) struct Loader {
    pub(crate) rank: Arc<Rank>,
    pub(crate) queue: Queue<Pending>,
    pub(crate) done: Mutex<Vec<LoadDone>>,
}

impl Loader {
    /// Begins a load that writes nothing before `after` is over. Whatever happens to it, it is reported once.
    pub(crate) fn submit(&self, job: LoadJob, after: Fence) {
        if self.rank.fuse.is_blown() {
            return self.give_up(&job, Reason::Internal);
        }
        let deadline = Instant::now() + self.rank.client.config().load_deadline;
        if let Err(pending) = self.queue.push(Pending { job, deadline, after }) {
            self.give_up(&pending.job, Reason::TooMany);
        }
    }

    /// Loads until the queue is closed.
    pub(crate) fn work(&self) {
        while let Some(mut taken) = self.queue.take(|_| false) {
            for Pending { job, deadline, after } in taken.items() {
                // A panic has unwound the copy, so nothing touches the blocks any more.
                let failed = || vec![Err(Reason::Internal); job.items.len()];
                let begin = Instant::now();
                let results = self.rank.fuse.run("load", failed, || self.traced_load(&job, deadline, &after));
                self.rank.client.tally().load_us.add_time(begin);
                self.rank.blow_if_lost();
                self.report(&job, &results);
            }
        }
    }

    /// Reports what will never be begun.
    pub(crate) fn close(&self) {
        for pending in self.queue.close() {
            self.give_up(&pending.job, Reason::Unreachable);
        }
    }

    fn give_up(&self, job: &LoadJob, reason: Reason) {
        self.report(job, &vec![Err(reason); job.items.len()]);
    }

    fn report(&self, job: &LoadJob, results: &[Result<(), Reason>]) {
        let tally = self.rank.client.tally();
        let mut failed_blocks = Vec::new();
        let results = if active(Mutant::FailedLoadIsGood) { &vec![Ok(()); results.len()] } else { results };
        let failed = job.whole && results.iter().any(Result::is_err);
        for (item, result) in job.items.iter().zip(results) {
            if let Err(reason) = result {
                tally.load_failed(*reason, 1);
            }
            if failed || result.is_err() {
                failed_blocks.extend(item.needed.iter().filter_map(|i| item.blocks.get(i as usize)));
            }
        }
        if failed_blocks.is_empty() {
            tally.loads.one();
        } else {
            tally.loads_failed.one();
            tally.failed_blocks.add(failed_blocks.len() as u64);
            tracing::debug!(request = job.request, blocks = failed_blocks.len(), "a load failed in part");
        }
        self.done.lock().push(LoadDone { request: job.request.clone(), failed_blocks, failed });
    }

    fn traced_load(&self, job: &LoadJob, deadline: Instant, after: &Fence) -> Vec<Result<(), Reason>> {
        let span = self.rank.client.trace().span(names::LOAD, Side::Within, job.trace);
        let _in = span.enter();
        let results = self.load(job, deadline, after);
        if !span.is_none() {
            span.set(names::REQUEST, job.request.clone());
            span.set(names::CHUNKS, names::count(job.items.len()));
            if let Some(reason) = results.iter().find_map(|result| result.err()) {
                span.fail(reason.label());
            }
        }
        results
    }

    fn load(&self, job: &LoadJob, deadline: Instant, after: &Fence) -> Vec<Result<(), Reason>> {
        let session = match self.rank.client.session(self.rank.namespace) {
            Ok(session) => session,
            Err(reason) => return vec![Err(reason); job.items.len()],
        };
        let mut results = Vec::with_capacity(job.items.len());
        while let Some(left) = job.items.get(results.len()..).filter(|left| !left.is_empty()) {
            let batch = self.batch(left, session.limits.max_batch_chunks);
            results.extend(self.load_batch(&session, batch, deadline, after));
        }
        results
    }

    /// As many of the first items as one lookup and one read take: the latter counts parts. At least one.
    fn batch<'a>(&self, items: &'a [LoadItem], limit: usize) -> &'a [LoadItem] {
        let mut parts = 0;
        let fits = |item: &&LoadItem| {
            parts += self.rank.layout.parts(item.chunk.group).len().max(1);
            parts <= limit
        };
        let count = items.iter().take_while(fits).count();
        &items[..count.max(1)]
    }

    /// One lookup and one lease. Only a lease that was good to the end makes any of it good.
    fn load_batch(
        &self,
        session: &Arc<Session>,
        items: &[LoadItem],
        deadline: Instant,
        after: &Fence,
    ) -> Vec<Result<(), Reason>> {
        let all = |reason| vec![Err(reason); items.len()];
        let Some(transport) = &session.transport else { return all(Reason::Unsupported) };
        let (answers, lease) = match self.lookup(session, transport.as_ref(), items, deadline) {
            Ok(found) => found,
            Err(reason) => return all(reason),
        };
        let mut results = all(Reason::Internal);
        let Some(lease) = lease else {
            return self.unleased(items, &answers, transport.as_ref());
        };
        // Of every item all parts that this rank holds, one after another.
        let (mut positions, mut reads) = (Vec::new(), Vec::new());
        for (i, (item, answer)) in items.iter().zip(&answers).enumerate() {
            results[i] = self.readable(i, item, answer, transport.as_ref()).map(|parts| {
                positions.resize(positions.len() + parts.len(), i);
                reads.extend(parts);
            });
        }
        let ask = ReadAsk { lease: lease.id(), items: reads, deadline };
        let mut loading = match self.rank.carrier.load(after, transport.arena()) {
            Ok(loading) => loading,
            Err(reason) => return all(reason),
        };
        let lasts = transport.arena().is_some();
        // Scatters what comes, for as long as there is time and the load is not over.
        let mut sink = |at: usize, offset_bytes: u64, piece: &[u8]| {
            if session.has_ended() {
                return Err(Reason::Unreachable);
            }
            if Instant::now() >= deadline {
                return Err(Reason::Deadline);
            }
            let item = positions.get(at).and_then(|&i| items.get(i)).ok_or(Reason::Internal)?;
            let target = target(item, ask.items.get(at).ok_or(Reason::Internal)?);
            loading.scatter(&target, offset_bytes, piece, lasts).map_err(|no| misfit(&no, item))
        };
        let read = transport.read(&self.rank.client, session, &ask, &mut sink);
        // While the lease still holds: until then copies may read under it.
        let copied = loading.finish(deadline);
        let bad = ask.items.iter().zip(&read).filter(|(_, result)| **result == Err(Reason::BadDigest));
        let mut suspects: Vec<_> = bad.map(|(item, _)| item.chunk_index).collect();
        suspects.dedup();
        let fate = match lease.release(deadline, &suspects) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Reason::LeaseExpired),
            Err(reason) => Err(reason),
        };
        let fate = copied.and(fate);
        for (&at, result) in positions.iter().zip(read) {
            let result = if read_fails() { Err(Reason::LeaseExpired) } else { result.and(fate) };
            results[at] = results[at].and(result);
        }
        let tally = self.rank.client.tally();
        for (_, read) in positions.iter().zip(&ask.items).filter(|(at, _)| results[**at].is_ok()) {
            tally.loaded_bytes.add(read.bytes);
            tally.loaded_parts.one();
        }
        results
    }

    /// Nothing was leased, so nothing can be read: why not, item by item.
    fn unleased(
        &self,
        items: &[LoadItem],
        answers: &[ChunkAnswer],
        transport: &dyn Transport,
    ) -> Vec<Result<(), Reason>> {
        let why = |(index, (item, answer))| {
            self.readable(index, item, answer, transport).and(Err(Reason::Internal))
        };
        items.iter().zip(answers).enumerate().map(why).collect()
    }

    fn lookup(
        &self,
        session: &Arc<Session>,
        transport: &dyn Transport,
        items: &[LoadItem],
        deadline: Instant,
    ) -> Result<(Vec<ChunkAnswer>, Option<HeldLease>), Reason> {
        let chunks: Vec<_> = items.iter().map(|item| item.chunk).collect();
        let lease = deadline.saturating_duration_since(Instant::now()) + LEASE_MARGIN;
        let ask = LookupAsk { lease, locate: transport.locates(), fetch: false };
        let call = session.calls.lookup(&self.rank.descriptor, self.rank.namespace, &chunks, ask);
        let answer = self.rank.client.ask_blocking(session, deadline, Pace::Quick, call)?;
        let lease = answer.lease.map(|grant| HeldLease::new(&self.rank.client, session, grant));
        Ok((answer.chunks, lease))
    }

    /// What to read for an item, part by part, if what the daemon has is enough for it.
    fn readable(
        &self,
        index: usize,
        item: &LoadItem,
        answer: &ChunkAnswer,
        transport: &dyn Transport,
    ) -> Result<Vec<ReadItem>, Reason> {
        let (coverage, places) = match answer {
            ChunkAnswer::Ready { coverage, places } => (*coverage, places),
            // It was there when the scheduler asked; now another version of it is under way.
            ChunkAnswer::Pending { .. } => return Err(Reason::NotCovered),
            ChunkAnswer::Miss(reason) => return Err(*reason),
        };
        if !coverage.contains(item.needed) && !active(Mutant::CoverageIgnored) {
            return Err(Reason::NotCovered);
        }
        let group = self.rank.descriptor.group_of(item.chunk).map_err(|no| no.reason)?;
        if transport.locates() && places.len() != group.parts() {
            return Err(Reason::Internal);
        }
        let chunk_index = u32::try_from(index).map_err(|_| Reason::TooMany)?;
        let read = |part: PartIndex| {
            let bytes = group.part_bytes(part, coverage).map_err(|no| no.reason)?;
            let place = places.get(usize::from(part.0)).copied().filter(|_| transport.locates());
            Ok(ReadItem { chunk_index, part, coverage, bytes, place })
        };
        self.rank.layout.parts(item.chunk.group).iter().map(|local| read(local.part)).collect()
    }
}

/// Where one read's bytes go.
fn target<'a>(item: &'a LoadItem, read: &ReadItem) -> Target<'a> {
    Target {
        group: item.chunk.group,
        part: read.part,
        blocks: &item.blocks,
        stored: read.coverage,
        needed: item.needed,
    }
}

/// Why a piece could not be scattered.
fn misfit(no: &CopyRefusal, item: &LoadItem) -> Reason {
    if matches!(no, CopyRefusal::Device { .. }) {
        return Reason::Internal;
    }
    tracing::warn!(%no, chunk = %item.chunk, "blocks of a load do not fit the layout");
    Reason::Malformed
}
