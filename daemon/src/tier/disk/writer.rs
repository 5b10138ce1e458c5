//! The one thread that writes records: a segment after the other, and when none is left, the oldest one again.
//!
//! A record's parts are written before its header, and a record is found only after both. So whatever happens in
//! between, a kill included, leaves a log that ends one record earlier.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use tender_proto::ChunkKey;
use tokio::sync::oneshot;

use super::budget::WriteBudget;
use super::format::{FIRST_RECORD_AT, PartEntry, RecordHeader, SegmentHeader};
use super::index::{Entry, Key, Keys};
use super::io::{self as blocks, Aligned};
use super::namespaces::Known;
use super::recover::Recovery;
use super::shared::{Queued, Segment, Shared, entry, read_header};
use super::stats::add;
use crate::engine::PartReader;
use crate::tier::Kept;

/// Failures in one segment until another one is tried: its part of the disk may be bad.
const MOST_FAILURES: u32 = 8;
/// Of a segment, for records that are kept once more.
const SECOND_CHANCE_SHARE: u64 = 2;
/// Copied at once from one segment to another.
const COPY_BYTES: u64 = 1 << 20;

/// What the thread is given to do.
#[derive(Debug)]
pub(super) enum Job {
    /// Write a chunk.
    Keep(Box<Chunk>, oneshot::Sender<Kept>),
    /// Bring everything written so far to the medium.
    Flush(oneshot::Sender<()>),
}

/// A chunk to be written. It stays in the arena meanwhile.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) key: ChunkKey,
    pub(super) known: Arc<Known>,
    pub(super) coverage_bits: u64,
    pub(super) parts: Vec<PartReader>,
    pub(super) queued: Queued,
}

#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    budget: Arc<WriteBudget>,
    active: Option<Active>,
    last_fill: u64,
}

