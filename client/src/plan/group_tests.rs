//! Plans for models of several groups.

use std::num::NonZeroU32;
use std::sync::Arc;

use tender_proto::{BlocksPerChunk, Coverage, Group, GroupKind};

use super::tests::geometry;
use super::*;
use crate::hash::RequestInputs;

fn group(kind: GroupKind, tokens_per_block: u32, blocks_per_chunk: u32, window: u32) -> Group {
    let tokens = NonZeroU32::new(tokens_per_block).unwrap();
    let blocks = BlocksPerChunk::new(blocks_per_chunk).unwrap();
    Group::new(kind, tokens, blocks, NonZeroU32::new(window), vec![64]).unwrap()
}

fn full(tokens_per_block: u32, blocks_per_chunk: u32) -> Group {
    group(GroupKind::FullAttention, tokens_per_block, blocks_per_chunk, 0)
}

fn window(tokens_per_block: u32, blocks_per_chunk: u32, window: u32) -> Group {
    self::group(GroupKind::SlidingWindow, tokens_per_block, blocks_per_chunk, window)
}

fn state(tokens_per_block: u32) -> Group {
    group(GroupKind::Recurrent, tokens_per_block, 1, 0)
}

/// A planner with request `a` of `prompt` tokens `0..prompt`.
fn planner(groups: Vec<Group>, config: PlanConfig, prompt: u32) -> Planner {
    let mut descriptor = geometry(16, 1);
    descriptor.groups = groups;
    let mut planner = Planner::new(Arc::new(descriptor), config).unwrap();
    planner.add_request("a", u64::from(prompt), &RequestInputs::default());
    planner
}

fn tokens(n: u32) -> Vec<u32> {
    (0..n).collect()
}

/// A step of request `a` with its whole table.
fn step(computed: u64, scheduled: u64, new_tokens: Vec<u32>, tables: &[Vec<u32>]) -> StepInput {
    with_states(computed, scheduled, new_tokens, tables, Vec::new())
}

fn with_states(
    computed: u64,
    scheduled: u64,
    new_tokens: Vec<u32>,
    tables: &[Vec<u32>],
    states: Vec<StateHandoff>,
) -> StepInput {
    let request = ScheduledRequest {
        id: "a".into(),
        computed_tokens: computed,
        scheduled_tokens: scheduled,
        new_tokens,
        blocks: BlockUpdate::Replace(tables.to_vec()),
        states,
    };
    StepInput { requests: vec![request], preempted: Vec::new() }
}

/// Group, coverage bits and blocks of each store.
fn stores(jobs: &[StoreJob]) -> Vec<(u16, u64, Vec<u32>)> {
    jobs.iter().map(|job| (job.chunk.group.0, job.coverage.bits(), job.blocks.clone())).collect()
}

/// Answers as if these chunks (by group: one coverage word a chunk, 0 for a miss) were what the daemon has.
fn answers(planner: &mut Planner, prompt: u32, groups: &[&[u64]], sizes: &[u32]) -> Vec<ChunkView> {
    let keys = planner.lookup_keys("a", &tokens(prompt));
    let mut views = Vec::new();
    for (index, (&words, &blocks)) in groups.iter().zip(sizes).enumerate() {
        let asked = keys.iter().filter(|key| usize::from(key.group.0) == index).count();
        let blocks = BlocksPerChunk::new(blocks).unwrap();
        for chunk in 0..asked {
            views.push(match words.get(chunk) {
                None | Some(0) => ChunkView::Miss,
                Some(&bits) => ChunkView::Ready(Coverage::new(bits, blocks).unwrap()),
            });
        }
    }
    views
}

fn hit(planner: &mut Planner, prompt: u32, groups: &[&[u64]], sizes: &[u32], computed: u64) -> u64 {
    let views = answers(planner, prompt, groups, sizes);
    planner.hit_tokens("a", &views, u64::from(prompt), computed)
}

fn end(num_tokens: u64, prompt_tokens: u64, blocks: Vec<Vec<u32>>) -> Finish {
    Finish {
        num_tokens,
        prompt_tokens,
        computed_tokens: num_tokens - 1,
        aborted: false,
        blocks,
        tail_tokens: Vec::new(),
    }
}

