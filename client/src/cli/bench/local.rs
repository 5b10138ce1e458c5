//! Stores and loads through shared memory, against a plain copy into the same layout.

use std::time::{Duration, Instant};

use bytesize::ByteSize;

use super::memory::{self, EngineMemory};
use super::report::{Goal, Row};
use super::sizes::Sizes;
use super::{Scene, failed, interleaved};
use crate::config::{Address, ClientConfig, TransportChoice};
use crate::error::ClientError;
use crate::worker::WorkerSide;

/// Longer than any round on any machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// A new session makes its memory present in the background, which takes a core from what is measured.
const SETTLE: Duration = Duration::from_secs(3);
const LOAD_GOAL: Goal = Goal::AtLeast(0.9);
const STORE_GOAL: Goal = Goal::AtLeast(0.5);
/// The gather is what the engine waits for.
const GATHER_GOAL: Goal = Goal::AtLeast(0.9);

pub(super) fn measure(scene: &Scene, chunk_mib: usize) -> Result<Vec<Row>, ClientError> {
    let Sizes { bytes, rounds, settle, .. } = scene.sizes;
    let mut memory = EngineMemory::new(bytes, chunk_mib << 20)?;
    let worker = worker_after(&memory, &scene.daemon.local, TransportChoice::Shm, bytes, settle)?;
    let source = memory::aligned(bytes);
    source.fill(7);
    let stored = std::cell::Cell::new(0);
    let plans: Vec<_> = (0..=rounds.into()).map(|round| memory.store_plan(round).encode()).collect();
    let loads: Vec<_> = (0..=rounds.into()).map(|round| memory.load_plan(round).encode()).collect();
    let mut gathers = Vec::new();
    let [copy, store, load] = interleaved(
        rounds,
        [
            &mut || {
                memory.copy_in(source);
                Ok(())
            },
            &mut || {
                let start = Instant::now();
                worker.end_step(&plans[stored.get()]);
                gathers.push(start.elapsed().as_secs_f64());
                flushed(&worker)
            },
            &mut || {
                load_all(&worker, &loads[stored.get()])?;
                stored.set(stored.get() + 1);
                Ok(())
            },
        ],
    )?;
    check(&worker)?;
    let gather = super::report::percentile(gathers.get_mut(1..).unwrap_or_default(), 50);
    let name = |work: &str| format!("{work}, shm, {chunk_mib} MiB chunks");
    Ok(vec![
        Row::speed(format!("memcpy into 32 layers, {} KiB pages", (chunk_mib << 10) / 512), bytes, copy),
        Row::speed(name("load"), bytes, load),
        Row::ratio(name("load / memcpy"), copy, load, LOAD_GOAL),
        Row::speed(name("store"), bytes, store),
        Row::ratio(name("store / memcpy"), copy, store, STORE_GOAL),
        Row::ratio(name("gather / memcpy"), copy, gather, GATHER_GOAL),
    ])
}

/// A worker that can stage a whole round.
pub(super) fn worker(
    memory: &EngineMemory,
    address: &Address,
    transport: TransportChoice,
    bytes: usize,
) -> Result<WorkerSide, ClientError> {
    worker_after(memory, address, transport, bytes, SETTLE)
}

/// The same with another time to settle.
pub(super) fn worker_after(
    memory: &EngineMemory,
    address: &Address,
    transport: TransportChoice,
    bytes: usize,
    settle: Duration,
) -> Result<WorkerSide, ClientError> {
    start(memory, ClientConfig { transport, ..ClientConfig::new(address.clone()) }, bytes, settle)
}

/// The same with whatever else a configuration has.
pub(super) fn start(
    memory: &EngineMemory,
    config: ClientConfig,
    bytes: usize,
    settle: Duration,
) -> Result<WorkerSide, ClientError> {
    let config = ClientConfig {
        client_name: "tender-bench".into(),
        // A little more than a round, since slots are rounded up.
        staging_bytes: ByteSize(bytes as u64 + (bytes / 8) as u64),
        gather_budget: PATIENCE,
        load_deadline: PATIENCE,
        store_deadline: PATIENCE,
        ..config
    };
    let worker = WorkerSide::new(config, memory.descriptor.clone(), memory.layout.clone())?;
    if !worker.wait_until_up(Duration::from_secs(30)) {
        return Err(failed("a session", "no answer"));
    }
    std::thread::sleep(settle);
    Ok(worker)
}

pub(super) fn flushed(worker: &WorkerSide) -> Result<(), ClientError> {
    if worker.flush(PATIENCE) { Ok(()) } else { Err(failed("a round", "a store took two minutes")) }
}

pub(super) fn load_all(worker: &WorkerSide, plan: &[u8]) -> Result<(), ClientError> {
    worker.begin_step(plan);
    let start = Instant::now();
    loop {
        match worker.poll().as_slice() {
            [] if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_micros(50)),
            [done] if done.failed_blocks.is_empty() => return Ok(()),
            _ => return Err(failed("a round", format!("a load failed: {:?}", worker.counters()))),
        }
    }
}

/// A store that was skipped would look fast.
pub(super) fn check(worker: &WorkerSide) -> Result<(), ClientError> {
    let counters = worker.counters();
    if counters.stores_skipped.values().sum::<u64>() == 0 {
        Ok(())
    } else {
        Err(failed("a round", format!("stores were skipped: {:?}", counters.stores_skipped)))
    }
}
