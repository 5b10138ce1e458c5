//! Reading and writing segment files, past the page cache where the filesystem has that.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::fault::{self, Fault};

/// What direct I/O wants of memory, offsets and lengths. A multiple of every sector size in use.
pub(super) const BLOCK_BYTES: u64 = 4096;
const BLOCK: usize = 4096;

/// Bytes up to the next block.
pub(super) fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

/// Whole blocks of memory that begin where a block may.
#[derive(Debug)]
pub(super) struct Aligned {
    raw: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Zeroes: room for so many bytes, in whole blocks.
    pub(super) fn of(bytes: usize) -> Self {
        let len = bytes.next_multiple_of(BLOCK);
        let raw = vec![0; len + BLOCK];
        let start = raw.as_ptr().align_offset(BLOCK).min(BLOCK);
        Self { raw, start, len }
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.raw[self.start..self.start + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.raw[self.start..self.start + self.len]
    }
}

/// Opens or makes a segment's file; also whether it is read and written directly.
pub(super) fn open(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let direct = options.clone().custom_flags((OFlag::O_DIRECT | OFlag::O_NOFOLLOW).bits()).open(path);
    match direct {
        // Some filesystems only say so when it is used.
        Ok(file) => match file.read_at(&mut Aligned::of(BLOCK), 0) {
            Err(error) if is_no_direct(&error) => {}
            _ => return Ok((file, true)),
        },
        Err(error) if is_no_direct(&error) => {}
        Err(error) => return Err(error),
    }
    Ok((options.custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?, false))
}

fn is_no_direct(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EINVAL as i32)
}

/// Writes whole blocks.
pub(super) fn write(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    fault::check(Fault::DiskWrite)?;
    let half = bytes.len() / 2 / BLOCK * BLOCK;
    fault::check(Fault::DiskWriteShort).inspect_err(|_| _ = file.write_all_at(&bytes[..half], at))?;
    file.write_all_at(bytes, at)
}

/// Fills whole blocks; a file that ends before is an error.
pub(super) fn read(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    fault::check(Fault::DiskRead)?;
    file.read_exact_at(bytes, at)
}

/// Waits until all that was written is on the medium.
pub(super) fn sync(file: &File) -> io::Result<()> {
    fault::check(Fault::DiskSync)?;
    file.sync_data()
}

/// Writes a part's bytes and zeroes up to the next block. What is aligned goes from where it lies.
pub(super) fn write_part(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let whole = if bytes.as_ptr().align_offset(BLOCK) == 0 { bytes.len() / BLOCK * BLOCK } else { 0 };
    if whole > 0 {
        write(file, &bytes[..whole], at)?;
    }
    // Only the last block of a part in the arena; memory elsewhere is copied in pieces.
    let mut at = at + whole as u64;
    for piece in bytes[whole..].chunks(64 * BLOCK) {
        let mut block = Aligned::of(piece.len());
        block[..piece.len()].copy_from_slice(piece);
        write(file, &block, at)?;
        at += block.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_written_with_zeroes_behind_it_wherever_its_bytes_lie() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = open(&dir.path().join("segment")).unwrap();
        file.set_len(1 << 20).unwrap();
        let mut memory = Aligned::of(5 * BLOCK);
        memory.fill(7);
        for (from, len) in [(0, 2 * BLOCK), (0, 2 * BLOCK + 1), (3, 9), (1, 3 * BLOCK)] {
            write_part(&file, &memory[from..from + len], 4096).unwrap();
            let mut seen = Aligned::of(len);
            read(&file, &mut seen, 4096).unwrap();
            assert!(seen[..len].iter().all(|&byte| byte == 7));
            assert!(seen[len..].iter().all(|&byte| byte == 0));
        }
    }
}
