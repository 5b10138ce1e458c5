//! Tests of the oracle: each mistake that is built into the code under test is found within its budget of seeds, and
//! the same seeds pass without it.
//!
//! Built with the feature `mutants` only: `cargo test -p tender-tests --features mutants --test oracle_mutants`.

use std::sync::{Mutex, PoisonError};

use tender_proto::GroupKind;
use tender_proto::mutant::{Mutant, set, set_faults};
use tender_tests::oracle::groups::GroupSpec;
use tender_tests::oracle::place::Arrangement;
use tender_tests::oracle::scenario::Scenario;
use tender_tests::oracle::shrink::run_seeds;
use tender_tests::oracle::world;

/// Mistakes are switched on for the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Seeds that a mistake has to be found in.
const BUDGET: usize = 60;

/// Attention meets wrong bytes.
const WRONG_SLOT: &str = "reads a wrong slot";
/// Another rule stops the wrong bytes; that it has to is counted.
const COUNTED: &str = "what must not happen was counted";

/// Runs the seeds that suit until the mistake shows as it must, then the same ones without it.
fn is_found(mutant: Mutant, shows: &str, faults: u64, suits: impl Fn(&Scenario) -> bool) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let scenarios: Vec<_> = (1..).map(Scenario::draw).filter(suits).take(BUDGET).collect();
    set(Some(mutant));
    set_faults(faults);
    let found = scenarios.iter().position(|one| world::run(one).is_err_and(|no| no.0.contains(shows)));
    set(None);
    let found = found.unwrap_or_else(|| panic!("{mutant:?} is not found in {BUDGET} seeds"));
    for scenario in &scenarios[..=found] {
        set_faults(faults);
        world::run(scenario)
            .unwrap_or_else(|no| panic!("seed {} fails without {mutant:?}: {}", scenario.seed, no.0));
    }
    set_faults(0);
    println!("{mutant:?}: found by seed {}, number {} of those that suit", scenarios[found].seed, found + 1);
}

#[test]
fn a_scenario_that_fails_by_a_mutant_is_made_smaller_and_told() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    set_faults(0);
    set(Some(Mutant::MediaLeftOut));
    let told = run_seeds(&(1..100).collect::<Vec<_>>()).expect_err("it is found");
    set(None);
    let seed =
        told.strip_prefix("seed ").and_then(|told| told.split(' ').next()).expect("the seed comes first");
    assert!(told.contains(&format!("TENDER_ORACLE_FIRST={seed} ")), "{told}");
    assert!(told.contains(WRONG_SLOT), "{told}");
    let drawn = Scenario::draw(seed.parse().expect("a number"));
    assert!(!told.contains(&format!("{drawn:#?}")), "not smaller: {told}");
}

fn any(_: &Scenario) -> bool {
    true
}
fn has(kind: GroupKind) -> impl Fn(&Scenario) -> bool {
    move |scenario| scenario.groups.iter().any(|group| group.kind == kind)
}
fn windowed(scenario: &Scenario) -> bool {
    scenario.groups.iter().any(|group| group.windowed() && group.blocks_per_chunk > 1)
}
/// Chunks that a window leaves behind before they are whole, and hits that end inside them.
fn outlived(scenario: &Scenario) -> bool {
    let outlived = |group: &GroupSpec| {
        group.windowed()
            && group.tokens_per_block * group.blocks_per_chunk as usize > group.window + group.retained
    };
    scenario.groups.len() > 1 && scenario.groups.iter().any(outlived)
}
fn drafting(scenario: &Scenario) -> bool {
    scenario.groups.iter().any(|group| group.lookahead > 0)
}
fn several(scenario: &Scenario) -> bool {
    scenario.groups.len() > 1
}

#[test]
fn the_oracle_finds_the_mutant_scales_left_out_of_a_stride() {
    is_found(Mutant::ScaleStride, WRONG_SLOT, 0, |scenario| {
        matches!(
            scenario.arrangement,
            Arrangement::Apart { scales: true, .. } | Arrangement::Overlaid { scales: true, .. }
        )
    });
}

