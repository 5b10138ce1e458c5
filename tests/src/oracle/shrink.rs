//! Seeds in a row, and a smaller scenario for one that fails.

use super::Failure;
use super::engine::Stats;
use super::scenario::Scenario;
use super::world;

/// Runs that shrinking may take.
const TRIES: u32 = 60;

/// Runs the seeds. The first failure is made smaller and told.
pub fn run_seeds(seeds: &[u64]) -> Result<Stats, String> {
    let mut stats = Stats::default();
    for &seed in seeds {
        if std::env::var_os("TENDER_ORACLE_VERBOSE").is_some() {
            println!("seed {seed}");
        }
        let scenario = Scenario::draw(seed);
        match world::run(&scenario) {
            Ok(one) => stats.add(&one),
            Err(failure) => return Err(tell(&scenario, &failure)),
        }
    }
    Ok(stats)
}

fn tell(scenario: &Scenario, failure: &Failure) -> String {
    let (small, account) = shrink(scenario, failure);
    format!(
        "seed {} fails: {}\n\nthe smallest scenario found fails with: {}\n{small:#?}\n\nrun it again: TENDER_ORACLE_FIRST={} \
         TENDER_ORACLE_SEEDS=1 cargo test -p tender-tests --test oracle",
        scenario.seed, failure.0, account.0, scenario.seed
    )
}

/// A smaller scenario that fails too, and how.
pub fn shrink(scenario: &Scenario, failure: &Failure) -> (Scenario, Failure) {
    let (mut smallest, mut account, mut tries) = (scenario.clone(), failure.clone(), 0);
    'smaller: loop {
        for candidate in smallest.smaller() {
            tries += 1;
            if tries > TRIES {
                break 'smaller;
            }
            if let Err(failure) = world::run(&candidate) {
                (smallest, account) = (candidate, failure);
                continue 'smaller;
            }
        }
        break;
    }
    (smallest, account)
}
