//! One daemon after another: what is stored and who is connected go over without a gap, and whatever dies on the way,
//! somebody serves and nothing is lost.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tender_client::TransportChoice;
use tender_daemon::config::{Config, DiskConfig};
use tender_proto::{Descriptor, Reason, v1};
use tender_tests::daemon::{ChildDaemon, Daemon, SLOT_BLOCK_BYTES, Setup, ended, http_get};
use tender_tests::model::ModelEngine;
use tender_tests::raw::{Ask, RawClient, RawSession, Target, collect, get_item, item, reason};
use tender_tests::successor::{RawSuccessor, place_beside};
use tender_tests::{conserve, fixture, pattern};

/// Far above what a change takes even here; the promise of two seconds is measured, not asserted, on a busy machine.
const MOST: Duration = Duration::from_secs(20);

fn arena_of(socket: &Path) -> PathBuf {
    socket.with_file_name("arena")
}

/// What writers were told is stored, and what readers found.
#[derive(Debug, Default)]
struct Flow {
    over: AtomicBool,
    acknowledged: Mutex<Vec<u64>>,
    next: AtomicU64,
    reads: AtomicU64,
    reconnects: AtomicU64,
    longest_gap: Mutex<Duration>,
}

#[derive(Clone, Copy, Debug)]
enum Role {
    Writes,
    Reads,
}

