//! Whole daemons that find each other's chunks: engines on one use what engines on others have stored.

use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tender_daemon::config::{ClientAuth, Config, Listen, PeersConfig, TlsConfig};
use tender_proto::v1::ChunkState;
use tender_proto::{ChunkId, Descriptor};
use tender_tests::daemon::{Daemon, Setup, http_get};
use tender_tests::raw::{Ask, RawSession};
use tender_tests::redis::Redis;
use tender_tests::{conserve, fixture, pattern};

/// Generous: a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn peers(redis: &Redis) -> impl Fn(&mut Config) {
    let directory = redis.uri();
    move |config| {
        config.peers = Some(PeersConfig {
            directory: directory.parse().expect("a URI"),
            prefix: "peers".into(),
            ttl: Duration::from_secs(60),
            timeout: Duration::from_secs(5),
            advertise: None,
            entries_per_second: 10_000,
        });
        // Nobody waits for a busy machine; tests do.
        config.stack.lookup_time = Duration::from_secs(5);
        config.stack.fetch_time = Duration::from_secs(20);
    }
}

async fn start(redis: &Redis) -> Daemon {
    Daemon::start_with(Setup::default(), peers(redis)).await
}

async fn session(daemon: &Daemon, descriptor: &Descriptor) -> RawSession {
    daemon.client().await.open_registered(descriptor).await
}

