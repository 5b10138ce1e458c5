//! Every request of the daemon, in sequences: drawn calls reach its states, each may be damaged on its way, and some are
//! bytes that never were a message. After every call the recount must agree, and what is served must be what was stored.

mod act;
mod script;
mod wire;
mod world;

use arbitrary::{Arbitrary, Unstructured};

use script::Script;
use world::World;

/// A longer script reaches nothing that a shorter one does not.
const MAX_STEPS: usize = 40;

/// Plays a script on a daemon with a tiny arena.
pub fn run(data: &[u8]) {
    let Ok(script) = Script::arbitrary_take_rest(Unstructured::new(data)) else { return };
    super::wait(async {
        let mut world = World::new(&script.limits);
        for step in script.steps.iter().take(MAX_STEPS) {
            world.play(step).await;
            world.audit();
        }
        world.end().await;
    });
}
