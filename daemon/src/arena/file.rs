//! The arena's file: opening it exclusively, checking that there is room, and its self-describing header.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::sys::statvfs::fstatvfs;

use super::cgroup;
use super::error::StartError;
use super::shape::Shape;
use crate::fault::{self, Fault};

/// Format of the header and of what follows it. 1 had no records: what it held cannot be found again.
pub(crate) const FORMAT: u32 = 2;

const MAGIC: [u8; 8] = *b"TENDERA1";
const ENCODED: usize = 56;
/// For engines to let go of an arena that was replaced.
const LET_GO: Duration = Duration::from_secs(2);
/// Where the header says how many record slots were ever used.
pub(super) const USED_SLOTS_AT: u64 = 44;

/// What the first page says, little endian: magic, format, process id, size of the file; then the pool's size, record
/// slots, starts so far, a checksum over all before that does not change, record slots ever used, and the host's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header {
    format: u32,
    pid: u32,
    shape: Shape,
    boots: u32,
    used_slots: u32,
    /// Names the start of the host; 0 if it is not known.
    host_boot: u64,
}

/// The beginning of a header, the same in every format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Prefix {
    format: u32,
    pid: u32,
}

impl Header {
    /// Written by this process.
    fn of(shape: Shape, boots: u32, used_slots: u32) -> Self {
        Self { format: FORMAT, pid: std::process::id(), shape, boots, used_slots, host_boot: host_boot() }
    }
    fn encode(self) -> [u8; ENCODED] {
        let mut out = [0; ENCODED];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.format.to_le_bytes());
        out[12..16].copy_from_slice(&self.pid.to_le_bytes());
        out[16..24].copy_from_slice(&self.shape.file_bytes().to_le_bytes());
        out[24..32].copy_from_slice(&self.shape.pool_bytes.to_le_bytes());
        out[32..36].copy_from_slice(&self.shape.record_slots.to_le_bytes());
        let sum = Self::checksum(&out);
        out[36..40].copy_from_slice(&sum);
        out[40..44].copy_from_slice(&self.boots.to_le_bytes());
        out[44..48].copy_from_slice(&self.used_slots.to_le_bytes());
        out[48..56].copy_from_slice(&self.host_boot.to_le_bytes());
        out
    }
    /// Over what is the same for the file's whole life.
    fn checksum(raw: &[u8; ENCODED]) -> [u8; 4] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&raw[..12]).update(&raw[16..36]);
        let mut sum = [0; 4];
        sum.copy_from_slice(&hasher.finalize().as_bytes()[..4]);
        sum
    }
    /// `None` unless it is a whole header of this format.
    fn read(file: &File) -> io::Result<Option<Self>> {
        let Some(raw) = read_beginning::<ENCODED>(file)? else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let shape = Shape { pool_bytes: long(24), record_slots: word(32) };
        let good = raw[..8] == MAGIC && word(8) == FORMAT && raw[36..40] == Self::checksum(&raw);
        let read = Self {
            format: FORMAT,
            pid: word(12),
            shape,
            boots: word(40),
            used_slots: word(44),
            host_boot: long(48),
        };
        Ok(good.then_some(read))
    }
}

/// Gives a header the checksum that it should have.
#[cfg(feature = "fuzzing")]
pub(super) fn seal(raw: &mut [u8; ENCODED]) {
    let sum = Header::checksum(raw);
    raw[36..40].copy_from_slice(&sum);
}

/// An empty arena without pages.
#[cfg(feature = "fuzzing")]
pub(super) fn sparse(place: &Path, shape: Shape) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(place)?;
    file.try_lock()?;
    file.set_len(shape.file_bytes())?;
    file.write_all_at(&Header::of(shape, 1, 0).encode(), 0)?;
    Ok(file)
}

impl Prefix {
    /// `None` for what does not begin like an arena.
    fn read(file: &File) -> io::Result<Option<Self>> {
        let Some(raw) = read_beginning::<16>(file)? else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        Ok((raw[..8] == MAGIC).then(|| Self { format: word(8), pid: word(12) }))
    }
}