/// Asks as engines do until all are READY.
async fn fetched(session: &RawSession, descriptor: &Descriptor, chunks: &[ChunkId]) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let answer = session.lookup(descriptor.digest(), chunks, Ask::FETCH).await.expect("a lookup");
        let ready = answer.chunks.iter().filter(|chunk| chunk.state() == ChunkState::Ready).count();
        if ready == chunks.len() {
            return;
        }
        assert!(Instant::now() < give_up, "{ready} of {} came: {answer:?}", chunks.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn store(session: &RawSession, descriptor: &Descriptor, chunks: &[ChunkId]) {
    for &chunk in chunks {
        session.must_store(descriptor, chunk, fixture::PART, fixture::full(descriptor)).await;
    }
}

/// Whether the content is the one that belongs there.
async fn check(session: &RawSession, descriptor: &Descriptor, chunks: &[ChunkId]) {
    let full = fixture::full(descriptor);
    for &chunk in chunks {
        let (coverage, bytes) =
            session.read(descriptor.digest(), chunk, fixture::PART).await.expect("it is there");
        assert_eq!(coverage, full.bits());
        assert_eq!(bytes, pattern::blob(descriptor, chunk, fixture::PART, full), "{chunk}");
    }
}

async fn metric(daemon: &Daemon, line: &str) -> u64 {
    let (status, text) = http_get(daemon.admin(), "/metrics").await.expect("metrics");
    assert_eq!(status, 200);
    let value = text.lines().find_map(|found| found.strip_prefix(line));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {line} in {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_uses_what_an_engine_of_another_daemon_has_stored() {
    let redis = Redis::start();
    let (one, two) = (start(&redis).await, start(&redis).await);
    let descriptor = fixture::small("peers", 4096);
    let chunks: Vec<_> = (0..32).map(fixture::chunk).collect();
    let (writer, reader) = (session(&one, &descriptor).await, session(&two, &descriptor).await);
    store(&writer, &descriptor, &chunks).await;
    fetched(&reader, &descriptor, &chunks).await;
    check(&reader, &descriptor, &chunks).await;
    assert_eq!(metric(&two, "tender_peer_fetches_total{outcome=\"fetched\"}").await, 32);
    assert_eq!(metric(&one, "tender_peer_served_chunks_total ").await, 32);
    drop((writer, reader));
    conserve::quiet(one.engine()).await;
    conserve::quiet(two.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_engines_of_a_daemon_make_one_fetch() {
    let redis = Redis::start();
    let (one, two) = (start(&redis).await, start(&redis).await);
    let descriptor = fixture::small("stampede", 4096);
    let chunks: Vec<_> = (0..16).map(fixture::chunk).collect();
    let writer = session(&one, &descriptor).await;
    store(&writer, &descriptor, &chunks).await;
    let mut readers = Vec::new();
    for _ in 0..8 {
        readers.push(session(&two, &descriptor).await);
    }
    let mut reading = tokio::task::JoinSet::new();
    for reader in readers {
        let (descriptor, chunks) = (descriptor.clone(), chunks.clone());
        reading.spawn(async move {
            fetched(&reader, &descriptor, &chunks).await;
            check(&reader, &descriptor, &chunks).await;
        });
    }
    while let Some(read) = reading.join_next().await {
        read.expect("it has read");
    }
    assert_eq!(metric(&two, "tender_peer_fetches_total{outcome=\"fetched\"}").await, 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_on_one_daemon_reaches_the_engines_of_the_others() {
    let redis = Redis::start();
    let (one, two) = (start(&redis).await, start(&redis).await);
    let descriptor = fixture::small("reset", 4096);
    let chunks = [fixture::chunk(1), fixture::chunk(2)];
    let (writer, reader) = (session(&one, &descriptor).await, session(&two, &descriptor).await);
    store(&writer, &descriptor, &chunks).await;
    fetched(&reader, &descriptor, &chunks).await;
    one.client().await.reset(descriptor.digest()).await.expect("a reset of all daemons");
    assert_eq!(writer.states(descriptor.digest(), &chunks).await, [ChunkState::Miss; 2]);
    let give_up = Instant::now() + PATIENCE;
    loop {
        // A question about anything is enough for it to learn.
        let ask = [fixture::chunk(9)];
        let answer = reader.lookup(descriptor.digest(), &ask, Ask::FETCH).await.expect("a lookup");
        assert_eq!(answer.chunks[0].state(), ChunkState::Miss);
        if reader.states(descriptor.digest(), &chunks).await == [ChunkState::Miss; 2] {
            break;
        }
        assert!(Instant::now() < give_up, "it is still served");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // And the namespace goes on.
    let writer = session(&one, &descriptor).await;
    store(&writer, &descriptor, &chunks).await;
    fetched(&session(&two, &descriptor).await, &descriptor, &chunks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_others_cannot_hear_of_says_so() {
    let mut redis = Redis::start();
    let one = start(&redis).await;
    let descriptor = fixture::small("unheard", 4096);
    let writer = session(&one, &descriptor).await;
    store(&writer, &descriptor, &[fixture::chunk(1)]).await;
    redis.kill();
    let refused = one.client().await.reset(descriptor.digest()).await.expect_err("nobody could be told");
    assert!(refused.message().contains("peers"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_ends_leaves_its_chunks_to_another() {
    let redis = Redis::start();
    let (one, two) = (start(&redis).await, start(&redis).await);
    let descriptor = fixture::small("drain", 4096);
    let chunks: Vec<_> = (0..8).map(fixture::chunk).collect();
    let (writer, reader) = (session(&one, &descriptor).await, session(&two, &descriptor).await);
    store(&writer, &descriptor, &chunks).await;
    fetched(&reader, &descriptor, &chunks[..1]).await;
    drop(writer);
    one.stop().await;
    assert_eq!(reader.states(descriptor.digest(), &chunks).await, [ChunkState::Ready; 8]);
    check(&reader, &descriptor, &chunks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_hears_a_miss_in_time_when_the_directory_is_paused() {
    let redis = Redis::start();
    let one = Daemon::start_with(Setup::default(), |config| {
        peers(&redis)(config);
        config.stack.lookup_time = Duration::from_millis(50);
    })
    .await;
    let descriptor = fixture::small("paused", 4096);
    let engine = session(&one, &descriptor).await;
    redis.pause();
    let begin = Instant::now();
    for n in 0..20 {
        let ask = [fixture::chunk(n)];
        let answer = engine.lookup(descriptor.digest(), &ask, Ask::FETCH).await.expect("a lookup");
        assert_eq!(answer.chunks[0].state(), ChunkState::Miss);
    }
    // Each by itself would be a second; what a busy machine adds is below that.
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    store(&engine, &descriptor, &[fixture::chunk(1)]).await;
    check(&engine, &descriptor, &[fixture::chunk(1)]).await;
    redis.go_on();
}

/// Certificates of one authority for daemons at 127.0.0.1, in this folder.
fn certify(folder: &std::path::Path) -> TlsConfig {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.subject_alt_names.push(SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()));
    let key = KeyPair::generate().expect("a key");
    let cert = params.signed_by(&key, &authority).expect("a certificate");
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    TlsConfig {
        cert: write("cert.pem", cert.pem()),
        key: write("key.pem", key.serialize_pem()),
        client_ca: Some(write("ca.pem", authority.pem())),
        client_auth: ClientAuth::Required,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn daemons_with_certificates_fetch_from_each_other_by_tls_and_others_do_not() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().unwrap());
    let tls = certify(folder.path());
    let with_tls = |config: &mut Config| {
        peers(&redis)(config);
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address: Listen = format!("tls://{free}").parse().unwrap();
        config.listen.push(address.clone());
        config.tls = Some(tls.clone());
        // The harness has a plain port too; others are told of this one.
        config.peers.as_mut().unwrap().advertise = Some(address);
    };
    let home = Daemon::start_with(Setup::default(), with_tls).await;
    let away = Daemon::start_with(Setup::default(), with_tls).await;
    let bare = start(&redis).await;
    let descriptor = fixture::small("peers by tls", 16 << 10);
    let (at_home, from_away) = (session(&home, &descriptor).await, session(&away, &descriptor).await);
    let stranger = session(&bare, &descriptor).await;
    let chunks: Vec<_> = (0..4).map(fixture::chunk).collect();
    store(&at_home, &descriptor, &chunks).await;
    fetched(&from_away, &descriptor, &chunks).await;
    check(&from_away, &descriptor, &chunks).await;
    // Two know where it lies and are reached by TLS only.
    let give_up = Instant::now() + PATIENCE;
    let asked = async || stranger.lookup(descriptor.digest(), &chunks, Ask::FETCH).await.expect("a lookup");
    while asked().await.chunks.iter().any(|chunk| chunk.state() != ChunkState::Miss) {
        assert!(Instant::now() < give_up, "what cannot be fetched becomes a miss");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(conserve::quiet(bare.engine()).await.ready_chunks, 0);
}
