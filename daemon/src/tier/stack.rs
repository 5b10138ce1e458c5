//! The tiers below the arena, as one: who has a chunk, getting it once for all who ask, and passing down what is new.
//!
//! ```text
//! seek: known? > find in disk, peers, shared > fetches: queue > turn > bring: fetch, else the next tier > READY
//! READY, used, lost > behind: a queue for each tier > keep, withdraw
//! ```
//! Nothing here is on anybody's way but `seek`, which takes no longer than its deadline.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use parking_lot::{Mutex, RwLock};
use tender_proto::{ChunkId, GroupIndex, GroupKind, NamespaceDigest, Reason, Refusal};
use tender_trace::{Side, names};
use tokio::sync::watch;

use super::behind::{Behind, KeepStats, Keeper};
use super::calls::Calls;
use super::fetches::{End, Fetch, Fetches, LaneStats, Sought};
use super::{Available, FetchError, PeerState, Tier, TierKind, TierNamespace};
use crate::config::StackConfig;
use crate::engine::{Engine, House, ResetAnswer, ResetScope};
use crate::task::Group;

/// How long one tier may take to forget a namespace.
const RESET_TIME: Duration = Duration::from_secs(5);
/// How long a reset may take in all, however many namespaces and tiers it is of. What is not done then makes it fail.
const FORGET_TIME: Duration = Duration::from_secs(10);
/// How long calls of a namespace may take to end once it was reset, and a stop may wait for lookups under way.
const END_TIME: Duration = Duration::from_secs(1);
/// A tier that keeps to its deadline says then what it knows.
const FIND_GRACE: Duration = Duration::from_millis(2);
const STOP_TICK: Duration = Duration::from_millis(1);

/// The ordered tiers and the session through which they work. It stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Stack {
    inner: Arc<Inner>,
}

/// What ends with [`Stack::stop`].
#[derive(Debug)]
pub(super) struct Running {
    pub(super) tiers: Vec<Arc<dyn Tier>>,
    pub(super) house: House,
}

#[derive(Debug)]
struct Inner {
    config: StackConfig,
    running: RwLock<Option<Arc<Running>>>,
    kinds: Vec<TierKind>,
    finds: Vec<Finds>,
    fetches: Arc<Fetches>,
    behind: Arc<Behind>,
    calls: Arc<Calls>,
    tasks: Mutex<Group>,
    /// It has been stopped: who waits for a tier waits no longer.
    stopped: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Finds {
    asked_chunks: AtomicU64,
    found_chunks: AtomicU64,
    late: AtomicU64,
}

/// One tier's numbers.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct TierStats {
    pub(crate) kind: TierKind,
    /// Chunks it was asked for, and those that it had.
    pub(crate) asked_chunks: u64,
    pub(crate) found_chunks: u64,
    /// Questions that it did not answer in a lookup's time.
    pub(crate) late_finds: u64,
    pub(crate) lane: LaneStats,
    pub(crate) keeps: KeepStats,
    /// What is left alone now because it failed.
    pub(crate) breakers: Vec<(&'static str, u64)>,
}

impl Stack {
    /// Opens the daemon's own session and begins to pass on what becomes READY. Asked in the order of the tiers.
    pub(crate) fn open(
        engine: &Arc<Engine>,
        tiers: Vec<Arc<dyn Tier>>,
        config: StackConfig,
    ) -> Result<Self, Refusal> {
        let kinds: Vec<_> = tiers.iter().map(|tier| tier.kind()).collect();
        let running = Arc::new(Running { tiers, house: House::open(engine)? });
        let (behind, queues) = Behind::new(kinds.iter().copied());
        let inner = Arc::new(Inner {
            running: RwLock::new(Some(Arc::clone(&running))),
            finds: kinds.iter().map(|_| Finds::default()).collect(),
            fetches: Arc::new(Fetches::new(kinds.iter().copied(), &config)),
            behind: Arc::clone(&behind),
            calls: Calls::new(),
            tasks: Mutex::new(Group::new("tiers")),
            stopped: watch::Sender::new(false),
            kinds,
            config: config.clone(),
        });
        for (at, queue) in queues.into_iter().enumerate() {
            let (running, calls) = (Arc::clone(&running), Arc::clone(&inner.calls));
            let keeper = Keeper { at, running, calls, behind: Arc::clone(&behind), config: config.clone() };
            inner.tasks.lock().spawn(keeper.work(queue));
        }
        engine.watch(behind);
        Ok(Self { inner })
    }