impl Flow {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }
    /// A client's life: sessions after one another, each until a call fails.
    async fn live(&self, target: Target, descriptor: &Descriptor, role: Role) {
        let mut last = Instant::now();
        while self.goes_on() {
            let Ok(client) = RawClient::connect(&target).await else { continue };
            let Ok(session) = client.open("flow").await else { continue };
            if session.register(descriptor).await.is_err() {
                continue;
            }
            while self.goes_on() && self.step(&session, descriptor, role).await.is_ok() {
                let mut longest = self.longest_gap.lock().unwrap();
                *longest = last.elapsed().max(*longest);
                last = Instant::now();
            }
            self.reconnects.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn step(
        &self,
        session: &RawSession,
        descriptor: &Descriptor,
        role: Role,
    ) -> Result<(), tonic::Status> {
        // Not faster than the test can take in.
        tokio::time::sleep(Duration::from_millis(1)).await;
        match role {
            Role::Writes => self.store(session, descriptor).await,
            Role::Reads => self.load(session, descriptor).await,
        }
    }

    /// Stores a chunk that nobody has stored yet.
    async fn store(&self, session: &RawSession, descriptor: &Descriptor) -> Result<(), tonic::Status> {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let (chunk, full) = (fixture::chunk(n), fixture::full(descriptor));
        let bytes = pattern::blob(descriptor, chunk, fixture::PART, full);
        let items = vec![item(chunk, fixture::PART, full, bytes.len())];
        let reserved = session.reserve(descriptor.digest(), items).await?[0];
        assert_ne!(reserved.reservation_id, 0, "there is room for all of them: {reserved:?}");
        let frames = session.frames(reserved.reservation_id, full, &bytes, bytes.len() / 2);
        let stored = session.put(frames).await?[0];
        if stored.stored {
            self.acknowledged.lock().unwrap().push(n);
        }
        Ok(())
    }

    /// Reads a chunk that was stored at some time: it must be there, and be right.
    async fn load(&self, session: &RawSession, descriptor: &Descriptor) -> Result<(), tonic::Status> {
        let n = {
            let known = self.acknowledged.lock().unwrap();
            if known.is_empty() {
                return Ok(());
            }
            known[rand::random_range(0..known.len())]
        };
        let chunk = fixture::chunk(n);
        let found = session.lookup(descriptor.digest(), &[chunk], Ask::LEASE).await?;
        assert_eq!(found.chunks[0].state(), v1::ChunkState::Ready, "chunk {n} was acknowledged");
        let lease = found.lease.unwrap().id;
        let stream = session.get(lease, vec![get_item(0, fixture::PART)]).await?;
        let read = collect(stream, 1).await;
        let live = session.release(&[lease]).await? == [v1::LeaseOutcome::Live];
        if let (true, Ok(parts)) = (live, read) {
            let expected = pattern::blob(descriptor, chunk, fixture::PART, fixture::full(descriptor));
            pattern::assert_same(&parts[0].as_ref().unwrap().bytes, &expected, "after a take-over");
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Clients of all kinds in full flow, over one take-over after another.
#[tokio::test(flavor = "multi_thread")]
async fn clients_in_full_flow_lose_nothing_over_many_take_overs() {
    let mut daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("flow", 1000);
    let flow = Arc::new(Flow::default());
    let mut tasks = tokio::task::JoinSet::new();
    for target in [daemon.unix(), daemon.tcp()] {
        for role in [Role::Writes, Role::Reads] {
            let (flow, descriptor, target) = (Arc::clone(&flow), descriptor.clone(), target.clone());
            tasks.spawn(async move { flow.live(target, &descriptor, role).await });
        }
    }
    let engines = [TransportChoice::Shm, TransportChoice::Grpc].map(|transport| {
        let engine = Arc::new(ModelEngine::new(daemon.client_config(transport), "flow engine"));
        engine.wait_until_up();
        let (flow, engine_too) = (Arc::clone(&flow), Arc::clone(&engine));
        let run = move || {
            let tokens: Vec<u32> = (0..256).collect();
            let (mut n, mut hits) = (0, 0);
            while flow.goes_on() {
                let run = engine_too.run(&format!("r{n}"), &tokens);
                hits += usize::from(run.loaded_tokens > 0);
                n += 1;
            }
            hits
        };
        (engine, tokio::task::spawn_blocking(run))
    });
    let mut changes = Vec::new();
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let before = Instant::now();
        daemon = daemon.take_over().await;
        changes.push(before.elapsed());
        let hits = |engine: &ModelEngine| engine.counters().1.loaded_bytes;
        let before: Vec<_> = engines.iter().map(|(engine, _)| hits(engine)).collect();
        let give_up = Instant::now() + MOST;
        // Every client comes back by itself and is served again.
        while engines.iter().zip(&before).any(|((engine, _), before)| hits(engine) <= *before) {
            assert!(Instant::now() < give_up, "no hits after a take-over: {:?}", engines[0].0.counters());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    flow.over.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    for (engine, run) in engines {
        assert!(run.await.unwrap() > 0);
        tokio::task::spawn_blocking(move || engine.flush()).await.unwrap();
    }
    let acknowledged = flow.acknowledged.lock().unwrap().clone();
    println!(
        "{} chunks stored, {} read, {} sessions of raw clients lost over 6 take-overs of {changes:?}; longest \
         time in which a raw client got nothing done: {:?}",
        acknowledged.len(),
        flow.reads.load(Ordering::Relaxed),
        flow.reconnects.load(Ordering::Relaxed),
        flow.longest_gap.lock().unwrap(),
    );
    assert!(acknowledged.len() > 20 && flow.reads.load(Ordering::Relaxed) > 20);
    let session = daemon.client().await.open_registered(&descriptor).await;
    for n in acknowledged {
        let read = session.read(descriptor.digest(), fixture::chunk(n), fixture::PART).await;
        let expected =
            pattern::blob(&descriptor, fixture::chunk(n), fixture::PART, fixture::full(&descriptor));
        pattern::assert_same(&read.expect("acknowledged").1, &expected, "at the end");
    }
    drop(session);
    conserve::deserted(daemon.engine()).await;
}

/// A daemon with one chunk, and a session on it.
async fn with_a_chunk(daemon: &Daemon) -> (Descriptor, RawSession) {
    let descriptor = fixture::small("kept", 1000);
    let session = daemon.client().await.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor)).await;
    (descriptor, session)
}

async fn assert_serves(session: &RawSession, descriptor: &Descriptor) {
    let full = fixture::full(descriptor);
    let (_, bytes) =
        session.read(descriptor.digest(), fixture::chunk(1), fixture::PART).await.expect("a hit");
    let expected = pattern::blob(descriptor, fixture::chunk(1), fixture::PART, full);
    pattern::assert_same(&bytes, &expected, "what was stored");
    let n = 1000 + rand::random::<u32>();
    session.must_store(descriptor, fixture::chunk(n.into()), fixture::PART, full).await;
}

/// Until a successor is ready, nothing at all happens to the running daemon, whatever is said to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_successor_that_does_not_get_ready_changes_nothing() {
    let setup = Setup::default();
    let daemon = Daemon::start(setup).await;
    let (descriptor, session) = with_a_chunk(&daemon).await;
    let arena = arena_of(daemon.socket());
    let refused = |message: Option<v1::TakeOverHello>, garbage: &[u8]| {
        let caller = RawSuccessor::connect(&arena).unwrap();
        match message {
            Some(hello) => caller.say(v1::take_over::Message::Hello(hello)).unwrap(),
            None => caller.say_raw(garbage).unwrap(),
        }
        caller.refused()
    };
    let hello = RawSuccessor::hello(setup.arena_bytes);
    let other_size = refused(Some(RawSuccessor::hello(setup.arena_bytes * 2)), &[]);
    assert!(other_size.contains("--arena-size") && other_size.contains("134217728"), "{other_size}");
    let newer = v1::TakeOverHello { oldest_version: 2, newest_version: 3, ..hello.clone() };
    assert!(refused(Some(newer), &[]).contains("version 1"));
    let format = v1::TakeOverHello { arena_format: 9, ..hello.clone() };
    assert!(refused(Some(format), &[]).contains("format"));
    for garbage in [&b"x"[..], b"TENDERT1", b"TENDERT1\xff\xff\xff", &[0; 4096]] {
        refused(None, garbage);
    }
    // Dead after the greeting, and after everything was offered.
    let caller = RawSuccessor::connect(&arena).unwrap();
    caller.say(v1::take_over::Message::Hello(hello.clone())).unwrap();
    drop(caller);
    let first = loop {
        let caller = RawSuccessor::connect(&arena).unwrap();
        caller.say(v1::take_over::Message::Hello(hello.clone())).unwrap();
        match caller.hear() {
            Some((v1::take_over::Message::Offer(_), _)) => break caller,
            // The one before is still being noticed.
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    // A second one at the same time is told so.
    let second = RawSuccessor::connect(&arena).unwrap();
    second.say(v1::take_over::Message::Hello(hello)).unwrap();
    assert!(second.refused().contains("another daemon is taking over"));
    drop(first);
    assert_serves(&session, &descriptor).await;
    assert!(daemon.app().phase().borrow().is_ready());
    drop(session);
    conserve::deserted(daemon.engine()).await;
}

/// How far a successor comes before it dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Death {
    WhileDraining,
    Drained,
    WithTheArena,
}

/// Whenever a successor dies, the daemon serves on or again, with all that it had and all who waited at its door.
#[tokio::test(flavor = "multi_thread")]
async fn a_successor_that_dies_on_the_way_loses_nothing() {
    for death in [Death::WhileDraining, Death::Drained, Death::WithTheArena] {
        let setup = Setup::default();
        let daemon = Daemon::start(setup).await;
        let (descriptor, session) = with_a_chunk(&daemon).await;
        let full = fixture::full(&descriptor);
        // Held so that the drain takes a while.
        let lease =
            session.lookup(descriptor.digest(), &[fixture::chunk(1)], Ask::LEASE).await.unwrap().lease;
        let (arena, target) = (arena_of(daemon.socket()), daemon.unix());
        let dying = tokio::task::spawn_blocking(move || {
            let next = RawSuccessor::connect(&arena).unwrap();
            let offered = next.get_ready(setup.arena_bytes);
            assert_eq!(offered.len(), 3, "a Unix socket, a port and the admin port: {offered:?}");
            next.take(vec![0, 1, 2]);
            if death != Death::WhileDraining {
                next.drained();
            }
            if death == Death::WithTheArena {
                drop(next.go());
            }
        });
        let successor = daemon.app().successor().await;
        // Comes while nobody accepts, and is served by whoever does then.
        let waiting = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            RawClient::connect(&target).await.unwrap().open("waited").await
        });
        let daemon = daemon.hand_over(successor).await.expect("it serves on or again");
        dying.await.unwrap();
        let waited = waited_for(waiting.await.unwrap(), &daemon).await;
        waited.register(&descriptor).await.unwrap();
        assert_serves(&waited, &descriptor).await;
        let same_life = session.release(&[lease.unwrap().id]).await;
        match death {
            // The very same session goes on until its stream ends, and what it was promised holds.
            Death::WhileDraining | Death::Drained => {
                if let Ok(outcomes) = same_life {
                    assert_eq!(outcomes, [v1::LeaseOutcome::Live], "{death:?}");
                }
            }
            Death::WithTheArena => {
                same_life.unwrap_err();
                let fresh = daemon.client().await.open("other").await.unwrap();
                assert_ne!(fresh.opened.boot_id, session.opened.boot_id, "a new life with new ids");
            }
        }
        drop(session);
        // It can still be taken over.
        let daemon = daemon.take_over().await;
        let fresh = daemon.client().await.open_registered(&descriptor).await;
        assert_serves(&fresh, &descriptor).await;
        fresh.must_store(&descriptor, fixture::chunk(77), fixture::PART, full).await;
        drop((waited, fresh));
        conserve::deserted(daemon.engine()).await;
    }
}

/// A session of whoever waited: refused only where the drain had let it in before it was called off.
async fn waited_for(opened: Result<RawSession, tonic::Status>, daemon: &Daemon) -> RawSession {
    match opened {
        Ok(session) => session,
        Err(no) => {
            assert_eq!(reason::<()>(Err(no)), Reason::Draining);
            daemon.client().await.open("again").await.unwrap()
        }
    }
}

/// Connections that come while nobody accepts wait in the queue, and the next daemon serves them.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_at_the_door_is_served_by_the_next_daemon() {
    let daemon = Daemon::start(Setup::default()).await;
    let (descriptor, session) = with_a_chunk(&daemon).await;
    let (tcp, admin) = (daemon.tcp(), *daemon.admin());
    // A lease that nobody releases: the old daemon waits its whole grace.
    session.lookup(descriptor.digest(), &[fixture::chunk(1)], Ask::LEASE).await.unwrap();
    let mut phase = daemon.app().phase();
    let targets = [daemon.unix(), daemon.tcp()];
    let callers = tokio::spawn(async move {
        phase.wait_for(|phase| !phase.accepts()).await.unwrap();
        let mut opened = Vec::new();
        for target in targets {
            opened.push(RawClient::connect(&target).await.unwrap().open("waited").await);
        }
        opened
    });
    let boot = session.opened.boot_id.clone();
    let daemon = daemon.take_over().await;
    for waited in callers.await.unwrap() {
        let waited = waited.expect("served by the next daemon");
        assert_ne!(waited.opened.boot_id, boot);
        waited.register(&descriptor).await.unwrap();
        assert_serves(&waited, &descriptor).await;
    }
    assert_eq!((daemon.tcp(), *daemon.admin()), (tcp, admin), "ports that were free to choose stay");
    assert_eq!(tender_tests::daemon::http_status(daemon.admin(), "/ready").await, 200);
    drop(session);
    conserve::deserted(daemon.engine()).await;
}

