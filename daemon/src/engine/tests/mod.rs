//! The engine through its public calls, on a small arena and a clock that stands still. After every test the
//! recount must agree and nothing may be left over once all sessions have ended.

mod cases;
mod clock;
mod events;
mod eviction;
mod house;
mod leases;
mod model;
mod requests;
mod restarts;
mod stores;
mod threads;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tender_proto::{
    BlocksPerChunk, ChainHash, ChunkId, ContentDigest, Coverage, Descriptor, Group, GroupIndex, GroupKind,
    NamespaceDigest, PartIndex, RankGeometry, Reason, ReservationId, SessionId,
};

use super::*;
use crate::clock::ManualClock;

/// One part of a full chunk; a power of two, so that arenas of whole slots hold exactly that many.
pub(crate) const SLOT_BYTES: u64 = 16 << 10;
pub(crate) const BLOCKS: u32 = 4;
pub(crate) const BLOCK_BYTES: u64 = SLOT_BYTES / BLOCKS as u64;
pub(crate) const FULL: u64 = 0b1111;

const LEASE: Duration = Duration::from_secs(5);
const RESERVATION: Duration = Duration::from_secs(10);

/// An engine with a namespace of two groups: group 0 has one part, group 1 has two.
pub(crate) struct Bench {
    pub(crate) engine: Arc<Engine>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) dir: TempDir,
}

impl Bench {
    /// An arena with room for this many full parts.
    pub(crate) fn with_slots(slots: u64) -> Self {
        Self::with(slots, |_| ())
    }
    pub(crate) fn with(slots: u64, adjust: impl FnOnce(&mut EngineConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = EngineConfig {
            arena: ArenaConfig {
                place: dir.path().join("arena"),
                bytes: slots * SLOT_BYTES,
                prefault: false,
                keep: false,
                discard: false,
            },
            default_lease: LEASE,
            max_lease: 4 * LEASE,
            reservation: RESERVATION,
            max_inflight_bytes: 1 << 30,
            max_session_inflight_bytes: 1 << 30,
            max_sessions: 64,
            max_leases_per_session: 16,
            max_part_bytes: 1 << 30,
            max_staging_bytes: 1 << 20,
            max_total_staging_bytes: 2 << 20,
            max_batch_chunks: 1000,
            max_namespaces: 4,
            history_bytes: 1 << 20,
            eviction: Eviction::TwoQueue,
        };
        adjust(&mut config);
        let clock = Arc::new(ManualClock::new());
        let engine = Engine::new(config, Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
        Self { engine: Arc::new(engine), clock, dir }
    }

    /// A session that has registered the namespaces `a` and `b`.
    pub(crate) fn session(&self) -> SessionId {
        let session = self.engine.open_session("test", 1).unwrap();
        for name in ["a", "b"] {
            let d = descriptor(name);
            self.engine.register(session, d.clone(), d.digest(), None).unwrap();
        }
        session
    }
    fn reserve(&self, session: SessionId, ask: ReserveAsk) -> ReserveAnswer {
        self.engine.reserve(session, a(), &[ask]).unwrap()[0]
    }
    fn reserved(&self, session: SessionId, ask: ReserveAsk) -> ReservationId {
        match self.reserve(session, ask) {
            ReserveAnswer::Reserved(id) => id,
            other => panic!("{other:?}"),
        }
    }
    fn write(
        &self,
        session: SessionId,
        id: ReservationId,
        bytes: &[u8],
        coverage: u64,
    ) -> Result<Stored, Reason> {
        let mut writer = self.engine.begin_write(session, id.get())?;
        writer.write(0, bytes)?;
        writer.finish(ContentDigest::of(bytes), coverage).outcome
    }
    /// Stores a full chunk of group 0.
    pub(crate) fn put(&self, session: SessionId, n: u32) {
        let id = self.reserved(session, ask(chunk(n), FULL));
        let stored = self.write(session, id, &bytes_of(chunk(n), 0, FULL), FULL);
        assert_eq!(stored, Ok(Stored { chunk_ready: true }), "chunk {n}");
    }
    fn look(&self, session: SessionId, n: u32) -> ChunkAnswer {
        self.engine.lookup(session, a(), &[chunk(n)], LeaseAsk::None).unwrap().chunks.remove(0)
    }
    pub(crate) fn is_ready(&self, session: SessionId, n: u32) -> bool {
        matches!(self.look(session, n), ChunkAnswer::Ready { .. })
    }
    /// Leases chunks that must all be READY.
    fn lease(&self, session: SessionId, chunks: &[ChunkId]) -> u64 {
        let ask = LeaseAsk::Lease { ttl: None, locate: false };
        let answer = self.engine.lookup(session, a(), chunks, ask).unwrap();
        assert!(answer.chunks.iter().all(|c| matches!(c, ChunkAnswer::Ready { .. })), "{answer:?}");
        answer.lease.unwrap().id.get()
    }
    fn release(&self, session: SessionId, lease: u64) -> LeaseEnd {
        self.engine.release(session, &[lease]).unwrap()[0]
    }
    pub(crate) fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.engine.sweep();
    }
    pub(crate) fn refusals(&self, reason: Reason) -> u64 {
        let counts = self.engine.stats().refusals;
        counts.iter().find(|(r, _)| *r == reason).map_or(0, |(_, count)| *count)
    }
    pub(crate) fn audit(&self) -> Audit {
        self.engine.audit().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.engine.audit().unwrap();
        }
    }
}

