//! Processor time, of which a noisy machine takes no more than a quiet one.

use std::cell::Cell;
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;

use super::failed;
use crate::error::ClientError;

/// What this process and another one spend on one kind of work.
pub(super) struct CpuMeter {
    clocks: [ClockId; 2],
    spent: Cell<Duration>,
    runs: Cell<u32>,
}

impl CpuMeter {
    pub(super) fn with(other: u32) -> Result<Self, ClientError> {
        let other = Pid::from_raw(i32::try_from(other).unwrap_or(i32::MAX));
        let clock = |pid| ClockId::pid_cpu_clock_id(pid).map_err(|error| failed("a clock", error));
        let clocks = [clock(Pid::this())?, clock(other)?];
        Ok(Self { clocks, spent: Cell::default(), runs: Cell::new(0) })
    }

    /// Runs the work once more.
    pub(super) fn measure(&self, work: impl FnOnce() -> Result<(), ClientError>) -> Result<(), ClientError> {
        let before = self.now()?;
        work()?;
        self.spent.set(self.spent.get() + self.now()?.saturating_sub(before));
        self.runs.set(self.runs.get() + 1);
        Ok(())
    }

    /// Seconds that a run took of both processes together, on average.
    pub(super) fn seconds(&self) -> f64 {
        self.spent.get().as_secs_f64() / f64::from(self.runs.get().max(1))
    }

    fn now(&self) -> Result<Duration, ClientError> {
        let now = |clock: ClockId| clock.now().map_err(|error| failed("a clock", error));
        Ok(Duration::from(now(self.clocks[0])?) + Duration::from(now(self.clocks[1])?))
    }
}
