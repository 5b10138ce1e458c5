//! Field reports under kills and restarts: 11, 12, 13, 19, 21, 23, 24, 25 and 29. What a daemon has said READY of is there
//! after any kill, nothing else is, and nobody waits for, or owes anything to, a daemon that died.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_client::{Address, ClientConfig, TransportChoice};
use tender_proto::{ChunkId, PartIndex, Reason, v1};
use tender_tests::attach::attach;
use tender_tests::daemon::{ChildDaemon, Peer, SLOT_BLOCK_BYTES, Setup, client_config};
use tender_tests::mixed::{self, Mixed};
use tender_tests::model::ModelEngine;
use tender_tests::oracle::truth::Truth;
use tender_tests::proxy::{Mode, Proxy};
use tender_tests::raw::{Ask, RawClient, RawSession, Target, get_item, item, reason, refused};
use tender_tests::{fixture, pattern};

const PEER: &str = env!("CARGO_BIN_EXE_tender-test-peer");
const SLOT_BYTES: usize = 64 << 10;

fn chunks(numbers: std::ops::Range<u64>) -> Vec<ChunkId> {
    numbers.map(fixture::chunk).collect()
}

/// Waits until the daemon holds nothing for anybody; its numbers then.
async fn at_rest(client: &RawClient) -> v1::StatsResponse {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        let stats = client.stats().await.unwrap();
        let pending: u64 = stats.namespaces.iter().map(|namespace| namespace.pending_chunks).sum();
        if [stats.leases, stats.pins, stats.reservations, stats.inflight_bytes, pending] == [0; 5] {
            return stats;
        }
        assert!(Instant::now() < give_up, "something is still held: {stats:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The daemon dies and the next one comes up on the same place.
async fn die(daemon: &mut ChildDaemon) {
    daemon.kill();
    daemon.restart().await;
}

/// Case 11: the lease was promised by a daemon that died. The next one gives the memory to others, and whoever still reads
/// the old map is never told that what it read is good.
#[tokio::test(flavor = "multi_thread")]
async fn field_11_a_reader_whose_daemon_died_is_never_told_that_its_lease_was_good() {
    let mut daemon = ChildDaemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("field 11 kill", SLOT_BLOCK_BYTES);
    let (namespace, full) = (descriptor.digest(), fixture::full(&descriptor));
    let mut reader = daemon.client().await.open_registered(&descriptor).await;
    for chunk in chunks(0..4) {
        reader.must_store(&descriptor, chunk, fixture::PART, full).await;
    }
    let shared = attach(&daemon.socket(), &reader, 0).await;
    let found = reader.lookup(namespace, &chunks(0..4), Ask::LOCATE.for_ms(60_000)).await.unwrap();
    let lease = found.lease.unwrap().id;
    die(&mut daemon).await;
    assert!(reader.release(&[lease]).await.is_err(), "its daemon is gone");
    let writer = daemon.client().await.open_registered(&descriptor).await;
    for chunk in chunks(10..14) {
        writer.must_store(&descriptor, chunk, fixture::PART, full).await;
    }
    let late = shared.copy(&found.chunks[0].parts[0]);
    assert_ne!(blake3::hash(&late).as_bytes()[..], found.chunks[0].parts[0].digest[..], "others' bytes");
    reader.client = daemon.client().await;
    assert_eq!(reason(reader.release(&[lease]).await), Reason::UnknownSession);
    // A session of the new daemon with the old lease's number fares no better.
    assert_eq!(writer.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Expired]);
    at_rest(&writer.client).await;
}

/// A relay to a daemon of its own process, and a client's configuration that goes through it.
async fn relayed(daemon: &ChildDaemon) -> (Arc<Proxy>, ClientConfig) {
    let proxy = Arc::new(Proxy::start(Target::Unix(daemon.socket())).await.unwrap());
    let address = Address::Tcp { host: "127.0.0.1".into(), port: proxy.port() };
    (proxy, client_config(address, TransportChoice::Grpc))
}

/// Case 12: the daemon dies while a load is under way. It is a failed load, and the request is computed and right.
#[tokio::test(flavor = "multi_thread")]
async fn field_12_a_load_that_lost_its_daemon_is_failed_and_recomputed() {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let (proxy, config) = relayed(&daemon).await;
    let engine = Arc::new(ModelEngine::new(config, "field 12 kill"));
    let tokens: Vec<u32> = (0..65).collect();
    let (first, told, net) = (engine.clone(), tokens.clone(), proxy.clone());
    let (mut request, promised) = tokio::task::spawn_blocking(move || {
        first.wait_until_up();
        first.run("stored", &told);
        first.flush();
        let mut request = first.arrive("lost", &told);
        let promised = first.look(&mut request);
        assert!(promised > 0, "stored and found");
        first.allocate(&mut request, promised).unwrap();
        net.set(Mode::StopReading);
        first.step(&mut []);
        (request, promised)
    })
    .await
    .unwrap();
    daemon.kill();
    proxy.set(Mode::Pass);
    proxy.cut();
    let after = engine.clone();
    tokio::task::spawn_blocking(move || {
        let done = after.await_load(&request.id);
        let run = after.take_load(&mut request, promised, &done);
        assert_eq!((run.loaded_tokens, run.failed_tokens), (0, promised), "{done:?}");
        assert!(after.worker.poll().is_empty(), "one report for one load");
        while request.computed < request.tokens.len() {
            let count = (request.tokens.len() - request.computed).min(16);
            after.step(&mut [(&mut request, count)]);
        }
        after.finish(request, false);
        after.step(&mut []);
    })
    .await
    .unwrap();
    daemon.restart().await;
    tokio::task::spawn_blocking(move || {
        let give_up = Instant::now() + Duration::from_secs(30);
        while engine.run("again", &tokens).loaded_tokens == 0 {
            assert!(Instant::now() < give_up, "not served by the next daemon: {:?}", engine.counters());
        }
        engine.flush();
    })
    .await
    .unwrap();
    at_rest(&daemon.client().await).await;
}

/// Case 13: the same for three groups of three kinds. The report names the request's own blocks and no others.
#[tokio::test(flavor = "multi_thread")]
async fn field_13_a_load_of_three_groups_that_lost_its_daemon_names_its_own_blocks() {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let (proxy, config) = relayed(&daemon).await;
    let prompt = || Truth::new(1, &(0..80).map(|n| n * 5 + 2).collect::<Vec<_>>(), &[]);
    let tables: mixed::Tables = vec![(1..5).collect(), vec![0, 6, 7, 8], vec![0, 9]];
    let net = proxy.clone();
    let (engine, plan) = tokio::task::spawn_blocking(move || {
        let kinds = [mixed::full(16, 2), mixed::sliding(16, 2, 40), mixed::states(32)];
        let engine = Mixed::new(&config, "field 13 kill", &kinds, 1);
        let stored = vec![(21..=25).collect(), (31..=35).collect(), vec![41, 42]];
        engine.store("stored", &mut prompt(), 66, &stored, &[(2, 41, 32), (2, 42, 64)]);
        engine.flush();
        engine.arrive("lost", 65);
        assert_eq!(engine.look("lost", &mixed::tokens(&mut prompt(), 65), 0), 64);
        let plan = engine.take("lost", &tables, 64);
        engine.poison_all();
        net.set(Mode::StopReading);
        engine.carry_out(&plan, || ());
        (engine, plan)
    })
    .await
    .unwrap();
    daemon.kill();
    proxy.set(Mode::Pass);
    proxy.cut();
    tokio::task::spawn_blocking(move || {
        let done = engine.await_load("lost").remove(0);
        assert!(done.failed, "{done:?}");
        let named: std::collections::BTreeSet<_> = done.failed_blocks.into_iter().collect();
        assert_eq!(named, mixed::needed_blocks(&plan, "lost"));
        assert!(!engine.more_reports(), "one report for one load");
        let others: Vec<_> = (20..64).chain([0]).collect();
        for group in 0..3 {
            assert!(engine.untouched(group, &others), "group {group}: a block of somebody else was written");
        }
        engine.finish("lost", 65, 0, &Vec::new(), true);
    })
    .await
    .unwrap();
    daemon.restart().await;
    at_rest(&daemon.client().await).await;
}

/// Case 19, several parts: all but one are in when the daemon dies.
#[tokio::test(flavor = "multi_thread")]
async fn field_19_a_chunk_that_lacks_a_part_at_the_kill_is_nobodys() {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let descriptor = fixture::descriptor("field 19 parts", vec![fixture::group(16, 4, &[5000, 6000, 7000])]);
    let (namespace, full) = (descriptor.digest(), fixture::full(&descriptor));
    let parts = [PartIndex(0), PartIndex(1), PartIndex(2)];
    let session = daemon.client().await.open_registered(&descriptor).await;
    for part in parts {
        session.must_store(&descriptor, fixture::chunk(1), part, full).await;
    }
    for part in [parts[0], parts[2]] {
        let outcome = session.must_store(&descriptor, fixture::chunk(2), part, full).await;
        assert!(!outcome.chunk_ready);
    }
    let whole = session.client.stats().await.unwrap().namespaces[0].ready_bytes;
    die(&mut daemon).await;
    let session = daemon.client().await.open_registered(&descriptor).await;
    let states = session.states(namespace, &chunks(1..3)).await;
    assert_eq!(states, [v1::ChunkState::Ready, v1::ChunkState::Miss]);
    let stats = at_rest(&session.client).await;
    assert_eq!((stats.namespaces[0].ready_chunks, stats.namespaces[0].ready_bytes), (1, whole));
    // The part that was missing does not complete what the dead daemon had; all of them do.
    let outcome = session.must_store(&descriptor, fixture::chunk(2), parts[1], full).await;
    assert!(!outcome.chunk_ready, "one part is not a chunk");
    for part in [parts[2], parts[0]] {
        session.must_store(&descriptor, fixture::chunk(2), part, full).await;
    }
    for chunk in chunks(1..3) {
        for part in parts {
            let (_, bytes) = session.read(namespace, chunk, part).await.unwrap();
            pattern::assert_same(&bytes, &pattern::blob(&descriptor, chunk, part, full), "after the kill");
        }
    }
}

/// Case 21: OK was said, and the daemon dies in the next moment.
#[tokio::test(flavor = "multi_thread")]
async fn field_21_a_reset_outlives_the_daemon_that_answered_it() {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let [a, b] = ["field 21 kill A", "field 21 kill B"].map(|model| fixture::small(model, 5000));
    let full = fixture::full(&a);
    let session = daemon.client().await.open_registered(&a).await;
    session.register(&b).await.unwrap();
    let all = chunks(0..40);
    for &chunk in &all {
        session.must_store(&a, chunk, fixture::PART, full).await;
        session.must_store(&b, chunk, fixture::PART, full).await;
    }
    let before = session.epoch(&a).await;
    session.client.reset(a.digest()).await.unwrap();
    daemon.kill();
    assert!(session.client.reset(a.digest()).await.is_err(), "a dead daemon resets nothing, and says so");
    daemon.restart().await;
    let session = daemon.client().await.open_registered(&a).await;
    session.register(&b).await.unwrap();
    assert_eq!(session.states(a.digest(), &all).await, [v1::ChunkState::Miss; 40]);
    assert_eq!(session.states(b.digest(), &all).await, [v1::ChunkState::Ready; 40]);
    // What was gathered before the reset waited in a client all the while.
    let late = |epoch| v1::ReserveRequest {
        session_id: session.id.clone(),
        namespace: a.digest().as_bytes().to_vec().into(),
        items: vec![item(all[0], fixture::PART, full, 20_000)],
        epoch,
    };
    let mut store = session.client.store.clone();
    let answer = store.reserve(late(before)).await.unwrap().into_inner();
    assert_eq!(refused(answer.outcomes[0].refused), Some(Reason::NamespaceReset));
    assert_eq!(session.states(a.digest(), &all[..1]).await, [v1::ChunkState::Miss]);
    let answer = store.reserve(late(answer.epoch)).await.unwrap().into_inner();
    assert_ne!(answer.outcomes[0].reservation_id, 0);
}

/// Case 23: a pending chunk ends with its daemon, and in time in a daemon that stood still.
#[tokio::test(flavor = "multi_thread")]
async fn field_23_a_pending_chunk_ends_with_its_daemon_and_in_one_that_stood_still() {
    let setup = Setup { reservation: Duration::from_millis(600), ..Setup::slots(4) };
    let mut daemon = ChildDaemon::start(setup).await;
    let descriptor = fixture::small("field 23 kill", SLOT_BLOCK_BYTES);
    let (namespace, full) = (descriptor.digest(), fixture::full(&descriptor));
    let session = daemon.client().await.open_registered(&descriptor).await;
    let all = chunks(1..5);
    for n in [0, 2, 3] {
        session.must_store(&descriptor, all[n], fixture::PART, full).await;
    }
    let expected =
        [v1::ChunkState::Ready, v1::ChunkState::Miss, v1::ChunkState::Ready, v1::ChunkState::Ready];
    let ask = || item(all[1], fixture::PART, full, SLOT_BYTES);
    let bytes = pattern::blob(&descriptor, all[1], fixture::PART, full);

    // Stopped for longer than the reservation lasts: nobody waits longer than the stop.
    let reservation = session.reserve_one(namespace, ask()).await.unwrap();
    assert_eq!(session.states(namespace, &all[1..2]).await, [v1::ChunkState::Pending]);
    daemon.pause();
    tokio::time::sleep(Duration::from_millis(900)).await;
    daemon.go_on();
    assert_eq!(session.states(namespace, &all).await, expected);
    let outcome = session.put(session.frames(reservation, full, &bytes, SLOT_BYTES)).await.unwrap()[0];
    assert_eq!((outcome.stored, refused(outcome.refused)), (false, Some(Reason::ReservationExpired)));
    assert_eq!(at_rest(&session.client).await.namespaces[0].ready_chunks, 3);

    // Killed: it is a miss at once, and the writer's late commit is nobody's.
    let reservation = session.reserve_one(namespace, ask()).await.unwrap();
    let old = session.id.clone();
    die(&mut daemon).await;
    let session = daemon.client().await.open_registered(&descriptor).await;
    assert_eq!(session.states(namespace, &all).await, expected);
    let mut frames = session.frames(reservation, full, &bytes, SLOT_BYTES);
    let outcome = session.put(frames.clone()).await.unwrap()[0];
    assert_eq!((outcome.stored, refused(outcome.refused)), (false, Some(Reason::UnknownReservation)));
    frames[0].session_id = old;
    assert_eq!(reason(session.put(frames).await), Reason::UnknownSession);
    assert_eq!(session.states(namespace, &all).await, expected);
    session.must_store(&descriptor, all[1], fixture::PART, full).await;
    at_rest(&session.client).await;
}

/// One client's life in a daemon that may die at any moment; whatever it may use is right.
async fn life(target: Target, descriptor: tender_proto::Descriptor, n: u64) -> Option<()> {
    let client = RawClient::connect(&target).await.ok()?;
    let (namespace, full, chunk) = (descriptor.digest(), fixture::full(&descriptor), fixture::chunk(n % 8));
    let session = client.open("life").await.ok()?;
    session.register(&descriptor).await.ok()?;
    let bytes = pattern::blob(&descriptor, chunk, fixture::PART, full);
    let outcome =
        session.reserve(namespace, vec![item(chunk, fixture::PART, full, SLOT_BYTES)]).await.ok()?[0];
    if outcome.reservation_id != 0 {
        let frames = session.frames(outcome.reservation_id, full, &bytes, SLOT_BYTES / 4);
        session.put(frames).await.ok()?;
    }
    let lease = session.lookup(namespace, &[chunk], Ask::LEASE.for_ms(60_000)).await.ok()?.lease?;
    let stream = session.get(lease.id, vec![get_item(0, fixture::PART)]).await.ok()?;
    let parts = tender_tests::raw::collect(stream, 1).await.ok()?;
    pattern::assert_same(&parts[0].as_ref().ok()?.bytes, &bytes, "a read among kills");
    session.release(&[lease.id]).await.ok().map(drop)
}

/// Case 24: clients give up at any moment, and so does the daemon.
#[tokio::test(flavor = "multi_thread")]
async fn field_24_calls_that_are_dropped_while_the_daemon_dies_leave_nothing() {
    let mut daemon = ChildDaemon::start(Setup::slots(8)).await;
    let descriptor = fixture::small("field 24 kill", SLOT_BLOCK_BYTES);
    for round in 0..4u64 {
        let mut lanes = tokio::task::JoinSet::new();
        for lane in 0..8 {
            let (target, descriptor) = (Target::Unix(daemon.socket()), descriptor.clone());
            lanes.spawn(async move {
                let mut rng = StdRng::seed_from_u64(round * 100 + lane);
                for n in 0..12 {
                    let patience = Duration::from_micros(rng.random_range(0..60_000));
                    let whole = life(target.clone(), descriptor.clone(), lane * 12 + n);
                    drop(tokio::time::timeout(patience, whole).await);
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(60 + 40 * round)).await;
        daemon.kill();
        while let Some(lane) = lanes.join_next().await {
            lane.unwrap();
        }
        daemon.restart().await;
        let client = daemon.client().await;
        let stats = at_rest(&client).await;
        let ready: u64 = stats.namespaces.iter().map(|namespace| namespace.ready_chunks).sum();
        assert_eq!(stats.arena_used_bytes, ready * SLOT_BYTES as u64, "what is used is READY: {stats:?}");
        let session = client.open_registered(&descriptor).await;
        for chunk in chunks(0..8) {
            if let Some((_, bytes)) = session.read(descriptor.digest(), chunk, fixture::PART).await {
                let expected = pattern::blob(&descriptor, chunk, fixture::PART, fixture::full(&descriptor));
                pattern::assert_same(&bytes, &expected, "READY at a kill");
            }
        }
    }
    // All of the room is still room.
    let session = daemon.client().await.open_registered(&descriptor).await;
    for chunk in chunks(20..28) {
        session.must_store(&descriptor, chunk, fixture::PART, fixture::full(&descriptor)).await;
    }
    assert_eq!(at_rest(&session.client).await.namespaces[0].ready_chunks, 8);
}

/// Whether one more chunk would be let in; it is given back.
async fn room(session: &RawSession, descriptor: &tender_proto::Descriptor, n: u64) -> Result<(), Reason> {
    let ask = item(fixture::chunk(n), fixture::PART, fixture::full(descriptor), SLOT_BYTES);
    match session.reserve_one(descriptor.digest(), ask).await {
        Ok(reservation) => session.abort(&[reservation]).await.map(drop).map_err(|status| panic!("{status}")),
        Err(outcome) => Err(refused(outcome.refused).unwrap()),
    }
}

/// Case 25: everything is leased, and whoever holds it dies: the client, or the daemon itself.
#[tokio::test(flavor = "multi_thread")]
async fn field_25_a_pool_full_of_leases_is_room_again_when_their_holder_is_killed() {
    let mut daemon = ChildDaemon::start(Setup::slots(4)).await;
    let model = "field 25 leases";
    let descriptor = fixture::small(model, SLOT_BLOCK_BYTES);
    let session = daemon.client().await.open_registered(&descriptor).await;
    for chunk in chunks(0..4) {
        session.must_store(&descriptor, chunk, fixture::PART, fixture::full(&descriptor)).await;
    }
    let peer = Peer::start(PEER, &daemon.socket(), model, "lease").await;
    assert_eq!(room(&session, &descriptor, 9).await, Err(Reason::NoSpace), "all is leased for a minute");
    peer.kill().await;
    at_rest(&session.client).await;
    assert_eq!(room(&session, &descriptor, 9).await, Ok(()));
    // That made room by evicting one; all four again.
    for chunk in chunks(0..4) {
        let bytes = pattern::blob(&descriptor, chunk, fixture::PART, fixture::full(&descriptor));
        let full = fixture::full(&descriptor);
        _ = session.store(descriptor.digest(), chunk, fixture::PART, full, &bytes).await;
    }
    let peer = Peer::start(PEER, &daemon.socket(), model, "lease").await;
    assert_eq!(room(&session, &descriptor, 9).await, Err(Reason::NoSpace));
    die(&mut daemon).await;
    let session = daemon.client().await.open_registered(&descriptor).await;
    assert_eq!(session.states(descriptor.digest(), &chunks(0..4)).await, [v1::ChunkState::Ready; 4]);
    assert_eq!(room(&session, &descriptor, 9).await, Ok(()), "a new daemon holds nothing for anybody");
    peer.kill().await;
    at_rest(&session.client).await;
}

/// Case 25: the same for what is being written, as much of it as the daemon lets in.
#[tokio::test(flavor = "multi_thread")]
async fn field_25_what_was_being_written_is_room_again_after_a_kill() {
    let mut daemon = ChildDaemon::start(Setup::slots(64)).await;
    let descriptor = fixture::small("field 25 writes", SLOT_BLOCK_BYTES);
    let (namespace, full) = (descriptor.digest(), fixture::full(&descriptor));
    let mut held = 0;
    let mut sessions = Vec::new();
    let why = loop {
        let session = daemon.client().await.open_registered(&descriptor).await;
        let before = held;
        let why = loop {
            let ask = item(fixture::chunk(100 + held), fixture::PART, full, SLOT_BYTES);
            match session.reserve_one(namespace, ask).await {
                Ok(_) => held += 1,
                Err(outcome) => break refused(outcome.refused).unwrap(),
            }
        };
        sessions.push(session);
        if held == before {
            break why;
        }
    };
    assert!(held > 0 && matches!(why, Reason::Throttled | Reason::NoSpace), "{held} held, then {why}");
    die(&mut daemon).await;
    let session = daemon.client().await.open_registered(&descriptor).await;
    assert_eq!(at_rest(&session.client).await.arena_used_bytes, 0);
    for chunk in chunks(0..64) {
        session.must_store(&descriptor, chunk, fixture::PART, full).await;
    }
    assert_eq!(at_rest(&session.client).await.namespaces[0].ready_chunks, 64, "all of the room");
}

/// Case 29: the daemon that promised dies before the engine reads. The next one delivers, or the load is failed and
/// recomputed; either way the promise ends.
async fn promised_then_killed(transport: TransportChoice, keep: bool) {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let engine = Arc::new(ModelEngine::new(daemon.client_config(transport), "field 29 kill"));
    let tokens: Vec<u32> = (0..65).collect();
    let told = tokens.clone();
    let first = engine.clone();
    let (request, promised) = tokio::task::spawn_blocking(move || {
        first.wait_until_up();
        first.run("stored", &told);
        first.flush();
        let mut request = first.arrive("promised", &told);
        let promised = first.look(&mut request);
        assert!(promised > 0, "stored and found");
        first.allocate(&mut request, promised).unwrap();
        (request, promised)
    })
    .await
    .unwrap();
    daemon.kill();
    if !keep {
        std::fs::remove_file(daemon.dir().join("arena")).unwrap();
    }
    daemon.restart().await;
    tokio::task::spawn_blocking(move || {
        let mut request = request;
        let run = engine.load(&mut request, promised);
        assert_eq!(run.loaded_tokens + run.failed_tokens, promised, "delivered or listed as failed");
        assert!(keep || run.loaded_tokens == 0, "there was nothing to deliver");
        // Computes what is missing; every slot that attention reads on the way is looked at.
        while request.computed < request.tokens.len() {
            let count = (request.tokens.len() - request.computed).min(16);
            engine.step(&mut [(&mut request, count)]);
        }
        engine.finish(request, false);
        engine.step(&mut []);
        engine.flush();
    })
    .await
    .unwrap();
    at_rest(&daemon.client().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_29_a_promise_of_a_daemon_that_died_is_kept_or_failed_over_shm() {
    promised_then_killed(TransportChoice::Shm, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_29_a_promise_of_a_daemon_that_died_is_kept_or_failed_over_grpc() {
    promised_then_killed(TransportChoice::Grpc, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_29_a_promise_whose_arena_is_gone_is_failed() {
    promised_then_killed(TransportChoice::Auto, false).await;
}
