//! One device as the stores and the loads of a worker share it: its driver, the kernels, the layout's tables.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tender_kernels::PageMap;
use tender_kernels::cuda::abi::KERNELS;
use tender_kernels::cuda::{Launch, Limits, MapIndex, SegmentTable};
use tender_proto::{GroupIndex, PartIndex};

use super::driver::{DeviceMemory, Driver, Event, Fault, Kernel, PinnedMemory, Shape, Stream, StreamState};
use super::flight::keep_for_good;
use super::settings::Settings;
use crate::config::DigestBy;
use crate::copy::EngineStream;
use crate::counters::Skip;
use crate::layout::ProvedLayout;

/// How long a device that does not finish its copies is waited for once the client ends.
const END_LIMIT: Duration = Duration::from_secs(10);
/// How long the first copy to a device may take, at the start of a worker.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at an event: little beside the milliseconds of a chunk's copy.
const LOOK_AGAIN: Duration = Duration::from_micros(20);

/// A device with the layout's tables on it.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) layout: Arc<ProvedLayout>,
    pub(super) settings: Settings,
    pub(super) table: SegmentTable,
    maps: HashMap<(GroupIndex, PartIndex), MapIndex>,
    /// Gone once it had to be kept for good.
    segments: Option<DeviceMemory>,
    /// The device computes digests.
    hashes: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In one sentence, once nothing can be copied any more.
    lost: Option<String>,
    /// From when on the client ends.
    ending: Option<Instant>,
    /// What was said once already.
    warned: Vec<&'static str>,
}

impl Gpu {
    /// Brings the layout's tables onto the device.
    pub(super) fn new(
        driver: Arc<dyn Driver>,
        layout: Arc<ProvedLayout>,
        settings: Settings,
    ) -> Result<Self, Fault> {
        let groups = (0..layout.groups()).filter_map(|group| u16::try_from(group).ok()).map(GroupIndex);
        let parts: Vec<(GroupIndex, PartIndex, &PageMap)> = groups
            .flat_map(|group| layout.parts(group).iter().map(move |of| (group, of.part, of.page_map())))
            .collect();
        let table = SegmentTable::new(parts.iter().map(|(.., map)| *map));
        let table = table.map_err(|_| Fault::OutOfMemory { call: "the layout's tables" })?;
        let maps = parts.iter().zip(0..).map(|(&(group, part, _), i)| ((group, part), MapIndex(i))).collect();
        let segments = Some(upload(&driver, table.words())?);
        let hashes = AtomicBool::new(settings.digest == DigestBy::Device);
        Ok(Self { driver, layout, settings, table, maps, segments, hashes, state: Mutex::default() })
    }

    /// Whether the device computes the digests of what is stored.
    pub(super) fn hashes(&self) -> bool {
        self.hashes.load(Ordering::Relaxed)
    }
    pub(super) fn let_it_hash(&self, hashes: bool) {
        self.hashes.store(hashes, Ordering::Relaxed);
    }

    /// Where the kernels find the segments of all maps.
    pub(super) fn segments_address(&self) -> u64 {
        self.segments.as_ref().map_or(0, DeviceMemory::address)
    }

    /// The table's entry for a part that the layout has.
    pub(super) fn map(&self, group: GroupIndex, part: PartIndex) -> Option<MapIndex> {
        self.maps.get(&(group, part)).copied()
    }

    /// Multiprocessors for kernels that run beside the forward pass.
    pub(super) fn beside(&self) -> Limits {
        let all = self.driver.about().multiprocessors;
        Limits { sms: (all * self.settings.side_percent).div_ceil(100).clamp(1, all.max(1)) }
    }

    /// All of them, for what the forward pass waits for anyway.
    pub(super) fn whole(&self) -> Limits {
        Limits { sms: self.driver.about().multiprocessors.max(1) }
    }

    /// Begins a kernel.
    ///
    /// # Safety
    /// As for [`Driver::launch`].
    #[expect(unsafe_code, reason = "passes the promise on")]
    pub(super) unsafe fn launch(&self, stream: u64, launch: Launch, arguments: &[u64]) -> Result<(), Fault> {
        let place = KERNELS.iter().position(|&name| name == launch.kernel);
        let unknown = Fault::Refused { call: "launch", name: "no such kernel", code: 0 };
        let kernel = Kernel(place.ok_or(unknown)?);
        let shape = Shape { grid: launch.grid, block: launch.block, shared_bytes: launch.shared_bytes };
        // SAFETY: passed on.
        unsafe { self.driver.launch(stream, kernel, shape, arguments) }
    }

