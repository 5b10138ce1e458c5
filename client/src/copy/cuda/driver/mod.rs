//! What the backend asks of a GPU's driver: memory, streams, events, copies, launches.
//!
//! Small on purpose: [`real`] has it from CUDA, `fake` from a model of it that tests step through in any order that
//! streams and events allow. Everything but a copy or a launch returns at once; those are only begun.
//! What is promised about memory that a copy may still touch is kept by the callers, which is why they are `unsafe`.
#![allow(unsafe_code, reason = "copies between addresses; each caller says what keeps both sides alive")]

#[cfg(test)]
pub(crate) mod fake;
mod handles;
pub(super) mod real;

use std::fmt;
use std::time::{Duration, Instant};

pub(super) use handles::{DeviceMemory, Event, PinnedMemory, Stream};

/// A call that the driver did not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// There is not enough memory of the kind asked for.
    #[error("{call}: not enough memory")]
    OutOfMemory {
        /// The driver's function.
        call: &'static str,
    },
    /// The driver said no to this call; others may still work.
    #[error("{call}: {name} ({code})")]
    Refused {
        /// The driver's function.
        call: &'static str,
        /// Its answer.
        name: &'static str,
        /// The same as a number.
        code: i32,
    },
    /// The device or its context is broken: no call can work again, and nothing that was begun can be known to end.
    #[error("{call}: {name} ({code}), after which the device cannot be used by this process any more")]
    Lost {
        /// The driver's function.
        call: &'static str,
        /// Its answer.
        name: &'static str,
        /// The same as a number.
        code: i32,
    },
}

/// The device, as found at start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct About {
    pub(super) name: String,
    /// Its number among those that this process sees.
    pub(super) index: u32,
    /// Compute capability.
    pub(super) major: u32,
    pub(super) minor: u32,
    /// Newest CUDA that the driver knows, as 1000 x major + 10 x minor.
    pub(super) driver_version: i32,
    pub(super) multiprocessors: u32,
    pub(super) total_bytes: u64,
    /// Host memory can be registered for copies, and memory that may only be read.
    pub(super) registers: bool,
    pub(super) registers_read_only: bool,
}

impl About {
    /// Like `12.4`.
    pub(super) fn cuda(&self) -> String {
        cuda_version(self.driver_version)
    }
}

/// A driver's version number in words.
pub(super) fn cuda_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// How a registered range of host memory may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    ReadOnly,
    ReadWrite,
}

/// What a stream that an engine named is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StreamState {
    /// Work can be put on it.
    Ready,
    /// It records a graph: what is put on it now would be replayed with the graph.
    Capturing,
    /// It belongs to another context, or to nobody.
    Foreign,
}

/// Where an address lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Home {
    /// In this device's memory.
    Here,
    /// In the memory of another device.
    Device(u32),
    /// In host memory, or nowhere that the driver knows.
    NotOnADevice,
}

/// One of our kernels, by its place in [`KERNELS`](tender_kernels::cuda::abi::KERNELS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kernel(pub(super) usize);

/// The numbers of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) grid: u32,
    pub(super) block: u32,
    pub(super) shared_bytes: u32,
}

/// Compiled kernels.
#[derive(Clone, Copy, Debug)]
pub(super) enum Image<'a> {
    /// Machine code for this device.
    Cubin(&'a [u8]),
    /// Text that the driver compiles.
    Ptx(&'a str),
}

/// A device of one process. Handles are numbers; [`Stream`], [`Event`] and the memories own theirs.
pub(super) trait Driver: Send + Sync + fmt::Debug {
    fn about(&self) -> &About;
    /// Device memory that nobody has.
    fn free_bytes(&self) -> Result<u64, Fault>;

    fn alloc_device(&self, bytes: u64) -> Result<u64, Fault>;
    /// Host memory that copies can use and the host reads at full speed.
    fn alloc_pinned(&self, bytes: u64) -> Result<u64, Fault>;
    /// # Safety
    /// The address came from [`Driver::alloc_device`], and nothing uses the memory any more.
    unsafe fn free_device(&self, address: u64);
    /// # Safety
    /// The address came from [`Driver::alloc_pinned`], and nothing uses the memory any more.
    unsafe fn free_pinned(&self, address: u64);
    /// Lets copies use a mapped range of host memory.
    fn register(&self, address: u64, bytes: u64, access: Access) -> Result<(), Fault>;
    /// # Safety
    /// The range begins at a registered address, and no copy uses it any more.
    unsafe fn unregister(&self, address: u64) -> Result<(), Fault>;
    /// Where an address that an engine named lies.
    fn home(&self, address: u64) -> Result<Home, Fault>;

    /// A stream whose work gives way to the engine's.
    fn new_stream(&self) -> Result<u64, Fault>;
    /// Work already begun on it goes on.
    fn drop_stream(&self, stream: u64);
    fn stream_state(&self, stream: u64) -> Result<StreamState, Fault>;
    fn new_event(&self) -> Result<u64, Fault>;
    fn drop_event(&self, event: u64);
    /// The event happens when all work that was begun on the stream so far is done.
    fn record(&self, event: u64, stream: u64) -> Result<(), Fault>;
    /// What is begun on the stream from now on waits for the event as it was recorded last.
    fn wait(&self, stream: u64, event: u64) -> Result<(), Fault>;
    /// Whether all work that was begun on the stream is done.
    fn is_idle(&self, stream: u64) -> Result<bool, Fault>;
    /// Whether the event has happened.
    fn is_done(&self, event: u64) -> Result<bool, Fault>;

    /// Begins a copy from pinned or registered host memory to the device.
    ///
    /// # Safety
    /// Both ranges stay valid, and nobody writes to `from`, until the copy is done; what uses `to` is ordered after it.
    unsafe fn to_device(&self, stream: u64, to: u64, from: u64, bytes: u64) -> Result<(), Fault>;
    /// Begins a copy from the device to pinned or registered host memory.
    ///
    /// # Safety
    /// Both ranges stay valid, and nobody uses `to` or writes to `from`, until the copy is done.
    unsafe fn to_host(&self, stream: u64, to: u64, from: u64, bytes: u64) -> Result<(), Fault>;
    /// Makes compiled kernels ready; they replace those of an earlier call.
    fn load(&self, image: Image<'_>) -> Result<(), Fault>;
    /// Begins a kernel of those loaded.
    ///
    /// # Safety
    /// The arguments are those of the kernel, and all memory that it follows from them stays valid until it is done.
    unsafe fn launch(
        &self,
        stream: u64,
        kernel: Kernel,
        shape: Shape,
        arguments: &[u64],
    ) -> Result<(), Fault>;

    /// The time, for deadlines and rates.
    fn now(&self) -> Instant;
    /// Lets some time pass.
    fn pause(&self, time: Duration);
}
