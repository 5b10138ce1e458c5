//! Host memory that copies use in place: staging and the arena, registered with the driver.
//!
//! Registering takes milliseconds for each piece, so a thread of its own does it, piece by piece, while copies go by
//! way of the bounce rings. What the driver refuses stays that way.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::Mutex;
use tender_proto::shm::Mapping;

use super::driver::{Access, Driver, Fault};
use super::gpu::Gpu;
use crate::transport::staging::Staging;

const UNKNOWN: u8 = 0;
const REGISTERED: u8 = 1;
const REFUSED: u8 = 2;

/// Memory that stays mapped as long as this is held.
#[derive(Clone, Debug)]
enum Holder {
    Arena(Arc<Mapping>),
    Staging(Arc<Staging>),
}

impl Holder {
    fn map(&self) -> &Mapping {
        match self {
            Self::Arena(map) => map,
            Self::Staging(staging) => staging.region(),
        }
    }
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Arena(one), Self::Arena(two)) => Arc::ptr_eq(one, two),
            (Self::Staging(one), Self::Staging(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }
    fn is_ours_alone(&self) -> bool {
        match self {
            Self::Arena(map) => Arc::strong_count(map) == 1,
            Self::Staging(staging) => Arc::strong_count(staging) == 1,
        }
    }
}

/// A mapping, and which of its pieces are registered. The last one to hold it ends the registration; every copy on its
/// way holds it.
pub(super) struct Pinned {
    driver: Arc<dyn Driver>,
    holder: Holder,
    start: u64,
    access: Access,
    /// A copy never crosses from one piece into the next.
    piece_bytes: u64,
    pieces: Vec<AtomicU8>,
    stop: AtomicBool,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({:#x}, {} pieces)", self.start, self.pieces.len())
    }
}

impl Pinned {
    fn new(driver: Arc<dyn Driver>, holder: Holder, access: Access, piece_bytes: u64) -> Self {
        let map = holder.map();
        let start = map.address(0, 0).map_or(0, |start| start.expose_provenance() as u64);
        let pieces = (map.len() as u64).div_ceil(piece_bytes);
        let pieces = (0..pieces).map(|_| AtomicU8::new(UNKNOWN)).collect();
        Self { driver, holder, start, access, piece_bytes, pieces, stop: AtomicBool::new(false) }
    }

    /// How many of these bytes, from the first on, a copy may use in place. 0: none.
    pub(super) fn in_place(&self, address: u64, bytes: u64) -> u64 {
        let Some(at) = address.checked_sub(self.start) else { return 0 };
        let place = usize::try_from(at / self.piece_bytes).ok().and_then(|piece| self.pieces.get(piece));
        if place.is_none_or(|piece| piece.load(Ordering::Acquire) != REGISTERED) {
            return 0;
        }
        bytes.min(self.piece_bytes - at % self.piece_bytes)
    }

    /// Registers the next piece. False: there is none left.
    pub(super) fn register_next(&self) -> bool {
        if self.stop.load(Ordering::Relaxed) || self.holder.is_ours_alone() {
            return false;
        }
        let next = self.pieces.iter().position(|piece| piece.load(Ordering::Relaxed) == UNKNOWN);
        let Some(next) = next else { return false };
        let at = next as u64 * self.piece_bytes;
        let bytes = self.piece_bytes.min(self.holder.map().len() as u64 - at);
        match self.driver.register(self.start + at, bytes, self.access) {
            Ok(()) => self.pieces[next].store(REGISTERED, Ordering::Release),
            Err(fault) => {
                self.refuse_the_rest(&fault);
                return false;
            }
        }
        true
    }

    /// What one piece is refused for holds for the others too: a limit, or the driver's kind of memory.
    fn refuse_the_rest(&self, fault: &Fault) {
        let what = if matches!(self.holder, Holder::Arena(_)) { "the arena" } else { "staging" };
        tracing::warn!(%fault, what, "not all of it can be registered with the driver; the rest is copied twice");
        for piece in &self.pieces {
            _ = piece.compare_exchange(UNKNOWN, REFUSED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Drop for Pinned {
    #[expect(unsafe_code, reason = "ends registrations of memory that no copy uses")]
    fn drop(&mut self) {
        for (piece, number) in self.pieces.iter().zip(0..) {
            if piece.load(Ordering::Acquire) == REGISTERED {
                // SAFETY: this piece was registered here, and whoever copies from or to it holds us.
                if let Err(fault) = unsafe { self.driver.unregister(self.start + number * self.piece_bytes) }
                {
                    tracing::debug!(%fault, "a registration could not be ended");
                }
            }
        }
    }
}

/// All mappings that were seen.
#[derive(Debug)]
pub(super) struct Pins {
    gpu: Arc<Gpu>,
    known: Mutex<Vec<Arc<Pinned>>>,
}

impl Pins {
    pub(super) fn new(gpu: Arc<Gpu>) -> Self {
        Self { gpu, known: Mutex::default() }
    }

    /// The arena, which is only read.
    pub(super) fn arena(&self, map: &Arc<Mapping>) -> Option<Arc<Pinned>> {
        let about = self.gpu.driver.about();
        let can = about.registers && about.registers_read_only && self.gpu.settings.register;
        can.then(|| self.find(Holder::Arena(Arc::clone(map)), Access::ReadOnly))
    }

    /// A session's staging.
    pub(super) fn staging(&self, staging: &Arc<Staging>) -> Option<Arc<Pinned>> {
        let can = self.gpu.driver.about().registers && self.gpu.settings.register;
        can.then(|| self.find(Holder::Staging(Arc::clone(staging)), Access::ReadWrite))
    }

    fn find(&self, holder: Holder, access: Access) -> Arc<Pinned> {
        let mut known = self.known.lock();
        if let Some(pinned) = known.iter().find(|pinned| pinned.holder.is(&holder)) {
            return Arc::clone(pinned);
        }
        // Of sessions that ended. Ending a registration takes a while, and somebody may wait for this thread.
        let (ended, live) = known.drain(..).partition(|pinned| pinned.holder.is_ours_alone());
        *known = live;
        let pinned =
            Arc::new(Pinned::new(Arc::clone(&self.gpu.driver), holder, access, self.gpu.settings.pin_bytes));
        known.push(Arc::clone(&pinned));
        drop(known);
        self.in_background(ended, &pinned);
        pinned
    }

    fn in_background(&self, ended: Vec<Arc<Pinned>>, pinned: &Arc<Pinned>) {
        if self.gpu.settings.step_by_step {
            return;
        }
        let pinned = Arc::clone(pinned);
        let work = move || {
            drop(ended);
            while pinned.register_next() {}
        };
        if let Err(error) = std::thread::Builder::new().name("tender-pin".into()).spawn(work) {
            tracing::warn!(%error, "no thread to register memory with the driver; copies are made twice");
        }
    }

    /// Registers one more piece of something; for tests that decide when.
    #[cfg(test)]
    pub(super) fn register_some(&self) -> bool {
        let known = self.known.lock().clone();
        known.iter().any(|pinned| pinned.register_next())
    }

    /// Ends all registrations that no copy holds, and begins no more.
    pub(super) fn close(&self) {
        let known = std::mem::take(&mut *self.known.lock());
        known.iter().for_each(|pinned| pinned.stop.store(true, Ordering::Relaxed));
    }
}
