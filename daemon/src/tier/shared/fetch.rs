//! One object into the arena: pieces of it are read one ahead of the one that is written and hashed, so memory is bounded
//! by pieces and not by chunks.

use std::time::Instant;

use bytes::Buf;
use opendal::Buffer;
use tender_proto::{ChunkId, ContentDigest, PartIndex, Reason};
use tokio::time::timeout_at;

use super::known::Known;
use super::object::{Damage, Header, MAX_HEADER_BYTES, Name};
use super::stats::add;
use super::store::StoreError;
use super::{PIECE_BYTES, SharedTier, layout};
use crate::engine::{Filling, House, Unfilled};
use crate::task::blocking;
use crate::tier::{FetchError, TierNamespace};

// The first piece holds the whole header.
const _: () = assert!(MAX_HEADER_BYTES <= PIECE_BYTES);

/// Why an object did not come.
#[derive(Debug)]
enum Failed {
    Store(StoreError),
    Damage(Damage),
    Unfilled(Unfilled),
    Gone,
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl SharedTier {
    /// Brings one chunk by the deadline.
    pub(super) async fn fetch_one(
        &self,
        namespace: &TierNamespace,
        chunk: ChunkId,
        house: &House,
        deadline: Instant,
    ) -> Result<(), FetchError> {
        if namespace.descriptor.group_of(chunk).is_err() {
            return Err(FetchError::Gone);
        }
        let begun = Instant::now();
        if !self.breaker.allows(begun) {
            add(&self.stats.skipped, 1);
            return Err(FetchError::Unavailable("the shared store did not answer and is left alone".into()));
        }
        let folder = layout::folder(namespace.digest, &namespace.descriptor);
        match timeout_at(deadline.into(), self.bring(namespace, &folder, chunk, house)).await {
            Ok(Ok(bytes)) => {
                self.breaker.answered();
                add(&self.stats.fetched_chunks, 1);
                add(&self.stats.fetched_bytes, bytes);
                Ok(())
            }
            Ok(Err((name, failed))) => Err(self.not_fetched(name, &folder, failed)),
            Err(_) => {
                self.was_late(begun);
                Err(FetchError::Deadline)
            }
        }
    }

    async fn bring(
        &self,
        namespace: &TierNamespace,
        folder: &str,
        chunk: ChunkId,
        house: &House,
    ) -> Result<u64, (Option<Name>, Failed)> {
        let name_of = |generation| Name { namespace: namespace.digest, generation, chunk };
        let asking = self.ties.fresh(namespace, folder);
        // The answer is nearly always what it was, so the object is asked for at the same time.
        let (generation, guessed) = match self.ties.asked.last(namespace.digest) {
            Some(last) => {
                let name = name_of(last);
                let (generation, first) = tokio::join!(asking, self.first_piece(name, folder));
                (generation, Some((name, first)))
            }
            None => (asking.await, None),
        };
        let generation = generation.map_err(|error| (None, error.into()))?;
        let name = name_of(generation.ok_or((None, Failed::Gone))?);
        let first = match guessed {
            Some((guess, first)) if guess == name => first,
            _ => self.first_piece(name, folder).await,
        };
        let brought = async {
            let (size, first) = first?;
            self.fill(namespace, name, folder, house, size, first).await
        };
        brought.await.map_err(|failed| (Some(name), failed))
    }

    /// The size of the object and its beginning.
    async fn first_piece(&self, name: Name, folder: &str) -> Result<(u64, Buffer), Failed> {
        let path = layout::chunk(folder, name.generation, name.chunk);
        let size = match self.known.get(&name) {
            Some(Known::Bytes(bytes)) => bytes,
            Some(Known::Broken) => return Err(Failed::Gone),
            Some(Known::Absent) | None => self.store.bytes_of(&path).await?.ok_or(Failed::Gone)?,
        };
        if size == 0 {
            return Err(Failed::Damage(Damage::Truncated));
        }
        let first = self.store.read(&path, 0, size.min(PIECE_BYTES as u64)).await?;
        Ok((size, first))
    }

    async fn fill(
        &self,
        namespace: &TierNamespace,
        name: Name,
        folder: &str,
        house: &House,
        size: u64,
        mut piece: Buffer,
    ) -> Result<u64, Failed> {
        let start = piece.slice(0..piece.len().min(MAX_HEADER_BYTES)).to_bytes();
        let header = Header::decode(&start, size, name, &namespace.descriptor).map_err(Failed::Damage)?;
        let filling = house.fill(namespace, name.chunk, header.coverage).map_err(Failed::Unfilled)?;
        let path = layout::chunk(folder, name.generation, name.chunk);
        let mut at = piece.len() as u64;
        piece.advance(super::object::header_bytes(header.parts.len()));
        let mut sink = Sink { filling, parts: header.parts, part: 0, written_bytes: 0 };
        loop {
            let end = size.min(at + PIECE_BYTES as u64);
            let writing = blocking("shared fetch", move || sink.write(piece));
            let (written, next) = if at < end {
                let (written, next) = tokio::join!(writing, self.store.read(&path, at, end));
                (written, Some(next?))
            } else {
                (writing.await, None)
            };
            // A thread that panicked has given the chunk up.
            sink = written.map_err(|_| Failed::Unfilled(Unfilled::Refused(Reason::Internal)))??;
            let Some(next) = next else { break };
            (piece, at) = (next, end);
        }
        let last = blocking("shared fetch", move || sink.finish()).await;
        last.map_err(|_| Failed::Unfilled(Unfilled::Refused(Reason::Internal)))??;
        Ok(size)
    }

    /// Forgets or takes out what cannot be fetched, and says it in the words of all tiers.
    fn not_fetched(&self, name: Option<Name>, folder: &str, failed: Failed) -> FetchError {
        let damage = match failed {
            Failed::Store(StoreError::NotFound) | Failed::Gone => {
                self.breaker.answered();
                add(&self.stats.gone, 1);
                if let Some(name) = name {
                    self.known.note(name, Known::Absent);
                }
                return FetchError::Gone;
            }
            Failed::Unfilled(Unfilled::Already(_)) => {
                self.breaker.answered();
                return FetchError::NotNeeded;
            }
            Failed::Unfilled(Unfilled::Refused(reason)) => {
                self.breaker.answered();
                return FetchError::Refused(reason);
            }
            // It was longer when its size was asked for.
            Failed::Store(StoreError::Short) => Damage::Truncated,
            Failed::Damage(damage) => damage,
            Failed::Store(error) => {
                self.failed(error);
                return FetchError::Unavailable(format!("the shared store: {error}"));
            }
        };
        self.breaker.answered();
        self.stats.damaged(damage);
        if let Some(name) = name {
            self.take_out(name, folder, damage);
        }
        FetchError::Corrupt
    }

    fn take_out(&self, name: Name, folder: &str, damage: Damage) {
        let path = layout::chunk(folder, name.generation, name.chunk);
        let deleted = damage.is_ours_and_broken();
        self.known.note(name, Known::Broken);
        tracing::warn!(
            object = path,
            damage = damage.name(),
            deleted,
            "an object of the shared store is not what its name says"
        );
        if deleted {
            let store = self.store.clone();
            self.aside(async move {
                if let Err(error) = store.delete(&path).await {
                    tracing::debug!(object = path, %error, "the object is still there");
                }
            });
        }
    }
}

/// The parts of a chunk in their order.
struct Sink {
    filling: Filling,
    parts: Vec<(u64, ContentDigest)>,
    /// Which one is being written.
    part: u16,
    written_bytes: u64,
}

impl Sink {
    fn write(mut self, mut piece: Buffer) -> Result<Self, Failed> {
        while piece.has_remaining() {
            let Some(&(bytes, _)) = self.parts.get(usize::from(self.part)) else {
                return Err(Failed::Damage(Damage::Truncated));
            };
            let run = piece.chunk();
            let left = usize::try_from(bytes - self.written_bytes).unwrap_or(usize::MAX);
            let run = &run[..run.len().min(left)];
            let writer = self.filling.part(PartIndex(self.part));
            let writer = writer.ok_or(Failed::Unfilled(Unfilled::Refused(Reason::Internal)))?;
            let refused = |reason| Failed::Unfilled(Unfilled::Refused(reason));
            writer.write(self.written_bytes, run).map_err(refused)?;
            self.written_bytes += run.len() as u64;
            let taken = run.len();
            piece.advance(taken);
            if self.written_bytes == bytes {
                (self.part, self.written_bytes) = (self.part + 1, 0);
            }
        }
        Ok(self)
    }

    fn finish(self) -> Result<(), Failed> {
        let digests: Vec<_> = self.parts.iter().map(|&(_, digest)| digest).collect();
        self.filling.finish_all(&digests).map_err(|reason| match reason {
            Reason::BadDigest => Failed::Damage(Damage::Digest),
            other => Failed::Unfilled(Unfilled::Refused(other)),
        })
    }
}
