//! Write-behind: what has become READY goes down to the tiers, behind everybody's back.
//!
//! Each tier has a queue of its own that takes what fits and drops the rest, so neither who stores nor another tier waits
//! for a slow one. A tier is not given what it brought itself; peers are told of everything, and in order. The shared tier
//! is given what was asked for often enough after it was stored: a store that all share should not fill up with prompts
//! that nobody repeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moka::sync::Cache;
use parking_lot::Mutex;
use tender_proto::{ChunkId, NamespaceDigest};
use tokio::sync::mpsc;

use super::calls::Calls;
use super::{Kept, Running, TierKind, TierNamespace};
use crate::config::StackConfig;
use crate::engine::Watcher;
use crate::task::Group;

/// News that may wait for one tier: chunks of some seconds of stores.
const QUEUE: usize = 8192;
/// Chunks that one tier keeps at one time: enough to hide a round trip.
const KEEPS_AT_ONCE: usize = 4;
/// No tier may hold a chunk's lease for longer.
const KEEP_TIME: Duration = Duration::from_secs(30);
/// Withdrawals that go out together.
const BATCH: usize = 256;
/// Chunks whose uses are counted, and for how long. 100 bytes and some each.
const COUNTED_CHUNKS: u64 = 262_144;
const COUNTED_FOR: Duration = Duration::from_secs(3600);
/// The count of a chunk that the shared tier was given or has brought.
const GIVEN: u32 = u32::MAX;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum News {
    /// A chunk is READY; the tier that brought it, if one did.
    Ready(NamespaceDigest, ChunkId, Option<TierKind>),
    /// A request found these READY.
    Used(NamespaceDigest, Vec<ChunkId>),
    /// A chunk has left the arena.
    Lost(NamespaceDigest, ChunkId),
}

/// What one tier was given, in numbers that only grow.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct KeepStats {
    pub(crate) kept: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) unwanted: u64,
    pub(crate) throttled: u64,
    pub(crate) failed: u64,
    /// News that found the queue full.
    pub(crate) dropped: u64,
}

/// The queues' entrances.
#[derive(Debug)]
pub(super) struct Behind {
    lanes: Vec<Entrance>,
}

#[derive(Debug)]
struct Entrance {
    kind: TierKind,
    news: mpsc::Sender<News>,
    dropped: AtomicU64,
    stats: Mutex<KeepStats>,
}

impl Behind {
    /// The entrances, and the queues in the same order.
    pub(super) fn new(kinds: impl Iterator<Item = TierKind>) -> (Arc<Self>, Vec<mpsc::Receiver<News>>) {
        let open = |kind| {
            let (news, queue) = mpsc::channel(QUEUE);
            (Entrance { kind, news, dropped: AtomicU64::new(0), stats: Mutex::default() }, queue)
        };
        let (lanes, queues) = kinds.map(open).unzip();
        (Arc::new(Self { lanes }), queues)
    }

    /// A chunk is READY.
    pub(super) fn ready(&self, namespace: NamespaceDigest, chunk: ChunkId, from: Option<TierKind>) {
        let wants = |lane: &&Entrance| lane.kind == TierKind::Peers || Some(lane.kind) != from;
        // The shared tier hears of its own too, so that it is not given it back later.
        for lane in self.lanes.iter().filter(|lane| wants(lane) || lane.kind == TierKind::Shared) {
            lane.take(News::Ready(namespace, chunk, from));
        }
    }

    /// A request found these READY. For the shared tier alone.
    pub(super) fn used(&self, namespace: NamespaceDigest, chunks: impl FnOnce() -> Vec<ChunkId>) {
        if let Some(lane) = self.lanes.iter().find(|lane| lane.kind == TierKind::Shared) {
            lane.take(News::Used(namespace, chunks()));
        }
    }

    /// By tier, in the order of the stack.
    pub(super) fn stats(&self) -> Vec<KeepStats> {
        let one = |lane: &Entrance| KeepStats {
            dropped: lane.dropped.load(Ordering::Relaxed),
            ..lane.stats.lock().clone()
        };
        self.lanes.iter().map(one).collect()
    }

