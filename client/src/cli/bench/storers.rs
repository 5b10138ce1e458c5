//! Other clients that store as fast as they can, in a process of their own, while something else is measured.

use std::io::Read;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::helper::Helper;
use super::memory::EngineMemory;
use super::{failed, local};
use crate::config::{Address, TransportChoice};
use crate::error::ClientError;

const CHUNK_BYTES: usize = 1 << 20;
/// Of one step of one client.
const STEP_CHUNKS: usize = 4;

/// Ended with this.
pub(super) struct Storers {
    _process: Helper,
}

impl Storers {
    /// Returns when all of them store.
    pub(super) fn start(daemon: &Address, clients: usize) -> Result<Self, ClientError> {
        let words = ["store", "--daemon", &daemon.to_string(), "--clients", &clients.to_string()];
        let process = Helper::start(&words.map(Into::into))?;
        if process.line() == "storing" {
            Ok(Self { _process: process })
        } else {
            Err(failed("other clients", "they do not store"))
        }
    }
}

/// The process's own side: prints "storing" once every client has stored something, and ends with its standard input.
pub(super) fn serve(daemon: &Address, clients: usize) -> Result<(), ClientError> {
    let (over, round, all_store) = (AtomicBool::new(false), AtomicU64::new(0), Barrier::new(clients + 1));
    std::thread::scope(|scope| {
        let client = || {
            let stored = store_until(daemon, &over, &round, &all_store);
            if let Err(error) = stored {
                eprintln!("tender: {error}");
                // Whoever started this process sees it end before it says anything, or measures fewer clients: neither.
                std::process::exit(1);
            }
        };
        for _ in 0..clients {
            scope.spawn(client);
        }
        all_store.wait();
        println!("storing");
        // Its end, not its bytes.
        _ = std::io::stdin().read(&mut [0]);
        over.store(true, Ordering::Relaxed);
    });
    Ok(())
}

fn store_until(
    daemon: &Address,
    over: &AtomicBool,
    round: &AtomicU64,
    all_store: &Barrier,
) -> Result<(), ClientError> {
    let bytes = STEP_CHUNKS * CHUNK_BYTES;
    let memory = EngineMemory::new(bytes, CHUNK_BYTES)?;
    let worker = local::worker_after(&memory, daemon, TransportChoice::Shm, bytes, Duration::ZERO)?;
    let store = || {
        // Every round is of chunks that nobody has stored.
        let round = round.fetch_add(1, Ordering::Relaxed);
        worker.end_step(&memory.store_plan(round).encode());
        local::flushed(&worker)
    };
    store()?;
    all_store.wait();
    while !over.load(Ordering::Relaxed) {
        store()?;
    }
    Ok(())
}