#[test]
fn each_group_is_cut_into_its_own_blocks_and_chunks() {
    // vLLM #48878: the block size of one group stood in for another's chunk.
    let mut planner = planner(vec![full(16, 2), window(32, 4, 1000)], PlanConfig::default(), 130);
    let tables = [(1..=9).collect(), (11..=15).collect()];
    let plan = planner.step(step(0, 130, tokens(130), &tables));
    let expected = vec![
        (0, 0b11, vec![1, 2]),
        (0, 0b11, vec![3, 4]),
        (0, 0b11, vec![5, 6]),
        (0, 0b11, vec![7, 8]),
        (1, 0b1111, vec![11, 12, 13, 14]),
    ];
    assert_eq!(stores(&plan.stores_after), expected);
}

#[test]
fn a_null_block_inside_a_chunk_clears_its_bit_whatever_its_last_block_is() {
    // vLLM #63652, #63653: a chunk counted as complete because its last block was real.
    let mut planner = planner(vec![window(16, 4, 16)], PlanConfig::default(), 64);
    let plan = planner.step(step(0, 64, tokens(64), &[vec![0, 7, 0, 9]]));
    assert_eq!(stores(&plan.stores_after), [(0, 0b1010, vec![0, 7, 0, 9])]);
    assert_eq!(planner.counters().stores_incomplete, 0);
}

#[test]
fn only_complete_chunks_are_stored_where_the_user_says_so() {
    let config = PlanConfig { complete_chunks_only: true, ..PlanConfig::default() };
    let mut planner = planner(vec![full(16, 2), window(16, 2, 16)], config, 64);
    let plan = planner.step(step(0, 64, tokens(64), &[vec![1, 2, 3, 4], vec![0, 6, 7, 8]]));
    let expected = [(0, 0b11, vec![1, 2]), (0, 0b11, vec![3, 4]), (1, 0b11, vec![7, 8])];
    assert_eq!(stores(&plan.stores_after), expected);
    assert_eq!(planner.counters().stores_incomplete, 1);
}

#[test]
fn blocks_that_a_window_has_passed_are_gone_though_the_table_still_names_them() {
    // 40 tokens are computed when the step is scheduled: a window of 20 sees tokens 21 to 40, so block 0 may be
    // somebody else's already, and this pass may write it.
    let mut planner = planner(vec![window(16, 4, 20)], PlanConfig::default(), 64);
    planner.step(step(0, 40, tokens(64), &[vec![1, 2, 3]]));
    let plan = planner.step(step(40, 24, vec![], &[vec![1, 2, 3, 4]]));
    assert_eq!(stores(&plan.stores_after), [(0, 0b1110, vec![0, 2, 3, 4])]);
}

#[test]
fn a_later_store_with_more_blocks_replaces_one_with_fewer_and_no_other_does() {
    let mut planner = planner(vec![window(16, 4, 1000)], PlanConfig::default(), 64);
    let store = |planner: &mut Planner, table: Vec<u32>| {
        planner.add_request("a", 64, &RequestInputs::default());
        stores(&planner.step(step(0, 64, tokens(64), &[table])).stores_after)
    };
    assert_eq!(store(&mut planner, vec![0, 0, 3, 4]), [(0, 0b1100, vec![0, 0, 3, 4])]);
    assert_eq!(store(&mut planner, vec![0, 0, 0, 4]), []);
    assert_eq!(store(&mut planner, vec![1, 2, 0, 4]), [], "it lacks a block that is stored");
    assert_eq!(store(&mut planner, vec![0, 2, 3, 4]), [(0, 0b1110, vec![0, 2, 3, 4])]);
    assert_eq!(planner.counters().stores_known, 2);
}

#[test]
fn a_hit_ends_where_every_group_has_what_the_next_token_reads() {
    // Chunks of 2 x 16 tokens; a window of 20 at the end of a hit needs the last two blocks.
    let groups = || vec![full(16, 2), window(16, 2, 20)];
    let hit = |full_words: &[u64], window_words: &[u64]| {
        let mut planner = planner(groups(), PlanConfig::default(), 129);
        hit(&mut planner, 129, &[full_words, window_words], &[2, 2], 0)
    };
    assert_eq!(hit(&[3, 3, 3, 3], &[3, 3, 3, 3]), 128);
    // The window's early chunks are not read.
    assert_eq!(hit(&[3, 3, 3, 3], &[0, 0, 0, 3]), 128);
    // A window that lacks a block moves the end before it, where another window must be whole.
    assert_eq!(hit(&[3, 3, 3, 3], &[0, 3, 3, 0b10]), 96);
    assert_eq!(hit(&[3, 3, 3, 3], &[0, 0, 0b10, 0b10]), 0);
    // Full attention's gap shortens the hit to where the window can serve.
    assert_eq!(hit(&[3, 3, 0b01, 0], &[3, 3, 3, 3]), 80);
    assert_eq!(hit(&[3, 3, 0b01, 0], &[3, 3, 0b10, 3]), 64);
    // One group's gap at the start is a miss, not a veto of anything that was there.
    assert_eq!(hit(&[0, 3, 3, 3], &[3, 3, 3, 3]), 0);
}

