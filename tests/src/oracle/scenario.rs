//! What is drawn from a seed: the model, the engines, the schedule's habits, and what goes wrong.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tender_client::plan::{HitUnit, PlanConfig};
use tender_proto::GroupKind;

use super::groups::GroupSpec;
use super::place::{Arrangement, ORDERS};
use super::truth::mix;

/// One run, in full.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// Where all random choices come from.
    pub seed: u64,
    /// Scheduler steps of each engine.
    pub steps: u32,
    /// Engines on one daemon.
    pub engines: u32,
    /// Requests that come to each engine.
    pub requests: u32,
    /// The model's layer groups.
    pub groups: Vec<GroupSpec>,
    /// How they share memory.
    pub arrangement: Arrangement,
    /// Blocks of each engine's pool, the null block included.
    pub pool_blocks: u32,
    /// Longest prompt.
    pub prompt_tokens: usize,
    /// Most generated tokens.
    pub output_tokens: usize,
    /// Tokens of one pass.
    pub token_budget: usize,
    /// Requests of one pass.
    pub max_running: usize,
    /// A step is scheduled before the one before is known.
    pub asynchronous: bool,
    /// Draft tokens of a request in one pass, at most.
    pub drafts: usize,
    /// Stores and lookups run beside the engine; else each step waits for them, and the seed decides everything.
    pub racing: bool,
    /// The daemon's arena.
    pub arena_bytes: u64,
    /// Every second engine is attached over the network.
    pub network: bool,
    /// So little staging that stores are skipped.
    pub tight: bool,
    /// Loads have hardly any time, so many fail on the way.
    pub hurried: bool,
    /// Tensor-parallel ranks of each engine.
    pub ranks: Vec<u32>,
    /// Parts that a chunk of heads has.
    pub parts: u32,
    /// Different salts and adapters.
    pub inputs: u64,
    /// Chances out of a thousand in each step.
    pub chances: Chances,
    /// Planner settings.
    pub plan: PlanConfig,
}

/// Chances of events in each step, out of a thousand.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Chances {
    /// A request is aborted.
    pub abort: u32,
    /// The engine empties its own prefix cache.
    pub forget: u32,
    /// New weights: everything stored is reset.
    pub reset: u32,
    /// One engine resets what is stored, while everybody goes on.
    pub drop: u32,
    /// The daemon is restarted over what it held.
    pub restart: u32,
    /// The engine takes less of a hit than it was offered.
    pub take_less: u32,
}

impl Scenario {
    /// Draws the scenario of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(mix(seed, 1));
        let asynchronous = rng.random_bool(0.4);
        let mut drafts = if rng.random_bool(0.4) { rng.random_range(1..4usize) } else { 0 };
        let mut groups = draw_groups(&mut rng, &mut drafts, asynchronous);
        let (ranks, parts) = draw_ranks(&mut rng, &mut groups);
        let arrangement = draw_arrangement(&mut rng, &groups);
        let prompt_tokens = *[60, 120, 180].choose(&mut rng).expect("some");
        let output_tokens = rng.random_range(4..24usize);
        let longest: usize = prompt_tokens + 64 + 8;
        let one: usize = groups.iter().map(|group| longest.div_ceil(group.tokens_per_block) + 2).sum();
        let pool_blocks = u32::try_from(one * rng.random_range(11..25) / 10 + 2).expect("small");
        let least: usize = groups.iter().map(|group| group.tokens_per_block).max().unwrap_or(1);
        let chance = |rng: &mut StdRng, likely: f64, most: u32| {
            if rng.random_bool(likely) { rng.random_range(1..most) } else { 0 }
        };
        let chances = Chances {
            abort: chance(&mut rng, 0.6, 60),
            forget: chance(&mut rng, 0.85, 1000),
            reset: chance(&mut rng, 0.25, 80),
            drop: chance(&mut rng, 0.2, 80),
            restart: chance(&mut rng, 0.12, 25),
            take_less: chance(&mut rng, 0.2, 300),
        };
        let plan = PlanConfig {
            hit_unit: if rng.random_bool(0.9) { HitUnit::Block } else { HitUnit::Chunk },
            prompt_only: rng.random_bool(0.1),
            max_store_tokens: rng.random_bool(0.1).then(|| rng.random_range(1..100)),
            complete_chunks_only: rng.random_bool(0.1),
            store_after_requests: if rng.random_bool(0.1) { 2 } else { 1 },
            ..PlanConfig::default()
        };
        Self {
            seed,
            steps: rng.random_range(30..90),
            engines: rng.random_range(1..=3),
            requests: rng.random_range(8..30),
            groups,
            arrangement,
            pool_blocks,
            prompt_tokens,
            output_tokens,
            token_budget: rng.random_range(least.max(12)..least.max(12) * 4),
            max_running: rng.random_range(2..6),
            asynchronous,
            drafts,
            racing: rng.random_bool(0.25),
            arena_bytes: *[256 << 10, 1 << 20, 16 << 20, 16 << 20].choose(&mut rng).expect("some"),
            network: rng.random_bool(0.5),
            tight: rng.random_bool(0.1),
            hurried: rng.random_bool(0.1),
            ranks,
            parts,
            inputs: *[1, 1, 2, 3].choose(&mut rng).expect("some"),
            chances,
            plan,
        }
    }

    /// Tokens after which a hit of the engine's own prefix cache may end.
    pub fn hit_granule(&self) -> usize {
        self.groups.iter().map(|group| group.tokens_per_block).max().unwrap_or(1)
    }
    /// Slots of a state block, if the model has states.
    pub fn state_tokens(&self) -> Option<usize> {
        self.groups.iter().find(|group| group.recurrent()).map(|group| group.tokens_per_block)
    }
    /// Smaller scenarios of the same seed, the smallest first.
    pub fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut one = self.clone();
            change(&mut one);
            if one != *self {
                all.push(one);
            }
        };
        add(&|s| s.engines = 1);
        add(&|s| s.steps /= 2);
        add(&|s| s.steps -= s.steps / 8);
        add(&|s| s.requests = (s.requests / 2).max(1));
        add(&|s| s.requests = (s.requests - 1).max(1));
        for gone in 0..self.groups.len() {
            add(&|s| {
                if s.groups.len() > 1 {
                    s.groups.remove(gone);
                    match &mut s.arrangement {
                        Arrangement::Apart { orders, .. } => _ = orders.remove(gone),
                        Arrangement::Overlaid { heads_first, .. } => _ = heads_first.remove(gone),
                    }
                }
            });
        }
        add(&|s| {
            if s.parts == 1 {
                s.ranks.fill(1);
            }
        });
        add(&|s| s.drafts = 0);
        add(&|s| s.asynchronous = false);
        add(&|s| s.racing = false);
        add(&|s| s.inputs = 1);
        add(&|s| s.chances.abort = 0);
        add(&|s| s.chances.forget = 0);
        add(&|s| s.chances.reset = 0);
        add(&|s| s.chances.drop = 0);
        add(&|s| s.chances.restart = 0);
        add(&|s| s.chances.take_less = 0);
        add(&|s| s.arena_bytes = 16 << 20);
        add(&|s| s.network = false);
        add(&|s| s.tight = false);
        add(&|s| s.hurried = false);
        add(&|s| s.plan = PlanConfig::default());
        all
    }
}