    /// Whether work may be put on the engine's stream now.
    pub(super) fn check_stream(&self, stream: EngineStream) -> Result<(), Skip> {
        if self.lost().is_some() {
            return Err(Skip::DeviceLost);
        }
        match self.driver.stream_state(stream.0) {
            Ok(StreamState::Ready) => Ok(()),
            Ok(StreamState::Capturing) => {
                self.warn_once(
                    "the engine records a graph on its stream: nothing is stored or loaded meanwhile",
                );
                Err(Skip::Capturing)
            }
            Ok(StreamState::Foreign) => {
                self.warn_once(
                    "the engine computes on a stream of another context than its KV cache's: nothing can be stored \
                     or loaded in order with it",
                );
                Err(Skip::Device)
            }
            Err(fault) => {
                self.note(&fault);
                Err(Skip::Device)
            }
        }
    }

    /// Says it in the log, the first time only.
    pub(super) fn warn_once(&self, what: &'static str) {
        if self.is_news(what) {
            tracing::warn!("{what}");
        }
    }

    fn is_news(&self, what: &'static str) -> bool {
        let mut state = self.state.lock();
        let news = !state.warned.contains(&what);
        if news {
            state.warned.push(what);
        }
        news
    }

    /// Remembers a fault after which nothing works.
    pub(super) fn note(&self, fault: &Fault) {
        match fault {
            Fault::Lost { .. } => self.declare_lost(fault.to_string()),
            Fault::Refused { call, .. } | Fault::OutOfMemory { call } if self.is_news(call) => {
                tracing::warn!(%fault, "a copy of the KV cache was refused; further ones are told at level debug");
            }
            _ => tracing::debug!(%fault, "a copy of the KV cache was refused"),
        }
    }

    /// From now on nothing is begun, and what was begun is never waited for.
    pub(super) fn declare_lost(&self, why: String) {
        self.state.lock().lost.get_or_insert(why);
    }

    pub(super) fn lost(&self) -> Option<String> {
        self.state.lock().lost.clone()
    }

    /// The client ends: nobody waits for the device for ever.
    pub(super) fn end(&self) {
        self.state.lock().ending.get_or_insert_with(|| self.driver.now());
    }

    /// Whether the event on this stream has happened, or all of the stream's work if there is no event. An error means
    /// that nobody will ever know.
    pub(super) fn is_done(&self, event: Option<&Event>, stream: u64) -> Result<bool, Fault> {
        let done = event.map(Event::is_done);
        let done = match done {
            Some(Ok(done)) => Ok(done),
            Some(Err(fault @ Fault::Lost { .. })) => Err(fault),
            // The event cannot be had or asked; the stream can, perhaps.
            None | Some(Err(_)) => self.driver.is_idle(stream),
        };
        done.inspect_err(|fault| {
            self.declare_lost(format!("{fault}, so that nobody can tell when copies end"));
        })
    }

    /// A moment between two looks at events. False: the client ends and has waited long enough.
    pub(super) fn go_on_waiting(&self) -> bool {
        let ending = self.state.lock().ending;
        if ending.is_some_and(|since| self.driver.now() > since + END_LIMIT) {
            self.declare_lost("the device does not finish its copies".into());
            return false;
        }
        self.driver.pause(LOOK_AGAIN);
        true
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.lost().is_some() {
            // A kernel may still read it.
            keep_for_good(self.segments.take());
        }
    }
}

/// Device memory with these words, which never change.
fn upload(driver: &Arc<dyn Driver>, words: &[u64]) -> Result<DeviceMemory, Fault> {
    let bytes = as_bytes(words);
    let (there, here) =
        (DeviceMemory::new(driver, bytes.len() as u64)?, PinnedMemory::new(driver, bytes.len() as u64)?);
    let stream = Stream::new(driver)?;
    let begun = begin_upload(driver, &stream, &there, &here, &bytes);
    let started = driver.now();
    let done = loop {
        match begun.as_ref().map(Event::is_done) {
            Ok(Ok(true)) => break Ok(()),
            Ok(Ok(false)) if driver.now() > started + START_LIMIT => {
                break Err(Fault::Refused {
                    call: "a first copy",
                    name: "the device does not finish it",
                    code: 0,
                });
            }
            Ok(Ok(false)) => driver.pause(LOOK_AGAIN),
            Ok(Err(fault)) | Err(&fault) => break Err(fault),
        }
    };
    match done {
        Ok(()) => Ok(there),
        Err(fault) => {
            // Nobody knows whether the copy still runs.
            keep_for_good((there, here));
            Err(fault)
        }
    }
}

#[expect(unsafe_code, reason = "a copy between memories that the caller keeps until it is done")]
fn begin_upload(
    driver: &Arc<dyn Driver>,
    stream: &Stream,
    to: &DeviceMemory,
    from: &PinnedMemory,
    bytes: &[u8],
) -> Result<Event, Fault> {
    // SAFETY: both have room for `bytes` and are new; the caller drops neither before the event.
    unsafe {
        from.write(0, bytes);
        driver.to_device(stream.handle(), to.address(), from.address(), bytes.len() as u64)?;
    }
    Event::record(driver, stream.handle())
}

/// Words as the device reads them.
pub(super) fn as_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