/// The first bytes; `None` of a file that has fewer. What cannot be read says nothing about what is there, so that is
/// an error and not a damaged file.
fn read_beginning<const N: usize>(file: &File) -> io::Result<Option<[u8; N]>> {
    fault::check(Fault::ArenaRead)?;
    let mut raw = [0; N];
    match file.read_exact_at(&mut raw, 0) {
        Ok(()) => Ok(Some(raw)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// What there was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// Nothing, or nothing that this daemon can serve; then why.
    New(Option<&'static str>),
    /// An arena of this very shape.
    Same {
        /// The number of this start.
        boot: u32,
        used_slots: u32,
    },
}

/// An arena's file, held by this process alone. The lock belongs to the open file, not to the process: it ends when the
/// last descriptor is closed, and goes along when one is handed to another daemon.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: File,
    /// The number of this start. A new arena's first one is drawn, so that what clients remember of another fits nothing.
    pub(super) boot: u32,
    pub(super) found: Found,
}

/// Opens or makes the file, alone. A file that was made here is removed again on failure; one that was there is touched
/// only if it is an unused arena of a format we know, or if the operator says so with `discard`.
pub(super) fn open(place: &Path, shape: Shape, discard: bool) -> Result<Opened, StartError> {
    let (file, made) = loop {
        match open_locked(place)? {
            Attempt::Locked { file, made } => break (file, made),
            Attempt::Raced => {}
        }
    };
    // A file of our own making goes again. Whatever was there before stays, except where it was already replaced.
    let mut ours = made;
    prepare(file, place, shape, discard, &mut ours).inspect_err(|_| {
        if ours {
            remove(place);
        }
    })
}

/// Takes a file that another daemon gave away, with its lock. It must be an arena of this very shape.
pub(super) fn adopt(place: &Path, shape: Shape, file: File) -> Result<Opened, StartError> {
    let io = |doing| move |source| StartError::Io { place: place.to_owned(), doing, source };
    let len = file.metadata().map_err(io("inspect"))?.len();
    let found = what_is_there(&file, place, shape, len)?;
    let Found::Same { boot, used_slots } = found else {
        return Err(StartError::NotTheSame { place: place.to_owned() });
    };
    write_beginning(&file, &Header::of(shape, boot, used_slots).encode())
        .map_err(io("write the header of"))?;
    Ok(Opened { file, boot, found })
}

enum Attempt {
    Locked {
        file: File,
        made: bool,
    },
    /// A stopping daemon removed the file between our opening and locking it.
    Raced,
}

fn open_locked(place: &Path) -> Result<Attempt, StartError> {
    let io = |doing| move |source| StartError::Io { place: place.to_owned(), doing, source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    fault::check(Fault::ArenaOpen).map_err(io("open"))?;
    let (file, made) = match options.clone().create_new(true).open(place) {
        Ok(file) => (file, true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match options.open(place) {
            Ok(file) => (file, false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Attempt::Raced),
            Err(error) => return Err(io("open")(error)),
        },
        Err(error) => return Err(io("create")(error)),
    };
    if !file.metadata().map_err(io("inspect"))?.is_file() {
        return Err(StartError::Foreign { place: place.to_owned() });
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let pid = Prefix::read(&file).ok().flatten().map_or(0, |prefix| prefix.pid);
            return Err(StartError::InUse { place: place.to_owned(), pid });
        }
        Err(TryLockError::Error(error)) => return Err(io("lock")(error)),
    }
    let ours = file.metadata().map_err(io("inspect"))?;
    match fs::symlink_metadata(place) {
        Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
            Ok(Attempt::Locked { file, made })
        }
        _ => Ok(Attempt::Raced),
    }
}

/// `ours` is set once nothing is left of what was there.
fn prepare(
    mut file: File,
    place: &Path,
    shape: Shape,
    discard: bool,
    ours: &mut bool,
) -> Result<Opened, StartError> {
    let io = |doing| move |source| StartError::Io { place: place.to_owned(), doing, source };
    let metadata = file.metadata().map_err(io("inspect"))?;
    let found = if metadata.len() == 0 {
        // Also what a daemon leaves that died between making the file and describing it.
        Found::New(None)
    } else if discard {
        Found::New(Some("the operator said so"))
    } else {
        what_is_there(&file, place, shape, metadata.len())?
    };
    let file_bytes = shape.file_bytes();
    let len = i64::try_from(file_bytes).map_err(|_| StartError::ImpossibleSize { bytes: file_bytes })?;
    // What an old arena holds is room for the new one.
    check_room(&file, place, file_bytes, metadata.blocks() * 512)?;
    let (boot, used_slots) = match found {
        Found::New(_) => {
            fault::check(Fault::ArenaCut).map_err(io("empty"))?;
            if metadata.len() > 0 {
                file = replace(file, place).map_err(io("replace"))?;
            }
            *ours = true;
            // Far from where the numbers would start over: newer ones are larger.
            (rand::random::<u32>() >> 8, 0)
        }
        Found::Same { boot, used_slots } => (boot, used_slots),
    };
    // The header goes first, so that a file whose daemon died meanwhile is still known as an arena.
    let header = Header::of(shape, boot, used_slots);
    write_beginning(&file, &header.encode()).map_err(io("write the header of"))?;
    if matches!(found, Found::New(_)) || metadata.blocks() * 512 < file_bytes {
        // Real pages, not a sparse file: a shortage must show now, not as a bus error at first touch.
        fault::check(Fault::ArenaReserve)
            .and_then(|()| Ok(take_pages(&file, len)?))
            .map_err(io("reserve the pages of"))?;
    }
    Ok(Opened { file, boot, found })
}

fn write_beginning(file: &File, raw: &[u8]) -> io::Result<()> {
    fault::check(Fault::ArenaHeader)?;
    fault::check(Fault::ArenaHeaderShort).inspect_err(|_| _ = file.write_at(&raw[..raw.len() / 2], 0))?;
    file.write_all_at(raw, 0)
}

/// Puts an empty file, locked too, in the place of one whose contents nobody needs any more. That one is not cut: an
/// engine that still has it mapped, and reads as its daemon dies, would die of a bus error. Its pages are free when the
/// last engine has let go of them.
fn replace(old: File, place: &Path) -> io::Result<File> {
    let mut name = place.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh_place = place.with_file_name(name);
    // Left by a daemon that died right here; only the holder of the old file's lock comes this far.
    remove(&fresh_place);
    let mut options = OpenOptions::new();
    let fresh = options.read(true).write(true).create_new(true).mode(0o600).open(&fresh_place)?;
    fresh.try_lock()?;
    fs::rename(&fresh_place, place)?;
    drop(old);
    Ok(fresh)
}

fn take_pages(file: &File, len: i64) -> Result<(), Errno> {
    let give_up = Instant::now() + LET_GO;
    loop {
        match fallocate(file.as_fd(), FallocateFlags::empty(), 0, len) {
            Err(Errno::ENOSPC) if Instant::now() < give_up => std::thread::sleep(LET_GO / 50),
            done => return done,
        }
    }
}

/// Names this start of the host; 0 where it cannot be known.
fn host_boot() -> u64 {
    let Ok(text) = fs::read_to_string("/proc/sys/kernel/random/boot_id") else { return 0 };
    let mut word = [0; 8];
    word.copy_from_slice(&blake3::hash(text.trim().as_bytes()).as_bytes()[..8]);
    u64::from_le_bytes(word)
}

/// Looks at a file that is not empty. What may be somebody else's is an error.
fn what_is_there(file: &File, place: &Path, shape: Shape, len: u64) -> Result<Found, StartError> {
    let unread = |source| StartError::Io { place: place.to_owned(), doing: "read the header of", source };
    let Some(prefix) = Prefix::read(file).map_err(unread)? else {
        return Err(StartError::Foreign { place: place.to_owned() });
    };
    if prefix.format > FORMAT {
        let place = place.to_owned();
        return Err(StartError::NewerFormat { place, found: prefix.format, known: FORMAT });
    }
    Ok(match Header::read(file).map_err(unread)? {
        _ if prefix.format < FORMAT => Found::New(Some("an older format that does not say what it holds")),
        None => Found::New(Some("a damaged header")),
        Some(header) if header.shape != shape => Found::New(Some("another size")),
        Some(_) if len != shape.file_bytes() => Found::New(Some("a file that was cut")),
        // On a disk, records may have got there before the bytes that they are about.
        Some(header) if ![0, host_boot()].contains(&header.host_boot) => {
            Found::New(Some("the host has restarted since it was written"))
        }
        Some(header) => Found::Same { boot: header.boots.wrapping_add(1), used_slots: header.used_slots },
    })
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

    fn shape(pool_bytes: u64) -> Shape {
        Shape { pool_bytes, record_slots: 64 }
    }

    fn open(place: &Path, pool_bytes: u64) -> Result<File, StartError> {
        super::open(place, shape(pool_bytes), false).map(|opened| opened.file)
    }

    fn header() -> Header {
        Header { pid: 1, ..Header::of(shape(SIZE), 1, 0) }
    }

    const SIZE: u64 = 1 << 20;

    #[test]
    fn the_header_says_what_and_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("arena");
        let file = open(&place, SIZE).unwrap();
        let header = Header::read(&file).unwrap();
        let pid = std::process::id();
        let header = header.unwrap();
        assert_eq!(header, Header::of(shape(SIZE), header.boots, 0));
        assert_eq!(header.pid, pid);
        assert!(header.boots < 1 << 24);
        assert_eq!(Prefix::read(&file).unwrap(), Some(Prefix { format: FORMAT, pid }));
        let (metadata, file_bytes) = (file.metadata().unwrap(), shape(SIZE).file_bytes());
        assert_eq!((metadata.len(), metadata.mode() & 0o777), (file_bytes, 0o600));
        assert!(metadata.blocks() * 512 >= file_bytes, "the file is sparse");
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
        assert_eq!(first.metadata().unwrap().len(), shape(SIZE).file_bytes());
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
        let newer = Header { format: FORMAT + 1, ..header() }.encode();
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
        assert_eq!(needed_bytes, shape(1 << 50).file_bytes());
        assert!(available_bytes < needed_bytes);
        assert!(!place.exists());
    }

    #[test]
    fn an_empty_or_half_made_file_does_not_stop_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("arena");
        fs::write(&place, "").unwrap();
        drop(open(&place, SIZE).unwrap());
        fs::write(&place, header().encode()).unwrap();
        assert_eq!(open(&place, SIZE).unwrap().metadata().unwrap().len(), shape(SIZE).file_bytes());
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

    #[test]
    fn only_a_whole_arena_of_the_same_shape_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("arena");
        let found = |pool_bytes, discard| super::open(&place, shape(pool_bytes), discard).unwrap().found;
        assert_eq!(found(SIZE, false), Found::New(None));
        let Found::Same { boot, used_slots: 0 } = found(SIZE, false) else { panic!("the same arena") };
        assert_eq!(found(SIZE, false), Found::Same { boot: boot + 1, used_slots: 0 });
        assert!(matches!(found(2 * SIZE, false), Found::New(Some("another size"))));
        assert!(matches!(found(2 * SIZE, true), Found::New(Some("the operator said so"))));
        // Each time another file: one that cannot be served is replaced.
        let file = || OpenOptions::new().write(true).open(&place).unwrap();
        file().write_all_at(&[9], 26).unwrap();
        assert!(matches!(found(2 * SIZE, false), Found::New(Some("a damaged header"))));
        file().set_len(SIZE).unwrap();
        assert!(matches!(found(2 * SIZE, false), Found::New(Some("a file that was cut"))));
        file().write_all_at(&1u32.to_le_bytes(), 8).unwrap();
        assert!(
            matches!(found(2 * SIZE, false), Found::New(Some(why)) if why.starts_with("an older format"))
        );
    }

    #[test]
    fn an_engine_that_still_reads_an_arena_that_is_replaced_reads_on() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let place = dir.path().join("arena");
        let file = open(&place, SIZE).unwrap();
        file.write_all_at(&[7; 100], shape(SIZE).file_bytes() - 100).unwrap();
        // An engine's descriptor is one of its own.
        let engine = tender_proto::shm::Mapping::read_only(&File::open(&place).unwrap()).unwrap();
        drop(file);
        // The daemon is gone, and the next one has another size: with the file cut, the reads below are bus errors.
        let next = open(&place, SIZE / 2).unwrap();
        let mut seen = [0; 100];
        engine.copy_out(engine.len() as u64 - 100, &mut seen).unwrap();
        assert_eq!(seen, [7; 100]);
        assert_eq!(next.metadata().unwrap().len(), shape(SIZE / 2).file_bytes());
        assert_eq!(fs::metadata(&place).unwrap().ino(), next.metadata().unwrap().ino());
        assert!(matches!(open(&place, SIZE), Err(StartError::InUse { .. })));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_was_written_before_the_host_restarted_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("arena");
        drop(open(&place, SIZE).unwrap());
        let found = || super::open(&place, shape(SIZE), false).unwrap().found;
        let written_in = |host_boot: u64| {
            let file = OpenOptions::new().write(true).open(&place).unwrap();
            file.write_all_at(&host_boot.to_le_bytes(), 48).unwrap();
        };
        written_in(0);
        assert!(matches!(found(), Found::Same { .. }), "of a daemon that did not say");
        written_in(host_boot() ^ 1);
        assert!(matches!(found(), Found::New(Some(why)) if why.contains("restarted")));
        assert!(matches!(found(), Found::Same { .. }));
    }

    #[test]
    fn what_is_not_ours_is_given_up_when_the_operator_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("arena");
        fs::write(&place, Header { format: FORMAT + 1, ..header() }.encode()).unwrap();
        let opened = super::open(&place, shape(SIZE), true).unwrap();
        assert_eq!(opened.found, Found::New(Some("the operator said so")));
        assert_eq!(Header::read(&opened.file).unwrap().unwrap().boots, opened.boot);
    }
}
