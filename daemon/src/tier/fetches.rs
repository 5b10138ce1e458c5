//! Which chunks are being fetched: each once, however many ask for it; so many at one time; none again right after it
//! failed.
//!
//! ```text
//! asked for --begin--> queued in its tier's lane --turn--> running --end--> READY, or failed: not again for a while
//! ```
//! A lane is first come, first served, so that a prefix comes from its front. Nobody waits here for a fetch: who asks is
//! told when to ask again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use moka::sync::Cache;
use parking_lot::Mutex;
use tender_proto::{ChunkId, Coverage, NamespaceDigest, Reason};
use tender_trace::Origin;

use super::cost::{Cost, Sample};
use super::{Available, FetchError, TierKind, TierNamespace};
use crate::config::StackConfig;
use crate::metrics::{FETCH_SECONDS, Histogram, Spread};

/// A chunk that could not be had is not asked for again sooner: a prefix of a thousand chunks that a dead peer has would
/// else cost each request anew.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Failures that are remembered.
const REMEMBERED_FAILURES: u64 = 65_536;
/// What a fetch counts at least, so that the bound on bytes is one on their number too.
const LEAST_BYTES: u64 = 64 << 10;

type Key = (NamespaceDigest, ChunkId);

/// What becomes of a chunk that somebody looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sought {
    /// It is on its way.
    Coming {
        /// How long that will take, at least 1.
        expected_ms: u32,
    },
    /// It does not come; why, if it could be had.
    Absent(Option<Reason>),
}

/// One fetch, from its queue to its end.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) namespace: Arc<TierNamespace>,
    pub(super) chunk: ChunkId,
    /// The first tier to ask, by its place in the stack.
    pub(super) lane: usize,
    pub(super) deadline: Instant,
    /// The lookup that asked first.
    pub(super) asked_by: Origin,
    id: u64,
}

/// How a fetch ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// READY, from the tier at this place.
    Brought(usize),
    /// Nothing was to be done.
    NotNeeded,
    /// It was given up: a reset, a stop.
    GivenUp,
    /// No tier has brought it; what the last one said.
    Failed(Option<Reason>),
}

/// Totals of one tier since the start, and its moment.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct LaneStats {
    pub(crate) begun: u64,
    pub(crate) brought: u64,
    pub(crate) brought_bytes: u64,
    /// Of those, from the question to READY.
    pub(crate) fetch_seconds: Spread,
    /// Of those that this tier was asked for, by reason.
    pub(crate) failures: BTreeMap<&'static str, u64>,
    /// Found here, and not begun for want of room.
    pub(crate) throttled: u64,
    pub(crate) under_way: u64,
    pub(crate) under_way_bytes: u64,
    pub(crate) latency: Duration,
    pub(crate) bytes_per_second: u64,
}

#[derive(Debug)]
pub(super) struct Fetches {
    limits: StackConfig,
    inner: Mutex<Inner>,
    failed: Cache<Key, Option<Reason>>,
}

#[derive(Debug)]
struct Inner {
    lanes: Vec<Lane>,
    wanted: HashMap<Key, Wanted>,
    /// Of all that is wanted.
    bytes: u64,
    next_id: u64,
    /// No other begins.
    shut: bool,
}

#[derive(Debug)]
struct Lane {
    queue: VecDeque<Fetch>,
    running: usize,
    bytes: u64,
    cost: Cost,
    fetch_seconds: Histogram,
    stats: LaneStats,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    id: u64,
    epoch: u32,
    lane: usize,
    bytes: u64,
    ahead_bytes: u64,
    asked: Instant,
    expected: Duration,
    begun: Option<Instant>,
    alone: bool,
}

impl Fetches {
    pub(super) fn new(kinds: impl Iterator<Item = TierKind>, limits: &StackConfig) -> Self {
        let lane = |kind| Lane {
            queue: VecDeque::new(),
            running: 0,
            bytes: 0,
            cost: Cost::assumed(kind),
            fetch_seconds: Histogram::new(FETCH_SECONDS),
            stats: LaneStats::default(),
        };
        let inner = Inner {
            lanes: kinds.map(lane).collect(),
            wanted: HashMap::new(),
            bytes: 0,
            next_id: 0,
            shut: false,
        };
        let failed = Cache::builder().max_capacity(REMEMBERED_FAILURES).time_to_live(RETRY_AFTER).build();
        Self { limits: limits.clone(), inner: Mutex::new(inner), failed }
    }

