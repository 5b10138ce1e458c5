//! Lookups of a long prefix over the Unix socket.

use std::time::{Duration, Instant};

use tender_proto::{ChunkId, NamespaceDigest};

use super::memory::{EngineMemory, key};
use super::report::{Goal, Row, Unit, percentile};
use super::storers::Storers;
use super::{Scene, failed, local};
use crate::client::{Client, Pace, Purpose};
use crate::config::{ClientConfig, TransportChoice};
use crate::error::ClientError;
use crate::transport::calls::{ChunkAnswer, LookupAsk};

const KEYS: usize = 1_000;
const PATIENCE: Duration = Duration::from_secs(5);
const P50_GOAL: Goal = Goal::LessThan(500.0);
const P99_GOAL: Goal = Goal::LessThan(2_000.0);
const OTHERS: usize = 8;

/// Alone, and while others store without a pause.
pub(super) fn measure(scene: &Scene) -> Result<Vec<Row>, ClientError> {
    let asker = Asker::new(scene)?;
    let mut alone = asker.micros(scene.sizes.lookups)?;
    let others = Storers::start(&scene.daemon.local, OTHERS)?;
    let mut beside = asker.micros(scene.sizes.lookups)?;
    drop(others);
    let row = |micros: &mut [f64], when: &str, percent| {
        let name = format!("lookup of 1,000 keys with lease, Unix socket, {when}, p{percent}");
        Row::told(name, percentile(micros, percent), Unit::Micros)
    };
    Ok(vec![
        row(&mut alone, "alone", 50),
        row(&mut alone, "alone", 99),
        row(&mut beside, "8 others storing", 50).goal(P50_GOAL),
        row(&mut beside, "8 others storing", 99).goal(P99_GOAL),
    ])
}

/// A scheduler that asks for a prefix. All of it is stored, so that every chunk is found, leased and touched.
struct Asker {
    memory: EngineMemory,
    client: Client,
    namespace: NamespaceDigest,
    chunks: Vec<ChunkId>,
}

impl Asker {
    fn new(scene: &Scene) -> Result<Self, ClientError> {
        // Small chunks: 1,000 of them in 16 MiB.
        let memory = EngineMemory::new(KEYS * (16 << 10), 16 << 10)?;
        let worker = local::worker_after(
            &memory,
            &scene.daemon.local,
            TransportChoice::Shm,
            64 << 20,
            scene.sizes.settle,
        )?;
        worker.end_step(&memory.store_plan(0).encode());
        local::flushed(&worker)?;
        local::check(&worker)?;
        let client = Client::new(ClientConfig::new(scene.daemon.local.clone()), Purpose::Lookups)?;
        let namespace = client.register(memory.descriptor.clone());
        if !client.wait_until_up(Duration::from_secs(30)) {
            return Err(failed("a session", "no answer"));
        }
        let chunks = (0..KEYS).map(|chunk| key(0, chunk)).collect();
        Ok(Self { memory, client, namespace, chunks })
    }

    /// What each of so many lookups took.
    fn micros(&self, lookups: usize) -> Result<Vec<f64>, ClientError> {
        (0..lookups).map(|_| self.ask()).collect()
    }

    fn ask(&self) -> Result<f64, ClientError> {
        let Self { memory, client, namespace, chunks } = self;
        let session = client.session(*namespace).map_err(|reason| failed("a session", reason))?;
        let ask = LookupAsk { lease: PATIENCE, locate: false, fetch: false };
        let start = Instant::now();
        let call = session.calls.lookup(&memory.descriptor, *namespace, chunks, ask);
        let answer = client
            .ask_blocking(&session, start + PATIENCE, Pace::Quick, call)
            .map_err(|reason| failed("a lookup", reason))?;
        let micros = start.elapsed().as_secs_f64() * 1e6;
        let ready = answer.chunks.iter().filter(|chunk| matches!(chunk, ChunkAnswer::Ready { .. })).count();
        let (Some(lease), KEYS) = (answer.lease, ready) else {
            return Err(failed("a lookup", format!("{ready} of {KEYS} chunks were found")));
        };
        let release = session.calls.release(lease.id, &[]);
        client
            .ask_blocking(&session, Instant::now() + PATIENCE, Pace::Quick, release)
            .map_err(|reason| failed("a release", reason))?;
        Ok(micros)
    }
}
