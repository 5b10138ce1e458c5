//! The arena's mapping, which this process may write to until it gives the arena to another one.
//!
//! Whoever is late (a copy that was under way, a record that is cleared when the last reader goes) must not write into
//! what belongs to somebody else by then. So every write asks here, and giving away waits for those that were admitted.
#![allow(
    unsafe_code,
    reason = "hands on the mapping's slices; whoever asks vouches that nobody writes. Files are read straight into it"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::libc;

use tender_memory::Stream;
use tender_proto::shm::{Mapping, OutOfRange};

use crate::sync::{Planted, RwLock, RwLockReadGuard, killed, planted};

/// The mapping and the right to write to it.
#[derive(Debug)]
pub(crate) struct Memory {
    map: Mapping,
    given_away: RwLock<bool>,
    /// Not under that lock: a disk may hang, and whoever waits for it must not hold up writers.
    reads: parking_lot::Mutex<Reads>,
}

/// Reads of files straight into the mapping.
#[derive(Debug, Default)]
struct Reads {
    under_way: usize,
    shut: bool,
}

/// The right to read a file into the mapping, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Reading<'a>(&'a Memory);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.reads.lock().under_way -= 1;
    }
}

/// The right to write, for as long as this lives. Never ask for a second one meanwhile.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    map: &'a Mapping,
    _not_given: RwLockReadGuard<'a, bool>,
}

/// Why nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteError {
    /// The range is not inside its mapping.
    OutOfRange,
    /// The arena is another process's now.
    GivenAway,
}

impl From<OutOfRange> for WriteError {
    fn from(_: OutOfRange) -> Self {
        Self::OutOfRange
    }
}

impl Memory {
    /// Of a mapping that this process alone may write to.
    pub(crate) fn new(map: Mapping) -> Self {
        Self { map, given_away: RwLock::new(false), reads: parking_lot::Mutex::default() }
    }
    /// Begins to write; `None` once the arena was given away.
    pub(crate) fn writing(&self) -> Option<Writing<'_>> {
        let given_away = self.given_away.read();
        (!*given_away || planted(Planted::RightNotAsked))
            .then_some(Writing { map: &self.map, _not_given: given_away })
    }
    /// Begins to read a file into it; `None` once the arena was given away, or is about to be.
    pub(crate) fn reading(&self) -> Option<Reading<'_>> {
        let mut reads = self.reads.lock();
        if reads.shut {
            return None;
        }
        reads.under_way += 1;
        Some(Reading(self))
    }
    /// Waits for the reads under way and lets no more begin. False, and all is as before, if that takes too long.
    pub(crate) fn shut_reads(&self, patience: Duration) -> bool {
        let give_up = Instant::now() + patience;
        loop {
            let mut reads = self.reads.lock();
            reads.shut = reads.under_way == 0 || Instant::now() < give_up;
            if reads.under_way == 0 || !reads.shut {
                return reads.shut;
            }
            drop(reads);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    /// Lets them begin again.
    pub(crate) fn open_reads(&self) {
        self.reads.lock().shut = false;
    }
    /// Waits for what is being written now; from then on nothing is.
    pub(crate) fn give_away(&self) {
        *self.given_away.write() = true;
    }
    /// Whether it was.
    pub(crate) fn is_given_away(&self) -> bool {
        *self.given_away.read()
    }
    /// Copies bytes out.
    pub(crate) fn copy_out(&self, offset_bytes: u64, to: &mut [u8]) -> Result<(), OutOfRange> {
        self.map.copy_out(offset_bytes, to)
    }
    /// Makes pages present; false where the kernel does not know how to.
    pub(crate) fn make_present(&self, offset_bytes: u64, len: usize) -> io::Result<bool> {
        self.map.make_present(offset_bytes, len)
    }
    /// The range as a slice.
    ///
    /// # Safety
    /// Nobody may write to the range while the slice lives.
    pub(crate) unsafe fn slice(&self, offset_bytes: u64, len: usize) -> Result<&[u8], OutOfRange> {
        // SAFETY: the caller vouches for what the mapping asks.
        unsafe { self.map.slice(offset_bytes, len) }
    }
}

impl Reading<'_> {
    /// Reads bytes of a file into a range that nobody else reads or writes; how many it were.
    pub(crate) fn read(&self, offset_bytes: u64, len: usize, file: &File, at: u64) -> io::Result<usize> {
        let to = self.0.map.address_mut(offset_bytes, len).map_err(io::Error::other)?;
        let at = libc::off_t::try_from(at).map_err(io::Error::other)?;
        // SAFETY: the range lies in the mapping, which lives as long as self; the kernel writes at most `len` bytes.
        let read = unsafe { libc::pread(file.as_raw_fd(), to.cast(), len, at) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}

impl Writing<'_> {
    /// Copies bytes in.
    pub(crate) fn copy_in(&self, offset_bytes: u64, from: &[u8]) -> Result<(), OutOfRange> {
        if killed() { Ok(()) } else { self.map.copy_in(offset_bytes, from) }
    }
    /// The same past the caches, for bytes that nobody reads soon.
    pub(crate) fn stream_in(&self, offset_bytes: u64, from: &[u8]) -> Result<(), OutOfRange> {
        if killed() {
            return Ok(());
        }
        let to = self.map.address_mut(offset_bytes, from.len())?;
        // SAFETY: the range lies in the mapping, and `from` is borrowed, so it is nothing that is written to.
        unsafe { Stream::new().copy(from.as_ptr(), to, from.len()) };
        Ok(())
    }
    /// Copies bytes of another mapping in.
    pub(crate) fn copy_from(
        &self,
        offset_bytes: u64,
        from: &Mapping,
        from_bytes: u64,
        len: usize,
    ) -> Result<(), OutOfRange> {
        if killed() { Ok(()) } else { self.map.copy_from(offset_bytes, from, from_bytes, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_away_is_not_written_to() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let memory = Memory::new(Mapping::read_write(&file).unwrap());
        memory.writing().unwrap().copy_in(0, b"ours").unwrap();
        let late = std::thread::scope(|scope| {
            let writing = memory.writing().unwrap();
            let giver = scope.spawn(|| memory.give_away());
            // Whoever was admitted writes to the end; the giver waits.
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!giver.is_finished());
            writing.copy_in(0, b"last").unwrap();
            drop(writing);
            giver.join().unwrap();
            memory.writing().is_none()
        });
        assert!(late && memory.is_given_away());
        let mut seen = [0; 4];
        memory.copy_out(0, &mut seen).unwrap();
        assert_eq!(&seen, b"last");
    }

    #[test]
    fn an_arena_is_given_away_only_when_no_file_is_read_into_it() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let memory = Memory::new(Mapping::read_write(&file).unwrap());
        let reading = memory.reading().unwrap();
        assert!(!memory.shut_reads(Duration::ZERO), "one hangs");
        drop(memory.reading().unwrap());
        drop(reading);
        assert!(memory.shut_reads(Duration::ZERO));
        assert!(memory.reading().is_none());
        memory.open_reads();
        assert!(memory.reading().is_some());
    }
}
