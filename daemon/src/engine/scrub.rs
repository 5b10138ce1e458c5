//! Stored bytes are read again in the background and compared with their digests: memory errs too, and a chunk that
//! changed must not reach a reader that trusts the arena.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tender_proto::{ContentDigest, SessionId};

use super::history::Left;
use super::{Core, Engine};
use crate::fault::{self, Fault};
use crate::index::{Stored, Walk};
use crate::sync::Mutex;

/// How far it came, and what it found.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    walk: Mutex<Walk>,
    /// Calls that hold a version now.
    pub(super) reading: AtomicU64,
    pub(super) scrubbed_bytes: AtomicU64,
    pub(super) quarantined_chunks: AtomicU64,
}

impl Engine {
    /// Verifies READY chunks, going on where the last call ended, until at least `budget_bytes` were read or all were
    /// seen; returns the bytes. A chunk that does not match is found by nobody any more, and counted. Takes time by
    /// the bytes.
    pub fn scrub(&self, budget_bytes: u64) -> u64 {
        self.core.scrub(budget_bytes)
    }

    /// Chunks of a session's lease that their reader found to differ from their digests, by their positions in the
    /// lookup. Nothing is done yet.
    pub fn suspects(&self, session: SessionId, lease: u64, chunk_indexes: &[usize]) -> Suspects {
        let core = &self.core;
        let now = core.clock.now();
        let stored = |&index: &usize| {
            let (pin, _) = core.leases.pin(session, lease, index, now).ok()?;
            core.index.stored(&pin)
        };
        core.scrub.reading.fetch_add(1, Ordering::AcqRel);
        Suspects { stored: chunk_indexes.iter().filter_map(stored).collect(), core: Arc::clone(core) }
    }
}

/// READY chunks that somebody doubts.
#[derive(Debug)]
pub struct Suspects {
    stored: Vec<Stored>,
    core: Arc<Core>,
}

impl Suspects {
    /// Verifies them and quarantines those that are bad: nobody's word is enough for that. Takes time by the bytes.
    pub fn verify(&self) {
        let read_bytes = self.stored.iter().map(|stored| self.core.verify(stored).0).sum();
        self.core.scrub.scrubbed_bytes.fetch_add(read_bytes, Ordering::Relaxed);
    }
}

impl Drop for Suspects {
    fn drop(&mut self) {
        self.stored.clear();
        self.core.scrub.reading.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Core {
    fn scrub(&self, budget_bytes: u64) -> u64 {
        let mut walk = self.scrub.walk.lock();
        let mut read_bytes = 0;
        // What is held here may be freed a little later than others think.
        self.scrub.reading.fetch_add(1, Ordering::AcqRel);
        while read_bytes < budget_bytes {
            let next = self.index.next_ready(&mut walk);
            // The last call may have ended just before the end of a round.
            let next = if read_bytes == 0 { next.or_else(|| self.index.next_ready(&mut walk)) } else { next };
            let Some(stored) = next else { break };
            read_bytes += self.verify(&stored).0;
        }
        self.scrub.reading.fetch_sub(1, Ordering::AcqRel);
        self.scrub.scrubbed_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        read_bytes
    }

    /// Compares a version with its digests, and takes it out if it differs. The bytes that were read for that, and whether it
    /// was taken out.
    pub(super) fn verify(&self, stored: &Stored) -> (u64, bool) {
        let mut read_bytes = 0;
        let matches = stored.version.parts().iter().all(|part| {
            let bytes = self.arena.bytes(&part.extent);
            read_bytes += bytes.len() as u64;
            ContentDigest::of(bytes) == part.digest && !fault::hit(Fault::ScrubRead)
        });
        // What another daemon has written since it got the arena is no fault.
        let quarantined = !matches && !self.arena.is_given_away() && self.index.quarantine(stored);
        if quarantined {
            self.scrub.quarantined_chunks.fetch_add(1, Ordering::Relaxed);
            self.note(stored.namespace.digest, stored.chunk, Left::Quarantined);
            self.tell(|watcher| watcher.lost(stored.namespace.digest, stored.chunk));
            tracing::error!(
                namespace = %stored.namespace.digest, chunk = %stored.chunk,
                "stored bytes have changed in memory; the chunk is taken out and will be computed anew"
            );
        }
        (read_bytes, quarantined)
    }
}
