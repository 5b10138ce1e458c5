//! The last hour in samples: what grows is kept as it was counted, and differences are made when somebody looks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tender_proto::Reason;

use super::Sources;
use crate::engine::Stats;

/// How often.
pub(super) const EVERY: Duration = Duration::from_secs(10);
/// An hour.
const MOST: usize = 360;

/// One moment's counts.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Sample {
    /// Seconds since 1970, for a person's clock.
    pub(super) unix_s: u64,
    pub(super) lookups: u64,
    pub(super) hits: u64,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) evicted_chunks: u64,
    pub(super) arena_used_bytes: u64,
    pub(super) refusals: BTreeMap<Reason, u64>,
}

/// What happened from one sample to the next.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Step {
    pub(super) unix_s: u64,
    pub(super) seconds: u64,
    pub(super) lookups: u64,
    pub(super) hits: u64,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) evicted_chunks: u64,
    /// At its end.
    pub(super) arena_used_bytes: u64,
}

/// The samples, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History(VecDeque<Sample>);

impl Sample {
    pub(super) fn of(stats: &Stats, (received_bytes, sent_bytes): (u64, u64)) -> Self {
        let sum = |value: fn(&crate::engine::NamespaceStats) -> u64| stats.namespaces.iter().map(value).sum();
        Self {
            unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            lookups: sum(|n| n.lookups),
            hits: sum(|n| n.hits),
            received_bytes,
            sent_bytes,
            evicted_chunks: sum(|n| n.evicted_chunks),
            arena_used_bytes: stats.arena_used_bytes,
            refusals: stats.refusals.iter().copied().collect(),
        }
    }
}

impl Step {
    pub(super) fn between(a: &Sample, b: &Sample) -> Self {
        let grown = |value: fn(&Sample) -> u64| value(b).saturating_sub(value(a));
        let lookups = grown(|s| s.lookups);
        Self {
            unix_s: b.unix_s,
            seconds: b.unix_s.saturating_sub(a.unix_s).max(1),
            lookups,
            hits: grown(|s| s.hits).min(lookups),
            received_bytes: grown(|s| s.received_bytes),
            sent_bytes: grown(|s| s.sent_bytes),
            evicted_chunks: grown(|s| s.evicted_chunks),
            arena_used_bytes: b.arena_used_bytes,
        }
    }
}

impl History {
    /// The last sample.
    pub(super) fn newest(&self) -> Option<&Sample> {
        self.0.back()
    }
    fn push(&mut self, sample: Sample) {
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// From each sample to the next. What was counted of a namespace goes with it, so a sum may fall: that is no step back.
    pub(super) fn steps(&self) -> Vec<Step> {
        self.0.iter().zip(self.0.iter().skip(1)).map(|(a, b)| Step::between(a, b)).collect()
    }

    /// How often a reason was given since the oldest sample, and when that was last seen to grow.
    pub(super) fn refused(&self, reason: Reason, now: u64) -> (u64, Option<u64>) {
        let count = |sample: &Sample| sample.refusals.get(&reason).copied().unwrap_or(0);
        let oldest = self.0.front().map_or(0, count);
        let later = self.0.iter().skip(1);
        let grew = self.0.iter().zip(later).rev().find(|(a, b)| count(b) > count(a));
        (now.saturating_sub(oldest), grew.map(|(_, b)| b.unix_s))
    }
}

/// Takes samples until it is dropped.
pub(super) async fn sample(sources: Arc<Sources>) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if let Some(engine) = sources.engine.get() {
            let sample = Sample::of(&engine.stats(), sources.metrics.moved_bytes());
            sources.history.lock().push(sample);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_s: u64, lookups: u64, hits: u64, throttled: u64) -> Sample {
        let refusals = [(Reason::Throttled, throttled)].into();
        Sample { unix_s, lookups, hits, refusals, ..Sample::default() }
    }

    #[test]
    fn a_step_is_what_happened_between_two_samples_and_never_less_than_nothing() {
        let mut history = History::default();
        assert_eq!(history.steps(), []);
        for sample in [at(100, 10, 5, 0), at(110, 30, 20, 2), at(120, 4, 4, 2)] {
            history.push(sample);
        }
        let steps: Vec<_> =
            history.steps().iter().map(|s| (s.unix_s, s.seconds, s.lookups, s.hits)).collect();
        assert_eq!(steps, [(110, 10, 20, 15), (120, 10, 0, 0)]);
        assert_eq!(history.refused(Reason::Throttled, 5), (5, Some(110)));
        assert_eq!(history.refused(Reason::NoSpace, 0), (0, None));
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut history = History::default();
        (0..1000).for_each(|n| history.push(at(n * 10, n, 0, n)));
        assert_eq!(history.steps().len(), MOST - 1);
        assert_eq!(history.steps().last().unwrap().unix_s, 9990);
        assert_eq!(history.refused(Reason::Throttled, 999), (359, Some(9990)));
    }
}