#[test]
fn a_hit_ends_on_a_boundary_that_all_groups_share() {
    let mut planner = planner(vec![full(16, 1), window(48, 1, 40)], PlanConfig::default(), 200);
    assert_eq!(hit(&mut planner, 200, &[&[1; 12], &[1; 4]], &[1, 1], 0), 192);
    // Block 11 is missing: 176 is no boundary of the other group.
    assert_eq!(hit(&mut planner, 200, &[&[1; 11], &[1; 4]], &[1, 1], 0), 144);
    // An engine that stopped where one group's block does not end gets nothing.
    assert_eq!(hit(&mut planner, 200, &[&[1; 12], &[1; 4]], &[1, 1], 64), 0);
    assert_eq!(hit(&mut planner, 200, &[&[1; 12], &[1; 4]], &[1, 1], 96), 96);
    // The fully cached prompt leaves a token to compute.
    assert_eq!(hit(&mut planner, 192, &[&[1; 12], &[1; 4]], &[1, 1], 0), 144);
}

#[test]
fn a_state_is_needed_at_the_very_end_of_a_hit() {
    let groups = vec![full(16, 2), state(32)];
    let mut planner = planner(groups, PlanConfig::default(), 161);
    assert_eq!(hit(&mut planner, 161, &[&[3; 5], &[0, 0, 0, 0, 1]], &[2, 1], 0), 160);
    assert_eq!(hit(&mut planner, 161, &[&[3; 5], &[0, 1, 0, 1, 0]], &[2, 1], 0), 128);
    assert_eq!(hit(&mut planner, 161, &[&[3, 3, 3, 1, 0], &[0, 1, 0, 1, 0]], &[2, 1], 0), 64);
    assert_eq!(hit(&mut planner, 161, &[&[3; 5], &[0; 5]], &[2, 1], 0), 0);
}

#[test]
fn a_piece_of_chunked_local_attention_needs_nothing_of_the_one_before() {
    let local = group(GroupKind::ChunkedLocal, 16, 2, 64);
    let mut planner = planner(vec![full(16, 2), local], PlanConfig::default(), 161);
    // 160 needs 128 to 160; 128 begins a piece and needs nothing at all.
    assert_eq!(hit(&mut planner, 161, &[&[3; 5], &[0, 0, 0, 0, 3]], &[2, 2], 0), 160);
    assert_eq!(hit(&mut planner, 161, &[&[3; 5], &[0; 5]], &[2, 2], 0), 128);
}

#[test]
fn a_draft_groups_last_chunk_has_no_key_before_the_token_behind_it() {
    let draft = full(16, 1).with_lookahead(1).unwrap();
    let mut planner = planner(vec![full(16, 1), draft], PlanConfig::default(), 32);
    let keys = planner.lookup_keys("a", &tokens(32));
    assert_eq!(keys.iter().map(|key| key.group.0).collect::<Vec<_>>(), [0, 0, 1]);
    // It costs a shorter hit, not all of it.
    let views = vec![ChunkView::Ready(Coverage::full(BlocksPerChunk::new(1).unwrap())); 3];
    assert_eq!(planner.hit_tokens("a", &views, 40, 0), 16);
}

#[test]
fn keys_of_a_draft_group_tell_apart_what_follows() {
    let draft = full(16, 1).with_lookahead(1).unwrap();
    let keys = |last: u32| {
        let mut planner = planner(vec![full(16, 1), draft.clone()], PlanConfig::default(), 17);
        let mut prompt = tokens(16);
        prompt.push(last);
        planner.lookup_keys("a", &prompt)
    };
    let (one, other) = (keys(100), keys(101));
    assert_eq!(one[0], other[0], "the model's own layers do not see the next token");
    assert_ne!(one[1], other[1]);
}

