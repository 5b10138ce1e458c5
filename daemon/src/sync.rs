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
    pub(crate) use loom::sync::{RwLockReadGuard, atomic};
    pub(crate) use tender_proto::model::{Mutex, MutexGuard, RwLock};
}

#[cfg(feature = "loom")]
pub(crate) use followed::{Mutex, MutexGuard, RwLock, RwLockReadGuard, atomic};

#[cfg(all(test, feature = "loom"))]
pub(crate) use tender_proto::model::plant;
pub(crate) use tender_proto::model::{Planted, planted};

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
