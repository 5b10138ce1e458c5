//! The arena's mapping, which this process may write to until it gives the arena to another one.
//!
//! Whoever is late (a copy that was under way, a record that is cleared when the last reader goes) must not write into
//! what belongs to somebody else by then. So every write asks here, and giving away waits for those that were admitted.
#![allow(unsafe_code, reason = "hands on the mapping's slices; whoever asks vouches that nobody writes")]

use std::io;

use tender_proto::shm::{Mapping, OutOfRange};

use crate::sync::{Planted, RwLock, RwLockReadGuard, killed, planted};

/// The mapping and the right to write to it.
#[derive(Debug)]
pub(crate) struct Memory {
    map: Mapping,
    given_away: RwLock<bool>,
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
        Self { map, given_away: RwLock::new(false) }
    }
    /// Begins to write; `None` once the arena was given away.
    pub(crate) fn writing(&self) -> Option<Writing<'_>> {
        let given_away = self.given_away.read();
        (!*given_away || planted(Planted::RightNotAsked))
            .then_some(Writing { map: &self.map, _not_given: given_away })
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

impl Writing<'_> {
    /// Copies bytes in.
    pub(crate) fn copy_in(&self, offset_bytes: u64, from: &[u8]) -> Result<(), OutOfRange> {
        if killed() { Ok(()) } else { self.map.copy_in(offset_bytes, from) }
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
}
