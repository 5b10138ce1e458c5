//! `make torture`: see `tender_tests::torture`. Without arguments it runs; `client` and `engine` are its own children.
//!
//! Settings are environment variables: `SEED` (default: from the clock), `ROUNDS` (kills of the daemon, default 500),
//! `SECONDS_AT_MOST` (default: no limit), `QUIET` (no line for each round).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tender_tests::torture::{Settings, client, engine, run, summary};

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("client") => {
            let orders = client::Orders::parse(&arguments[1..]).expect("orders of a client");
            client::run(orders).await;
        }
        Some("engine") => {
            let arguments = arguments[1..].to_vec();
            let running = tokio::task::spawn_blocking(move || engine::run(&arguments));
            running.await.expect("every slot is right");
        }
        Some(other) => panic!("{other}: settings are environment variables, SEED and ROUNDS"),
        None => torture().await,
    }
}

async fn torture() {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let settings = Settings {
        seed: number("SEED").unwrap_or(clock),
        kills: number("ROUNDS").unwrap_or(500),
        limit: number("SECONDS_AT_MOST").map(Duration::from_secs),
        program: std::env::current_exe().expect("our own path"),
        verbose: std::env::var_os("QUIET").is_none(),
    };
    println!("torture: seed {} (SEED={0} runs the same choices again)", settings.seed);
    let begin = Instant::now();
    let tally = run(&settings).await;
    print!("{tally}");
    println!("{}", summary(&settings, &tally, begin.elapsed()));
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}
