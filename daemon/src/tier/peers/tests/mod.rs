//! Daemons of this process on real Redis servers: engine, house, tier and gRPC server each, without the rest.

mod directory;
mod failures;
mod fake;
mod outages;
#[path = "../../../../../tests/src/redis.rs"]
#[expect(unreachable_pub, dead_code, reason = "the whole-system tests' file")]
mod redis;
mod resets;
mod sharing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tender_proto::{BootId, ChunkId, ContentDigest, Reason, SessionId};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use self::redis::Redis;
use super::directory::{Change, Directory, Listed};
use super::entry::{DaemonId, Entry, Fingerprint};
use super::link::Link;
use super::{PeerTier, PeersConfig, Place, start};
use crate::access::Access;
use crate::clock::SystemClock;
use crate::engine::tests::{FULL, SLOT_BYTES, a, bytes_of, chunk, descriptor};
use crate::engine::{
    ArenaConfig, Engine, EngineConfig, Eviction, House, ReserveAnswer, ReserveAsk, ResetScope, Stored,
};
use crate::fair::Fair;
use crate::gate::{Bounds, Gate};
use crate::metrics::Metrics;
use crate::rpc::status::RefusalLog;
use crate::rpc::{Shared, server};
use crate::shutdown::Phase;
use crate::task::{Task, spawn};
use crate::tier::generations::Generations;
use crate::tier::{FetchError, Tier, TierNamespace};

