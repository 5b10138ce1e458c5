//! Rules 6 and 8 in every order that the model can make, with devices that work and with devices that do not.

use super::engine::World;
use crate::copy::cuda::driver::fake::Trouble;

/// One life of a worker: `moves` things that happen.
pub(super) fn live(seed: u64, trouble: Trouble, moves: u64) -> Option<(usize, usize)> {
    let mut world = World::new(seed, trouble)?;
    for _ in 0..moves {
        world.something();
    }
    Some(world.end())
}

/// Many lives. The first that goes wrong names its seed.
fn lives(seeds: std::ops::Range<u64>, trouble: impl Fn(u64) -> Trouble) -> (usize, usize) {
    let mut sum = (0, 0);
    for seed in seeds {
        let life = std::panic::AssertUnwindSafe(|| live(seed, trouble(seed), 60));
        match std::panic::catch_unwind(life) {
            Ok(Some((stored, loaded))) => sum = (sum.0 + stored, sum.1 + loaded),
            Ok(None) => {}
            Err(why) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(why);
            }
        }
    }
    sum
}

#[test]
fn stores_and_loads_are_right_in_every_order() {
    let (stored, loaded) = lives(0..3000, |_| Trouble::default());
    assert!(stored > 3000 && loaded > 3000, "{stored} stores, {loaded} loads");
}

#[test]
fn streams_that_stand_still_for_a_while_change_nothing() {
    let (stored, loaded) = lives(0..1000, |_| Trouble { freeze_one_in: 6, ..Trouble::default() });
    assert!(stored > 500 && loaded > 500, "{stored} stores, {loaded} loads");
}

#[test]
fn where_nothing_can_be_registered_everything_goes_by_the_bounce_rings() {
    let (stored, loaded) = lives(0..1000, |_| Trouble { no_register: true, ..Trouble::default() });
    assert!(stored > 1000 && loaded > 1000, "{stored} stores, {loaded} loads");
}

#[test]
fn refused_calls_cost_stores_and_loads_and_nothing_else() {
    let (stored, loaded) =
        lives(0..1500, |seed| Trouble { refuse_one_in: 50 + seed % 200, ..Trouble::default() });
    assert!(stored > 100 && loaded > 100, "{stored} stores, {loaded} loads");
}

#[test]
fn a_device_that_is_lost_at_any_moment_touches_nothing_that_was_given_back() {
    let (stored, _) = lives(0..1500, |seed| Trouble { lost_after: 20 + seed % 500, ..Trouble::default() });
    assert!(stored > 100, "{stored} stores");
}