    fn count(&self, at: usize, kept: Kept, bytes: u64) {
        let Some(lane) = self.lanes.get(at) else { return };
        let mut stats = lane.stats.lock();
        match kept {
            Kept::Yes => {
                stats.kept += 1;
                stats.kept_bytes += bytes;
            }
            Kept::Unwanted => stats.unwanted += 1,
            Kept::Throttled => stats.throttled += 1,
            Kept::Failed => stats.failed += 1,
        }
    }
}

impl Entrance {
    fn take(&self, news: News) {
        // One whose tier has stopped has nobody to miss it.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.news.try_send(news) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Watcher for Behind {
    fn stored(&self, namespace: NamespaceDigest, chunk: ChunkId) {
        self.ready(namespace, chunk, None);
    }
    /// Only peers were told that it is here.
    fn lost(&self, namespace: NamespaceDigest, chunk: ChunkId) {
        for lane in self.lanes.iter().filter(|lane| lane.kind == TierKind::Peers) {
            lane.take(News::Lost(namespace, chunk));
        }
    }
}

/// One tier's end of its queue.
pub(super) struct Keeper {
    pub(super) at: usize,
    pub(super) running: Arc<Running>,
    pub(super) calls: Arc<Calls>,
    pub(super) behind: Arc<Behind>,
    pub(super) config: StackConfig,
}

impl Keeper {
    /// Hands on what comes, until it is dropped.
    pub(super) async fn work(self, mut queue: mpsc::Receiver<News>) {
        let Some(kind) = self.running.tiers.get(self.at).map(|tier| tier.kind()) else { return };
        let keeper = Arc::new(self);
        let mut uses = Uses::new(keeper.config.shared_min_hits);
        let mut pace = Pace::new(kind, keeper.config.write_bytes_per_second);
        let mut keeps = Group::new("keep");
        let (mut batch, mut lost) = (Vec::new(), Lost::default());
        while queue.recv_many(&mut batch, BATCH).await > 0 {
            for news in batch.drain(..) {
                let (namespace, chunks) = match news {
                    News::Lost(namespace, chunk) => {
                        if !lost.add(namespace, chunk) {
                            keeper.withdraw(&mut lost).await;
                            lost.add(namespace, chunk);
                        }
                        continue;
                    }
                    News::Ready(namespace, chunk, from) => {
                        (namespace, keeper.ready(kind, &mut uses, namespace, chunk, from))
                    }
                    News::Used(namespace, chunks) => (namespace, keeper.used(&mut uses, namespace, chunks)),
                };
                keeper.withdraw(&mut lost).await;
                for chunk in chunks {
                    pace.turn(keeper.running.chunk_bytes(namespace, chunk)).await;
                    // What peers are told has an order.
                    if kind == TierKind::Peers {
                        keeper.keep(namespace, chunk).await;
                    } else {
                        keeps.room_for(KEEPS_AT_ONCE).await;
                        let keeper = Arc::clone(&keeper);
                        keeps.spawn(async move { keeper.keep(namespace, chunk).await });
                    }
                }
            }
            keeper.withdraw(&mut lost).await;
        }
    }

    fn ready(
        &self,
        kind: TierKind,
        uses: &mut Uses,
        namespace: NamespaceDigest,
        chunk: ChunkId,
        from: Option<TierKind>,
    ) -> Vec<ChunkId> {
        let Some(epoch) = self.running.house.epoch(namespace) else { return Vec::new() };
        let wanted = kind != TierKind::Shared || uses.ready((namespace, epoch, chunk), from);
        if wanted { vec![chunk] } else { Vec::new() }
    }

    fn used(&self, uses: &mut Uses, namespace: NamespaceDigest, mut chunks: Vec<ChunkId>) -> Vec<ChunkId> {
        let Some(epoch) = self.running.house.epoch(namespace) else { return Vec::new() };
        chunks.retain(|&chunk| uses.used((namespace, epoch, chunk)));
        chunks
    }

