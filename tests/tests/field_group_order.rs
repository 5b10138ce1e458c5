//! Field reports on order and publication, for windows and states: 8, 9 and 19.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use tender_client::TransportChoice;
use tender_client::plan::StateHandoff;
use tender_proto::{ChunkId, v1};
use tender_tests::conserve;
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::mixed::{Mixed, full, scheduled, sliding, states, tokens, with_engine};
use tender_tests::oracle::memory::Spot;
use tender_tests::oracle::truth::Truth;
use tender_tests::raw::Ask;

/// The request that all of these tests are about.
fn prompt() -> Truth {
    Truth::new(1, &(0..80).map(|n| n * 5 + 2).collect::<Vec<_>>(), &[])
}

/// Case 8 for windows: a block behind the window is another's as soon as the step is scheduled, before its pass.
#[tokio::test(flavor = "multi_thread")]
async fn field_08_a_block_that_a_window_let_go_is_not_stored_for_its_old_owner() {
    let daemon = Daemon::start(Setup::default()).await;
    let groups = vec![sliding(16, 4, 20)];
    let (engine, chunk) = with_engine(&daemon, TransportChoice::Auto, "field 8", groups, |engine| {
        let all = tokens(&mut prompt(), 64);
        let other: Vec<u32> = (900..916).collect();
        let table = vec![vec![1, 2, 3]];
        engine.arrive("a", 64);
        let plan = engine.plan(vec![scheduled("a", 0, 48, all.clone(), &table)]);
        engine.carry_out(&plan, || engine.pass(&mut prompt(), &table, 0..48));
        // A query at 48 sees 29 to 48, so block 1 is free, and b gets it in the same step. a's table still names it.
        engine.arrive("b", 16);
        let grown = vec![vec![1, 2, 3, 4]];
        let plan = engine.plan(vec![
            scheduled("a", 48, 16, Vec::new(), &grown),
            scheduled("b", 0, 16, other.clone(), &vec![vec![1]]),
        ]);
        engine.carry_out(&plan, || {
            engine.pass(&mut prompt(), &grown, 48..64);
            engine.pass(&mut Truth::new(1, &other, &[]), &vec![vec![1]], 0..16);
        });
        engine.flush();
        let [job] = &plan.stores_after[..] else { panic!("one chunk, not {:?}", plan.stores_after) };
        // The same prompt: its window at 48 ends in the middle of the chunk, and does not need the block that is
        // missing there.
        engine.finish("a", 64, 64, &grown, true);
        engine.finish("b", 16, 16, &vec![vec![1]], true);
        engine.poison_all();
        engine.arrive("again", 64);
        let fresh = vec![vec![0, 6, 7, 8]];
        assert_eq!(engine.load("again", &all, 0, &fresh), 48);
        assert_eq!(engine.wrong(&mut prompt(), 0, &fresh[0], 16..48), None);
        assert!(engine.untouched(0, &[0, 8]), "neither the null block nor what is not needed");
        engine.finish("again", 64, 48, &Vec::new(), true);
        job.chunk
    })
    .await;
    assert_eq!(coverage(&daemon, &engine, chunk).await, Some(0b1110), "b's block is not in a's chunk");
    conserve::quiet(daemon.engine()).await;
}

async fn coverage(daemon: &Daemon, engine: &Mixed, chunk: ChunkId) -> Option<u64> {
    let session = daemon.client().await.open_registered(engine.descriptor()).await;
    let answer = session.lookup(engine.descriptor().digest(), &[chunk], Ask::LOOK).await.unwrap();
    let found = &answer.chunks[0];
    (found.state() == v1::ChunkState::Ready).then_some(found.coverage)
}

