//! This host's disk: chunks in preallocated segment files, a log that reclaims its oldest segment (docs/disk-tier.md).
//!
//! ```text
//! keep  > budget, queue > writer: namespaces, parts, header > index
//! find  > index
//! fetch > index > header, parts, straight into the arena > digests > READY
//! start > folder > recover: headers > index
//! ```

mod budget;
#[cfg(all(test, feature = "faults"))]
mod faults;
mod fetch;
mod folder;
mod format;
mod health;
mod index;
mod io;
mod namespaces;
mod recover;
mod shared;
mod stats;
#[cfg(test)]
mod tests;
mod writer;

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tender_proto::{ChunkId, ChunkKey, Coverage, Descriptor, NamespaceDigest, PartIndex};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{timeout, timeout_at};

use super::{Available, FetchError, Kept, Tier, TierKind, TierNamespace};
use crate::config::DiskConfig;
use crate::engine::{House, OpenChunk, PartReader, Unfilled};
use crate::task::{Thread, blocking, thread};
use budget::WriteBudget;
use fetch::Fetch;
pub use folder::DiskError;
pub(crate) use folder::MIN_SEGMENTS;
use format::FIRST_RECORD_AT;
use index::Keys;
use namespaces::Namespaces;
use recover::Recovery;
use shared::{NotQueued, Shared};
pub(crate) use stats::DiskStats;
use stats::add;
use writer::{Chunk, Job, Writer};

/// Of the folder, for what is not segments.
pub(crate) const BESIDE_SEGMENTS_BYTES: u64 = namespaces::ROOM_BYTES;

/// Chunks that wait to be written hold their bytes in the arena.
const QUEUE_SEGMENTS: u64 = 1;
/// A write that takes longer has failed, whatever becomes of it.
const KEEP_PATIENCE: Duration = Duration::from_secs(30);
/// For the threads to end. What they do takes milliseconds, a sync at the end seconds.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How often is looked whether they have.
const TICK: Duration = Duration::from_millis(1);
/// Chunks that a lookup asks the index for before others have their turn.
const TURN_CHUNKS: usize = 1024;

/// The tier.
#[derive(Debug)]
pub(crate) struct Disk {
    shared: Arc<Shared>,
    budget: Arc<WriteBudget>,
    reads: Arc<Semaphore>,
    /// Gone when the writer is to end.
    jobs: Mutex<Option<Sender<Job>>>,
    /// Nobody waits any more for threads that hang.
    left: AtomicBool,
    /// Every thread has it until it ends.
    recovery: Arc<Recovery>,
    threads: Vec<Thread>,
}

impl Disk {
    /// Opens the folder and takes all its room, which may take a while: call it off the async threads. Another daemon
    /// that has the folder gets `patience` to let go of it. What the folder holds is found again behind an open door.
    pub(crate) fn open(config: &DiskConfig, patience: Duration) -> Result<Self, DiskError> {
        let failed = |doing| {
            let folder = config.path.clone();
            move |source| DiskError::Io { folder, doing, source }
        };
        let folder = folder::open(config, patience)?;
        let namespaces = Namespaces::open(&config.path).map_err(failed("read the namespaces of"))?;
        let queue_bytes = QUEUE_SEGMENTS * config.segment_bytes;
        let shared = Arc::new(Shared::new(folder, namespaces, config.segment_bytes, queue_bytes));
        let budget = Arc::new(WriteBudget::new(config.write_bytes_per_second, Instant::now()));
        let recovery = Recovery::new(&shared);
        let mut threads = recovery.start().map_err(failed("start a thread for"))?;
        let (jobs, todo) = channel();
        let writer = Writer::new(Arc::clone(&shared), Arc::clone(&budget));
        let first = Arc::clone(&recovery);
        let write = move || writer.run(&first, &todo);
        threads.push(thread("disk-write", write).map_err(failed("start a thread for"))?);
        let reads = Arc::new(Semaphore::new(config.reads));
        let (jobs, left) = (Mutex::new(Some(jobs)), AtomicBool::new(false));
        Ok(Self { shared, budget, reads, jobs, left, recovery, threads })
    }

    /// One moment's numbers.
    pub(crate) fn stats(&self) -> DiskStats {
        self.shared.stats()
    }

