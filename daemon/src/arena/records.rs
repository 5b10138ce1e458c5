//! The table of records in the arena's file. It is written as things become READY and go, so that another daemon knows
//! after any kill what this one had.
//!
//! A record's bytes are written first and its checksum last; it is cleared by its checksum alone. Whoever holds a
//! [`Slot`] owns its record, and dropping the slot clears it.

use std::fmt;
use std::sync::Arc;

use super::memory::{Memory, Writing};
use super::record::{CHECKSUM_BYTES, RECORD_BYTES, Record};
use crate::fault::{self, Fault};
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crate::sync::{Mutex, Planted, planted};

/// The table.
pub(crate) struct Records {
    map: Arc<Memory>,
    /// Where the table starts in the file.
    table_bytes: u64,
    /// Where the file says how many slots were ever used.
    used_at_bytes: u64,
    slots: Mutex<Slots>,
    frozen: AtomicBool,
}

struct Slots {
    /// All before this one were used at some time; the file says so too, so that a start reads no further.
    used: u32,
    capacity: u32,
    free: Vec<u32>,
}

/// One record's place. Dropping it clears the record.
pub(crate) struct Slot {
    records: Arc<Records>,
    index: u32,
    cleared: AtomicBool,
}

impl Records {
    /// A table of `capacity` records, `used` of which may have something in them.
    pub(super) fn new(
        map: Arc<Memory>,
        table_bytes: u64,
        used_at_bytes: u64,
        capacity: u32,
        used: u32,
    ) -> Self {
        let slots = Mutex::new(Slots { used: used.min(capacity), capacity, free: Vec::new() });
        Self { map, table_bytes, used_at_bytes, slots, frozen: AtomicBool::new(false) }
    }

    /// Reads every record there is, with its slot, and clears whatever is damaged. Call it once, before any record is
    /// written. The second is how many were damaged: neither records nor cleared.
    pub(super) fn read_all(self: &Arc<Self>) -> (Vec<(Slot, Record)>, u64) {
        let used = self.slots.lock().used;
        let (mut found, mut damaged) = (Vec::new(), 0);
        let mut free = Vec::new();
        for index in (0..used).rev() {
            let mut raw = [0; RECORD_BYTES];
            // Inside the mapping, whose size was checked with the header.
            _ = self.map.copy_out(self.place(index), &mut raw);
            if let Some(record) = Record::decode(&raw) {
                let slot = Slot { records: Arc::clone(self), index, cleared: AtomicBool::new(false) };
                found.push((slot, record));
            } else {
                if raw[..CHECKSUM_BYTES] != [0; CHECKSUM_BYTES] {
                    damaged += 1;
                    self.clear(index);
                }
                free.push(index);
            }
        }
        self.slots.lock().free = free;
        (found, damaged)
    }

    /// Takes a slot and writes its record; `None` when the table is full or the arena was given away.
    pub(crate) fn write(self: &Arc<Self>, record: &Record) -> Option<Slot> {
        if fault::hit(Fault::RecordWrite) {
            return None;
        }
        let index = {
            let mut slots = self.slots.lock();
            match slots.free.pop() {
                Some(index) => index,
                None if slots.used < slots.capacity => {
                    let writing = self.map.writing()?;
                    let index = slots.used;
                    slots.used += 1;
                    // Before the record itself, or a start would not read as far.
                    writing.copy_in(self.used_at_bytes, &slots.used.to_le_bytes()).ok()?;
                    index
                }
                None => return None,
            }
        };
        let slot = Slot { records: Arc::clone(self), index, cleared: AtomicBool::new(false) };
        slot.rewrite(record).then_some(slot)
    }

    /// From now on no record is cleared, whatever is dropped.
    pub(super) fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    /// Records there are.
    pub(crate) fn len(&self) -> u64 {
        let slots = self.slots.lock();
        u64::from(slots.used) - slots.free.len() as u64
    }

    fn place(&self, index: u32) -> u64 {
        self.table_bytes + u64::from(index) * RECORD_BYTES as u64
    }

    fn clear(&self, index: u32) {
        if self.frozen.load(Ordering::Acquire) {
            return;
        }
        if let Some(writing) = self.map.writing() {
            self.clear_now(&writing, index);
        }
    }

    fn clear_now(&self, writing: &Writing<'_>, index: u32) {
        _ = writing.copy_in(self.place(index), &[0; CHECKSUM_BYTES]);
        fence(Ordering::Release);
    }
}

impl Slot {
    /// Its number, which other records may name.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Puts another record in its place. A kill meanwhile leaves none. False: the arena was given away, and the record
    /// that was there still is.
    pub(crate) fn rewrite(&self, record: &Record) -> bool {
        let raw = record.encode();
        let place = self.records.place(self.index);
        // One right to write for all of it: giving the arena away never finds a record half written.
        let Some(writing) = self.records.map.writing() else { return false };
        self.records.clear_now(&writing, self.index);
        _ = writing.copy_in(place + CHECKSUM_BYTES as u64, &raw[CHECKSUM_BYTES..]);
        // The compiler must not move the checksum before the bytes it vouches for; a kill sees stores in order.
        fence(Ordering::Release);
        let sum = if fault::hit(Fault::RecordTorn) { CHECKSUM_BYTES / 2 } else { CHECKSUM_BYTES };
        writing.copy_in(place, &raw[..sum]).is_ok()
    }

    /// Clears the record now, though the slot is held on: what it is about is gone for every later daemon.
    pub(crate) fn clear(&self) {
        if !self.cleared.swap(true, Ordering::AcqRel) && !planted(Planted::RecordNotCleared) {
            self.records.clear(self.index);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.clear();
        self.records.slots.lock().free.push(self.index);
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({})", self.index)
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Records({})", self.len())
    }
}
