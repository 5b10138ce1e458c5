//! What is stored and loaded, and when: rules 1 (written frontier), 2 (geometry), 3 (coverage), 4 (hit boundary) and
//! 6 (snapshot before reuse). Pure: no I/O, no engine types.
//!
//! The engine's scheduler tells the [`Planner`] what it does (`step`); the planner answers with plans (`wire`). On
//! the way:
//! * `request`: what is known of a request: keys, block tables, what was promised to it.
//! * `geometry`: blocks of a chunk; `needs`: which blocks of a group are read at a boundary.
//! * `hit`: how far a lookup's answers reach; `load`: the job that fetches exactly that.
//! * `frontier`: which slots are final; `store`: the jobs that keep them, each key once (`memory`).

mod config;
mod frontier;
mod geometry;
mod hit;
mod load;
mod memory;
mod needs;
mod planner;
mod request;
mod step;
mod store;
mod wire;

#[cfg(test)]
mod group_tests;
#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]
mod model;
#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]
mod tests;

pub use config::{HitUnit, PlanConfig, PlanCounters};
pub use geometry::ChunkSize;
pub use hit::ChunkView;
pub use planner::Planner;
pub use step::{BlockUpdate, Finish, ScheduledRequest, StateHandoff, StepInput};
pub use wire::{LoadItem, LoadJob, StepPlan, StoreJob};
