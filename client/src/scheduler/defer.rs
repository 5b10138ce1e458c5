//! A request that waits for a fetch: the lookup is asked again beside the step until what was fetched is there, or until
//! waiting does not pay any more (`wait`).

use std::time::Instant;

use tender_proto::{ChunkId, Coverage};

use super::lookup::{Answered, Lookup};
use super::wait::{Prospect, Wait};
use super::{Planned, Request, SchedulerSide};
use crate::client::Client;
use crate::plan::ChunkView;

/// What the engine asked about.
pub(super) struct Asked<'a> {
    pub(super) id: &'a str,
    pub(super) keys: &'a [ChunkId],
    pub(super) num_tokens: u64,
    pub(super) computed: u64,
}

impl SchedulerSide {
    /// Whether the request, which has a settled answer with this hit, waits for more. If so, its next question is on its
    /// way when it is time for it.
    pub(super) fn waits_for_fetch(
        &self,
        planned: &Planned,
        request: &mut Request,
        asked: &Asked<'_>,
        hit: u64,
        tokens_per_second: f64,
    ) -> bool {
        let Request { lookup, again, wait, trace, .. } = request;
        let Lookup::Answered(answered) = lookup else { return false };
        let over = wait.is_some_and(|wait| wait.is_over());
        if over || answered.due.iter().all(Option::is_none) {
            request.end_wait(&self.client);
            return false;
        }
        let now = Instant::now();
        let wait = wait.get_or_insert_with(|| Wait::new(now, hit, self.client.config().fetch_wait));
        // What is overdue is expected at any moment.
        let last_by = |until| answered.due.iter().flatten().copied().filter(|due| *due <= until).max();
        let hit_by = |until| {
            let views = views_by(planned, asked.keys, answered, until);
            planned.planner.hit_tokens_if(asked.id, &views, asked.num_tokens, asked.computed)
        };
        let fetch = last_by(wait.until()).unwrap_or(now).saturating_duration_since(now);
        let prospect = Prospect { hit, hit_then: hit_by(wait.until()), fetch };
        let begins = !wait.has_begun();
        if wait.goes_on(now, prospect, tokens_per_second) {
            let due = wait.asks_again(now, fetch);
            if begins {
                self.client.tally().fetch_waits.one();
            } else if due && matches!(again, Lookup::None) {
                *again = self.ask(planned, asked.keys.to_vec(), asked.id, trace);
            }
            return true;
        }
        let whenever = answered.due.iter().flatten().copied().max().unwrap_or(now);
        if !begins && hit_by(whenever) > hit {
            self.client.tally().late_fetch_waits.one();
        }
        request.end_wait(&self.client);
        false
    }
}

impl Request {
    /// Whether it waits for a fetch and there is nothing to do about that now.
    pub(super) fn sleeps(&mut self, client: &Client, now: Instant) -> bool {
        let Some(wait) = self.wait.filter(|wait| !wait.is_over() && now < wait.until()) else { return false };
        match self.again {
            Lookup::None => now < wait.again_at(),
            _ => self.again.settle(client, now).is_none(),
        }
    }

    /// Goes on with the newest answer; the leases of the one before end. An asking that failed ends the wait: what was
    /// there before is used.
    pub(super) fn take_newer(&mut self, client: &Client, keys: usize) {
        let Some(newer) = self.again.settle(client, Instant::now()) else { return };
        let fits = newer.views.len() == keys;
        let newer = std::mem::take(&mut self.again);
        match (&mut self.wait, fits) {
            (_, true) => self.lookup = newer,
            (Some(wait), false) => wait.end(),
            (None, false) => {}
        }
    }

    /// Counts a wait that was begun; what is asked again is of no use any more.
    pub(super) fn end_wait(&mut self, client: &Client) {
        self.again = Lookup::None;
        if let Some(waited) = self.wait.as_mut().and_then(|wait| wait.close(Instant::now())) {
            client.tally().fetch_wait_ms.add(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
        }
    }
}

/// The answers as they will be when those have come that are due by then. How much of a chunk comes is not known: a
/// whole one is the rule.
fn views_by(planned: &Planned, keys: &[ChunkId], answered: &Answered, until: Instant) -> Vec<ChunkView> {
    let one = |((key, view), due): ((&ChunkId, &ChunkView), &Option<Instant>)| match due {
        Some(due) if *due <= until => match planned.descriptor.group_of(*key) {
            Ok(group) => ChunkView::Ready(Coverage::full(group.blocks_per_chunk)),
            Err(_) => *view,
        },
        _ => *view,
    };
    keys.iter().zip(&answered.views).zip(&answered.due).map(one).collect()
}
