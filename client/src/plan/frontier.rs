//! The written frontier (rule 1): how many of a request's first token slots hold what a forward pass wrote for
//! tokens that are known, and what no later pass will rewrite.

use tender_proto::mutant::{Mutant, active};

use super::config::PlanConfig;
use super::step::Finish;

/// After a step. Drafts and placeholders of asynchronous scheduling have slots, but are not among the `known`.
pub(super) fn running(computed: u64, scheduled: u64, known: u64) -> u64 {
    if active(Mutant::KnownCountsAsWritten) {
        return known;
    }
    computed.saturating_add(scheduled).min(known)
}

/// At the end. The last sampled token was never an input, so its slot is empty, though its id is known.
pub(super) fn ended(end: &Finish, known: u64) -> u64 {
    let written = if end.aborted {
        end.computed_tokens
    } else {
        if active(Mutant::LastSampledSlot) {
            return end.num_tokens.min(known);
        }
        end.prompt_tokens.max(end.num_tokens.saturating_sub(1)).min(end.computed_tokens)
    };
    written.min(known)
}

/// What the user lets be stored of it.
pub(super) fn capped(frontier: u64, prompt_tokens: u64, config: &PlanConfig) -> u64 {
    let prompt = if config.prompt_only { prompt_tokens } else { u64::MAX };
    frontier.min(prompt).min(config.max_store_tokens.unwrap_or(u64::MAX))
}
