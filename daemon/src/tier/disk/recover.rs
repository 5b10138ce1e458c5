//! Finding again what lies in the segments: headers are read, and no bytes of chunks. Meanwhile lookups find what was
//! found so far.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tender_proto::NamespaceDigest;

use super::format::{Bad, FIRST_RECORD_AT, RecordHeader};
use super::index::Keys;
use super::shared::{Shared, entry, read_header};
use super::stats::add;
use crate::task::{Thread, thread};

/// Headers are small, so a disk has time for several at once.
const THREADS: usize = 4;

/// Segments to look at, the newest first, and what was found in them.
#[derive(Debug)]
pub(super) struct Recovery {
    shared: Arc<Shared>,
    /// Slot and fill.
    segments: Vec<(u32, u64)>,
    next: AtomicUsize,
    namespaces: Mutex<HashSet<NamespaceDigest>>,
}

/// Where the log of a segment ends; `None` where that cannot be said.
pub(super) type End = Option<u64>;

impl Recovery {
    pub(super) fn new(shared: &Arc<Shared>) -> Arc<Self> {
        let filled =
            shared.slots().map(|(slot, segment)| (slot, segment.fill())).filter(|&(_, fill)| fill != 0);
        let mut segments: Vec<_> = filled.collect();
        segments.sort_unstable_by_key(|&(_, fill)| std::cmp::Reverse(fill));
        let shared = Arc::clone(shared);
        Arc::new(Self { shared, segments, next: AtomicUsize::new(0), namespaces: Mutex::default() })
    }

    /// The segment that was filled last, and its fill. Whoever writes looks at it first, to write on.
    pub(super) fn newest(&self) -> Option<(u32, u64)> {
        self.segments.first().copied()
    }

    /// Looks at the newest segment.
    pub(super) fn first(&self) -> End {
        self.next.fetch_max(1, Ordering::Relaxed);
        self.newest().and_then(|(slot, fill)| self.scan(slot, fill))
    }

    /// Looks at all others.
    pub(super) fn start(self: &Arc<Self>) -> std::io::Result<Vec<Thread>> {
        self.next.fetch_max(1, Ordering::Relaxed);
        let others = self.segments.len().saturating_sub(1);
        let work = |_| {
            let recovery = Arc::clone(self);
            thread("disk-recover", move || recovery.work())
        };
        (0..THREADS.min(others)).map(work).collect()
    }

    fn work(&self) {
        while let Some(&(slot, fill)) = self.segments.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if self.shared.stop.load(Ordering::Relaxed) {
                return;
            }
            self.scan(slot, fill);
        }
    }

    fn scan(&self, slot: u32, fill: u64) -> End {
        let end = self.walk(slot, fill);
        if self.shared.unrecovered.fetch_sub(1, Ordering::AcqRel) == 1
            && !self.shared.stop.load(Ordering::Relaxed)
        {
            self.done();
        }
        end
    }

    fn walk(&self, slot: u32, fill: u64) -> End {
        let (shared, mut at) = (&self.shared, FIRST_RECORD_AT);
        let segment = shared.segment(slot)?;
        while at < shared.segment_bytes && segment.fill() == fill && !shared.stop.load(Ordering::Relaxed) {
            let header = match read_header(&segment.file, at, fill) {
                Ok(Ok(header)) if header.total_bytes() <= shared.segment_bytes - at => header,
                Ok(Ok(_) | Err(Bad::Damaged)) => {
                    add(&shared.counters.torn_records, 1);
                    tracing::info!(slot, at, "the disk tier's log ends in a record that is not whole");
                    return Some(at);
                }
                Ok(Err(Bad::Foreign(format))) => {
                    add(&shared.counters.foreign_records, 1);
                    tracing::warn!(slot, at, format, "a record of another format in the disk tier");
                    return None;
                }
                Ok(Err(Bad::Nothing)) => return Some(at),
                Err(error) => {
                    add(&shared.counters.read_errors, 1);
                    shared.health.bad(&error);
                    tracing::warn!(slot, at, %error, "the rest of a segment of the disk tier cannot be read");
                    return None;
                }
            };
            at += header.total_bytes();
            self.found(slot, &header);
        }
        Some(at)
    }

    fn found(&self, slot: u32, header: &RecordHeader) {
        let (shared, counters) = (&self.shared, &self.shared.counters);
        let namespace = header.key.namespace;
        let known = shared.namespaces.get(namespace).filter(|known| known.generation == header.generation);
        let Some(known) = known else {
            add(&counters.stale_records, 1);
            return;
        };
        if header.coverage(&known.descriptor).is_none() {
            add(&counters.foreign_records, 1);
            return;
        }
        let key = Keys::of(namespace, header.generation).key(header.key.chunk);
        let inserted = entry(slot, header).is_some_and(|entry| shared.insert(key, entry, header.fill));
        add(if inserted { &counters.recovered_records } else { &counters.stale_records }, 1);
        let mut namespaces = self.namespaces.lock();
        if !namespaces.contains(&namespace) {
            namespaces.insert(namespace);
        }
    }

    fn done(&self) {
        let stats = self.shared.stats();
        tracing::info!(
            records = stats.recovered_records,
            torn = stats.torn_records,
            stale = stats.stale_records,
            foreign = stats.foreign_records,
            "the disk tier has found again what it held"
        );
        // Where a segment could not be read, nobody knows whose records it has.
        if stats.read_errors == 0 {
            self.shared.namespaces.forget_all_but(&self.namespaces.lock());
        }
    }
}
