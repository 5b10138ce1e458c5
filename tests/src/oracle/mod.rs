//! The oracle: a model engine that is driven through random schedules over the real planner, client, transports and
//! daemon, and that looks at every slot attention would read.
//!
//! A slot holds a fingerprint of all that decides its bytes ([`truth`]); what was never written or is not owned any
//! more holds poison. A seed decides everything ([`scenario`]): the model's groups and memory ([`groups`], [`place`],
//! [`memory`]), the engine's scheduler (`schedule`, `tables`, `pool`, `update`), its passes (`pass`), and what
//! goes wrong on the way ([`world`]). A seed that fails is made smaller while it still fails ([`shrink`]).

mod arrive;
pub mod engine;
pub mod groups;
pub mod memory;
pub mod pass;
pub mod place;
pub mod pool;
mod ranks;
pub mod request;
pub mod scenario;
mod schedule;
pub mod shrink;
mod tables;
pub mod truth;
mod update;
pub mod world;

/// What was found, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure(pub String);

fn fail(account: String) -> Failure {
    Failure(account)
}
