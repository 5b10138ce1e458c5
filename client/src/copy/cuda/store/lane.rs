//! The ring between the engine's stream and staging, and the copies out of it.
#![allow(unsafe_code, reason = "begins copies and kernels; the lane keeps their memory until their events")]

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tender_kernels::cuda::Batch as Launches;
use tender_proto::mutant::{Mutant, active};

use super::super::driver::{DeviceMemory, Event, Fault, PinnedMemory, Stream};
use super::super::flight::keep_for_good;
use super::super::gpu::{Gpu, as_bytes};
use super::super::pace::Pace;
use super::super::pins::{Pinned, Pins};
use super::super::ring::{Ring, Span};
use super::super::settings::Settings;
use super::hashing::{Hashed, hash};
use super::{Cell, skip};
use crate::copy::EngineStream;
use crate::copy::carrier::Filled;
use crate::counters::Skip;
use crate::transport::staging::Slot;

/// Whose thread it is: the engine's does nothing that takes long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Turn {
    Engine,
    Saver,
}

/// All snapshots of a worker on their way to staging.
#[derive(Debug)]
pub(in super::super) struct StoreLane {
    gpu: Arc<Gpu>,
    pins: Arc<Pins>,
    /// Gone once it had to be kept for good.
    memory: Option<Memory>,
    inner: Mutex<Inner>,
}

/// What copies and kernels on their way use.
#[derive(Debug)]
pub(super) struct Memory {
    ring: DeviceMemory,
    pub(super) words: DeviceMemory,
    pub(super) words_host: PinnedMemory,
    bounce: PinnedMemory,
    pub(super) stream: Stream,
}

#[derive(Debug)]
struct Inner {
    ring: Ring,
    words: Ring,
    bounce: Ring,
    pace: Pace,
    /// Launched, in order; the first one is number `first`.
    batches: VecDeque<Batch>,
    first: u64,
    /// Copies to the host that were begun, in order.
    groups: VecDeque<Group>,
}

/// One launch.
#[derive(Debug)]
struct Batch {
    gathered: Event,
    engine: u64,
    /// Our stream waits for it already.
    ordered: bool,
    words: Span,
    parts: Vec<Part>,
    hashed: Option<Hashed>,
}

/// One part of it.
#[derive(Debug)]
pub(super) struct Part {
    span: Option<Span>,
    /// Gone once it was handed over.
    slot: Option<Slot>,
    bytes: u64,
    /// The slot's address, and its registration.
    to: u64,
    pinned: Option<Arc<Pinned>>,
    cell: Arc<Cell>,
    begun: u64,
    landed: u64,
    /// Nothing more of it is begun.
    dropped: bool,
}

/// Copies that one event ends.
#[derive(Debug)]
struct Group {
    /// `None`: it could not be recorded, and the stream's end is the group's.
    event: Option<Event>,
    pieces: Vec<Piece>,
}

/// One copy of a part's bytes.
#[derive(Clone, Copy, Debug)]
struct Piece {
    batch: u64,
    part: usize,
    bytes: u64,
    /// Where it goes in the end, and where it lies in the bounce ring before.
    to: u64,
    bounce: Option<Span>,
}

impl Batch {
    /// Address and bytes of each part in the ring.
    fn places(&self, memory: &Memory) -> Vec<(u64, u64)> {
        let at = |part: &Part| memory.ring.address() + part.span.map_or(0, |span| span.at);
        self.parts.iter().map(|part| (at(part), part.bytes)).collect()
    }
}

impl Part {
    pub(super) fn new(span: Span, mut slot: Slot, pinned: Option<Arc<Pinned>>, cell: Arc<Cell>) -> Self {
        let to = slot.fill().as_mut_ptr().expose_provenance() as u64;
        let bytes = slot.len() as u64;
        Self {
            span: Some(span),
            slot: Some(slot),
            bytes,
            to,
            pinned,
            cell,
            begun: 0,
            landed: 0,
            dropped: false,
        }
    }
    pub(super) fn span(&self) -> Option<Span> {
        self.span
    }
    pub(super) fn fail(&self, why: Skip) {
        self.cell.settle(Err(why));
    }
    /// Nothing more of it is begun.
    fn give_up(&mut self, why: Skip) {
        self.dropped = true;
        self.fail(why);
    }
    fn wants_more(&self) -> bool {
        !self.dropped && self.begun < self.bytes
    }
    /// All copies of it that were begun are over.
    fn is_still(&self) -> bool {
        self.begun == self.landed
    }
    fn is_over(&self) -> bool {
        self.is_still() && (self.dropped || self.landed == self.bytes)
    }
}