/// The whole program: the old process ends with success, its files stay, and the next one is not asked to touch pages
/// or to wait; then a plain restart, which keeps the arena too.
#[tokio::test(flavor = "multi_thread")]
async fn processes_take_over_from_each_other_and_restart() {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let descriptor = fixture::small("processes", 1000);
    let full = fixture::full(&descriptor);
    let mut boots = Vec::new();
    for n in 0..4 {
        let session = daemon.client().await.open_registered(&descriptor).await;
        boots.push(session.opened.boot_id.clone());
        for before in 0..n {
            let read = session.read(descriptor.digest(), fixture::chunk(before), fixture::PART).await;
            let expected = pattern::blob(&descriptor, fixture::chunk(before), fixture::PART, full);
            pattern::assert_same(&read.unwrap().1, &expected, "of an earlier daemon");
        }
        session.must_store(&descriptor, fixture::chunk(n), fixture::PART, full).await;
        let status = match n {
            3 => break,
            2 => {
                let status = daemon.terminate().await;
                assert!(!daemon.socket().exists() && daemon.dir().join("arena").exists());
                daemon.restart().await;
                status
            }
            _ => daemon.take_over().await,
        };
        assert!(status.success(), "the one before ended with {status}");
        assert!(place_beside(&daemon.dir().join("arena")).exists());
    }
    boots.dedup();
    assert_eq!(boots.len(), 4, "every start has its own id");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_nobody_there_a_take_over_is_a_start() {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let descriptor = fixture::small("nobody", 1000);
    let session = daemon.client().await.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor)).await;
    // A killed daemon leaves all its files.
    daemon.kill();
    let next = daemon.successor(&[]).spawn().unwrap();
    drop(daemon.replace(next));
    daemon.wait_until_ready().await;
    let session = daemon.client().await.open_registered(&descriptor).await;
    assert_serves(&session, &descriptor).await;
}

