//! Locks, atomics and fences of everything that the models look at (`models`). With the feature `loom` they are loom's,
//! which runs a model through every order in which its threads can meet; nothing but the models works then.

#[cfg(not(feature = "loom"))]
mod real {
    pub(crate) use std::sync::atomic;

    pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
}

#[cfg(not(feature = "loom"))]
pub(crate) use real::{Mutex, MutexGuard, RwLock, RwLockReadGuard, atomic};

#[cfg(feature = "loom")]
mod followed {
    pub(crate) use loom::sync::atomic;
    pub(crate) use loom::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    /// A lock as parking_lot has it, without poison.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no model goes on after a panic")
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }

    /// The same for many readers.
    #[derive(Debug)]
    pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::RwLock::new(value))
        }
        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("no model goes on after a panic")
        }
        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("no model goes on after a panic")
        }
    }

    impl<T: Default> Default for RwLock<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }
}

#[cfg(feature = "loom")]
pub(crate) use followed::{Mutex, MutexGuard, RwLock, RwLockReadGuard, atomic};

/// A mistake that a model must notice. Only builds for models have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Planted {
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

/// Asked before each store into the arena's file: whether the model's daemon was killed, and does not make it.
#[cfg(feature = "loom")]
pub(crate) fn killed() -> bool {
    kill::STORES.fetch_add(1, atomic::Ordering::SeqCst);
    kill::DEAD.load(atomic::Ordering::SeqCst)
}
#[cfg(not(feature = "loom"))]
pub(crate) const fn killed() -> bool {
    false
}

#[cfg(feature = "loom")]
pub(crate) mod kill {
    use super::atomic::{AtomicBool, AtomicU64};

    loom::lazy_static! {
        /// One for each run of a model.
        pub(crate) static ref DEAD: AtomicBool = AtomicBool::new(false);
        /// loom does not see the file; by this it knows which thread's looks at it meet which stores.
        pub(crate) static ref STORES: AtomicU64 = AtomicU64::new(0);
    }
}
