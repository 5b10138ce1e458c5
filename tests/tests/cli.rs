//! The tool `tender`, as an operator runs it, against real daemons.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tender_client::TransportChoice;
use tender_proto::{ChunkId, Coverage, Descriptor, Reason, v1};
use tender_tests::daemon::{ChildDaemon, Daemon, SLOT_BLOCK_BYTES, Setup, ended, tender};
use tender_tests::model::ModelEngine;
use tender_tests::raw::{Ask, RawSession, item, raw_digest, reason};
use tender_tests::{conserve, fixture, keys, pattern};

const PATIENCE: Duration = Duration::from_secs(60);
const CHUNK_TOKENS: u64 = 64;

/// Runs the tool on a daemon's socket; more time than a busy machine needs.
fn run(socket: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(tender());
    command.arg("--address").arg(format!("unix:{}", socket.display())).args(["--timeout", "60s"]);
    command.args(arguments).stdin(Stdio::null()).output().expect("tender runs")
}

/// What it printed, having ended well.
#[track_caller]
fn good(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    // Shown when the test fails.
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "it has failed");
    text
}

#[track_caller]
fn good_json(output: &Output) -> Value {
    serde_json::from_str(&good(output)).unwrap()
}

/// The tokens of a prompt that fills so many chunks, as a file.
fn prompt(dir: &Path, chunks: u32) -> (Vec<u32>, String) {
    let tokens: Vec<u32> = (0..chunks * 64).collect();
    let file = dir.join("prompt.json");
    std::fs::write(&file, serde_json::to_string(&tokens).unwrap()).unwrap();
    (tokens, file.display().to_string())
}

/// One chunk of each fate; each step leaves the ones before as they are.
struct History<'a> {
    daemon: &'a Daemon,
    session: &'a RawSession,
    descriptor: &'a Descriptor,
    /// Of the prompt, in order.
    chunks: Vec<ChunkId>,
}

