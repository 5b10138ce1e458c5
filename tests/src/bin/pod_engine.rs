//! An engine for a container, which `scripts/pods.sh` runs beside a daemon: the model engine asks the same requests again and again
//! at `TENDER_ADDRESS`, forgets its memory between them, looks at every slot that it reads, and says once a second what came from
//! the daemon. It ends only when it is told to, or with 1 when a slot is wrong.

use std::time::{Duration, Instant};

use tender_client::{Address, TransportChoice};
use tender_tests::daemon::client_config;
use tender_tests::model::ModelEngine;

const REQUESTS: u32 = 6;
const PROMPT_TOKENS: u32 = 64;

fn main() {
    let address = std::env::var("TENDER_ADDRESS").expect("TENDER_ADDRESS names the daemon");
    let address: Address = address.parse().expect("an address");
    let engine = ModelEngine::new(client_config(address, TransportChoice::Auto), "pods");
    // A native sidecar begins first; elsewhere the two begin together.
    engine.wait_until_up();
    for round in 0u64.. {
        let next = Instant::now() + Duration::from_secs(1);
        let (mut loaded, mut failed) = (0, 0);
        for request in 0..REQUESTS {
            // The same of each round; a request's first token is its own, so nothing is shared.
            let prompt: Vec<u32> = (0..PROMPT_TOKENS).map(|token| 1000 * (request + 1) + token).collect();
            let run = engine.run(&format!("{round}-{request}"), &prompt);
            loaded += run.loaded_tokens;
            failed += run.failed_tokens;
        }
        let (_, worker) = engine.counters();
        println!(
            "round {round}: {loaded} of {} tokens loaded, {failed} failed, session {}, transport {}",
            REQUESTS * PROMPT_TOKENS,
            worker.session,
            worker.transport
        );
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
