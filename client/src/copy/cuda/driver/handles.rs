//! What of the driver's has to be given back, each with one owner.
//!
//! Memory may be dropped only when no copy or kernel can touch it any more. Whoever cannot know that any more hands it
//! to [`keep_for_good`](super::super::flight::keep_for_good).

use std::sync::Arc;

use super::{Driver, Fault};

macro_rules! memory {
    ($(#[$doc:meta])* $name:ident, $alloc:ident, $free:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(in super::super) struct $name {
            driver: Arc<dyn Driver>,
            address: u64,
            bytes: u64,
        }

        impl $name {
            pub(in super::super) fn new(driver: &Arc<dyn Driver>, bytes: u64) -> Result<Self, Fault> {
                let address = driver.$alloc(bytes)?;
                Ok(Self { driver: Arc::clone(driver), address, bytes })
            }
            pub(in super::super) fn address(&self) -> u64 {
                self.address
            }
            pub(in super::super) fn bytes(&self) -> u64 {
                self.bytes
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: it was allocated so, once; owners drop it only when nothing uses it any more.
                unsafe { self.driver.$free(self.address) }
            }
        }
    };
}

memory!(
    /// Memory of the device.
    DeviceMemory,
    alloc_device,
    free_device
);
memory!(
    /// Host memory for copies.
    PinnedMemory,
    alloc_pinned,
    free_pinned
);

impl PinnedMemory {
    /// A range of it, to be read by its holder.
    ///
    /// # Safety
    /// It lies in the memory, and nobody writes to it while the slice lives.
    pub(in super::super) unsafe fn slice(&self, at: u64, len: usize) -> &[u8] {
        let start = std::ptr::with_exposed_provenance(address(self.address + at));
        // SAFETY: the range is ours for as long as self lives; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Writes into it.
    ///
    /// # Safety
    /// The range lies in the memory, and nobody else uses it meanwhile.
    pub(in super::super) unsafe fn write(&self, at: u64, bytes: &[u8]) {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(address(self.address + at));
        // SAFETY: the range is ours for as long as self lives; the caller vouches for the rest.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the kernels' crate compiles for 64 bits only")]
const fn address(of: u64) -> usize {
    of as usize
}

/// A stream of ours.
#[derive(Debug)]
pub(in super::super) struct Stream {
    driver: Arc<dyn Driver>,
    handle: u64,
}

impl Stream {
    pub(in super::super) fn new(driver: &Arc<dyn Driver>) -> Result<Self, Fault> {
        Ok(Self { driver: Arc::clone(driver), handle: driver.new_stream()? })
    }
    pub(in super::super) fn handle(&self) -> u64 {
        self.handle
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.driver.drop_stream(self.handle);
    }
}

/// A moment on a stream.
#[derive(Debug)]
pub(in super::super) struct Event {
    driver: Arc<dyn Driver>,
    handle: u64,
}

impl Event {
    /// The moment when all that was begun on the stream is done.
    pub(in super::super) fn record(driver: &Arc<dyn Driver>, stream: u64) -> Result<Self, Fault> {
        let event = Self { driver: Arc::clone(driver), handle: driver.new_event()? };
        driver.record(event.handle, stream)?;
        Ok(event)
    }
    pub(in super::super) fn handle(&self) -> u64 {
        self.handle
    }
    pub(in super::super) fn is_done(&self) -> Result<bool, Fault> {
        self.driver.is_done(self.handle)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.driver.drop_event(self.handle);
    }
}