    /// What the daemon's own session is and has now: sessions, leases, reservations.
    pub(crate) fn held(&self) -> (u64, u64, u64) {
        let running = self.inner.running.read();
        running.as_ref().map_or((0, 0, 0), |running| {
            let (leases, reservations) = running.house.held();
            (1, leases, reservations)
        })
    }

    /// How long a lookup may take to ask the tiers.
    pub(crate) fn lookup_time(&self) -> Duration {
        self.inner.config.lookup_time
    }

    /// What becomes of chunks that are not in the arena: one answer for each, in order. Chunks of one group stand in the
    /// order of the prefix. What can be had is on its way when this returns, by the deadline.
    pub(crate) async fn seek(
        &self,
        namespace: NamespaceDigest,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Vec<Sought> {
        let running = self.inner.running.read().clone();
        let namespace = running.as_ref().and_then(|running| running.house.namespace(namespace));
        let (Some(running), Some(namespace)) = (running, namespace) else {
            return vec![Sought::Absent(None); chunks.len()];
        };
        let namespace = Arc::new(namespace);
        let known = chunks.iter().map(|&chunk| self.inner.fetches.known(&namespace, chunk)).collect();
        let seeking = Seeking { chunks, known, found: vec![None; chunks.len()] };
        let seeking = self.inner.find(&running, &namespace, seeking, deadline).await;
        let sought = self.inner.begin(&namespace, seeking);
        self.inner.pump(&running);
        sought
    }

    /// Which tier has each of these chunks, as far as they say so by the deadline. Nothing is fetched.
    pub(crate) async fn holders(
        &self,
        namespace: NamespaceDigest,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Vec<Option<TierKind>> {
        let mut holders = vec![None; chunks.len()];
        let running = self.inner.running.read().clone();
        let known = running.as_ref().and_then(|running| running.house.namespace(namespace));
        let (Some(running), Some(namespace)) = (running, known) else { return holders };
        for (at, tier) in running.tiers.iter().enumerate() {
            let open: Vec<usize> = (0..chunks.len()).filter(|&i| holders[i].is_none()).collect();
            if open.is_empty() || Instant::now() >= deadline {
                break;
            }
            let asked: Vec<_> = open.iter().map(|&i| chunks[i]).collect();
            let until = share(deadline, at + 1 < running.tiers.len());
            let answers = tier.find(&namespace, &asked, until);
            let Ok(answers) = tokio::time::timeout_at((until + FIND_GRACE).into(), answers).await else {
                continue;
            };
            for (i, answer) in open.into_iter().zip(answers) {
                holders[i] = answer.map(|_| tier.kind());
            }
        }
        holders
    }

    /// In how many milliseconds a chunk is expected that is on its way.
    pub(crate) fn expected_ms(&self, namespace: NamespaceDigest, chunk: ChunkId) -> Option<u32> {
        self.inner.fetches.expected_ms(namespace, chunk)
    }

    /// A request found chunks READY.
    pub(crate) fn used(&self, namespace: NamespaceDigest, chunks: impl FnOnce() -> Vec<ChunkId>) {
        self.inner.behind.used(namespace, chunks);
    }

    /// Forgets these namespaces: the engine, and all tiers. After `Ok` nothing that was stored before comes back. While it
    /// lasts, tiers are not asked for them: what they still hold would come back into the new epoch. It takes no longer
    /// than [`FORGET_TIME`], nor than until the daemon stops.
    pub(crate) async fn forget(&self, scope: ResetScope) -> Result<ResetAnswer, Refusal> {
        let inner = &self.inner;
        let Some(running) = inner.running.read().clone() else { return Err(crate::session::draining()) };
        let mut stopped = inner.stopped.subscribe();
        // First: what is registered from now on finds no tier that could bring anything old.
        let _barred = inner.calls.bar(match scope {
            ResetScope::All => None,
            ResetScope::One(digest) => Some(digest),
        });
        let before = running.namespaces(scope)?;
        let answer = running.house.engine().reset(scope);
        let now = |namespace: &TierNamespace| running.house.namespace(namespace.digest);
        let namespaces: Vec<_> = before.iter().filter_map(now).collect();
        inner.fetches.forget(&namespaces);
        let forgetting = tokio::time::timeout(FORGET_TIME, inner.forget(&running, scope, &namespaces));
        tokio::select! {
            forgotten = forgetting => forgotten.unwrap_or_else(|_| Err(not_in_time()))?,
            _ = stopped.wait_for(|stopped| *stopped) => return Err(crate::session::draining()),
        }
        Ok(answer)
    }

    /// A namespace was reset elsewhere: what serves this daemon only forgets it, the engine and its disk. Those that all
    /// share were told there.
    pub(crate) async fn forget_here(&self, namespace: NamespaceDigest) -> Result<(), String> {
        let inner = &self.inner;
        let Some(running) = inner.running.read().clone() else { return Err("the daemon ends".to_owned()) };
        if running.house.namespace(namespace).is_none() {
            // Nothing of it is here; a reset would look through the whole index to find that out.
            return Ok(());
        }
        let _barred = inner.calls.bar(Some(namespace));
        running.house.engine().reset(ResetScope::One(namespace));
        let Some(now) = running.house.namespace(namespace) else { return Ok(()) };
        inner.fetches.forget(std::slice::from_ref(&now));
        let quiet = tokio::time::timeout(END_TIME, inner.calls.quiet(namespace)).await;
        for tier in running.tiers.iter().filter(|tier| tier.kind() == TierKind::Disk) {
            reset(tier.as_ref(), &now, None).await?;
        }
        quiet.map_err(|_| "a call under way did not end".to_owned())
    }

    /// The daemon ends: nothing begins any more, and each tier brings to an end what would be lost.
    pub(crate) async fn drain(&self, deadline: Instant) {
        self.inner.fetches.shut();
        let Some(running) = self.inner.running.read().clone() else { return };
        let mut drains = Group::new("drain");
        for tier in &running.tiers {
            let tier = Arc::clone(tier);
            drains.spawn(async move {
                if tokio::time::timeout_at(deadline.into(), tier.drain(deadline)).await.is_err() {
                    tracing::warn!(
                        tier = tier.kind().name(),
                        "the grace time was over before the tier was done"
                    );
                }
            });
        }
        drains.room_for(1).await;
    }

    /// Ends everything at once and lets go of the tiers, by the deadline. What was under way leaves nothing.
    pub(crate) async fn stop(&self, deadline: Instant) {
        self.inner.fetches.shut();
        self.inner.stopped.send_replace(true);
        let tasks = std::mem::replace(&mut *self.inner.tasks.lock(), Group::new("tiers"));
        tasks.end().await;
        let Some(running) = self.inner.running.write().take() else { return };
        // Lookups that are asking right now.
        let begun = Instant::now();
        while Arc::strong_count(&running) > 1 && begun.elapsed() < END_TIME {
            tokio::time::sleep(STOP_TICK).await;
        }
        join_all(running.tiers.iter().map(|tier| tier.close(deadline))).await;
    }

    /// By tier, in order.
    pub(crate) fn stats(&self) -> Vec<TierStats> {
        let inner = &self.inner;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let parts = inner.kinds.iter().zip(&inner.finds).zip(inner.fetches.stats()).zip(inner.behind.stats());
        // Those that have ended leave nobody alone.
        let running = inner.running.read().clone();
        let breakers = |at: usize| running.as_ref().map_or_else(Vec::new, |r| r.tiers[at].open_breakers());
        let one = |(at, (((&kind, finds), lane), keeps)): (usize, (((&TierKind, &Finds), _), _))| TierStats {
            kind,
            asked_chunks: read(&finds.asked_chunks),
            found_chunks: read(&finds.found_chunks),
            late_finds: read(&finds.late),
            lane,
            keeps,
            breakers: breakers(at),
        };
        parts.enumerate().map(one).collect()
    }

    /// Other daemons that the tiers know.
    pub(crate) fn known_peers(&self) -> Vec<PeerState> {
        let running = self.inner.running.read().clone();
        running.iter().flat_map(|running| &running.tiers).flat_map(|tier| tier.peers()).collect()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // Tasks hold what holds them.
        self.inner.fetches.shut();
        *self.inner.tasks.lock() = Group::new("tiers");
    }
}

/// The chunks of one lookup on their way through the tiers.
struct Seeking<'a> {
    chunks: &'a [ChunkId],
    /// Nobody needs to be asked about these.
    known: Vec<Option<Sought>>,
    /// Which tier has it.
    found: Vec<Option<(usize, Available)>>,
}

impl Inner {
    async fn forget(
        &self,
        running: &Running,
        scope: ResetScope,
        namespaces: &[TierNamespace],
    ) -> Result<(), Refusal> {
        let mut trouble = Ok(());
        if scope == ResetScope::All {
            for tier in &running.tiers {
                let forgotten = in_time(tier.reset_others(namespaces)).await;
                trouble = trouble.and(forgotten.map_err(|why| not_forgotten(tier.kind().name(), None, &why)));
            }
        }
        let mut each = FuturesUnordered::new();
        for namespace in namespaces {
            each.push(self.forget_one(running, namespace));
        }
        while let Some(forgotten) = each.next().await {
            trouble = trouble.and(forgotten);
        }
        trouble
    }

