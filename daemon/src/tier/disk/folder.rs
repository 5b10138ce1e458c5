//! The folder: whose it is, what it is, and its segments, all of whose bytes are taken at the start.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use super::format::{Bad, FORMAT, SegmentHeader, Superblock};
use super::io::{self as blocks, Aligned, BLOCK_BYTES};
use super::namespaces::replace;
use crate::config::DiskConfig;

const LOCK: &str = "lock";
const SUPERBLOCK: &str = "superblock";
const SEGMENT_PREFIX: &str = "segment-";
/// One is written, one is empty for the next, and two are kept, or every turn would forget all.
pub(crate) const MIN_SEGMENTS: u64 = 4;

/// The daemon cannot start with this folder.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Another daemon has it.
    #[error(
        "the disk tier's folder {} is in use by the process {pid}: stop it first, or give this daemon its own folder",
        folder.display()
    )]
    InUse {
        /// As configured.
        folder: PathBuf,
        /// As it wrote down; 0 if that cannot be read.
        pid: u32,
    },
    /// It holds something else. It was not touched.
    #[error(
        "{} holds other files ('{}') and was left untouched: give the disk tier an empty folder of its own",
        folder.display(), found.escape_debug()
    )]
    Foreign {
        /// As configured.
        folder: PathBuf,
        /// One of them.
        found: String,
    },
    /// It was written by another version. It was not touched.
    #[error(
        "the disk tier's folder {} has format {found}, this program knows {FORMAT} and left it untouched: run the \
         tenderd that wrote it, choose another folder, or give up what it holds with --discard-disk",
        folder.display()
    )]
    OtherFormat {
        /// As configured.
        folder: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Its superblock is damaged. It was not touched.
    #[error(
        "the superblock in the disk tier's folder {} is damaged, and it was left untouched: look at the disk, then \
         give up what the folder holds with --discard-disk",
        folder.display()
    )]
    Damaged {
        /// As configured.
        folder: PathBuf,
    },
    /// The system refused something.
    #[error("cannot {doing} the disk tier's folder {}: {source}{}", folder.display(), advice(source))]
    Io {
        /// As configured.
        folder: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Opening it came to no end.
    #[error(
        "opening the disk tier's folder {} has come to no end in {} s: see whether its disk hangs (the kernel's log says \
         so), or serve without it by leaving --disk out; where the disk is only slow, start again: the room that was \
         taken stays",
        folder.display(), waited.as_secs()
    )]
    Hangs {
        /// As configured.
        folder: PathBuf,
        /// For so long.
        waited: Duration,
    },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": lower --disk-size, or make room on its filesystem"
        }
        io::ErrorKind::NotFound => ": make the folder first, and see that its disk is mounted",
        io::ErrorKind::PermissionDenied => ": let this user write there",
        _ => "",
    }
}

/// A locked folder with all its segments.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) name: [u8; 16],
    pub(super) segments: Vec<Opened>,
    /// Every segment can be read and written directly.
    pub(super) direct: bool,
    pub(super) lock: File,
    /// Segments whose beginning was not what it should be.
    pub(super) foreign_segments: u64,
}

/// One segment as it was found.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: File,
    /// 0: it holds nothing.
    pub(super) fill: u64,
}

/// Opens the folder; waits as long as `patience` for a daemon that has it to let go.
pub(super) fn open(config: &DiskConfig, patience: Duration) -> Result<Folder, DiskError> {
    let path = &config.path;
    let io = |doing| move |source| DiskError::Io { folder: path.clone(), doing, source };
    only_ours(path)
        .map_err(io("list"))?
        .map_or(Ok(()), |found| Err(DiskError::Foreign { folder: path.clone(), found }))?;
    let lock = lock(path, patience)?;
    let superblock = superblock(config)?;
    let superblock = match superblock {
        Some(same) if same.segment_bytes == config.segment_bytes && !config.discard => same,
        old => {
            if let Some(old) = old {
                tracing::warn!(
                    folder = %path.display(), old_bytes = old.segment_bytes, new_bytes = config.segment_bytes,
                    "what the disk tier held is given up: the segments have another size, or the operator said so"
                );
            }
            remove_segments(path, 0).map_err(io("empty"))?;
            let fresh = Superblock { folder: rand::random(), segment_bytes: config.segment_bytes };
            replace(path, SUPERBLOCK, &fresh.encode()).map_err(io("write the superblock of"))?;
            fresh
        }
    };
    let count = config.segments();
    remove_segments(path, count).map_err(io("shrink"))?;
    let mut folder =
        Folder { name: superblock.folder, segments: Vec::new(), direct: true, lock, foreign_segments: 0 };
    for slot in 0..count {
        let (opened, direct) =
            folder.segment(path, slot, config.segment_bytes).map_err(io("take the room of"))?;
        folder.direct &= direct;
        folder.segments.push(opened);
    }
    File::open(path).and_then(|dir| dir.sync_all()).map_err(io("sync"))?;
    if !folder.direct {
        tracing::info!(folder = %path.display(), "the disk tier goes through the page cache: no direct I/O there");
    }
    Ok(folder)
}

