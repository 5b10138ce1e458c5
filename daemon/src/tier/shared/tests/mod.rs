//! The shared tier between daemons that share nothing but a store: files, Redis and an S3 API, all of them real.

mod damage;
mod redis;
mod relay;
mod resets;
mod s3;
mod server;

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tender_proto::{
    BlocksPerChunk, ChainHash, ContentDigest, Coverage, Descriptor, Group, GroupIndex, GroupKind, PartIndex,
    RankGeometry,
};

use super::*;
use crate::clock::SystemClock;
use crate::config::Config;
use crate::engine::{Engine, ResetScope};

/// Far beyond anything that a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A daemon's engine and its shared tier.
struct Node {
    tier: SharedTier,
    house: Arc<House>,
    engine: Arc<Engine>,
    generations: Arc<Generations>,
    dir: Arc<TempDir>,
}

impl Node {
    fn new(open: impl FnOnce(Arc<Generations>) -> SharedTier) -> Self {
        Self::on(Arc::new(tempfile::tempdir().unwrap()), open)
    }

    /// On the arena that an earlier one left there, if any.
    fn on(dir: Arc<TempDir>, open: impl FnOnce(Arc<Generations>) -> SharedTier) -> Self {
        let mut config = Config::default().engine;
        config.arena.place = dir.path().join("arena");
        config.arena.bytes = 160 << 20;
        config.arena.prefault = false;
        config.arena.keep = true;
        config.max_inflight_bytes = 160 << 20;
        config.max_session_inflight_bytes = 160 << 20;
        let engine = Arc::new(Engine::new(config, Arc::new(SystemClock)).unwrap());
        let (house, forgetting) = (Arc::new(House::open(&engine).unwrap()), Arc::clone(&engine));
        let forget = Arc::new(move |namespace| {
            forgetting.reset(ResetScope::One(namespace));
            Ok(())
        });
        let file = Some(dir.path().join("generations"));
        let generations = Arc::new(Generations::new(Arc::clone(&house), forget, file));
        Self { tier: open(Arc::clone(&generations)), house, engine, generations, dir }
    }

    fn at(uri: &str) -> Self {
        Self::new(|generations| SharedTier::open(&config(uri), generations).unwrap())
    }

    /// As kill -9 would end it. What is left is its arena, with the file beside it.
    fn vanish(self) -> Arc<TempDir> {
        let Self { tier, house, engine, generations, dir } = self;
        drop((tier, generations, house, engine));
        dir
    }

    fn namespace(&self, descriptor: &Descriptor) -> TierNamespace {
        let session = self.engine.open_session("test", 1).unwrap();
        self.engine.register(session, descriptor.clone(), descriptor.digest(), None).unwrap();
        self.now(descriptor)
    }

    /// As it is in its present epoch.
    fn now(&self, descriptor: &Descriptor) -> TierNamespace {
        self.house.namespace(descriptor.digest()).unwrap()
    }

    /// Stores a chunk in the arena, as an engine would.
    fn store(&self, namespace: &TierNamespace, chunk: ChunkId, coverage: Coverage) {
        let mut filling = self.house.fill(namespace, chunk, coverage).unwrap();
        let group = namespace.descriptor.group_of(chunk).unwrap();
        for part in (0..).map(PartIndex).take(group.parts()) {
            let bytes = content(group.part_bytes(part, coverage).unwrap(), chunk, part);
            filling.part(part).unwrap().write(0, &bytes).unwrap();
            filling.finish(part, ContentDigest::of(&bytes)).unwrap();
        }
    }

    /// Stores a chunk and gives it to the tier.
    async fn keep(&self, namespace: &TierNamespace, chunk: ChunkId, coverage: Coverage) -> Kept {
        self.store(namespace, chunk, coverage);
        self.offer(namespace, chunk).await
    }

    async fn offer(&self, namespace: &TierNamespace, chunk: ChunkId) -> Kept {
        let open = self.house.read(namespace, chunk).unwrap();
        self.tier.keep(namespace, chunk, &open).await
    }

