//! A lookup of one request's keys among 20,000 stored chunks, as the daemon answers it: without a lease, and
//! leased, located and released.
#![allow(missing_docs, reason = "criterion's macros make the functions")]

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tender_daemon::clock::SystemClock;
use tender_daemon::engine::{
    ArenaConfig, Engine, EngineConfig, Eviction, LeaseAsk, ReserveAnswer, ReserveAsk,
};
use tender_proto::{
    BlocksPerChunk, ChainHash, ChunkId, ContentDigest, Descriptor, Group, GroupIndex, GroupKind,
    NamespaceDigest, PartIndex, RankGeometry, Reason, SessionId,
};

const STORED: u32 = 20_000;
const ASKED: u32 = 1000;
const PART_BYTES: u64 = 4096;

struct Filled {
    engine: Engine,
    session: SessionId,
    namespace: NamespaceDigest,
    _dir: tempfile::TempDir,
}

fn chunk(n: u32) -> ChunkId {
    ChunkId { group: GroupIndex(0), hash: ChainHash::from(blake3::hash(&n.to_le_bytes())) }
}

fn filled() -> Result<Filled, Box<dyn Error>> {
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let forever = Duration::from_secs(3600);
    let engine = Engine::new(
        EngineConfig {
            arena: ArenaConfig {
                place: dir.path().join("arena"),
                bytes: u64::from(STORED + 1) * PART_BYTES * 9,
                prefault: false,
                keep: false,
                discard: false,
            },
            default_lease: forever,
            max_lease: forever,
            reservation: forever,
            max_inflight_bytes: 1 << 30,
            max_session_inflight_bytes: 1 << 30,
            max_sessions: 4,
            max_leases_per_session: 16,
            max_part_bytes: 1 << 20,
            max_staging_bytes: 0,
            max_total_staging_bytes: 0,
            max_batch_chunks: 1 << 17,
            max_namespaces: 4,
            history_bytes: 1 << 20,
            eviction: Eviction::TwoQueue,
        },
        Arc::new(SystemClock),
    )?;
    let blocks = BlocksPerChunk::new(1)?;
    let group = Group::new(GroupKind::FullAttention, NonZeroU32::MIN, blocks, None, vec![PART_BYTES])?;
    let descriptor = Descriptor {
        model: "bench".into(),
        weights: "r1".into(),
        kv_dtype: "bfloat16".into(),
        quantisation: "none".into(),
        groups: vec![group],
        page_format: "HNC".into(),
        layout_fingerprint: [0; 32],
        ranks: RankGeometry::SINGLE,
        key_chain_version: 1,
        domain: String::new(),
    };
    let session = engine.open_session("bench", 0)?;
    let namespace = engine.register(session, descriptor.clone(), descriptor.digest(), None)?;
    let bytes = vec![0; usize::try_from(PART_BYTES)?];
    let digest = ContentDigest::of(&bytes);
    for n in 0..STORED {
        let ask = ReserveAsk { chunk: chunk(n), part: PartIndex(0), coverage_bits: 1, bytes: PART_BYTES };
        let ReserveAnswer::Reserved(id) = engine.reserve(session, namespace, &[ask])?[0] else {
            return Err(format!("chunk {n} was not reserved").into());
        };
        let mut writer = engine.begin_write(session, id.get()).map_err(Reason::label)?;
        writer.write(0, &bytes).map_err(Reason::label)?;
        writer.finish(digest, 1).outcome.map_err(Reason::label)?;
    }
    Ok(Filled { engine, session, namespace, _dir: dir })
}

fn lookup(c: &mut Criterion) {
    let Filled { engine, session, namespace, .. } = &match filled() {
        Ok(filled) => filled,
        Err(error) => {
            eprintln!("the lookup benches are skipped: {error}");
            return;
        }
    };
    let asked: Vec<_> = (0..ASKED).map(|n| chunk(n * (STORED / ASKED))).collect();
    let mut group = c.benchmark_group("lookup of 1,000 keys");
    group.throughput(Throughput::Elements(u64::from(ASKED)));
    group.bench_function("no lease", |bencher| {
        bencher.iter(|| black_box(engine.lookup(*session, *namespace, &asked, LeaseAsk::None)));
    });
    group.bench_function("leased, located and released", |bencher| {
        bencher.iter(|| {
            let ask = LeaseAsk::Lease { ttl: None, locate: true };
            if let Ok(answer) = engine.lookup(*session, *namespace, &asked, ask)
                && let Some(lease) = &answer.lease
            {
                let _ = black_box(engine.release(*session, &[lease.id.get()]));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, lookup);
criterion_main!(benches);
