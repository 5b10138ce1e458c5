//! What the engine's scheduler says about a step and about a request's end.

/// How a request's block tables (one per group) change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlockUpdate {
    /// Blocks behind those it has.
    Append(Vec<Vec<u32>>),
    /// New tables: its first step, or its first after a preemption.
    Replace(Vec<Vec<u32>>),
}

/// A recurrent state that this step's pass leaves at a boundary.
///
/// A state is overwritten in place, so which block holds which boundary's is known to the engine alone: block tables of
/// recurrent groups are never read for it. vLLM calls these boundary-state hand-offs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateHandoff {
    /// Index of the recurrent group.
    pub group: u16,
    /// The block that holds the state after the pass.
    pub block: u32,
    /// Tokens the state has seen.
    pub boundary_tokens: u64,
}

/// A request's part in a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScheduledRequest {
    /// The engine's id.
    pub id: String,
    /// Tokens with KV before the step.
    pub computed_tokens: u64,
    /// Token slots that the step's pass writes, drafts and placeholders included.
    pub scheduled_tokens: u64,
    /// Ids that became known and were not given yet. No drafts, no placeholders.
    pub new_tokens: Vec<u32>,
    /// Its block tables' change.
    pub blocks: BlockUpdate,
    /// States of recurrent groups that the pass leaves at a boundary.
    pub states: Vec<StateHandoff>,
}

/// One step of the engine, as it was just scheduled.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StepInput {
    /// Requests that take part in the pass.
    pub requests: Vec<ScheduledRequest>,
    /// Requests that lost their blocks when the step was scheduled, before anything else in it.
    pub preempted: Vec<String>,
}

/// A request's end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finish {
    /// All its tokens, the last sampled one included.
    pub num_tokens: u64,
    /// Those of its prompt.
    pub prompt_tokens: u64,
    /// Tokens with KV.
    pub computed_tokens: u64,
    /// It did not run to its end.
    pub aborted: bool,
    /// Its block tables, one per group.
    pub blocks: Vec<Vec<u32>>,
    /// Ids that became known and were not given yet.
    pub tail_tokens: Vec<u32>,
}
