//! Daemons on several hosts: what one has, the other one finds; and whatever befalls the network, the directory or
//! the other host costs a miss within the deadline and nothing else.

use std::time::{Duration, Instant};

use tender_proto::v1::ChunkState;
use tender_proto::{ChunkId, Descriptor};
use tender_tests::hosts::{Directory, Hosts, Site, wait_for};
use tender_tests::raw::{Ask, RawSession};
use tender_tests::{fixture, pattern};

const HOME: usize = 1;
const AWAY: usize = 2;
const REDIS: usize = 3;
/// Longer than any single question may take, far below what a caller without deadlines would wait.
const PROMPT: Duration = Duration::from_secs(5);
/// Of one chunk: 4 blocks.
const BLOCK_BYTES: u64 = 256 << 10;

/// Two daemons, and a directory on a third host.
struct Network {
    home: Site,
    away: Site,
    directory: Directory,
    // Last: they are taken down when nobody is there any more.
    hosts: Hosts,
}

impl Network {
    async fn up() -> Self {
        let hosts = Hosts::up(3);
        let directory = Directory::start(&hosts, REDIS).await;
        let home = Site::start(&hosts, HOME, &directory, &[]).await;
        let away = Site::start(&hosts, AWAY, &directory, &[]).await;
        Self { home, away, directory, hosts }
    }
    async fn sessions(&self, descriptor: &Descriptor) -> (RawSession, RawSession) {
        let home = self.home.client().await.open_registered(descriptor).await;
        (home, self.away.client().await.open_registered(descriptor).await)
    }
}

async fn store(session: &RawSession, descriptor: &Descriptor, n: u64) {
    session.must_store(descriptor, fixture::chunk(n), fixture::PART, fixture::full(descriptor)).await;
}

/// Asks as a scheduler does; the answer comes promptly, whatever has happened.
async fn seek(session: &RawSession, descriptor: &Descriptor, chunk: ChunkId) -> ChunkState {
    let asked = Instant::now();
    let answer = session.lookup(descriptor.digest(), &[chunk], Ask::FETCH).await.expect("an answer");
    assert!(asked.elapsed() < PROMPT, "a lookup took {:?}", asked.elapsed());
    answer.chunks[0].state()
}

/// Asks until the chunk is there, and holds its bytes to what was stored.
async fn must_come(session: &RawSession, descriptor: &Descriptor, n: u64) {
    let chunk = fixture::chunk(n);
    wait_for("a chunk of the other host", async || {
        seek(session, descriptor, chunk).await == ChunkState::Ready
    })
    .await;
    let (_, bytes) = session.read(descriptor.digest(), chunk, fixture::PART).await.expect("it is READY");
    let expected = pattern::blob(descriptor, chunk, fixture::PART, fixture::full(descriptor));
    pattern::assert_same(&bytes, &expected, "what another host had");
}

/// Asks until nothing of it is under way any more, which must be soon, and must not bring it.
async fn must_miss(session: &RawSession, descriptor: &Descriptor, n: u64) {
    let asked = Instant::now();
    wait_for("a miss", async || match seek(session, descriptor, fixture::chunk(n)).await {
        ChunkState::Ready => panic!("chunk {n} cannot have come"),
        state => state == ChunkState::Miss,
    })
    .await;
    println!("chunk {n} was a miss after {:?}", asked.elapsed());
}

/// What a host stored itself it serves, whatever the others do.
async fn serves_its_own(session: &RawSession, descriptor: &Descriptor, n: u64) {
    let asked = Instant::now();
    store(session, descriptor, n).await;
    let (_, bytes) =
        session.read(descriptor.digest(), fixture::chunk(n), fixture::PART).await.expect("it is READY");
    let expected = pattern::blob(descriptor, fixture::chunk(n), fixture::PART, fixture::full(descriptor));
    pattern::assert_same(&bytes, &expected, "its own chunk");
    assert!(asked.elapsed() < PROMPT, "its own took {:?}", asked.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_host_and_a_cut_one_cost_misses_and_are_found_again() {
    let network = Network::up().await;
    let descriptor = fixture::small("hosts", BLOCK_BYTES);
    let (home, away) = network.sessions(&descriptor).await;
    for n in 0..8 {
        store(&home, &descriptor, n).await;
    }
    must_come(&away, &descriptor, 0).await;

    network.hosts.black_hole(HOME);
    must_miss(&away, &descriptor, 1).await;
    serves_its_own(&away, &descriptor, 100).await;
    serves_its_own(&home, &descriptor, 101).await;
    network.hosts.heal(HOME);
    must_come(&away, &descriptor, 1).await;
    must_come(&away, &descriptor, 101).await;

    network.hosts.cut(HOME);
    must_miss(&away, &descriptor, 2).await;
    serves_its_own(&home, &descriptor, 102).await;
    network.hosts.heal(HOME);
    must_come(&away, &descriptor, 2).await;

    // A narrow link: late, but whole.
    network.hosts.throttle(HOME, "40mbit");
    must_come(&away, &descriptor, 3).await;
    network.hosts.heal(HOME);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_killed_in_mid_transfer_leaves_a_miss() {
    let mut network = Network::up().await;
    let descriptor = fixture::small("hosts", BLOCK_BYTES);
    let (home, away) = network.sessions(&descriptor).await;
    for n in 0..4 {
        store(&home, &descriptor, n).await;
    }
    must_come(&away, &descriptor, 0).await;
    // So slow that a chunk of a megabyte takes far longer than a busy machine needs to kill a process: what the killed
    // one's kernel still has in its buffers is sent.
    network.hosts.throttle(HOME, "400kbit");
    wait_for("a transfer that has begun", async || {
        seek(&away, &descriptor, fixture::chunk(1)).await == ChunkState::Pending
    })
    .await;
    network.home.kill();
    must_miss(&away, &descriptor, 1).await;
    let stats = away.client.stats().await.expect("stats");
    assert_eq!((stats.inflight_bytes, stats.reservations), (0, 0), "nothing is left of it");
    serves_its_own(&away, &descriptor, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_stops_dies_or_forgets_costs_misses_and_is_filled_again() {
    let mut network = Network::up().await;
    let descriptor = fixture::small("hosts", BLOCK_BYTES);
    let (home, away) = network.sessions(&descriptor).await;
    for n in 0..4 {
        store(&home, &descriptor, n).await;
    }
    must_come(&away, &descriptor, 0).await;

    network.directory.pause();
    must_miss(&away, &descriptor, 1).await;
    serves_its_own(&away, &descriptor, 100).await;
    network.directory.go_on();
    must_come(&away, &descriptor, 1).await;

    network.directory.flush();
    must_come(&away, &descriptor, 2).await;

    network.directory.kill();
    must_miss(&away, &descriptor, 3).await;
    serves_its_own(&home, &descriptor, 101).await;
    network.directory.restart(&network.hosts, REDIS).await;
    must_come(&away, &descriptor, 3).await;
    must_come(&away, &descriptor, 101).await;
}
