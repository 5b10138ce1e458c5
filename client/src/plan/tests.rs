use std::num::NonZeroU32;
use std::sync::Arc;

use tender_proto::limits::KEY_CHAIN_VERSION;
use tender_proto::{
    BlocksPerChunk, ChainHash, ChunkId, Coverage, Descriptor, Group, GroupIndex, GroupKind, RankGeometry,
    Reason,
};

use super::*;
use crate::hash::RequestInputs;

/// One full-attention group.
pub(super) fn geometry(tokens_per_block: u32, blocks_per_chunk: u32) -> Descriptor {
    let blocks = BlocksPerChunk::new(blocks_per_chunk).unwrap();
    let tokens = NonZeroU32::new(tokens_per_block).unwrap();
    Descriptor {
        model: "m".into(),
        weights: "w".into(),
        kv_dtype: "float32".into(),
        quantisation: "none".into(),
        groups: vec![Group::new(GroupKind::FullAttention, tokens, blocks, None, vec![64]).unwrap()],
        page_format: "H2.N16.16B".into(),
        layout_fingerprint: [0; 32],
        ranks: RankGeometry::SINGLE,
        key_chain_version: KEY_CHAIN_VERSION,
        domain: String::new(),
    }
}

/// 16 tokens a block.
fn descriptor(blocks_per_chunk: u32) -> Descriptor {
    geometry(16, blocks_per_chunk)
}

fn planner(blocks_per_chunk: u32, config: PlanConfig) -> Planner {
    Planner::new(Arc::new(descriptor(blocks_per_chunk)), config).unwrap()
}

fn tokens(n: u32) -> Vec<u32> {
    (0..n).collect()
}

fn coverage(blocks: u32, bits: u64) -> Coverage {
    Coverage::new(bits, BlocksPerChunk::new(blocks).unwrap()).unwrap()
}

fn ready(blocks: u32) -> ChunkView {
    ChunkView::Ready(Coverage::full(BlocksPerChunk::new(blocks).unwrap()))
}

/// A step of one request.
fn step(id: &str, computed: u64, scheduled: u64, new_tokens: Vec<u32>, blocks: BlockUpdate) -> StepInput {
    let request = ScheduledRequest {
        id: id.into(),
        computed_tokens: computed,
        scheduled_tokens: scheduled,
        new_tokens,
        blocks,
        states: Vec::new(),
    };
    StepInput { requests: vec![request], preempted: Vec::new() }
}

fn replace(blocks: impl IntoIterator<Item = u32>) -> BlockUpdate {
    BlockUpdate::Replace(vec![blocks.into_iter().collect()])
}

fn append(blocks: impl IntoIterator<Item = u32>) -> BlockUpdate {
    BlockUpdate::Append(vec![blocks.into_iter().collect()])
}

fn end(num_tokens: u64, prompt_tokens: u64, computed_tokens: u64, blocks: Vec<u32>) -> Finish {
    Finish {
        num_tokens,
        prompt_tokens,
        computed_tokens,
        aborted: false,
        blocks: vec![blocks],
        tail_tokens: Vec::new(),
    }
}

/// A planner of two-block chunks with request `a` of `n` prompt tokens.
fn with_request(n: u32) -> Planner {
    let mut planner = planner(2, PlanConfig::default());
    planner.add_request("a", u64::from(n), &RequestInputs::default());
    planner
}

fn stored_blocks(jobs: &[StoreJob]) -> Vec<Vec<u32>> {
    jobs.iter().map(|job| job.blocks.clone()).collect()
}

#[test]
fn models_that_cannot_be_planned_for_are_refused_with_a_sentence() {
    type Change = fn(&mut Descriptor);
    let changes: [(Change, Reason); 3] = [
        (
            |d| {
                // Primes whose product does not fit.
                let prime = |tokens| {
                    let tokens = NonZeroU32::new(tokens).unwrap();
                    let blocks = BlocksPerChunk::new(1).unwrap();
                    Group::new(GroupKind::FullAttention, tokens, blocks, None, vec![64]).unwrap()
                };
                d.groups = [4_294_967_291, 4_294_967_279, 4_294_967_231].map(prime).to_vec();
            },
            Reason::Unsupported,
        ),
        (|d| d.ranks.context_parallel = NonZeroU32::new(2).unwrap(), Reason::Unsupported),
        (|d| d.key_chain_version += 1, Reason::VersionMismatch),
    ];
    for (change, reason) in changes {
        let mut changed = descriptor(2);
        change(&mut changed);
        let refused = Planner::new(Arc::new(changed), PlanConfig::default()).unwrap_err();
        assert_eq!(refused.reason, reason, "{refused}");
    }
}