impl StoreLane {
    pub(in super::super) fn new(gpu: Arc<Gpu>, pins: Arc<Pins>, ring: DeviceMemory) -> Result<Self, Fault> {
        let driver = &gpu.driver;
        let Settings { bounce_bytes, word_bytes, .. } = gpu.settings;
        let memory = Memory {
            words: DeviceMemory::new(driver, word_bytes)?,
            words_host: PinnedMemory::new(driver, word_bytes)?,
            bounce: PinnedMemory::new(driver, bounce_bytes)?,
            stream: Stream::new(driver)?,
            ring,
        };
        let inner = Inner {
            ring: Ring::new(memory.ring.bytes()),
            words: Ring::new(word_bytes),
            bounce: Ring::new(memory.bounce.bytes()),
            pace: Pace::new(gpu.settings.store_bytes_per_second, driver.now()),
            batches: VecDeque::new(),
            first: 0,
            groups: VecDeque::new(),
        };
        Ok(Self { gpu, pins, memory: Some(memory), inner: Mutex::new(inner) })
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
    pub(super) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Room in the ring, if there is any now.
    pub(super) fn take(&self, bytes: u64) -> Result<Option<Span>, Skip> {
        let mut inner = self.inner.lock();
        if bytes > inner.ring.bytes() {
            return Err(Skip::TooLarge);
        }
        Ok(inner.ring.take(bytes))
    }
    /// Nothing was begun with it.
    pub(super) fn put_back(&self, span: Option<Span>) {
        if let Some(span) = span {
            self.inner.lock().ring.give_back(span);
        }
    }
    /// Where a span lies on the device.
    pub(super) fn address(&self, span: Span) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.ring.address() + span.at)
    }

    /// Launches one gather on the engine's stream.
    pub(super) fn begin(&self, stream: EngineStream, batch: &Launches<'_>, parts: Vec<Part>) {
        let words = self.inner.lock().words.take(batch.upload_bytes());
        let give_up = |parts: Vec<Part>, why| {
            for part in parts {
                self.put_back(part.span);
                part.fail(why);
            }
        };
        let (Some(words), Some(memory)) = (words, &self.memory) else {
            return give_up(parts, Skip::RingFull);
        };
        let (begun, event) = self.launch(memory, stream, batch, words);
        match event {
            Ok(gathered) => {
                let mut parts = parts;
                if let Err(fault) = begun {
                    self.gpu.note(&fault);
                    parts.iter_mut().for_each(|part| part.give_up(skip(&fault)));
                }
                self.inner.lock().batches.push_back(Batch {
                    gathered,
                    engine: stream.0,
                    ordered: false,
                    words,
                    parts,
                    hashed: None,
                });
            }
            Err(fault) => {
                // Something may run, and nobody will hear of its end.
                self.gpu.declare_lost(format!("{fault}, so that nobody can tell when a gather ends"));
                parts.iter().for_each(|part| part.fail(Skip::DeviceLost));
                keep_for_good(parts);
            }
        }
    }

    /// What was begun, and the moment when all of that is over.
    fn launch(
        &self,
        memory: &Memory,
        stream: EngineStream,
        batch: &Launches<'_>,
        words: Span,
    ) -> (Result<(), Fault>, Result<Event, Fault>) {
        let bytes = as_bytes(&batch.words());
        let on_device = memory.words.address() + words.at;
        let arguments = batch.arguments(self.gpu.segments_address(), on_device);
        // SAFETY: the span of words is ours until the event below, on both sides. The table names spans of the ring
        // that are taken until their copies are over, and blocks that the layout's proof puts inside the engine's
        // buffers, which the engine's stream does not change before the gather is done.
        let begun = unsafe {
            memory.words_host.write(words.at, &bytes);
            let from = memory.words_host.address() + words.at;
            let driver = &self.gpu.driver;
            driver
                .to_device(stream.0, on_device, from, bytes.len() as u64)
                .and_then(|()| self.gpu.launch(stream.0, batch.launch(self.gpu.whole()), &arguments))
        };
        (begun, Event::record(&self.gpu.driver, stream.0))
    }

    /// Does what can be done now: begins copies to the host, and hands over what they brought.
    pub(in super::super) fn pump(&self, turn: Turn) {
        let Some(memory) = &self.memory else { return };
        if self.gpu.lost().is_some() {
            return self.all_lost();
        }
        let mut inner = self.inner.lock();
        inner.begin_copies(&self.gpu, memory);
        let landed = inner.landed(&self.gpu, memory.stream.handle(), turn);
        drop(inner);
        for piece in landed.iter().flat_map(|group| &group.pieces) {
            if let Some(span) = piece.bounce {
                copy_from_bounce(memory, span, piece);
            }
        }
        self.inner.lock().settle(&self.gpu, memory, landed);
    }

    /// Waits until nothing is on its way, or nobody can tell.
    pub(in super::super) fn close(&self) {
        self.pump(Turn::Saver);
        while !self.is_idle() && self.gpu.lost().is_none() && self.gpu.go_on_waiting() {
            self.pump(Turn::Saver);
        }
        self.pump(Turn::Saver);
    }

    /// Whether no copy and no kernel of ours is on its way.
    pub(in super::super) fn is_idle(&self) -> bool {
        self.inner.lock().batches.is_empty()
    }

    /// Everybody hears that nothing comes; what a copy may still touch stays.
    fn all_lost(&self) {
        let mut inner = self.inner.lock();
        let (batches, groups) = (std::mem::take(&mut inner.batches), std::mem::take(&mut inner.groups));
        drop(inner);
        for part in batches.iter().flat_map(|batch| &batch.parts) {
            part.fail(Skip::DeviceLost);
        }
        if !batches.is_empty() {
            keep_for_good((batches, groups));
        }
    }
}

