//! An engine that holds any number of chunks without memory for their bytes: its arena is a sparse file.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tender_daemon::engine::{ArenaConfig, ChunkAnswer, Engine, EngineConfig, Eviction, LeaseAsk};
use tender_daemon::fuzzing;
use tender_proto::{ChunkId, NamespaceDigest, SessionId};

use super::Failure;
use crate::fixture;

const BLOCK_BYTES: u64 = 4096;
const CHUNK_BYTES: u64 = 4 * BLOCK_BYTES;
/// An arena has places for one chunk in each 32 KiB.
const ARENA_BYTES_PER_CHUNK: u64 = 32 << 10;
/// Of one lookup: a prefix whose chunks were stored one after another.
const KEYS: u64 = 1_000;

/// The engine, and what it is asked with.
#[derive(Debug)]
pub struct Stocked {
    chunks: u64,
    engine: Engine,
    session: SessionId,
    namespace: NamespaceDigest,
    dir: TempDir,
}

impl Stocked {
    /// With so many chunks; with `record` the arena's file says so, too.
    pub fn fill(chunks: u64, record: bool) -> Result<Self, Failure> {
        let dir = tempfile::tempdir_in("/dev/shm")?;
        let config = config(dir.path(), chunks);
        let file = fuzzing::sparse(&config.arena.place, config.arena.bytes)?;
        let engine = fuzzing::adopt(config, file)?;
        let session = engine.open_session("parts", 0)?;
        let model = fixture::small("parts", BLOCK_BYTES);
        let namespace = engine.register(session, model.clone(), model.digest(), None)?;
        for n in 0..chunks {
            if !fuzzing::stock(&engine, namespace, fixture::chunk(n), CHUNK_BYTES, record) {
                return Err(format!("chunk {n} of {chunks} found no room").into());
            }
        }
        Ok(Self { chunks, engine, session, namespace, dir })
    }

    /// Ends this engine and lets another one find its chunks: how long until that one serves them.
    pub fn reattach(self) -> Result<Duration, Failure> {
        let Self { chunks, engine, dir, .. } = self;
        drop(engine);
        let config = config(dir.path(), chunks);
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&config.arena.place)?;
        file.try_lock()?;
        let start = Instant::now();
        let engine = fuzzing::adopt(config, file)?;
        let took = start.elapsed();
        let found = engine.restored().chunks;
        if found != chunks {
            return Err(format!("{found} of {chunks} chunks were found again").into());
        }
        Ok(took)
    }

    /// One lookup, leased and released, of the chunks from `first` on. In microseconds.
    fn look_up(&self, first: u64) -> Result<f64, Failure> {
        let keys: Vec<ChunkId> = (first..first + KEYS).map(fixture::chunk).collect();
        let start = Instant::now();
        let answer = self.engine.lookup(
            self.session,
            self.namespace,
            &keys,
            LeaseAsk::Lease { ttl: None, locate: false },
        )?;
        let took = start.elapsed();
        let ready = answer.chunks.iter().filter(|chunk| matches!(chunk, ChunkAnswer::Ready { .. })).count();
        let lease = answer.lease.ok_or("nothing was found")?;
        self.engine.release(self.session, &[lease.id.get()])?;
        if ready as u64 == KEYS {
            Ok(took.as_secs_f64() * 1e6)
        } else {
            Err(format!("{ready} were found").into())
        }
    }
}

/// Lookups in two engines that take turns: the median of each, in microseconds. Each begins somewhere else, so that a large
/// index is not in a cache because of the lookup before.
pub fn look_up_in_turn(engines: [&Stocked; 2], lookups: u64) -> Result<[f64; 2], Failure> {
    let mut micros = [Vec::new(), Vec::new()];
    for n in 0..lookups {
        for (engine, micros) in engines.into_iter().zip(&mut micros) {
            // Steps of a golden section come everywhere and nowhere twice.
            let first = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (engine.chunks - KEYS);
            micros.push(engine.look_up(first)?);
        }
    }
    Ok(micros.map(|mut micros| {
        micros.sort_by(f64::total_cmp);
        micros.get(micros.len() / 2).copied().unwrap_or(f64::NAN)
    }))
}

/// This process's own memory, shared memory left out.
pub fn resident_bytes() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

fn config(dir: &Path, chunks: u64) -> EngineConfig {
    let place: PathBuf = dir.join("arena");
    let hour = Duration::from_secs(3600);
    EngineConfig {
        arena: ArenaConfig {
            place,
            bytes: (chunks + 1_000).max(8_000) * ARENA_BYTES_PER_CHUNK,
            prefault: false,
            keep: true,
            discard: false,
        },
        eviction: Eviction::TwoQueue,
        default_lease: hour,
        max_lease: hour,
        reservation: hour,
        max_inflight_bytes: 1 << 30,
        max_session_inflight_bytes: 1 << 30,
        max_sessions: 4,
        max_leases_per_session: 16,
        max_part_bytes: 1 << 20,
        max_staging_bytes: 0,
        max_total_staging_bytes: 0,
        max_batch_chunks: 1 << 17,
        max_namespaces: 4,
        history_bytes: 1 << 20,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_found_and_found_again() -> Result<(), Failure> {
        let stocked = Stocked::fill(2_000, true)?;
        assert!(stocked.look_up(0)? > 0.0 && stocked.look_up(1_000)? > 0.0);
        assert!(stocked.look_up(1_001).is_err(), "beyond the last one");
        stocked.reattach()?;
        Ok(())
    }
}
