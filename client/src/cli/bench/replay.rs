//! `tender replay`: what arenas of different sizes would have served of a recorded load, and how fast.
//!
//! Each size gets a private daemon. Every request of the trace is looked up, what is found at its beginning is loaded into
//! paged memory, and the rest is stored, one request after the other: the order decides what is found, not the times.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use indicatif::ProgressBar;
use serde::Serialize;
use tender_proto::{ChunkId, NamespaceDigest};

use super::daemon::Daemon;
use super::memory::{EngineMemory, key};
use super::report::{percentile, progress_style};
use super::trace::{self, Request};
use super::{failed, local};
use crate::cli::{Target, json};
use crate::client::{Client, Pace, Purpose};
use crate::config::{ClientConfig, TransportChoice};
use crate::error::ClientError;
use crate::transport::calls::{ChunkAnswer, LookupAsk};
use crate::worker::WorkerSide;

/// All answers come within it, or the run has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// An engine computes a long prompt in steps of 2,048 tokens; a trace's blocks have 512.
const STEP_CHUNKS: usize = 4;
/// Chunks have this many pages at least, and a page has 16 bytes.
const CHUNK_STEP_BYTES: u64 = 8 << 10;
const MAX_CHUNK_BYTES: u64 = 64 << 20;

/// Replays a recorded load on private daemons: hit rate, bytes and times by size of the arena.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Replay {
    /// The trace: one JSON request a line, with the ids of its blocks in "hash_ids". A block is one chunk.
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// The daemon's program; by default the one beside this one, or in the PATH.
    #[arg(long, env = "TENDERD", value_name = "FILE")]
    tenderd: Option<PathBuf>,
    /// Sizes of arenas to try, in chunks.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1000,2000,5000,10000,20000,50000",
          value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    arena_chunks: Vec<u64>,
    /// Ways to choose what goes when room is needed, as tenderd's --eviction takes them; by default its own.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    eviction: Vec<String>,
    /// Bytes of a chunk. What is found does not depend on it from 32 KiB on; an arena has no places for as many smaller ones.
    #[arg(long, default_value = "32KiB", value_name = "SIZE")]
    chunk_size: ByteSize,
    /// Only so many requests from the beginning of the trace.
    #[arg(long, value_name = "COUNT")]
    requests: Option<usize>,
    /// As JSON: {"trace", "chunk_bytes", "runs": [...]}.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize, Debug)]
struct Report {
    trace: String,
    chunk_bytes: u64,
    runs: Vec<Outcome>,
}

/// One arena's run. Chunks are found when they are READY and all before them in the request are.
#[derive(Serialize, Debug)]
struct Outcome {
    /// Nothing: the daemon's default.
    eviction: Option<String>,
    arena_chunks: u64,
    requests: u64,
    asked_chunks: u64,
    found_chunks: u64,
    hit_rate: f64,
    loaded_bytes: u64,
    stored_bytes: u64,
    /// Not stored, because the arena was too small for what was under way.
    skipped_chunks: u64,
    lookup_p50_us: f64,
    lookup_p99_us: f64,
    load_p50_us: f64,
    load_p99_us: f64,
}

impl Replay {
    pub(in crate::cli) fn run(&self, _target: &Target) -> Result<String, ClientError> {
        let chunk_bytes = self.chunk_size.as_u64();
        if !chunk_bytes.is_multiple_of(CHUNK_STEP_BYTES) || !(1..=MAX_CHUNK_BYTES).contains(&chunk_bytes) {
            return Err(ClientError::Config {
                key: "chunk-size",
                value: self.chunk_size.to_string(),
                advice: "choose a multiple of 8 KiB, up to 64 MiB",
            });
        }
        let requests = trace::read(&self.trace, self.requests)?;
        let arenas = self.arenas();
        let progress = ProgressBar::new((requests.len() * arenas.len()) as u64).with_style(progress_style());
        let mut runs = Vec::new();
        for arena in arenas {
            progress.set_message(format!("an arena of {} chunks", arena.chunks));
            let settings: Vec<_> = arena.eviction.iter().map(|way| format!("--eviction={way}")).collect();
            let daemon = Daemon::start(self.tenderd.as_deref(), arena.chunks * chunk_bytes, &settings)?;
            let mut player = Player::new(&daemon, &requests, chunk_bytes)?;
            for request in &requests {
                player.play(request)?;
                progress.inc(1);
            }
            runs.push(player.outcome(arena, chunk_bytes)?);
        }
        progress.finish_and_clear();
        let report = Report { trace: self.trace.display().to_string(), chunk_bytes, runs };
        if self.json { json(&report) } else { Ok(report.table()) }
    }

    /// Every size with every way to evict.
    fn arenas(&self) -> Vec<Arena> {
        let ways: Vec<_> = match &self.eviction[..] {
            [] => vec![None],
            ways => ways.iter().cloned().map(Some).collect(),
        };
        let sizes = |eviction: &Option<String>| {
            let arena = |&chunks| Arena { chunks, eviction: eviction.clone() };
            self.arena_chunks.iter().map(arena).collect::<Vec<_>>()
        };
        ways.iter().flat_map(sizes).collect()
    }
}

/// One of those that are tried.
struct Arena {
    chunks: u64,
    /// `None`: as the daemon does by default.
    eviction: Option<String>,
}