/// Generous: a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let give_up = soon();
    while !done().await {
        assert!(Instant::now() < give_up, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What tests choose.
#[derive(Clone, Debug)]
struct Setup {
    uri: String,
    slots: u64,
    ttl: Duration,
    timeout: Duration,
}

impl Setup {
    fn on(uri: impl Into<String>) -> Self {
        let (ttl, timeout) = (Duration::from_secs(600), Duration::from_secs(10));
        Self { uri: uri.into(), slots: 64, ttl, timeout }
    }
    fn config(&self) -> PeersConfig {
        PeersConfig {
            directory: self.uri.parse().unwrap(),
            prefix: "test".into(),
            ttl: self.ttl,
            timeout: self.timeout,
            entries_per_second: 20_000,
            advertise: None,
        }
    }
}

/// One daemon. Its parts end in this order.
struct Node {
    server: Task,
    tier: Arc<PeerTier>,
    session: SessionId,
    house: Arc<House>,
    engine: Arc<Engine>,
    address: String,
    metrics: Arc<Metrics>,
    _phase: watch::Sender<Phase>,
    dir: Arc<TempDir>,
}

impl Node {
    async fn start(setup: &Setup) -> Self {
        Self::start_in(setup, Arc::new(tempfile::tempdir().unwrap())).await
    }

    /// On the arena that an earlier one left there, if any.
    async fn start_in(setup: &Setup, dir: Arc<TempDir>) -> Self {
        let config = engine_config(&dir, setup.slots);
        let engine = eventually_open(config).await;
        let session = engine.open_session("test", 1).unwrap();
        for name in ["a", "b"] {
            let d = descriptor(name);
            engine.register(session, d.clone(), d.digest(), None).unwrap();
        }
        let house = Arc::new(House::open(&engine).unwrap());
        let metrics = Arc::new(Metrics::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let place = Place { address: address.clone(), tls: None };
        let forgetting = Arc::clone(&engine);
        let forget = Arc::new(move |namespace| {
            forgetting.reset(ResetScope::One(namespace));
            Ok(())
        });
        let file = Some(dir.path().join("generations"));
        let generations = Arc::new(Generations::new(Arc::clone(&house), forget, file));
        let tier = start(&setup.config(), place, generations, Arc::clone(&metrics)).unwrap();
        let (phase, watched) = watch::channel(Phase::Serving);
        let shared = Arc::new(Shared {
            engine: Arc::clone(&engine),
            stack: None,
            access: Arc::new(Access::open()),
            fair: Fair::new(2),
            metrics: Arc::clone(&metrics),
            phase: watched,
            boot: BootId::from_random([1; 16]),
            started: Instant::now(),
            max_frame_bytes: 5000,
            max_calls_per_connection: 64,
            refusals: RefusalLog::default(),
            copies: Arc::new(Semaphore::new(1)),
            doubts: Arc::new(Semaphore::new(1)),
            trace: Default::default(),
            desk: crate::rpc::desk::Desk::default(),
            peers: Some(Arc::clone(&tier)),
        });
        let server = spawn("test server", async move {
            let gate = Gate::new("network", Bounds { all: 64, each: 64 }, &shared.metrics);
            server::serve_tcp(shared, listener, gate, std::future::pending()).await.unwrap();
        });
        Self { server, tier, session, house, engine, address, metrics, _phase: phase, dir }
    }

    fn namespace(&self) -> TierNamespace {
        self.house.namespace(a()).unwrap()
    }
    /// Stores a full chunk, and nobody is told.
    fn store_silently(&self, chunk: ChunkId) {
        let parts = descriptor("a").group_of(chunk).unwrap().parts();
        for part in 0..u16::try_from(parts).unwrap() {
            let bytes = bytes_of(chunk, part, FULL);
            let ask = ReserveAsk {
                chunk,
                part: tender_proto::PartIndex(part),
                coverage_bits: FULL,
                bytes: bytes.len() as u64,
            };
            let ReserveAnswer::Reserved(id) = self.engine.reserve(self.session, a(), &[ask]).unwrap()[0]
            else {
                panic!("{chunk} is not reserved")
            };
            let mut writer = self.engine.begin_write(self.session, id.get()).unwrap();
            writer.write(0, &bytes).unwrap();
            let stored = writer.finish(ContentDigest::of(&bytes), FULL).outcome;
            assert_eq!(stored, Ok(Stored { chunk_ready: usize::from(part) + 1 == parts }));
        }
    }
    async fn store(&self, chunk: ChunkId) {
        self.store_silently(chunk);
        let open = self.house.read(&self.namespace(), chunk).unwrap();
        self.tier.keep(&self.namespace(), chunk, &open).await;
    }
    async fn finds(&self, chunk: ChunkId) -> bool {
        self.tier.find(&self.namespace(), &[chunk], soon()).await[0].is_some()
    }
    async fn has_found(&self, chunk: ChunkId) {
        eventually("the directory knows of the chunk", async || self.finds(chunk).await).await;
    }
    async fn fetch(&self, chunk: ChunkId) -> Result<(), FetchError> {
        self.tier.fetch(&self.namespace(), chunk, &self.house, soon()).await
    }
    /// Whether it has the chunk, with the one right content.
    fn holds(&self, chunk: ChunkId) -> bool {
        let Some(open) = self.house.read(&self.namespace(), chunk) else { return false };
        for (part, reader) in (0..).zip(&open.parts) {
            assert_eq!(reader.as_ref(), bytes_of(chunk, part, FULL), "{chunk} part {part}");
        }
        true
    }
    fn counter(&self, which: impl Fn(&crate::metrics::PeerCounters) -> &std::sync::atomic::AtomicU64) -> u64 {
        which(&self.metrics.peers).load(std::sync::atomic::Ordering::Relaxed)
    }
    /// As kill -9 would end it: nobody is told. What is left is its arena.
    fn vanish(self) -> Arc<TempDir> {
        let Self { server, tier, session: _, house, engine, dir, .. } = self;
        drop((server, tier, house, engine));
        dir
    }
}

fn engine_config(dir: &TempDir, slots: u64) -> EngineConfig {
    EngineConfig {
        arena: ArenaConfig {
            place: dir.path().join("arena"),
            bytes: slots * SLOT_BYTES,
            prefault: false,
            keep: true,
            discard: false,
        },
        default_lease: PATIENCE,
        max_lease: 2 * PATIENCE,
        reservation: PATIENCE,
        max_inflight_bytes: 1 << 30,
        max_session_inflight_bytes: 1 << 30,
        max_sessions: 64,
        max_leases_per_session: 64,
        max_part_bytes: 1 << 30,
        max_staging_bytes: 1 << 20,
        max_total_staging_bytes: 2 << 20,
        max_batch_chunks: 1000,
        max_namespaces: 4,
        history_bytes: 1 << 20,
        eviction: Eviction::TwoQueue,
    }
}

/// Tasks of the one before may hold the arena for a moment.
async fn eventually_open(config: EngineConfig) -> Arc<Engine> {
    let give_up = soon();
    loop {
        match Engine::new(config.clone(), Arc::new(SystemClock)) {
            Ok(engine) => return Arc::new(engine),
            Err(error) => assert!(Instant::now() < give_up, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The directory, to say and ask in it what no daemon would.
fn directory_of(setup: &Setup) -> Directory {
    let link = Link::new(&setup.uri.parse().unwrap(), PATIENCE).unwrap();
    Directory::new(link, "test", DaemonId::random(), setup.ttl)
}

/// As an honest holder would publish the chunk.
fn honest_entry(chunk: ChunkId) -> Entry {
    let parts = u16::try_from(descriptor("a").group_of(chunk).unwrap().parts()).unwrap();
    let digests = (0..parts).map(|part| ContentDigest::of(&bytes_of(chunk, part, FULL)));
    Entry { fingerprint: Fingerprint::of(crate::engine::tests::full(), digests), coverage: None }
}

fn listed(generation: u64, chunk: ChunkId) -> Listed {
    Listed { namespace: a(), generation, chunk }
}
