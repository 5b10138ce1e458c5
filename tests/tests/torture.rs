//! The two-minute form of `make torture`: the same clients, kills and checks, for a bounded time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tender_tests::torture::{KILLS, Settings, run, summary};

const LIMIT: Duration = Duration::from_secs(100);
/// Far fewer than a busy machine makes in that time; below it, hardly anything was tried.
const KILLS_AT_LEAST: u64 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_ready_is_served_and_nothing_else_whoever_is_killed() {
    let seed = match std::env::var("SEED") {
        Ok(text) => text.parse().expect("SEED is a number"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs()),
    };
    println!("torture: seed {seed}");
    let settings = Settings {
        seed,
        kills: u64::MAX,
        limit: Some(LIMIT),
        program: env!("CARGO_BIN_EXE_tender-torture").into(),
        verbose: false,
    };
    let begin = Instant::now();
    let tally = run(&settings).await;
    print!("{tally}");
    println!("{}", summary(&settings, &tally, begin.elapsed()));
    assert!(tally.all(KILLS) >= KILLS_AT_LEAST, "only {} kills", tally.all(KILLS));
    assert!(tally.all("client killed") > 0, "no client was killed");
    assert!(tally.of("chunks found again after a round") > 0, "nothing was found again");
    assert!(tally.of("loads through shared memory") > 0 && tally.of("loads through a stream") > 0);
    assert!(tally.of("engine tokens loaded") > 0, "the engines loaded nothing");
}
