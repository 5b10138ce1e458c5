//! The way of a refusal to the caller: counted once, in the log now and then, and as a gRPC status with typed
//! details. Which code a reason has is the contract's to say ([`Refusal::to_status`]).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tender_proto::{Reason, Refusal};
use tonic::Status;

use super::Shared;

/// One line in the log for each reason in this time: a client that asks a thousand times a second must not hide
/// what else happens.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// A status travels in a header, and headers have limits that what a client sent must not exceed.
const MAX_WORDS_BYTES: usize = 512;

/// What was said when, and how often it was not said since.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog(Mutex<BTreeMap<Reason, (Instant, u64)>>);

impl RefusalLog {
    /// How many of this reason were left out since the last line, if it is time for one.
    fn due(&self, reason: Reason, now: Instant) -> Option<u64> {
        let mut said = self.0.lock();
        match said.get_mut(&reason) {
            Some((last, left_out)) if now.duration_since(*last) < LOG_EVERY => {
                *left_out += 1;
                None
            }
            _ => Some(said.insert(reason, (now, 0)).map_or(0, |(_, left_out)| left_out)),
        }
    }
}

impl Shared {
    /// A refusal that the engine gave, and has counted.
    pub(super) fn refuse(&self, call: &'static str, refusal: Refusal) -> Status {
        let reason = refusal.reason;
        self.metrics.refused(call, &refusal);
        if let Some(left_out) = self.refusals.due(reason, Instant::now()) {
            tracing::warn!(call, %reason, left_out, "{refusal}");
        }
        Refusal::new(reason, shorten(refusal.subject), shorten(refusal.advice)).to_status()
    }
    /// A refusal of what did not get to the engine.
    pub(super) fn refuse_here(&self, call: &'static str, refusal: Refusal) -> Status {
        self.engine.count_refusal(refusal.reason);
        self.refuse(call, refusal)
    }
}

fn shorten(mut text: String) -> String {
    if text.len() > MAX_WORDS_BYTES {
        let end = (0..=MAX_WORDS_BYTES).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_reason_is_one_line_and_its_number() {
        let (log, start) = (RefusalLog::default(), Instant::now());
        assert_eq!(log.due(Reason::NoSpace, start), Some(0));
        for _ in 0..1000 {
            assert_eq!(log.due(Reason::NoSpace, start), None);
        }
        assert_eq!(log.due(Reason::Malformed, start), Some(0), "other reasons are not held back");
        assert_eq!(log.due(Reason::NoSpace, start + LOG_EVERY), Some(1000));
        assert_eq!(log.due(Reason::NoSpace, start + LOG_EVERY), None);
    }

    #[test]
    fn long_words_are_cut_between_letters() {
        let cut = shorten("\u{20ac}".repeat(1000));
        assert!(cut.len() <= MAX_WORDS_BYTES + 3 && cut.ends_with("\u{20ac}..."));
        assert_eq!(shorten("short".into()), "short");
    }
}