    async fn forget_one(&self, running: &Running, namespace: &TierNamespace) -> Result<(), Refusal> {
        let quiet = tokio::time::timeout(END_TIME, self.calls.quiet(namespace.digest)).await;
        let mut trouble =
            quiet.map_err(|_| not_forgotten("a tier", Some(namespace), "a call under way did not end"));
        let mut raised = None;
        for tier in &running.tiers {
            match reset(tier.as_ref(), namespace, raised).await {
                Ok(generation) => raised = generation,
                Err(why) => {
                    trouble = trouble.and(Err(not_forgotten(tier.kind().name(), Some(namespace), &why)));
                }
            }
        }
        trouble
    }

    /// Asks each tier for what those before it do not have.
    async fn find<'a>(
        &self,
        running: &Running,
        namespace: &TierNamespace,
        mut seeking: Seeking<'a>,
        deadline: Instant,
    ) -> Seeking<'a> {
        for (at, (tier, finds)) in running.tiers.iter().zip(&self.finds).enumerate() {
            let open: Vec<usize> = (0..seeking.chunks.len())
                .filter(|&i| seeking.known[i].is_none() && seeking.found[i].is_none())
                .collect();
            if open.is_empty() || Instant::now() >= deadline {
                break;
            }
            let asked: Vec<ChunkId> = open.iter().map(|&i| seeking.chunks[i]).collect();
            finds.asked_chunks.fetch_add(asked.len() as u64, Ordering::Relaxed);
            let until = share(deadline, at + 1 < running.tiers.len());
            let answers = tier.find(namespace, &asked, until);
            let Ok(answers) = tokio::time::timeout_at((until + FIND_GRACE).into(), answers).await else {
                finds.late.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            for (&i, answer) in open.iter().zip(answers) {
                seeking.found[i] = answer.map(|available| (at, available));
                finds.found_chunks.fetch_add(u64::from(answer.is_some()), Ordering::Relaxed);
            }
        }
        seeking
    }