#[test]
fn chunked_prefill_stores_each_chunk_once_when_it_is_whole() {
    let mut planner = with_request(100);
    let plan = planner.step(step("a", 0, 40, tokens(100), replace(1..=3)));
    assert_eq!(stored_blocks(&plan.stores_after), [[1, 2]]);
    assert!(plan.stores_before.is_empty() && plan.loads.is_empty());
    let plan = planner.step(step("a", 40, 23, vec![], append([4])));
    assert!(plan.is_empty(), "63 tokens are written: {plan:?}");
    let plan = planner.step(step("a", 63, 37, vec![], append(5..=7)));
    assert_eq!(stored_blocks(&plan.stores_after), [[3, 4], [5, 6]]);
    assert_eq!(planner.counters().stores, 3);
}

#[test]
fn decoding_stores_a_chunk_when_its_last_slot_is_written() {
    let mut planner = with_request(31);
    assert!(planner.step(step("a", 0, 31, tokens(31), replace([1, 2]))).is_empty());
    // The sampled token's id is known, and this pass writes its slot.
    let plan = planner.step(step("a", 31, 1, vec![31], append([])));
    assert_eq!(stored_blocks(&plan.stores_after), [[1, 2]]);
}

#[test]
fn drafts_and_placeholders_are_not_stored() {
    let mut planner = with_request(30);
    let plan = planner.step(step("a", 0, 30, tokens(30), replace([1, 2])));
    assert!(plan.is_empty());
    // One token and four drafts: 35 slots are written, 31 of them for tokens that are known.
    assert!(planner.step(step("a", 30, 5, vec![30], append([3]))).is_empty());
    // A placeholder: the engine computes ahead of the ids it knows.
    assert!(planner.step(step("a", 35, 1, vec![], append([]))).is_empty());
    let plan = planner.step(step("a", 31, 2, vec![31, 32], append([])));
    assert_eq!(stored_blocks(&plan.stores_after), [[1, 2]]);
}

#[test]
fn the_last_sampled_token_is_not_stored_at_the_end() {
    for (num_tokens, stored) in [(31, false), (32, false), (33, true), (34, true)] {
        let mut planner = with_request(20);
        assert!(planner.step(step("a", 0, 20, tokens(20), replace([1, 2]))).is_empty());
        let mut finish = end(num_tokens, 20, num_tokens - 1, vec![1, 2, 3]);
        finish.tail_tokens = tokens(num_tokens as u32)[20..].to_vec();
        planner.finished("a", &finish);
        let plan = planner.step(StepInput::default());
        assert_eq!(!plan.stores_before.is_empty(), stored, "{num_tokens} tokens");
        assert!(planner.step(StepInput::default()).is_empty(), "handed out once");
    }
}

#[test]
fn an_engine_that_counts_ahead_of_its_pass_does_not_move_the_end() {
    // Asynchronous scheduling counts the last sampled token as computed once its pass is scheduled.
    let mut planner = with_request(20);
    planner.step(step("a", 0, 20, tokens(20), replace([1, 2])));
    planner
        .finished("a", &Finish { tail_tokens: tokens(32)[20..].to_vec(), ..end(32, 20, 33, vec![1, 2, 3]) });
    assert!(planner.step(StepInput::default()).is_empty());
}

#[test]
fn a_prompt_that_was_not_computed_to_its_end_is_stored_as_far_as_it_was() {
    let mut planner = with_request(100);
    planner.step(step("a", 0, 40, tokens(100), replace(1..=7)));
    planner.finished("a", &Finish { aborted: true, ..end(100, 100, 70, (1..=7).collect()) });
    assert_eq!(stored_blocks(&planner.step(StepInput::default()).stores_before), [[3, 4]]);
}

#[test]
fn an_abort_during_a_load_stores_nothing_that_it_was_to_fill() {
    let mut planner = with_request(100);
    let keys = planner.lookup_keys("a", &tokens(100));
    assert_eq!(planner.hit_tokens("a", &[ready(2), ready(2), ready(2)], 100, 32), 64);
    planner.allocated("a", &[(1..=7).collect()], 64);
    planner.step(StepInput::default());
    planner.forget(&keys);
    // The engine counts the loaded tokens as computed from the start.
    planner.finished("a", &Finish { aborted: true, ..end(100, 100, 96, (1..=7).collect()) });
    let plan = planner.step(StepInput::default());
    assert_eq!(stored_blocks(&plan.stores_before), [[1, 2]], "only what was there before the load");
}