pub(crate) fn descriptor(model: &str) -> Descriptor {
    let blocks = BlocksPerChunk::new(BLOCKS).unwrap();
    let tokens = NonZeroU32::new(16).unwrap();
    let group = |parts| Group::new(GroupKind::FullAttention, tokens, blocks, None, vec![BLOCK_BYTES; parts]);
    Descriptor {
        model: model.into(),
        weights: "r1".into(),
        kv_dtype: "bfloat16".into(),
        quantisation: "none".into(),
        groups: vec![group(1).unwrap(), group(2).unwrap()],
        page_format: "HNC".into(),
        layout_fingerprint: [1; 32],
        ranks: RankGeometry::SINGLE,
        key_chain_version: 1,
        domain: String::new(),
    }
}

pub(crate) fn a() -> NamespaceDigest {
    descriptor("a").digest()
}
pub(crate) fn b() -> NamespaceDigest {
    descriptor("b").digest()
}

/// Chunk `n` of group 0.
pub(crate) fn chunk(n: u32) -> ChunkId {
    chunk_of(0, n)
}
pub(crate) fn chunk_of(group: u16, n: u32) -> ChunkId {
    ChunkId { group: GroupIndex(group), hash: ChainHash::from(blake3::hash(&n.to_le_bytes())) }
}

/// A part with this coverage, of the right size.
fn ask(chunk: ChunkId, coverage_bits: u64) -> ReserveAsk {
    ask_part(chunk, 0, coverage_bits)
}
fn ask_part(chunk: ChunkId, part: u16, coverage_bits: u64) -> ReserveAsk {
    let bytes = BLOCK_BYTES * u64::from(coverage_bits.count_ones());
    ReserveAsk { chunk, part: PartIndex(part), coverage_bits, bytes }
}

/// The one right content of a part.
pub(crate) fn bytes_of(chunk: ChunkId, part: u16, coverage_bits: u64) -> Vec<u8> {
    let len = usize::try_from(BLOCK_BYTES).unwrap() * coverage_bits.count_ones() as usize;
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(chunk.hash.as_bytes()).update(&part.to_le_bytes()).update(&coverage_bits.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

pub(crate) fn full() -> Coverage {
    Coverage::full(BlocksPerChunk::new(BLOCKS).unwrap())
}
