//! A bit that changes where nobody computes never reaches an engine: in the arena, in its records, on the wire. The chunk
//! is taken out, named, and stored anew by whoever computes it next.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tender_client::{ClientConfig, TransportChoice};
use tender_proto::{ChunkId, v1};
use tender_tests::daemon::{ChildDaemon, Daemon, Setup, client_config};
use tender_tests::model::{ModelEngine, Shape};
use tender_tests::proxy::{Proxy, Way};
use tender_tests::raw::{Ask, RawSession};
use tender_tests::{conserve, fixture, pattern};

const PATIENCE: Duration = Duration::from_secs(30);
/// Eight chunks, and a token that is left to compute.
const PROMPT_TOKENS: u32 = 65;
const CHUNK_TOKENS: usize = 8;

fn prompt(n: u32) -> Vec<u32> {
    (0..PROMPT_TOKENS).map(|position| n << 8 | position).collect()
}

/// What was logged in this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            let writer = log.clone();
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
            log
        })
        .clone()
    }
    fn line_with(&self, words: &[&str]) -> bool {
        let text = self.0.lock().unwrap().clone();
        let text = String::from_utf8_lossy(&text);
        text.lines().any(|line| words.iter().all(|word| line.contains(word)))
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn flip(file: &Path, at_bytes: u64, bit: u8) {
    let file = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at_bytes).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], at_bytes).unwrap();
}

/// One random bit of a READY chunk's bytes.
async fn spoil(daemon: &Daemon, session: &RawSession, engine: &ModelEngine, key: ChunkId, rng: &mut StdRng) {
    let namespace = engine.descriptor().digest();
    let found = session.lookup(namespace, &[key], Ask::LOCATE).await.unwrap();
    let place = &found.chunks[0].parts[0];
    let at = place.offset_bytes + rng.random_range(0..place.bytes);
    flip(&daemon.engine().stats().arena_place, at, rng.random());
    session.release(&[found.lease.unwrap().id]).await.unwrap();
}

async fn on_its_thread<T: Send + 'static>(
    engine: &Arc<ModelEngine>,
    work: impl FnOnce(&ModelEngine) -> T + Send + 'static,
) -> T {
    let engine = Arc::clone(engine);
    tokio::task::spawn_blocking(move || work(&engine)).await.unwrap()
}

/// Runs a prompt until all of it is served: recomputed, stored anew, found.
fn until_whole(engine: &ModelEngine, tokens: &[u32]) {
    let begin = Instant::now();
    let mut n = 0;
    let all = tokens.len() / CHUNK_TOKENS * CHUNK_TOKENS;
    while engine.run(&format!("again {n}"), tokens).loaded_tokens < all {
        assert!(begin.elapsed() < PATIENCE, "never whole again: {:?}", engine.counters());
        engine.flush();
        n += 1;
    }
}

