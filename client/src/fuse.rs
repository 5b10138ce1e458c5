//! The outermost edge towards the engine: a panic of ours ends here (rule 10).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::counters::Tally;

/// Blows at the first panic and stays blown: state that a panic ran through is not trusted again.
#[derive(Debug)]
pub(crate) struct Fuse {
    blown: AtomicBool,
    tally: Arc<Tally>,
}

impl Fuse {
    pub(crate) fn new(tally: Arc<Tally>) -> Self {
        Self { blown: AtomicBool::new(false), tally }
    }

    pub(crate) fn is_blown(&self) -> bool {
        self.blown.load(Ordering::Acquire)
    }

    /// Blows it for a reason other than a panic.
    pub(crate) fn blow(&self, why: &str) {
        if !self.blown.swap(true, Ordering::AcqRel) {
            tracing::error!(why, "Tender's client is off from now on, the engine goes on");
        }
    }

    /// Runs `body`, or `otherwise` if the fuse is blown or blows now.
    pub(crate) fn run<T>(
        &self,
        what: &'static str,
        otherwise: impl FnOnce() -> T,
        body: impl FnOnce() -> T,
    ) -> T {
        let done = if self.is_blown() { None } else { self.attempt(what, body) };
        done.unwrap_or_else(otherwise)
    }

    /// Runs `body` even if the fuse is blown, for what must be done then too; it still blows at a panic.
    pub(crate) fn attempt<T>(&self, what: &'static str, body: impl FnOnce() -> T) -> Option<T> {
        // Nothing that `body` left half-done is trusted again: the fuse is blown.
        let done = catch_unwind(AssertUnwindSafe(body)).ok();
        if done.is_none() {
            self.tally.panics.one();
            if !self.blown.swap(true, Ordering::AcqRel) {
                tracing::error!(what, "a bug in Tender's client: it is off from now on, the engine goes on");
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_here_and_is_counted() {
        let tally = Arc::new(Tally::default());
        let fuse = Fuse::new(Arc::clone(&tally));
        assert_eq!(fuse.run("test", || 0, || 1), 1);
        assert_eq!(fuse.run("test", || 2, || panic!("on purpose")), 2);
        assert!(fuse.is_blown());
        assert_eq!(fuse.run("test", || 3, || 1), 3);
        assert_eq!(fuse.attempt("test", || 4), Some(4));
        assert_eq!(tally.panics.get(), 1);
    }
}
