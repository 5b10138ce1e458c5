//! Checks of the CUDA kernels that run wherever a kernel can be launched: on a GPU, on the fake driver, and on the
//! kernels' sources built for the host.
//!
//! * [`table`]: layouts of every kind, as engines have them.
//! * [`copies`], [`hashes`]: what a kernel does, compared byte by byte with the CPU truth.
//! * [`host`]: the host build of the kernels, and memory that is known by address.
//! * [`end_to_end`]: a device's cache through a real daemon.
//! * [`gpu`], [`speed`], [`overlap`], [`report`]: a device behind its driver, how fast it is, alone and beside other work, and the
//!   table of what was found.

pub mod copies;
pub mod end_to_end;
pub mod gpu;
pub mod hashes;
pub mod host;
pub mod overlap;
pub mod report;
pub mod speed;
pub mod table;

use std::any::Any;

use tender_kernels::cuda::Launch;

/// A check's result; an error says what differs.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What memory holds before anything was written to it.
pub const POISON: u8 = 0xA5;

/// Where kernels run.
pub trait Device {
    /// Multiprocessors that a launch may fill.
    fn sms(&self) -> u32;
    /// Poisoned memory whose address is `past` (below 256) bytes behind a multiple of 256.
    fn area(&self, bytes: usize, past: usize) -> Outcome<Area>;
    /// Writes the first bytes of an area.
    fn write(&self, area: &mut Area, bytes: &[u8]) -> Outcome<()>;
    /// All bytes of an area.
    fn read(&self, area: &Area) -> Outcome<Vec<u8>>;
    /// Runs a kernel to its end.
    fn launch(&self, launch: &Launch, arguments: &[u64]) -> Outcome<()>;
}

/// Memory of a [`Device`]; freed when dropped.
#[derive(Debug)]
pub struct Area {
    /// Of its first byte, as kernels see it.
    pub address: u64,
    /// Its length.
    pub bytes: usize,
    /// Bytes between the start of the memory that is kept and the address.
    pub past: usize,
    /// Whatever keeps it.
    pub keep: Box<dyn Any>,
}

/// An area with these contents.
pub fn upload(device: &impl Device, bytes: &[u8], past: usize) -> Outcome<Area> {
    let mut area = device.area(bytes.len(), past)?;
    device.write(&mut area, bytes)?;
    Ok(area)
}

/// Tables of kernels are lists of words.
pub fn upload_words(device: &impl Device, words: &[u64]) -> Outcome<Area> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    upload(device, &bytes, 0)
}

/// Fails with the first place where two runs of bytes differ.
pub fn same(what: &str, found: &[u8], expected: &[u8]) -> Outcome<()> {
    if found == expected {
        return Ok(());
    }
    let wrong = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    let first = found.iter().zip(expected).position(|(a, b)| a != b);
    Err(match first {
        Some(at) => format!(
            "{what}: {wrong} of {} bytes differ; the first, at {at}, is {:#04x} and should be {:#04x}",
            expected.len(),
            found[at],
            expected[at]
        ),
        None => format!("{what}: {} bytes instead of {}", found.len(), expected.len()),
    }
    .into())
}
