//! `tender bench`: stores, loads and lookups against what the machine can do, in one run.
//!
//! The machines that this runs on are shared and noisy, so every figure is a ratio: rounds of the measured work and
//! of its yardstick take turns, and the medians are compared. The yardsticks are a plain copy into the same paged
//! layout, and a bare tokio TCP stream between two processes that moves the same bytes.

mod cpu;
mod daemon;
mod local;
mod lookup;
mod memory;
mod peer;
mod remote;
mod replay;
mod report;
mod trace;

use std::path::PathBuf;
use std::time::Instant;

use bytesize::ByteSize;

use super::Target;
use crate::error::ClientError;
use daemon::Daemon;
pub(super) use peer::Peer;
pub(super) use replay::Replay;

/// Measures stores, loads and lookups of a private daemon against memcpy and a bare TCP stream.
#[derive(Debug, clap::Args)]
pub(super) struct Bench {
    /// The daemon's program; by default the one beside this one, or in the PATH.
    #[arg(long, env = "TENDERD", value_name = "FILE")]
    tenderd: Option<PathBuf>,
    /// Bytes that every round moves.
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    bytes: ByteSize,
    /// Rounds of each measurement, after one to warm up.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measures one thing only.
    #[arg(long)]
    only: Option<Part>,
    /// As JSON: {"rows": [{"name", "value", "unit", "goal", "met"}]}.
    #[arg(long)]
    json: bool,
}

/// What can be measured alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Part {
    /// Stores and loads through shared memory.
    Shm,
    /// Gets and puts over TCP.
    Tcp,
    /// Lookups over a Unix socket.
    Lookups,
}

/// What every measurement needs.
struct Scene {
    daemon: Daemon,
    bytes: usize,
    rounds: u32,
}

impl Bench {
    pub(super) fn run(&self, _target: &Target) -> Result<String, ClientError> {
        let bytes = usize::try_from(self.bytes.as_u64()).unwrap_or(usize::MAX);
        if !(32 << 20..=4 << 30).contains(&bytes) {
            return Err(ClientError::Config {
                key: "bytes",
                value: self.bytes.to_string(),
                advice: "choose 32 MiB to 4 GiB",
            });
        }
        // Every round stores new chunks; what the oldest leave by eviction is part of the work.
        let daemon = Daemon::start(self.tenderd.as_deref(), 4 * bytes as u64, &[])?;
        let scene = Scene { daemon, bytes, rounds: self.rounds };
        let wanted = |part| self.only.is_none_or(|only| only == part);
        let progress = indicatif::ProgressBar::new(5).with_style(report::progress_style());
        let mut rows = Vec::new();
        for chunk_mib in [1, 4, 16].into_iter().filter(|_| wanted(Part::Shm)) {
            progress.set_message(format!("shared memory, {chunk_mib} MiB chunks"));
            rows.extend(local::measure(&scene, chunk_mib)?);
            progress.inc(1);
        }
        if wanted(Part::Tcp) {
            progress.set_message("gRPC over TCP");
            rows.extend(remote::measure(&scene)?);
            progress.inc(1);
        }
        if wanted(Part::Lookups) {
            progress.set_message("lookups");
            rows.extend(lookup::measure(&scene)?);
        }
        progress.finish_and_clear();
        report::render(&rows, self.json)
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