async fn until_quarantined(daemon: &Daemon, chunks: u64) {
    let begin = Instant::now();
    while daemon.engine().stats().quarantined_chunks < chunks {
        assert!(begin.elapsed() < PATIENCE, "never quarantined: {:?}", daemon.engine().stats());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(daemon.engine().stats().quarantined_chunks, chunks, "and nothing else");
}

/// Readers that check find the flipped bit, recompute, and tell the daemon, which looks for itself. `first` finds it.
async fn a_flipped_bit_is_found_by(
    change: impl FnOnce(&mut ClientConfig),
    transport: TransportChoice,
    found_by_reader: bool,
) {
    let log = Log::start();
    let daemon = Daemon::start(Setup { scrub: false, ..Setup::default() }).await;
    let mut config = daemon.client_config(transport);
    change(&mut config);
    let build = move || Arc::new(ModelEngine::new(config, "flips"));
    let engine = tokio::task::spawn_blocking(build).await.unwrap();
    let tokens = prompt(1);
    on_its_thread(&engine, |engine| {
        engine.wait_until_up();
        until_whole(engine, &prompt(1));
    })
    .await;
    let keys = engine.keys(&tokens);
    let session = daemon.client().await.open_registered(engine.descriptor()).await;
    let mut rng = StdRng::seed_from_u64(7);
    for round in 1..=10 {
        let index = rng.random_range(0..keys.len());
        spoil(&daemon, &session, &engine, keys[index], &mut rng).await;
        if !found_by_reader {
            daemon.engine().scrub(u64::MAX);
        }
        let run = on_its_thread(&engine, |engine| engine.run("spoilt", &prompt(1))).await;
        // Of one group everything before the bad chunk is good.
        assert_eq!(run.loaded_tokens, index * CHUNK_TOKENS, "round {round}");
        until_quarantined(&daemon, round).await;
        let key = keys[index].to_string();
        assert!(log.line_with(&["ERROR", "taken out", &key]), "the log names {key}");
        on_its_thread(&engine, |engine| until_whole(engine, &prompt(1))).await;
    }
    let (_, worker) = engine.counters();
    let failures = worker.load_failures.get("bad_digest").copied().unwrap_or(0);
    assert_eq!(failures > 0, found_by_reader, "{worker:?}");
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_the_arena_is_found_by_a_reader_over_the_network() {
    a_flipped_bit_is_found_by(|_| {}, TransportChoice::Grpc, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_the_arena_is_found_by_a_reader_through_shared_memory_that_verifies() {
    a_flipped_bit_is_found_by(|config| config.verify_shm_reads = true, TransportChoice::Shm, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_the_arena_is_found_by_the_scrub_for_readers_that_do_not_verify() {
    a_flipped_bit_is_found_by(|_| {}, TransportChoice::Shm, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_is_not_believed_and_only_about_ones_own_leases_heard() {
    let daemon = Daemon::start(Setup { scrub: false, ..Setup::default() }).await;
    let descriptor = fixture::small("doubt", 1000);
    let (namespace, full) = (descriptor.digest(), fixture::full(&descriptor));
    let session = daemon.client().await.open_registered(&descriptor).await;
    let other = daemon.client().await.open_registered(&descriptor).await;
    let key = fixture::chunk(1);
    session.must_store(&descriptor, key, fixture::PART, full).await;
    let lease = |found: v1::LookupResponse| found.lease.unwrap().id;
    let held = lease(session.lookup(namespace, &[key], Ask::LEASE).await.unwrap());
    other.release_doubting(&[held], &[0]).await.unwrap();
    assert_eq!(daemon.engine().stats().scrubbed_bytes, 0, "another's lease");
    // Positions that there are not, and the same one many times.
    let doubts: Vec<u32> = [0, 0, 1, u32::MAX].into_iter().cycle().take(1000).collect();
    assert_eq!(session.release_doubting(&[held], &doubts).await.unwrap(), [v1::LeaseOutcome::Live]);
    let begin = Instant::now();
    while daemon.engine().stats().scrubbed_bytes == 0 {
        assert!(begin.elapsed() < PATIENCE, "never looked at");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    conserve::quiet(daemon.engine()).await;
    assert_eq!(daemon.engine().stats().quarantined_chunks, 0);
    assert_eq!(session.states(namespace, &[key]).await, [v1::ChunkState::Ready]);
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bits_in_an_arenas_description_cost_chunks_and_never_serve_a_wrong_one() {
    let mut daemon = ChildDaemon::start(Setup { log_level: "error", ..Setup::default() }).await;
    let descriptor = fixture::small("flipped records", 1000);
    let (namespace, full) = (descriptor.digest(), fixture::full(&descriptor));
    let chunks: Vec<_> = (0..24).map(fixture::chunk).collect();
    let mut rng = StdRng::seed_from_u64(11);
    let (mut served, mut lost) = (0, 0);
    for round in 0..12 {
        let session = daemon.client().await.open_registered(&descriptor).await;
        let states = session.states(namespace, &chunks).await;
        for (&chunk, _) in chunks.iter().zip(&states).filter(|(_, state)| **state == v1::ChunkState::Miss) {
            session.must_store(&descriptor, chunk, fixture::PART, full).await;
        }
        daemon.kill();
        let arena = daemon.dir().join("arena");
        for _ in 0..rng.random_range(1..5) {
            // Behind what says that it is an arena at all, which is refused when it is damaged: the rest of the header,
            // and the records of as many parts as there are.
            let at = if rng.random_ratio(1, 10) {
                rng.random_range(12..56)
            } else {
                4096 + rng.random_range(0..128 * 32)
            };
            flip(&arena, at, rng.random());
        }
        daemon.restart().await;
        let session = daemon.client().await.open_registered(&descriptor).await;
        for &chunk in &chunks {
            match session.read(namespace, chunk, fixture::PART).await {
                Some((coverage, bytes)) => {
                    served += 1;
                    assert_eq!(coverage, full.bits(), "round {round}");
                    let right = pattern::blob(&descriptor, chunk, fixture::PART, full);
                    pattern::assert_same(&bytes, &right, "from before the kill");
                }
                None => lost += 1,
            }
        }
    }
    println!("{served} chunks served, {lost} lost");
    assert!(served > 0 && lost > 0, "{served} served, {lost} lost: nothing was tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bits_on_the_wire_cost_misses_and_never_a_wrong_slot() {
    const ROUNDS: u32 = 80;
    let daemon = Daemon::start(Setup { scrub: false, ..Setup::default() }).await;
    let proxy = Arc::new(Proxy::start(daemon.tcp()).await.unwrap());
    let address = format!("tcp://127.0.0.1:{}", proxy.port()).parse().unwrap();
    let config = ClientConfig {
        load_deadline: Duration::from_secs(1),
        store_deadline: Duration::from_secs(1),
        lookup_deadline: Duration::from_millis(500),
        ..client_config(address, TransportChoice::Grpc)
    };
    let shape = Shape { cell_bytes: 512, ..Shape::default() };
    let direct = daemon.client_config(TransportChoice::Shm);
    let build = move || {
        let engine = ModelEngine::with_shape(config, "flips on the wire", shape);
        engine.wait_until_up();
        Arc::new(engine)
    };
    let engine = tokio::task::spawn_blocking(build).await.unwrap();
    let flips = on_its_thread(&engine, move |engine| {
        let mut rng = StdRng::seed_from_u64(3);
        let mut flips = 0;
        for round in 0..ROUNDS {
            let way = if rng.random() { Way::ToDaemon } else { Way::FromDaemon };
            // A prompt is 200 KB each way. The engine looks at every slot itself.
            proxy.flip_after(way, rng.random_range(0..150_000), rng.random());
            engine.run(&format!("new {round}"), &prompt(round));
            engine.flush();
            engine.run(&format!("old {round}"), &prompt(rng.random_range(0..=round)));
            flips += u32::from(proxy.has_flipped());
        }
        flips
    })
    .await;
    let (_, worker) = engine.counters();
    println!("{flips} of {ROUNDS} flips, {worker:?}, {:?}", daemon.engine().stats().refusals);
    assert!(flips > ROUNDS / 2, "{flips} flips");
    drop(engine);
    // What was stored meanwhile is right too, for an engine of another process' kind.
    let reader = move || {
        let reader = ModelEngine::with_shape(direct, "flips on the wire", shape);
        reader.wait_until_up();
        let runs = (0..ROUNDS).map(|round| reader.run(&format!("check {round}"), &prompt(round)));
        runs.map(|run| run.loaded_tokens).sum::<usize>()
    };
    let loaded_tokens = tokio::task::spawn_blocking(reader).await.unwrap();
    assert!(loaded_tokens > 0, "nothing of it was stored");
    assert!(daemon.engine().scrub(u64::MAX) > 0);
    assert_eq!(daemon.engine().stats().quarantined_chunks, 0, "what is stored is what was sent");
}
