//! What loom's models of the daemon and of the client share: mistakes that a model must notice, and locks that loom follows.
//! Only builds with the feature `loom` have either; in all others [`planted`] is a constant `false`.

#[cfg(feature = "loom")]
mod locks;
#[cfg(feature = "loom")]
pub use locks::{Condvar, Mutex, MutexGuard, NeverTimedOut, RwLock};

/// One mistake. The doc says what goes wrong where it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A budget is read and written in two steps.
    BudgetInTwoSteps,
    /// Whoever evicts does not look again at what it has chosen.
    VictimNotLookedAtAgain,
    /// A reset first removes what is stored and then begins the epoch.
    SweptBeforeTheEpoch,
    /// A lease is granted to a session that has ended.
    SessionNotLookedAt,
    /// A part is published for whoever holds its place by now.
    HolderNotLookedAt,
    /// A lease that nobody knows any more was good.
    UnknownIsLive,
    /// Whoever writes into the arena does not look whether it was given away.
    RightNotAsked,
    /// A record stays when its bytes are given away.
    RecordNotCleared,
    /// A flush waits for an empty queue only.
    HandsNotLookedAt,
    /// Whoever closes a queue wakes nobody.
    CloseWakesNobody,
    /// A trial goes out without being noted.
    TrialNotNoted,
}

#[cfg(feature = "loom")]
mod switch {
    use std::cell::Cell;

    use super::Planted;

    std::thread_local! {
        // loom runs all threads of a model on the thread that began it.
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    /// Whether this mistake is made.
    pub fn planted(mistake: Planted) -> bool {
        PLANTED.get() == Some(mistake)
    }
    /// Makes one mistake in the models that this thread runs from now on, or none.
    pub fn plant(mistake: Option<Planted>) {
        PLANTED.set(mistake);
    }
}

#[cfg(feature = "loom")]
pub use switch::{plant, planted};

/// Whether this mistake is made: never.
#[cfg(not(feature = "loom"))]
pub const fn planted(_: Planted) -> bool {
    false
}
