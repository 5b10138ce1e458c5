//! The planner: what the engine's scheduler does goes in, step plans come out.

use std::collections::HashMap;
use std::sync::Arc;

use tender_proto::{ChainHash, ChunkId, Descriptor, Group, GroupIndex, GroupKind, Reason, Refusal};

use super::frontier;
use super::hit::{self, ChunkView};
use super::jobs::{LoadJob, StepPlan, StoreJob};
use super::known::Known;
use super::request::Request;
use crate::hash::{KeyChain, RequestInputs};

/// The key of a load that must fail. No chain ends in it.
pub(super) const NO_SUCH_CHUNK: ChainHash = ChainHash::from_bytes([0; 32]);

/// What a user may limit. Every limit only lowers the written frontier.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct PlanConfig {
    /// Store only what lies in the first so many tokens of a request. `None`: all.
    pub max_store_tokens: Option<u64>,
    /// Store prompts only, not what was generated.
    pub prompt_only: bool,
}

/// One engine step.
#[derive(Clone, Default, Debug)]
pub struct StepInput {
    /// Requests that compute in it.
    pub requests: Vec<ScheduledRequest>,
    /// Requests that lost their blocks.
    pub preempted: Vec<String>,
}

/// A request in a step.
#[derive(Clone, Debug)]
pub struct ScheduledRequest {
    /// The engine's name of it.
    pub id: String,
    /// Tokens with KV before the step.
    pub computed_tokens: u64,
    /// Tokens that the step computes, drafts and placeholders included.
    pub scheduled_tokens: u64,
    /// Real token ids that were not given yet.
    pub new_tokens: Vec<u32>,
    /// What became of its block table.
    pub blocks: BlockUpdate,
}

/// A change of a block table, one list for each group.
#[derive(Clone, Debug)]
pub enum BlockUpdate {
    /// These come behind the ones it had.
    Append(Vec<Vec<u32>>),
    /// It has these now: a new request, or one that was preempted.
    Replace(Vec<Vec<u32>>),
}

/// A request that is over.
#[derive(Clone, Default, Debug)]
pub struct Finish {
    /// All its tokens, the last sampled one included.
    pub num_tokens: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Tokens whose KV has been computed, without what is still in flight.
    pub computed_tokens: u64,
    /// It was given up, by the user or by the engine.
    pub aborted: bool,
    /// Its block table at the end, one list for each group. Empty: as it was.
    pub blocks: Vec<Vec<u32>>,
    /// Real token ids that were not given yet.
    pub tail_tokens: Vec<u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Planner {
    descriptor: Arc<Descriptor>,
    config: PlanConfig,
    requests: HashMap<String, Request>,
    known: Known,
    loads: Vec<LoadJob>,
    /// What became final by finishing since the last step.
    finished: Vec<StoreJob>,
}

impl Planner {
    /// Plans for one full-attention group; other models are refused until their rules are implemented.
    pub fn new(descriptor: Arc<Descriptor>, config: PlanConfig) -> Result<Self, Refusal> {
        match descriptor.groups.as_slice() {
            [group] if group.kind == GroupKind::FullAttention => {}
            groups => {
                let kinds: Vec<_> = groups.iter().map(|group| group.kind).collect();
                return Err(Refusal::new(
                    Reason::Unsupported,
                    format!("a model with the KV groups {kinds:?}"),
                    "only models with one full-attention group are cached for now; the engine runs without",
                ));
            }
        }
        let (requests, known) = (HashMap::new(), Known::new());
        Ok(Self { descriptor, config, requests, known, loads: Vec::new(), finished: Vec::new() })
    }

    /// A request came in. An id that is still in use begins anew.
    pub fn add_request(&mut self, id: &str, prompt_tokens: u64, inputs: &RequestInputs) -> Result<(), Refusal> {
        let chain = |group: &Group| KeyChain::new(group.tokens_per_chunk(), inputs);
        let chains = self.descriptor.groups.iter().map(chain).collect::<Result<_, _>>()?;
        self.requests.insert(id.to_owned(), Request::new(prompt_tokens, chains));
        Ok(())
    }

    /// How many real token ids of a request were given so far; `None` for one that is not planned for.
    pub fn known_tokens(&self, id: &str) -> Option<u64> {
        self.requests.get(id).map(Request::known_tokens)
    }

    /// Keys of all full chunks of `tokens`, which are all the request's tokens so far.
    pub fn lookup_keys(&mut self, id: &str, tokens: &[u32]) -> Vec<ChunkId> {
        let Some(request) = self.requests.get_mut(id) else { return Vec::new() };
        let known = usize::try_from(request.known_tokens()).unwrap_or(usize::MAX);
        request.extend(tokens.get(known..).unwrap_or(&[]));
        let keys = |(index, group): (u16, &super::request::GroupState)| {
            let id = move |&hash: &ChainHash| ChunkId { group: GroupIndex(index), hash };
            group.chain.hashes().iter().map(id).collect::<Vec<_>>()
        };
        (0..).zip(&request.groups).flat_map(keys).collect()
    }

