//! What lies in the folder, byte for byte (docs/disk-tier.md draws it). All numbers are little endian. Whatever is
//! decoded may be anything: each block has a checksum, and says where it belongs.

use tender_proto::limits::MAX_PARTS;
use tender_proto::{
    ChainHash, ChunkId, ChunkKey, ContentDigest, Coverage, Descriptor, GroupIndex, NamespaceDigest, PartIndex,
};

use super::io::{Aligned, BLOCK_BYTES, padded};

/// Of the superblock and all that follows from it.
pub(super) const FORMAT: u32 = 1;

const SUPERBLOCK_MAGIC: [u8; 8] = *b"TENDERD1";
const SEGMENT_MAGIC: [u8; 8] = *b"TENDERS1";
const RECORD_MAGIC: [u8; 8] = *b"TENDERR1";

const SUM_BYTES: usize = 16;
/// Of a record's header, before its parts.
const RECORD_FIXED_BYTES: usize = 128;
/// Length and digest of one part.
const RECORD_PART_BYTES: usize = 40;
/// The longest header.
const MAX_HEADER_BYTES: usize = RECORD_FIXED_BYTES + MAX_PARTS * RECORD_PART_BYTES + SUM_BYTES;

/// Where a segment's first record begins.
pub(super) const FIRST_RECORD_AT: u64 = BLOCK_BYTES;

/// Why bytes are not what was expected there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bad {
    /// Nothing of ours, or left over from before.
    Nothing,
    /// Ours, of another format.
    Foreign(u32),
    /// Half written, or changed since.
    Damaged,
}

/// Says what the folder is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Superblock {
    /// Names this folder; drawn when it was made.
    pub(super) folder: [u8; 16],
    pub(super) segment_bytes: u64,
}

/// The first block of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentHeader {
    pub(super) folder: [u8; 16],
    pub(super) slot: u32,
    /// Counts the fillings of all segments, from 1.
    pub(super) fill: u64,
}

/// Before a chunk's bytes. The record's sequence number is its fill and, within that, its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RecordHeader {
    pub(super) fill: u64,
    /// Where it lies in the segment.
    pub(super) at: u64,
    pub(super) generation: u64,
    pub(super) key: ChunkKey,
    pub(super) coverage_bits: u64,
    pub(super) parts: Vec<PartEntry>,
}

/// One part of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PartEntry {
    pub(super) bytes: u64,
    pub(super) digest: ContentDigest,
}

/// Reads numbers at places; beyond the end they are 0, which no checksum survives.
struct Raw<'a>(&'a [u8]);

impl Raw<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..at + N).and_then(|slice| slice.try_into().ok()).unwrap_or([0; N])
    }
    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }
    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }
    /// Magic, format, and the checksum that follows `len` bytes.
    fn check(&self, magic: [u8; 8], len: usize) -> Result<(), Bad> {
        self.begins(magic)?;
        let body = self.0.get(..len).ok_or(Bad::Damaged)?;
        if self.array::<SUM_BYTES>(len) == sum(body) { Ok(()) } else { Err(Bad::Damaged) }
    }
    fn begins(&self, magic: [u8; 8]) -> Result<(), Bad> {
        match self.u32(8) {
            _ if self.array(0) != magic => Err(Bad::Nothing),
            FORMAT => Ok(()),
            format => Err(Bad::Foreign(format)),
        }
    }
}

fn sum(body: &[u8]) -> [u8; SUM_BYTES] {
    let mut sum = [0; SUM_BYTES];
    sum.copy_from_slice(&blake3::hash(body).as_bytes()[..SUM_BYTES]);
    sum
}

/// Puts pieces one after the other, and the checksum behind them.
fn sealed(magic: [u8; 8], pieces: &[&[u8]]) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend(FORMAT.to_le_bytes());
    pieces.iter().for_each(|piece| out.extend(*piece));
    let sum = sum(&out);
    out.extend(sum);
    out
}

fn in_blocks(bytes: &[u8]) -> Aligned {
    let mut blocks = Aligned::of(bytes.len());
    blocks[..bytes.len()].copy_from_slice(bytes);
    blocks
}

