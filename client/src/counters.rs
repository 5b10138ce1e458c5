//! What happened, in numbers. [`Tally`] counts while it happens, [`Counters`] is one moment of it for logs,
//! metrics and tests.
//!
//! A number is counted where its event becomes final, once: a matched prefix when the engine has taken it (not
//! at every asking), a load when its lease turned out good, a store when the daemon has answered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tender_proto::Reason;

/// Why a part was not stored, or not even offered to the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Skip {
    /// No room in staging.
    StagingFull,
    /// The threads that store are too far behind.
    QueueFull,
    /// The step had gathered for as long as it may.
    OverBudget,
    /// Larger than the daemon stores or staging holds.
    TooLarge,
    /// The blocks named do not fit the layout.
    BadBlocks,
    /// No room in the ring on the device.
    RingFull,
    /// The engine was recording a graph.
    Capturing,
    /// The device did not copy them in time.
    Late,
    /// The device, or its driver, refused a copy.
    Device,
    /// The device cannot be used any more.
    DeviceLost,
    /// The client switched itself off.
    Disabled,
    /// The daemon said no, or could not be asked.
    Refused(Reason),
}

impl Skip {
    const LOCAL: [Self; 11] = [
        Self::StagingFull,
        Self::QueueFull,
        Self::OverBudget,
        Self::TooLarge,
        Self::BadBlocks,
        Self::RingFull,
        Self::Capturing,
        Self::Late,
        Self::Device,
        Self::DeviceLost,
        Self::Disabled,
    ];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::StagingFull => "staging_full",
            Self::QueueFull => "queue_full",
            Self::OverBudget => "over_budget",
            Self::TooLarge => "larger_than_allowed",
            Self::BadBlocks => "bad_blocks",
            Self::RingFull => "device_ring_full",
            Self::Capturing => "graph_capture",
            Self::Late => "device_too_slow",
            Self::Device => "device_refused",
            Self::DeviceLost => "device_lost",
            Self::Disabled => "disabled",
            Self::Refused(reason) => reason.label(),
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One moment of a client's numbers. All of them count from the client's start.
        #[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct Counters {
            /// `shm`, `grpc`, or `none`: no session is up, or it moves no bytes, as a scheduler's.
            pub transport: String,
            /// `up`, `draining`, `down`, or `refused` when the daemon said no to this client.
            pub session: String,
            /// `closed`, `open` or `half_open`.
            pub breaker: String,
            /// Chunks that should have been loaded and were not, by reason.
            pub load_failures: BTreeMap<String, u64>,
            /// Parts that were due and not stored, by reason.
            pub stores_skipped: BTreeMap<String, u64>,
            /// Lookups of the scheduler that ended without an answer, by reason.
            pub lookup_failures: BTreeMap<String, u64>,
            /// The `missed_chunks`, by the daemon's reason; `pending` where somebody was storing it.
            pub misses: BTreeMap<String, u64>,
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same, while it counts.
        #[derive(Debug, Default)]
        pub(crate) struct Tally {
            load_failures: ByReason,
            lookup_failures: ByReason,
            misses: ByReason,
            misses_pending: Count,
            stores_refused: ByReason,
            stores_skipped: [AtomicU64; Skip::LOCAL.len()],
            $(pub(crate) $name: Count,)*
        }

        impl Tally {
            /// Reads every number. They are read one after another, so an event that happens meanwhile may
            /// show in one and not yet in another.
            pub(crate) fn read(&self) -> Counters {
                let mut stores_skipped = self.stores_refused.read();
                for (skip, count) in Skip::LOCAL.iter().zip(&self.stores_skipped) {
                    put(&mut stores_skipped, skip.label(), count.load(Ordering::Relaxed));
                }
                let mut misses = self.misses.read();
                put(&mut misses, "pending", self.misses_pending.get());
                Counters {
                    misses,
                    load_failures: self.load_failures.read(),
                    lookup_failures: self.lookup_failures.read(),
                    stores_skipped,
                    $($name: self.$name.get(),)*
                    ..Counters::default()
                }
            }
        }
    };
}