    /// What is known of a chunk without asking anybody: it is on its way, or could not be had a moment ago.
    pub(super) fn known(&self, namespace: &TierNamespace, chunk: ChunkId) -> Option<Sought> {
        let key = (namespace.digest, chunk);
        if let Some(wanted) = self.inner.lock().wanted.get(&key)
            && wanted.epoch == namespace.epoch
        {
            return Some(wanted.sought());
        }
        self.failed.get(&key).map(Sought::Absent)
    }

    /// The same for a chunk on its way alone: in how many milliseconds it is expected.
    pub(super) fn expected_ms(&self, namespace: NamespaceDigest, chunk: ChunkId) -> Option<u32> {
        let inner = self.inner.lock();
        inner.wanted.get(&(namespace, chunk)).map(|wanted| ms(wanted.left()))
    }

    /// Queues the fetch of a chunk that a tier has, unless it is under way already or too much is.
    pub(super) fn begin(
        &self,
        namespace: &Arc<TierNamespace>,
        chunk: ChunkId,
        lane_index: usize,
        available: Available,
    ) -> Sought {
        let key = (namespace.digest, chunk);
        let bytes = charge(namespace, chunk, available);
        let asked = Instant::now();
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        match inner.wanted.get(&key) {
            Some(wanted) if wanted.epoch == namespace.epoch => return wanted.sought(),
            // A reset is about to end it.
            Some(_) => return Sought::Absent(Some(Reason::NamespaceReset)),
            None => {}
        }
        let Some(lane) = inner.lanes.get_mut(lane_index) else { return Sought::Absent(None) };
        if inner.shut || inner.bytes.saturating_add(bytes) > self.limits.fetch_bytes {
            lane.stats.throttled += 1;
            return Sought::Absent(Some(Reason::Throttled));
        }
        let id = inner.next_id;
        inner.next_id += 1;
        let wanted = Wanted {
            id,
            epoch: namespace.epoch,
            lane: lane_index,
            bytes,
            ahead_bytes: lane.bytes,
            asked,
            expected: lane.cost.expected(lane.bytes, bytes),
            begun: None,
            alone: lane.bytes == 0,
        };
        inner.bytes += bytes;
        lane.bytes += bytes;
        lane.stats.begun += 1;
        let deadline = asked + self.limits.fetch_time;
        lane.queue.push_back(Fetch {
            namespace: Arc::clone(namespace),
            chunk,
            lane: lane_index,
            deadline,
            asked_by: Origin::current(),
            id,
        });
        inner.wanted.insert(key, wanted);
        wanted.sought()
    }