/// The segment that is being filled.
#[derive(Clone, Copy, Debug)]
struct Active {
    slot: u32,
    fill: u64,
    /// Where the next record goes.
    at: u64,
    failures: u32,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, budget: Arc<WriteBudget>) -> Self {
        let last_fill = shared.slots().map(|(_, segment)| segment.fill()).max().unwrap_or(0);
        Self { shared, budget, active: None, last_fill }
    }

    /// Works until nobody has anything to do for it any more.
    pub(super) fn run(mut self, recovery: &Recovery, jobs: &Receiver<Job>) {
        if let (Some((slot, fill)), Some(at)) = (recovery.newest(), recovery.first()) {
            self.active = Some(Active { slot, fill, at, failures: 0 });
        }
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Keep(_, reply) if self.shared.stop.load(Ordering::Relaxed) => {
                    _ = reply.send(Kept::Failed)
                }
                Job::Keep(chunk, reply) => {
                    let kept = self.keep(&chunk);
                    // Found or forgotten first, then asked for again.
                    drop(chunk);
                    _ = reply.send(kept);
                }
                Job::Flush(reply) => {
                    self.sync();
                    _ = reply.send(());
                }
            }
        }
        self.sync();
    }

    fn keep(&mut self, chunk: &Chunk) -> Kept {
        let shared = Arc::clone(&self.shared);
        if shared.health.is_sick() {
            return Kept::Failed;
        }
        if !shared.namespaces.is_current(chunk.key.namespace, chunk.known.generation) {
            return Kept::Unwanted;
        }
        let written = shared.namespaces.save(&chunk.known).and_then(|()| self.write(chunk));
        match written {
            Ok(bytes) => {
                shared.health.good();
                add(&shared.counters.kept_chunks, 1);
                add(&shared.counters.kept_bytes, bytes);
                Kept::Yes
            }
            Err(error) => {
                self.failed(&error);
                Kept::Failed
            }
        }
    }

    fn failed(&mut self, error: &io::Error) {
        add(&self.shared.counters.write_errors, 1);
        tracing::debug!(%error, "a write of the disk tier failed");
        self.shared.health.bad(error);
        if let Some(active) = &mut self.active {
            active.failures += 1;
            if active.failures >= MOST_FAILURES {
                self.active = None;
            }
        }
    }

    fn write(&mut self, chunk: &Chunk) -> io::Result<u64> {
        let part = |part: &PartReader| PartEntry { bytes: part.as_ref().len() as u64, digest: part.digest() };
        let mut header = RecordHeader {
            fill: 0,
            at: 0,
            generation: chunk.known.generation,
            key: chunk.key,
            coverage_bits: chunk.coverage_bits,
            parts: chunk.parts.iter().map(part).collect(),
        };
        let active = self.room_for(header.total_bytes())?;
        (header.fill, header.at) = (active.fill, active.at);
        let shared = Arc::clone(&self.shared);
        let segment = segment(&shared, active.slot)?;
        for (part, at) in chunk.parts.iter().zip(header.part_offsets()) {
            let _operation = shared.health.begin();
            blocks::write_part(&segment.file, part.as_ref(), at)?;
        }
        self.commit(segment, chunk.queued.key, &header)
    }

    /// Writes the header of a record whose parts are there, and lets it be found.
    fn commit(&mut self, segment: &Segment, key: Key, header: &RecordHeader) -> io::Result<u64> {
        let operation = self.shared.health.begin();
        blocks::write(&segment.file, &header.encode(), header.at)?;
        drop(operation);
        let active = self.active.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
        let place = entry(active.slot, header).ok_or(io::ErrorKind::InvalidInput)?;
        active.at += place.bytes();
        self.shared.insert(key, place, header.fill);
        Ok(place.bytes())
    }

    fn room_for(&mut self, bytes: u64) -> io::Result<Active> {
        match self.active {
            Some(active) if active.at + bytes <= self.shared.segment_bytes => Ok(active),
            _ => self.roll(),
        }
    }

    /// Ends this segment and begins the next one. Another one is made empty for the turn after it.
    fn roll(&mut self) -> io::Result<Active> {
        self.sync();
        if let Some(full) = self.active.take()
            && let Some(segment) = self.shared.segment(full.slot)
        {
            segment.seal();
        }
        let slot = match self.empty() {
            Some(slot) => slot,
            None => {
                let oldest = self.oldest().ok_or(io::ErrorKind::StorageFull)?;
                self.shared.void(oldest);
                oldest
            }
        };
        let fill = self.last_fill + 1;
        let shared = Arc::clone(&self.shared);
        let segment = segment(&shared, slot)?;
        let operation = shared.health.begin();
        let header = SegmentHeader { folder: shared.folder, slot, fill };
        blocks::write(&segment.file, &header.encode(), 0)?;
        // Records of this fill are believed only under this header: it goes first.
        blocks::sync(&segment.file)?;
        drop(operation);
        self.last_fill = fill;
        segment.begin(fill);
        self.active = Some(Active { slot, fill, at: FIRST_RECORD_AT, failures: 0 });
        if self.empty().is_none()
            && let Some(oldest) = self.oldest()
        {
            self.keep_what_was_read(oldest);
            shared.void(oldest);
        }
        self.active.ok_or_else(|| io::ErrorKind::StorageFull.into())
    }

    fn empty(&self) -> Option<u32> {
        self.shared.slots().find(|(_, segment)| segment.fill() == 0).map(|(slot, _)| slot)
    }

    fn oldest(&self) -> Option<u32> {
        let active = self.active.map(|active| active.slot);
        let others =
            self.shared.slots().filter(|&(slot, segment)| Some(slot) != active && segment.fill() != 0);
        others.min_by_key(|(_, segment)| segment.fill()).map(|(slot, _)| slot)
    }

    /// Second chance: what was read since it was written is written again, as far as there is room.
    fn keep_what_was_read(&mut self, oldest: u32) {
        let shared = Arc::clone(&self.shared);
        let Some(segment) = shared.segment(oldest) else { return };
        let mut room_bytes = shared.segment_bytes / SECOND_CHANCE_SHARE;
        for key in segment.keys() {
            let read = |entry: &Entry| entry.slot == oldest && entry.read && entry.bytes() <= room_bytes;
            let Some(seen) = shared.index.get(&key).filter(read) else { continue };
            match self.copy(segment, key, seen) {
                Ok(bytes) => {
                    room_bytes -= bytes;
                    self.budget.charge(bytes, Instant::now());
                    add(&shared.counters.rewritten_records, u64::from(bytes > 0));
                    add(&shared.counters.rewritten_bytes, bytes);
                }
                Err(error) => {
                    self.failed(&error);
                    return;
                }
            }
        }
    }

    /// Copies a record to where this thread writes; 0 bytes of one that does not count any more.
    fn copy(&mut self, from: &Segment, key: Key, seen: Entry) -> io::Result<u64> {
        let shared = Arc::clone(&self.shared);
        let operation = shared.health.begin();
        let header = read_header(&from.file, seen.at(), from.fill())?;
        drop(operation);
        let same =
            |header: &RecordHeader| Keys::of(header.key.namespace, header.generation).key(header.key.chunk);
        let Ok(old) = header.as_ref() else { return Ok(0) };
        let counts = shared.namespaces.is_current(old.key.namespace, old.generation);
        let Some(active) = self.active.filter(|active| active.at + seen.bytes() <= shared.segment_bytes)
        else {
            return Ok(0);
        };
        if same(old) != key || !counts || old.total_bytes() != seen.bytes() {
            return Ok(0);
        }
        let new = RecordHeader { fill: active.fill, at: active.at, ..old.clone() };
        let to = segment(&shared, active.slot)?;
        let begin = old.part_offsets().next().unwrap_or(0);
        let (mut done, all) = (begin - old.at, seen.bytes());
        let mut piece = Aligned::of(usize::try_from(COPY_BYTES.min(all)).unwrap_or(0));
        while done < all {
            let _operation = shared.health.begin();
            let len = usize::try_from((all - done).min(COPY_BYTES)).unwrap_or(0);
            blocks::read(&from.file, &mut piece[..len], old.at + done)?;
            blocks::write(&to.file, &piece[..len], new.at + done)?;
            done += len as u64;
        }
        self.commit(to, key, &new)
    }

    /// Brings what was written to the medium.
    fn sync(&mut self) {
        let shared = Arc::clone(&self.shared);
        let Some(segment) = self.active.and_then(|active| shared.segment(active.slot)) else { return };
        let operation = shared.health.begin();
        let synced = blocks::sync(&segment.file);
        drop(operation);
        if let Err(error) = synced {
            tracing::warn!(%error, "what the disk tier wrote last may be lost in a power cut");
            self.failed(&error);
        }
    }
}

fn segment(shared: &Shared, slot: u32) -> io::Result<&Segment> {
    shared.segment(slot).ok_or_else(|| io::ErrorKind::NotFound.into())
}