    fn send(&self, job: Job) -> bool {
        self.jobs.lock().as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// Tells all threads to end.
    fn end(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        *self.jobs.lock() = None;
    }

    /// Whether all threads have ended.
    fn has_ended(&self) -> bool {
        Arc::strong_count(&self.recovery) == 1
    }

    async fn forget(
        &self,
        what: impl FnOnce(&Namespaces) -> std::io::Result<()> + Send + 'static,
    ) -> Result<(), String> {
        let shared = Arc::clone(&self.shared);
        add(&shared.counters.resets, 1);
        match blocking("disk-reset", move || what(&shared.namespaces)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("the disk tier cannot write down that it is forgotten: {error}")),
            Err(_) => Err("the disk tier's reset ended early".into()),
        }
    }

    fn look(&self, keys: &mut Keys, descriptor: &Descriptor, chunk: ChunkId) -> Option<Available> {
        let group = descriptor.group_of(chunk).ok()?;
        let entry = self.shared.index.get(&keys.key(chunk))?;
        let coverage = Coverage::new(entry.coverage_bits, group.blocks_per_chunk).ok()?;
        let blocks: u64 = (0..).map(PartIndex).map_while(|part| group.block_bytes(part)).sum();
        Some(Available { bytes: blocks * u64::from(coverage.count()), coverage: Some(coverage) })
    }

    /// A chunk that is to be written, or what becomes of it instead.
    fn admit(&self, namespace: &TierNamespace, chunk: ChunkId, stored: &OpenChunk) -> Result<Chunk, Kept> {
        let shared = &self.shared;
        if shared.health.is_sick() {
            return Err(Kept::Failed);
        }
        let counted = |counter, kept| {
            add(counter, 1);
            kept
        };
        let unwanted = || counted(&shared.counters.unwanted_chunks, Kept::Unwanted);
        let throttled = || counted(&shared.counters.throttled_chunks, Kept::Throttled);
        let known = shared.namespaces.know(namespace.digest, &namespace.descriptor).ok_or_else(unwanted)?;
        let key = Keys::of(namespace.digest, known.generation).key(chunk);
        let group = namespace.descriptor.group_of(chunk).map_err(|_| Kept::Failed)?;
        let has =
            |bits| Coverage::new(bits, group.blocks_per_chunk).is_ok_and(|has| has.contains(stored.coverage));
        if shared.index.get(&key).is_some_and(|entry| has(entry.coverage_bits)) {
            return Err(Kept::Yes);
        }
        let bytes = format::record_bytes(stored.parts.iter().map(|part| part.as_ref().len() as u64));
        let most = shared.segment_bytes - FIRST_RECORD_AT;
        let bytes = bytes.filter(|&bytes| bytes <= most).ok_or_else(unwanted)?;
        let queued = shared.enqueue(key, bytes).map_err(|why| match why {
            NotQueued::Pending => Kept::Yes,
            NotQueued::Full => throttled(),
        })?;
        if !self.budget.take(bytes, Instant::now()) {
            return Err(throttled());
        }
        let key = ChunkKey { namespace: namespace.digest, chunk };
        let parts = stored.parts.iter().map(PartReader::again).collect();
        Ok(Chunk { key, known, coverage_bits: stored.coverage.bits(), parts, queued })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.end();
        let threads = std::mem::take(&mut self.threads);
        // Whoever could wait on an async thread has closed it before.
        let give_up = Instant::now() + END_PATIENCE;
        while !self.has_ended() && !self.left.load(Ordering::Relaxed) {
            std::thread::sleep(TICK);
            self.left.fetch_or(Instant::now() >= give_up, Ordering::Relaxed);
        }
        if !self.has_ended() {
            tracing::error!("the disk hangs: what the disk tier was writing is left behind");
            // Nobody waits for them; the folder stays locked until they end.
            _ = ManuallyDrop::new(threads);
        }
    }
}

/// Tells the thread that reads when nobody waits any more.
#[derive(Default)]
struct GiveUp(Arc<AtomicBool>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tonic::async_trait]
impl Tier for Disk {
    fn kind(&self) -> TierKind {
        TierKind::Disk
    }

    fn open_breakers(&self) -> Vec<(&'static str, u64)> {
        vec![("disk", u64::from(self.shared.health.is_sick()))]
    }

