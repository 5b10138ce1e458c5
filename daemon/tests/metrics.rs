//! Field report 40: metrics say what happened, each thing once. What clients saw is counted here and compared.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use std::collections::BTreeMap;

use common::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_proto::limits::FRAME_PAYLOAD_BYTES;
use tender_proto::{Reason, v1};

const CHUNK_BYTES: u64 = 4 * BLOCK_BYTES;
const ARENA_CHUNKS: u64 = 8;

/// Every series of an answer, by its name and labels as they are written.
fn series(text: &str) -> BTreeMap<String, f64> {
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    };
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).map(sample).collect();
    let all: BTreeMap<_, _> = lines.iter().cloned().collect();
    assert_eq!(all.len(), lines.len(), "a series stands twice");
    all
}

/// What the client saw, as series.
#[derive(Default)]
struct Own {
    counts: BTreeMap<String, u64>,
    namespace: String,
}

impl Own {
    fn add(&mut self, series: impl Into<String>, by: u64) {
        *self.counts.entry(series.into()).or_default() += by;
    }
    fn of_namespace(&mut self, name: &str, by: u64) {
        let series = format!("{name}{{namespace=\"{}\"}}", self.namespace);
        self.add(series, by);
    }
    fn call(&mut self, call: &str) {
        self.add(format!("tender_call_seconds_count{{call=\"{call}\"}}"), 1);
    }
    fn refused(&mut self, reason: Reason) {
        self.add(format!("tender_refusals_total{{reason=\"{}\"}}", reason.label()), 1);
    }