impl Drop for StoreLane {
    fn drop(&mut self) {
        let lost = self.gpu.lost().is_some();
        if lost {
            self.all_lost();
        }
        if lost || !self.is_idle() {
            let inner = self.inner.get_mut();
            let rest = (std::mem::take(&mut inner.batches), std::mem::take(&mut inner.groups));
            keep_for_good((self.memory.take(), rest));
        }
    }
}

impl Inner {
    /// Begins copies of what was gathered, in order, as far as the cap and the bounce ring let it.
    fn begin_copies(&mut self, gpu: &Gpu, memory: &Memory) {
        let mut pieces = Vec::new();
        self.begin_pieces(gpu, memory, &mut pieces);
        if pieces.is_empty() {
            return;
        }
        let event = Event::record(&gpu.driver, memory.stream.handle()).inspect_err(|fault| gpu.note(fault));
        self.groups.push_back(Group { event: event.ok(), pieces });
    }

    fn begin_pieces(&mut self, gpu: &Gpu, memory: &Memory, pieces: &mut Vec<Piece>) {
        let (driver, stream) = (&gpu.driver, memory.stream.handle());
        for (number, batch) in (self.first..).zip(&mut self.batches) {
            let given_up = batch.parts.iter_mut().filter(|part| part.begun == 0 && part.cell.is_given_up());
            given_up.for_each(|part| part.dropped = true);
            if !batch.ordered && batch.parts.iter().any(Part::wants_more) {
                if !active(Mutant::CopyBeforeGather)
                    && let Err(fault) = driver.wait(stream, batch.gathered.handle())
                {
                    gpu.note(&fault);
                    batch.parts.iter_mut().for_each(|part| part.give_up(skip(&fault)));
                    continue;
                }
                batch.ordered = true;
                if gpu.hashes() {
                    batch.hashed = hash(gpu, memory, &mut self.words, batch.places(memory));
                }
            }
            for (place, part) in batch.parts.iter_mut().enumerate() {
                while part.wants_more() {
                    let (left, to) =
                        ((part.bytes - part.begun).min(gpu.settings.piece_bytes), part.to + part.begun);
                    let in_place = part.pinned.as_ref().map_or(0, |pinned| pinned.in_place(to, left));
                    let bytes = if in_place > 0 { in_place } else { left };
                    if self.pace.take(bytes, driver.now()).is_err() {
                        return;
                    }
                    let (target, bounce) = match in_place {
                        0 => match self.bounce.take(bytes) {
                            Some(span) => (memory.bounce.address() + span.at, Some(span)),
                            None => return,
                        },
                        _ => (to, None),
                    };
                    let span = part.span.map_or(0, |span| span.at);
                    let from = memory.ring.address() + span + part.begun;
                    // SAFETY: the part's span and slot, or the span of the bounce ring, belong to this copy until its
                    // event was seen; what is copied was gathered before, since our stream waits for that.
                    if let Err(fault) = unsafe { driver.to_host(stream, target, from, bytes) } {
                        if let Some(span) = bounce {
                            self.bounce.give_back(span);
                        }
                        part.give_up(skip(&fault));
                        gpu.note(&fault);
                        break;
                    }
                    part.begun += bytes;
                    pieces.push(Piece { batch: number, part: place, bytes, to, bounce });
                }
            }
        }
    }

