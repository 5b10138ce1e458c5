//! The same on paper, for the Zipf workload. Che's approximation: a chunk stays in an LRU for one characteristic time
//! after each use, the same for all chunks; it is the time in which as many different chunks are used as fit.

use super::{Fleet, ZipfWorkload};

/// What to expect of a fleet that has been running for long.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Expected {
    /// Seconds that a chunk stays in an arena without being used.
    pub stay_s: f64,
    /// Shares of the chunks that requests need.
    pub local: f64,
    /// From another daemon.
    pub peer: f64,
    /// Computed.
    pub none: f64,
    /// Questions to the directory each second.
    pub lookups_per_s: f64,
    /// Entries that become ready each second, and, since arenas are full, as many that go.
    pub published_per_s: f64,
    /// Entries said again each second.
    pub refreshed_per_s: f64,
    /// Chunks that travel each second.
    pub fetches_per_s: f64,
    /// Entries in the directory.
    pub entries: f64,
}

/// Requests go to daemons by chance; serving others does not count as a use.
pub fn expect(fleet: &Fleet, work: &ZipfWorkload) -> Expected {
    let popularity = work.popularity();
    let (n, rate) = (fleet.daemons as f64, work.requests_per_second);
    let (prefix, own) = (work.prefix_chunks as f64, work.own_chunks as f64);
    // Chunks in one arena after it was used for so long.
    let filled = |stay_s: f64| {
        let shared: f64 = popularity.iter().map(|p| prefix * used_within(p * rate / n, stay_s)).sum();
        shared + own * rate / n * stay_s
    };
    let stay_s = solve(filled, fleet.arena_chunks as f64);
    let local: f64 = popularity.iter().map(|p| p * used_within(p * rate / n, stay_s)).sum();
    // Somebody has used it within that time.
    let anywhere: f64 = popularity.iter().map(|p| p * used_within(p * rate, stay_s)).sum();
    let all = prefix + own;
    let missed = rate * (prefix * (1.0 - local) + own);
    let holders = |p: f64| (n * used_within(p * rate / n, stay_s)).min(fleet.max_holders as f64);
    let shared_entries: f64 = popularity.iter().map(|&p| prefix * holders(p)).sum();
    Expected {
        stay_s,
        local: prefix * local / all,
        peer: prefix * (anywhere - local) / all,
        none: (prefix * (1.0 - anywhere) + own) / all,
        // A request with chunks of its own always lacks some.
        lookups_per_s: if work.own_chunks > 0 { rate } else { rate * (1.0 - local) },
        published_per_s: missed,
        refreshed_per_s: n * fleet.arena_chunks as f64 * f64::from(fleet.rounds_per_ttl) / fleet.ttl_s,
        fetches_per_s: rate * prefix * (anywhere - local),
        entries: shared_entries + own * rate * stay_s,
    }
}

/// The chance that something which happens so often each second happened within this time.
fn used_within(rate: f64, time_s: f64) -> f64 {
    -(-rate * time_s).exp_m1()
}

/// Where a growing function reaches a value.
fn solve(growing: impl Fn(f64) -> f64, value: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while growing(high) < value && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if growing(middle) < value { low = middle } else { high = middle }
    }
    high
}
