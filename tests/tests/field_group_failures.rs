//! Field reports on failed loads, for models of three groups: 7 and 12.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tender_client::plan::StepPlan;
use tender_client::{Address, TransportChoice};
use tender_proto::Coverage;
use tender_tests::daemon::{Daemon, Setup, client_config};
use tender_tests::mixed::{self, Mixed, Tables, full, needed_blocks, sliding, states, tokens, with_engine};
use tender_tests::oracle::groups::GroupSpec;
use tender_tests::oracle::truth::Truth;
use tender_tests::proxy::{Mode, Proxy};
use tender_tests::{conserve, fixture};

/// The request that all of these tests are about.
fn prompt() -> Truth {
    Truth::new(1, &(0..80).map(|n| n * 5 + 2).collect::<Vec<_>>(), &[])
}

/// Case 12 with three groups of three kinds.
fn three_kinds() -> Vec<GroupSpec> {
    vec![full(16, 2), sliding(16, 2, 40), states(32)]
}

const STATES_AT_32_AND_64: [(u16, u32, u64); 2] = [(2, 41, 32), (2, 42, 64)];

fn three_tables(first: u32) -> Tables {
    vec![(first..first + 4).collect(), vec![0, first + 5, first + 6, first + 7], vec![0, first + 8]]
}

fn one_of_three_fails(engine: &Mixed, what: &str, damage: impl FnOnce(&mut StepPlan)) {
    let all = tokens(&mut prompt(), 65);
    engine.arrive(what, 65);
    assert_eq!(engine.look(what, &all, 0), 64, "{what}");
    let mut plan = engine.take(what, &three_tables(1), 64);
    damage(&mut plan);
    engine.poison_all();
    let before = engine.ranks[0].worker.counters();
    engine.carry_out(&plan, || ());
    let done = engine.await_load(what).remove(0);
    assert!(done.failed, "{what}");
    assert_eq!(BTreeSet::from_iter(done.failed_blocks), needed_blocks(&plan, what), "{what}");
    assert!(!engine.more_reports(), "{what}: one report for one load");
    let after = engine.ranks[0].worker.counters();
    assert_eq!((after.loads, after.loads_failed), (before.loads, before.loads_failed + 1), "{what}");
    assert_eq!(after.panics, 0, "{what}");
    for group in 0..3 {
        let others: Vec<_> = (20..64).chain([0]).collect();
        assert!(engine.untouched(group, &others), "{what}: a block of somebody else was written");
    }
    engine.finish(what, 65, 0, &Vec::new(), true);
}

async fn six_reads_of_three_groups(transport: TransportChoice) {
    let daemon = Daemon::start(Setup::default()).await;
    let (engine, ()) = with_engine(&daemon, transport, "field 12 of three", three_kinds(), |engine| {
        let tables = vec![(21..=25).collect(), (31..=35).collect(), vec![41, 42]];
        engine.store("stored", &mut prompt(), 66, &tables, &STATES_AT_32_AND_64);
        engine.poison_all();
        engine.arrive("good", 65);
        assert_eq!(engine.load("good", &tokens(&mut prompt(), 65), 0, &three_tables(1)), 64);
        engine.check(&mut prompt(), &three_tables(1), 32..64, "good");
        engine.finish("good", 65, 64, &Vec::new(), true);
        for (group, block) in [(0, 2), (1, 6), (2, 9)] {
            let what = format!("unknown key in group {group}");
            one_of_three_fails(engine, &what.clone(), |plan| mixed::lose(plan, &what, group, block));
        }
    })
    .await;
    let session = daemon.client().await.open_registered(engine.descriptor()).await;
    // Stored with its second block only: less than what is needed of it.
    let short = fixture::chunk_of(0, 500);
    let half = Coverage::empty(engine.descriptor().groups[0].blocks_per_chunk).with(1);
    session.must_store(engine.descriptor(), short, fixture::PART, half).await;
    let moved = engine.clone();
    tokio::task::spawn_blocking(move || {
        let engine = moved;
        one_of_three_fails(&engine, "short", |plan| plan.loads[0].items[0].chunk = short);
        one_of_three_fails(&engine, "index", |plan| {
            let last = plan.loads[0].items.last_mut().unwrap();
            last.blocks[0] = 105_022;
        });
        one_of_three_fails(&engine, "past the pool", |plan| plan.loads[0].items[0].blocks[0] = 64);
    })
    .await
    .unwrap();
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_12_one_failed_read_of_three_groups_fails_the_request_over_shm() {
    six_reads_of_three_groups(TransportChoice::Shm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_12_one_failed_read_of_three_groups_fails_the_request_over_grpc() {
    six_reads_of_three_groups(TransportChoice::Grpc).await;
}

/// Case 7 for several groups: a load that stalls is reported once, as failed, and nothing of it lands any more in blocks
/// that the engine then hands on.
#[tokio::test(flavor = "multi_thread")]
async fn field_07_a_stalled_load_of_three_groups_is_over_when_it_says_so() {
    let daemon = Daemon::start(Setup { default_lease: Duration::from_secs(3), ..Setup::default() }).await;
    let proxy = Arc::new(Proxy::start(daemon.tcp()).await.unwrap());
    let address = Address::Tcp { host: "127.0.0.1".into(), port: proxy.port() };
    let mut config = client_config(address, TransportChoice::Grpc);
    config.load_deadline = Duration::from_millis(800);
    let net = proxy.clone();
    tokio::task::spawn_blocking(move || {
        let engine = Mixed::new(&config, "field 7", &three_kinds(), 1);
        let tables = vec![(21..=25).collect(), (31..=35).collect(), vec![41, 42]];
        engine.store("stored", &mut prompt(), 66, &tables, &STATES_AT_32_AND_64);
        engine.arrive("aborted", 65);
        assert_eq!(engine.look("aborted", &tokens(&mut prompt(), 65), 0), 64);
        let plan = engine.take("aborted", &three_tables(1), 64);
        net.set(Mode::StopReading);
        engine.carry_out(&plan, || ());
        engine.finish("aborted", 65, 0, &three_tables(1), true);
        let done = engine.await_load("aborted").remove(0);
        assert!(done.failed, "{done:?}");
        assert_eq!(BTreeSet::from_iter(done.failed_blocks), needed_blocks(&plan, "aborted"));
        // Others own the blocks now. Then whatever is still on its way comes.
        engine.poison_all();
        net.set(Mode::Pass);
        std::thread::sleep(Duration::from_millis(300));
        for group in 0..3 {
            assert!(engine.untouched(group, &(0..64).collect::<Vec<_>>()), "group {group}: a late write");
        }
        assert!(!engine.more_reports(), "exactly one report");
    })
    .await
    .unwrap();
    conserve::quiet(daemon.engine()).await;
}
