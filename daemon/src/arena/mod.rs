//! The shared memory that holds chunk bytes. This module owns the file and its mapping; `alloc` says which
//! ranges are taken. Only whoever owns an [`Extent`] can read or write its bytes, and writing needs it
//! exclusively, so readers and writers never meet inside this process; other processes get the file
//! read-only.
#![allow(
    unsafe_code,
    reason = "slices of the mapping, and page population; ownership of extents guards both"
)]

pub mod alloc;
pub(crate) mod catalogue;
pub(crate) mod cgroup;
mod error;
mod file;
#[cfg(feature = "fuzzing")]
pub(crate) mod forge;
mod memory;
pub(crate) mod record;
pub(crate) mod records;
mod shape;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;
use std::time::Duration;

use tender_proto::shm::Mapping;

use crate::fault::{self, Fault};
use alloc::{Extent, ExtentPool, MAX_POOL_BYTES};
use catalogue::{Catalogue, OldNamespace};
pub use error::StartError;
pub(crate) use file::FORMAT;
use file::{Found, Opened};
use memory::Memory;
pub(crate) use memory::WriteError;
use record::{PartRecord, Record};
use records::{Records, Slot};
use shape::Shape;

/// Smaller arenas hold no useful chunk.
const MIN_ARENA_BYTES: u64 = 64 << 10;

/// Populated in one system call: small enough for visible progress and a prompt stop.
const PREFAULT_PIECE_BYTES: u64 = 16 << 20;
/// Populating is limited by the kernel's zeroing, which more threads do not make faster.
const MAX_PREFAULT_THREADS: usize = 8;

/// For reads from disks to end before the arena is given away. A healthy one takes milliseconds.
const READS_PATIENCE: Duration = Duration::from_secs(2);

/// Where the arena lies and how large it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArenaConfig {
    /// Its file, on a memory filesystem.
    pub place: PathBuf,
    /// Bytes for chunks. The file has 1 MiB and one part in 256 more, which say what it holds.
    pub bytes: u64,
    /// Touch every page before the daemon calls itself ready.
    pub prefault: bool,
    /// Leave the file when the daemon stops, so that the next one serves what it holds.
    pub keep: bool,
    /// Begin with nothing, whatever the file is.
    pub discard: bool,
}

impl ArenaConfig {
    /// Size of the file: what its filesystem must have room for.
    pub fn file_bytes(&self) -> Result<u64, StartError> {
        Ok(self.shape()?.file_bytes())
    }
    fn shape(&self) -> Result<Shape, StartError> {
        if !(MIN_ARENA_BYTES..=MAX_POOL_BYTES).contains(&self.bytes) {
            return Err(StartError::ImpossibleSize { bytes: self.bytes });
        }
        Ok(Shape::of(self.bytes))
    }
}

/// An open arena. Dropping it unlocks the file and, unless it is to be kept, removes it.
#[derive(Debug)]
pub(crate) struct Arena {
    config: ArenaConfig,
    shape: Shape,
    map: Arc<Memory>,
    pool: Arc<ExtentPool>,
    catalogue: Arc<Catalogue>,
    file: File,
}

/// What an earlier daemon left in an arena, as far as each record can be believed for itself.
#[derive(Debug, Default)]
pub(crate) struct Old {
    pub(crate) namespaces: Vec<OldNamespace>,
    pub(crate) parts: Vec<OldPart>,
    /// Records that were damaged, or named what cannot be.
    pub(crate) dropped_records: u64,
    /// There was an arena, and nothing of it can be served.
    pub(crate) discarded: Option<&'static str>,
}

/// A part that an earlier daemon had verified.
#[derive(Debug)]
pub(crate) struct OldPart {
    // Before the bytes that it is about.
    pub(crate) slot: Slot,
    pub(crate) record: PartRecord,
    pub(crate) extent: Extent,
}

impl Arena {
    /// Opens or makes the file, reserves every byte and maps it. What an earlier daemon left in it comes with it.
    pub(crate) fn open(config: ArenaConfig) -> Result<(Self, Old), StartError> {
        let shape = config.shape()?;
        let opened = file::open(&config.place, shape, config.discard)?;
        Self::map(config, shape, opened)
    }

