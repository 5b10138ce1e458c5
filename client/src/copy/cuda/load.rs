//! Loads: the arena, or a bounce ring > device ring > pages, on a stream of ours.
//!
//! ```text
//! engine's stream:  ... gathers | event F | forward pass ...
//! our stream:       host to device | wait F | scatter | event C
//! loader's thread:  begins all of it ...    waits for C | gives the lease back | reports
//! ```
//! F is recorded when the load is planned: what the engine had begun by then may still read the blocks, or be their
//! snapshot. The lease and all memory on the way are held until C was seen (rule 8), also of a load that is too late
//! or was called off: nobody can call a copy back. If nobody can tell whether C happened, the memory is kept for good.
#![allow(unsafe_code, reason = "begins copies and kernels; the lane keeps their memory until their events")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tender_kernels::Move;
use tender_kernels::cuda::{Batch, Direction, Method, Packed as Place, method, stretches};
use tender_proto::Reason;
use tender_proto::mutant::{Mutant, active};
use tender_proto::shm::Mapping;

use super::driver::{DeviceMemory, Event, Fault, PinnedMemory, Stream};
use super::flight::keep_for_good;
use super::gpu::{Gpu, as_bytes};
use super::pace::Pace;
use super::pins::Pinned;
use super::ring::{Ring, Span};
use super::settings::Settings;
use crate::copy::carrier::Loading;
use crate::copy::moves::Moves;
use crate::copy::{CopyRefusal, Target};

/// Kernels read the packed side fastest if it lies as far from a multiple of this as in the part.
const VECTOR_BYTES: u64 = 16;

/// What a load comes after.
#[derive(Debug)]
pub(super) enum After {
    /// A moment on the engine's stream.
    Event(Event),
    /// It could not be recorded, so nothing may be loaded.
    Unknown,
}

/// A stream and rings for one load at a time.
#[derive(Debug)]
pub(super) struct LoadLane {
    ring_memory: DeviceMemory,
    words_memory: DeviceMemory,
    words_host: PinnedMemory,
    bounce_memory: PinnedMemory,
    stream: Stream,
    ring: Ring,
    words: Ring,
    bounce: Ring,
    flights: VecDeque<Flight>,
}

/// What one event ends.
#[derive(Debug)]
struct Flight {
    /// `None`: it could not be recorded, and the stream's end is the flight's.
    event: Option<Event>,
    ring: Option<Span>,
    words: Option<Span>,
    bounce: Option<Span>,
}

impl LoadLane {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, Fault> {
        let driver = &gpu.driver;
        let Settings { load_ring_bytes, bounce_bytes, word_bytes, .. } = gpu.settings;
        let ring_memory = DeviceMemory::new(driver, load_ring_bytes)?;
        let bounce_memory = PinnedMemory::new(driver, bounce_bytes)?;
        Ok(Self {
            words_memory: DeviceMemory::new(driver, word_bytes)?,
            words_host: PinnedMemory::new(driver, word_bytes)?,
            stream: Stream::new(driver)?,
            ring: Ring::new(ring_memory.bytes()),
            words: Ring::new(word_bytes),
            bounce: Ring::new(bounce_memory.bytes()),
            flights: VecDeque::new(),
            ring_memory,
            bounce_memory,
        })
    }

    /// Gives back what ended copies used. False: nobody can tell when the others end.
    fn reap(&mut self, gpu: &Gpu) -> bool {
        while let Some(flight) = self.flights.front() {
            match gpu.is_done(flight.event.as_ref(), self.stream.handle()) {
                Ok(true) => {}
                Ok(false) if active(Mutant::RoomBeforeCopy) => {}
                Ok(false) => return true,
                Err(_) => return false,
            }
            if let Some(flight) = self.flights.pop_front() {
                flight.ring.into_iter().for_each(|span| self.ring.give_back(span));
                flight.words.into_iter().for_each(|span| self.words.give_back(span));
                flight.bounce.into_iter().for_each(|span| self.bounce.give_back(span));
            }
        }
        true
    }

    /// Waits for a span of one of the rings.
    fn room(
        &mut self,
        gpu: &Gpu,
        ring: impl Fn(&mut Self) -> &mut Ring,
        bytes: u64,
    ) -> Result<Span, CopyRefusal> {
        if bytes > ring(self).bytes() {
            return Err(CopyRefusal::Device { what: "a copy larger than its rings" });
        }
        loop {
            if let Some(span) = ring(self).take(bytes) {
                return Ok(span);
            }
            // What stands in the way is on its way: nothing else has spans.
            if !self.reap(gpu) || !gpu.go_on_waiting() {
                return Err(CopyRefusal::Device { what: "room for a copy" });
            }
        }
    }
}

/// What all loads of a worker share.
#[derive(Debug)]
pub(super) struct LoadLanes {
    gpu: Arc<Gpu>,
    /// Those that no load uses now.
    free: Mutex<Vec<LoadLane>>,
    pace: Mutex<Pace>,
}

