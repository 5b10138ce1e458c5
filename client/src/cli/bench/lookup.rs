//! Lookups of a long prefix over the Unix socket.

use std::time::{Duration, Instant};

use super::memory::{EngineMemory, key};
use super::report::{Row, percentile};
use super::{Scene, failed, local};
use crate::client::{Client, Pace, Purpose};
use crate::config::{ClientConfig, TransportChoice};
use crate::error::ClientError;
use crate::transport::calls::{ChunkAnswer, LookupAsk};

const KEYS: usize = 1_000;
const LOOKUPS: usize = 300;
const P99_LIMIT_US: f64 = 2_000.0;

/// All keys are stored, so that every one is found, leased and touched.
pub(super) fn measure(scene: &Scene) -> Result<Vec<Row>, ClientError> {
    // Small chunks: 1,000 of them in 16 MiB.
    let memory = EngineMemory::new(KEYS * (16 << 10), 16 << 10)?;
    let worker = local::worker(&memory, &scene.daemon.local, TransportChoice::Shm, 64 << 20)?;
    worker.end_step(&memory.store_plan(0).encode());
    local::flushed(&worker)?;
    local::check(&worker)?;
    let client = Client::new(ClientConfig::new(scene.daemon.local.clone()), Purpose::Lookups)?;
    let namespace = client.register(memory.descriptor.clone());
    if !client.wait_until_up(Duration::from_secs(30)) {
        return Err(failed("a session", "no answer"));
    }
    let session = client.session(namespace).map_err(|reason| failed("a session", reason))?;
    let chunks: Vec<_> = (0..KEYS).map(|chunk| key(0, chunk)).collect();
    let mut micros = Vec::with_capacity(LOOKUPS);
    for _ in 0..LOOKUPS {
        let ask = LookupAsk { lease: Duration::from_secs(5), locate: false, fetch: false };
        let start = Instant::now();
        let call = session.calls.lookup(&memory.descriptor, namespace, &chunks, ask);
        let answer = client
            .ask_blocking(&session, start + Duration::from_secs(5), Pace::Quick, call)
            .map_err(|reason| failed("a lookup", reason))?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
        let ready = answer.chunks.iter().filter(|chunk| matches!(chunk, ChunkAnswer::Ready { .. })).count();
        let (Some(lease), KEYS) = (answer.lease, ready) else {
            return Err(failed("a lookup", format!("{ready} of {KEYS} chunks were found")));
        };
        let release = session.calls.release(lease.id, &[]);
        client
            .ask_blocking(&session, Instant::now() + Duration::from_secs(5), Pace::Quick, release)
            .map_err(|reason| failed("a release", reason))?;
    }
    Ok(vec![
        Row::time("lookup of 1,000 keys with lease, Unix socket, p50", percentile(&mut micros, 50), None),
        Row::time(
            "lookup of 1,000 keys with lease, Unix socket, p99",
            percentile(&mut micros, 99),
            Some(P99_LIMIT_US),
        ),
    ])
}
