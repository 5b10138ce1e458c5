//! The disk tier's settings, checked.

use std::path::PathBuf;

use bytesize::ByteSize;

use super::check::{at_least_one, unusable};
use super::flags::disk::DiskSettings;
use super::{ConfigError, defaults};
use crate::tier::disk::{BESIDE_SEGMENTS_BYTES, MIN_SEGMENTS};

/// Segments are counted in 32 bits, and each is one open file.
const MAX_SEGMENTS: u64 = 65_536;
const MIN_SEGMENT: ByteSize = ByteSize::mib(1);
const MAX_SEGMENT: ByteSize = ByteSize::gib(64);

/// Where the disk tier lies and how much it may do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskConfig {
    /// A folder of its own.
    pub path: PathBuf,
    /// All that the folder may take.
    pub bytes: u64,
    /// One segment; a multiple of 4 KiB.
    pub segment_bytes: u64,
    /// For new chunks and for those kept once more.
    pub write_bytes_per_second: u64,
    /// Chunks that are read at one time, at least 1.
    pub reads: usize,
    /// Begin with nothing, whatever the folder holds.
    pub discard: bool,
}

impl DiskConfig {
    /// Segments that fit.
    pub(crate) fn segments(&self) -> u32 {
        let count = self.bytes.saturating_sub(BESIDE_SEGMENTS_BYTES) / self.segment_bytes.max(1);
        u32::try_from(count.min(MAX_SEGMENTS)).unwrap_or(0)
    }
}

/// `None` where no folder is named.
pub(super) fn check(settings: &DiskSettings) -> Result<Option<DiskConfig>, ConfigError> {
    let DiskSettings { path, size, segment_size, write_rate, reads, discard } = settings.clone();
    let Some(path) = path else {
        let Some(size) = size else { return Ok(None) };
        return Err(unusable("disk-size", size, "name the folder too, with --disk-path"));
    };
    if !path.is_absolute() {
        return Err(unusable("disk-path", path.display(), "give an absolute path"));
    }
    let Some(size) = size else {
        return Err(unusable("disk-path", path.display(), "say how much it may take, with --disk-size"));
    };
    let segment = segment_size.unwrap_or(defaults::DISK_SEGMENT_SIZE);
    if segment < MIN_SEGMENT || segment > MAX_SEGMENT || !segment.as_u64().is_multiple_of(4096) {
        let advice = format!("use {MIN_SEGMENT} to {MAX_SEGMENT}, a multiple of 4 KiB");
        return Err(unusable("disk-segment-size", segment, advice));
    }
    let needed = ByteSize(MIN_SEGMENTS * segment.as_u64() + BESIDE_SEGMENTS_BYTES);
    if size < needed {
        let advice = format!(
            "too small for {MIN_SEGMENTS} segments of {segment}: give at least {needed}, or a smaller \
             --disk-segment-size that still holds the largest chunk"
        );
        return Err(unusable("disk-size", size, advice));
    }
    if size.as_u64() / segment.as_u64() > MAX_SEGMENTS {
        let advice = format!("more than {MAX_SEGMENTS} segments of {segment}: raise --disk-segment-size");
        return Err(unusable("disk-size", size, advice));
    }
    let rate = write_rate.unwrap_or(defaults::DISK_WRITE_RATE);
    if rate.as_u64() == 0 {
        return Err(unusable("disk-write-rate", rate, "must be more than 0"));
    }
    Ok(Some(DiskConfig {
        path,
        bytes: size.as_u64(),
        segment_bytes: segment.as_u64(),
        write_bytes_per_second: rate.as_u64(),
        reads: at_least_one("disk-reads", reads.unwrap_or(defaults::DISK_READS))?,
        discard: discard.unwrap_or(defaults::DISK_DISCARD),
    }))
}
