//! What a session holds ends with it, however it ends; and there may be many.

use tender_proto::{Reason, v1};
use tender_tests::daemon::{Daemon, Peer, SLOT_BLOCK_BYTES, Setup};
use tender_tests::raw::{Ask, item, refused};
use tender_tests::{conserve, fixture, pattern};

const PEER: &str = env!("CARGO_BIN_EXE_tender-test-peer");

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sessions_at_once() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("crowd", 256);
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..1000u64 {
        let (target, descriptor) = (daemon.unix(), descriptor.clone());
        tasks.spawn(async move {
            let client = tender_tests::raw::RawClient::connect(&target).await.expect("a connection");
            let session = client.open_registered(&descriptor).await;
            session.must_store(&descriptor, fixture::chunk(n), fixture::PART, full).await;
            let found =
                session.lookup(namespace, &[fixture::chunk(n)], Ask::LEASE.for_ms(60_000)).await.unwrap();
            assert_eq!(found.chunks[0].state(), v1::ChunkState::Ready);
            session
        });
    }
    let sessions = tasks.join_all().await;
    let audit = conserve::audit(daemon.engine());
    assert_eq!((audit.sessions, audit.leases, audit.pins), (1000, 1000, 1000));
    let ids: std::collections::HashSet<_> = sessions.iter().map(|s| s.id.clone()).collect();
    assert_eq!(ids.len(), 1000, "every session has its own id");
    // Every tenth reads what its neighbour stored.
    for n in (0..1000u64).step_by(10) {
        let neighbour = fixture::chunk((n + 1) % 1000);
        let session = &sessions[usize::try_from(n).unwrap()];
        let (_, bytes) = session.read(namespace, neighbour, fixture::PART).await.unwrap();
        pattern::assert_same(
            &bytes,
            &pattern::blob(&descriptor, neighbour, fixture::PART, full),
            "a neighbour's",
        );
    }
    drop(sessions);
    assert_eq!(conserve::deserted(daemon.engine()).await.ready_chunks, 1000, "what was stored stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_sessions_than_allowed_are_refused_and_the_others_go_on() {
    let daemon = Daemon::start(Setup { max_sessions: 3, ..Setup::default() }).await;
    let descriptor = fixture::small("limit", 256);
    let client = daemon.client().await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(client.open_registered(&descriptor).await);
    }
    let refused = client.open("one too many").await.map(|s| s.id);
    assert_eq!(tender_tests::raw::reason(refused), Reason::TooMany);
    assert_eq!(client.refused(Reason::TooMany).await, 1);
    sessions[0].must_store(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor)).await;
    sessions.pop();
    conserve::until(daemon.engine(), "a place is free", |a| a.sessions == 2).await;
    client.open("now there is room").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_killed_while_filling_leaves_nothing() {
    let daemon = Daemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("victim", SLOT_BLOCK_BYTES);
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let watcher = daemon.client().await.open_registered(&descriptor).await;
    let chunks: Vec<_> = (0..3).map(fixture::chunk).collect();

    let victim = Peer::start(PEER, daemon.socket(), "victim", "fill").await;
    assert_eq!(watcher.states(namespace, &chunks).await, [v1::ChunkState::Pending; 3]);
    let held = conserve::until(daemon.engine(), "one part is being written", |a| a.writers == 1).await;
    assert_eq!((held.pending_chunks, held.reservations + held.writers), (3, 3));

    victim.kill().await;
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!((audit.used_bytes, audit.ready_chunks, audit.sessions), (0, 0, 1));
    assert_eq!(watcher.states(namespace, &chunks).await, [v1::ChunkState::Miss; 3]);
    // Another client can store the very same chunks at once.
    for &chunk in &chunks {
        watcher.must_store(&descriptor, chunk, fixture::PART, full).await;
        let (_, bytes) = watcher.read(namespace, chunk, fixture::PART).await.unwrap();
        pattern::assert_same(&bytes, &pattern::blob(&descriptor, chunk, fixture::PART, full), "stored anew");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_killed_with_leases_gives_them_back() {
    let daemon = Daemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("victim", SLOT_BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    let watcher = daemon.client().await.open_registered(&descriptor).await;
    for n in 0..4 {
        watcher.must_store(&descriptor, fixture::chunk(n), fixture::PART, full).await;
    }
    let victim = Peer::start(PEER, daemon.socket(), "victim", "lease").await;
    assert_eq!(conserve::audit(daemon.engine()).pins, 4);
    let ask = item(fixture::chunk(9), fixture::PART, full, usize::try_from(4 * SLOT_BLOCK_BYTES).unwrap());
    let answer = watcher.reserve_one(descriptor.digest(), ask.clone()).await.unwrap_err();
    assert_eq!(refused(answer.refused), Some(Reason::NoSpace), "all four are leased");

    victim.kill().await;
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!((audit.ready_chunks, audit.sessions), (4, 1));
    let reservation = watcher.reserve_one(descriptor.digest(), ask).await.expect("room for a new one");
    watcher.abort(&[reservation]).await.unwrap();
    conserve::quiet(daemon.engine()).await;
}
