//! `tender bench`: stores, loads and lookups against what the machine can do, in one run.
//!
//! The machines that this runs on are shared and noisy, so every figure is a ratio: rounds of the measured work and
//! of its yardstick take turns, and the medians are compared. The yardsticks are a plain copy into the same paged
//! layout, and a bare tokio TCP stream between two processes that moves the same bytes.

mod certificates;
mod compare;
mod cpu;
mod daemon;
mod helper;
mod idle;
mod local;
mod lookup;
mod memory;
mod parts;
mod peer;
mod redis;
mod remote;
mod replay;
mod report;
mod scheduler;
mod sizes;
mod storers;
mod trace;

use std::path::PathBuf;
use std::time::Instant;

use bytesize::ByteSize;
use indicatif::ProgressBar;

use super::{Done, Target};
use crate::error::ClientError;
use daemon::Daemon;
pub(super) use helper::Peer;
use remote::Wire;
pub(super) use replay::Replay;
use report::Report;
use sizes::Sizes;

/// Measures stores, loads and lookups of a private daemon against memcpy and a bare TCP stream.
#[derive(Debug, clap::Args)]
pub(super) struct Bench {
    /// The daemon's program; by default the one beside this one, or in the PATH.
    #[arg(long, env = "TENDERD", value_name = "FILE")]
    tenderd: Option<PathBuf>,
    /// Bytes that every round moves; less where the machine has no room for them.
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    bytes: ByteSize,
    /// Rounds of each measurement, after one to warm up.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measures one thing only.
    #[arg(long, conflicts_with = "suite")]
    only: Option<Part>,
    /// Measures everything that docs/benchmarks.md has a goal for; takes some minutes.
    #[arg(long)]
    suite: bool,
    /// Tiny sizes: whether everything runs, not how fast it is.
    #[arg(long)]
    quick: bool,
    /// An earlier report (--json) to compare with. Exits with 1 if a goal that it met is missed now.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// As JSON: {"rows": [{"name", "value", "unit", "goal", "met"}], "notes": [...]}.
    #[arg(long)]
    json: bool,
}

/// What can be measured alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Part {
    /// What a daemon takes that nobody uses.
    Idle,
    /// Stores and loads through shared memory.
    Shm,
    /// Gets and puts over TCP.
    Tcp,
    /// The same with TLS.
    Tls,
    /// Lookups over a Unix socket.
    Lookups,
    /// Steps of the scheduler.
    Scheduler,
    /// Gets and puts beside those of a Redis server.
    Redis,
    /// Index, allocator and re-attach of the daemon.
    Parts,
}

/// In this order: an idle daemon is one that nobody has used.
const SUITE: [Part; 8] =
    [Part::Idle, Part::Shm, Part::Tcp, Part::Tls, Part::Lookups, Part::Scheduler, Part::Redis, Part::Parts];
const USUAL: [Part; 3] = [Part::Shm, Part::Tcp, Part::Lookups];

const CHUNK_MIBS: [usize; 3] = [1, 4, 16];

/// What every measurement needs.
struct Scene {
    daemon: Daemon,
    sizes: Sizes,
}

impl Bench {
    pub(super) fn run(&self, _target: &Target) -> Result<Done, ClientError> {
        // Before minutes of work.
        let before = self.compare.as_deref().map(compare::read).transpose()?;
        let mut sizes = if self.quick { Sizes::quick() } else { Sizes::full(self.bytes, self.rounds)? };
        let mut report = Report::default();
        report.notes.extend(sizes.fit()?);
        // Every round stores new chunks; what the oldest leave by eviction is part of the work.
        let daemon = Daemon::start(self.tenderd.as_deref(), 4 * sizes.bytes as u64, &[])?;
        let scene = Scene { daemon, sizes };
        let parts = self.parts();
        let progress = ProgressBar::new(parts.len() as u64).with_style(report::progress_style());
        for &part in &parts {
            progress.set_message(part.says());
            part.measure(&scene, &mut report)?;
            progress.inc(1);
        }
        progress.finish_and_clear();
        if let Some(before) = &before {
            compare::compare(&mut report, before);
        }
        Ok(Done { text: report.render(self.json)?, well: compare::is_well(&report) })
    }

    fn parts(&self) -> Vec<Part> {
        match self.only {
            Some(part) => vec![part],
            None if self.suite => SUITE.to_vec(),
            None => USUAL.to_vec(),
        }
    }
}

impl Part {
    fn says(self) -> &'static str {
        match self {
            Self::Idle => "an idle daemon",
            Self::Shm => "shared memory",
            Self::Tcp => "gRPC over TCP",
            Self::Tls => "gRPC over TLS",
            Self::Lookups => "lookups",
            Self::Scheduler => "the scheduler's steps",
            Self::Redis => "Redis beside it",
            Self::Parts => "index, allocator and re-attach",
        }
    }

    fn measure(self, scene: &Scene, report: &mut Report) -> Result<(), ClientError> {
        let rows = match self {
            Self::Idle => idle::measure(scene)?,
            Self::Shm => {
                for chunk_mib in CHUNK_MIBS {
                    report.rows.extend(local::measure(scene, chunk_mib)?);
                }
                return Ok(());
            }
            Self::Tcp => remote::measure(scene, Wire::Tcp)?,
            Self::Tls => remote::measure(scene, Wire::Tls)?,
            Self::Lookups => lookup::measure(scene)?,
            Self::Scheduler => scheduler::measure(scene)?,
            Self::Redis => return redis::measure(scene, report),
            Self::Parts => return parts::measure(scene, report),
        };
        report.rows.extend(rows);
        Ok(())
    }
}

/// Runs `work` once to warm up and then `rounds` times; the seconds each round took, one list for each piece of work,
/// which take turns.
fn interleaved<const N: usize>(
    rounds: u32,
    mut work: [&mut dyn FnMut() -> Result<(), ClientError>; N],
) -> Result<[f64; N], ClientError> {
    let mut seconds: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
    for round in 0..=rounds {
        for (work, seconds) in work.iter_mut().zip(&mut seconds) {
            let start = Instant::now();
            work()?;
            if round > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
    }
    Ok(seconds.map(|mut seconds| report::percentile(&mut seconds, 50)))
}

fn failed(what: &'static str, why: impl std::fmt::Display) -> ClientError {
    ClientError::Start { what, source: std::io::Error::other(why.to_string()) }
}
