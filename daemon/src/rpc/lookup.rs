//! A lookup: what the arena holds, and where asked, what lower tiers will bring.

use std::time::{Duration, Instant};

use tender_proto::{ChunkId, NamespaceDigest, Reason, Refusal, SessionId, v1};

use tender_trace::{Span, names};
use tonic::Status;

use super::caller::Want;
use super::{Shared, convert};
use crate::access::Identity;
use crate::engine::{ChunkAnswer, LeaseAsk};
use crate::metrics::Path;
use crate::tier::Sought;

/// The question.
#[derive(Debug)]
pub(super) struct Asked {
    session: SessionId,
    namespace: NamespaceDigest,
    chunks: Vec<ChunkId>,
    ask: LeaseAsk,
    fetch: bool,
    /// The engine's id, and how many requests it wants before it stores.
    request: (String, u32),
}

/// What lower tiers said, by the chunk's position; only of those that they were asked for.
#[derive(Debug, Default)]
pub(super) struct Below(Vec<Option<Sought>>);

impl Below {
    fn of(&self, index: usize) -> Option<Sought> {
        self.0.get(index).copied().flatten()
    }
    fn expected_ms(&self, index: usize) -> Option<u32> {
        match self.of(index)? {
            Sought::Coming { expected_ms } => Some(expected_ms),
            Sought::Absent(_) => None,
        }
    }
    /// Why it does not come though a tier has it.
    fn why(&self, index: usize) -> Option<Reason> {
        match self.of(index)? {
            Sought::Coming { .. } => None,
            Sought::Absent(why) => why,
        }
    }
}

impl Asked {
    /// Reads the question of a caller who may ask it.
    pub(super) fn decode(
        shared: &Shared,
        identity: &Identity,
        raw: &v1::LookupRequest,
    ) -> Result<Self, Status> {
        let asked = Self::parse(shared, identity, raw).map_err(|no| shared.refuse_here("lookup", no))?;
        let right = shared.check_right("lookup", identity, Want::Read, asked.session, asked.namespace);
        right.map_err(|no| shared.refuse("lookup", no))?;
        Ok(asked)
    }

    fn parse(shared: &Shared, identity: &Identity, raw: &v1::LookupRequest) -> Result<Self, Refusal> {
        let ttl = (raw.lease_ms > 0).then(|| Duration::from_millis(raw.lease_ms));
        Ok(Self {
            session: shared.session_of(identity, &raw.session_id)?,
            namespace: NamespaceDigest::parse(&raw.namespace)?,
            chunks: convert::chunks(&raw.chunks)?,
            ask: if raw.lease { LeaseAsk::Lease { ttl, locate: raw.locate } } else { LeaseAsk::None },
            fetch: raw.fetch,
            request: (raw.request_id.clone(), raw.store_after_requests),
        })
    }

    /// What all daemons call the namespace, if the session has it.
    fn known_as(&self, shared: &Shared) -> Option<NamespaceDigest> {
        Some(shared.engine.resolve(self.session, self.namespace).ok()?.0)
    }

    /// Asks the tiers below for what the arena does not hold, and begins to fetch what they have.
    pub(super) async fn seek(&self, shared: &Shared) -> Below {
        let Some(stack) = shared.stack.as_ref().filter(|_| self.fetch) else { return Below::default() };
        // Who may not ask here is told so by the answer.
        let look = shared.engine.look(self.session, self.namespace, &self.chunks, LeaseAsk::None);
        let (Ok(here), Some(namespace)) = (look, self.known_as(shared)) else { return Below::default() };
        let missing = |(index, answer): (usize, &ChunkAnswer)| match answer {
            ChunkAnswer::Miss(_) => Some(index),
            ChunkAnswer::Ready { .. } | ChunkAnswer::Pending => None,
        };
        let missing: Vec<usize> = here.chunks.iter().enumerate().filter_map(missing).collect();
        let mut below = Below(vec![None; self.chunks.len()]);
        if !missing.is_empty() {
            let chunks: Vec<_> = missing.iter().map(|&index| self.chunks[index]).collect();
            let deadline = Instant::now() + stack.lookup_time();
            let sought = stack.seek(namespace, &chunks, deadline).await;
            missing.into_iter().zip(sought).for_each(|(index, sought)| below.0[index] = Some(sought));
        }
        for (index, answer) in here.chunks.iter().enumerate() {
            if matches!(answer, ChunkAnswer::Pending) {
                let expected_ms = stack.expected_ms(namespace, self.chunks[index]);
                below.0[index] = expected_ms.map(|expected_ms| Sought::Coming { expected_ms });
            }
        }
        below
    }