#[test]
fn field_08_a_preempted_request_stores_nothing_of_its_old_blocks() {
    let mut planner = with_request(64);
    planner.add_request(
        "b",
        32,
        &RequestInputs::new(vec![crate::hash::NamedInput::Salt("b".into())], vec![]).unwrap(),
    );
    let first = planner.step(step("a", 0, 20, tokens(64), replace([2, 3, 4, 5])));
    assert!(first.is_empty());
    // A loses its blocks; B gets two of them without external tokens, in the same step.
    let mut input = step("b", 0, 32, tokens(32), replace([2, 3]));
    input.preempted.push("a".into());
    let plan = planner.step(input);
    let key_b = planner.lookup_keys("b", &tokens(32))[0];
    assert_eq!((plan.stores_after.len(), plan.stores_after[0].chunk), (1, key_b));
    // A cannot store what it no longer has, whatever its end says.
    let mut other = with_request(64);
    other.step(step("a", 0, 20, tokens(64), replace([2, 3, 4, 5])));
    other.step(StepInput { requests: vec![], preempted: vec!["a".into()] });
    other.finished("a", &Finish { aborted: true, ..end(64, 64, 64, vec![2, 3, 4, 5]) });
    assert!(other.step(StepInput::default()).is_empty());
    // Re-admitted in other blocks it starts anew, and ends while its stores are on their way.
    let plan = planner.step(step("a", 0, 64, vec![], replace([6, 7, 8, 9])));
    assert_eq!(stored_blocks(&plan.stores_after), [[6, 7], [8, 9]]);
    planner.finished("a", &end(64, 64, 64, vec![6, 7, 8, 9]));
    assert!(planner.step(StepInput::default()).is_empty());
}

#[test]
fn field_16_hits_end_where_something_can_be_loaded_and_leave_a_token() {
    let lengths = [31u32, 32, 33, 48, 63, 64, 65, 96];
    // 64 tokens are stored; load units of a chunk of 32 tokens, of a chunk of 16, and of a block of 16 in chunks
    // of 32 (which needs the whole chunk's tokens for its key).
    let cases: [(u32, HitUnit, [u64; 8]); 3] = [
        (2, HitUnit::Chunk, [0, 0, 32, 32, 32, 32, 64, 64]),
        (1, HitUnit::Chunk, [16, 16, 32, 32, 48, 48, 64, 64]),
        (2, HitUnit::Block, [0, 16, 32, 32, 32, 48, 64, 64]),
    ];
    for (blocks_per_chunk, hit_unit, expected) in cases {
        for (length, hit) in lengths.into_iter().zip(expected) {
            for local in [0u64, 16, 32] {
                let mut planner = planner(blocks_per_chunk, PlanConfig { hit_unit, ..PlanConfig::default() });
                planner.add_request("a", u64::from(length), &RequestInputs::default());
                let keys = planner.lookup_keys("a", &tokens(length));
                let stored = (64 / 16 / blocks_per_chunk) as usize;
                let answers: Vec<_> = (0..keys.len())
                    .map(|i| if i < stored { ready(blocks_per_chunk) } else { ChunkView::Miss })
                    .collect();
                let external = planner.hit_tokens("a", &answers, u64::from(length), local);
                let case = format!("unit {hit_unit:?} of {blocks_per_chunk}, length {length}, local {local}");
                assert_eq!(external, hit.saturating_sub(local), "{case}");
                planner.allocated("a", &[(1..=6).collect()], external);
                let loads = planner.step(StepInput::default()).loads;
                let blocks: Vec<u32> = loads
                    .iter()
                    .flat_map(|job| &job.items)
                    .flat_map(|item| item.needed.iter().map(|i| item.blocks[i as usize]))
                    .collect();
                let (from, to) = (local / 16, (local + external) / 16);
                assert_eq!(blocks, (from..to).map(|block| block as u32 + 1).collect::<Vec<_>>(), "{case}");
            }
        }
    }
}

