//! Field reports on models of several groups: 13 and 36, and what 16 says about groups of different blocks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tender_client::TransportChoice;
use tender_proto::v1;
use tender_tests::conserve;
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::mixed::{
    self, Mixed, Tables, full, needed_blocks, scheduled, sliding, states, tokens, with_engine,
};
use tender_tests::oracle::groups::GroupSpec;
use tender_tests::oracle::truth::Truth;

/// The request that all of these tests are about.
fn prompt() -> Truth {
    Truth::new(1, &(0..80).map(|n| n * 5 + 2).collect::<Vec<_>>(), &[])
}

/// Case 13's model: 16 tokens a block in one group, 32 in the other, which sees 32 tokens.
fn mixed_blocks() -> Vec<GroupSpec> {
    vec![full(16, 1), sliding(32, 1, 32)]
}

/// What the case's R1 and R2 are given: their ids meet in number, and group 1's first block is null.
fn r1() -> Tables {
    vec![vec![5, 6, 7, 8], vec![0, 5]]
}
fn r2() -> Tables {
    vec![vec![9, 10, 11, 12], vec![0, 6]]
}

fn store_66_tokens(engine: &Mixed, id: &str) {
    let tables = vec![(21..=25).collect(), (31..=33).collect()];
    engine.store(id, &mut prompt(), 66, &tables, &[]);
    engine.poison_all();
}

/// Two loads in one step; `lost` is the block of R1's group 0 whose chunk cannot be read.
fn fail_one_block(engine: &Mixed, lost: u32) {
    let all = tokens(&mut prompt(), 66);
    let (one, two) = (format!("R1 {lost}"), format!("R2 {lost}"));
    for (id, tables) in [(&one, r1()), (&two, r2())] {
        engine.arrive(id, 66);
        assert_eq!(engine.look(id, &all, 0), 64);
        engine.scheduler.allocated(id, &tables, 64);
    }
    let mut plan = engine.plan(Vec::new());
    mixed::lose(&mut plan, &one, 0, lost);
    engine.poison_all();
    engine.carry_out(&plan, || ());
    let failed = engine.await_load(&one).remove(0);
    assert!(failed.failed, "an engine cannot go on from the middle of a window");
    let reported: BTreeSet<_> = failed.failed_blocks.iter().copied().collect();
    assert_eq!(reported, needed_blocks(&plan, &one), "its own blocks, all of them, and never the null block");
    assert!(!reported.contains(&0));
    // R2 uses id 6 too, in the other group.
    let good = engine.await_load(&two).remove(0);
    assert!(!good.failed && good.failed_blocks.is_empty(), "R2 is untouched: {good:?}");
    engine.check(&mut prompt(), &r2(), 32..64, "R2");
    assert_eq!(engine.wrong(&mut prompt(), 0, &r2()[0], 0..32), None);
    assert!(engine.untouched(0, &[lost]), "nothing landed in the block that failed");
    assert!(engine.untouched(0, &[0]) && engine.untouched(1, &[0]), "nor in the null block");

    // The engine goes on from the load's start, which all groups share, and is not promised the same again.
    assert_eq!(engine.look(&one, &all, 0), 0);
    let computed = engine.plan(vec![scheduled(&one, 0, 66, all, &computed_r1())]);
    engine.carry_out(&computed, || engine.pass(&mut prompt(), &computed_r1(), 0..66));
    engine.finish(&one, 66, 66, &computed_r1(), false);
    engine.finish(&two, 66, 64, &r2(), true);
    engine.carry_out(&engine.plan(Vec::new()), || ());
    engine.flush();
}

fn computed_r1() -> Tables {
    vec![vec![5, 6, 7, 8, 13], vec![14, 5, 15]]
}

async fn block_ids_of_two_groups(transport: TransportChoice) {
    let daemon = Daemon::start(Setup::default()).await;
    let (engine, ()) = with_engine(&daemon, transport, "field 13", mixed_blocks(), |engine| {
        store_66_tokens(engine, "stored");
        fail_one_block(engine, 6);
        fail_one_block(engine, 7);
        let plan = engine.scheduler.plan_counters();
        assert_eq!((plan.loads_failed, plan.loads_refused), (2, 0), "{plan:?}");
        // A load that begins behind what the engine has fails back to there, a boundary of both groups.
        let all = tokens(&mut prompt(), 66);
        engine.arrive("R3", 66);
        assert_eq!(engine.look("R3", &all, 32), 32);
        let mut job = engine.take("R3", &vec![vec![41, 42, 7, 8], vec![43, 5]], 32);
        mixed::lose(&mut job, "R3", 0, 7);
        engine.carry_out(&job, || ());
        let done = engine.await_load("R3").remove(0);
        assert!(done.failed);
        assert_eq!(
            BTreeSet::from_iter(done.failed_blocks),
            BTreeSet::from([5, 7, 8]),
            "nothing before token 32"
        );
        engine.finish("R3", 66, 32, &Vec::new(), true);
    })
    .await;
    conserve::quiet(daemon.engine()).await;
    drop(engine);
}

