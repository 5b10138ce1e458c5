//! Locks of what the models look at (`models`). With the feature `loom` they are loom's, which runs a model through every
//! order in which its threads can meet; nothing but the models works then.

#[cfg(not(feature = "loom"))]
pub(crate) use parking_lot::{Condvar, Mutex};

#[cfg(feature = "loom")]
pub(crate) use followed::{Condvar, Mutex};

#[cfg(feature = "loom")]
mod followed {
    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    const NO_POISON: &str = "no model goes on after a panic";

    /// A lock as parking_lot has it, without poison.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    /// Held until it is dropped; empty while its holder waits for a [`Condvar`].
    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect(NO_POISON)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("it is held")
        }
    }
    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("it is held")
        }
    }

    #[derive(Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    /// In a model no time passes: a wait that nobody ends is a deadlock, which loom reports.
    pub(crate) struct NeverTimedOut;

    impl NeverTimedOut {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }
        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(held) = guard.0.take() {
                guard.0 = Some(self.0.wait(held).expect(NO_POISON));
            }
        }
        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> NeverTimedOut {
            self.wait(guard);
            NeverTimedOut
        }
        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

/// A mistake that a model must notice. Only builds for models have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Planted {
    /// A flush waits for an empty queue only.
    HandsNotLookedAt,
    /// Whoever closes a queue wakes nobody.
    CloseWakesNobody,
    /// A trial goes out without being noted.
    TrialNotNoted,
}

#[cfg(feature = "loom")]
mod planting {
    use std::cell::Cell;

    use super::Planted;

    std::thread_local! {
        // loom runs all threads of a model on the thread that began it.
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    /// Whether this mistake is made.
    pub(crate) fn planted(mistake: Planted) -> bool {
        PLANTED.get() == Some(mistake)
    }
    /// Makes one mistake in the models that this thread runs from now on, or none.
    #[cfg(test)]
    pub(crate) fn plant(mistake: Option<Planted>) {
        PLANTED.set(mistake);
    }
}

#[cfg(all(test, feature = "loom"))]
pub(crate) use planting::plant;
#[cfg(feature = "loom")]
pub(crate) use planting::planted;

/// Whether this mistake is made: never.
#[cfg(not(feature = "loom"))]
pub(crate) const fn planted(_: Planted) -> bool {
    false
}