fn draw_groups(rng: &mut StdRng, drafts: &mut usize, asynchronous: bool) -> Vec<GroupSpec> {
    let count = *[1, 1, 2, 2, 3, 4].choose(rng).expect("some");
    // A state takes the place of a rejected draft's, so models with states go without drafts here.
    let states = count > 1 && rng.random_bool(0.35);
    if states {
        *drafts = 0;
    }
    let draft_group = rng.random_bool(0.25);
    let mla = rng.random_bool(0.15);
    (0..count)
        .map(|index| {
            let tokens_per_block = *[4u32, 8, 8, 16, 16, 32].choose(rng).expect("some");
            // Chunks of a few dozen tokens, for prompts of a hundred.
            let most_blocks = if rng.random_bool(0.9) { (48 / tokens_per_block).clamp(1, 8) } else { 8 };
            let mut kind = match rng.random_range(0..10) {
                0..4 => GroupKind::FullAttention,
                4..8 => GroupKind::SlidingWindow,
                _ => GroupKind::ChunkedLocal,
            };
            if states && index == 0 {
                kind = GroupKind::Recurrent;
            } else if mla {
                kind = GroupKind::MlaLatent;
            }
            let lookahead =
                if draft_group && index + 1 == count && index > 0 { rng.random_range(1..3usize) } else { 0 };
            // What no engine does: chunked-local drafts, or a chunked-local group that computes again what it computed.
            let again = lookahead > 0 || (asynchronous && *drafts > 0);
            if kind == GroupKind::ChunkedLocal && again {
                kind = GroupKind::SlidingWindow;
            }
            let window = match kind {
                GroupKind::SlidingWindow => rng.random_range(5..70),
                GroupKind::ChunkedLocal => rng.random_range(8..70),
                _ => 0,
            };
            let retained = if kind == GroupKind::SlidingWindow && (again || rng.random_bool(0.2)) {
                lookahead + 2 * (*drafts + 1)
            } else {
                0
            };
            GroupSpec {
                kind,
                tokens_per_block: tokens_per_block as usize,
                blocks_per_chunk: if kind == GroupKind::Recurrent {
                    1
                } else {
                    rng.random_range(1..=most_blocks)
                },
                window,
                retained,
                lookahead: if kind == GroupKind::Recurrent { 0 } else { lookahead },
                layers: rng.random_range(1..3),
                heads: if kind == GroupKind::MlaLatent { 0 } else { *[1, 2, 4].choose(rng).expect("some") },
                cell_bytes: *[8, 12, 16].choose(rng).expect("some"),
                side: rng.random_bool(0.15),
                heads_first: rng.random_bool(0.5),
            }
        })
        .collect()
}

/// Ranks of three engines, and the parts that they agree on. With states, which nobody can cut, all have equally many
/// ranks; else engines of any size share what they store.
fn draw_ranks(rng: &mut StdRng, groups: &mut [GroupSpec]) -> (Vec<u32>, u32) {
    let parts = *[1, 1, 2, 4].choose(rng).expect("some");
    let size = |rng: &mut StdRng| *[1, 1, 1, 2, 2, 4].choose(rng).expect("some");
    let ranks = if groups.iter().any(GroupSpec::recurrent) {
        vec![parts; 3]
    } else {
        (0..3).map(|_| size(rng)).collect()
    };
    for group in groups {
        if group.heads > 0 {
            group.heads = group.heads.max(parts);
        }
        // What has no heads cannot be cut into parts.
        group.side &= parts == 1;
    }
    (ranks, parts)
}

fn draw_arrangement(rng: &mut StdRng, groups: &[GroupSpec]) -> Arrangement {
    let padding = *[0, 0, 8, 24].choose(rng).expect("some");
    let scales = rng.random_bool(0.3);
    if rng.random_bool(0.5) {
        let orders = groups.iter().map(|_| rng.random_range(0..ORDERS.len())).collect();
        Arrangement::Apart { orders, padding, scales }
    } else {
        let heads_first = groups.iter().map(|group| group.heads_first).collect();
        Arrangement::Overlaid { packed: rng.random_bool(0.5), padding, heads_first, scales }
    }
}
