//! What the tier counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters; all of them grow only.
        #[derive(Debug, Default)]
        pub(super) struct Counters { $($(#[$doc])* pub(super) $name: AtomicU64,)* }

        /// One moment's numbers.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub(crate) struct DiskStats {
            $($(#[$doc])* pub(crate) $name: u64,)*
            /// Bytes of the folder's segments.
            pub(crate) capacity_bytes: u64,
            /// Segments that hold records.
            pub(crate) used_segments: u64,
            /// Records that can be found, those of generations that a reset has ended included.
            pub(crate) records: u64,
            /// Segments that the recovery has still to look at.
            pub(crate) unrecovered_segments: u64,
            /// 1 while the disk is left alone because it fails or hangs.
            pub(crate) sick: u64,
            /// 1 where files are read and written past the page cache.
            pub(crate) direct: u64,
        }

        impl Counters {
            pub(super) fn read(&self) -> DiskStats {
                DiskStats { $($name: self.$name.load(Ordering::Relaxed),)* ..DiskStats::default() }
            }
        }
    };
}

stats! {
    /// Chunks written.
    kept_chunks,
    /// Bytes written for them, headers and padding included.
    kept_bytes,
    /// Chunks brought into the arena.
    fetched_chunks,
    /// Bytes of their parts.
    fetched_bytes,
    /// Chunks not kept because the budget was spent or the queue full.
    throttled_chunks,
    /// Chunks not kept because they can never fit.
    unwanted_chunks,
    /// Writes that failed.
    write_errors,
    /// Reads that failed.
    read_errors,
    /// Records whose bytes were not what was stored; they are taken out.
    corrupt_records,
    /// Records found at the start.
    recovered_records,
    /// Records dropped at the start: half written or damaged.
    torn_records,
    /// Records dropped at the start: of a generation that a reset has ended, or replaced by a newer one.
    stale_records,
    /// Records and segments dropped at the start: of another format or another folder, or not fitting their namespace.
    foreign_records,
    /// Segments emptied to be filled again.
    reclaimed_segments,
    /// Records kept once more because they were read since they were written.
    rewritten_records,
    /// Bytes written for them.
    rewritten_bytes,
    /// Namespaces forgotten.
    resets,
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
