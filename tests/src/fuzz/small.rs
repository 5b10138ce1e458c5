//! A small daemon: an arena of sixteen pages, a few models, a few keys.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tender_daemon::arena::StartError;
use tender_daemon::clock::{Clock, ManualClock};
use tender_daemon::engine::{ArenaConfig, Engine, EngineConfig, Eviction};
use tender_proto::limits::KEY_CHAIN_VERSION;
use tender_proto::{
    BlocksPerChunk, ChainHash, ChunkId, Descriptor, Group, GroupIndex, GroupKind, PartIndex, RankGeometry,
};

pub(super) const ARENA_BYTES: u64 = 64 << 10;
/// Not a divisor of a page, so that extents have bytes that belong to nobody.
pub(super) const BLOCK_BYTES: u64 = 1500;
pub(super) const BLOCKS: u32 = 4;
pub(super) const MODELS: u8 = 3;
pub(super) const KEYS: u8 = 12;
pub(super) const RESERVATION: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(5);
const LAST_WORK: Duration = Duration::from_secs(10);

/// In a memory filesystem where there is one, as an arena needs.
pub(super) fn folder() -> TempDir {
    let shm = PathBuf::from("/dev/shm");
    let home = if shm.is_dir() { shm } else { std::env::temp_dir() };
    tempfile::tempdir_in(home).unwrap_or_else(|error| panic!("no folder: {error}"))
}

/// With limits that nobody reaches; what the arena holds stays for the next.
pub(super) fn config(folder: &Path) -> EngineConfig {
    EngineConfig {
        arena: ArenaConfig {
            place: folder.join("arena"),
            bytes: ARENA_BYTES,
            prefault: false,
            keep: true,
            discard: false,
        },
        default_lease: LEASE,
        max_lease: 4 * LEASE,
        reservation: RESERVATION,
        max_inflight_bytes: 1 << 20,
        max_session_inflight_bytes: 1 << 20,
        max_sessions: 8,
        max_leases_per_session: 256,
        max_part_bytes: 1 << 20,
        max_staging_bytes: 1 << 20,
        max_total_staging_bytes: 1 << 20,
        max_batch_chunks: 1000,
        max_namespaces: 8,
        history_bytes: 1 << 16,
        eviction: Eviction::TwoQueue,
    }
}

/// An engine that must open.
pub(super) fn open(config: &EngineConfig, clock: &Arc<ManualClock>) -> Arc<Engine> {
    match Engine::new(config.clone(), Arc::clone(clock) as Arc<dyn Clock>) {
        Ok(engine) => Arc::new(engine),
        Err(error) => panic!("{error}"),
    }
}

/// An engine over what another one held, once that one is gone: whatever it did aside (a look into what a reader
/// doubted) holds it a little longer than its last user.
pub(super) fn reopen(config: &EngineConfig, clock: &Arc<ManualClock>) -> Arc<Engine> {
    let give_up = Instant::now() + LAST_WORK;
    loop {
        match Engine::new(config.clone(), Arc::clone(clock) as Arc<dyn Clock>) {
            Ok(engine) => return Arc::new(engine),
            Err(StartError::InUse { .. }) if Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// One of a few models: group 0 has one part, group 1 has two.
pub(super) fn descriptor(model: u8) -> Descriptor {
    let group = |parts| {
        let (tokens, blocks) = (NonZeroU32::MIN.saturating_add(15), BlocksPerChunk::new(BLOCKS)?);
        Group::new(GroupKind::FullAttention, tokens, blocks, None, vec![BLOCK_BYTES; parts])
    };
    let groups: Result<Vec<_>, _> = [1, 2].map(group).into_iter().collect();
    Descriptor {
        model: format!("model {}", model % MODELS),
        weights: "r1".into(),
        kv_dtype: "bfloat16".into(),
        quantisation: "none".into(),
        groups: groups.unwrap_or_default(),
        page_format: "HNC".into(),
        layout_fingerprint: [1; 32],
        ranks: RankGeometry::SINGLE,
        key_chain_version: KEY_CHAIN_VERSION,
        domain: String::new(),
    }
}

/// One of a few keys, so that calls meet; its group may be one that there is not.
pub(super) fn chunk(group: u8, n: u8) -> ChunkId {
    let group = if group > 250 { 2 } else { group % 2 };
    ChunkId { group: GroupIndex(group.into()), hash: ChainHash::from(blake3::hash(&[n % KEYS])) }
}

/// What a part holds. It depends on the part and its blocks alone, as KV does.
pub(super) fn content(chunk: ChunkId, part: PartIndex, coverage: u64, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(bytes).unwrap_or(0)];
    let mut hasher = blake3::Hasher::new();
    hasher.update(chunk.hash.as_bytes()).update(&chunk.group.0.to_le_bytes());
    hasher.update(&part.0.to_le_bytes()).update(&coverage.to_le_bytes());
    hasher.finalize_xof().fill(&mut content);
    content
}
