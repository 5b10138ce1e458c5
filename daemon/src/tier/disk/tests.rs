//! The tier on a small folder, with a real engine and its house.

mod folders;
mod model;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tender_proto::{BlocksPerChunk, ContentDigest, Group, GroupIndex, GroupKind, Reason};

use super::*;
use crate::engine::ResetScope;
use crate::engine::tests::{Bench, chunk_of, descriptor};

/// Six full chunks of group 0.
pub(super) const SEGMENT_BYTES: u64 = 124 << 10;
pub(super) const SEGMENTS: u64 = 6;
pub(super) const FULL: u64 = 0b1111;

/// A daemon's engine and disk tier, and the folder that they leave to the next one.
pub(super) struct Rig {
    pub(super) disk: Disk,
    pub(super) house: House,
    pub(super) config: DiskConfig,
    pub(super) folder: Arc<TempDir>,
    // Last: it audits what the others have let go of.
    bench: Bench,
}

pub(super) fn config(folder: &Path) -> DiskConfig {
    DiskConfig {
        path: folder.to_owned(),
        bytes: BESIDE_SEGMENTS_BYTES + SEGMENTS * SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        write_bytes_per_second: 1 << 40,
        reads: 4,
        discard: false,
    }
}

/// Group 0 has one part, group 1 two, and group 2 two whose bytes fill no block.
pub(super) fn test_descriptor() -> Descriptor {
    let mut descriptor = descriptor("disk");
    let tokens = descriptor.groups[0].tokens_per_block;
    let blocks = BlocksPerChunk::new(4).unwrap();
    descriptor
        .groups
        .push(Group::new(GroupKind::FullAttention, tokens, blocks, None, vec![5001, 17]).unwrap());
    descriptor
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::on(Arc::new(tempfile::tempdir().unwrap()), |_| ())
    }
    pub(super) fn on(folder: Arc<TempDir>, adjust: impl FnOnce(&mut DiskConfig)) -> Self {
        let mut config = config(folder.path());
        adjust(&mut config);
        let disk = Disk::open(&config, Duration::ZERO).unwrap();
        let bench = Bench::with_slots(64);
        let house = House::open(&bench.engine).unwrap();
        let session = bench.engine.open_session("test", 1).unwrap();
        let known = test_descriptor();
        bench.engine.register(session, known.clone(), known.digest(), None).unwrap();
        Self { disk, house, config, folder, bench }
    }
    /// Another daemon on the same folder.
    pub(super) async fn reopen(self) -> Self {
        let folder = Arc::clone(&self.folder);
        drop(self);
        let rig = Self::on(folder, |_| ());
        rig.recovered().await;
        rig
    }
    pub(super) async fn recovered(&self) {
        while self.disk.stats().unrecovered_segments > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    pub(super) fn namespace(&self) -> TierNamespace {
        self.house.namespace(test_descriptor().digest()).unwrap()
    }
    /// The arena forgets everything; the disk is not told.
    pub(super) fn empty_arena(&self) {
        self.bench.engine.reset(ResetScope::All);
    }
    pub(super) fn store(&self, chunk: ChunkId, bits: u64) -> OpenChunk {
        let namespace = self.namespace();
        let group = namespace.descriptor.group_of(chunk).unwrap();
        let coverage = Coverage::new(bits, group.blocks_per_chunk).unwrap();
        match self.house.fill(&namespace, chunk, coverage) {
            Ok(mut filling) => {
                for part in (0..).map(PartIndex).take(group.parts()) {
                    let bytes = content(chunk, part, group.part_bytes(part, coverage).unwrap());
                    filling.part(part).unwrap().write(0, &bytes).unwrap();
                    filling.finish(part, ContentDigest::of(&bytes)).unwrap();
                }
            }
            Err(Unfilled::Already(_)) => {}
            Err(no) => panic!("{no:?}"),
        }
        self.house.read(&namespace, chunk).unwrap()
    }
    pub(super) async fn keep(&self, chunk: ChunkId) -> Kept {
        self.keep_blocks(chunk, FULL).await
    }
    pub(super) async fn keep_blocks(&self, chunk: ChunkId, bits: u64) -> Kept {
        let stored = self.store(chunk, bits);
        let kept = self.disk.keep(&self.namespace(), chunk, &stored).await;
        drop(stored);
        self.empty_arena();
        kept
    }
    pub(super) async fn find(&self, chunk: ChunkId) -> Option<Available> {
        self.disk.find(&self.namespace(), &[chunk], soon()).await[0]
    }
    /// Brings it, and compares every byte of what came.
    pub(super) async fn fetch(&self, chunk: ChunkId) -> Result<(), FetchError> {
        let namespace = self.namespace();
        self.disk.fetch(&namespace, chunk, &self.house, soon()).await?;
        let open = self.house.read(&namespace, chunk).expect("it is READY");
        for (part, reader) in (0..).map(PartIndex).zip(&open.parts) {
            let bytes = reader.as_ref();
            assert_eq!(bytes, content(chunk, part, bytes.len() as u64), "{chunk} part {part}");
        }
        drop(open);
        self.empty_arena();
        Ok(())
    }
    pub(super) fn segment(&self, slot: u32) -> PathBuf {
        self.folder.path().join(folder::segment_name(slot))
    }
}

pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn content(chunk: ChunkId, part: PartIndex, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    let mut hasher = blake3::Hasher::new();
    hasher.update(chunk.hash.as_bytes()).update(&chunk.group.0.to_le_bytes()).update(&part.0.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

pub(super) fn chunk(n: u32) -> ChunkId {
    chunk_of(0, n)
}

#[tokio::test]
async fn a_chunk_of_any_shape_comes_back_byte_for_byte_also_after_a_restart() {
    let mut rig = Rig::new();
    let all = [chunk_of(0, 1), chunk_of(1, 1), chunk_of(2, 1), chunk_of(2, 2)];
    for chunk in all {
        assert_eq!(rig.find(chunk).await, None);
        assert_eq!(rig.keep(chunk).await, Kept::Yes);
        assert_eq!(rig.keep(chunk).await, Kept::Yes, "again");
    }
    assert_eq!(rig.disk.stats().kept_chunks, 4, "each is written once");
    for _ in 0..2 {
        for chunk in all {
            let found = rig.find(chunk).await.unwrap();
            let group = test_descriptor().groups[usize::from(chunk.group.0)].clone();
            let bytes: u64 = (0..).map(PartIndex).map_while(|part| group.block_bytes(part)).sum();
            assert_eq!((found.bytes, found.coverage.unwrap().bits()), (4 * bytes, FULL));
            rig.fetch(chunk).await.unwrap();
        }
        assert_eq!(rig.fetch(chunk(99)).await, Err(FetchError::Gone));
        rig = rig.reopen().await;
        assert_eq!(rig.disk.stats().recovered_records, 4);
    }
}

#[tokio::test]
async fn what_covers_more_replaces_what_covers_less_and_never_the_other_way() {
    let rig = Rig::new();
    for (bits, found) in [(0b0001, 0b0001), (0b0111, 0b0111), (0b0011, 0b0111), (FULL, FULL)] {
        assert_eq!(rig.keep_blocks(chunk(1), bits).await, Kept::Yes);
        assert_eq!(rig.find(chunk(1)).await.unwrap().coverage.unwrap().bits(), found);
        rig.fetch(chunk(1)).await.unwrap();
    }
    let rig = rig.reopen().await;
    assert_eq!(rig.find(chunk(1)).await.unwrap().coverage.unwrap().bits(), FULL);
    assert_eq!(rig.disk.stats().records, 1);
}

#[tokio::test]
async fn after_a_reset_nothing_of_before_is_found_also_by_the_next_daemon() {
    let rig = Rig::new();
    rig.keep(chunk(1)).await;
    let late = rig.store(chunk(2), FULL);
    let under_way = rig.disk.admit(&rig.namespace(), chunk(2), &late).unwrap();
    rig.disk.reset(&rig.namespace(), None).await.unwrap();
    // A record that was waiting for its turn meanwhile.
    let (reply, kept) = oneshot::channel();
    assert!(rig.disk.send(Job::Keep(Box::new(under_way), reply)));
    assert_eq!(kept.await, Ok(Kept::Unwanted));
    drop(late);
    for n in [1, 2] {
        assert_eq!(rig.find(chunk(n)).await, None);
        assert_eq!(rig.fetch(chunk(n)).await, Err(FetchError::Gone));
    }
    rig.empty_arena();
    assert_eq!(rig.keep(chunk(3)).await, Kept::Yes);
    let rig = rig.reopen().await;
    assert_eq!(rig.find(chunk(1)).await, None);
    assert_eq!(rig.disk.stats().stale_records, 1);
    rig.fetch(chunk(3)).await.unwrap();
}

#[tokio::test]
async fn a_record_that_was_being_written_when_a_reset_came_is_not_found() {
    let rig = Rig::new();
    rig.keep(chunk(0)).await;
    let known = rig.disk.shared.namespaces.get(rig.namespace().digest).unwrap();
    rig.disk.shared.namespaces.forget(rig.namespace().digest).unwrap();
    // As the writer does at the end of a write.
    let key = Keys::of(rig.namespace().digest, known.generation).key(chunk(1));
    let entry = index::Entry { coverage_bits: FULL, slot: 0, block: 9, blocks: 5, read: false };
    assert!(rig.disk.shared.insert(key, entry, 1));
    assert_eq!(rig.find(chunk(1)).await, None);
}

#[tokio::test]
async fn the_folder_never_outgrows_its_size_and_keeps_the_latest() {
    let rig = Rig::new();
    for n in 0..150 {
        assert_eq!(rig.keep(chunk(n)).await, Kept::Yes, "{n}");
        let stats = rig.disk.stats();
        assert!(stats.records <= SEGMENTS * 6 && stats.used_segments < SEGMENTS, "{stats:?}");
        rig.fetch(chunk(n)).await.unwrap();
    }
    let files = std::fs::read_dir(rig.folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    assert!(files.map(|file| file.len()).sum::<u64>() <= rig.config.bytes);
    assert!(rig.disk.stats().reclaimed_segments >= 15);
    let held: Vec<_> =
        rig.disk.find(&rig.namespace(), &(0..150).map(chunk).collect::<Vec<_>>(), soon()).await;
    assert!(held.iter().flatten().count() >= 12);
    assert!(held[145..].iter().all(Option::is_some));
}

#[tokio::test]
async fn what_is_read_again_and_again_outlives_its_segment() {
    let rig = Rig::new();
    for n in 0..120 {
        rig.keep(chunk(n)).await;
        rig.fetch(chunk(0)).await.unwrap();
    }
    assert_eq!(rig.find(chunk(1)).await, None);
    let stats = rig.disk.stats();
    assert!(
        stats.rewritten_records > 2 && stats.rewritten_bytes >= stats.rewritten_records * 20_000,
        "{stats:?}"
    );
    let rig = rig.reopen().await;
    rig.fetch(chunk(0)).await.unwrap();
}

#[tokio::test]
async fn what_is_beyond_the_budget_or_too_large_is_not_kept() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let rig = Rig::on(Arc::clone(&folder), |config| config.write_bytes_per_second = 1);
    assert_eq!(rig.keep(chunk(0)).await, Kept::Yes, "on account");
    assert_eq!(rig.keep(chunk(1)).await, Kept::Throttled);
    assert_eq!((rig.disk.stats().throttled_chunks, rig.disk.stats().kept_chunks), (1, 1));
    drop(rig);
    let small = |config: &mut DiskConfig| {
        config.segment_bytes = 32 << 10;
    };
    let rig = Rig::on(folder, small);
    assert_eq!(rig.keep(chunk_of(1, 0)).await, Kept::Unwanted, "36 KiB and its header");
    assert_eq!(rig.keep(chunk_of(0, 0)).await, Kept::Yes);
}

#[tokio::test]
async fn a_full_queue_refuses_and_one_chunk_waits_only_once() {
    let rig = Rig::new();
    let stored: Vec<_> = (0..8).map(|n| rig.store(chunk(n), FULL)).collect();
    let namespace = rig.namespace();
    let admit = |n: u32| rig.disk.admit(&namespace, chunk(n), &stored[n as usize]);
    let waiting: Vec<_> = (0..6).map(|n| admit(n).unwrap()).collect();
    assert_eq!(admit(0).err(), Some(Kept::Yes), "it waits already");
    assert_eq!(admit(6).err(), Some(Kept::Throttled));
    drop(waiting);
    assert!(admit(6).is_ok());
    assert!(admit(0).is_ok());
}

#[tokio::test]
async fn a_fetch_ends_by_its_deadline_and_leaves_nothing() {
    let rig = Rig::new();
    rig.keep(chunk(1)).await;
    let late = rig.disk.fetch(&rig.namespace(), chunk(1), &rig.house, Instant::now()).await;
    assert_eq!(late, Err(FetchError::Deadline));
    let all = rig.disk.reads.acquire_many(4).await.unwrap();
    let soon = Instant::now() + Duration::from_millis(20);
    assert_eq!(rig.disk.fetch(&rig.namespace(), chunk(1), &rig.house, soon).await, Err(FetchError::Deadline));
    drop(all);
    // Once the thread of the late one has noticed, too.
    while rig.fetch(chunk(1)).await == Err(FetchError::NotNeeded) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stored = rig.store(chunk(1), FULL);
    let there = rig.disk.fetch(&rig.namespace(), chunk(1), &rig.house, self::soon()).await;
    assert_eq!(there, Err(FetchError::NotNeeded));
    drop(stored);
    let mut strange = chunk(1);
    strange.group = GroupIndex(9);
    assert_eq!(rig.fetch(strange).await, Err(FetchError::Gone));
    let mut before = rig.namespace();
    rig.empty_arena();
    before.epoch = rig.namespace().epoch.wrapping_sub(1);
    let stale = rig.disk.fetch(&before, chunk(1), &rig.house, self::soon()).await;
    assert_eq!(stale, Err(FetchError::Refused(Reason::NamespaceReset)));
}

#[tokio::test]
async fn a_drain_returns_when_all_is_on_the_medium_or_at_its_deadline() {
    let rig = Rig::new();
    rig.keep(chunk(1)).await;
    rig.disk.drain(soon()).await;
    rig.disk.drain(Instant::now()).await;
    rig.fetch(chunk(1)).await.unwrap();
}

#[tokio::test]
async fn a_disk_that_hangs_is_left_behind_at_the_end_and_holds_up_nobody() {
    let rig = Rig::new();
    rig.keep(chunk(1)).await;
    // As a thread that never comes back from the disk.
    let hangs = Arc::clone(&rig.disk.recovery);
    rig.disk.close(Instant::now()).await;
    assert!(rig.disk.left.load(Ordering::Relaxed) && !rig.disk.has_ended());
    assert_eq!(rig.keep(chunk(2)).await, Kept::Failed);
    let Rig { disk, .. } = rig;
    // Were it waited for, this would take END_PATIENCE, on the thread of everybody.
    drop(disk);
    drop(hangs);
}

#[tokio::test]
async fn an_end_waits_for_a_disk_that_does_not_hang() {
    let rig = Rig::new();
    rig.keep(chunk(1)).await;
    rig.disk.close(soon()).await;
    assert!(rig.disk.has_ended());
    assert_eq!(rig.keep(chunk(2)).await, Kept::Failed);
    let rig = rig.reopen().await;
    rig.fetch(chunk(1)).await.unwrap();
}

#[tokio::test]
async fn a_reset_of_everything_reaches_namespaces_that_no_engine_has_registered() {
    let rig = Rig::new();
    rig.keep(chunk(1)).await;
    let rig = rig.reopen().await;
    assert!(rig.find(chunk(1)).await.is_some());
    rig.disk.reset_others(&[]).await.unwrap();
    assert_eq!(rig.find(chunk(1)).await, None);
    let rig = rig.reopen().await;
    assert_eq!(rig.find(chunk(1)).await, None, "nor does the next daemon find it");
    rig.keep(chunk(1)).await;
    rig.fetch(chunk(1)).await.unwrap();
}
