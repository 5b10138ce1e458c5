//! The arena's file: opening it exclusively, checking that there is room, and its self-describing header.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, Flock, FlockArg, OFlag, fallocate};
use nix::sys::statvfs::fstatvfs;

use super::cgroup;
use super::error::StartError;

/// Bytes in front of the first chunk.
pub(super) const HEADER_BYTES: u64 = 4096;
/// Format of the header and of what follows it.
pub(super) const FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"TENDERA1";
const ENCODED: usize = 24;

/// What the first page says: magic, format, process id, size of the file; all little endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header {
    format: u32,
    pid: u32,
    file_bytes: u64,
}

impl Header {
    fn encode(self) -> [u8; ENCODED] {
        let mut out = [0; ENCODED];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.format.to_le_bytes());
        out[12..16].copy_from_slice(&self.pid.to_le_bytes());
        out[16..].copy_from_slice(&self.file_bytes.to_le_bytes());
        out
    }
    /// `None` for what does not begin like an arena.
    fn read(file: &File) -> Option<Self> {
        let mut raw = [0; ENCODED];
        file.read_exact_at(&mut raw, 0).ok()?;
        let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let file_bytes = u64::from(word(16)) | u64::from(word(20)) << 32;
        (raw[..8] == MAGIC).then(|| Self { format: word(8), pid: word(12), file_bytes })
    }
}

/// Opens or makes the file, alone: the returned lock ends with it. A file that was made here is removed
/// again on failure; one that was there is touched only if it is an unused arena of a format we know.
pub(super) fn open(place: &Path, file_bytes: u64) -> Result<Flock<File>, StartError> {
    let (file, made) = loop {
        match open_locked(place)? {
            Opened::Locked { file, made } => break (file, made),
            Opened::Raced => {}
        }
    };
    prepare(&file, place, file_bytes).map(|()| file).inspect_err(|error| {
        // Whatever was there before keeps its bytes, except where it was already cut for reuse.
        let reused = matches!(error, StartError::Io { doing: "size" | "write the header of", .. });
        if made || reused {
            remove(place);
        }
    })
}

enum Opened {
    Locked {
        file: Flock<File>,
        made: bool,
    },
    /// A stopping daemon removed the file between our opening and locking it.
    Raced,
}

fn open_locked(place: &Path) -> Result<Opened, StartError> {
    let io = |doing| move |source| StartError::Io { place: place.to_owned(), doing, source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    let (file, made) = match options.clone().create_new(true).open(place) {
        Ok(file) => (file, true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match options.open(place) {
            Ok(file) => (file, false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Opened::Raced),
            Err(error) => return Err(io("open")(error)),
        },
        Err(error) => return Err(io("create")(error)),
    };
    if !file.metadata().map_err(io("inspect"))?.is_file() {
        return Err(StartError::Foreign { place: place.to_owned() });
    }
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(file) => file,
        Err((file, Errno::EWOULDBLOCK)) => {
            let pid = Header::read(&file).map_or(0, |header| header.pid);
            return Err(StartError::InUse { place: place.to_owned(), pid });
        }
        Err((_, error)) => return Err(io("lock")(error.into())),
    };
    let ours = file.metadata().map_err(io("inspect"))?;
    match fs::symlink_metadata(place) {
        Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
            Ok(Opened::Locked { file, made })
        }
        _ => Ok(Opened::Raced),
    }
}

fn prepare(file: &Flock<File>, place: &Path, file_bytes: u64) -> Result<(), StartError> {
    let io = |doing| move |source| StartError::Io { place: place.to_owned(), doing, source };
    let metadata = file.metadata().map_err(io("inspect"))?;
    // An empty file is what a daemon leaves that died between making the file and describing it.
    if metadata.len() > 0 {
        match Header::read(file) {
            Some(header) if header.format > FORMAT => {
                return Err(StartError::NewerFormat {
                    place: place.to_owned(),
                    found: header.format,
                    known: FORMAT,
                });
            }
            Some(_) => {}
            None => return Err(StartError::Foreign { place: place.to_owned() }),
        }
    }
    // What an old arena holds is room for the new one.
    check_room(file, place, file_bytes, metadata.blocks() * 512)?;
    file.set_len(0).map_err(io("size"))?;
    // The header goes first, so that a file whose daemon died meanwhile is still known as an arena.
    let header = Header { format: FORMAT, pid: std::process::id(), file_bytes };
    file.write_all_at(&header.encode(), 0).map_err(io("write the header of"))?;
    let len = i64::try_from(file_bytes).map_err(|_| StartError::ImpossibleSize { bytes: file_bytes })?;
    // Real pages, not a sparse file: a shortage must show now, not as a bus error at first touch.
    fallocate(file.as_fd(), FallocateFlags::empty(), 0, len).map_err(|error| io("size")(error.into()))
}