    /// Takes out the groups whose copies are over. The engine leaves those that still have to be copied on.
    fn landed(&mut self, gpu: &Gpu, stream: u64, turn: Turn) -> Vec<Group> {
        let mut landed = Vec::new();
        while let Some(group) = self.groups.front() {
            let bounced = group.pieces.iter().any(|piece| piece.bounce.is_some());
            let late = (turn == Turn::Engine && bounced)
                || !(active(Mutant::SlotBeforeCopy)
                    || gpu.is_done(group.event.as_ref(), stream).unwrap_or(false));
            if late {
                break;
            }
            landed.extend(self.groups.pop_front());
        }
        landed
    }

    /// Hands parts over that are whole, and gives back what nothing uses any more.
    fn settle(&mut self, gpu: &Gpu, memory: &Memory, landed: Vec<Group>) {
        for piece in landed.into_iter().flat_map(|group| group.pieces) {
            if let Some(span) = piece.bounce {
                self.bounce.give_back(span);
            }
            let batch = piece.batch.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
            let batch = batch.and_then(|at| self.batches.get_mut(at));
            let Some(Batch { parts, hashed, .. }) = batch else { continue };
            if let Some(part) = parts.get_mut(piece.part) {
                part.landed += piece.bytes;
                if part.landed == part.bytes
                    && let Some(slot) = part.slot.take()
                {
                    let digest =
                        hashed.as_ref().and_then(|hashed| hashed.digest(&memory.words_host, piece.part));
                    part.cell.settle(Ok(Filled { slot, digest }));
                    if let Some(span) = part.span.take() {
                        self.ring.give_back(span);
                    }
                }
            }
        }
        while let Some(batch) = self.batches.front() {
            // A part that was dropped leaves its span to the gather, which still writes to it.
            let over = batch.parts.iter().all(Part::is_over)
                && (active(Mutant::SpanBeforeGather)
                    || gpu.is_done(Some(&batch.gathered), batch.engine).unwrap_or(false));
            let hashed = batch
                .hashed
                .as_ref()
                .is_none_or(|hashed| gpu.is_done(hashed.event(), memory.stream.handle()).unwrap_or(false));
            if !(over && hashed) {
                break;
            }
            if let Some(batch) = self.batches.pop_front() {
                self.first += 1;
                self.words.give_back(batch.words);
                batch.hashed.iter().for_each(|hashed| self.words.give_back(hashed.words()));
                batch.parts.iter().filter_map(Part::span).for_each(|span| self.ring.give_back(span));
            }
        }
    }
}

fn copy_from_bounce(memory: &Memory, span: Span, piece: &Piece) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(piece.to).unwrap_or(0));
    let len = usize::try_from(piece.bytes).unwrap_or(0);
    // SAFETY: the copy into the bounce ring is over and its span is still taken; the piece lies in a slot that is kept
    // until it is settled, and of which this piece is copied by nobody else.
    unsafe {
        let from = memory.bounce.slice(span.at, len);
        std::ptr::copy_nonoverlapping(from.as_ptr(), to, len);
    }
}