impl Superblock {
    pub(super) fn encode(&self) -> Vec<u8> {
        sealed(SUPERBLOCK_MAGIC, &[&[0; 4], &self.folder, &self.segment_bytes.to_le_bytes()])
    }
    pub(super) fn decode(raw: &[u8]) -> Result<Self, Bad> {
        let raw = Raw(raw);
        raw.check(SUPERBLOCK_MAGIC, 40)?;
        Ok(Self { folder: raw.array(16), segment_bytes: raw.u64(32) })
    }
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> Aligned {
        let pieces: [&[u8]; 3] = [&self.slot.to_le_bytes(), &self.folder, &self.fill.to_le_bytes()];
        in_blocks(&sealed(SEGMENT_MAGIC, &pieces))
    }
    pub(super) fn decode(raw: &[u8]) -> Result<Self, Bad> {
        let raw = Raw(raw);
        raw.check(SEGMENT_MAGIC, 40)?;
        Ok(Self { slot: raw.u32(12), folder: raw.array(16), fill: raw.u64(32) })
    }
}

fn header_len(parts: usize) -> usize {
    RECORD_FIXED_BYTES + parts * RECORD_PART_BYTES
}

/// Bytes that a record with these parts takes, or `None` beyond all numbers.
pub(super) fn record_bytes(parts: impl ExactSizeIterator<Item = u64>) -> Option<u64> {
    let header = padded((header_len(parts.len()) + SUM_BYTES) as u64);
    parts
        .map(|bytes| bytes.checked_next_multiple_of(BLOCK_BYTES))
        .try_fold(header, |all, part| all.checked_add(part?))
}

impl RecordHeader {
    pub(super) fn encode(&self) -> Aligned {
        let parts = u16::try_from(self.parts.len()).unwrap_or(u16::MAX);
        let mut pieces = Vec::new();
        pieces.extend(parts.to_le_bytes());
        pieces.extend(self.key.chunk.group.0.to_le_bytes());
        for number in [self.fill, self.at, self.generation, self.coverage_bits, self.total_bytes(), 0] {
            pieces.extend(number.to_le_bytes());
        }
        pieces.extend(self.key.namespace.as_bytes());
        pieces.extend(self.key.chunk.hash.as_bytes());
        for part in &self.parts {
            pieces.extend(part.bytes.to_le_bytes());
            pieces.extend(part.digest.as_bytes());
        }
        in_blocks(&sealed(RECORD_MAGIC, &[&pieces]))
    }

    /// Bytes of the blocks that the header takes, as its first block says.
    pub(super) fn blocks(first: &[u8]) -> Result<usize, Bad> {
        let raw = Raw(first);
        raw.begins(RECORD_MAGIC)?;
        let bytes = header_len(usize::from(raw.u16(12))) + SUM_BYTES;
        if bytes > MAX_HEADER_BYTES { Err(Bad::Damaged) } else { Ok(bytes.next_multiple_of(4096)) }
    }

    /// Of all its blocks.
    pub(super) fn decode(raw: &[u8]) -> Result<Self, Bad> {
        Self::blocks(raw)?;
        let raw = Raw(raw);
        let count = usize::from(raw.u16(12));
        raw.check(RECORD_MAGIC, header_len(count))?;
        let part = |index: usize| PartEntry {
            bytes: raw.u64(header_len(index)),
            digest: ContentDigest::from_bytes(raw.array(header_len(index) + 8)),
        };
        let chunk = ChunkId { group: GroupIndex(raw.u16(14)), hash: ChainHash::from_bytes(raw.array(96)) };
        let header = Self {
            fill: raw.u64(16),
            at: raw.u64(24),
            generation: raw.u64(32),
            key: ChunkKey { namespace: NamespaceDigest::from_bytes(raw.array(64)), chunk },
            coverage_bits: raw.u64(40),
            parts: (0..count).map(part).collect(),
        };
        let bytes = record_bytes(header.parts.iter().map(|part| part.bytes));
        if count == 0 || bytes != Some(raw.u64(48)) { Err(Bad::Damaged) } else { Ok(header) }
    }

