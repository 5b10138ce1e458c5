//! The oracle over many seeds: whatever the schedule, no engine reads a slot that is not exactly what a pass wrote for
//! these tokens, and Tender is of use.

use tender_tests::oracle::shrink::run_seeds;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// The seeds of `make test`, or those that the environment names.
#[test]
fn every_slot_that_attention_reads_is_right() {
    let count = number("TENDER_ORACLE_SEEDS").unwrap_or(40);
    let stats =
        run_seeds(number("TENDER_ORACLE_FIRST").unwrap_or(1), count).unwrap_or_else(|told| panic!("{told}"));
    println!("{count} seeds: {stats:?}");
    assert!(count < 10 || stats.loaded_tokens > 0, "nothing was ever loaded: {stats:?}");
}
