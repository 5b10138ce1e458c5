//! Time as the engine sees it, so that tests decide when a lease or a reservation ends.

use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Where the engine reads the time.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Never earlier than an answer before it.
    fn now(&self) -> Instant;
}

/// The machine's monotonic clock.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// A clock that stands still until it is told to move.
#[derive(Debug)]
pub struct ManualClock(Mutex<Instant>);

impl ManualClock {
    /// Starts at the machine's time.
    pub fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }
    /// Moves forward.
    pub fn advance(&self, by: Duration) {
        *self.0.lock() += by;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        *self.0.lock()
    }
}
