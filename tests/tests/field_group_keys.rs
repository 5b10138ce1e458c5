//! Field reports on keys, for models of several groups: 1, 3 and 38.

use std::collections::HashSet;

use tender_client::TransportChoice;
use tender_client::hash::{MediaSpan, NamedInput, RequestInputs};
use tender_proto::ChunkId;
use tender_tests::conserve;
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::mixed::{Mixed, Tables, full, scheduled, sliding, tokens, with_engine};
use tender_tests::oracle::groups::GroupSpec;
use tender_tests::oracle::truth::Truth;

/// The request that all of these tests are about.
fn prompt() -> Truth {
    Truth::new(1, &(0..80).map(|n| n * 5 + 2).collect::<Vec<_>>(), &[])
}

/// Key identity for draft layers: their slots depend on the token behind, so two prompts that part right behind a chunk
/// share it for the model's own layers only.
#[tokio::test(flavor = "multi_thread")]
async fn field_38_a_draft_chunk_is_shared_only_if_the_token_behind_it_is_the_same() {
    let daemon = Daemon::start(Setup::default()).await;
    let groups = vec![full(16, 1), GroupSpec { lookahead: 1, ..full(16, 1) }];
    let (_engine, ()) = with_engine(&daemon, TransportChoice::Auto, "field 38", groups, |engine| {
        let tables = vec![vec![21, 22, 23], vec![31, 32, 33]];
        engine.store("stored", &mut prompt(), 40, &tables, &[]);
        let same = tokens(&mut prompt(), 40);
        assert_eq!(engine.would_hit("same", &same), 32);
        let mut other = same.clone();
        other[32] ^= 1;
        let mut truth = Truth::new(1, &other, &[]);
        engine.poison_all();
        engine.arrive("other", 40);
        let fresh = vec![vec![1, 2], vec![3, 4]];
        assert_eq!(engine.load("other", &other, 0, &fresh), 16, "the second draft chunk is another one");
        for (group, table) in fresh.iter().enumerate() {
            assert_eq!(engine.wrong(&mut truth, group, table, 0..16), None, "group {group}");
        }
        engine.finish("other", 40, 16, &Vec::new(), true);
    })
    .await;
    conserve::quiet(daemon.engine()).await;
}

/// Three groups whose chunks have 16, 64 and 16 tokens; the last one's layers see one token ahead.
fn three_chunk_sizes() -> Vec<GroupSpec> {
    vec![full(16, 1), sliding(32, 2, 40), GroupSpec { lookahead: 1, ..full(16, 1) }]
}

/// The keys of all chunks that a request of 80 tokens stores, by group, and how many tokens were found for it before.
fn keys_of(engine: &Mixed, id: &str, inputs: RequestInputs) -> (usize, Vec<Vec<ChunkId>>) {
    let all = tokens(&mut prompt(), 80);
    let tables: Tables = vec![(21..=25).collect(), (31..=33).collect(), (41..=45).collect()];
    engine.arrive_with(id, 80, inputs);
    let found = engine.look(id, &all, 0);
    let mut plan = engine.plan(vec![scheduled(id, 0, 80, all, &tables)]);
    engine.carry_out(&plan, || engine.pass(&mut prompt(), &tables, 0..80));
    let mut jobs = std::mem::take(&mut plan.stores_after);
    engine.finish(id, 80, 80, &tables, false);
    let plan = engine.plan(Vec::new());
    engine.carry_out(&plan, || ());
    engine.flush();
    jobs.extend(plan.stores_before);
    let mut keys = vec![Vec::new(); 3];
    jobs.iter().for_each(|job| keys[usize::from(job.chunk.group.0)].push(job.chunk));
    (found, keys)
}

/// Case 1 for several groups: salt and adapter are part of every key of every group, draft layers' too.
#[tokio::test(flavor = "multi_thread")]
async fn field_01_salt_and_adapter_are_part_of_every_groups_keys() {
    let daemon = Daemon::start(Setup::default()).await;
    let (_engine, ()) =
        with_engine(&daemon, TransportChoice::Auto, "field 1", three_chunk_sizes(), |engine| {
            let adapter = |content: u8| NamedInput::Adapter { content: [content; 32] };
            let salt = |text: &str| NamedInput::Salt(text.into());
            let tenants = [
                vec![],
                vec![adapter(1)],
                vec![adapter(2)],
                vec![salt("t1")],
                vec![salt("t2")],
                vec![salt("")],
                vec![adapter(1), salt("t1")],
            ];
            let mut seen = HashSet::new();
            for (number, named) in tenants.iter().enumerate() {
                let inputs = RequestInputs::new(named.clone(), Vec::new()).unwrap();
                let (found, keys) = keys_of(engine, &format!("tenant {number}"), inputs.clone());
                assert_eq!(found, 0, "tenant {number} was given somebody else's chunks");
                assert_eq!([keys[0].len(), keys[1].len(), keys[2].len()], [5, 1, 4]);
                for key in keys.into_iter().flatten() {
                    assert!(seen.insert(key), "tenant {number} shares {key}");
                }
                let (again, _) = keys_of(engine, &format!("again {number}"), inputs);
                assert_eq!(again, 64, "and is given its own");
            }
        })
        .await;
    conserve::quiet(daemon.engine()).await;
}

/// Case 3 for several groups: an image is in the keys of the chunks it lies in and of all behind, each group's by its own
/// chunks; and in a draft layer's chunk that ends right before it, whose last slot depends on it.
#[tokio::test(flavor = "multi_thread")]
async fn field_03_an_image_is_in_each_groups_chunks_from_where_it_lies() {
    let daemon = Daemon::start(Setup::default()).await;
    let (_engine, ()) =
        with_engine(&daemon, TransportChoice::Auto, "field 3", three_chunk_sizes(), |engine| {
            // Each case is a tenant's of its own, so that it finds nothing that another stored.
            let image = |start_token: u64, first_byte: u8| {
                let mut digest = vec![0xab; 32];
                digest[0] = first_byte;
                let span = MediaSpan { start_token, tokens: 32, digest };
                RequestInputs::new(vec![NamedInput::Salt(format!("span at {start_token}"))], vec![span])
                    .unwrap()
            };
            let shared = |start: u64| {
                let (found, one) = keys_of(engine, &format!("{start} 1"), image(start, 1));
                assert_eq!(found, 0);
                let (_, two) = keys_of(engine, &format!("{start} 2"), image(start, 2));
                // What is there already is not stored again.
                one.iter().zip(&two).map(|(one, two)| one.len() - two.len()).collect::<Vec<_>>()
            };
            // The span [24, 56): the first chunk of 16 tokens is shared, the one of 64 is not.
            assert_eq!(shared(24), [1, 0, 1]);
            // The span [32, 64) begins a chunk: two chunks lie before it, and the draft layers' second one sees its first
            // token.
            assert_eq!(shared(32), [2, 0, 1]);
        })
        .await;
    conserve::quiet(daemon.engine()).await;
}