    /// The same for a file that another daemon gave away, which is locked for this one already.
    pub(crate) fn adopt(config: ArenaConfig, file: File) -> Result<(Self, Old), StartError> {
        let shape = config.shape()?;
        let opened = file::adopt(&config.place, shape, file)?;
        Self::map(config, shape, opened)
    }

    fn map(config: ArenaConfig, shape: Shape, opened: Opened) -> Result<(Self, Old), StartError> {
        let Opened { file, boot, found } = opened;
        let mapped = fault::check(Fault::ArenaMap).and_then(|()| Mapping::read_write(&file));
        let opened = mapped.map(Memory::new).map(Arc::new).and_then(|map| {
            let no_pools = || io::Error::from(io::ErrorKind::InvalidData);
            Self::take_over(&config, shape, &map, found, boot).ok_or_else(no_pools).map(|parts| (map, parts))
        });
        match opened {
            Ok((map, (catalogue, pool, old))) => {
                Ok((Self { config, shape, map, pool, catalogue, file }, old))
            }
            Err(source) => {
                if matches!(found, Found::New(_)) {
                    file::remove(&config.place);
                }
                Err(StartError::Io { place: config.place, doing: "map", source })
            }
        }
    }

    /// Reads the records. One that cannot be believed is cleared, and its bytes are free.
    fn take_over(
        config: &ArenaConfig,
        shape: Shape,
        map: &Arc<Memory>,
        found: Found,
        boot: u32,
    ) -> Option<(Arc<Catalogue>, Arc<ExtentPool>, Old)> {
        let (used_slots, discarded) = match found {
            Found::New(why) => (0, why),
            Found::Same { used_slots, .. } => (used_slots, None),
        };
        let records = Records::new(
            Arc::clone(map),
            shape.records(),
            file::USED_SLOTS_AT,
            shape.record_slots,
            used_slots,
        );
        let records = Arc::new(records);
        let (found, damaged) = records.read_all();
        let count = found.len();
        let (mut namespaces, mut parts) = (Vec::new(), Vec::new());
        for (slot, record) in found {
            match record {
                Record::Namespace(namespace) => namespaces.push((slot, namespace)),
                Record::Part(part) => parts.push((slot, part)),
            }
        }
        let (catalogue, namespaces) = Catalogue::new(Arc::clone(map), shape, records, boot, namespaces)?;
        let pieces: Vec<_> = parts.iter().map(|(_, record)| (record.offset_bytes, record.bytes)).collect();
        let (pool, extents) = ExtentPool::restore(config.bytes, &pieces)?;
        let parts: Vec<_> = parts
            .into_iter()
            .zip(extents)
            .filter_map(|((slot, record), extent)| Some(OldPart { slot, record, extent: extent? }))
            .collect();
        let dropped_records = damaged + (count - namespaces.len() - parts.len()) as u64;
        Some((catalogue, pool, Old { namespaces, parts, dropped_records, discarded }))
    }