#[test]
fn a_draft_group_is_a_chunk_behind_while_it_runs_and_catches_up_at_the_end() {
    let draft = full(16, 1).with_lookahead(1).unwrap();
    let mut planner = planner(vec![full(16, 1), draft], PlanConfig::default(), 49);
    let tables = [vec![1, 2, 3, 4], vec![11, 12, 13, 14]];
    let plan = planner.step(step(0, 49, tokens(49), &tables));
    let groups: Vec<_> = plan.stores_after.iter().map(|job| job.chunk.group.0).collect();
    assert_eq!(groups, [0, 0, 0, 1, 1], "49 tokens are written, 33 count for draft layers");
    let plan = planner.step(step(49, 1, vec![49], &tables));
    assert!(plan.stores_after.is_empty());
    planner.finished("a", &end(51, 49, tables.to_vec()));
    let plan = planner.step(StepInput::default());
    assert_eq!(stores(&plan.stores_before), [(1, 1, vec![13])]);
}

#[test]
fn states_are_stored_from_hand_offs_only() {
    let mut planner = planner(vec![full(16, 2), state(32)], PlanConfig::default(), 96);
    let handoff = |block, boundary_tokens| StateHandoff { group: 1, block, boundary_tokens };
    let tables = [vec![1, 2, 3, 4], vec![0, 8]];
    let states = vec![handoff(8, 64), handoff(0, 32), handoff(9, 40), handoff(9, 96)];
    let plan = planner.step(with_states(0, 64, tokens(96), &tables, states));
    assert_eq!(stores(&plan.stores_after), [(0, 0b11, vec![1, 2]), (0, 0b11, vec![3, 4]), (1, 1, vec![8])]);
    assert_eq!(planner.counters().states_left_out, 3, "a null block, inside a block, beyond what is written");
    // Nor does the end take a state out of the table: what it holds by then is the running one.
    planner.step(step(64, 32, vec![], &[vec![1, 2, 3, 4, 5, 6], vec![0, 0, 10]]));
    planner.finished("a", &end(97, 96, vec![vec![1, 2, 3, 4, 5, 6], vec![0, 0, 10]]));
    assert!(planner.step(StepInput::default()).is_empty());
}

#[test]
fn a_hand_off_of_a_group_that_keeps_no_states_is_left_out() {
    let mut planner = planner(vec![full(16, 2)], PlanConfig::default(), 32);
    let states = vec![
        StateHandoff { group: 0, block: 1, boundary_tokens: 16 },
        StateHandoff { group: 9, block: 1, boundary_tokens: 16 },
    ];
    let plan = planner.step(with_states(0, 16, tokens(32), &[vec![1]], states));
    assert!(plan.is_empty());
    assert_eq!(planner.counters().states_left_out, 2);
}

#[test]
fn a_load_brings_what_the_boundary_needs_and_fails_as_a_whole() {
    let mut planner = planner(vec![full(16, 2), window(16, 2, 20), state(32)], PlanConfig::default(), 100);
    assert_eq!(hit(&mut planner, 100, &[&[3; 3], &[3; 3], &[1; 3]], &[2, 2, 1], 32), 64);
    let tables = vec![vec![1, 2, 3, 4, 5, 6, 7], vec![0, 0, 0, 0, 25, 26, 27], vec![0, 0, 33]];
    planner.allocated("a", &tables, 64);
    let [load] = &planner.step(StepInput::default()).loads[..] else { panic!("one load") };
    assert!(load.whole);
    let items: Vec<_> =
        load.items.iter().map(|item| (item.chunk.group.0, item.needed.bits(), item.blocks.clone())).collect();
    let expected =
        [(0, 0b11, vec![3, 4]), (0, 0b11, vec![5, 6]), (1, 0b11, vec![25, 26]), (2, 0b1, vec![33])];
    assert_eq!(items, expected);
    assert_eq!(planner.counters().loads_refused, 0);
}

