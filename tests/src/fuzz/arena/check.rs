//! What must be true of an engine whatever its file was.

use std::collections::BTreeSet;

use tender_daemon::engine::{Audit, ChunkAnswer, Engine, LeaseAsk};
use tender_proto::{
    ChainHash, ChunkId, ContentDigest, Coverage, Descriptor, GroupIndex, NamespaceDigest, PartIndex,
    SessionId,
};

use super::edit::Edited;
use super::image::{Image, Stored, open_session, store_part};
use crate::fuzz::small::{self, BLOCK_BYTES, content, descriptor};

pub(super) struct Check<'a> {
    pub(super) engine: &'a Engine,
    pub(super) image: &'a Image,
    pub(super) edited: &'a Edited,
}

/// A READY chunk, its parts read: digests as they are claimed and as they are.
struct Read {
    namespace: NamespaceDigest,
    chunk: ChunkId,
    coverage: Coverage,
    parts: Vec<(ContentDigest, Vec<u8>)>,
}

impl Check<'_> {
    pub(super) fn audit(&self) -> Audit {
        self.engine.audit().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Right after the start.
    pub(super) fn all(&self) {
        let restored = self.engine.restored();
        let audit = self.audit();
        assert_eq!((restored.chunks, audit.pending_chunks), (audit.ready_chunks, 0), "{restored:?}");
        let read = self.read();
        let changed = self.edited.forged || self.edited.flipped;
        for read in read {
            let stored = self.stored(&read);
            assert!(
                self.edited.forged || stored.is_some(),
                "{} was never stored with {:?}",
                read.chunk,
                read.coverage
            );
            for (part, (digest, bytes)) in (0..).map(PartIndex).zip(&read.parts) {
                assert!(
                    changed || ContentDigest::of(bytes) == *digest,
                    "a part with another digest was served"
                );
                let right = || content(read.chunk, part, read.coverage.bits(), bytes.len() as u64);
                assert!(changed || *bytes == right(), "bytes were served that are another part's");
            }
        }
        self.audit();
    }

    /// Memory was verified: now every part has its digest.
    pub(super) fn after_scrub(&self) {
        for read in self.read() {
            for (digest, bytes) in &read.parts {
                assert_eq!(ContentDigest::of(bytes), *digest, "a part with another digest was served");
            }
        }
        self.audit();
    }

    /// Stores chunks; what was taken is served.
    pub(super) fn store_new(&self, count: u8) {
        let Some(session) = self.session() else { return };
        for n in 0..count {
            let chunk = small::chunk(0, n);
            if store_part(self.engine, session, 2, chunk, 0, 0b1111) {
                let digest = content(chunk, PartIndex(0), 0b1111, 4 * BLOCK_BYTES);
                let found = self.chunk(session, &descriptor(2), chunk);
                assert!(found.is_some_and(|found| found.parts[0].1 == digest));
            }
        }
        self.engine.close_session(session);
        self.audit();
    }

    /// What is READY, by name.
    pub(super) fn ready(&self) -> BTreeSet<(NamespaceDigest, ChunkId, u64)> {
        self.read().into_iter().map(|read| (read.namespace, read.chunk, read.coverage.bits())).collect()
    }

    fn stored(&self, read: &Read) -> Option<&Stored> {
        self.image.ready.iter().find(|stored| {
            descriptor(stored.model).digest() == read.namespace
                && stored.chunk == read.chunk
                && stored.coverage == read.coverage.bits()
        })
    }

    /// A session that has registered what the arena knows.
    fn session(&self) -> Option<SessionId> {
        let known = self.engine.stats().namespaces;
        // With a full table the models may not fit beside what was forged.
        let full = known.len() + usize::from(small::MODELS) > self.engine.config().max_namespaces;
        let session =
            if full { self.engine.open_session("fuzz", 1).ok()? } else { open_session(self.engine) };
        for namespace in known {
            let registered = self.engine.register(session, namespace.descriptor, namespace.digest, None);
            assert_eq!(registered.ok(), Some(namespace.digest));
        }
        Some(session)
    }

    /// Every chunk that could be there: those of the image, and those that records name now.
    fn read(&self) -> Vec<Read> {
        let Some(session) = self.session() else { return Vec::new() };
        let named = self.edited.slots().filter_map(named);
        let new = (0..small::KEYS).map(|n| small::chunk(0, n));
        let chunks: BTreeSet<ChunkId> =
            self.image.ready.iter().map(|stored| stored.chunk).chain(named).chain(new).collect();
        let mut found = Vec::new();
        let mut ranges = BTreeSet::new();
        for namespace in self.engine.stats().namespaces {
            for &chunk in &chunks {
                self.places(session, &namespace.descriptor, chunk, &mut ranges);
                found.extend(self.chunk(session, &namespace.descriptor, chunk));
            }
        }
        self.engine.close_session(session);
        let ranges: Vec<(u64, u64)> = ranges.into_iter().collect();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two parts share bytes: {ranges:?}");
        found
    }

    /// Where a chunk's parts lie: inside the file, behind what describes it.
    fn places(
        &self,
        session: SessionId,
        descriptor: &Descriptor,
        chunk: ChunkId,
        ranges: &mut BTreeSet<(u64, u64)>,
    ) {
        let ask = LeaseAsk::Lease { ttl: None, locate: true };
        let Ok(answer) = self.engine.lookup(session, descriptor.digest(), &[chunk], ask) else { return };
        if let [ChunkAnswer::Ready { coverage, parts }] = &answer.chunks[..] {
            let group = descriptor.group_of(chunk);
            assert!(group.is_ok_and(|group| group.parts() == parts.len()));
            for (part, place) in (0..).map(PartIndex).zip(parts) {
                let right = descriptor.group_of(chunk).and_then(|group| group.part_bytes(part, *coverage));
                assert_eq!(right, Ok(place.bytes));
                let end = place.offset_bytes + place.bytes;
                assert!(
                    place.offset_bytes >= self.edited.places.pool as u64
                        && end <= self.engine.arena_file_bytes()
                );
                assert!(ranges.insert((place.offset_bytes, end)), "two parts lie at one place");
            }
        }
        if let Some(lease) = answer.lease {
            assert!(self.engine.release(session, &[lease.id.get()]).is_ok());
        }
    }

    fn chunk(&self, session: SessionId, descriptor: &Descriptor, chunk: ChunkId) -> Option<Read> {
        let ask = LeaseAsk::Lease { ttl: None, locate: false };
        let answer = self.engine.lookup(session, descriptor.digest(), &[chunk], ask).ok()?;
        let [ChunkAnswer::Ready { coverage, .. }] = answer.chunks[..] else { return None };
        let lease = answer.lease?.id.get();
        let count = descriptor.group_of(chunk).map_or(0, tender_proto::Group::parts);
        let read = |part| {
            let reader = self.engine.read(session, lease, 0, PartIndex(part));
            let reader =
                reader.unwrap_or_else(|reason| panic!("a leased part that cannot be read: {reason}"));
            assert_eq!(reader.coverage(), coverage);
            (reader.digest(), reader.as_ref().to_vec())
        };
        let parts = (0..count).filter_map(|part| u16::try_from(part).ok()).map(read).collect();
        assert!(self.engine.release(session, &[lease]).is_ok());
        Some(Read { namespace: descriptor.digest(), chunk, coverage, parts })
    }
}

/// The chunk that a record names, if it is one of a part.
fn named(record: &[u8]) -> Option<ChunkId> {
    let hash: [u8; 32] = record.get(48..80)?.try_into().ok()?;
    let group = u16::from_le_bytes([record[10], record[11]]);
    Some(ChunkId { group: GroupIndex(group), hash: ChainHash::from_bytes(hash) })
}