    /// Begins the fetches, in the order of the prefix. Where a hit needs all chunks before its end, those behind the first
    /// that does not come are of no use to anybody.
    fn begin(&self, namespace: &Arc<TierNamespace>, seeking: Seeking<'_>) -> Vec<Sought> {
        let mut broken: BTreeSet<GroupIndex> = BTreeSet::new();
        let Seeking { chunks, known, found } = seeking;
        let mut sought = Vec::with_capacity(chunks.len());
        for ((&chunk, known), found) in chunks.iter().zip(known).zip(found) {
            let answer = match (known, found) {
                (Some(known), _) => known,
                (None, Some((lane, available))) if !broken.contains(&chunk.group) => {
                    self.fetches.begin(namespace, chunk, lane, available)
                }
                (None, _) => Sought::Absent(None),
            };
            if matches!(answer, Sought::Absent(_)) && needs_all_before(namespace, chunk) {
                broken.insert(chunk.group);
            }
            sought.push(answer);
        }
        sought
    }

    /// Runs what has a turn.
    fn pump(self: &Arc<Self>, running: &Arc<Running>) {
        for lane in 0..self.kinds.len() {
            while let Some((fetch, turn)) = self.fetches.next(lane) {
                let (inner, running) = (Arc::clone(self), Arc::clone(running));
                let mut tasks = self.tasks.lock();
                tasks.reap();
                tasks.spawn(async move {
                    let end = inner.run(&running, &fetch).await;
                    turn.end(end.clone());
                    if let End::Brought(at) = end
                        && let Some(&kind) = inner.kinds.get(at)
                    {
                        inner.behind.ready(fetch.namespace.digest, fetch.chunk, Some(kind));
                    }
                    inner.pump(&running);
                });
            }
        }
    }

    async fn run(&self, running: &Running, fetch: &Fetch) -> End {
        let current = || running.is_current(&fetch.namespace);
        let span = fetch.asked_by.span(names::TIER_FETCH, Side::Within);
        if !span.is_none() {
            span.set(names::CHUNK, names::short(fetch.chunk.hash.as_bytes()));
            span.set(names::NAMESPACE, names::short(fetch.namespace.digest.as_bytes()));
        }
        let bringing = span.clone().around(self.bring(running, fetch));
        let end = self.calls.run(&fetch.namespace, current, bringing).await.unwrap_or(End::GivenUp);
        if let End::Failed(why) = end {
            span.fail(why.map_or("no tier has brought it", Reason::label));
        }
        end
    }

