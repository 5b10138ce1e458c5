//! Shared mappings as slices. The other process may write or read them at any time, so each function says
//! what keeps its slice from changing; it is one of the few places of this crate with unsafe code.
#![allow(unsafe_code, reason = "slices of shared mappings; what keeps them still is said at each function")]

use std::fs::File;
use std::io;

use nix::sys::memfd::{MFdFlags, memfd_create};
use tender_proto::shm::{Mapping, OutOfRange};

/// Mapped in one go, so that a stopping client does not wait long for a thread that populates.
const POPULATE_STEP_BYTES: usize = 32 << 20;

/// A private region of this process, for staging that no other process reads. Pages cost memory once they
/// are touched.
pub(super) fn private(bytes: u64) -> io::Result<Mapping> {
    let file = File::from(memfd_create(c"tender-staging", MFdFlags::MFD_CLOEXEC)?);
    file.set_len(bytes)?;
    Mapping::read_write(&file)
}

/// A leased part in the arena.
///
/// The lease keeps the daemon from changing it, and nobody else can write to the arena. A lease that ran out
/// meanwhile shows at its release, and then what was read is not used: until then the bytes may be of
/// anything, which a copy of plain bytes bears.
pub(super) fn leased(arena: &Mapping, offset_bytes: u64, len: usize) -> Result<&[u8], OutOfRange> {
    // SAFETY: the range lies in the mapping (checked there). For writes see above.
    unsafe { arena.slice(offset_bytes, len) }
}

/// A filled staging slot, for its owner.
pub(super) fn filled(staging: &Mapping, offset_bytes: u64, len: usize) -> Result<&[u8], OutOfRange> {
    // SAFETY: the caller holds the slot of this range and fills it only through `&mut`; the daemon only reads.
    unsafe { staging.slice(offset_bytes, len) }
}

/// A staging slot to be filled, for its owner.
#[expect(
    clippy::mut_from_ref,
    reason = "the allocator gives every range to one slot; a slot lends it mutably"
)]
pub(super) fn fillable(staging: &Mapping, offset_bytes: u64, len: usize) -> Result<&mut [u8], OutOfRange> {
    let start = staging.address_mut(offset_bytes, len)?;
    // SAFETY: the range lies in the mapping (checked above) for as long as it lives; the caller is the only
    // holder of the slot and has borrowed it mutably; the daemon only reads.
    Ok(unsafe { std::slice::from_raw_parts_mut(start, len) })
}

/// Makes the pages present before somebody waits for them. Stops early when `stop` says so.
pub(super) fn populate(map: &Mapping, stop: &dyn Fn() -> bool) {
    let mut at = 0;
    while at < map.len() && !stop() {
        let len = POPULATE_STEP_BYTES.min(map.len() - at);
        if !map.make_present(at as u64, len).unwrap_or(false) {
            return;
        }
        at += len;
    }
}