    /// The next fetch of a lane whose turn has come. It counts as running until its [`Turn`] ends.
    pub(super) fn next(self: &Arc<Self>, lane_index: usize) -> Option<(Fetch, Turn)> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let lane = inner.lanes.get_mut(lane_index)?;
        if lane.running >= self.limits.fetches {
            return None;
        }
        let fetch = lane.queue.pop_front()?;
        let alone = lane.running == 0 && lane.queue.is_empty();
        lane.running += 1;
        let key = (fetch.namespace.digest, fetch.chunk);
        // One that a reset has taken away still takes its turn, to find that out.
        if let Some(wanted) = inner.wanted.get_mut(&key).filter(|wanted| wanted.id == fetch.id) {
            wanted.begun = Some(Instant::now());
            wanted.alone &= alone;
        }
        let turn = Turn { fetches: Arc::clone(self), lane: lane_index, key, id: fetch.id, end: End::GivenUp };
        Some((fetch, turn))
    }

    /// A tier was asked for a chunk and did not bring it.
    pub(super) fn count_failure(&self, lane: usize, why: &FetchError) {
        if let Some(lane) = self.inner.lock().lanes.get_mut(lane) {
            *lane.stats.failures.entry(why.label()).or_default() += 1;
        }
    }

    /// These namespaces have begun a new epoch: what was wanted in one before is not wanted any more.
    pub(super) fn forget(&self, namespaces: &[TierNamespace]) {
        let is_over = |digest: NamespaceDigest, epoch: u32| {
            namespaces.iter().any(|namespace| namespace.digest == digest && namespace.epoch != epoch)
        };
        let mut guard = self.inner.lock();
        let Inner { lanes, wanted, bytes, .. } = &mut *guard;
        for lane in lanes.iter_mut() {
            lane.queue.retain(|fetch| !is_over(fetch.namespace.digest, fetch.namespace.epoch));
        }
        wanted.retain(|&(digest, _), wanted| {
            let stays = !is_over(digest, wanted.epoch);
            if !stays {
                give_back(lanes, bytes, wanted);
            }
            stays
        });
        drop(guard);
        self.failed.invalidate_all();
    }

    /// Nothing begins from now on, and what waits for its turn does not get one.
    pub(super) fn shut(&self) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.shut = true;
        let waiting: Vec<_> = inner.lanes.iter_mut().flat_map(|lane| lane.queue.drain(..)).collect();
        for fetch in waiting {
            inner.take((fetch.namespace.digest, fetch.chunk), fetch.id);
        }
    }

    /// By tier, in the order of the stack.
    pub(super) fn stats(&self) -> Vec<LaneStats> {
        let inner = self.inner.lock();
        let one = |(index, lane): (usize, &Lane)| LaneStats {
            under_way: inner.wanted.values().filter(|wanted| wanted.lane == index).count() as u64,
            under_way_bytes: lane.bytes,
            fetch_seconds: lane.fetch_seconds.spread(),
            latency: lane.cost.latency(),
            bytes_per_second: lane.cost.bytes_per_second(),
            ..lane.stats.clone()
        };
        inner.lanes.iter().enumerate().map(one).collect()
    }

    fn over(&self, turn: &Turn) {
        let ended = Instant::now();
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let others = inner.lanes.get_mut(turn.lane).map(|lane| {
            lane.running -= 1;
            lane.running
        });
        let Some(wanted) = inner.take(turn.key, turn.id) else { return };
        match &turn.end {
            End::Brought(from) => {
                let Some(lane) = inner.lanes.get_mut(*from) else { return };
                lane.stats.brought += 1;
                lane.stats.brought_bytes += wanted.bytes;
                lane.fetch_seconds.observe(ended.saturating_duration_since(wanted.asked).as_secs_f64());
                // What another tier had tried before says nothing about this one.
                if *from == turn.lane
                    && let Some(begun) = wanted.begun
                {
                    let alone = wanted.alone && others == Some(0);
                    let Wanted { asked, bytes, ahead_bytes, .. } = wanted;
                    lane.cost.learn(Sample { asked, begun, ended, bytes, ahead_bytes, alone });
                }
            }
            End::Failed(why) => self.failed.insert(turn.key, *why),
            End::NotNeeded | End::GivenUp => {}
        }
    }
}

impl Inner {
    fn take(&mut self, key: Key, id: u64) -> Option<Wanted> {
        let same = self.wanted.get(&key).is_some_and(|wanted| wanted.id == id);
        let wanted = if same { self.wanted.remove(&key) } else { None }?;
        give_back(&mut self.lanes, &mut self.bytes, &wanted);
        Some(wanted)
    }
}

fn give_back(lanes: &mut [Lane], bytes: &mut u64, wanted: &Wanted) {
    *bytes -= wanted.bytes;
    if let Some(lane) = lanes.get_mut(wanted.lane) {
        lane.bytes -= wanted.bytes;
    }
}

impl Wanted {
    fn left(&self) -> Duration {
        self.expected.saturating_sub(self.asked.elapsed())
    }
    fn sought(&self) -> Sought {
        Sought::Coming { expected_ms: ms(self.left()) }
    }
}

/// One fetch's time at its tier. When it is dropped, for whatever reason, the fetch is over.
#[derive(Debug)]
pub(super) struct Turn {
    fetches: Arc<Fetches>,
    lane: usize,
    key: Key,
    id: u64,
    end: End,
}

impl Turn {
    /// How it ended, if it was not given up.
    pub(super) fn end(mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let fetches = Arc::clone(&self.fetches);
        fetches.over(self);
    }
}

/// What a fetch counts: the bytes that the tier tells, but no more than the chunk can have.
fn charge(namespace: &TierNamespace, chunk: ChunkId, available: Available) -> u64 {
    let group = namespace.descriptor.group_of(chunk);
    let most = group.map_or(u64::MAX, |group| {
        let coverage = available.coverage.unwrap_or_else(|| Coverage::full(group.blocks_per_chunk));
        let parts = (0..).map(tender_proto::PartIndex).map_while(|part| group.block_bytes(part));
        parts.sum::<u64>().saturating_mul(u64::from(coverage.count()))
    });
    let told = if available.bytes == 0 { most } else { available.bytes.min(most) };
    told.max(LEAST_BYTES)
}

/// At least 1: 0 has another meaning.
fn ms(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1)
}