impl LoadLanes {
    /// Rings for this many loads at a time.
    pub(super) fn new(gpu: Arc<Gpu>, lanes: usize) -> Result<Self, Fault> {
        let free = (0..lanes).map(|_| LoadLane::new(&gpu)).collect::<Result<_, _>>()?;
        let pace = Pace::new(gpu.settings.load_bytes_per_second, gpu.driver.now());
        Ok(Self { gpu, free: Mutex::new(free), pace: Mutex::new(pace) })
    }
}

/// One load.
pub(super) struct CudaLoading {
    lanes: Arc<LoadLanes>,
    /// Gone once it was given back, or had to be kept for good.
    lane: Option<LoadLane>,
    after: Arc<After>,
    /// Our stream waits for it already.
    ordered: bool,
    /// Registered, or all copies go by way of the bounce ring. Both are held until no copy reads from them.
    pinned: Option<Arc<Pinned>>,
    arena: Option<Arc<Mapping>>,
}

impl CudaLoading {
    pub(super) fn new(
        lanes: &Arc<LoadLanes>,
        after: Arc<After>,
        arena: Option<(Arc<Mapping>, Option<Arc<Pinned>>)>,
    ) -> Result<Self, Reason> {
        if lanes.gpu.lost().is_some() || matches!(*after, After::Unknown) {
            return Err(Reason::Internal);
        }
        let lane = lanes.free.lock().pop().ok_or(Reason::TooMany)?;
        let (arena, pinned) = arena.map_or((None, None), |(arena, pinned)| (Some(arena), pinned));
        Ok(Self { lanes: Arc::clone(lanes), lane: Some(lane), after, ordered: false, pinned, arena })
    }

    /// Begins one piece, which fits the rings, and says how much of it was begun.
    fn begin(
        &mut self,
        to: &Target<'_>,
        all: &Moves<'_>,
        offset_bytes: u64,
        piece: &[u8],
        lasts: bool,
    ) -> Result<u64, CopyRefusal> {
        let lanes = Arc::clone(&self.lanes);
        let gpu = &*lanes.gpu;
        let lane = self.lane.as_mut().ok_or(CopyRefusal::Device { what: "a copy" })?;
        let address = piece.as_ptr().expose_provenance() as u64;
        let left = (piece.len() as u64).min(gpu.settings.piece_bytes);
        let in_place = match &self.pinned {
            Some(pinned) if lasts => pinned.in_place(address, left),
            _ => 0,
        };
        let bytes = if in_place > 0 { in_place } else { left };
        loop {
            let taken = lanes.pace.lock().take(bytes, gpu.driver.now());
            let Err(wait) = taken else { break };
            gpu.driver.pause(wait);
        }
        let mut flight = Going::default();
        let from = match in_place {
            0 => {
                let span = lane.room(gpu, |lane| &mut lane.bounce, bytes)?;
                flight.bounce = Some(span);
                let taken = usize::try_from(bytes).unwrap_or(0);
                // SAFETY: the span is free until it is taken, and now ours.
                unsafe { lane.bounce_memory.write(span.at, &piece[..taken]) };
                lane.bounce_memory.address() + span.at
            }
            _ => address,
        };
        let part = Part { gpu, after: &self.after, ordered: &mut self.ordered, to, all };
        let begun = match method(all.map) {
            Method::Batched => part.copy_whole_blocks(lane, offset_bytes, from, bytes),
            Method::Kernel => part.scatter(lane, &mut flight, offset_bytes, from, bytes),
        };
        self.take_off(flight, begun)?;
        Ok(bytes)
    }

    /// Records when what was begun is over; whether or not all of it could be.
    fn take_off(&mut self, going: Going, begun: Result<(), Fault>) -> Result<(), CopyRefusal> {
        let lane = self.lane.as_mut().ok_or(CopyRefusal::Device { what: "a copy" })?;
        let Going { ring, words, bounce } = going;
        let gpu = &self.lanes.gpu;
        let event =
            Event::record(&gpu.driver, lane.stream.handle()).inspect_err(|fault| gpu.note(fault)).ok();
        lane.flights.push_back(Flight { event, ring, words, bounce });
        begun.map_err(|fault| {
            self.lanes.gpu.note(&fault);
            CopyRefusal::Device { what: "a copy of a load" }
        })
    }

    /// Waits until nothing of it can land any more. False: nobody can tell.
    fn settle(&mut self) -> bool {
        let Some(lane) = &mut self.lane else { return false };
        let settled = loop {
            if !lane.reap(&self.lanes.gpu) {
                break false;
            }
            if lane.flights.is_empty() || active(Mutant::LoadBeforeCopies) {
                break true;
            }
            if !self.lanes.gpu.go_on_waiting() {
                break false;
            }
        };
        match self.lane.take() {
            Some(lane) if settled => self.lanes.free.lock().push(lane),
            lane => keep_for_good((lane, self.pinned.take(), self.arena.take(), Arc::clone(&self.after))),
        }
        settled
    }
}