    /// The arena's file.
    pub(crate) fn place(&self) -> &Path {
        &self.config.place
    }
    /// Size of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.shape.file_bytes()
    }
    /// What the file says it holds.
    pub(crate) fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }
    /// Which ranges are taken.
    pub(crate) fn pool(&self) -> &Arc<ExtentPool> {
        &self.pool
    }
    /// Where an extent's bytes start in the file.
    pub(crate) fn file_offset(&self, extent: &Extent) -> u64 {
        self.shape.pool() + extent.offset_bytes()
    }
    /// The file for a client: it cannot write through it, and it holds no lock.
    pub(crate) fn read_only_fd(&self) -> io::Result<OwnedFd> {
        // Not by its path: that may have been removed or replaced meanwhile.
        fault::check(Fault::ArenaDescriptor)?;
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        OpenOptions::new().read(true).open(path).map(OwnedFd::from)
    }

    /// Lets no file be read into the arena any more. False, and all is as before, if such a read hangs.
    pub(crate) fn shut_reads(&self) -> bool {
        self.map.shut_reads(READS_PATIENCE)
    }

    /// As a read that is under way.
    #[cfg(test)]
    pub(crate) fn reading(&self) -> Option<impl Drop + '_> {
        self.map.reading()
    }

    /// Lets files be read into it again.
    pub(crate) fn open_reads(&self) {
        self.map.open_reads();
    }

    /// Gives the file away: when this returns, nothing is written to it any more, whoever is late. The lock goes with
    /// the descriptor.
    pub(crate) fn give_away(&self) -> io::Result<File> {
        let file = self.file.try_clone()?;
        if !self.shut_reads() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "a read from a disk into the arena does not end",
            ));
        }
        self.map.give_away();
        Ok(file)
    }

    /// Whether that has happened. Asked after something was read, it says whether another process may have changed it.
    pub(crate) fn is_given_away(&self) -> bool {
        self.map.is_given_away()
    }

    /// The bytes of an extent.
    pub(crate) fn bytes<'a>(&'a self, extent: &'a Extent) -> &'a [u8] {
        let len = self.check(extent, 0, extent.bytes());
        // SAFETY: the extent is borrowed, so it is not written meanwhile (that borrows it exclusively), and
        // no other extent has any of its bytes. Other processes have the file read-only.
        unsafe { self.map.slice(self.file_offset(extent), len) }.unwrap_or_default()
    }
    /// Copies bytes into an extent; the range must lie inside it.
    pub(crate) fn write(&self, extent: &mut Extent, at: u64, from: &[u8]) -> Result<(), WriteError> {
        self.check(extent, at, from.len() as u64);
        let writing = self.map.writing().ok_or(WriteError::GivenAway)?;
        Ok(writing.stream_in(self.file_offset(extent) + at, from)?)
    }
    /// Copies bytes of another mapping into an extent; the range must lie inside it.
    pub(crate) fn write_from(
        &self,
        extent: &mut Extent,
        at: u64,
        from: &Mapping,
        from_bytes: u64,
        len: u64,
    ) -> Result<(), WriteError> {
        let len = self.check(extent, at, len);
        let writing = self.map.writing().ok_or(WriteError::GivenAway)?;
        Ok(writing.copy_from(self.file_offset(extent) + at, from, from_bytes, len)?)
    }

    /// Reads bytes of a file straight into an extent; the range must lie inside it. For direct I/O, offsets and length
    /// are whole blocks: extents begin with a page.
    pub(crate) fn read_from(
        &self,
        extent: &mut Extent,
        at: u64,
        file: &File,
        file_at: u64,
        len: u64,
    ) -> io::Result<()> {
        let len = self.check(extent, at, len);
        let begin = self.file_offset(extent) + at;
        let mut done = 0;
        while done < len {
            let reading = self.map.reading().ok_or_else(|| io::Error::other("the arena was given away"))?;
            match reading.read(begin + done as u64, len - done, file, file_at + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Bytes of the file as they are now, whoever has them.
    #[cfg(all(test, feature = "loom"))]
    pub(crate) fn peek(&self, file_offset: u64, bytes: u64) -> Vec<u8> {
        crate::sync::kill::STORES.load(crate::sync::atomic::Ordering::SeqCst);
        let mut seen = vec![0; usize::try_from(bytes).unwrap_or_default()];
        _ = self.map.copy_out(file_offset, &mut seen);
        seen
    }

    /// Panics on a range outside the extent or an extent of another arena: both would be memory that
    /// somebody else may be using.
    fn check(&self, extent: &Extent, at: u64, len: u64) -> usize {
        assert!(extent.is_of(&self.pool), "an extent of another arena");
        let inside = at.checked_add(len).is_some_and(|end| end <= extent.bytes());
        assert!(inside, "bytes {at}..+{len} of an extent of {} bytes", extent.bytes());
        usize::try_from(len).unwrap_or(usize::MAX)
    }

    /// Makes every page present, with several threads, until `stop` says so. Contents are not changed, so
    /// chunks may be stored meanwhile. `progress` is told bytes done and bytes in all, from any thread.
    /// Ends early, too, with what the system says when it cannot.
    pub(crate) fn prefault(
        &self,
        progress: &(dyn Fn(u64, u64) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> io::Result<()> {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_PREFAULT_THREADS));
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let work = || {
            while !stop() {
                let at = next.fetch_add(PREFAULT_PIECE_BYTES, Ordering::Relaxed);
                let total = self.file_bytes();
                if at >= total {
                    break;
                }
                let len = PREFAULT_PIECE_BYTES.min(total - at);
                self.populate(at, len)?;
                progress(done.fetch_add(len, Ordering::Relaxed) + len, total);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let helper =
                || fault::check(Fault::Thread).and_then(|()| Builder::new().spawn_scoped(scope, work));
            // Where there is no thread to be had, those that there are do it.
            let helpers: Vec<_> = (1..threads).map_while(|_| helper().ok()).collect();
            let own = work();
            let panicked = |_| Err(io::Error::other("a thread panicked"));
            helpers.into_iter().map(|helper| helper.join().unwrap_or_else(panicked)).fold(own, Result::and)
        })
    }

    fn populate(&self, at: u64, len: u64) -> io::Result<()> {
        fault::check(Fault::ArenaPopulate)?;
        let pages = usize::try_from(len).unwrap_or(usize::MAX);
        if !self.map.make_present(at, pages)? {
            // Kernels before 5.14: reading a byte of each reserved page makes it present too.
            let mut byte = [0];
            for page in (at..at + len).step_by(4096) {
                self.map.copy_out(page, &mut byte).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.catalogue.freeze();
        if !self.config.keep && !self.map.is_given_away() {
            file::remove(&self.config.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path, bytes: u64) -> ArenaConfig {
        ArenaConfig { place: dir.join("arena"), bytes, prefault: true, keep: false, discard: false }
    }

    #[test]
    fn an_extent_keeps_what_was_written_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let (arena, _) = Arena::open(config(dir.path(), 1 << 20)).unwrap();
        let mut a = arena.pool().allocate(5000).unwrap();
        let mut b = arena.pool().allocate(5000).unwrap();
        arena.write(&mut a, 0, &[1; 5000]).unwrap();
        arena.write(&mut b, 0, &[2; 5000]).unwrap();
        arena.prefault(&|_, _| (), &|| false).unwrap();
        assert!(arena.bytes(&a).iter().all(|&byte| byte == 1) && arena.bytes(&a).len() == 5000);
        assert!(arena.bytes(&b).iter().all(|&byte| byte == 2));
    }

    #[test]
    #[should_panic(expected = "of an extent of 5000 bytes")]
    fn a_write_past_an_extent_never_reaches_its_neighbour() {
        let dir = tempfile::tempdir().unwrap();
        let (arena, _) = Arena::open(config(dir.path(), 1 << 20)).unwrap();
        let mut a = arena.pool().allocate(5000).unwrap();
        let _ = arena.write(&mut a, 4999, &[0; 2]);
    }

    #[test]
    fn clients_get_a_descriptor_that_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let (arena, _) = Arena::open(config(dir.path(), 1 << 20)).unwrap();
        let mut extent = arena.pool().allocate(8).unwrap();
        arena.write(&mut extent, 0, b"kv bytes").unwrap();
        let theirs = File::from(arena.read_only_fd().unwrap());
        assert!(Mapping::read_write(&theirs).is_err());
        let mut seen = [0; 8];
        let map = Mapping::read_only(&theirs).unwrap();
        map.copy_out(arena.file_offset(&extent), &mut seen).unwrap();
        assert_eq!((&seen, map.len() as u64), (b"kv bytes", arena.file_bytes()));
    }

    #[test]
    fn the_file_goes_with_the_arena_unless_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path(), 1 << 20);
        drop(Arena::open(config.clone()).unwrap());
        assert!(!config.place.exists());
        config.keep = true;
        drop(Arena::open(config.clone()).unwrap());
        assert!(config.place.exists());
    }

    #[test]
    fn prefault_reports_every_byte_once_and_stops_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let (arena, _) = Arena::open(config(dir.path(), 40 << 20)).unwrap();
        let most = AtomicU64::new(0);
        let progress = |done: u64, total: u64| {
            assert!(done <= total);
            most.fetch_max(done, Ordering::Relaxed);
        };
        arena.prefault(&progress, &|| true).unwrap();
        assert_eq!(most.load(Ordering::Relaxed), 0);
        arena.prefault(&progress, &|| false).unwrap();
        assert_eq!(most.load(Ordering::Relaxed), arena.file_bytes());
    }

    #[test]
    fn sizes_that_make_no_arena_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for bytes in [0, 4096, 9 << 40] {
            assert!(matches!(
                Arena::open(config(dir.path(), bytes)),
                Err(StartError::ImpossibleSize { bytes: b }) if b == bytes
            ));
        }
        assert!(!dir.path().join("arena").exists());
    }
}