    async fn find(
        &self,
        namespace: &TierNamespace,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Vec<Option<Available>> {
        let mut answers = Vec::with_capacity(chunks.len());
        if let Some(known) = self.shared.namespaces.get(namespace.digest)
            && !self.shared.health.is_sick()
        {
            let mut keys = Keys::of(namespace.digest, known.generation);
            for turn in chunks.chunks(TURN_CHUNKS) {
                if Instant::now() >= deadline {
                    break;
                }
                answers.extend(turn.iter().map(|&chunk| self.look(&mut keys, &namespace.descriptor, chunk)));
                tokio::task::yield_now().await;
            }
        }
        answers.resize(chunks.len(), None);
        answers
    }

    async fn fetch(
        &self,
        namespace: &TierNamespace,
        chunk: ChunkId,
        house: &House,
        deadline: Instant,
    ) -> Result<(), FetchError> {
        let shared = &self.shared;
        if shared.health.is_sick() {
            return Err(FetchError::Unavailable("the disk tier is left alone because its disk fails".into()));
        }
        let until = deadline.into();
        let permit = timeout_at(until, Arc::clone(&self.reads).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return Err(FetchError::Deadline) };
        let known = shared.namespaces.get(namespace.digest).ok_or(FetchError::Gone)?;
        let index_key = Keys::of(namespace.digest, known.generation).key(chunk);
        let seen = shared.index.get(&index_key).ok_or(FetchError::Gone)?;
        let group = namespace.descriptor.group_of(chunk).map_err(|no| FetchError::Refused(no.reason))?;
        let coverage =
            Coverage::new(seen.coverage_bits, group.blocks_per_chunk).map_err(|_| FetchError::Corrupt)?;
        let filling = house.fill(namespace, chunk, coverage).map_err(|no| match no {
            Unfilled::Already(_) => FetchError::NotNeeded,
            Unfilled::Refused(reason) => FetchError::Refused(reason),
        })?;
        let give_up = GiveUp::default();
        let fetch = Fetch {
            shared: Arc::clone(shared),
            key: ChunkKey { namespace: namespace.digest, chunk },
            generation: known.generation,
            index_key,
            seen,
            deadline,
            given_up: Arc::clone(&give_up.0),
        };
        let read = blocking("disk-read", move || {
            let done = fetch.run(filling);
            drop(permit);
            done
        });
        match timeout_at(until, read).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(FetchError::Unavailable("a read of the disk tier ended early".into())),
            Err(_) => Err(FetchError::Deadline),
        }
    }

    /// Waits until it is written. It is, too, when nobody waits any more.
    async fn keep(&self, namespace: &TierNamespace, chunk: ChunkId, stored: &OpenChunk) -> Kept {
        let chunk = match self.admit(namespace, chunk, stored) {
            Ok(chunk) => chunk,
            Err(kept) => return kept,
        };
        let (reply, kept) = oneshot::channel();
        if !self.send(Job::Keep(Box::new(chunk), reply)) {
            return Kept::Failed;
        }
        match timeout(KEEP_PATIENCE, kept).await {
            Ok(Ok(kept)) => kept,
            Ok(Err(_)) | Err(_) => Kept::Failed,
        }
    }

    /// Nobody was told anything.
    async fn withdraw(&self, _: NamespaceDigest, _: &[ChunkId]) {}

    async fn reset(&self, namespace: &TierNamespace, raised: Option<u64>) -> Result<Option<u64>, String> {
        let digest = namespace.digest;
        self.forget(move |namespaces| namespaces.forget(digest)).await.map(|()| raised)
    }

    async fn reset_others(&self, _: &[TierNamespace]) -> Result<(), String> {
        self.forget(Namespaces::forget_all).await
    }

    async fn drain(&self, deadline: Instant) {
        let (reply, flushed) = oneshot::channel();
        if self.send(Job::Flush(reply)) {
            _ = timeout_at(deadline.into(), flushed).await;
        }
    }

    /// Waits for what is being written; the folder is free then.
    async fn close(&self, deadline: Instant) {
        self.end();
        while !self.has_ended() && Instant::now() < deadline {
            tokio::time::sleep(TICK).await;
        }
        self.left.store(true, Ordering::Relaxed);
    }
}
