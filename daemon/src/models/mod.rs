//! Models of what threads share: the daemon's own code under loom, which runs two or three threads through every order in
//! which they can meet, up to a number of preemptions, and through every value that a load may see.
//!
//! What each covers and what it does not is in docs/reliability.md. Each is run a second time with a mistake planted
//! ([`Planted`]), which it must notice: a model that cannot fail says nothing. What is wrong is counted and not
//! panicked about, because a model cannot be unwound while its threads hold locks.
#![expect(clippy::unwrap_used, reason = "a step of a model that fails is a panic with its place")]

mod admission;
mod hand_over;
mod kill;
mod sessions;
mod stores;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tender_proto::{
    BlocksPerChunk, ChainHash, ChunkId, ContentDigest, Descriptor, Group, GroupIndex, GroupKind,
    NamespaceDigest, PartIndex, RankGeometry, Reason, ReservationId, SessionId,
};

use crate::clock::{Clock, ManualClock};
use crate::engine::{
    ArenaConfig, ChunkAnswer, Engine, EngineConfig, Eviction, LeaseAsk, ReserveAnswer, ReserveAsk, Stored,
};
use crate::sync::{Planted, plant};

const PART_BYTES: u64 = 4096;
const LEASE: Duration = Duration::from_secs(5);
const RESERVATION: Duration = Duration::from_secs(10);

/// What came of all runs of a model.
#[derive(Clone, Default, Debug)]
struct Verdict {
    runs: Arc<AtomicU64>,
    wrong: Arc<AtomicU64>,
}

impl Verdict {
    /// Counts what must not be.
    fn wrong_if(&self, wrong: bool) {
        self.wrong.fetch_add(u64::from(wrong), Ordering::Relaxed);
    }
    /// Runs the model through its schedules.
    fn explore(preemptions: usize, model: impl Fn(&Self) + Send + Sync + 'static) -> (u64, u64) {
        let verdict = Self::default();
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 100_000;
        // What is set up and looked at before and after the threads is the same each time.
        builder.expect_explicit_explore = true;
        let inside = verdict.clone();
        builder.check(move || {
            inside.runs.fetch_add(1, Ordering::Relaxed);
            model(&inside);
        });
        (verdict.runs.load(Ordering::Relaxed), verdict.wrong.load(Ordering::Relaxed))
    }
}

/// A model must hold as the code is, and must not with the mistake.
fn holds_but_not_with(mistake: Planted, preemptions: usize, model: fn(&Verdict)) {
    plant(None);
    let (runs, wrong) = Verdict::explore(preemptions, model);
    plant(Some(mistake));
    let (wrong_runs, noticed) = Verdict::explore(preemptions, model);
    plant(None);
    println!("{runs} schedules; with {mistake:?} {noticed} of {wrong_runs} were wrong");
    assert_eq!(wrong, 0, "of {runs} schedules");
    assert!(runs > 1, "the threads never met");
    assert!(noticed > 0, "{mistake:?} was not noticed in {wrong_runs} schedules");
}

/// The engine on an arena of few pages and a clock that stands still, with one session and one namespace of one part.
#[derive(Debug)]
struct Bench {
    engine: Engine,
    clock: Arc<ManualClock>,
    session: SessionId,
    dir: TempDir,
}