#[test]
fn a_load_skips_what_the_window_left_without_a_block_and_nothing_else() {
    let load = |window_table: Vec<u32>, full_table: Vec<u32>| {
        let mut planner = planner(vec![full(16, 2), window(16, 2, 60)], PlanConfig::default(), 65);
        assert_eq!(hit(&mut planner, 65, &[&[3, 3], &[3, 3]], &[2, 2], 0), 64);
        planner.allocated("a", &[full_table, window_table], 64);
        let refused = planner.counters().loads_refused;
        (refused, planner.step(StepInput::default()).loads.remove(0))
    };
    let (refused, job) = load(vec![0, 6, 7, 8], vec![1, 2, 3, 4]);
    assert_eq!((refused, job.items.len()), (0, 4));
    assert_eq!((job.items[2].needed.bits(), &job.items[2].blocks), (0b10, &vec![0, 6]));
    let (refused, job) = load(vec![5, 6, 7, 8], vec![1, 0, 3, 4]);
    assert_eq!(refused, 1);
    assert!(job.items.iter().all(|item| !item.needed.is_empty() && item.chunk.hash.as_bytes() == &[0; 32]));
}

#[test]
fn a_shorter_load_than_was_promised_is_checked_at_its_own_end() {
    let load = |external: u64| {
        let mut planner = planner(vec![full(16, 1), window(16, 1, 17)], PlanConfig::default(), 100);
        assert_eq!(hit(&mut planner, 100, &[&[1; 6], &[0, 1, 0, 0, 1, 1]], &[1, 1], 0), 96);
        planner.allocated("a", &[(1..=7).collect(), (11..=17).collect()], external);
        planner.counters().loads_refused
    };
    assert_eq!(load(96), 0);
    assert_eq!(load(32), 0);
    assert_eq!(load(80), 0, "block 4 is there and its window needs no other");
    assert_eq!(load(64), 1, "the window that ends there is not stored");
    assert_eq!(load(40), 1, "not a boundary");
}

#[test]
fn a_hit_that_needs_no_bytes_is_a_load_of_nothing() {
    let local = group(GroupKind::ChunkedLocal, 16, 2, 64);
    let mut planner = planner(vec![local], PlanConfig::default(), 129);
    assert_eq!(hit(&mut planner, 129, &[&[0; 4]], &[2], 0), 128);
    planner.allocated("a", &[vec![0; 8]], 128);
    let [load] = &planner.step(StepInput::default()).loads[..] else { panic!("one load") };
    assert!(load.items.is_empty());
    // One that cannot be planned fails, though no block of it could.
    let other = group(GroupKind::ChunkedLocal, 16, 2, 64);
    let mut planner = self::planner(vec![other], PlanConfig::default(), 129);
    planner.allocated("a", &[vec![0; 8]], 128);
    let [load] = &planner.step(StepInput::default()).loads[..] else { panic!("one load") };
    assert!(load.whole && !load.items.is_empty());
}

#[test]
fn a_failed_load_is_stored_again_in_every_group() {
    let mut planner = planner(vec![full(16, 1), window(16, 1, 17)], PlanConfig::default(), 40);
    assert_eq!(hit(&mut planner, 40, &[&[1, 1], &[1, 1]], &[1, 1], 0), 32);
    let tables = [vec![1, 2, 3], vec![0, 12, 13]];
    planner.allocated("a", &tables, 32);
    planner.step(StepInput::default());
    let plan = planner.step(step(0, 40, vec![], &[vec![1, 2, 3], vec![11, 12, 13]]));
    assert_eq!(plan.stores_after.len(), 4);
    assert_eq!(planner.counters().loads_failed, 1);
}

#[test]
fn a_chunk_is_stored_when_enough_requests_asked_for_it() {
    let config = PlanConfig { store_after_requests: 2, ..PlanConfig::default() };
    let mut planner = planner(vec![full(16, 1)], config, 33);
    let mut run = |id: &str, prompt: Vec<u32>| {
        planner.add_request(id, prompt.len() as u64, &RequestInputs::default());
        // An engine asks again while a request waits; that is one request still.
        planner.lookup_keys(id, &prompt);
        planner.lookup_keys(id, &prompt);
        let mut input = step(0, prompt.len() as u64, Vec::new(), &[vec![1, 2, 3]]);
        input.requests[0].id = id.into();
        planner.step(input).stores_after.len()
    };
    assert_eq!(run("a", tokens(33)), 0);
    let mut other = tokens(16);
    other.extend(100..117);
    assert_eq!(run("b", other), 1, "the first chunk only");
    assert_eq!(run("c", tokens(33)), 1, "the second one; the first is known");
    assert_eq!(planner.counters().stores_unasked, 3);
}