#[test]
fn the_oracle_finds_the_mutant_block_size_for_chunk_size_in_the_second_group() {
    is_found(Mutant::BlockSizeForChunk, WRONG_SLOT, 0, several);
}

#[test]
fn the_oracle_finds_the_mutant_last_sampled_slot() {
    is_found(Mutant::LastSampledSlot, WRONG_SLOT, 0, any);
}

#[test]
fn the_oracle_finds_the_mutant_only_the_last_block_looked_at() {
    is_found(Mutant::LastBlockOnly, WRONG_SLOT, 0, windowed);
}

#[test]
fn the_oracle_finds_the_mutant_blocks_of_a_window_that_moved_on() {
    is_found(Mutant::FreedWindowGathered, WRONG_SLOT, 0, outlived);
}

#[test]
fn the_oracle_finds_the_mutant_coverage_ignored() {
    is_found(Mutant::CoverageIgnored, COUNTED, 0, windowed);
}

#[test]
fn the_oracle_finds_the_mutant_known_tokens_taken_for_written() {
    is_found(Mutant::KnownCountsAsWritten, WRONG_SLOT, 0, any);
}

#[test]
fn the_oracle_finds_the_mutant_newest_draft_slots() {
    is_found(Mutant::DraftsNotHeldBack, WRONG_SLOT, 0, drafting);
}

#[test]
fn the_oracle_finds_the_mutant_lookahead_left_out_of_the_key() {
    is_found(Mutant::LookaheadLeftOut, WRONG_SLOT, 0, drafting);
}

#[test]
fn the_oracle_finds_the_mutant_salt_left_out_of_the_key() {
    is_found(Mutant::NamedInputsLeftOut, WRONG_SLOT, 0, |scenario| scenario.inputs > 1);
}

#[test]
fn the_oracle_finds_the_mutant_media_left_out_of_the_key() {
    is_found(Mutant::MediaLeftOut, WRONG_SLOT, 0, any);
}

#[test]
fn the_oracle_finds_the_mutant_state_of_another_boundary() {
    is_found(Mutant::StateBoundary, WRONG_SLOT, 0, has(GroupKind::Recurrent));
}

#[test]
fn the_oracle_finds_the_mutant_group_ignored_at_the_boundary() {
    is_found(Mutant::GroupIgnored, WRONG_SLOT, 0, several);
}

#[test]
fn the_oracle_finds_the_mutant_failed_load_reported_as_good() {
    is_found(Mutant::FailedLoadIsGood, WRONG_SLOT, 7, any);
}

#[test]
fn the_oracle_finds_the_mutant_window_entered_in_the_middle() {
    is_found(Mutant::LoadFailsInPart, WRONG_SLOT, 7, windowed);
}

#[test]
fn the_oracle_finds_the_mutant_ended_stores_after_the_pass() {
    is_found(Mutant::EndedStoresLate, WRONG_SLOT, 0, any);
}

#[test]
fn the_oracle_finds_the_mutant_snapshot_after_reallocation() {
    is_found(Mutant::SnapshotLate, WRONG_SLOT, 0, any);
}

#[test]
fn the_oracle_finds_the_mutant_stores_across_a_reset() {
    is_found(Mutant::ResetForgotten, WRONG_SLOT, 0, |scenario| scenario.chances.reset > 0);
}

#[test]
fn the_oracle_finds_the_mutant_chunk_with_a_part_missing() {
    is_found(Mutant::PartMissing, COUNTED, 0, |scenario| scenario.parts > 1);
}

#[test]
fn the_oracle_finds_the_mutant_plan_that_outlives_a_reset() {
    is_found(Mutant::PlanOutlivesReset, WRONG_SLOT, 0, |scenario| {
        scenario.chances.reset > 0 && scenario.asynchronous
    });
}