    async fn lookup(&mut self, session: &Session, chunks: &[u8]) -> v1::LookupResponse {
        let found = session.lookup(chunks, 0, false).await;
        self.call("lookup");
        for chunk in &found.chunks {
            self.of_namespace("tender_lookups_total", 1);
            match chunk.state() {
                v1::ChunkState::Ready => self.of_namespace("tender_hits_total", 1),
                v1::ChunkState::Pending => self.of_namespace("tender_pendings_total", 1),
                _ => {
                    let reason = Reason::from_wire(chunk.reason).unwrap().label();
                    let namespace = &self.namespace;
                    let series =
                        format!("tender_misses_total{{namespace=\"{namespace}\",reason=\"{reason}\"}}");
                    self.add(series, 1);
                }
            }
        }
        found
    }
    /// Looks up, reads all that is there, and lets go of it.
    async fn read(&mut self, session: &Session, chunks: &[u8]) {
        let Some(lease) = self.lookup(session, chunks).await.lease else { return };
        let items: Vec<_> = (0..u32::try_from(chunks.len()).unwrap()).map(|chunk| (chunk, 0)).collect();
        let mut stream = session.get(lease.id, &items).await;
        while let Some(frame) = stream.message().await.unwrap() {
            self.add("tender_sent_bytes_total{path=\"grpc\"}", frame.payload.len() as u64);
            // What the lease does not hold is refused, each part for itself.
            if let Some(reason) = Reason::from_wire(frame.failure) {
                self.refused(reason);
            }
        }
        assert_eq!(session.release(lease.id).await, v1::LeaseOutcome::Live);
        self.call("release");
    }
    /// True when it was stored.
    async fn store(&mut self, session: &Session, n: u8, damaged: bool) -> bool {
        let outcome = session.reserve(vec![item(n)]).await.remove(0);
        self.call("reserve");
        if outcome.reservation_id == 0 {
            if let Some(reason) = Reason::from_wire(outcome.refused) {
                self.refused(reason);
            }
            return false;
        }
        let mut frames = session.frames(outcome.reservation_id, &content(n), FRAME_PAYLOAD_BYTES);
        if damaged {
            frames.last_mut().unwrap().digest = digest(b"something else");
        }
        let stored = session.put(frames).await.unwrap().remove(0);
        self.call("put");
        self.add("tender_received_bytes_total{path=\"grpc\"}", CHUNK_BYTES);
        match Reason::from_wire(stored.refused) {
            Some(reason) => self.refused(reason),
            None => self.of_namespace("tender_stored_bytes_total", CHUNK_BYTES),
        }
        stored.stored
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn field_40_metrics_are_what_clients_saw_each_thing_once() {
    let daemon = Daemon::start(|config| {
        config.engine.arena.bytes = ARENA_CHUNKS * CHUNK_BYTES;
        config.engine.max_inflight_bytes = 2 * CHUNK_BYTES;
        config.engine.max_session_inflight_bytes = 2 * CHUNK_BYTES;
    })
    .await;
    let session = daemon.session().await;
    let mut own = Own { namespace: descriptor().digest().to_string(), ..Own::default() };
    own.call("register");
    let mut random = StdRng::seed_from_u64(40);
    let mut stored = 0;
    for _ in 0..150 {
        let n = random.random_range(0..16);
        match random.random_range(0..10) {
            0..5 => stored += u64::from(own.store(&session, n, false).await),
            5 => assert!(!own.store(&session, n, true).await, "damaged bytes are not stored"),
            6..9 => own.read(&session, &[n, n.wrapping_add(1), n.wrapping_add(2)]).await,
            _ => {
                let error = session.store.clone().reserve(v1::ReserveRequest::default()).await.unwrap_err();
                own.refused(refusal(&error).reason);
            }
        }
    }
    // Two are being written at the end: more does not fit into what may be in flight.
    for n in [100, 101, 102] {
        let outcome = session.reserve(vec![item(n)]).await.remove(0);
        own.call("reserve");
        if let Some(reason) = Reason::from_wire(outcome.refused) {
            own.refused(reason);
        }
    }
    own.lookup(&session, &[100, 101, 102]).await;
    let (_, text) = daemon.http("/metrics").await;
    let shown = series(&text);
    let is = |series: &str| shown.get(series).copied();
    for (series, count) in &own.counts {
        assert_eq!(is(series), Some(*count as f64), "{series}\n{text}");
    }
    // And nothing that nobody saw: all counters of these names are among those of ours.
    let names = ["tender_misses_total", "tender_refusals_total", "tender_call_seconds_count"];
    for (series, count) in shown.iter().filter(|(s, _)| names.iter().any(|name| s.starts_with(name))) {
        assert!(own.counts.contains_key(series), "{series} is {count}, and nobody saw any");
    }
    let audit = daemon.app.engine().audit().unwrap();
    let namespace = |name: &str| is(&format!("{name}{{namespace=\"{}\"}}", own.namespace)).unwrap();
    let evicted = stored - audit.ready_chunks;
    assert!(evicted > 0, "the arena was too small for all");
    assert_eq!(namespace("tender_evictions_total"), evicted as f64);
    assert_eq!(is("tender_eviction_age_seconds_count"), Some(evicted as f64));
    assert_eq!(namespace("tender_ready_chunks"), audit.ready_chunks as f64);
    assert_eq!(namespace("tender_ready_bytes"), (audit.ready_chunks * CHUNK_BYTES) as f64);
    for (series, count) in [
        ("tender_arena_bytes", audit.capacity_bytes),
        ("tender_arena_used_bytes", audit.used_bytes),
        ("tender_sessions", audit.sessions),
        ("tender_leases", audit.leases),
        ("tender_pins", audit.pins),
        ("tender_reservations", audit.reservations),
        ("tender_inflight_bytes", audit.inflight_bytes),
    ] {
        assert_eq!(is(series), Some(count as f64), "{series}");
    }
    for reason in [Reason::NeverStored, Reason::Evicted] {
        let label = reason.label();
        let series = format!("tender_misses_total{{namespace=\"{}\",reason=\"{label}\"}}", own.namespace);
        assert!(own.counts.contains_key(&series), "the script has a miss for {label}");
    }
    for reason in [Reason::BadDigest, Reason::Throttled, Reason::Malformed] {
        let series = format!("tender_refusals_total{{reason=\"{}\"}}", reason.label());
        assert!(own.counts.contains_key(&series), "the script has a refusal for {reason}: {:?}", own.counts);
    }
    let info = "kv_dtype=\"bfloat16\",domain=\"\"";
    assert!(text.contains(&format!("model=\"shell\",{info}}} 1")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_form_of_metrics_is_the_scrapers_choice_and_both_say_the_same() {
    let daemon = Daemon::start(|_| ()).await;
    let session = daemon.session().await;
    session.store_chunk(1).await;
    session.lookup(&[1, 2], 0, false).await;
    let plain = daemon.http_with("/metrics", "").await;
    let open = daemon
        .http_with("/metrics", "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n")
        .await;
    assert!(plain.0.contains("content-type: text/plain; version=0.0.4"), "{}", plain.0);
    assert!(open.0.contains("content-type: application/openmetrics-text; version=1.0.0"), "{}", open.0);
    assert!(open.1.ends_with("# EOF\n") && !plain.1.contains("# EOF"));
    let (mut one, mut two) = (series(&plain.1), series(&open.1));
    for moves in ["tender_uptime_seconds", "tender_scrubbed_bytes_total"] {
        assert!(one.remove(moves).is_some() && two.remove(moves).is_some(), "{moves}");
    }
    assert_eq!(one, two);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_and_its_data_are_there_and_agree_with_the_engine() {
    let daemon = Daemon::start(|_| ()).await;
    let session = daemon.session().await;
    session.store_chunk(1).await;
    session.lookup(&[1, 2], 0, false).await;
    let (head, page) = daemon.http_with("/", "").await;
    assert!(
        head.contains("content-type: text/html")
            && head.contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    assert!(page.starts_with("<!doctype html>") && !page.contains("{{"), "{page}");
    let (code, text) = daemon.http("/status.json").await;
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    let stats = daemon.app.engine().stats();
    assert_eq!((code, status["ready"].as_bool()), (200, Some(true)));
    for (pointer, count) in [
        ("/arena/bytes", stats.arena_bytes),
        ("/arena/used_bytes", stats.arena_used_bytes),
        ("/clients/sessions", 1),
        ("/clients/leases", 1),
        ("/clients/received_bytes", CHUNK_BYTES),
        ("/chunks/ready", 1),
        ("/chunks/lookups", 2),
        ("/chunks/hits", 1),
        ("/chunks/misses", 1),
        ("/namespaces/0/ready_bytes", CHUNK_BYTES),
    ] {
        assert_eq!(
            status.pointer(pointer).and_then(serde_json::Value::as_u64),
            Some(count),
            "{pointer}: {text}"
        );
    }
    assert_eq!(status["namespaces"][0]["model"], "shell");
    // A refused call is shown with what its caller was told; what it was about is not.
    let secret = v1::LookupRequest {
        namespace: vec![7; 31].into(),
        session_id: session.id.clone(),
        ..Default::default()
    };
    session.store.clone().lookup(secret).await.unwrap_err();
    let status: serde_json::Value = serde_json::from_str(&daemon.http("/status.json").await.1).unwrap();
    assert_eq!(
        (&status["refusals"][0]["reason"], &status["refusals"][0]["call"]),
        (&"malformed".into(), &"lookup".into())
    );
    assert_eq!(status["refusals"][0]["last_hour"], 1);
}