/// What the other configuration says does not fit: a sentence, and the running one does not even notice.
#[tokio::test(flavor = "multi_thread")]
async fn a_successor_of_another_size_ends_with_a_sentence() {
    let daemon = ChildDaemon::start(Setup::default()).await;
    let descriptor = fixture::small("size", 1000);
    let session = daemon.client().await.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor)).await;
    let arguments = ["--arena-size", "1MiB"];
    let mut command = std::process::Command::new(tender_tests::daemon::tenderd());
    command.arg("--listen").arg(format!("unix:{}", daemon.socket().display())).arg("--take-over");
    command.arg("--arena-path").arg(daemon.dir().join("arena")).args(arguments).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--arena-size") && said.contains(&daemon.pid().to_string()), "{said}");
    assert_serves(&session, &descriptor).await;
}

/// A daemon that is stopped cannot hand over: the new one says whose it is and what to do, and the old one goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_daemon_is_named_and_goes_on_later() {
    let daemon = ChildDaemon::start(Setup::default()).await;
    let descriptor = fixture::small("stopped", 1000);
    let session = daemon.client().await.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor)).await;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let mut command = daemon.successor(&[]);
    command.stderr(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("does not answer") && said.contains(&daemon.pid().to_string()), "{said}");
    assert_serves(&session, &descriptor).await;
}