impl History<'_> {
    fn full(&self) -> Coverage {
        fixture::full(self.descriptor)
    }
    async fn store(&self, n: usize) {
        self.session.must_store(self.descriptor, self.chunks[n], fixture::PART, self.full()).await;
    }

    /// Chunk 0.
    async fn forgotten_by_a_reset(&self) {
        self.store(0).await;
        let digest = self.descriptor.digest().to_hex();
        let text = good(&run(self.daemon.socket(), &["reset", &digest[..8], "--yes"]));
        assert!(text.contains("1 chunks"), "{text}");
    }
    /// Chunk 1, by as much of another namespace as the arena holds.
    async fn evicted(&self, slots: u64) {
        self.store(1).await;
        let filler = fixture::small("filler", SLOT_BLOCK_BYTES);
        self.session.register(&filler).await.unwrap();
        for n in 0..slots {
            self.session.must_store(&filler, fixture::chunk(n), fixture::PART, self.full()).await;
        }
    }
    /// Chunk 2, by one bit.
    async fn quarantined(&self) {
        self.store(2).await;
        let found =
            self.session.lookup(self.descriptor.digest(), &[self.chunks[2]], Ask::LOCATE).await.unwrap();
        let place = &found.chunks[0].parts[0];
        let arena =
            File::options().read(true).write(true).open(self.daemon.engine().stats().arena_place).unwrap();
        let mut byte = [0];
        arena.read_exact_at(&mut byte, place.offset_bytes + 5).unwrap();
        arena.write_all_at(&[byte[0] ^ 4], place.offset_bytes + 5).unwrap();
        self.session.release(&[found.lease.unwrap().id]).await.unwrap();
        let output = run(self.daemon.socket(), &["verify", "--all", "--json"]);
        assert_eq!(output.status.code(), Some(1), "bad chunks are a failure");
        let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&seen["bad_chunks"], &seen["done"]), (&Value::from(1), &Value::from(true)));
        assert_eq!(seen["bad"][0]["key"], self.chunks[2].hash.to_hex());
        assert!(seen["good_chunks"].as_u64().unwrap() > 0, "{seen}");
        let again = good_json(&run(self.daemon.socket(), &["verify", "--json"]));
        assert_eq!(again["bad_chunks"], 0, "it is gone");
    }
    /// Chunk 3: its bytes are not those of its digest. Chunk 4: whoever began it gives up.
    async fn refused_and_given_up(&self) {
        let namespace = self.descriptor.digest();
        let bytes = pattern::blob(self.descriptor, self.chunks[3], fixture::PART, self.full());
        let ask = |n: usize| item(self.chunks[n], fixture::PART, self.full(), bytes.len());
        let reservation = self.session.reserve_one(namespace, ask(3)).await.unwrap();
        let mut frames = self.session.frames(reservation, self.full(), &bytes, 1 << 20);
        frames.last_mut().unwrap().digest = vec![9; 32].into();
        let outcome = self.session.put(frames).await.unwrap()[0];
        assert_eq!(Reason::from_wire(outcome.refused), Some(Reason::BadDigest));
        let reservation = self.session.reserve_one(namespace, ask(4)).await.unwrap();
        assert_eq!(self.session.abort(&[reservation]).await.unwrap(), [None]);
    }
    /// Chunk 5: without block 2. Chunk 6: elsewhere only. Chunk 7: asked for once where twice are wanted.
    async fn partly_elsewhere_and_too_seldom(&self) {
        let gap = Coverage::new(0b1011, self.descriptor.groups[0].blocks_per_chunk).unwrap();
        self.session.must_store(self.descriptor, self.chunks[5], fixture::PART, gap).await;
        let other = Descriptor { weights: "rev-b".into(), ..self.descriptor.clone() };
        self.session.register(&other).await.unwrap();
        self.session.must_store(&other, self.chunks[6], fixture::PART, self.full()).await;
        self.ask_as("chatcmpl-1", &self.chunks[7..8]).await;
    }
    async fn ask_as(&self, request_id: &str, chunks: &[ChunkId]) {
        let request = v1::LookupRequest {
            session_id: self.session.id.clone(),
            namespace: raw_digest(self.descriptor.digest()),
            chunks: chunks.iter().map(|chunk| chunk.to_message()).collect(),
            request_id: request_id.into(),
            store_after_requests: 2,
            ..v1::LookupRequest::default()
        };
        self.session.client.store.clone().lookup(request).await.unwrap();
    }
    /// Chunk 8.
    async fn pending(&self) {
        let bytes = pattern::blob(self.descriptor, self.chunks[8], fixture::PART, self.full()).len();
        let ask = item(self.chunks[8], fixture::PART, self.full(), bytes);
        self.session.reserve_one(self.descriptor.digest(), ask).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_gives_every_reason_of_a_scripted_history() {
    const SLOTS: u64 = 12;
    let daemon = Daemon::start(Setup { scrub: false, ..Setup::slots(SLOTS) }).await;
    let descriptor = fixture::small("explained", SLOT_BLOCK_BYTES);
    let session = daemon.client().await.open_registered(&descriptor).await;
    let dir = tempfile::tempdir().unwrap();
    let (tokens, file) = prompt(dir.path(), 11);
    let chunks = keys::chunks_of(&tokens, CHUNK_TOKENS);
    let history = History { daemon: &daemon, session: &session, descriptor: &descriptor, chunks };
    history.forgotten_by_a_reset().await;
    history.evicted(SLOTS).await;
    history.quarantined().await;
    history.refused_and_given_up().await;
    history.partly_elsewhere_and_too_seldom().await;
    history.pending().await;
    history.store(9).await;
    // And chunk 10 never.
    let digest = descriptor.digest().to_hex();
    let arguments = ["explain", &file, "--namespace", &digest];
    let text = good(&run(daemon.socket(), &arguments));
    let report = good_json(&run(daemon.socket(), &[&arguments[..], &["--json"]].concat()));
    let rows = report["chunks"].as_array().unwrap();
    let fates: Vec<_> = rows.iter().map(|row| row["fate"].as_str().unwrap()).collect();
    let wanted = [
        "reset",
        "evicted",
        "quarantined",
        "refused",
        "given_up",
        "uncovered_block",
        "never_stored",
        "below_reuse",
        "pending",
        "hit",
        "never_stored",
    ];
    assert_eq!(fates, wanted, "{text}");
    assert_eq!((&rows[3]["reason"], &rows[5]["covered"]), (&Value::from("bad_digest"), &Value::from("1101")));
    assert!(rows[1]["ago_ms"].is_u64() && rows[10]["ago_ms"].is_null(), "{report}");
    assert_eq!((&rows[9]["first_token"], &rows[9]["end_token"]), (&Value::from(576), &Value::from(640)));
    assert_eq!((&report["hits"], &report["overflowed"]), (&Value::from(1), &Value::from(false)));
    // Chunk 6 is in the namespace of other weights.
    assert_eq!(report["others"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["others"][0]["differences"][0]["field"], "weights");
    assert!(text.contains("weights (rev-a / rev-b)") && text.contains("without block 2"), "{text}");

    // Asking is no use of anything and changes no number.
    let before = daemon.engine().stats();
    good(&run(daemon.socket(), &arguments));
    assert_eq!(daemon.engine().stats().namespaces, before.namespaces);

    // The second request is enough for its engine, but nothing was stored.
    history.ask_as("chatcmpl-2", &history.chunks[7..8]).await;
    let report = good_json(&run(daemon.socket(), &["explain", "chatcmpl-2", "--json"]));
    assert_eq!(
        (&report["request_id"], &report["chunks"][0]["told"]),
        (&"chatcmpl-2".into(), &"never_stored".into())
    );
    assert_eq!(report["chunks"][0]["fate"], "never_stored");
    assert_eq!(report["chunks"][0]["asked_by_requests"], 2);
    let key = format!("0:{}", history.chunks[9].hash.to_hex());
    let report = good_json(&run(daemon.socket(), &["explain", &key, "-n", &digest, "--json"]));
    assert_eq!(report["chunks"][0]["fate"], "hit");

    let unknown = run(daemon.socket(), &["explain", "chatcmpl-3"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no lookup of it is remembered"));
    drop(session);
    conserve::deserted(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_own_request_can_be_asked_for_by_its_id() {
    let daemon = Daemon::start(Setup::default()).await;
    let config = daemon.client_config(TransportChoice::Grpc);
    let prompt: Vec<u32> = (0..65).collect();
    let engine = tokio::task::spawn_blocking(move || {
        let engine = ModelEngine::new(config, "asked");
        engine.wait_until_up();
        engine.run("request-1", &prompt);
        engine.flush();
        engine.run("request-2", &prompt);
        engine
    });
    let engine = engine.await.unwrap();
    let one = good_json(&run(daemon.socket(), &["explain", "request-1", "--json"]));
    let two = good_json(&run(daemon.socket(), &["explain", "request-2", "--json"]));
    assert_eq!(one["chunks"][0]["told"], "never_stored", "{one}");
    assert_eq!(one["chunks"][0]["fate"], "hit", "it was stored since: {one}");
    assert_eq!(two["chunks"][0]["told"], "ready", "{two}");
    tokio::task::spawn_blocking(move || drop(engine)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_another_engine_cuts_into_other_chunks_are_found_there() {
    let daemon = Daemon::start(Setup::default()).await;
    let here = fixture::small("cut", 4096);
    let there = fixture::descriptor("cut", vec![fixture::group(16, 2, &[4096])]);
    let session = daemon.client().await.open_registered(&here).await;
    session.register(&there).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (tokens, file) = prompt(dir.path(), 2);
    for chunk in keys::chunks_of(&tokens, 32) {
        session.must_store(&there, chunk, fixture::PART, fixture::full(&there)).await;
    }
    let digest = here.digest().to_hex();
    let report = good_json(&run(daemon.socket(), &["explain", &file, "-n", &digest, "--json"]));
    let other = &report["others"][0];
    assert_eq!((&other["chunks"], &other["of"]), (&Value::from(4), &Value::from(4)), "{report}");
    assert_eq!(other["differences"][0]["field"], "groups[0].blocks_per_chunk");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_namespaces_are_listed_and_told_apart() {
    let daemon = Daemon::start(Setup::default()).await;
    assert!(good(&run(daemon.socket(), &["ls"])).contains("no engine has registered"));
    let one = fixture::small("listed", 4096);
    let other = Descriptor { kv_dtype: "fp8".into(), ..one.clone() };
    let session = daemon.client().await.open_registered(&one).await;
    session.register(&other).await.unwrap();
    let (a, b) = (one.digest().to_hex(), other.digest().to_hex());
    let text = good(&run(daemon.socket(), &["ls"]));
    assert!(text.contains(&a[..12]) && text.contains(&b[..12]) && text.contains("full 16x4"), "{text}");
    let text = good(&run(daemon.socket(), &["ls", &a, &b]));
    assert!(
        text.contains("do not share, because") && text.contains("bfloat16") && text.contains("fp8"),
        "{text}"
    );
    let compared = good_json(&run(daemon.socket(), &["ls", &a, &b, "--json"]));
    assert_eq!((&compared["same"], compared["differences"].as_array().unwrap().len()), (&false.into(), 1));
    let listed = good_json(&run(daemon.socket(), &["ls", "--json"]));
    assert_eq!(listed["namespaces"][1]["descriptor"]["kv_dtype"], "fp8");
    assert_eq!(run(daemon.socket(), &["ls", "ffff"]).status.code(), Some(1));
    drop(session);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_without_a_terminal_needs_a_yes() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("kept", 4096);
    let session = daemon.client().await.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor)).await;
    let refused = run(daemon.socket(), &["reset", "--all"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--yes"));
    assert_eq!(run(daemon.socket(), &["reset", "--yes"]).status.code(), Some(1), "of nothing");
    assert_eq!(daemon.engine().stats().namespaces[0].ready_chunks, 1);
    let dropped = good_json(&run(daemon.socket(), &["reset", "--all", "--yes", "--json"]));
    assert_eq!(dropped["chunks"], 1);
    assert_eq!(daemon.engine().stats().namespaces[0].ready_chunks, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_ends_a_daemon_as_sigterm_does() {
    let mut daemon = ChildDaemon::start(Setup { arena_bytes: 4 << 20, ..Setup::default() }).await;
    let socket = daemon.socket();
    let drained =
        tokio::task::spawn_blocking(move || good_json(&run(&socket, &["drain", "--wait", "--json"])));
    let drained = drained.await.unwrap();
    assert_eq!((&drained["ended"], &drained["grace_ms"]), (&true.into(), &20_000.into()));
    let mut process = {
        let next = Command::new("true").spawn().unwrap();
        daemon.replace(next)
    };
    assert!(ended(&mut process).await.success(), "it ended in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_a_daemon_well_and_a_missing_one_not() {
    let daemon = Daemon::start(Setup::default()).await;
    let report = good_json(&run(daemon.socket(), &["doctor", "--json"]));
    let findings = report["findings"].as_array().unwrap();
    let level = |check: &str| {
        let found = findings.iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("no {check} in {report}"))["level"].as_str().unwrap()
    };
    for check in ["daemon", "socket", "versions", "arena", "clock", "listeners", "stored bytes"] {
        assert_eq!(level(check), "ok", "{report}");
    }
    assert_eq!(report["failed"], false);
    let nobody = run(Path::new("/nonexistent/tenderd.sock"), &["doctor"]);
    assert_eq!(nobody.status.code(), Some(1));
    let text = String::from_utf8_lossy(&nobody.stdout);
    assert!(text.contains("FAIL  daemon") && text.contains("FAIL  socket") && text.contains("-> "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn top_prints_one_frame_where_there_is_no_terminal() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("shown", 4096);
    let session = daemon.client().await.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor)).await;
    let text = good(&run(daemon.socket(), &["top"]));
    assert!(text.contains("arena") && text.contains("shown") && text.contains("hits"), "{text}");
    assert!(!text.contains('\x1b'), "no control characters: {text:?}");
    let look = good_json(&run(daemon.socket(), &["top", "--json"]));
    assert_eq!(look["stats"]["namespaces"][0]["ready_chunks"], 1);
    assert_eq!(look["facts"]["received_bytes"], 4 * 4096);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_no_operator_is_told_nothing() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("secret", 4096);
    let session = daemon.client().await.open_registered(&descriptor).await;
    let mut stranger = daemon.tcp_client().await.admin;
    let request = v1::ExplainRequest { request_id: "r".into(), ..v1::ExplainRequest::default() };
    assert_eq!(reason(stranger.explain(request).await), Reason::NotAllowed);
    assert_eq!(reason(stranger.inspect(v1::InspectRequest {}).await), Reason::NotAllowed);
    let request = v1::VerifyRequest { all: true, ..v1::VerifyRequest::default() };
    assert_eq!(reason(stranger.verify(request).await), Reason::NotAllowed);
    assert_eq!(reason(stranger.drain(v1::DrainRequest {}).await), Reason::NotAllowed);
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_verify_runs_at_a_time_and_ends_with_its_caller() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("verified", 4096);
    let session = daemon.client().await.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor)).await;
    let mut admin = daemon.client().await.admin;
    let all = || v1::VerifyRequest { all: true, ..v1::VerifyRequest::default() };
    let mut running = admin.verify(all()).await.unwrap().into_inner();
    let nowhere = v1::VerifyRequest { namespace: vec![1; 32].into(), all: false };
    let wrong = v1::VerifyRequest::default();
    assert_eq!(reason(admin.verify(wrong).await), Reason::Malformed);
    let progress = running.message().await.unwrap().unwrap();
    assert_eq!((progress.good_chunks, progress.bad_chunks, progress.done), (1, 0, true));
    drop(running);
    // The daemon hears of the caller's end a moment later.
    let give_up = Instant::now() + PATIENCE;
    while let Err(status) = admin.verify(nowhere.clone()).await {
        match reason::<()>(Err(status)) {
            Reason::UnknownNamespace => return,
            other => assert_eq!(other, Reason::TooMany),
        }
        assert!(Instant::now() < give_up, "the turn does not come back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a namespace that is not there was verified");
}

#[test]
fn completions_and_the_manual_need_no_daemon() {
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(tender()).args(["completions", shell]).output().unwrap();
        assert!(good(&output).contains("explain"), "{shell}");
    }
    let page = good(&Command::new(tender()).arg("man").output().unwrap());
    assert!(page.contains(".TH tender 1") && page.contains("doctor"), "{page}");
}
