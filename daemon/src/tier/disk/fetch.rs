//! Bringing one record into the arena.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tender_proto::{ChunkKey, PartIndex, Reason};

use super::index::{Entry, Key};
use super::io::{self as blocks, Aligned, BLOCK_BYTES};
use super::shared::{Shared, is_of, read_header};
use super::stats::add;
use crate::engine::{Filling, PartWriter, ReadError};
use crate::fault::{self, Fault};
use crate::tier::FetchError;

/// Read at once. Small enough to stop soon, large enough for a disk's full speed.
const PIECE_BYTES: u64 = 1 << 20;

/// A record that is to be brought.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) shared: Arc<Shared>,
    pub(super) key: ChunkKey,
    pub(super) generation: u64,
    pub(super) index_key: Key,
    /// What the index said.
    pub(super) seen: Entry,
    pub(super) deadline: Instant,
    /// Nobody waits for it any more.
    pub(super) given_up: Arc<AtomicBool>,
}

/// Why it does not come.
enum Stop {
    /// It is for the caller to say why.
    With(FetchError),
    /// Its bytes are not what they were.
    Corrupt,
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Fetch {
    /// Reads all parts; it takes as long as the disk does.
    pub(super) fn run(self, filling: Filling) -> Result<(), FetchError> {
        let (shared, counters) = (&self.shared, &self.shared.counters);
        match self.bring(filling) {
            Ok(bytes) => {
                shared.health.good();
                shared.index.touch(&self.index_key, self.seen);
                add(&counters.fetched_chunks, 1);
                add(&counters.fetched_bytes, bytes);
                Ok(())
            }
            Err(Stop::With(error)) => Err(error),
            // Taken out by somebody else meanwhile: then its place may have had another record.
            Err(_) if !shared.index.remove(&self.index_key, self.seen) => Err(FetchError::Gone),
            Err(Stop::Corrupt) => {
                add(&counters.corrupt_records, 1);
                let (slot, at) = (self.seen.slot, self.seen.at());
                tracing::warn!(key = %self.key, slot, at, "a record of the disk tier is not what was stored; taken out");
                Err(FetchError::Corrupt)
            }
            Err(Stop::Io(error)) => {
                add(&counters.read_errors, 1);
                shared.health.bad(&error);
                Err(FetchError::Unavailable(format!("the disk tier cannot read it: {error}")))
            }
        }
    }

    fn bring(&self, mut filling: Filling) -> Result<u64, Stop> {
        let segment = self.shared.segment(self.seen.slot).ok_or(Stop::Corrupt)?;
        let operation = self.shared.health.begin();
        let header = read_header(&segment.file, self.seen.at(), segment.fill())?;
        drop(operation);
        let header = header.map_err(|_| Stop::Corrupt)?;
        if !is_of(&header, self.key, self.generation) || header.coverage_bits != self.seen.coverage_bits {
            return Err(Stop::Corrupt);
        }
        let parts = header.parts.iter().zip(header.part_offsets());
        for (index, (part, at)) in (0..).map(PartIndex).zip(parts) {
            let writer = filling.part(index).filter(|writer| writer.bytes() == part.bytes);
            self.read_part(writer.ok_or(Stop::Corrupt)?, &segment.file, at)?;
        }
        if !self.shared.namespaces.is_current(self.key.namespace, self.generation) {
            return Err(Stop::With(FetchError::Gone));
        }
        let digests: Vec<_> = header.parts.iter().map(|part| part.digest).collect();
        filling.finish_all(&digests).map_err(|reason| match reason {
            Reason::BadDigest => Stop::Corrupt,
            reason => Stop::With(FetchError::Refused(reason)),
        })?;
        Ok(header.parts.iter().map(|part| part.bytes).sum())
    }

    fn read_part(&self, writer: &mut PartWriter, file: &File, at: u64) -> Result<(), Stop> {
        let whole = writer.bytes() / BLOCK_BYTES * BLOCK_BYTES;
        while writer.written_bytes() < whole {
            self.check_time()?;
            let _operation = self.shared.health.begin();
            fault::check(Fault::DiskRead)?;
            let done = writer.written_bytes();
            writer.read_from(file, at + done, PIECE_BYTES.min(whole - done)).map_err(
                |error| match error {
                    ReadError::Io(error) => Stop::Io(error),
                    ReadError::Refused(reason) => Stop::With(FetchError::Refused(reason)),
                },
            )?;
        }
        let rest = usize::try_from(writer.bytes() - whole).map_err(|_| Stop::Corrupt)?;
        if rest > 0 {
            let _operation = self.shared.health.begin();
            let mut block = Aligned::of(rest);
            blocks::read(file, &mut block, at + whole)?;
            writer.write(whole, &block[..rest]).map_err(|reason| Stop::With(FetchError::Refused(reason)))?;
        }
        Ok(())
    }

    fn check_time(&self) -> Result<(), Stop> {
        let over = self.given_up.load(Ordering::Relaxed) || Instant::now() >= self.deadline;
        if over { Err(Stop::With(FetchError::Deadline)) } else { Ok(()) }
    }
}
