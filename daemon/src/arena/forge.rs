//! For fuzz targets and measurements: arenas without memory for what they hold, where things lie in an arena's file, and checksums that are right, so that what was changed is
//! looked at and not only dropped.

use std::fs::File;
use std::path::Path;

use super::file;
use super::record::{CHECKSUM_BYTES, RECORD_BYTES, checksum};
use super::shape::Shape;

/// Where things lie in the file of an arena.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Where the records start.
    pub records: usize,
    /// Bytes of one record.
    pub record_bytes: usize,
    /// Records there is room for.
    pub record_slots: usize,
    /// Where the descriptors start.
    pub descriptors: usize,
    /// Where the bytes of chunks start.
    pub pool: usize,
    /// The whole file.
    pub file_bytes: usize,
}

/// Of an arena with this many bytes for chunks.
pub fn places(arena_bytes: u64) -> Places {
    let shape = Shape::of(arena_bytes);
    let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
    Places {
        records: size(shape.records()),
        record_bytes: RECORD_BYTES,
        record_slots: size(shape.record_slots.into()),
        descriptors: size(shape.descriptors()),
        pool: size(shape.pool()),
        file_bytes: size(shape.file_bytes()),
    }
}

/// Gives a file's header the checksum that it should have; a file that is too short stays as it is.
pub fn seal_header(file: &mut [u8]) {
    if let Some(header) = file.first_chunk_mut() {
        file::seal(header);
    }
}

/// Gives a record the checksum that it should have; what is too short for one stays as it is.
pub fn seal_record(record: &mut [u8]) {
    if let Some(record) = record.first_chunk_mut::<RECORD_BYTES>() {
        let sum = checksum(record);
        record[..CHECKSUM_BYTES].copy_from_slice(&sum);
    }
}

/// Makes the file of an empty arena of this many bytes for chunks, locked as one that another daemon gave away. It has no
/// pages but those that somebody touches, so it may be larger than the machine's memory.
pub fn sparse(place: &Path, arena_bytes: u64) -> std::io::Result<File> {
    file::sparse(place, Shape::of(arena_bytes))
}