#[test]
fn a_hit_ends_at_the_first_block_that_is_missing() {
    let mut planner = planner(4, PlanConfig::default());
    planner.add_request("a", 300, &RequestInputs::default());
    planner.lookup_keys("a", &tokens(300));
    let (full, half) = (ready(4), ChunkView::Ready(coverage(4, 0b0011)));
    let gap = ChunkView::Ready(coverage(4, 0b1101));
    for (answers, computed, expected) in [
        ([full, half, full, full], 0, 96),
        ([full, gap, full, full], 0, 80),
        ([full, gap, full, full], 96, 160),
        ([full, ChunkView::Pending, full, full], 0, 64),
        ([ChunkView::Miss, full, full, full], 0, 0),
        ([ChunkView::Miss, full, full, full], 64, 192),
        ([full, full, full, full], 32, 224),
        ([full, full, full, full], 272, 0),
        ([full, full, full, full], 40, 0),
        // Coverage of a chunk of another size is no answer.
        ([ready(2), full, full, full], 0, 0),
    ] {
        assert_eq!(planner.hit_tokens("a", &answers, 300, computed), expected, "{answers:?} from {computed}");
    }
    // Another number of answers than there were keys is no answer either.
    assert_eq!(planner.hit_tokens("a", &[full; 3], 300, 0), 0);
}

#[test]
fn a_load_inside_chunks_names_only_the_blocks_it_needs() {
    let mut planner = planner(4, PlanConfig::default());
    planner.add_request("a", 300, &RequestInputs::default());
    let keys = planner.lookup_keys("a", &tokens(300));
    let answers = [ready(4), ready(4), ChunkView::Ready(coverage(4, 0b0001)), ready(4)];
    assert_eq!(planner.hit_tokens("a", &answers, 300, 32), 112);
    planner.allocated("a", &[(10..30).collect()], 112);
    let plan = planner.step(StepInput::default());
    let expected = [
        (keys[0], 0b1100, vec![0, 0, 12, 13]),
        (keys[1], 0b1111, vec![14, 15, 16, 17]),
        (keys[2], 0b0001, vec![18, 0, 0, 0]),
    ]
    .map(|(chunk, bits, blocks)| LoadItem { chunk, needed: coverage(4, bits), blocks });
    assert_eq!(
        plan.loads,
        [LoadJob { request: "a".into(), items: expected.to_vec(), whole: false, trace: Default::default() }]
    );
    // The chunk that the load ended in is stored whole once it is computed; the others are known.
    let plan = planner.step(step("a", 144, 156, vec![], replace(10..30)));
    assert_eq!(stored_blocks(&plan.stores_after), [(18..22).collect::<Vec<_>>()]);
    assert_eq!(planner.counters().stores_known, 3);
}

#[test]
fn a_load_that_does_not_fit_is_planned_to_fail() {
    let blocks: Vec<u32> = (1..=6).collect();
    type Case<'a> = (&'a [u32], u64, &'a [u32]);
    let with_null = [1, 2, 0, 4, 5, 6];
    let cases: [Case<'_>; 4] = [
        // More than was promised, a part of a block, a table that is too short, a null block.
        (&blocks, 80, &[1, 2, 3, 4, 5, 6]),
        (&blocks, 40, &[1, 2, 3, 4, 5, 6]),
        (&blocks[..2], 64, &[1, 2]),
        (&with_null, 64, &[1, 2, 4, 5, 6]),
    ];
    for (table, external, failed) in cases {
        let mut planner = with_request(96);
        let keys = planner.lookup_keys("a", &tokens(96));
        assert_eq!(planner.hit_tokens("a", &[ready(2), ready(2), ChunkView::Miss], 96, 0), 64);
        planner.allocated("a", &[table.to_vec()], external);
        let plan = planner.step(StepInput::default());
        assert_eq!(StepPlan::decode(&plan.encode()).unwrap(), plan);
        let items: Vec<_> = plan.loads.iter().flat_map(|job| &job.items).collect();
        assert!(items.iter().all(|item| !keys.contains(&item.chunk)));
        let named: Vec<u32> =
            items.iter().flat_map(|item| item.needed.iter().map(|i| item.blocks[i as usize])).collect();
        assert_eq!(named, failed);
        assert_eq!(planner.counters().loads_refused, 1);
    }
}

#[test]
fn a_failed_load_is_stored_again_and_not_promised_again() {
    let mut planner = with_request(100);
    planner.lookup_keys("a", &tokens(100));
    assert_eq!(planner.hit_tokens("a", &[ready(2); 3], 100, 0), 96);
    planner.allocated("a", &[(1..=7).collect()], 96);
    assert_eq!(planner.step(StepInput::default()).loads.len(), 1);
    // The second chunk was not there: the engine goes on from its start.
    let plan = planner.step(step("a", 32, 68, vec![], replace(1..=7)));
    assert_eq!(stored_blocks(&plan.stores_after), [[3, 4], [5, 6]]);
    assert_eq!(planner.counters().loads_failed, 1);
    planner.step(StepInput { requests: vec![], preempted: vec!["a".into()] });
    planner.lookup_keys("a", &tokens(100));
    assert_eq!(planner.hit_tokens("a", &[ready(2); 3], 100, 0), 0);
}

