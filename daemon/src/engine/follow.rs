//! What lookups find, for somebody who is told of every change: a snapshot, then the index's journal.
//!
//! The two overlap. Between two pages of the snapshot come the changes since, so a follower that is a little slow does
//! not fall behind while it is told of a large arena; what a page shows may be told again by a change that was made
//! before the page was read. It ends well: for each chunk the last word is that of its last change, or that of the
//! snapshot if it did not change.

use std::sync::Arc;

use tender_proto::{ChunkId, Coverage, Reason, Refusal};
use tokio::sync::watch;

use super::{Core, Engine};
use crate::index::Walk;
use crate::index::journal::Event;
use crate::namespace::Named;
use crate::share::Place;

/// Each costs a wake-up for every change.
pub(crate) const MAX_FOLLOWERS: usize = 64;

/// Where somebody who followed before wants to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Position {
    /// From a snapshot.
    Start,
    /// With the change of this number.
    At(u64),
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum News {
    /// Forget everything: a snapshot begins.
    Begin {
        /// Changes were lost: the follower fell behind, or wanted to go on where there is nothing.
        lost: bool,
    },
    /// Chunks that lookups find.
    Snapshot(Vec<(Arc<Named>, ChunkId, Coverage)>),
    /// Changes from this number on.
    Changes(u64, Vec<Event>),
    /// From here on the follower has exactly what lookups found before [`Follower::next_sequence`].
    Complete,
    /// None so far.
    Nothing,
}

/// Somebody who follows. What it does not take in time it loses.
#[derive(Debug)]
pub(crate) struct Follower {
    core: Arc<Core>,
    wakes: watch::Receiver<u64>,
    at: u64,
    state: State,
    /// Pages and changes take turns.
    page_is_next: bool,
    _place: Option<Place>,
}

#[derive(Debug)]
enum State {
    /// Must be told to begin.
    Fresh { lost: bool },
    /// The snapshot is under way.
    Touring(Walk),
    /// It is done, and was when this change was the next one.
    Catching(u64),
    /// Told so.
    Complete,
}

impl Engine {
    /// Follows from here on, for somebody of this domain. Refused: too many do, or too many of the domain.
    pub(crate) fn follow(&self, from: Position, domain: &Arc<str>) -> Result<Follower, Refusal> {
        let core = &self.core;
        core.counted(|| {
            let journal = core.index.journal();
            if journal.followers() >= MAX_FOLLOWERS {
                return Err(Refusal::new(
                    Reason::TooMany,
                    format!("one watcher more than {MAX_FOLLOWERS}"),
                    "end another one, or let one watcher tell many",
                ));
            }
            let share = core.shares.of(domain);
            let place = share.map(|share| share.watch()).transpose().map_err(|reason| {
                let advice = "end another one, or let the policy give the tenant more";
                Refusal::new(reason, "one watcher more than the tenant's share", advice)
            })?;
            let wakes = journal.wakes();
            let (at, state) = match from {
                Position::Start => (journal.next(), State::Fresh { lost: false }),
                Position::At(at) => (at, State::Catching(0)),
            };
            Ok(Follower { core: Arc::clone(core), wakes, at, state, page_is_next: false, _place: place })
        })
    }

    /// Falls behind after this many changes.
    #[cfg(test)]
    pub(crate) fn keep_changes(&self, kept: usize) {
        self.core.index.journal().keep(kept);
    }
    /// The same when so many bytes of descriptors were in them.
    #[cfg(test)]
    pub(crate) fn keep_descriptors(&self, bytes: usize) {
        self.core.index.journal().keep_descriptors(bytes);
    }
    /// Namespaces that the kept changes hold on to.
    #[cfg(test)]
    pub(crate) fn kept_namespaces(&self) -> usize {
        self.core.index.journal().namespaces()
    }
}

impl Follower {
    /// The number of the change that comes next.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.at
    }

    /// From a snapshot again, told as not lost.
    pub(crate) fn restart(&mut self) {
        self.state = State::Fresh { lost: false };
    }

    /// What comes next, with at most so many changes. Takes time by that, or by a page of the index.
    pub(crate) fn take(&mut self, most: usize) -> News {
        let index = &self.core.index;
        if let State::Fresh { lost } = self.state {
            // Before the first page is read: what changes from then on is told.
            self.at = index.journal().next();
            (self.state, self.page_is_next) = (State::Touring(Walk::default()), true);
            return News::Begin { lost };
        }
        if let (State::Touring(walk), true) = (&mut self.state, self.page_is_next) {
            self.page_is_next = false;
            if let Some(page) = index.next_page(walk) {
                return News::Snapshot(page);
            }
            self.state = State::Catching(index.journal().next());
        }
        self.page_is_next = true;
        let Some(changes) = index.journal().since(self.at, most) else {
            self.state = State::Fresh { lost: true };
            return self.take(most);
        };
        if !changes.is_empty() {
            let first = self.at;
            self.at += changes.len() as u64;
            return News::Changes(first, changes);
        }
        match self.state {
            State::Touring(_) => self.take(most),
            State::Catching(done) if self.at >= done => {
                self.state = State::Complete;
                News::Complete
            }
            _ => News::Nothing,
        }
    }

    /// Returns when there may be something.
    pub(crate) async fn changed(&mut self) {
        // The engine is alive as long as this is, so the sender is.
        let at = self.at;
        _ = self.wakes.wait_for(|&head| head > at).await;
    }
}