    pub(super) fn answer(&self, shared: &Shared, below: &Below) -> Result<v1::LookupResponse, Refusal> {
        let amend = |index, answer: &mut ChunkAnswer| {
            if below.expected_ms(index).is_some() {
                *answer = ChunkAnswer::Pending;
            } else if let Some(why) = below.why(index) {
                *answer = ChunkAnswer::Miss(why);
            }
        };
        let found = shared.engine.lookup_with(self.session, self.namespace, &self.chunks, self.ask, amend)?;
        let request = (self.request.0.as_str(), self.request.1);
        shared.engine.remember_request((self.session, self.namespace), request, &self.chunks, &found.chunks);
        let lease = found.lease;
        self.trace(&found.chunks);
        // A scheduler asks once for each request, workers ask again for their load.
        if let (Some(stack), true, Some(_)) = (&shared.stack, self.fetch, lease)
            && let Some(namespace) = self.known_as(shared)
        {
            stack.used(namespace, || self.ready(&found.chunks));
        }
        let answer = convert::lookup_answer(found, |index| below.expected_ms(index).unwrap_or(0));
        shared.fits_a_message(self.session, lease, &answer)?;
        let located = answer.chunks.iter().flat_map(|chunk| &chunk.parts).map(|part| part.bytes).sum();
        shared.metrics.sent(Path::Shm, located);
        Ok(answer)
    }

    /// Tells the call's span what was asked and found.
    fn trace(&self, answers: &[ChunkAnswer]) {
        let span = Span::current();
        if span.is_none() {
            return;
        }
        let ready = answers.iter().filter(|answer| matches!(answer, ChunkAnswer::Ready { .. })).count();
        span.set(names::NAMESPACE, names::short(self.namespace.as_bytes()));
        span.set(names::CHUNKS, names::count(answers.len()));
        span.set(names::READY, names::count(ready));
    }

    fn ready(&self, answers: &[ChunkAnswer]) -> Vec<ChunkId> {
        let ready = |(&chunk, answer): (&ChunkId, &ChunkAnswer)| {
            matches!(answer, ChunkAnswer::Ready { .. }).then_some(chunk)
        };
        self.chunks.iter().zip(answers).filter_map(ready).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Semaphore, watch};

    use super::*;
    use crate::access::Access;
    use crate::config::Config;
    use crate::engine::tests::{Bench, a, b, chunk, chunk_of};
    use crate::fair::Fair;
    use crate::metrics::{Format, Metrics, Scene};
    use crate::rpc::status::RefusalLog;
    use crate::shutdown::Phase;
    use crate::tier::fake::{FakeTier, Heard};
    use crate::tier::{Stack, Tier, TierKind};

    const PATIENCE: Duration = Duration::from_secs(20);

    struct Rig {
        bench: Bench,
        tier: Arc<FakeTier>,
        shared: Shared,
        session: SessionId,
    }

    impl Rig {
        fn new() -> Self {
            let bench = Bench::with_slots(16);
            let tier = FakeTier::new(TierKind::Shared);
            let config = Config::default();
            let tiers = vec![Arc::clone(&tier) as Arc<dyn Tier>];
            let mut stack = config.stack;
            stack.lookup_time = PATIENCE;
            let stack = Stack::open(&bench.engine, tiers, stack).unwrap();
            let shared = Shared {
                engine: Arc::clone(&bench.engine),
                stack: Some(Arc::new(stack)),
                access: Arc::new(Access::open()),
                fair: Fair::new(2),
                peers: None,
                metrics: Arc::new(Metrics::new()),
                phase: watch::channel(Phase::Serving).1,
                boot: tender_proto::BootId::from_random([1; 16]),
                started: Instant::now(),
                max_frame_bytes: config.max_frame_bytes,
                max_calls_per_connection: config.max_calls_per_connection,
                refusals: RefusalLog::default(),
                copies: Arc::new(Semaphore::new(1)),
                doubts: Arc::new(Semaphore::new(1)),
                trace: Default::default(),
                desk: crate::rpc::desk::Desk::default(),
            };
            let session = bench.session();
            Self { bench, tier, shared, session }
        }

