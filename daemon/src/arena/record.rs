//! What the arena says about one part or one namespace, in 128 bytes that carry their own checksum.
//!
//! A record is there when its checksum is right, and gone when it is not: a kill while one is written, or between the
//! words that clear it, leaves what nobody takes for a record.

use tender_proto::{ChainHash, ChunkId, ContentDigest, GroupIndex, NamespaceDigest, PartIndex};

/// Bytes of one record.
pub(crate) const RECORD_BYTES: usize = 128;
/// Bytes of its checksum, which come first.
pub(super) const CHECKSUM_BYTES: usize = 8;

const KIND_PART: u8 = 1;
const KIND_NAMESPACE: u8 = 2;

/// Which version of a chunk a part belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct VersionId {
    /// Start of the daemon, counted by the arena.
    pub(crate) boot: u32,
    /// The reservation that began it.
    pub(crate) first: u64,
}

/// A verified part of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartRecord {
    /// Slot of its namespace's record.
    pub(crate) namespace_slot: u32,
    /// The namespace's epoch in which the chunk was reserved.
    pub(crate) epoch: u32,
    pub(crate) version: VersionId,
    /// Counts what one daemon writes down: later parts have larger numbers.
    pub(crate) sequence: u32,
    pub(crate) chunk: ChunkId,
    pub(crate) part: PartIndex,
    pub(crate) coverage_bits: u64,
    pub(crate) digest: ContentDigest,
    /// Where its bytes are in the pool.
    pub(crate) offset_bytes: u64,
    pub(crate) bytes: u64,
}

/// A namespace, whose descriptor's bytes lie in the area for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NamespaceRecord {
    pub(crate) digest: NamespaceDigest,
    pub(crate) epoch: u32,
    /// Where the descriptor is in its area.
    pub(crate) offset_bytes: u64,
    pub(crate) bytes: u64,
}

/// Either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Record {
    Part(PartRecord),
    Namespace(NamespaceRecord),
}

impl Record {
    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut out = Fields { raw: [0; RECORD_BYTES], at: CHECKSUM_BYTES };
        match self {
            Self::Part(part) => {
                out.put([KIND_PART, 0]);
                out.put(part.chunk.group.0.to_le_bytes());
                out.put(part.part.0.to_le_bytes());
                out.put([0; 2]);
                out.put(part.namespace_slot.to_le_bytes());
                out.put(part.epoch.to_le_bytes());
                out.put(part.version.boot.to_le_bytes());
                out.put(part.sequence.to_le_bytes());
                out.put(part.version.first.to_le_bytes());
                out.put(part.coverage_bits.to_le_bytes());
                out.put(*part.chunk.hash.as_bytes());
                out.put(*part.digest.as_bytes());
                out.put(part.offset_bytes.to_le_bytes());
                out.put(part.bytes.to_le_bytes());
            }
            Self::Namespace(namespace) => {
                out.put([KIND_NAMESPACE, 0, 0, 0]);
                out.put(namespace.epoch.to_le_bytes());
                out.put(*namespace.digest.as_bytes());
                out.put(namespace.offset_bytes.to_le_bytes());
                out.put(namespace.bytes.to_le_bytes());
            }
        }
        let sum = checksum(&out.raw);
        out.raw[..CHECKSUM_BYTES].copy_from_slice(&sum);
        out.raw
    }

    /// `None` for what is no record: never written, half written, cleared or damaged.
    pub(crate) fn decode(raw: &[u8; RECORD_BYTES]) -> Option<Self> {
        if raw[..CHECKSUM_BYTES] != checksum(raw) {
            return None;
        }
        let mut from = Fields { raw: *raw, at: CHECKSUM_BYTES };
        match from.take() {
            [KIND_PART, _] => {
                let group = GroupIndex(u16::from_le_bytes(from.take()));
                let part = PartIndex(u16::from_le_bytes(from.take()));
                let [_, _] = from.take();
                let (namespace_slot, epoch) = (from.word(), from.word());
                let (boot, sequence) = (from.word(), from.word());
                Some(Self::Part(PartRecord {
                    namespace_slot,
                    epoch,
                    version: VersionId { boot, first: from.long() },
                    sequence,
                    coverage_bits: from.long(),
                    chunk: ChunkId { group, hash: ChainHash::from_bytes(from.take()) },
                    part,
                    digest: ContentDigest::from_bytes(from.take()),
                    offset_bytes: from.long(),
                    bytes: from.long(),
                }))
            }
            [KIND_NAMESPACE, _] => {
                let [_, _] = from.take();
                Some(Self::Namespace(NamespaceRecord {
                    epoch: from.word(),
                    digest: NamespaceDigest::from_bytes(from.take()),
                    offset_bytes: from.long(),
                    bytes: from.long(),
                }))
            }
            _ => None,
        }
    }
}

/// Never all zero, so that a cleared record has none.
pub(super) fn checksum(raw: &[u8; RECORD_BYTES]) -> [u8; CHECKSUM_BYTES] {
    let mut sum = [0; CHECKSUM_BYTES];
    sum.copy_from_slice(&blake3::hash(&raw[CHECKSUM_BYTES..]).as_bytes()[..CHECKSUM_BYTES]);
    sum[0] |= 1;
    sum
}

struct Fields {
    raw: [u8; RECORD_BYTES],
    at: usize,
}

impl Fields {
    fn put<const N: usize>(&mut self, field: [u8; N]) {
        self.raw[self.at..self.at + N].copy_from_slice(&field);
        self.at += N;
    }
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.raw[self.at..self.at + N]);
        self.at += N;
        field
    }
    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
    fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Record {
        Record::Part(PartRecord {
            namespace_slot: 1,
            epoch: 2,
            version: VersionId { boot: 3, first: 4 },
            sequence: 12,
            chunk: ChunkId { group: GroupIndex(5), hash: ChainHash::from_bytes([6; 32]) },
            part: PartIndex(7),
            coverage_bits: u64::MAX - 8,
            digest: ContentDigest::of(b"9"),
            offset_bytes: 10 << 40,
            bytes: 11,
        })
    }

    fn namespace() -> Record {
        Record::Namespace(NamespaceRecord {
            digest: NamespaceDigest::from_bytes([1; 32]),
            epoch: 2,
            offset_bytes: 4096,
            bytes: 300,
        })
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        for record in [part(), namespace()] {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for record in [part(), namespace()] {
            for bit in 0..RECORD_BYTES * 8 {
                let mut raw = record.encode();
                raw[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Record::decode(&raw), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn what_was_never_written_or_half_written_is_no_record() {
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), None);
        let whole = part().encode();
        for written in 0..RECORD_BYTES {
            // Cut short from either end, over nothing and over an older record.
            for mut old in [[0; RECORD_BYTES], namespace().encode()] {
                let mut other = old;
                old[..written].copy_from_slice(&whole[..written]);
                other[RECORD_BYTES - written..].copy_from_slice(&whole[RECORD_BYTES - written..]);
                for raw in [old, other] {
                    // The last bytes may be equal by chance: then it is whole.
                    let known = |record| record == namespace() || record == part();
                    assert!(Record::decode(&raw).is_none_or(known), "{written}");
                }
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn garbage_is_no_record(raw: [u8; RECORD_BYTES]) {
            proptest::prop_assert_eq!(Record::decode(&raw), None);
        }
    }
}
