//! Decides what is stored, what is loaded and where a hit ends (rules 1, 2, 3, 4, 6). Pure: no I/O, no engine types.
//!
//! The engine's scheduler tells [`Planner`] what it does; the planner answers with a [`StepPlan`], which travels to
//! the workers. `request` holds what is known of a request, `frontier` what of it is written, `hit` where a hit
//! ends, `jobs` the plan, `wire` its bytes.

mod frontier;
mod hit;
mod jobs;
mod known;
mod planner;
mod request;
mod wire;

pub use jobs::{LoadItem, LoadJob, StepPlan, StoreJob};
pub use planner::{BlockUpdate, Finish, PlanConfig, Planner, ScheduledRequest, StepInput};
pub use wire::PlanError;

pub use hit::ChunkView;
