//! A few seconds of the load that `make soak` runs for an hour: every slot is right, the arena is full, and nothing is
//! left behind. Whether the numbers stay flat is a question for longer runs.

use std::time::Duration;

use tender_tests::soak::{Ask, run};

#[tokio::test(flavor = "multi_thread")]
async fn mixed_load_at_a_full_arena_leaves_nothing_behind() {
    let report = run(Ask { time: Duration::from_secs(12), seed: 1 }, |line| println!("{line}")).await;
    println!("{}", report.done);
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    assert!(report.evicted_chunks > 0, "the arena was never full: {}", report.done);
}
