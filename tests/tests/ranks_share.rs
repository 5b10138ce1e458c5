//! Engines of one, two and four ranks share what each of them stored: a chunk is cut by heads, not by who stores it.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::sync::Arc;

use tender_client::TransportChoice;
use tender_proto::GroupKind;
use tender_tests::conserve;
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::mixed::{Mixed, full, group, sliding, tokens};
use tender_tests::oracle::truth::Truth;

const SIZES: [u32; 3] = [1, 2, 4];

/// Another prompt for each of them.
fn prompt(writer: u32) -> Truth {
    Truth::new(1, &(0..80).map(|n| n * 7 + writer).collect::<Vec<_>>(), &[])
}

/// Every size stores, every size loads, and every slot of every rank is what it must be.
async fn all_sizes_share(transport: TransportChoice, scales: bool) {
    let daemon = Daemon::start(Setup::default()).await;
    let config = daemon.client_config(transport);
    tokio::task::spawn_blocking(move || {
        let groups = [full(16, 2), sliding(16, 2, 40), group(GroupKind::MlaLatent, 16, 1)];
        let model = if scales { "shared with scales" } else { "shared" };
        let engine = |ranks| Arc::new(Mixed::sharing(&config, model, &groups, ranks, 4, scales));
        let engines = SIZES.map(engine);
        for engine in &engines[1..] {
            assert_eq!(engine.descriptor().digest(), engines[0].descriptor().digest());
        }
        for (writer, engine) in SIZES.iter().zip(&engines) {
            let tables = vec![(21..=25).collect(), (31..=35).collect(), (41..=45).collect()];
            engine.store("stored", &mut prompt(*writer), 66, &tables, &[]);
        }
        for (reader, engine) in SIZES.iter().zip(&engines) {
            for writer in SIZES {
                engine.poison_all();
                let id = format!("what {writer} ranks stored on {reader}");
                engine.arrive(&id, 66);
                let fresh = vec![vec![1, 2, 3, 4], vec![0, 6, 7, 8], vec![9, 10, 11, 12]];
                assert_eq!(engine.load(&id, &tokens(&mut prompt(writer), 66), 0, &fresh), 64, "{id}");
                for (group, table) in fresh.iter().enumerate() {
                    let first = if group == 1 { 32 } else { 0 };
                    assert_eq!(engine.wrong(&mut prompt(writer), group, table, first..64), None, "{id}");
                }
                engine.finish(&id, 66, 64, &Vec::new(), true);
            }
        }
    })
    .await
    .unwrap();
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_of_all_sizes_share_chunks_over_shm() {
    all_sizes_share(TransportChoice::Shm, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_of_all_sizes_share_chunks_over_grpc() {
    all_sizes_share(TransportChoice::Grpc, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_of_all_sizes_share_cells_with_scales() {
    all_sizes_share(TransportChoice::Shm, true).await;
}

/// A rank that holds several parts stores all of a chunk or nothing: a part alone is found by nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_without_staging_for_all_its_parts_stores_none_of_them() {
    let daemon = Daemon::start(Setup::default()).await;
    let mut config = daemon.client_config(TransportChoice::Shm);
    // A chunk of four parts, each rounded up to a page, does not fit.
    config.staging_bytes = bytesize::ByteSize::kib(8);
    tokio::task::spawn_blocking(move || {
        let engine = Mixed::sharing(&config, "no room", &[full(16, 2)], 1, 4, false);
        engine.store("stored", &mut prompt(0), 66, &vec![(21..=25).collect()], &[]);
        let counters = engine.ranks[0].worker.counters();
        assert_eq!((counters.stored_parts, counters.stored_chunks), (0, 0), "{counters:?}");
        assert!(counters.stores_skipped.values().sum::<u64>() >= 2, "{counters:?}");
        assert_eq!(engine.would_hit("again", &tokens(&mut prompt(0), 66)), 0);
    })
    .await
    .unwrap();
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!((audit.used_bytes, audit.pending_chunks), (0, 0));
}
