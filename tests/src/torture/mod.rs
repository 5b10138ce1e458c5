//! Torture: clients of every kind work on a daemon, in processes of their own, while daemon and clients are killed,
//! stopped, cut off and started again at random. After every restart all that was said to be READY is looked for and
//! compared byte for byte, and everything is recounted.
//!
//! [`run`] goes from leg to leg. A leg is a new arena and a new crew: roomy, where nothing may ever be missing, or tight,
//! where what is missing must have been evicted. Its rounds each end with a check (check.rs). Clients ([`client`]) write
//! what they were told to their standard output ([`journal`]), so that what a killed client knew is known; [`truth`]
//! holds it against what a daemon serves. Engines ([`engine`]) are the real client under the same conditions.
//!
//! All choices come from one seed; when processes run, and so what exactly a kill hits, does not.

mod check;
mod child;
pub mod client;
mod crew;
pub mod engine;
pub mod journal;
mod leg;
mod load;
pub mod space;
mod store;
pub mod tally;
pub mod truth;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use leg::Leg;
use tally::Tally;

/// Rounds on one arena.
const ROUNDS_OF_A_LEG: u64 = 16;

/// What a run does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Where all choices come from.
    pub seed: u64,
    /// Ends after so many kills of the daemon.
    pub kills: u64,
    /// Ends after this time at the latest.
    pub limit: Option<Duration>,
    /// This program, which is a client if it is told to be.
    pub program: PathBuf,
    /// Tells each round as it ends.
    pub verbose: bool,
}

/// The name under which kills of the daemon are counted, whatever follows.
pub const KILLS: &str = "daemon killed";

/// Runs until the daemon was killed often enough or the time is over. Whatever is wrong is a panic that says so.
pub async fn run(settings: &Settings) -> Tally {
    let begin = Instant::now();
    let mut tally = Tally::default();
    let over = |tally: &Tally| {
        tally.all(KILLS) >= settings.kills || settings.limit.is_some_and(|limit| begin.elapsed() >= limit)
    };
    for number in 0.. {
        let mut leg = Leg::start(settings, number, tally).await;
        for round in 0..ROUNDS_OF_A_LEG {
            leg.round().await;
            if settings.verbose {
                let kills = leg.tally().all(KILLS);
                eprintln!("leg {number} round {round}: {kills} kills, {:.0?}", begin.elapsed());
            }
            if over(&leg.tally()) {
                break;
            }
        }
        tally = leg.end().await;
        if over(&tally) {
            break;
        }
    }
    tally
}

/// One line that says how it went.
pub fn summary(settings: &Settings, tally: &Tally, took: Duration) -> String {
    format!(
        "torture: seed {}, {} kills of the daemon, {} of clients, {} stops, {} cuts, {} resets; {} chunks found again, {} \
         bytes compared, {} recounts; 0 wrong, 0 lost, in {:.0?}",
        settings.seed,
        tally.all(KILLS),
        tally.all("client killed"),
        tally.all("daemon stopped"),
        tally.all("connections"),
        tally.all("reset"),
        tally.of("chunks found again after a round"),
        tally.of("bytes checked") + tally.of("bytes compared after a round"),
        tally.of("recounts that fit"),
        took,
    )
}
