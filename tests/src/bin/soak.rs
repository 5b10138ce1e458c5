//! `make soak`: mixed load on a full arena for `MINUTES` (60 where none are given), and whether memory, descriptors,
//! threads and the arena's accounting were flat. `SEED` decides what the load does. Ends with 1 if anything was not.

use std::process::ExitCode;
use std::time::Duration;

use tender_tests::soak::{Ask, run, trend};

#[tokio::main]
async fn main() -> ExitCode {
    let number = |name: &str, default: f64| {
        let Ok(text) = std::env::var(name) else { return default };
        text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}"))
    };
    let minutes = number("MINUTES", 60.0);
    let seed = number("SEED", 1.0);
    assert!(seed >= 0.0 && seed.fract() == 0.0, "SEED is a whole number, not {seed}");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was just checked")]
    let ask = Ask { time: Duration::from_secs_f64(minutes * 60.0), seed: seed as u64 };
    println!("soak: {minutes} minutes, seed {seed}");
    let report = run(ask, |line| println!("{line}")).await;
    println!("\n{}", trend::table(&report.verdicts));
    println!("{}", report.done);
    report.faults.iter().for_each(|fault| println!("LEFT BEHIND: {fault}"));
    let flat = report.verdicts.iter().filter(|verdict| verdict.flat).count();
    let all = report.verdicts.len();
    println!("soak: {flat} of {all} quantities flat, {} left behind", report.faults.len());
    if flat == all && report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}