    /// From the tier that has it, else from one of those behind.
    async fn bring(&self, running: &Running, fetch: &Fetch) -> End {
        let mut last = None;
        for (at, tier) in running.tiers.iter().enumerate().skip(fetch.lane) {
            let until = share(fetch.deadline, at + 1 < running.tiers.len());
            let trying = self.try_one(running, fetch, at, tier.as_ref(), until);
            let tried = match tokio::time::timeout_at(until.into(), trying).await {
                Ok(Some(tried)) => tried,
                Ok(None) => continue,
                Err(_) => Err(FetchError::Deadline),
            };
            match tried {
                Ok(()) => return End::Brought(at),
                Err(FetchError::NotNeeded) => return End::NotNeeded,
                Err(why) => {
                    self.fetches.count_failure(at, &why);
                    let (tier, chunk) = (tier.kind().name(), fetch.chunk);
                    tracing::debug!(tier, %chunk, %why, "a chunk did not come");
                    match why {
                        FetchError::Refused(reason) => return End::Failed(Some(reason)),
                        FetchError::Corrupt => last = Some(Reason::BadDigest),
                        _ if Instant::now() >= fetch.deadline => break,
                        _ => {}
                    }
                }
            }
        }
        End::Failed(last)
    }

    /// `None`: it does not have it.
    async fn try_one(
        &self,
        running: &Running,
        fetch: &Fetch,
        at: usize,
        tier: &dyn Tier,
        until: Instant,
    ) -> Option<Result<(), FetchError>> {
        if Instant::now() >= fetch.deadline {
            return Some(Err(FetchError::Deadline));
        }
        if at > fetch.lane {
            let answers = tier.find(&fetch.namespace, &[fetch.chunk], until).await;
            answers.into_iter().next().flatten()?;
        }
        tender_trace::note(names::TIER, tier.kind().name());
        let brought = tier.fetch(&fetch.namespace, fetch.chunk, &running.house, until).await;
        // Evicted again or never there: whoever waits for it waits no longer.
        if brought.is_ok() && !running.house.has(&fetch.namespace, fetch.chunk) {
            return Some(Err(FetchError::Unavailable("it was brought and is not there".into())));
        }
        Some(brought)
    }
}

impl Running {
    fn namespaces(&self, scope: ResetScope) -> Result<Vec<TierNamespace>, Refusal> {
        match scope {
            ResetScope::All => Ok(self.house.namespaces()),
            ResetScope::One(digest) => match self.house.namespace(digest) {
                Some(namespace) => Ok(vec![namespace]),
                None => Err(Refusal::new(
                    Reason::UnknownNamespace,
                    format!("the reset of the namespace {digest}, which no engine has registered here"),
                    "its tiers cannot be told what to forget: reset it while an engine uses it",
                )),
            },
        }
    }
}

async fn reset(
    tier: &dyn Tier,
    namespace: &TierNamespace,
    raised: Option<u64>,
) -> Result<Option<u64>, String> {
    in_time(tier.reset(namespace, raised)).await
}

async fn in_time<T>(resetting: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let done = tokio::time::timeout(RESET_TIME, resetting).await;
    done.unwrap_or_else(|_| Err("it did not answer in time".to_owned()))
}

/// Nobody may use up the time of those behind.
fn share(deadline: Instant, others_follow: bool) -> Instant {
    let now = Instant::now();
    match others_follow {
        true => now + deadline.saturating_duration_since(now) / 2,
        false => deadline,
    }
}

fn needs_all_before(namespace: &TierNamespace, chunk: ChunkId) -> bool {
    let kind = namespace.descriptor.group_of(chunk).map(|group| group.kind);
    matches!(kind, Ok(GroupKind::FullAttention | GroupKind::MlaLatent))
}

fn not_forgotten(tier: &str, namespace: Option<&TierNamespace>, why: &str) -> Refusal {
    let what = namespace.map_or_else(
        || "all namespaces".to_owned(),
        |namespace| format!("the namespace {}", namespace.digest),
    );
    Refusal::new(Reason::Internal, format!("the reset of {what} in {tier}: {why}"), RESET_AGAIN)
}

fn not_in_time() -> Refusal {
    let seconds = FORGET_TIME.as_secs();
    Refusal::new(Reason::Internal, format!("a reset that was not done in {seconds} s"), RESET_AGAIN)
}

const RESET_AGAIN: &str = "what was stored there before may still be found: reset it again";
