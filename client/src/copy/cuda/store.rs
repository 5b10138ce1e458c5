//! Snapshots: pages > device ring, on the engine's stream > staging, on a stream of ours.
//!
//! ```text
//! engine's stream:  ... forward pass | upload, gather | event A | next forward pass ...
//! our stream:                                   wait A | device to host | event B
//! a saver's thread:                                             sees B | hash, ship
//! ```
//! After `finish` the engine may begin anything on its stream: it runs behind the gather (rule 6). The ring's span is
//! taken until B was seen, and so is the slot: neither is used for anything else while a copy may touch it. If nobody
//! can tell whether B happened, both are kept for good.

mod hashing;
mod lane;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tender_kernels::cuda::{Batch, Direction, Packed as Place};

pub(super) use self::lane::StoreLane;
use self::lane::{Part, Turn};
use super::driver::Fault;
use super::ring::Span;
use super::settings::WhenFull;
use crate::copy::carrier::{Coming, Filled, Gathering, Pack, Packed};
use crate::copy::moves::Moves;
use crate::copy::{EngineStream, Target};
use crate::counters::Skip;
use crate::transport::staging::Slot;

/// Between two tries for room in a full ring.
const ROOM_AGAIN: Duration = Duration::from_micros(20);

/// The snapshots of one step.
pub(super) struct CudaGathering<'a> {
    lane: &'a Arc<StoreLane>,
    stream: EngineStream,
    usable: Result<(), Skip>,
    batch: Batch<'a>,
    parts: Vec<Part>,
    /// Waits for room end here, all of them together.
    patience: Option<Instant>,
}

impl<'a> CudaGathering<'a> {
    pub(super) fn new(lane: &'a Arc<StoreLane>, stream: EngineStream) -> Self {
        let gpu = lane.gpu();
        Self {
            usable: gpu.check_stream(stream),
            lane,
            stream,
            batch: Batch::new(&gpu.table, Direction::Gather),
            parts: Vec::new(),
            patience: None,
        }
    }

    /// One launch for all parts so far.
    fn flush(&mut self) {
        if self.parts.is_empty() {
            return;
        }
        let batch = std::mem::replace(&mut self.batch, Batch::new(&self.lane.gpu().table, Direction::Gather));
        self.lane.begin(self.stream, &batch, std::mem::take(&mut self.parts));
    }

    /// Room in the ring: at once, or within the budget.
    fn room(&mut self, bytes: u64) -> Result<Span, Skip> {
        if let Some(span) = self.lane.take(bytes)? {
            return Ok(span);
        }
        let WhenFull::Wait(budget) = self.lane.gpu().settings.when_full else { return Err(Skip::RingFull) };
        // What was packed so far leaves only once it is launched.
        self.flush();
        let driver = &self.lane.gpu().driver;
        let until = *self.patience.get_or_insert_with(|| driver.now() + budget);
        loop {
            self.lane.pump(Turn::Engine);
            if let Some(span) = self.lane.take(bytes)? {
                return Ok(span);
            }
            if driver.now() >= until {
                return Err(Skip::RingFull);
            }
            driver.pause(ROOM_AGAIN);
        }
    }
}

impl Gathering for CudaGathering<'_> {
    fn add(&mut self, part: Pack<'_>, slot: Slot) -> Result<Packed, Skip> {
        self.usable?;
        let Pack { group, part, blocks, coverage } = part;
        let gpu = self.lane.gpu();
        let refused = |no| {
            tracing::warn!(%no, "blocks of a store do not fit the layout");
            Skip::BadBlocks
        };
        let target = Target { group, part, blocks, stored: coverage, needed: coverage };
        let all = Moves::check(&gpu.layout, &target).map_err(refused)?;
        all.whole(slot.len()).map_err(refused)?;
        let map = gpu.map(group, part).ok_or(Skip::BadBlocks)?;
        if self.batch.upload_bytes() + 8 * (all.moves.len() as u64 + 10) > gpu.settings.word_bytes / 4 {
            self.flush();
        }
        let (len, bytes) = (slot.len(), slot.len() as u64);
        let span = self.room(bytes)?;
        let place = Place { address: self.lane.address(span), offset_bytes: 0, bytes };
        if let Err(no) = self.batch.push(map, &all.moves, place) {
            tracing::warn!(%no, "blocks of a store do not fit the layout");
            self.lane.put_back(Some(span));
            return Err(Skip::BadBlocks);
        }
        let pinned = self.lane.pins().staging(slot.staging());
        let cell = Arc::new(Cell::default());
        self.parts.push(Part::new(span, slot, pinned, Arc::clone(&cell)));
        Ok(Packed::Coming(Box::new(Ticket { lane: Arc::clone(self.lane), cell, len })))
    }

    fn finish(mut self: Box<Self>) {
        self.flush();
        self.lane.pump(Turn::Engine);
    }
}

impl Drop for CudaGathering<'_> {
    fn drop(&mut self) {
        // Not finished: nothing of the rest was begun.
        for part in self.parts.drain(..) {
            self.lane.put_back(part.span());
            part.fail(Skip::Device);
        }
    }
}

/// What became of a part; the lane writes it, a ticket reads it.
#[derive(Debug, Default)]
pub(super) struct Cell(Mutex<Fate>);

#[derive(Debug, Default)]
enum Fate {
    #[default]
    Coming,
    Here(Filled),
    Failed(Skip),
    /// Nobody wants it any more.
    GivenUp,
}

impl Cell {
    /// Hands over, or drops what nobody waits for.
    fn settle(&self, result: Result<Filled, Skip>) {
        let mut fate = self.0.lock();
        if matches!(*fate, Fate::Coming) {
            *fate = result.map_or_else(Fate::Failed, Fate::Here);
        }
    }
    fn is_given_up(&self) -> bool {
        matches!(*self.0.lock(), Fate::GivenUp)
    }
    fn take(&self) -> Option<Result<Filled, Skip>> {
        let mut fate = self.0.lock();
        match &*fate {
            Fate::Coming => None,
            _ => match std::mem::replace(&mut *fate, Fate::GivenUp) {
                Fate::Here(filled) => Some(Ok(filled)),
                Fate::Failed(skip) => Some(Err(skip)),
                Fate::Coming | Fate::GivenUp => Some(Err(Skip::Device)),
            },
        }
    }
}

/// A part on its way.
struct Ticket {
    lane: Arc<StoreLane>,
    cell: Arc<Cell>,
    len: usize,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({} bytes)", self.len)
    }
}

impl Coming for Ticket {
    fn len(&self) -> usize {
        self.len
    }

    fn wait(self: Box<Self>, deadline: Instant) -> Result<Filled, Skip> {
        let gpu = self.lane.gpu();
        loop {
            self.lane.pump(Turn::Saver);
            if let Some(result) = self.cell.take() {
                return result;
            }
            if gpu.lost().is_some() {
                return Err(Skip::DeviceLost);
            }
            if gpu.driver.now() >= deadline {
                return Err(Skip::Late);
            }
            // At the end of the client it says so in time, and then the device counts as lost.
            gpu.go_on_waiting();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        *self.cell.0.lock() = Fate::GivenUp;
    }
}

/// A fault as the reason of a skip.
fn skip(fault: &Fault) -> Skip {
    match fault {
        Fault::Lost { .. } => Skip::DeviceLost,
        _ => Skip::Device,
    }
}