#[tokio::test(flavor = "multi_thread")]
async fn field_13_a_failed_block_of_one_group_is_nobody_elses_over_shm() {
    block_ids_of_two_groups(TransportChoice::Shm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_13_a_failed_block_of_one_group_is_nobody_elses_over_grpc() {
    block_ids_of_two_groups(TransportChoice::Grpc).await;
}

/// With one group of full attention the engine can go on from the first block that failed, so only that one is reported.
#[tokio::test(flavor = "multi_thread")]
async fn field_13_one_group_of_full_attention_fails_block_by_block() {
    let daemon = Daemon::start(Setup::default()).await;
    let (_engine, ()) =
        with_engine(&daemon, TransportChoice::Auto, "field 13 one", vec![full(16, 1)], |engine| {
            engine.store("stored", &mut prompt(), 66, &vec![(21..=25).collect()], &[]);
            let all = tokens(&mut prompt(), 66);
            engine.arrive("one", 66);
            assert_eq!(engine.look("one", &all, 0), 64);
            let mut plan = engine.take("one", &vec![vec![5, 6, 7, 8]], 64);
            mixed::lose(&mut plan, "one", 0, 7);
            engine.carry_out(&plan, || ());
            let done = engine.await_load("one").remove(0);
            assert_eq!((done.failed, done.failed_blocks), (false, vec![7]));
            assert_eq!(engine.wrong(&mut prompt(), 0, &[5, 6], 0..32), None);
            engine.finish("one", 66, 32, &vec![vec![5, 6, 7, 8]], true);
        })
        .await;
    conserve::quiet(daemon.engine()).await;
}

/// What was promised is gone when it is read: the request computes it, and what it computed is stored in its place.
#[tokio::test(flavor = "multi_thread")]
async fn field_13_what_is_computed_after_a_failed_load_is_stored_again() {
    let daemon = Daemon::start(Setup::default()).await;
    let all = tokens(&mut prompt(), 66);
    let asked = all.clone();
    let (engine, plan) =
        with_engine(&daemon, TransportChoice::Auto, "field 13 again", mixed_blocks(), move |engine| {
            store_66_tokens(engine, "stored");
            engine.arrive("promised", 66);
            assert_eq!(engine.look("promised", &asked, 0), 64);
            engine.take("promised", &r1(), 64)
        })
        .await;
    let session = daemon.client().await.open_registered(engine.descriptor()).await;
    session.client.reset(engine.descriptor().digest()).await.unwrap();
    let moved = engine.clone();
    tokio::task::spawn_blocking(move || {
        let engine = moved;
        engine.carry_out(&plan, || ());
        assert!(engine.await_load("promised").remove(0).failed);
        let step = engine.plan(vec![scheduled("promised", 0, 66, all.clone(), &computed_r1())]);
        assert!(!step.stores_after.is_empty(), "what failed is offered again, though it was stored before");
        engine.carry_out(&step, || engine.pass(&mut prompt(), &computed_r1(), 0..66));
        engine.finish("promised", 66, 66, &computed_r1(), false);
        engine.carry_out(&engine.plan(Vec::new()), || ());
        engine.flush();
        // A worker that has not heard of the reset yet gathers under the old epoch and is refused; whoever comes next
        // stores it.
        let give_up = Instant::now() + Duration::from_secs(20);
        for round in 0.. {
            let id = format!("next {round}");
            if engine.would_hit(&id, &all) == 64 {
                break;
            }
            assert!(Instant::now() < give_up, "never stored again: {:?}", engine.ranks[0].worker.counters());
            store_66_tokens(&engine, &format!("again {round}"));
        }
        engine.poison_all();
        engine.arrive("last", 66);
        assert_eq!(engine.load("last", &all, 0, &r2()), 64);
        engine.check(&mut prompt(), &r2(), 32..64, "loaded after the reset");
        engine.finish("last", 66, 64, &r2(), true);
    })
    .await
    .unwrap();
    conserve::quiet(daemon.engine()).await;
}

/// Case 36's model: full attention's objects end at 32 and 64, states lie at 32 and 48.
async fn joint_hit(model: &'static str, draft: Option<GroupSpec>) {
    let daemon = Daemon::start(Setup::default()).await;
    let mut groups = vec![full(32, 1), states(16)];
    groups.extend(draft);
    let count = groups.len();
    let (_engine, ()) = with_engine(&daemon, TransportChoice::Auto, model, groups, move |engine| {
        let mut tables = vec![vec![21, 22, 23], vec![0, 31, 32, 0, 0], (41..=45).collect()];
        tables.truncate(count);
        engine.store("stored", &mut prompt(), 66, &tables, &[(1, 31, 32), (1, 32, 48)]);
        engine.poison_all();
        let all = tokens(&mut prompt(), 66);
        // 64 has no state, 48 ends inside a block of full attention: 32 is where both can serve.
        engine.arrive("joint", 66);
        let mut tables = vec![vec![1], vec![0, 2], vec![3, 4]];
        tables.truncate(count);
        assert_eq!(engine.load("joint", &all, 0, &tables), 32);
        for (group, table) in tables.iter().enumerate() {
            assert_eq!(engine.wrong(&mut prompt(), group, table, 0..32), None, "group {group}");
        }
        engine.finish("joint", 66, 32, &Vec::new(), true);
    })
    .await;
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_36_a_hit_ends_where_every_group_has_an_object() {
    joint_hit("field 36", None).await;
}

/// Drafts on: the group that is one is a chunk behind, the others are not, and what was stored is served.
#[tokio::test(flavor = "multi_thread")]
async fn field_36_a_draft_group_vetoes_nothing() {
    let draft = GroupSpec { lookahead: 1, ..full(16, 1) };
    joint_hit("field 36 draft", Some(draft)).await;
}

/// Stores of a step with speculative tokens end before them, and what they hold is loaded again.
#[tokio::test(flavor = "multi_thread")]
async fn field_36_with_drafts_on_a_stored_prompt_hits() {
    let daemon = Daemon::start(Setup::default()).await;
    let groups = vec![full(16, 1), GroupSpec { lookahead: 1, ..full(16, 1) }];
    let (_engine, ()) = with_engine(&daemon, TransportChoice::Auto, "field 36 on", groups, |engine| {
        let all = tokens(&mut prompt(), 46);
        let tables = vec![vec![21, 22, 23, 24], vec![31, 32, 33, 34]];
        engine.arrive("drafting", 46);
        // 46 tokens and 3 drafts: slots 46 to 48 are written, and may be rejected.
        let plan = engine.plan(vec![scheduled("drafting", 0, 49, all.clone(), &tables)]);
        let stored: Vec<_> =
            plan.stores_after.iter().map(|job| (job.chunk.group.0, job.blocks.clone())).collect();
        assert_eq!(
            stored,
            [(0, vec![21]), (0, vec![22]), (1, vec![31])],
            "no draft slot, and the draft group behind"
        );
        engine.carry_out(&plan, || {
            engine.pass(&mut prompt(), &tables, 0..46);
            engine.pass(&mut Truth::new(666, &all, &[]), &tables, 46..49);
        });
        engine.finish("drafting", 46, 46, &tables, false);
        engine.carry_out(&engine.plan(Vec::new()), || ());
        engine.flush();
        engine.poison_all();
        engine.arrive("again", 46);
        let fresh = vec![vec![1, 2], vec![3, 4]];
        assert_eq!(engine.load("again", &all, 0, &fresh), 32, "more than nothing");
        engine.check(&mut prompt(), &fresh, 0..32, "again");
        engine.finish("again", 46, 32, &Vec::new(), true);
    })
    .await;
    conserve::quiet(daemon.engine()).await;
}

/// An index far outside a table, or outside the pool, is an error before any copy.
#[tokio::test(flavor = "multi_thread")]
async fn field_36_an_index_out_of_range_copies_nothing() {
    let daemon = Daemon::start(Setup::default()).await;
    let groups = vec![full(16, 2), full(4, 4)];
    let (engine, wild) = with_engine(&daemon, TransportChoice::Auto, "field 36 index", groups, |engine| {
        let all = tokens(&mut prompt(), 66);
        // Group 1's table has 10 of the 17 entries that 66 tokens need.
        let tables = vec![(1..=5).collect(), (21..=30).collect()];
        engine.arrive("short", 66);
        let mut plan = engine.plan(vec![scheduled("short", 0, 66, all, &tables)]);
        assert_eq!(engine.scheduler.plan_counters().short_block_tables, 1);
        let groups: Vec<_> = plan.stores_after.iter().map(|job| job.chunk.group.0).collect();
        assert_eq!(groups, [0, 0, 1, 1], "nothing beyond the table");
        // Wherever such a plan may come from, the worker does not follow it.
        let wild = [1, 2].map(|at| {
            let job = &mut plan.stores_after[at];
            job.blocks[1] = 105_022;
            job.chunk
        });
        engine.carry_out(&plan, || engine.pass(&mut prompt(), &tables, 0..40));
        engine.flush();
        let counters = engine.ranks[0].worker.counters();
        assert_eq!(counters.stores_skipped.get("bad_blocks"), Some(&2), "{counters:?}");
        assert_eq!((counters.stored_parts, counters.panics), (2, 0), "{counters:?}");
        engine.finish("short", 66, 0, &Vec::new(), true);
        wild
    })
    .await;
    let session = daemon.client().await.open_registered(engine.descriptor()).await;
    let states = session.states(engine.descriptor().digest(), &wild).await;
    assert_eq!(states, [v1::ChunkState::Miss; 2]);
    conserve::quiet(daemon.engine()).await;
}

/// Case 16 for groups of different blocks and chunks. The right hit is searched for from above, one boundary after
/// another, by the rule's own words.
#[tokio::test(flavor = "multi_thread")]
async fn field_16_a_hit_of_several_groups_ends_where_all_can_serve() {
    const WINDOW: usize = 40;
    let daemon = Daemon::start(Setup::default()).await;
    let groups = vec![full(16, 2), sliding(32, 2, WINDOW)];
    let (_engine, hits) = with_engine(&daemon, TransportChoice::Auto, "field 16", groups, |engine| {
        engine.store("stored", &mut prompt(), 80, &vec![(21..=25).collect(), (31..=33).collect()], &[]);
        let mut hits = Vec::new();
        for length in [31, 32, 33, 48, 63, 64, 65, 80] {
            for local in [0, 32].into_iter().filter(|&local| local < length) {
                let all = tokens(&mut prompt(), length);
                let id = format!("{length}/{local}");
                engine.poison_all();
                engine.arrive(&id, length);
                // Stored are the chunks of 32 tokens and of 64 that end by token 80; a key needs the whole chunk.
                let served = |end: usize| {
                    let known =
                        |tokens_per_chunk: usize| length.min(80) / tokens_per_chunk * tokens_per_chunk;
                    let window_needs = (end + 1).saturating_sub(WINDOW).max(local) < end;
                    end <= known(32) && (!window_needs || end <= known(64))
                };
                let right =
                    (local + 1..length).rev().find(|&end| end % 32 == 0 && served(end)).unwrap_or(local);
                let beyond = engine.look(&id, &all, local);
                assert_eq!(local + beyond, right, "{id}");
                hits.push(right);
                if beyond > 0 {
                    let table = |per_block: usize, first: u32| {
                        (0..).map(|block| first + block).take(right / per_block).collect::<Vec<_>>()
                    };
                    let fresh = vec![table(16, 1), table(32, 9)];
                    let plan = engine.take(&id, &fresh, beyond);
                    engine.carry_out(&plan, || ());
                    let done = engine.await_load(&id).remove(0);
                    assert!(!done.failed && done.failed_blocks.is_empty(), "{id}: {done:?}");
                    for (group, table) in fresh.iter().enumerate() {
                        let from =
                            if group == 0 { local } else { local.max((right + 1).saturating_sub(WINDOW)) };
                        assert_eq!(engine.wrong(&mut prompt(), group, table, from..right), None, "{id}");
                    }
                    assert!(engine.untouched(0, &fresh[0][..local / 16]), "{id}: nothing before {local}");
                    assert!(engine.untouched(1, &fresh[1][..local / 32]), "{id}: nothing before {local}");
                }
                engine.finish(&id, length, local, &Vec::new(), true);
            }
        }
        hits
    })
    .await;
    assert!(hits.contains(&0) && hits.contains(&64), "{hits:?}");
    conserve::quiet(daemon.engine()).await;
}

#[test]
fn these_models_are_what_the_cases_say() {
    let model = mixed_blocks();
    assert_eq!((model[0].tokens_per_block, model[1].tokens_per_block), (16, 32));
    // The window at 64 begins behind block 0 of group 1, which is null in R1's table.
    assert_eq!(model[1].first_kept(64) / 32, 1);
    assert!(r1()[0].contains(&6) && r2()[1].contains(&6));
}