counters! {
    /// Requests seen by the scheduler side.
    requests,
    /// Requests with an input that has no content name: neither looked up nor stored.
    uncacheable_requests,
    /// Requests admitted after a lookup was answered, failed lookups included.
    queries,
    /// Their tokens that the engine did not already have.
    query_tokens,
    /// Tokens of them that the daemon had and the engine took. Never more than `query_tokens`.
    hit_tokens,
    /// Lookups sent.
    lookups,
    /// Times the engine was told to ask again.
    lookups_later,
    /// Chunks asked for and not there.
    missed_chunks,
    /// Requests that waited for chunks which the daemon was fetching.
    fetch_waits,
    /// How long, all together.
    fetch_wait_ms,
    /// Waits that ended before all had come that they were for.
    late_fetch_waits,
    /// Speed of the engine's prompts in tokens per second, as measured by now; 0 before.
    prefill_tokens_per_second,
    /// Loads (one for each request and plan) that came in whole.
    loads,
    /// Loads of which at least one block failed.
    loads_failed,
    /// Time that loads took since a thread began with them, all together.
    load_us,
    /// Parts read, checked and copied to the engine under a lease that held.
    loaded_parts,
    /// Their bytes.
    loaded_bytes,
    /// Blocks reported to the engine for recomputing.
    failed_blocks,
    /// Time that batches of stores took since a thread began with them, all together.
    store_us,
    /// Parts the daemon took.
    stored_parts,
    /// Their bytes.
    stored_bytes,
    /// Chunks that became ready with a part of ours.
    stored_chunks,
    /// Parts the daemon had, or was getting from somebody else: not sent.
    already_stored,
    /// Sessions opened.
    sessions,
    /// Sessions lost after they were up.
    sessions_lost,
    /// Times the breaker opened.
    breaker_opened,
    /// Steps that took longer than their budget: `step_budget` of a scheduler, `gather_budget` of a worker.
    slow_steps,
    /// The longest step so far in microseconds: all calls of a scheduler, or one gather of a worker.
    longest_step_us,
    /// Spans of traces that a collector has taken.
    exported_spans,
    /// Spans that no collector took, or that were too many at once.
    lost_spans,
    /// Plans that could not be read.
    bad_plans,
    /// Panics caught. The first one switches the side off.
    panics,
}

/// One number; most of them count something and only grow.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Since then, in microseconds.
    pub(crate) fn add_time(&self, begin: Instant) {
        self.add(u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    pub(crate) fn one(&self) {
        self.add(1);
    }
    /// For the largest of something.
    pub(crate) fn at_least(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }
    /// For a measurement.
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct ByReason(Vec<AtomicU64>);

impl Default for ByReason {
    fn default() -> Self {
        Self(Reason::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }
}

impl ByReason {
    fn add(&self, reason: Reason, n: u64) {
        if let Some(at) = Reason::ALL.iter().position(|&r| r == reason) {
            self.0[at].fetch_add(n, Ordering::Relaxed);
        }
    }
    fn read(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (reason, count) in Reason::ALL.iter().zip(&self.0) {
            put(&mut all, reason.label(), count.load(Ordering::Relaxed));
        }
        all
    }
}

/// Zeros are left out: most reasons never happen.
fn put(into: &mut BTreeMap<String, u64>, label: &str, count: u64) {
    if count > 0 {
        *into.entry(label.to_owned()).or_default() += count;
    }
}

impl Tally {
    /// A step kept the engine waiting for so long.
    pub(crate) fn step_took(&self, took: Duration, budget: Duration) {
        self.longest_step_us.at_least(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        if took > budget {
            self.slow_steps.one();
        }
    }
    /// `chunks` chunks of a load failed.
    pub(crate) fn load_failed(&self, reason: Reason, chunks: u64) {
        self.load_failures.add(reason, chunks);
    }
    /// Chunks were asked for and not there: these reasons, and so many that somebody was storing.
    pub(crate) fn missed(&self, reasons: &[Reason], pending: u64) {
        reasons.iter().for_each(|&reason| self.misses.add(reason, 1));
        self.misses_pending.add(pending);
        self.missed_chunks.add(reasons.len() as u64 + pending);
    }
    /// A lookup got no answer.
    pub(crate) fn lookup_failed(&self, reason: Reason) {
        self.lookup_failures.add(reason, 1);
    }
    /// A part was not stored.
    pub(crate) fn store_skipped(&self, skip: Skip) {
        match Skip::LOCAL.iter().position(|&s| s == skip) {
            Some(at) => _ = self.stores_skipped[at].fetch_add(1, Ordering::Relaxed),
            None => {
                if let Skip::Refused(reason) = skip {
                    self.stores_refused.add(reason, 1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_json_and_zeros_are_left_out() {
        let tally = Tally::default();
        tally.loads.add(3);
        tally.load_failed(Reason::BadDigest, 2);
        tally.store_skipped(Skip::StagingFull);
        tally.missed(&[Reason::Evicted, Reason::NeverStored, Reason::Evicted], 4);
        tally.store_skipped(Skip::Refused(Reason::NoSpace));
        let counters = tally.read();
        assert_eq!(counters.loads, 3);
        assert_eq!(counters.load_failures, BTreeMap::from([("bad_digest".to_owned(), 2)]));
        assert_eq!(counters.stores_skipped.len(), 2);
        let misses = [("evicted", 2), ("never_stored", 1), ("pending", 4)];
        assert_eq!(counters.misses, BTreeMap::from(misses.map(|(reason, n)| (reason.to_owned(), n))));
        assert_eq!(counters.missed_chunks, 7);
        let json = serde_json::to_string(&counters).unwrap();
        assert_eq!(serde_json::from_str::<Counters>(&json).unwrap(), counters);
    }

    #[test]
    fn no_local_reason_has_the_name_of_a_daemons_reason() {
        for local in Skip::LOCAL {
            assert!(Reason::ALL.iter().all(|r| r.label() != local.label()), "{local:?}");
        }
    }
}