impl Loading for CudaLoading {
    fn scatter(
        &mut self,
        to: &Target<'_>,
        offset_bytes: u64,
        piece: &[u8],
        lasts: bool,
    ) -> Result<(), CopyRefusal> {
        let lanes = Arc::clone(&self.lanes);
        let all = Moves::check(&lanes.gpu.layout, to)?;
        all.piece(offset_bytes, piece.len())?;
        let (mut at, mut rest) = (offset_bytes, piece);
        while !rest.is_empty() {
            let begun = self.begin(to, &all, at, rest, lasts)?;
            at += begun;
            rest = usize::try_from(begun).ok().and_then(|begun| rest.get(begun..)).unwrap_or_default();
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, deadline: Instant) -> Result<(), Reason> {
        if !self.settle() {
            return Err(Reason::Internal);
        }
        if self.lanes.gpu.driver.now() > deadline {
            return Err(Reason::Deadline);
        }
        Ok(())
    }
}

impl Drop for CudaLoading {
    fn drop(&mut self) {
        if self.lane.is_some() {
            self.settle();
        }
    }
}

/// Spans that a piece uses.
#[derive(Default)]
struct Going {
    ring: Option<Span>,
    words: Option<Span>,
    bounce: Option<Span>,
}

/// Where a piece goes.
struct Part<'a> {
    gpu: &'a Gpu,
    after: &'a After,
    ordered: &'a mut bool,
    to: &'a Target<'a>,
    all: &'a Moves<'a>,
}

impl Part<'_> {
    /// Nothing is written to pages before this.
    fn wait_for_the_engine(&mut self, lane: &LoadLane) -> Result<(), Fault> {
        if let (false, After::Event(event)) = (*self.ordered, self.after) {
            if !active(Mutant::ScatterBeforeFence) {
                self.gpu.driver.wait(lane.stream.handle(), event.handle())?;
            }
            *self.ordered = true;
        }
        Ok(())
    }

    /// Through the device ring, by a kernel.
    fn scatter(
        mut self,
        lane: &mut LoadLane,
        going: &mut Going,
        offset_bytes: u64,
        from: u64,
        bytes: u64,
    ) -> Result<(), Fault> {
        let gpu = self.gpu;
        let no_room = |_| Fault::OutOfMemory { call: "room for a load" };
        let span = lane.room(gpu, |lane| &mut lane.ring, bytes + VECTOR_BYTES).map_err(no_room)?;
        going.ring = Some(span);
        let staged = lane.ring_memory.address() + span.at + offset_bytes % VECTOR_BYTES;
        let mut batch = Batch::new(&gpu.table, Direction::Scatter);
        let place = Place { address: staged, offset_bytes, bytes };
        let map = gpu.map(self.to.group, self.to.part);
        let pushed = map.is_some_and(|map| batch.push(map, &self.all.moves, place).is_ok());
        if !pushed {
            return Err(Fault::Refused {
                call: "a scatter's table",
                name: "the layout has no such part",
                code: 0,
            });
        }
        if batch.is_empty() {
            return Ok(());
        }
        let words = as_bytes(&batch.words());
        let table = lane.room(gpu, |lane| &mut lane.words, words.len() as u64).map_err(no_room)?;
        going.words = Some(table);
        let (driver, stream) = (&gpu.driver, lane.stream.handle());
        let on_device = lane.words_memory.address() + table.at;
        // SAFETY: all spans are ours until the event that follows; `from` lies in the bounce ring's span, or in the
        // arena, which is registered, held and leased until then.
        unsafe {
            lane.words_host.write(table.at, &words);
            driver.to_device(stream, on_device, lane.words_host.address() + table.at, words.len() as u64)?;
            driver.to_device(stream, staged, from, bytes)?;
        }
        self.wait_for_the_engine(lane)?;
        let arguments = batch.arguments(gpu.segments_address(), on_device);
        // SAFETY: as above; the blocks are promised to this load and lie in the engine's buffers by the layout's proof.
        unsafe { gpu.launch(stream, batch.launch(gpu.beside()), &arguments) }
    }

    /// Blocks that are one long run each need no kernel.
    fn copy_whole_blocks(
        mut self,
        lane: &LoadLane,
        offset_bytes: u64,
        from: u64,
        bytes: u64,
    ) -> Result<(), Fault> {
        self.wait_for_the_engine(lane)?;
        let moves: &[Move] = &self.all.moves;
        for run in stretches(self.all.map, moves).unwrap_or_default() {
            let first = run.packed_offset.max(offset_bytes);
            let last = (run.packed_offset + run.bytes).min(offset_bytes + bytes);
            if first < last {
                let (page, here) = (run.page + (first - run.packed_offset), from + (first - offset_bytes));
                // SAFETY: the run lies in a block of the layout that is promised to this load; `from` is held until
                // the event that follows, see `scatter`.
                unsafe { self.gpu.driver.to_device(lane.stream.handle(), page, here, last - first)? };
            }
        }
        Ok(())
    }
}
