//! Time as the engine sees it, so that tests decide when a lease or a reservation ends.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::sync::Mutex;

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

/// A clock that another one drives, and that never goes back: while the other one is behind, it stands still. Deadlines
/// lie in the order in which they were set, which one step back would end.
#[derive(Debug)]
pub(crate) struct Steady {
    clock: Arc<dyn Clock>,
    begin: Instant,
    latest_nanos: AtomicU64,
}

impl Steady {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { begin: clock.now(), clock, latest_nanos: AtomicU64::new(0) }
    }
}

impl Clock for Steady {
    fn now(&self) -> Instant {
        let since = self.clock.now().saturating_duration_since(self.begin);
        let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let latest = self.latest_nanos.fetch_max(nanos, Ordering::AcqRel).max(nanos);
        self.begin + Duration::from_nanos(latest)
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
    /// Moves backward, which a clock must not: for tests of who bears it.
    pub fn go_back(&self, by: Duration) {
        *self.0.lock() -= by;
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