/// Killed in the middle of its drain, the old daemon is followed by the one that was to take over.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_while_it_hands_over_is_followed_all_the_same() {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let descriptor = fixture::small("killed", 1000);
    let session = daemon.client().await.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor)).await;
    // Held, so that the drain takes its whole grace.
    session.lookup(descriptor.digest(), &[fixture::chunk(1)], Ask::LEASE).await.unwrap();
    let next = daemon.successor(&[]).spawn().unwrap();
    let mut session = session;
    // The word about stopping is given when the drain begins.
    while let Some(event) = session.events.message().await.unwrap() {
        if matches!(event.event, Some(v1::session_event::Event::Draining(_))) {
            break;
        }
    }
    daemon.kill();
    drop(daemon.replace(next));
    daemon.wait_until_ready().await;
    let fresh = daemon.client().await.open_registered(&descriptor).await;
    assert_serves(&fresh, &descriptor).await;
    // And it is a whole daemon, which can be taken over in turn.
    assert!(daemon.take_over().await.success());
}

/// The old daemon is told to stop while it hands over: it ends, and the other one begins, at the same places.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_stopped_while_it_hands_over_is_followed_at_the_same_places() {
    let daemon = Daemon::start(Setup::default()).await;
    let arena = arena_of(daemon.socket());
    let (unix, tcp) = (daemon.unix(), daemon.tcp());
    let config = daemon.successor_config();
    let next = tokio::spawn(tender_daemon::app::RunningApp::start(config));
    // It is ready and waits for the arena; nobody gives it.
    let successor = daemon.app().successor().await;
    assert!(arena.exists());
    drop(successor);
    let _dir = daemon.stop_in_place().await;
    let next = next.await.unwrap().expect("it begins when the other one has ended");
    next.phase().wait_for(|phase| phase.is_ready()).await.unwrap();
    for target in [unix, tcp] {
        assert!(RawClient::connect(&target).await.unwrap().ping().await.unwrap().ready);
    }
    conserve::audit(next.engine());
    next.shutdown().await;
}

/// Places that only one of the two has: the new one's are bound, the old one's are closed.
#[tokio::test(flavor = "multi_thread")]
async fn places_that_differ_are_bound_and_closed() {
    let mut daemon = ChildDaemon::start(Setup::default()).await;
    let other = daemon.dir().join("other.sock");
    let mut next = std::process::Command::new(tender_tests::daemon::tenderd());
    next.arg("--listen").arg(format!("unix:{}", other.display())).arg("--take-over").stdin(Stdio::null());
    next.arg("--arena-path").arg(daemon.dir().join("arena")).args(["--log-level", "warn"]);
    next.args(["--arena-size", &Setup::default().arena_bytes.to_string()]);
    let next = next.spawn().unwrap();
    let mut old = daemon.replace(next);
    assert!(ended(&mut old).await.success());
    assert!(!daemon.socket().exists() && !tender_proto::shm::fd_socket_path(&daemon.socket()).exists());
    let client = RawClient::connect(&Target::Unix(other)).await.unwrap();
    assert!(client.ping().await.unwrap().ready);
}

/// The folder of the disk tier is one daemon's at a time too.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_tier_goes_over_with_the_arena() {
    let folder = tempfile::tempdir().unwrap();
    let with_disk = |config: &mut Config| {
        config.disk = Some(DiskConfig {
            path: folder.path().into(),
            bytes: 64 << 20,
            segment_bytes: 4 << 20,
            write_bytes_per_second: 1 << 30,
            reads: 2,
            discard: false,
        });
    };
    let descriptor = fixture::small("disk goes over", SLOT_BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    let daemon = Daemon::start_with(Setup::default(), with_disk).await;
    let session = daemon.client().await.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
    let daemon = daemon.take_over_with(with_disk).await;
    let metrics = http_get(daemon.admin(), "/metrics").await.unwrap().1;
    assert!(metrics.contains("tender_disk_bytes"), "the next one has it");
    let session = daemon.client().await.open_registered(&descriptor).await;
    let (_, bytes) = session.read(descriptor.digest(), fixture::chunk(1), fixture::PART).await.unwrap();
    pattern::assert_same(
        &bytes,
        &pattern::blob(&descriptor, fixture::chunk(1), fixture::PART, full),
        "after it",
    );
    daemon.stop().await;
}