impl Report {
    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED).set_header([
            "arena, chunks",
            "eviction",
            "hit rate",
            "found",
            "loaded",
            "stored",
            "skipped",
            "lookup p50 / p99",
            "load p50 / p99",
        ]);
        for run in &self.runs {
            table.add_row([
                run.arena_chunks.to_string(),
                run.eviction.clone().unwrap_or_else(|| "default".into()),
                format!("{:.1} %", run.hit_rate * 100.0),
                format!("{} of {}", run.found_chunks, run.asked_chunks),
                ByteSize(run.loaded_bytes).to_string(),
                ByteSize(run.stored_bytes).to_string(),
                run.skipped_chunks.to_string(),
                format!("{:.0} / {:.0} us", run.lookup_p50_us, run.lookup_p99_us),
                format!("{:.0} / {:.0} us", run.load_p50_us, run.load_p99_us),
            ]);
        }
        format!("{table}\n")
    }
}

/// Plays an engine: a scheduler that looks up, and a worker that loads and stores.
struct Player {
    memory: EngineMemory,
    scheduler: Client,
    namespace: NamespaceDigest,
    worker: WorkerSide,
    asked: u64,
    found: u64,
    requests: u64,
    lookup_us: Vec<f64>,
    load_us: Vec<f64>,
}

impl Player {
    fn new(daemon: &Daemon, requests: &[Request], chunk_bytes: u64) -> Result<Self, ClientError> {
        let longest = requests.iter().map(|request| request.blocks.len()).max().unwrap_or(0).max(1);
        let chunk_bytes = usize::try_from(chunk_bytes).unwrap_or(usize::MAX);
        let bytes = longest.saturating_mul(chunk_bytes);
        let memory = EngineMemory::new(bytes, chunk_bytes)?;
        let worker = local::worker(&memory, &daemon.local, TransportChoice::Shm, bytes)?;
        let scheduler = Client::new(ClientConfig::new(daemon.local.clone()), Purpose::Lookups)?;
        let namespace = scheduler.register(Arc::clone(&memory.descriptor));
        if !scheduler.wait_until_up(PATIENCE) {
            return Err(failed("a session", "no answer"));
        }
        let (lookup_us, load_us) = (Vec::with_capacity(requests.len()), Vec::new());
        Ok(Self { memory, scheduler, namespace, worker, asked: 0, found: 0, requests: 0, lookup_us, load_us })
    }

    fn play(&mut self, request: &Request) -> Result<(), ClientError> {
        let chunks: Vec<_> = request.blocks.iter().map(|&block| key(block, 0)).collect();
        if chunks.is_empty() {
            return Ok(());
        }
        let found = self.look_up(&chunks)?;
        self.requests += 1;
        self.asked += chunks.len() as u64;
        self.found += found as u64;
        if found > 0 {
            let plan = self.memory.load(&chunks[..found]).encode();
            let start = Instant::now();
            local::load_all(&self.worker, &plan)?;
            self.load_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
        for begun in (found..chunks.len()).step_by(STEP_CHUNKS) {
            let end = chunks.len().min(begun + STEP_CHUNKS);
            self.worker.end_step(&self.memory.store(&chunks[..end], begun).encode());
            local::flushed(&self.worker)?;
        }
        Ok(())
    }

    /// How many chunks are READY from the first on. Leases them as a scheduler does, and lets them go again.
    fn look_up(&mut self, chunks: &[ChunkId]) -> Result<usize, ClientError> {
        let session = self.scheduler.session(self.namespace).map_err(|reason| failed("a session", reason))?;
        let ask = LookupAsk { lease: PATIENCE, locate: false, fetch: false };
        let start = Instant::now();
        let call = session.calls.lookup(&self.memory.descriptor, self.namespace, chunks, ask);
        let answer = self.scheduler.ask_blocking(&session, start + PATIENCE, Pace::Quick, call);
        let answer = answer.map_err(|reason| failed("a lookup", reason))?;
        self.lookup_us.push(start.elapsed().as_secs_f64() * 1e6);
        if let Some(lease) = answer.lease {
            let release = session.calls.release(lease.id, &[]);
            self.scheduler
                .ask_blocking(&session, Instant::now() + PATIENCE, Pace::Quick, release)
                .map_err(|reason| failed("a release", reason))?;
        }
        let ready = |chunk: &&ChunkAnswer| matches!(chunk, ChunkAnswer::Ready { .. });
        Ok(answer.chunks.iter().take_while(ready).count())
    }

    fn outcome(mut self, arena: Arena, chunk_bytes: u64) -> Result<Outcome, ClientError> {
        let counters = self.worker.counters();
        #[expect(clippy::cast_precision_loss, reason = "a figure of three digits")]
        let hit_rate = self.found as f64 / self.asked.max(1) as f64;
        Ok(Outcome {
            eviction: arena.eviction,
            arena_chunks: arena.chunks,
            requests: self.requests,
            asked_chunks: self.asked,
            found_chunks: self.found,
            hit_rate,
            loaded_bytes: self.found * chunk_bytes,
            stored_bytes: counters.stored_bytes,
            skipped_chunks: counters.stores_skipped.values().sum(),
            lookup_p50_us: percentile(&mut self.lookup_us, 50),
            lookup_p99_us: percentile(&mut self.lookup_us, 99),
            load_p50_us: percentile(&mut self.load_us, 50),
            load_p99_us: percentile(&mut self.load_us, 99),
        })
    }
}
