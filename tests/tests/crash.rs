//! A daemon that is killed and started again on the same sockets and the same arena's file.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tender_client::TransportChoice;
use tender_proto::v1;
use tender_tests::daemon::{ChildDaemon, Setup};
use tender_tests::model::ModelEngine;
use tender_tests::{fixture, pattern};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_starts_again_on_the_same_place_and_serves_what_was_ready() {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let descriptor = fixture::small("crash", 1000);
    let full = fixture::full(&descriptor);
    let session = daemon.client().await.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
    // Room that is held and not filled is nobody's after a kill.
    let bytes = pattern::blob(&descriptor, fixture::chunk(2), fixture::PART, full).len();
    let item = tender_tests::raw::item(fixture::chunk(2), fixture::PART, full, bytes);
    session.reserve_one(descriptor.digest(), item).await.unwrap();
    let boot = session.opened.boot_id.clone();
    daemon.kill();
    assert!(session.release(&[1]).await.is_err(), "a dead daemon answers nothing");

    // The socket's file and the arena's file are still there; neither may stop the next daemon.
    daemon.restart().await;
    let client = daemon.client().await;
    let mut stale = client.open("stale").await.unwrap();
    assert_ne!(stale.opened.boot_id, boot, "another start is another boot id");
    stale.id = session.id.clone();
    assert_eq!(
        tender_tests::raw::reason(stale.register(&descriptor).await),
        tender_proto::Reason::UnknownSession
    );
    let fresh = client.open_registered(&descriptor).await;
    let states = fresh.states(descriptor.digest(), &[fixture::chunk(1), fixture::chunk(2)]).await;
    assert_eq!(states, [v1::ChunkState::Ready, v1::ChunkState::Miss]);
    let stats = client.stats().await.unwrap();
    assert_eq!((stats.leases, stats.reservations), (0, 0));
    let (_, bytes) = fresh.read(descriptor.digest(), fixture::chunk(1), fixture::PART).await.unwrap();
    pattern::assert_same(
        &bytes,
        &pattern::blob(&descriptor, fixture::chunk(1), fixture::PART, full),
        "from before",
    );
}

/// The real client, both ways: works, loses its daemon, keeps the engine going, and comes back by itself.
async fn client_recovers(transport: TransportChoice) {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let config = daemon.client_config(transport);
    let engine = Arc::new(ModelEngine::new(config, "crash"));
    engine.wait_until_up();
    let tokens: Vec<u32> = (0..256).collect();
    tokio::task::spawn_blocking({
        let (engine, tokens) = (engine.clone(), tokens.clone());
        move || {
            engine.run("first", &tokens);
            engine.flush();
            assert!(engine.run("again", &tokens).loaded_tokens > 0, "served while the daemon lives");
        }
    })
    .await
    .unwrap();
    daemon.kill();
    tokio::task::spawn_blocking({
        let (engine, tokens) = (engine.clone(), tokens.clone());
        move || {
            let began = Instant::now();
            for n in 0..5 {
                let run = engine.run(&format!("alone {n}"), &tokens);
                assert_eq!(run.loaded_tokens, 0, "nothing can be loaded from a dead daemon");
            }
            assert!(began.elapsed() < Duration::from_secs(30), "and nobody waits for it");
        }
    })
    .await
    .unwrap();
    daemon.restart().await;
    tokio::task::spawn_blocking(move || {
        let give_up = Instant::now() + Duration::from_secs(30);
        let mut n = 0;
        // Served again, without a restart of the engine.
        while engine.run(&format!("back {n}"), &tokens).loaded_tokens == 0 {
            assert!(Instant::now() < give_up, "the client did not come back: {:?}", engine.counters());
            engine.flush();
            std::thread::sleep(Duration::from_millis(20));
            n += 1;
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shm_client_outlives_its_daemon() {
    client_recovers(TransportChoice::Shm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_client_outlives_its_daemon() {
    client_recovers(TransportChoice::Grpc).await;
}