    /// The library gives Redis half a second for an answer, which a busy machine may need for 32 MiB.
    async fn offer_until_kept(&self, namespace: &TierNamespace, chunk: ChunkId) {
        let until = soon();
        while self.offer(namespace, chunk).await != Kept::Yes {
            assert!(Instant::now() < until, "{chunk} is not kept: {:?}", self.counts());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn fetch_until_ready(&self, namespace: &TierNamespace, chunk: ChunkId) {
        let until = soon();
        while let Err(error) = self.fetch(namespace, chunk).await {
            assert!(
                matches!(error, FetchError::Unavailable(_)) && Instant::now() < until,
                "{chunk}: {error:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn find(&self, namespace: &TierNamespace, chunk: ChunkId) -> Option<Available> {
        self.tier.find(namespace, &[chunk], soon()).await.remove(0)
    }

    async fn fetch(&self, namespace: &TierNamespace, chunk: ChunkId) -> Result<(), FetchError> {
        self.tier.fetch(namespace, chunk, &self.house, soon()).await
    }

    /// The chunk is READY and every byte of it is the one that was stored.
    fn assert_ready(&self, namespace: &TierNamespace, chunk: ChunkId, coverage: Coverage) {
        let open = self.house.read(namespace, chunk).expect("it is READY");
        assert_eq!(open.coverage, coverage);
        for (part, reader) in (0..).map(PartIndex).zip(&open.parts) {
            let bytes = reader.as_ref();
            assert!(bytes == content(bytes.len() as u64, chunk, part), "part {part} of {chunk}");
        }
    }

    fn assert_absent(&self, namespace: &TierNamespace, chunk: ChunkId) {
        assert!(self.house.read(namespace, chunk).is_none(), "{chunk} is READY");
    }

    fn counts(&self) -> SharedCounts {
        self.tier.stats().counts()
    }

    fn damaged(&self, kind: &str) -> u64 {
        self.counts().damaged.iter().find(|(name, _)| *name == kind).unwrap().1
    }
}

fn config(uri: &str) -> SharedConfig {
    SharedConfig { uri: uri.parse().unwrap(), credentials: None, max_requests: 16, max_uploads: 4 }
}

fn files(dir: &Path) -> String {
    format!("fs://{}", dir.display())
}

/// One group for each list of parts, each part's block of so many bytes, two blocks a chunk.
fn descriptor(groups: &[&[u64]]) -> Descriptor {
    let tokens = NonZeroU32::new(16).unwrap();
    let group = |parts: &&[u64]| {
        Group::new(GroupKind::FullAttention, tokens, BlocksPerChunk::new(2).unwrap(), None, parts.to_vec())
    };
    Descriptor {
        model: "org/small model".into(),
        weights: "r1".into(),
        kv_dtype: "bfloat16".into(),
        quantisation: "none".into(),
        groups: groups.iter().map(|parts| group(parts).unwrap()).collect(),
        page_format: "HNC".into(),
        layout_fingerprint: [1; 32],
        ranks: RankGeometry::SINGLE,
        key_chain_version: 1,
        domain: String::new(),
    }
}

fn chunk(group: u16, n: u32) -> ChunkId {
    ChunkId { group: GroupIndex(group), hash: ChainHash::from(blake3::hash(&n.to_le_bytes())) }
}

fn full() -> Coverage {
    Coverage::full(BlocksPerChunk::new(2).unwrap())
}

fn half() -> Coverage {
    Coverage::empty(BlocksPerChunk::new(2).unwrap()).with(1)
}

fn content(bytes: u64, chunk: ChunkId, part: PartIndex) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(bytes).unwrap()];
    let mut hasher = blake3::Hasher::new();
    hasher.update(chunk.hash.as_bytes()).update(&part.0.to_le_bytes());
    hasher.finalize_xof().fill(&mut content);
    content
}

/// What every store must do, whatever it is.
async fn two_daemons_share_chunks_of_every_size(uri: &str) {
    // 1 B to 32 MiB, with parts that end inside pieces, and on their edges.
    let big = (PIECE_BYTES / 2) as u64;
    let descriptor =
        descriptor(&[&[1], &[1, 77, 4096], &[big, big], &[16 << 20], &[7 << 20, 1, (9 << 20) - 1]]);
    let (one, two) = (Node::at(uri), Node::at(uri));
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    let asked: Vec<_> = (0..5u16).flat_map(|group| [chunk(group, 1), chunk(group, 2)]).collect();
    assert!(two.tier.find(&of_two, &asked, soon()).await.iter().all(Option::is_none), "nothing is there yet");
    for &id in &asked {
        let coverage = if id.hash == chunk(0, 1).hash { full() } else { half() };
        one.store(&of_one, id, coverage);
        one.offer_until_kept(&of_one, id).await;
        assert_eq!(one.offer(&of_one, id).await, Kept::Yes, "{id} again");
    }
    assert_eq!(one.counts().kept_chunks + one.counts().kept_before, 20);

    // A daemon that has not asked before: what was absent is remembered as absent for a while.
    let three = Node::at(uri);
    let of_three = three.namespace(&descriptor);
    let found = three.tier.find(&of_three, &asked, soon()).await;
    for (&id, found) in asked.iter().zip(found) {
        let coverage = if id.hash == chunk(0, 1).hash { full() } else { half() };
        let group = descriptor.group_of(id).unwrap();
        let parts = (0..).map(PartIndex).take(group.parts());
        let bytes: u64 = parts.map(|part| group.part_bytes(part, coverage).unwrap()).sum();
        assert_eq!(found, Some(Available { bytes, coverage: None }), "{id}");
        three.fetch_until_ready(&of_three, id).await;
        three.assert_ready(&of_three, id, coverage);
        assert_eq!(three.fetch(&of_three, id).await, Err(FetchError::NotNeeded), "it is there");
    }
    let counts = three.counts();
    assert_eq!((counts.found, counts.fetched_chunks), (10, 10));
    // And one that never asked whether it is there.
    two.fetch_until_ready(&of_two, chunk(3, 2)).await;
    two.assert_ready(&of_two, chunk(3, 2), half());
    assert_eq!(two.fetch(&of_two, chunk(0, 99)).await, Err(FetchError::Gone));
    for node in [one, two, three] {
        node.tier.drain(soon()).await;
        node.engine.audit().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_carry_chunks_of_every_size_between_daemons() {
    let dir = tempfile::tempdir().unwrap();
    two_daemons_share_chunks_of_every_size(&files(dir.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_daemons_that_keep_the_same_chunk_at_once_leave_one_whole_object() {
    let dir = tempfile::tempdir().unwrap();
    let descriptor = descriptor(&[&[1 << 20, 3 << 20]]);
    let nodes: Vec<_> = (0..4).map(|_| Node::at(&files(dir.path()))).collect();
    let namespaces: Vec<_> = nodes.iter().map(|node| node.namespace(&descriptor)).collect();
    for n in 0..5 {
        for (node, namespace) in nodes.iter().zip(&namespaces) {
            node.store(namespace, chunk(0, n), full());
        }
        let keeping =
            nodes.iter().zip(&namespaces).map(|(node, namespace)| node.offer(namespace, chunk(0, n)));
        let kept = futures_util::future::join_all(keeping).await;
        assert!(kept.iter().all(|&kept| kept == Kept::Yes), "{kept:?}");
        let reader = Node::at(&files(dir.path()));
        let namespace = reader.namespace(&descriptor);
        reader.fetch(&namespace, chunk(0, n)).await.unwrap();
        reader.assert_ready(&namespace, chunk(0, n), full());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prefix_is_found_to_its_end_and_a_miss_costs_one_wave() {
    let operator = opendal::Operator::new(opendal::services::Memory::default()).unwrap();
    let node = || {
        Node::new(|generations| SharedTier::over(Store::same(&operator, 64), "memory".into(), 4, generations))
    };
    let descriptor = descriptor(&[&[64], &[64]]);
    let writer = node();
    let namespace = writer.namespace(&descriptor);
    for n in 0..150 {
        assert_eq!(writer.keep(&namespace, chunk(0, n), full()).await, Kept::Yes);
    }
    let reader = node();
    let namespace = reader.namespace(&descriptor);
    let asked: Vec<_> = (0..1000).flat_map(|n| [chunk(0, n), chunk(1, n)]).collect();
    let found = reader.tier.find(&namespace, &asked, soon()).await;
    for (at, found) in found.iter().enumerate() {
        assert_eq!(found.is_some(), at % 2 == 0 && at < 300, "place {at}");
    }
    let counts = reader.counts();
    assert_eq!((counts.found, counts.not_found), (150, 1850));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_uploads_than_there_are_places_are_told_so_and_a_drained_tier_keeps_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let one_upload = SharedConfig { max_uploads: 1, ..config(&files(dir.path())) };
    let node = Node::new(|generations| SharedTier::open(&one_upload, generations).unwrap());
    let namespace = node.namespace(&descriptor(&[&[64]]));
    let taken = node.tier.keeping.acquire().await.unwrap();
    assert_eq!(node.keep(&namespace, chunk(0, 1), full()).await, Kept::Throttled);
    let begin = Instant::now();
    node.tier.drain(begin + Duration::from_millis(50)).await;
    drop(taken);
    assert_eq!(node.offer(&namespace, chunk(0, 1)).await, Kept::Yes);
    node.tier.drain(soon()).await;
    node.store(&namespace, chunk(0, 2), full());
    assert_eq!(node.offer(&namespace, chunk(0, 2)).await, Kept::Throttled);
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_refused_at_the_start() {
    let generations = Arc::clone(&Node::at("memory://").generations);
    let error = SharedTier::open(&config("fs:///nonexistent/tender"), generations).unwrap_err().to_string();
    assert!(error.contains("--shared-uri") && error.contains("mount"), "{error}");
}