    /// How many tokens beyond `computed` can be loaded, given the daemon's answers for [`Planner::lookup_keys`] in
    /// their order. The answers also tell what need not be stored.
    pub fn hit_tokens(&mut self, id: &str, answers: &[ChunkView], num_tokens: u64, computed: u64) -> u64 {
        let Some(request) = self.requests.get_mut(id) else { return 0 };
        request.hit_from = computed;
        let [(group, state)] = [(&self.descriptor.groups[0], &request.groups[0])];
        for (&hash, answer) in state.chain.hashes().iter().zip(answers) {
            let chunk = ChunkId { group: GroupIndex(0), hash };
            match answer {
                ChunkView::Ready(coverage) if coverage.is_full() => self.known.remember(chunk),
                ChunkView::Ready(_) | ChunkView::Miss => self.known.forget(chunk),
                ChunkView::Pending => {}
            }
        }
        hit::full_attention(group, answers, num_tokens, computed)
    }

    /// The engine gave the request its blocks: `blocks` is the whole table, one list for each group. It waits for
    /// the load of `external_tokens` beyond what it had when the hit was told; 0: there is nothing to load.
    pub fn allocated(&mut self, id: &str, blocks: &[Vec<u32>], external_tokens: u64) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.replace_blocks(blocks);
        if external_tokens == 0 {
            return;
        }
        request.loading = true;
        let mut items = Vec::new();
        for ((index, group), state) in (0..).zip(&self.descriptor.groups).zip(&request.groups) {
            let block_at = |tokens: u64| {
                usize::try_from(tokens / u64::from(group.tokens_per_block.get())).unwrap_or(usize::MAX)
            };
            let (from, to) = (request.hit_from, request.hit_from + external_tokens);
            items.extend(state.loads(GroupIndex(index), group, block_at(from), block_at(to)));
        }
        self.loads.push(LoadJob { request: id.to_owned(), items });
    }

    /// Plans a step.
    pub fn step(&mut self, step: StepInput) -> StepPlan {
        for id in &step.preempted {
            if let Some(request) = self.requests.get_mut(id) {
                request.drop_blocks();
            }
        }
        let mut stores_after = Vec::new();
        for scheduled in step.requests {
            let Some(request) = self.requests.get_mut(&scheduled.id) else { continue };
            request.loading = false;
            request.extend(&scheduled.new_tokens);
            match &scheduled.blocks {
                BlockUpdate::Append(blocks) => request.append_blocks(blocks),
                BlockUpdate::Replace(blocks) => request.replace_blocks(blocks),
            }
            let written = frontier::after_step(
                scheduled.computed_tokens,
                scheduled.scheduled_tokens,
                request.known_tokens(),
            );
            stores(&self.descriptor, &self.config, &self.known, request, written, &mut stores_after);
        }
        StepPlan {
            stores_before: std::mem::take(&mut self.finished),
            loads: std::mem::take(&mut self.loads),
            stores_after,
        }
    }

    /// A request is over. What became final by it goes into the next step's plan.
    pub fn finished(&mut self, id: &str, finish: &Finish) {
        let Some(mut request) = self.requests.remove(id) else { return };
        if request.loading {
            // What it counts as computed has not arrived.
            return;
        }
        request.extend(&finish.tail_tokens);
        if !finish.blocks.is_empty() {
            request.replace_blocks(&finish.blocks);
        }
        let written = frontier::at_finish(
            finish.num_tokens,
            finish.prompt_tokens,
            finish.computed_tokens,
            request.known_tokens(),
            finish.aborted,
        );
        stores(&self.descriptor, &self.config, &self.known, &mut request, written, &mut self.finished);
    }

    /// Everything stored was dropped, for example since the weights changed. What running requests hold is of
    /// before, so nothing more of them is stored.
    pub fn reset(&mut self) {
        self.known.clear();
        self.finished.clear();
        for request in self.requests.values_mut() {
            request.fenced = true;
        }
    }
}

/// Hands out what of a request lies before `written` and the user's limits.
fn stores(
    descriptor: &Descriptor,
    config: &PlanConfig,
    known: &Known,
    request: &mut Request,
    written: u64,
    jobs: &mut Vec<StoreJob>,
) {
    if request.fenced {
        return;
    }
    let prompt = if config.prompt_only { request.prompt_tokens } else { u64::MAX };
    let frontier = written.min(prompt).min(config.max_store_tokens.unwrap_or(u64::MAX));
    for ((index, group), state) in (0..).zip(&descriptor.groups).zip(&mut request.groups) {
        state.stores(GroupIndex(index), group, frontier, known, jobs);
    }
}

#[cfg(test)]
mod tests;
