//! Faults inside the daemon, made on purpose (`daemon/src/fault.rs`). Each is refused with a reason, or ends a start
//! with a sentence; nothing is leaked, and others are served on.
//!
//! Built with the feature `faults` of this crate; the daemon that ships has none of it.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

mod attach;
mod limits;
mod restart;
mod serve;
mod start;
mod storm;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tender_daemon::clock::SystemClock;
use tender_daemon::config::Config;
use tender_daemon::engine::{
    ChunkAnswer, Engine, EngineConfig, LeaseAsk, ReserveAnswer, ReserveAsk, StartError, StoreAnswer,
};
use tender_proto::{ContentDigest, Descriptor, PartIndex, Reason, SessionId};
use tender_tests::{fixture, pattern};

/// Input and output failed.
const EIO: i32 = nix::libc::EIO;
/// No space is left.
const ENOSPC: i32 = nix::libc::ENOSPC;
/// No memory is left.
const ENOMEM: i32 = nix::libc::ENOMEM;
/// No descriptors are left.
const EMFILE: i32 = nix::libc::EMFILE;
/// No threads are left.
const EAGAIN: i32 = nix::libc::EAGAIN;

const BLOCK_BYTES: u64 = 16 << 10;
const ARENA_BYTES: u64 = 4 << 20;

/// An engine without sockets, on an arena that stays when it goes.
struct Bench {
    engine: Arc<Engine>,
    session: SessionId,
    descriptor: Descriptor,
}

fn settings(dir: &Path, arena_bytes: u64) -> EngineConfig {
    let mut config = Config::default().engine;
    config.arena.place = dir.join("arena");
    config.arena.bytes = arena_bytes;
    config.arena.keep = true;
    config.reservation = Duration::from_secs(30);
    config
}

fn open(dir: &Path, arena_bytes: u64) -> Result<Engine, StartError> {
    Engine::new(settings(dir, arena_bytes), Arc::new(SystemClock))
}

impl Bench {
    fn on(dir: &Path) -> Self {
        Self::with(open(dir, ARENA_BYTES).unwrap())
    }
    fn with(engine: Engine) -> Self {
        let descriptor = fixture::small("faults", BLOCK_BYTES);
        let session = engine.open_session("faults", 1).unwrap();
        engine.register(session, descriptor.clone(), descriptor.digest(), None).unwrap();
        Self { engine: Arc::new(engine), session, descriptor }
    }
    fn content(&self, n: u64) -> Vec<u8> {
        pattern::blob(&self.descriptor, fixture::chunk(n), fixture::PART, fixture::full(&self.descriptor))
    }
    fn reserve(&self, n: u64) -> ReserveAnswer {
        let coverage_bits = fixture::full(&self.descriptor).bits();
        let bytes = 4 * BLOCK_BYTES;
        let ask = ReserveAsk { chunk: fixture::chunk(n), part: fixture::PART, coverage_bits, bytes };
        self.engine.reserve(self.session, self.descriptor.digest(), &[ask]).unwrap()[0]
    }
    /// Reserves, writes in four pieces and publishes.
    fn store(&self, n: u64) -> Result<(), Reason> {
        let id = match self.reserve(n) {
            ReserveAnswer::Reserved(id) => id,
            ReserveAnswer::Refused(reason) => return Err(reason),
            ReserveAnswer::Already(_) => return Ok(()),
        };
        let (bytes, mut at) = (self.content(n), 0);
        let mut writer = self.engine.begin_write(self.session, id.get())?;
        for piece in bytes.chunks(bytes.len() / 4) {
            writer.write(at, piece)?;
            at += piece.len() as u64;
        }
        let coverage = fixture::full(&self.descriptor).bits();
        let StoreAnswer { outcome, .. } = writer.finish(ContentDigest::of(&bytes), coverage);
        outcome.map(drop)
    }
    /// Whether the chunk is READY; its bytes must be right then.
    fn serves(&self, n: u64) -> bool {
        let (ask, namespace) = (LeaseAsk::Lease { ttl: None, locate: false }, self.descriptor.digest());
        let found = self.engine.lookup(self.session, namespace, &[fixture::chunk(n)], ask).unwrap();
        let ChunkAnswer::Ready { .. } = found.chunks[0] else { return false };
        let lease = found.lease.unwrap().id.get();
        let read = self.engine.read(self.session, lease, 0, PartIndex(0));
        let right = read.map(|reader| reader.as_ref() == self.content(n));
        self.engine.release(self.session, &[lease]).unwrap();
        right.unwrap_or_else(|reason| panic!("chunk {n} is READY and cannot be read: {reason}"))
    }
    /// Nothing is held for anybody but the session.
    fn quiet(&self) {
        let audit = self.engine.audit().unwrap();
        let held = [audit.leases, audit.pins, audit.readers, audit.reservations, audit.writers];
        assert_eq!((held, audit.pending_chunks, audit.inflight_bytes), ([0; 5], 0, 0), "{audit:?}");
    }
}

fn files(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap();
    names.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}