    /// Hands one chunk to the tier, if it is still there.
    async fn keep(&self, namespace: NamespaceDigest, chunk: ChunkId) {
        let Some(tier) = self.running.tiers.get(self.at) else { return };
        let Some(namespace) = self.running.house.namespace(namespace) else { return };
        let current = || self.running.is_current(&namespace);
        let kept = self.calls.run(&namespace, current, async {
            let open = self.running.house.read(&namespace, chunk)?;
            let bytes = open.parts.iter().map(|part| part.as_ref().len() as u64).sum();
            let keeping = tier.keep(&namespace, chunk, &open);
            Some((tokio::time::timeout(KEEP_TIME, keeping).await.unwrap_or(Kept::Failed), bytes))
        });
        if let Some(Some((kept, bytes))) = kept.await {
            self.behind.count(self.at, kept, bytes);
        }
    }

    async fn withdraw(&self, lost: &mut Lost) {
        let Some((namespace, chunks)) = lost.take() else { return };
        let Some(tier) = self.running.tiers.get(self.at) else { return };
        if tokio::time::timeout(KEEP_TIME, tier.withdraw(namespace, &chunks)).await.is_err() {
            tracing::warn!(
                tier = tier.kind().name(),
                "chunks that have left the arena could not be withdrawn in time"
            );
        }
    }
}

/// Chunks of one namespace that have left the arena and that nobody was told of yet.
#[derive(Default)]
struct Lost(Option<(NamespaceDigest, Vec<ChunkId>)>);

impl Lost {
    /// False: those that are here must go first.
    fn add(&mut self, namespace: NamespaceDigest, chunk: ChunkId) -> bool {
        let (of, chunks) = self.0.get_or_insert_with(|| (namespace, Vec::new()));
        let fits = *of == namespace && chunks.len() < BATCH;
        if fits {
            chunks.push(chunk);
        }
        fits
    }
    fn take(&mut self) -> Option<(NamespaceDigest, Vec<ChunkId>)> {
        self.0.take()
    }
}

/// How often each chunk was found by a request since it was stored. By epoch: what a reset forgot begins anew.
struct Uses {
    min_hits: u32,
    counts: Cache<(NamespaceDigest, u32, ChunkId), u32>,
}

impl Uses {
    fn new(min_hits: u32) -> Self {
        let counts = Cache::builder().max_capacity(COUNTED_CHUNKS).time_to_live(COUNTED_FOR).build();
        Self { min_hits, counts }
    }
    /// A chunk is READY: whether the shared tier is given it at once.
    fn ready(&mut self, key: (NamespaceDigest, u32, ChunkId), from: Option<TierKind>) -> bool {
        let its_own = from == Some(TierKind::Shared);
        let give = !its_own && self.min_hits == 0 && self.counts.get(&key) != Some(GIVEN);
        if its_own || give {
            self.counts.insert(key, GIVEN);
        }
        give
    }
    /// A request found it: whether the shared tier is given it now.
    fn used(&mut self, key: (NamespaceDigest, u32, ChunkId)) -> bool {
        let hits = self.counts.get(&key).unwrap_or(0);
        if hits == GIVEN {
            return false;
        }
        let give = hits + 1 >= self.min_hits;
        self.counts.insert(key, if give { GIVEN } else { hits + 1 });
        give
    }
}

/// Bytes per second of one tier. Telling peers takes no bytes.
struct Pace {
    bytes_per_second: u64,
    free_at: Instant,
}

impl Pace {
    fn new(kind: TierKind, bytes_per_second: u64) -> Self {
        let bytes_per_second = if kind == TierKind::Peers { 0 } else { bytes_per_second };
        Self { bytes_per_second, free_at: Instant::now() }
    }
    /// Waits until what went before is paid for.
    async fn turn(&mut self, bytes: u64) {
        if self.bytes_per_second == 0 {
            return;
        }
        tokio::time::sleep_until(self.free_at.into()).await;
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.free_at = self.free_at.max(Instant::now()) + takes.min(KEEP_TIME);
    }
}

impl Running {
    /// Whether a namespace is still in the epoch that it was in.
    pub(super) fn is_current(&self, namespace: &TierNamespace) -> bool {
        self.house.epoch(namespace.digest) == Some(namespace.epoch)
    }
    /// Of all its parts, if it is full.
    fn chunk_bytes(&self, namespace: NamespaceDigest, chunk: ChunkId) -> u64 {
        self.house.full_chunk_bytes(namespace, chunk).unwrap_or(0)
    }
}