fn check_room(file: &File, place: &Path, needed_bytes: u64, held_bytes: u64) -> Result<(), StartError> {
    let fs = fstatvfs(file).map_err(|error| StartError::Io {
        place: place.to_owned(),
        doing: "inspect",
        source: error.into(),
    })?;
    let available_bytes = fs.blocks_available() * fs.fragment_size() + held_bytes;
    if needed_bytes > available_bytes {
        return Err(StartError::FilesystemTooSmall {
            place: place.to_owned(),
            needed_bytes,
            available_bytes,
        });
    }
    match cgroup::headroom() {
        Some(headroom) if needed_bytes > headroom.available_bytes.saturating_add(held_bytes) => {
            Err(StartError::MemoryLimitTooSmall {
                place: place.to_owned(),
                limit: headroom.limit,
                needed_bytes,
                available_bytes: headroom.available_bytes,
            })
        }
        _ => Ok(()),
    }
}

/// Removes the file; one that is gone already is fine.
pub(super) fn remove(place: &Path) {
    if let Err(error) = fs::remove_file(place)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(place = %place.display(), %error, "the arena's file could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    #[test]
    fn the_header_says_what_and_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("arena");
        let file = open(&place, SIZE).unwrap();
        let header = Header::read(&file).unwrap();
        assert_eq!(header, Header { format: FORMAT, pid: std::process::id(), file_bytes: SIZE });
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.len(), metadata.mode() & 0o777), (SIZE, 0o600));
        assert!(metadata.blocks() * 512 >= SIZE, "the file is sparse");
    }

    #[test]
    fn a_second_daemon_is_told_who_holds_the_arena() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("arena");
        let first = open(&place, SIZE).unwrap();
        match open(&place, SIZE) {
            Err(StartError::InUse { pid, .. }) => assert_eq!(pid, std::process::id()),
            other => panic!("{other:?}"),
        }
        assert_eq!(first.metadata().unwrap().len(), SIZE);
        drop(first);
        open(&place, 2 * SIZE).unwrap();
    }

    #[test]
    fn foreign_and_newer_files_are_left_untouched() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("notes.txt");
        fs::write(&place, "my notes, longer than a header would be").unwrap();
        assert!(matches!(open(&place, SIZE), Err(StartError::Foreign { .. })));
        assert_eq!(fs::read_to_string(&place).unwrap(), "my notes, longer than a header would be");
        let newer = Header { format: FORMAT + 1, pid: 1, file_bytes: 9 }.encode();
        fs::write(&place, newer).unwrap();
        assert!(
            matches!(open(&place, SIZE), Err(StartError::NewerFormat { found, .. }) if found == FORMAT + 1)
        );
        assert_eq!(fs::read(&place).unwrap(), newer);
    }

    #[test]
    fn case_30_too_small_a_filesystem_is_an_error_that_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("arena");
        let Err(StartError::FilesystemTooSmall { needed_bytes, available_bytes, .. }) = open(&place, 1 << 50)
        else {
            panic!("an arena of a pebibyte was made");
        };
        assert!(needed_bytes == 1 << 50 && available_bytes < needed_bytes);
        assert!(!place.exists());
    }

    #[test]
    fn an_empty_or_half_made_file_does_not_stop_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("arena");
        fs::write(&place, "").unwrap();
        drop(open(&place, SIZE).unwrap());
        fs::write(&place, Header { format: FORMAT, pid: 1, file_bytes: SIZE }.encode()).unwrap();
        assert_eq!(open(&place, SIZE).unwrap().metadata().unwrap().len(), SIZE);
    }

    #[test]
    fn a_link_or_a_directory_is_not_an_arena() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        std::os::unix::fs::symlink(&target, dir.path().join("link")).unwrap();
        assert!(open(&dir.path().join("link"), SIZE).is_err());
        assert!(open(dir.path(), SIZE).is_err());
        assert!(!target.exists());
    }
}
