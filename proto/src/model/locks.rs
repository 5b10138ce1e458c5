//! Locks as parking_lot has them, without poison, on those of loom, which runs a model through every order in which its
//! threads can meet.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

const NO_POISON: &str = "no model goes on after a panic";

/// A lock for one.
#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// Held until it is dropped; empty while its holder waits for a [`Condvar`].
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    /// Around this value.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }
    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect(NO_POISON)))
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
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

/// A lock for one writer or many readers.
#[derive(Debug)]
pub struct RwLock<T>(loom::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Around this value.
    pub fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }
    /// Waits until nobody writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect(NO_POISON)
    }
    /// Waits until nobody reads or writes.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect(NO_POISON)
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Threads that wait for a word.
#[derive(Debug)]
pub struct Condvar(loom::sync::Condvar);

/// In a model no time passes: a wait that nobody ends is a deadlock, which loom reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeverTimedOut;

impl NeverTimedOut {
    /// Never.
    pub fn timed_out(self) -> bool {
        false
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    /// Nobody waits yet.
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }
    /// Gives up the lock until there is a word.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.0.take() {
            guard.0 = Some(self.0.wait(held).expect(NO_POISON));
        }
    }
    /// The same, since there is no time.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> NeverTimedOut {
        self.wait(guard);
        NeverTimedOut
    }
    /// A word to one of them.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }
    /// A word to all of them.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