#[test]
fn a_request_preempted_between_two_steps_keeps_the_load_of_its_new_blocks() {
    let mut planner = with_request(100);
    planner.step(step("a", 0, 20, tokens(100), replace(1..=2)));
    // The engine takes its blocks, admits it again with a hit, and tells of both in one step.
    planner.lookup_keys("a", &tokens(100));
    assert_eq!(planner.hit_tokens("a", &[ready(2); 3], 100, 0), 96);
    planner.allocated("a", &[(11..=17).collect()], 96);
    let plan = planner.step(StepInput { requests: vec![], preempted: vec!["a".into()] });
    assert_eq!((plan.loads.len(), planner.counters().loads_dropped), (1, 0));
    // The load went well.
    planner.step(step("a", 96, 4, vec![], replace(11..=17)));
    assert_eq!(planner.counters().loads_failed, 0);
}

#[test]
fn a_resumed_request_goes_on_with_its_new_table() {
    let mut planner = with_request(64);
    let plan = planner.step(step("a", 0, 33, tokens(64), replace(1..=4)));
    assert_eq!(stored_blocks(&plan.stores_after), [[1, 2]]);
    planner.step(StepInput { requests: vec![], preempted: vec!["a".into()] });
    // An update of a table that is gone changes nothing.
    assert!(planner.step(step("a", 33, 31, vec![], append([9]))).is_empty());
    assert_eq!(planner.counters().short_block_tables, 1);
    let plan = planner.step(step("a", 0, 64, vec![], replace(5..=8)));
    assert_eq!(stored_blocks(&plan.stores_after), [[7, 8]], "the first chunk is known to be stored");
    // Preempted once more, and meanwhile the daemon lost the first chunk.
    planner.step(StepInput { requests: vec![], preempted: vec!["a".into()] });
    let lost = planner.lookup_keys("a", &tokens(64))[0];
    planner.forget(&[lost]);
    let plan = planner.step(step("a", 0, 64, vec![], replace(9..=12)));
    assert_eq!(stored_blocks(&plan.stores_after), [[9, 10]]);
}

#[test]
fn a_chunk_is_stored_once_among_all_requests_until_it_is_lost() {
    let mut planner = with_request(32);
    planner.step(step("a", 0, 32, tokens(32), replace([1, 2])));
    for (id, lost) in [("b", false), ("c", true)] {
        planner.add_request(id, 32, &RequestInputs::default());
        let keys = planner.lookup_keys(id, &tokens(32));
        if lost {
            assert_eq!(planner.hit_tokens(id, &[ChunkView::Miss], 32, 0), 0);
        }
        let plan = planner.step(step(id, 0, 32, vec![], replace([3, 4])));
        assert_eq!(plan.stores_after.len(), usize::from(lost), "{keys:?}");
    }
    // A stored part of the chunk is not the chunk.
    planner.add_request("d", 40, &RequestInputs::default());
    let key = planner.lookup_keys("d", &tokens(32))[0];
    planner.forget(&[key]);
    planner.stored_elsewhere(&[(key, coverage(2, 0b01))]);
    assert_eq!(planner.step(step("d", 0, 32, vec![], replace([5, 6]))).stores_after.len(), 1);
}

#[test]
fn null_blocks_are_left_out_of_a_store() {
    let mut planner = with_request(96);
    let plan = planner.step(step("a", 0, 96, tokens(96), replace([0, 2, 0, 0, 5, 6])));
    let stored: Vec<_> = plan.stores_after.iter().map(|job| job.coverage.bits()).collect();
    assert_eq!(stored, [0b10, 0b11]);
}

#[test]
fn the_users_limits_only_lower_the_frontier() {
    let run = |config: PlanConfig| {
        let mut planner = planner(2, config);
        planner.add_request("a", 70, &RequestInputs::default());
        planner.step(step("a", 69, 60, tokens(130), replace(1..=9))).stores_after.len()
    };
    assert_eq!(run(PlanConfig::default()), 4);
    assert_eq!(run(PlanConfig { prompt_only: true, ..PlanConfig::default() }), 2);
    assert_eq!(run(PlanConfig { max_store_tokens: Some(63), ..PlanConfig::default() }), 1);
}

