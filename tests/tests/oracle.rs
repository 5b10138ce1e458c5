//! The oracle over many seeds: whatever the schedule, no engine reads a slot that is not exactly what a pass wrote for
//! these tokens, and Tender is of use.

use tender_tests::oracle::shrink::run_seeds;

/// Seeds of `make test`; `TENDER_ORACLE_SEEDS` says otherwise, and `TENDER_ORACLE_FIRST` where they begin.
const SEEDS: u64 = 600;
/// Tests that share them, so that they run side by side.
const SHARES: u64 = 4;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

fn every_slot_is_right(share: u64) {
    let (first, count) =
        (number("TENDER_ORACLE_FIRST").unwrap_or(1), number("TENDER_ORACLE_SEEDS").unwrap_or(SEEDS));
    let seeds: Vec<u64> = (first..first + count).filter(|seed| seed % SHARES == share).collect();
    let stats = run_seeds(&seeds).unwrap_or_else(|told| panic!("{told}"));
    println!("{} seeds: {stats:?}", seeds.len());
    assert!(seeds.len() < 10 || stats.loaded_tokens > 0, "nothing was ever loaded: {stats:?}");
}

#[test]
fn every_slot_that_attention_reads_is_right_0() {
    every_slot_is_right(0);
}
#[test]
fn every_slot_that_attention_reads_is_right_1() {
    every_slot_is_right(1);
}
#[test]
fn every_slot_that_attention_reads_is_right_2() {
    every_slot_is_right(2);
}
#[test]
fn every_slot_that_attention_reads_is_right_3() {
    every_slot_is_right(3);
}
