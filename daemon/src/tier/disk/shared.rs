//! What all who work on the folder share: segments, index, namespaces, and how the disk does.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hashbrown::HashSet;
use parking_lot::Mutex;
use tender_proto::ChunkKey;

use super::folder::Folder;
use super::format::{Bad, RecordHeader};
use super::health::Health;
use super::index::{Entry, Index, Key};
use super::io::{self as blocks, Aligned, BLOCK_BYTES};
use super::namespaces::Namespaces;
use super::stats::{Counters, DiskStats, add};
use crate::admission::Budget;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) folder: [u8; 16],
    pub(super) segment_bytes: u64,
    pub(super) direct: bool,
    pub(super) segments: Vec<Segment>,
    pub(super) index: Index,
    pub(super) namespaces: Namespaces,
    pub(super) health: Health,
    pub(super) counters: Counters,
    /// Segments that the recovery has still to look at.
    pub(super) unrecovered: AtomicU64,
    /// Everybody ends.
    pub(super) stop: AtomicBool,
    /// Chunks on their way to the disk.
    pending: Mutex<HashSet<Key>>,
    queue: Arc<Budget>,
    /// Held for as long as anybody may write.
    _lock: File,
}

/// One segment. What the index says of it is always of its present fill.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: File,
    /// 0: it holds nothing.
    fill: AtomicU64,
    /// Of every entry of the index that lies here, and of some that did.
    keys: Mutex<Vec<Key>>,
}

/// A place in the queue of what is to be written. Dropping it gives it up.
#[derive(Debug)]
pub(super) struct Queued {
    shared: Arc<Shared>,
    pub(super) key: Key,
    bytes: u64,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.shared.pending.lock().remove(&self.key);
        self.shared.queue.give(self.bytes);
    }
}

/// Why there is no place.
#[derive(Debug)]
pub(super) enum NotQueued {
    /// It is there already.
    Pending,
    /// Others come first.
    Full,
}

impl Shared {
    pub(super) fn new(folder: Folder, namespaces: Namespaces, segment_bytes: u64, queue_bytes: u64) -> Self {
        let segment = |opened: super::folder::Opened| Segment {
            file: opened.file,
            fill: AtomicU64::new(opened.fill),
            keys: Mutex::default(),
        };
        let counters = Counters::default();
        add(&counters.foreign_records, folder.foreign_segments);
        let segments: Vec<_> = folder.segments.into_iter().map(segment).collect();
        let used = segments.iter().filter(|segment| segment.fill() != 0).count();
        Self {
            folder: folder.name,
            segment_bytes,
            direct: folder.direct,
            segments,
            index: Index::new(),
            namespaces,
            health: Health::default(),
            counters,
            unrecovered: AtomicU64::new(used as u64),
            stop: AtomicBool::new(false),
            pending: Mutex::default(),
            queue: Budget::new(queue_bytes),
            _lock: folder.lock,
        }
    }

    pub(super) fn segment(&self, slot: u32) -> Option<&Segment> {
        self.segments.get(usize::try_from(slot).ok()?)
    }

    /// All segments, by slot.
    pub(super) fn slots(&self) -> impl Iterator<Item = (u32, &Segment)> {
        (0..).zip(&self.segments)
    }

    /// A place in the queue.
    pub(super) fn enqueue(self: &Arc<Self>, key: Key, bytes: u64) -> Result<Queued, NotQueued> {
        let mut pending = self.pending.lock();
        if pending.contains(&key) {
            return Err(NotQueued::Pending);
        }
        if !self.queue.take(bytes) {
            return Err(NotQueued::Full);
        }
        pending.insert(key);
        Ok(Queued { shared: Arc::clone(self), key, bytes })
    }

    /// Puts a record into the index if its segment still has this fill and no newer one is there.
    pub(super) fn insert(&self, key: Key, entry: Entry, fill: u64) -> bool {
        let Some(segment) = self.segment(entry.slot) else { return false };
        let mut keys = segment.keys.lock();
        if segment.fill() != fill {
            return false;
        }
        keys.push(key);
        let sequence = |slot, block| (self.segment(slot).map_or(0, Segment::fill), block);
        self.index.put(key, entry, |old| sequence(old.slot, old.block) < (fill, entry.block))
    }

    /// Forgets what a segment holds.
    pub(super) fn void(&self, slot: u32) {
        let Some(segment) = self.segment(slot) else { return };
        // First: nobody adds to the list after it was taken.
        segment.fill.store(0, Ordering::Release);
        let keys = std::mem::take(&mut *segment.keys.lock());
        keys.iter().for_each(|key| self.index.remove_of(key, slot));
        add(&self.counters.reclaimed_segments, 1);
    }

    pub(super) fn stats(&self) -> DiskStats {
        DiskStats {
            capacity_bytes: self.segments.len() as u64 * self.segment_bytes,
            used_segments: self.segments.iter().filter(|segment| segment.fill() != 0).count() as u64,
            records: self.index.len() as u64,
            unrecovered_segments: self.unrecovered.load(Ordering::Relaxed),
            sick: u64::from(self.health.is_sick()),
            direct: u64::from(self.direct),
            ..self.counters.read()
        }
    }
}

impl Segment {
    pub(super) fn fill(&self) -> u64 {
        self.fill.load(Ordering::Acquire)
    }
    /// It is empty, and is filled from now on.
    pub(super) fn begin(&self, fill: u64) {
        self.fill.store(fill, Ordering::Release);
    }
    pub(super) fn keys(&self) -> Vec<Key> {
        self.keys.lock().clone()
    }
    /// It is full.
    pub(super) fn seal(&self) {
        self.keys.lock().shrink_to_fit();
    }
}

/// Reads a record's header, if one of this fill lies there.
pub(super) fn read_header(file: &File, at: u64, fill: u64) -> io::Result<Result<RecordHeader, Bad>> {
    let mut raw = Aligned::of(1);
    blocks::read(file, &mut raw, at)?;
    let len = match RecordHeader::blocks(&raw) {
        Ok(len) => len,
        Err(bad) => return Ok(Err(bad)),
    };
    if len > raw.len() {
        raw = Aligned::of(len);
        blocks::read(file, &mut raw, at)?;
    }
    Ok(RecordHeader::decode(&raw).and_then(|header| {
        // Of an earlier fill: the log ends before it.
        if header.fill != fill || header.at != at { Err(Bad::Nothing) } else { Ok(header) }
    }))
}

/// Where a record lies, as the index has it.
pub(super) fn entry(slot: u32, header: &RecordHeader) -> Option<Entry> {
    Some(Entry {
        coverage_bits: header.coverage_bits,
        slot,
        block: u32::try_from(header.at / BLOCK_BYTES).ok()?,
        blocks: u32::try_from(header.total_bytes() / BLOCK_BYTES).ok()?,
        read: false,
    })
}

impl Entry {
    /// Where it begins in its segment.
    pub(super) fn at(&self) -> u64 {
        u64::from(self.block) * BLOCK_BYTES
    }
    /// Header and parts.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }
}

/// Whether a header is of this chunk.
pub(super) fn is_of(header: &RecordHeader, key: ChunkKey, generation: u64) -> bool {
    header.key == key && header.generation == generation
}