/// Case 9 for states, which later passes overwrite in place: what is stored is what the pass left that reached the
/// boundary, however much later the store is carried out.
#[tokio::test(flavor = "multi_thread")]
async fn field_09_a_state_is_stored_as_the_pass_left_it() {
    let daemon = Daemon::start(Setup::default()).await;
    let groups = vec![full(16, 1), states(16)];
    let (_engine, ()) = with_engine(&daemon, TransportChoice::Auto, "field 9", groups, |engine| {
        let all = tokens(&mut prompt(), 64);
        let table = |running: Vec<u32>| vec![vec![21, 22, 23, 24], running];
        engine.arrive("a", 64);
        let steps = [(0, 32, vec![0, 31]), (32, 8, vec![0, 31]), (40, 24, vec![0, 0, 0, 31])];
        for (computed, count, running) in steps {
            let end = computed + count;
            let new = if computed == 0 { all.clone() } else { Vec::new() };
            let mut request = scheduled("a", computed, count, new, &table(running));
            if end % 16 == 0 {
                let boundary_tokens = end as u64;
                request.states = vec![StateHandoff { group: 1, block: 31, boundary_tokens }];
            }
            let plan = engine.plan(vec![request]);
            let stored: Vec<_> = plan.stores_after.iter().filter(|job| job.chunk.group.0 == 1).collect();
            assert_eq!(stored.len(), usize::from(end % 16 == 0), "only a state at a boundary, after {end}");
            engine.carry_out(&plan, || {
                engine.pass(&mut prompt(), &table(Vec::new()), computed..end);
                // One block holds the running state, whatever token it has come to.
                let mut running = prompt();
                let state = Spot { group: 1, block: 31, slot: 0 };
                engine.ranks[0].memory.write(state, running.first(end));
            });
        }
        engine.finish("a", 64, 64, &table(vec![0, 0, 0, 31]), false);
        engine.carry_out(&engine.plan(Vec::new()), || engine.poison_all());
        engine.flush();
        for (prompt_tokens, hit) in [(33, 32), (49, 32), (66, 64)] {
            let id = format!("{prompt_tokens} tokens");
            let asked = tokens(&mut prompt(), prompt_tokens);
            engine.poison_all();
            engine.arrive(&id, prompt_tokens);
            let mut state = vec![0; hit / 16];
            *state.last_mut().unwrap() = 9;
            let fresh = vec![(1..=u32::try_from(hit / 16).unwrap()).collect(), state];
            assert_eq!(engine.load(&id, &asked, 0, &fresh), hit, "{id}");
            engine.check(&mut prompt(), &fresh, 0..hit, &id);
            engine.finish(&id, prompt_tokens, hit, &Vec::new(), true);
        }
    })
    .await;
    conserve::quiet(daemon.engine()).await;
}

/// Case 19 for chunks with holes: more blocks replace fewer, never the other way, and a reader of the version before is not
/// disturbed.
#[tokio::test(flavor = "multi_thread")]
async fn field_19_more_coverage_replaces_less_and_a_reader_of_the_less_finishes() {
    let daemon = Daemon::start(Setup::default()).await;
    let (engine, chunk) =
        with_engine(&daemon, TransportChoice::Auto, "field 19", vec![sliding(16, 4, 20)], |engine| {
            let all = tokens(&mut prompt(), 64);
            let with_hole = |id: &str| {
                let table = vec![vec![0, 22, 23, 24]];
                engine.arrive(id, 64);
                // It asks before it stores, as every request does: the planner learns what is there.
                engine.look(id, &all, 0);
                let plan = engine.plan(vec![scheduled(id, 0, 64, all.clone(), &table)]);
                engine.carry_out(&plan, || engine.pass(&mut prompt(), &table, 0..64));
                engine.finish(id, 64, 64, &table, true);
                engine.flush();
                plan.stores_after.iter().map(|job| (job.chunk, job.coverage.bits())).collect::<Vec<_>>()
            };
            let first = with_hole("less");
            assert_eq!(first.iter().map(|job| job.1).collect::<Vec<_>>(), [0b1110]);
            // A reader is promised the version with the hole; then the whole chunk comes.
            engine.poison_all();
            engine.arrive("reader", 64);
            assert_eq!(engine.look("reader", &all, 0), 48);
            engine.store("more", &mut prompt(), 64, &vec![vec![21, 22, 23, 24]], &[]);
            engine.poison_all();
            let fresh = vec![vec![0, 6, 7]];
            let plan = engine.take("reader", &fresh, 48);
            engine.carry_out(&plan, || ());
            let done = engine.await_load("reader").remove(0);
            assert!(!done.failed && done.failed_blocks.is_empty(), "{done:?}");
            engine.check(&mut prompt(), &fresh, 16..48, "reader");
            engine.finish("reader", 64, 48, &Vec::new(), true);
            assert_eq!(with_hole("less again"), [], "what has fewer blocks is not offered any more");
            first[0].0
        })
        .await;
    assert_eq!(coverage(&daemon, &engine, chunk).await, Some(0b1111));
    conserve::quiet(daemon.engine()).await;
}