impl Bench {
    fn new() -> Arc<Self> {
        Self::on(tempfile::tempdir_in("/dev/shm").unwrap())
    }
    fn on(dir: TempDir) -> Arc<Self> {
        let clock = Arc::new(ManualClock::new());
        let engine = Engine::new(Self::config(&dir), Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
        Self::with(engine, clock, dir)
    }
    /// The daemon that takes the arena over.
    fn successor(&self, file: File) -> Arc<Self> {
        let clock = Arc::new(ManualClock::new());
        let config = self.engine.config().clone();
        let engine = Engine::adopt(config, Arc::clone(&clock) as Arc<dyn Clock>, file).unwrap();
        Self::with(engine, clock, tempfile::tempdir().unwrap())
    }
    fn with(engine: Engine, clock: Arc<ManualClock>, dir: TempDir) -> Arc<Self> {
        let session = engine.open_session("model", 1).unwrap();
        engine.register(session, descriptor(), namespace(), None).unwrap();
        Arc::new(Self { engine, clock, session, dir })
    }
    fn config(dir: &TempDir) -> EngineConfig {
        let arena = ArenaConfig {
            place: dir.path().join("arena"),
            bytes: 64 << 10,
            prefault: false,
            keep: true,
            discard: false,
        };
        EngineConfig {
            arena,
            default_lease: LEASE,
            max_lease: LEASE,
            reservation: RESERVATION,
            max_inflight_bytes: 1 << 20,
            max_session_inflight_bytes: 1 << 20,
            max_sessions: 4,
            max_leases_per_session: 4,
            max_part_bytes: 1 << 20,
            max_staging_bytes: 0,
            max_total_staging_bytes: 0,
            max_batch_chunks: 16,
            max_namespaces: 2,
            history_bytes: 0,
            eviction: Eviction::TwoQueue,
        }
    }
    fn reserve(&self, n: u8) -> Result<ReservationId, Reason> {
        let ask = ReserveAsk { chunk: chunk(n), part: PartIndex(0), coverage_bits: 1, bytes: PART_BYTES };
        match self.engine.reserve(self.session, namespace(), &[ask]).map_err(|refusal| refusal.reason)?[0] {
            ReserveAnswer::Reserved(id) => Ok(id),
            ReserveAnswer::Refused(reason) => Err(reason),
            ReserveAnswer::Already(_) => Err(Reason::Superseded),
        }
    }
    fn write(&self, id: ReservationId, n: u8) -> Result<Stored, Reason> {
        let bytes = content(n);
        let mut writer = self.engine.begin_write(self.session, id.get())?;
        writer.write(0, &bytes)?;
        writer.finish(ContentDigest::of(&bytes), 1).outcome
    }
    fn store(&self, n: u8) -> Result<Stored, Reason> {
        self.write(self.reserve(n)?, n)
    }
    fn is_ready(&self, n: u8) -> bool {
        let answer = self.engine.lookup(self.session, namespace(), &[chunk(n)], LeaseAsk::None);
        answer.is_ok_and(|answer| matches!(answer.chunks[0], ChunkAnswer::Ready { .. }))
    }
    /// A lease on a READY chunk.
    fn lease(&self, n: u8) -> Option<u64> {
        let ask = LeaseAsk::Lease { ttl: None, locate: false };
        let answer = self.engine.lookup(self.session, namespace(), &[chunk(n)], ask).ok()?;
        answer.lease.map(|lease| lease.id.get())
    }
    /// Everything adds up, and nobody holds anything.
    fn is_quiet(&self) -> bool {
        self.engine.audit().is_ok_and(|a| {
            [a.leases, a.pins, a.readers, a.reservations, a.writers, a.pending_chunks, a.inflight_bytes]
                == [0; 7]
                && a.used_bytes == a.ready_chunks * PART_BYTES
        })
    }
}

fn descriptor() -> Descriptor {
    let blocks = BlocksPerChunk::new(1).unwrap();
    let group =
        Group::new(GroupKind::FullAttention, 16.try_into().unwrap(), blocks, None, vec![PART_BYTES]).unwrap();
    Descriptor {
        model: "model".into(),
        weights: "r1".into(),
        kv_dtype: "bfloat16".into(),
        quantisation: "none".into(),
        groups: vec![group],
        page_format: "HNC".into(),
        layout_fingerprint: [1; 32],
        ranks: RankGeometry::SINGLE,
        key_chain_version: 1,
        domain: String::new(),
    }
}

fn namespace() -> NamespaceDigest {
    descriptor().digest()
}
fn chunk(n: u8) -> ChunkId {
    ChunkId { group: GroupIndex(0), hash: ChainHash::from_bytes([n; 32]) }
}
fn content(n: u8) -> Vec<u8> {
    vec![n; usize::try_from(PART_BYTES).unwrap()]
}
