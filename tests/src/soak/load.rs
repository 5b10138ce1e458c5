//! What a daemon under soak has to do: engines over both transports that read and write more than fits, come and go,
//! give up and start over; and clients that behave badly.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_client::{ClientConfig, Counters};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use crate::attach::FdSocket;
use crate::daemon::SLOT_BLOCK_BYTES;
use crate::model::{ModelEngine, Shape};
use crate::raw::{Ask, RawClient, Target, item};
use crate::{fixture, pattern};

/// Prompts that share prefixes; together several times as much as the arena holds.
const FAMILIES: u32 = 400;
/// The longest prompt.
const MAX_TOKENS: usize = 480;
/// The longest pause between two requests of an engine: it has other things to do, and what is looked for here needs time
/// and not haste.
const PAUSE: Duration = Duration::from_millis(150);
/// A soak runs beside whatever else its machine has to do.
const PATIENCE: Duration = Duration::from_secs(600);
/// An engine process lives for so many requests, on average.
const REQUESTS_OF_A_LIFE: u32 = 300;
/// One in so many requests is given up.
const ABORTED: u32 = 20;
/// One in so many requests empties the namespace of engines that have one of their own.
const RESETS: u32 = 1000;

/// What all of the load did together.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) requests: AtomicU64,
    pub(super) lives: AtomicU64,
    pub(super) resets: AtomicU64,
    pub(super) bad_clients: AtomicU64,
    pub(super) loaded_bytes: AtomicU64,
    pub(super) stored_bytes: AtomicU64,
    pub(super) failed_loads: AtomicU64,
    pub(super) skipped_stores: AtomicU64,
    /// Panics caught inside the client, and plans that it could not read.
    pub(super) faults: AtomicU64,
}

impl Done {
    fn add(&self, counters: &Counters) {
        self.loaded_bytes.fetch_add(counters.loaded_bytes, Ordering::Relaxed);
        self.stored_bytes.fetch_add(counters.stored_bytes, Ordering::Relaxed);
        self.failed_loads.fetch_add(counters.loads_failed, Ordering::Relaxed);
        self.skipped_stores.fetch_add(counters.stores_skipped.values().sum::<u64>(), Ordering::Relaxed);
        self.faults.fetch_add(counters.panics + counters.bad_plans, Ordering::Relaxed);
    }
}

/// One kind of engine.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub(super) config: ClientConfig,
    pub(super) model: &'static str,
    pub(super) shape: Shape,
    /// Nobody else uses its namespace: it may be emptied.
    pub(super) alone: bool,
}

/// Runs engines of one kind, one after another, until told to stop. Panics at the first slot that is wrong.
pub(super) fn engines(kind: &Kind, seed: u64, stop: &AtomicBool, done: &Done) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let engine = ModelEngine::with_shape(kind.config.clone(), kind.model, kind.shape);
        assert!(
            engine.scheduler.wait_until_up(PATIENCE) && engine.worker.wait_until_up(PATIENCE),
            "no session"
        );
        let requests = rng.random_range(1..2 * REQUESTS_OF_A_LIFE);
        for _ in 0..requests {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            number += 1;
            one_request(&engine, &format!("{seed}-{number}"), &mut rng);
            done.requests.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(rng.random_range(Duration::ZERO..PAUSE));
            if kind.alone && rng.random_ratio(1, RESETS) {
                engine.scheduler.reset();
                done.resets.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Some end in an orderly way, others with everything under way.
        if rng.random() {
            engine.worker.flush(PATIENCE);
        }
        let (scheduler, worker) = engine.counters();
        done.add(&scheduler);
        done.add(&worker);
        done.lives.fetch_add(1, Ordering::Relaxed);
    }
}

fn one_request(engine: &ModelEngine, id: &str, rng: &mut StdRng) {
    let tokens = prompt(rng);
    if !rng.random_ratio(1, ABORTED) {
        engine.run(id, &tokens);
        return;
    }
    let mut request = engine.arrive(id, &tokens);
    let hit = engine.look(&mut request);
    if rng.random() {
        engine.allocate(&mut request, hit).expect("a pool that is large enough");
        if hit > 0 {
            engine.load(&mut request, hit);
        }
    }
    engine.finish(request, true);
    engine.step(&mut []);
}

/// The beginning of a family's text, often with an end of its own. Some families are asked for much more often.
fn prompt(rng: &mut StdRng) -> Vec<u32> {
    let most = rng.random_range(1..=FAMILIES);
    let family = rng.random_range(0..most);
    let length = rng.random_range(16..=MAX_TOKENS);
    let own = if rng.random() { rng.random_range(0..length) } else { 0 };
    let shared = (0..length - own).map(|n| family << 16 | u32::try_from(n).expect("a short prompt"));
    let mut tokens: Vec<u32> = shared.collect();
    tokens.extend((0..own).map(|_| rng.random::<u32>()));
    tokens
}

/// Clients that leave without a word in the middle of everything, and what is not a client at all.
pub(super) async fn bad_clients(socket: &Path, seed: u64, stop: Arc<AtomicBool>, done: Arc<Done>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        if rng.random() {
            garbage(socket, &mut rng).await;
        } else {
            // Refusals are answers too: the arena may be full of what others hold.
            drop(half_a_life(socket, &mut rng, number).await);
        }
        done.bad_clients.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..200))).await;
    }
}

async fn garbage(socket: &Path, rng: &mut StdRng) {
    let mut bytes = vec![0; rng.random_range(1..10_000)];
    rng.fill(&mut bytes[..]);
    if rng.random() {
        if let Ok(mut stream) = UnixStream::connect(socket).await {
            drop(stream.write_all(&bytes).await);
        }
    } else {
        let socket = socket.to_owned();
        let sending = move || FdSocket::connect(&socket).and_then(|socket| socket.send(&bytes));
        drop(tokio::task::spawn_blocking(sending).await);
    }
}

async fn half_a_life(socket: &Path, rng: &mut StdRng, number: u64) -> Result<(), tonic::Status> {
    let descriptor = fixture::small("soak, badly", SLOT_BLOCK_BYTES);
    let (namespace, full) = (descriptor.digest(), fixture::full(&descriptor));
    let client = RawClient::connect(&Target::Unix(socket.to_owned()))
        .await
        .map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let session = client.open("bad").await?;
    session.register(&descriptor).await?;
    let chunks: Vec<_> = (0..4).map(|n| fixture::chunk(number % 50 * 4 + n)).collect();
    // Leased and never released.
    session.lookup(namespace, &chunks, Ask::LOCATE.for_ms(rng.random_range(1..60_000))).await?;
    let bytes = pattern::blob(&descriptor, chunks[0], fixture::PART, full);
    let items = chunks.iter().map(|&chunk| item(chunk, fixture::PART, full, bytes.len())).collect();
    // Reserved: the first is filled, the second gets bytes that are not its own, the others nothing.
    let reserved = session.reserve(namespace, items).await?;
    for (reservation, spoil) in reserved.iter().zip([false, true]) {
        if reservation.reservation_id != 0 {
            let mut frames = session.frames(reservation.reservation_id, full, &bytes, bytes.len());
            if spoil {
                frames[0].digest = vec![7; 32].into();
            }
            session.put(frames).await?;
        }
    }
    Ok(())
}