#[test]
fn a_reset_drops_what_was_to_be_stored_and_what_running_requests_hold() {
    let mut planner = with_request(64);
    planner.step(step("a", 0, 20, tokens(64), replace(1..=4)));
    planner.add_request("b", 32, &RequestInputs::default());
    planner.finished("b", &Finish { tail_tokens: tokens(32), ..end(32, 32, 32, vec![5, 6]) });
    planner.reset();
    let plan = planner.step(step("a", 20, 44, vec![], append([])));
    assert!(plan.is_empty(), "{plan:?}");
    planner.step(StepInput { requests: vec![], preempted: vec!["a".into()] });
    let plan = planner.step(step("a", 0, 64, vec![], replace(1..=4)));
    assert_eq!(plan.stores_after.len(), 2, "computed anew");
}

#[test]
fn nonsense_is_ignored_and_counted() {
    let mut planner = with_request(32);
    assert!(planner.lookup_keys("nobody", &tokens(32)).is_empty());
    assert_eq!(planner.hit_tokens("nobody", &[ready(2)], 32, 0), 0);
    planner.allocated("nobody", &[vec![1, 2]], 32);
    planner.finished("nobody", &end(32, 32, 32, vec![1, 2]));
    let mut input = step("nobody", 0, 32, tokens(32), replace([1, 2]));
    input.preempted.push("no one".into());
    assert!(planner.step(input).is_empty());
    assert_eq!(planner.counters().unknown_requests, 6);
    // Numbers past all bounds, tables of too many groups and tables that are too short.
    let plan = planner.step(step("a", u64::MAX, u64::MAX, tokens(64), replace([1, 2, 3])));
    assert_eq!(stored_blocks(&plan.stores_after), [[1, 2]]);
    assert!(planner.step(step("a", 0, 64, vec![], BlockUpdate::Replace(vec![]))).is_empty());
    assert!(planner.step(step("a", 0, 64, vec![], BlockUpdate::Append(vec![vec![4]; 2]))).is_empty());
    assert_eq!(planner.counters().short_block_tables, 3);
    planner.finished("a", &end(u64::MAX, u64::MAX, u64::MAX, vec![]));
    assert!(planner.step(StepInput::default()).is_empty());
}

#[test]
fn an_id_that_comes_again_is_another_request() {
    let mut planner = with_request(64);
    planner.lookup_keys("a", &tokens(64));
    planner.hit_tokens("a", &[ready(2); 2], 64, 0);
    planner.allocated("a", &[(1..=4).collect()], 32);
    planner.add_request("a", 32, &RequestInputs::default());
    assert_eq!((planner.counters().replaced_requests, planner.counters().loads_dropped), (1, 1));
    assert_eq!(planner.known_tokens("a"), Some(0));
    planner.finished("a", &end(0, 0, 0, vec![]));
    assert_eq!(planner.known_tokens("a"), None);
}

#[test]
fn plans_survive_their_way_and_garbage_does_not_become_one() {
    let chunk = ChunkId { group: GroupIndex(3), hash: ChainHash::from_bytes([9; 32]) };
    let store = StoreJob { chunk, coverage: coverage(2, 0b10), blocks: vec![0, 7] };
    let item = LoadItem { chunk, needed: coverage(2, 0b01), blocks: vec![u32::MAX, 0] };
    let plan = StepPlan {
        stores_before: vec![store.clone()],
        loads: vec![LoadJob {
            request: "r".into(),
            items: vec![item],
            whole: false,
            trace: Default::default(),
        }],
        stores_after: vec![store.clone(), store],
        epoch: Some(3),
    };
    let bytes = plan.encode();
    assert_eq!(StepPlan::decode(&bytes).unwrap(), plan);
    assert_eq!(StepPlan::decode(&[]).unwrap(), StepPlan::default());
    for cut in 1..bytes.len() {
        // A cut either is no message or lacks whole jobs; it never panics and never holds another job.
        if let Ok(part) = StepPlan::decode(&bytes[..cut]) {
            assert!(part.stores_after.len() <= plan.stores_after.len());
        }
    }
    let mut wrong = plan;
    wrong.stores_after[0].blocks.push(1);
    wrong.stores_after[0].coverage = coverage(3, 0b100);
    wrong.stores_after[0].blocks.truncate(2);
    assert_eq!(StepPlan::decode(&wrong.encode()).unwrap_err().reason, Reason::BadCoverage);
}