        fn asked(&self, chunks: &[ChunkId], fetch: bool) -> Asked {
            let ask = LeaseAsk::Lease { ttl: None, locate: false };
            let request = (String::new(), 0);
            Asked { session: self.session, namespace: a(), chunks: chunks.to_vec(), ask, fetch, request }
        }

        async fn lookup(&self, chunks: &[ChunkId], fetch: bool) -> Vec<(v1::ChunkState, bool)> {
            let asked = self.asked(chunks, fetch);
            let below = asked.seek(&self.shared).await;
            let answer = asked.answer(&self.shared, &below).unwrap();
            answer.chunks.iter().map(|c| (c.state(), c.expected_ms > 0)).collect()
        }

        async fn eventually(&self, what: &str, done: impl Fn(&Self) -> bool) {
            let begun = Instant::now();
            while !done(self) {
                assert!(begun.elapsed() < PATIENCE, "never: {what}");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_tier_has_is_pending_and_then_ready_and_counted_as_told() {
        use v1::ChunkState::{Miss, Pending, Ready};
        let rig = Rig::new();
        rig.bench.put(rig.session, 0);
        rig.tier.hold(&[chunk(1)]);
        rig.tier.stop();
        let all = [chunk(0), chunk(1), chunk(2)];
        assert_eq!(rig.lookup(&all, false).await, [(Ready, false), (Miss, false), (Miss, false)]);
        assert!(rig.tier.fetches().is_empty(), "nobody asked for it");
        let expected = [(Ready, false), (Pending, true), (Miss, false)];
        assert_eq!(rig.lookup(&all, true).await, expected);
        rig.eventually("it is under way", |rig| rig.tier.fetches().len() == 1).await;
        assert_eq!(rig.lookup(&all, true).await, expected, "for all who ask");
        rig.tier.go(1 << 10);
        rig.eventually("it is there", |rig| rig.bench.is_ready(rig.session, 1)).await;
        assert_eq!(rig.lookup(&all, true).await, [(Ready, false), (Ready, false), (Miss, false)]);
        assert_eq!(rig.tier.fetches(), [chunk(1)]);
        let stats = rig.bench.engine.stats().namespaces.remove(0);
        let misses: u64 = stats.misses.iter().map(|(_, count)| count).sum();
        assert_eq!(stats.lookups, stats.hits + stats.pendings + misses);
        assert_eq!(stats.pendings, 2, "two lookups were told that it comes");
        let scene =
            Scene { engine: Some(&rig.bench.engine), stack: rig.shared.stack.as_deref(), ready: true };
        let metrics = rig.shared.metrics.render(scene, Format::Prometheus);
        assert!(metrics.contains("tender_tier_fetched_chunks_total{tier=\"shared\"} 1"), "{metrics}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_chunk_that_requests_find_again_goes_to_the_shared_tier() {
        let rig = Rig::new();
        rig.bench.put(rig.session, 0);
        rig.lookup(&[chunk(0)], false).await;
        rig.lookup(&[chunk(0)], true).await;
        rig.eventually("it is kept", |rig| rig.tier.kept() == [chunk(0)]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn field_24_a_caller_that_goes_away_while_tiers_are_asked_leaves_no_lease() {
        let rig = Rig::new();
        rig.bench.put(rig.session, 0);
        *rig.tier.find_takes.lock() = Duration::from_secs(3600);
        let chunks = [chunk(0), chunk(1)];
        let asked = rig.asked(&chunks, true);
        let call = async { asked.answer(&rig.shared, &asked.seek(&rig.shared).await) };
        assert!(tokio::time::timeout(Duration::from_millis(100), call).await.is_err());
        assert!(rig.tier.has_heard(&Heard::Find(vec![chunk(1)])));
        assert_eq!(rig.bench.engine.stats().leases, 0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_may_not_ask_learns_nothing_and_begins_nothing() {
        let rig = Rig::new();
        rig.tier.hold(&[chunk_of(1, 1)]);
        let stranger = rig.bench.engine.open_session("stranger", 2).unwrap();
        for (session, namespace) in [(stranger, a()), (stranger, b())] {
            let asked = Asked { session, namespace, ..rig.asked(&[chunk_of(1, 1)], true) };
            let below = asked.seek(&rig.shared).await;
            assert_eq!(asked.answer(&rig.shared, &below).unwrap_err().reason, Reason::UnknownNamespace);
        }
        assert!(rig.tier.heard.lock().is_empty());
    }
}
