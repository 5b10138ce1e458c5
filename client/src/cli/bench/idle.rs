//! What a daemon takes that nobody asks anything.

use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;

use super::report::{Goal, Row, Unit};
use super::{Scene, failed};
use crate::error::ClientError;

const MEMORY_GOAL: Goal = Goal::LessThan(50.0);
const CPU_GOAL: Goal = Goal::LessThan(0.5);

/// Call it before anybody else uses the daemon.
pub(super) fn measure(scene: &Scene) -> Result<Vec<Row>, ClientError> {
    let pid = scene.daemon.process();
    // It makes pages of the arena huge in the background.
    std::thread::sleep(scene.sizes.settle);
    let before = cpu(pid)?;
    std::thread::sleep(scene.sizes.watch);
    let share = (cpu(pid)? - before).as_secs_f64() / scene.sizes.watch.as_secs_f64();
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|error| failed("tenderd", error))?;
    let kib =
        beside_arena_kib(&status).ok_or_else(|| failed("tenderd", "the system does not say its memory"))?;
    Ok(vec![
        Row::told("idle daemon, memory beside the arena", kib / 1024.0, Unit::Mebibytes).goal(MEMORY_GOAL),
        Row::told("idle daemon, share of a core", share * 100.0, Unit::Percent).goal(CPU_GOAL),
    ])
}

fn cpu(pid: u32) -> Result<Duration, ClientError> {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX));
    let now = ClockId::pid_cpu_clock_id(pid).and_then(ClockId::now);
    now.map(Duration::from).map_err(|error| failed("a clock", error))
}

/// Its own memory and its program's; the arena is shared memory.
fn beside_arena_kib(status: &str) -> Option<f64> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse::<f64>().ok()
    };
    Some(field("RssAnon:")? + field("RssFile:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arena_does_not_count() {
        let status =
            "VmRSS:\t 1060000 kB\nRssAnon:\t    9000 kB\nRssFile:\t    3000 kB\nRssShmem:\t 1048000 kB\n";
        assert_eq!(beside_arena_kib(status), Some(12_000.0));
        assert_eq!(beside_arena_kib("VmRSS:\t 12 kB\n"), None);
    }
}