/// A file that is not the disk tier's, if there is one.
fn only_ours(path: &Path) -> io::Result<Option<String>> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let ours = [LOCK, SUPERBLOCK, "superblock.new", "namespaces", "namespaces.new", "lost+found"];
        if !ours.contains(&name.as_str()) && slot_of(&name).is_none() {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn slot_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(SEGMENT_PREFIX)?;
    digits.parse().ok().filter(|&slot| segment_name(slot) == name)
}

/// The file of a segment.
pub(super) fn segment_name(slot: u32) -> String {
    format!("{SEGMENT_PREFIX}{slot:06}")
}

fn lock(path: &Path, patience: Duration) -> Result<File, DiskError> {
    let io = |source| DiskError::Io { folder: path.to_owned(), doing: "lock", source };
    let place = path.join(LOCK);
    let mut options = OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&place).map_err(io)?;
    let give_up = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                let pid = fs::read_to_string(&place).ok().and_then(|text| text.trim().parse().ok());
                return Err(DiskError::InUse { folder: path.to_owned(), pid: pid.unwrap_or(0) });
            }
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
    }
    file.set_len(0).map_err(io)?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(io)?;
    Ok(file)
}

fn superblock(config: &DiskConfig) -> Result<Option<Superblock>, DiskError> {
    let folder = config.path.clone();
    let raw = match fs::read(folder.join(SUPERBLOCK)) {
        Ok(raw) => raw,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(DiskError::Io { folder, doing: "read the superblock of", source }),
    };
    match Superblock::decode(&raw) {
        Ok(superblock) => Ok(Some(superblock)),
        Err(_) if config.discard => Ok(None),
        Err(Bad::Foreign(found)) => Err(DiskError::OtherFormat { folder, found }),
        Err(Bad::Nothing | Bad::Damaged) => Err(DiskError::Damaged { folder }),
    }
}

/// Removes the segments from this one on.
fn remove_segments(path: &Path, from: u32) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if slot_of(&entry.file_name().to_string_lossy()).is_some_and(|slot| slot >= from) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Real room for the whole segment: a shortage must show now. What is there stays.
fn take_room(file: &File, found_bytes: u64, bytes: u64) -> io::Result<()> {
    let len = i64::try_from(bytes).map_err(io::Error::other)?;
    match fallocate(file.as_fd(), FallocateFlags::empty(), 0, len) {
        Err(Errno::EOPNOTSUPP) => fill_up(file, found_bytes, bytes),
        done => Ok(done?),
    }
}

/// The same where the filesystem cannot: zeroes are written behind what there is.
fn fill_up(file: &File, found_bytes: u64, bytes: u64) -> io::Result<()> {
    let zeroes = Aligned::of(1 << 20);
    let mut at = found_bytes / BLOCK_BYTES * BLOCK_BYTES;
    while at < bytes {
        let len = usize::try_from((bytes - at).min(zeroes.len() as u64)).map_err(io::Error::other)?;
        blocks::write(file, &zeroes[..len], at)?;
        at += len as u64;
    }
    blocks::sync(file)
}

impl Folder {
    fn segment(&mut self, path: &Path, slot: u32, bytes: u64) -> io::Result<(Opened, bool)> {
        let (file, direct) = blocks::open(&path.join(segment_name(slot)))?;
        let found_bytes = file.metadata()?.len();
        if found_bytes > bytes {
            file.set_len(bytes)?;
        }
        take_room(&file, found_bytes, bytes)?;
        let fill = if found_bytes < BLOCK_BYTES { 0 } else { self.fill_of(&file, slot) };
        Ok((Opened { file, fill }, direct))
    }

    /// What cannot be read or is not ours holds nothing.
    fn fill_of(&mut self, file: &File, slot: u32) -> u64 {
        let mut block = Aligned::of(1);
        let header = match blocks::read(file, &mut block, 0) {
            Ok(()) => SegmentHeader::decode(&block),
            Err(error) => {
                tracing::warn!(slot, %error, "a segment of the disk tier cannot be read and counts as empty");
                return 0;
            }
        };
        match header {
            Ok(header) if header.folder == self.name && header.slot == slot => header.fill,
            Err(Bad::Nothing) => 0,
            other => {
                tracing::warn!(
                    slot,
                    ?other,
                    "a segment of the disk tier is damaged or another's, and counts as empty"
                );
                self.foreign_segments += 1;
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_that_cannot_take_room_is_filled_and_what_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = blocks::open(&dir.path().join("segment")).unwrap();
        let mut ours = Aligned::of(1);
        ours.fill(7);
        blocks::write(&file, &ours, 0).unwrap();
        fill_up(&file, BLOCK_BYTES + 9, (1 << 20) + 3 * BLOCK_BYTES).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 3 * BLOCK_BYTES);
        let mut seen = Aligned::of(8192);
        blocks::read(&file, &mut seen, 0).unwrap();
        assert!(seen[..4096].iter().all(|&byte| byte == 7) && seen[4096..].iter().all(|&byte| byte == 0));
    }
}