    /// Header and parts, in whole blocks.
    pub(super) fn total_bytes(&self) -> u64 {
        record_bytes(self.parts.iter().map(|part| part.bytes)).unwrap_or(u64::MAX)
    }
    /// Where each part begins in the segment.
    pub(super) fn part_offsets(&self) -> impl Iterator<Item = u64> {
        let first = self.at + padded((header_len(self.parts.len()) + SUM_BYTES) as u64);
        self.parts.iter().scan(first, |at, part| {
            let here = *at;
            *at += padded(part.bytes);
            Some(here)
        })
    }
    /// Its coverage, if the namespace has such chunks with parts of these sizes.
    pub(super) fn coverage(&self, descriptor: &Descriptor) -> Option<Coverage> {
        let group = descriptor.group_of(self.key.chunk).ok()?;
        let coverage = Coverage::new(self.coverage_bits, group.blocks_per_chunk).ok()?;
        let same = |(index, part): (u16, &PartEntry)| {
            group.part_bytes(PartIndex(index), coverage).is_ok_and(|bytes| bytes == part.bytes)
        };
        let fits = !coverage.is_empty() && group.parts() == self.parts.len();
        (fits && (0..).zip(&self.parts).all(same)).then_some(coverage)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = RecordHeader> {
        let part = (1u64..1 << 32, any::<[u8; 32]>());
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u16>());
        (numbers, any::<[u8; 32]>(), any::<[u8; 32]>(), prop::collection::vec(part, 1..300)).prop_map(
            |((fill, at, generation, coverage_bits, group), namespace, hash, parts)| RecordHeader {
                fill,
                at: at >> 20 << 12,
                generation,
                key: ChunkKey {
                    namespace: NamespaceDigest::from_bytes(namespace),
                    chunk: ChunkId { group: GroupIndex(group), hash: ChainHash::from_bytes(hash) },
                },
                coverage_bits,
                parts: parts
                    .into_iter()
                    .map(|(bytes, digest)| PartEntry { bytes, digest: ContentDigest::from_bytes(digest) })
                    .collect(),
            },
        )
    }

    proptest! {
        #[test]
        fn a_record_header_comes_back_as_it_was(header in header()) {
            let raw = header.encode();
            prop_assert_eq!(raw.len() % 4096, 0);
            prop_assert_eq!(RecordHeader::blocks(&raw[..4096]), Ok(raw.len()));
            prop_assert_eq!(RecordHeader::decode(&raw), Ok(header.clone()));
            let last = header.part_offsets().zip(&header.parts).last().map(|(at, part)| at + padded(part.bytes));
            prop_assert_eq!(last, Some(header.at + header.total_bytes()));
        }

        /// One wrong bit anywhere before the padding, or a cut, is noticed.
        #[test]
        fn a_changed_or_cut_header_is_not_believed(
            header in header(), bit in any::<prop::sample::Index>(), cut in any::<prop::sample::Index>(),
        ) {
            let mut raw = header.encode().to_vec();
            let used = header_len(header.parts.len()) + SUM_BYTES;
            prop_assert!(RecordHeader::decode(&raw[..cut.index(used)]).is_err());
            let bit = bit.index(used * 8);
            raw[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(RecordHeader::decode(&raw).is_err());
        }

        /// Whatever lies there: an answer, no panic, and nothing that is not checked.
        #[test]
        fn any_bytes_decode_to_an_answer(
            mut raw in prop::collection::vec(any::<u8>(), 0..9000), magic in 0usize..4, format in any::<bool>(),
        ) {
            let begin = [RECORD_MAGIC, SEGMENT_MAGIC, SUPERBLOCK_MAGIC];
            if let (Some(magic), true) = (begin.get(magic), raw.len() > 12) {
                raw[..8].copy_from_slice(magic);
                if format {
                    raw[8..12].copy_from_slice(&FORMAT.to_le_bytes());
                }
            }
            prop_assert!(Superblock::decode(&raw).is_err());
            prop_assert!(SegmentHeader::decode(&raw).is_err());
            prop_assert!(RecordHeader::decode(&raw).is_err());
            _ = RecordHeader::blocks(&raw);
        }
    }

    #[test]
    fn a_sealed_header_of_impossible_parts_is_not_believed() {
        // A checksum that fits does not make lengths true.
        let part = |bytes| PartEntry { bytes, digest: ContentDigest::of(b"") };
        let key = ChunkKey {
            namespace: NamespaceDigest::from_bytes([1; 32]),
            chunk: ChunkId { group: GroupIndex(0), hash: ChainHash::from_bytes([2; 32]) },
        };
        let header = RecordHeader { fill: 1, at: 4096, generation: 1, key, coverage_bits: 1, parts: vec![] };
        assert_eq!(RecordHeader::decode(&header.encode()), Err(Bad::Damaged));
        let huge = RecordHeader { parts: vec![part(u64::MAX), part(u64::MAX)], ..header };
        assert_eq!(RecordHeader::decode(&huge.encode()), Err(Bad::Damaged));
    }

    #[test]
    fn folder_and_segment_say_what_they_are() {
        let superblock = Superblock { folder: [3; 16], segment_bytes: 1 << 28 };
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
        let segment = SegmentHeader { folder: [3; 16], slot: 7, fill: 99 };
        assert_eq!(SegmentHeader::decode(&segment.encode()), Ok(segment));
        let mut newer = superblock.encode();
        newer[8] = 2;
        assert_eq!(Superblock::decode(&newer), Err(Bad::Foreign(2)));
        assert_eq!(Superblock::decode(&segment.encode()), Err(Bad::Nothing));
    }
}
