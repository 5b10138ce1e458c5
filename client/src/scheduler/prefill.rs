//! How fast the engine computes prompts, measured while it does.
//!
//! A step's tokens divided by the time until the next step, a moving average in which a new sample has the weight
//! [`WEIGHT`]. A sample is taken where the step had enough prompt tokens to be ruled by them, and only if one of its
//! requests goes on in the next step: an engine that had nothing to do in between was not slow.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::plan::StepInput;

/// Until something was measured: more than most engines do, so that a request rather computes than waits in vain.
const ASSUMED_TOKENS_PER_SECOND: f64 = 20_000.0;
const WEIGHT: f64 = 0.2;
/// Tokens of one request that are no decode step, drafts included.
const PREFILL_TOKENS: u64 = 32;
/// Prompt tokens that a step must have.
const ENOUGH_TOKENS: u64 = 128;
/// A step that takes longer was stopped by something else.
const LONGEST_STEP: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Prefill {
    tokens_per_second: Option<f64>,
    last: Option<Step>,
}

#[derive(Debug)]
struct Step {
    at: Instant,
    tokens: u64,
    requests: HashSet<String>,
}

impl Prefill {
    /// A step was scheduled.
    pub(super) fn step(&mut self, now: Instant, input: &StepInput) {
        if let Some(last) = self.last.take()
            && input.requests.iter().any(|request| last.requests.contains(&request.id))
        {
            self.learn(last.tokens, now.saturating_duration_since(last.at));
        }
        let prefills = || input.requests.iter().filter(|request| request.scheduled_tokens >= PREFILL_TOKENS);
        let tokens = prefills().map(|request| request.scheduled_tokens).sum();
        if tokens >= ENOUGH_TOKENS {
            let requests = prefills().map(|request| request.id.clone()).collect();
            self.last = Some(Step { at: now, tokens, requests });
        }
    }

    fn learn(&mut self, tokens: u64, took: Duration) {
        if took.is_zero() || took > LONGEST_STEP {
            return;
        }
        let sample = f64::from(u32::try_from(tokens).unwrap_or(u32::MAX)) / took.as_secs_f64();
        let known = self.tokens_per_second.get_or_insert(sample);
        *known += WEIGHT * (sample - *known);
    }

    /// As measured, or as assumed.
    pub(super) fn tokens_per_second(&self) -> f64 {
        self.tokens_per_second.unwrap_or(ASSUMED_TOKENS_PER_SECOND).max(1.0)
    }

    /// As measured, whole tokens; 0 until then.
    pub(super) fn measured(&self) -> u64 {
        let rate = self.tokens_per_second.unwrap_or(0.0);
        Duration::try_from_secs_f64(rate).map_or(u64::MAX, |whole| whole.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{BlockUpdate, ScheduledRequest};

    fn input(requests: &[(&str, u64)]) -> StepInput {
        let request = |&(id, scheduled_tokens): &(&str, u64)| ScheduledRequest {
            id: id.into(),
            computed_tokens: 0,
            scheduled_tokens,
            new_tokens: Vec::new(),
            blocks: BlockUpdate::Append(Vec::new()),
            states: Vec::new(),
        };
        StepInput { requests: requests.iter().map(request).collect(), preempted: Vec::new() }
    }

    fn after(steps: &[(u64, &[(&str, u64)])]) -> u64 {
        let (mut prefill, mut now) = (Prefill::default(), Instant::now());
        for &(pause_ms, requests) in steps {
            now += Duration::from_millis(pause_ms);
            prefill.step(now, &input(requests));
        }
        prefill.measured()
    }

    #[test]
    fn prompt_tokens_of_a_step_over_the_time_to_the_next() {
        assert_eq!(after(&[(0, &[("a", 2000)]), (100, &[("a", 1)])]), 20_000);
        assert_eq!(
            after(&[(0, &[("a", 2000), ("b", 1)]), (100, &[("a", 2000)]), (100, &[("a", 1)])]),
            20_000
        );
        assert_eq!(Prefill::default().measured(), 0);
        assert!(Prefill::default().tokens_per_second() > 1000.0);
    }

    #[test]
    fn neither_decoding_nor_an_idle_engine_counts() {
        assert_eq!(after(&[(0, &[("a", 1), ("b", 5)]), (100, &[("a", 1)])]), 0, "decode steps");
        assert_eq!(after(&[(0, &[("a", 2000)]), (9000, &[("b", 2000)])]), 0, "nobody had anything to do");
        assert_eq!(after(&[(0, &[("a", 100)]), (100, &[("a", 1)])]), 0, "too few");
        assert_eq!(after(&[(0, &[("a", 2000)]), (0, &[("a", 1)])]), 0, "no time at all");
    }

    #[test]
    fn it_follows_an_engine_that_gets_slower() {
        let slow: Vec<(u64, &[(&str, u64)])> = std::iter::repeat_n((200, &[("a", 2000)][..]), 20).collect();
        let rate = after(&slow);
        assert!((9_900..=10_100).contains(&rate), "{rate}");
    }
}
