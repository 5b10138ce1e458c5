//! Traces: one for a request, from its engine to the daemon that had its chunks; and collectors that are no good.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::time::{Duration, Instant};

use tender_client::{ClientConfig, TransportChoice};
use tender_daemon::config::{Config, PeersConfig, TraceConfig};
use tender_tests::collector::{self, Collected, Collector};
use tender_tests::daemon::{Daemon, Setup, http_get};
use tender_tests::model::ModelEngine;
use tender_tests::redis::Redis;
use tokio::net::TcpListener;

/// Generous: a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// As an engine hands it on: its caller's span.
const ENGINE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

async fn daemon(name: &str, redis: &Redis, trace: TraceConfig) -> Daemon {
    let directory = redis.uri();
    Daemon::start_with(Setup::default(), |config: &mut Config| {
        config.name = name.into();
        config.trace = trace;
        config.peers = Some(PeersConfig {
            directory: directory.parse().unwrap(),
            prefix: "traces".into(),
            ttl: Duration::from_secs(60),
            timeout: Duration::from_secs(5),
            advertise: None,
            entries_per_second: 10_000,
        });
        config.stack.lookup_time = Duration::from_secs(5);
        config.stack.fetch_time = Duration::from_secs(20);
    })
    .await
}

/// Loads go over gRPC, and wait for what the daemon fetches.
fn client(daemon: &Daemon, trace: TraceConfig) -> ClientConfig {
    let config = daemon.client_config(TransportChoice::Grpc);
    ClientConfig { client_name: "engine".into(), fetch_wait: Duration::from_secs(20), trace, ..config }
}

/// A prompt that one daemon has is asked of the other one until all of it was loaded. Returns when all was stored.
async fn load_from_peer(one: &Daemon, two: ClientConfig) {
    let writer = one.client_config(TransportChoice::Auto);
    tokio::task::spawn_blocking(move || {
        let prompt: Vec<u32> = (0..64).collect();
        let writer = ModelEngine::new(writer, "traces");
        writer.wait_until_up();
        writer.run("w", &prompt);
        writer.flush();
        let reader = ModelEngine::new(two, "traces");
        reader.wait_until_up();
        let give_up = Instant::now() + PATIENCE;
        loop {
            // What is fetched for the first one serves the next, at the latest.
            let mut request = reader.arrive("r", &prompt);
            reader.scheduler.trace_request("r", ENGINE);
            let hit = reader.look(&mut request);
            reader.allocate(&mut request, hit).unwrap();
            let loaded = if hit > 0 { reader.load(&mut request, hit).loaded_tokens } else { 0 };
            reader.finish(request, true);
            if loaded > 0 {
                break;
            }
            assert!(Instant::now() < give_up, "{:?}", reader.counters());
            std::thread::sleep(Duration::from_millis(20));
        }
        // Its drop sends the last spans.
        reader.scheduler.shutdown();
        reader.worker.shutdown();
    })
    .await
    .unwrap();
}

/// A span, and those above it up to the engine's: names and whose they are.
fn lineage(spans: &[Collected], of: &Collected) -> Vec<(String, String)> {
    let mut line = vec![(of.instance.clone(), of.span.name.clone())];
    let mut above = &of.span.parent_span_id;
    while let Some(parent) = spans.iter().find(|one| one.span.span_id == *above) {
        line.push((parent.instance.clone(), parent.span.name.clone()));
        above = &parent.span.parent_span_id;
    }
    assert_eq!(hex(above), "b7ad6b7169203331", "{line:?} begins at the engine's span");
    line
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_goes_from_the_engine_through_client_and_daemon_to_the_peer() {
    let (redis, collector) = (Redis::start(), Collector::start().await);
    let one = daemon("one", &redis, collector.config()).await;
    let two = daemon("two", &redis, collector.config()).await;
    load_from_peer(&one, client(&two, collector.config())).await;
    one.stop().await;
    two.stop().await;

    let spans = collector.spans();
    let of_the_trace: Vec<_> = spans
        .iter()
        .filter(|one| hex(&one.span.trace_id) == "0af7651916cd43dd8448eb211c80319c")
        .cloned()
        .collect();
    let line = |instance: &str, name: &str| {
        let found = of_the_trace.iter().find(|one| one.instance == instance && one.span.name == name);
        let found = found.unwrap_or_else(|| panic!("no {name} of {instance} in {of_the_trace:#?}"));
        lineage(&of_the_trace, found)
    };
    let expect = |line: &[(&str, &str)]| -> Vec<(String, String)> {
        line.iter().map(|(instance, name)| ((*instance).to_owned(), (*name).to_owned())).collect()
    };
    assert_eq!(
        line("one", "tenderd.fetch"),
        expect(&[
            ("one", "tenderd.fetch"),
            ("two", "tenderd.peer_fetch"),
            ("two", "tenderd.tier_fetch"),
            ("two", "tenderd.lookup"),
            ("engine", "tender.lookup"),
        ])
    );
    assert_eq!(line("two", "tenderd.get"), expect(&[("two", "tenderd.get"), ("engine", "tender.load")]));
    let lookup = of_the_trace.iter().find(|one| one.span.name == "tender.lookup").unwrap();
    assert_eq!(lookup.attribute("tender.request_id").as_deref(), Some("r"));
    let fetch = of_the_trace.iter().find(|one| one.span.name == "tenderd.tier_fetch").unwrap();
    assert_eq!(fetch.attribute("tender.tier").as_deref(), Some("peers"));
    // Stores are of many requests: traces of their own, here of a client that says nothing.
    let stores = ["tenderd.reserve", "tenderd.commit"];
    for name in stores {
        assert!(spans.iter().any(|one| one.instance == "one" && one.span.name == name), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_else_notices_a_collector_that_is_gone_or_hangs() {
    let redis = Redis::start();
    // Its connections are accepted by the system, and nobody answers there.
    let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        port.local_addr().unwrap()
    };
    for bad in [hangs.local_addr().unwrap(), gone] {
        let trace = collector::to(bad);
        let one = daemon("one", &redis, trace.clone()).await;
        let two = daemon("two", &redis, trace.clone()).await;
        load_from_peer(&one, client(&two, trace)).await;
        let (status, text) = http_get(two.admin(), "/metrics").await.unwrap();
        assert_eq!(status, 200);
        assert!(text.contains("tender_spans_total{outcome=\"exported\"} 0"), "{text}");
        one.stop().await;
        two.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_there_is_no_tracing() {
    let daemon = Daemon::start(Setup::default()).await;
    let (_, text) = http_get(daemon.admin(), "/metrics").await.unwrap();
    assert!(!text.contains("tender_spans"), "{text}");
}
