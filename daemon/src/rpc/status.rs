//! The way of a refusal to the caller: counted once, in the log now and then, and as a gRPC status with typed
//! details. Which code a reason has is the contract's to say ([`Refusal::to_status`]).

use std::time::Instant;

use tender_proto::{Reason, Refusal};
use tonic::Status;

use super::Shared;
use crate::seldom::Seldom;

/// A status travels in a header, and headers have limits that what a client sent must not exceed.
const MAX_WORDS_BYTES: usize = 512;

/// When each reason was last written about.
pub(crate) type RefusalLog = Seldom<Reason>;

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
    fn long_words_are_cut_between_letters() {
        let cut = shorten("\u{20ac}".repeat(1000));
        assert!(cut.len() <= MAX_WORDS_BYTES + 3 && cut.ends_with("\u{20ac}..."));
        assert_eq!(shorten("short".into()), "short");
    }
}
