//! One object: a header that says which chunk it is, of what sizes and digests, and its parts behind it.
//!
//! ```text
//! magic 8 | version 4 | header bytes 4 | namespace 32 | generation 16 | group 2 | parts 2 | blocks 4 | coverage 8 |
//! chain hash 32 | { bytes 8 | digest 32 } for each part | BLAKE3 of all that 32 | part 0 | part 1 | ...
//! ```
//!
//! Numbers are little-endian. An object is believed only as far as its header's checksum and its parts' digests go.

use tender_proto::{
    BlocksPerChunk, ChunkId, ContentDigest, Coverage, Descriptor, NamespaceDigest, PartIndex,
    limits::MAX_PARTS,
};

use super::generation::Generation;
use super::layout::FORMAT_VERSION;

const MAGIC: &[u8; 8] = b"TENDERKV";
const FIXED_BYTES: usize = 112;
const PART_BYTES: usize = 40;
const CHECKSUM_BYTES: usize = 32;

/// The longest header; less than the first piece that is read.
pub(super) const MAX_HEADER_BYTES: usize = FIXED_BYTES + MAX_PARTS * PART_BYTES + CHECKSUM_BYTES;

/// Why an object is not the chunk that its name says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Damage {
    /// Somebody else's: another magic.
    Foreign,
    /// Of another format version.
    Version,
    /// Shorter than it says, or longer.
    Truncated,
    /// The header is not what was written.
    Header,
    /// A whole object, of another chunk.
    Renamed,
    /// Sizes that the namespace does not have.
    Shape,
    /// A part is not what was written.
    Digest,
}

impl Damage {
    /// All of them; a damage's place is its number.
    pub(crate) const ALL: [Self; 7] = [
        Self::Foreign,
        Self::Version,
        Self::Truncated,
        Self::Header,
        Self::Renamed,
        Self::Shape,
        Self::Digest,
    ];

    /// In logs and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Foreign => "foreign",
            Self::Version => "version",
            Self::Truncated => "truncated",
            Self::Header => "header",
            Self::Renamed => "renamed",
            Self::Shape => "shape",
            Self::Digest => "digest",
        }
    }

    /// Whether it is an object of this format that can never be read: then it is deleted. What somebody else or another
    /// version may have written stays.
    pub(super) fn is_ours_and_broken(self) -> bool {
        !matches!(self, Self::Foreign | Self::Version)
    }
}

/// Which chunk an object is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Name {
    pub(super) namespace: NamespaceDigest,
    pub(super) generation: Generation,
    pub(super) chunk: ChunkId,
}

/// What stands before the parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) name: Name,
    pub(super) coverage: Coverage,
    /// Part p at index p: its bytes and digest.
    pub(super) parts: Vec<(u64, ContentDigest)>,
}

/// Bytes of a header with so many parts.
pub(super) fn header_bytes(parts: usize) -> usize {
    FIXED_BYTES + parts * PART_BYTES + CHECKSUM_BYTES
}

impl Header {
    /// Bytes of the whole object.
    pub(super) fn object_bytes(&self) -> u64 {
        self.parts.iter().map(|(bytes, _)| bytes).sum::<u64>() + header_bytes(self.parts.len()) as u64
    }

    /// As it stands in the object. `None` for more parts than there can be.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let total = header_bytes(self.parts.len());
        let parts = u16::try_from(self.parts.len()).ok().filter(|&parts| usize::from(parts) <= MAX_PARTS)?;
        let mut out = Vec::with_capacity(total);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&u32::try_from(total).ok()?.to_le_bytes());
        out.extend_from_slice(self.name.namespace.as_bytes());
        out.extend_from_slice(self.name.generation.as_bytes());
        out.extend_from_slice(&self.name.chunk.group.0.to_le_bytes());
        out.extend_from_slice(&parts.to_le_bytes());
        out.extend_from_slice(&self.coverage.blocks().get().to_le_bytes());
        out.extend_from_slice(&self.coverage.bits().to_le_bytes());
        out.extend_from_slice(self.name.chunk.hash.as_bytes());
        for (bytes, digest) in &self.parts {
            out.extend_from_slice(&bytes.to_le_bytes());
            out.extend_from_slice(digest.as_bytes());
        }
        let checksum = blake3::hash(&out);
        out.extend_from_slice(checksum.as_bytes());
        Some(out)
    }

    /// Reads the beginning of an object of `object_bytes`: all of it, or at least [`MAX_HEADER_BYTES`].
    pub(super) fn decode(
        start: &[u8],
        object_bytes: u64,
        name: Name,
        descriptor: &Descriptor,
    ) -> Result<Self, Damage> {
        let mut read = Fields(start);
        if read.take(MAGIC.len()).ok_or(Damage::Truncated)? != MAGIC {
            return Err(Damage::Foreign);
        }
        if read.u32().ok_or(Damage::Truncated)? != FORMAT_VERSION {
            return Err(Damage::Version);
        }
        let length = read.u32().ok_or(Damage::Truncated)? as usize;
        if !(header_bytes(0)..=MAX_HEADER_BYTES).contains(&length) {
            return Err(Damage::Header);
        }
        let (fields, checksum) =
            start.get(..length).ok_or(Damage::Truncated)?.split_at(length - CHECKSUM_BYTES);
        if blake3::hash(fields).as_bytes() != checksum {
            return Err(Damage::Header);
        }
        let read = Fields(fields.get(MAGIC.len() + 8..).ok_or(Damage::Header)?);
        Self::fields(read, name, descriptor)?.whole(object_bytes)
    }

    /// What the checksum vouches for, held against what is asked for.
    fn fields(mut read: Fields<'_>, name: Name, descriptor: &Descriptor) -> Result<Self, Damage> {
        let namespace = read.take(32).ok_or(Damage::Header)?;
        let generation = read.take(16).ok_or(Damage::Header)?;
        let group = read.u16().ok_or(Damage::Header)?;
        let parts = usize::from(read.u16().ok_or(Damage::Header)?);
        let blocks = read.u32().ok_or(Damage::Header)?;
        let bits = read.u64().ok_or(Damage::Header)?;
        let hash = read.take(32).ok_or(Damage::Header)?;
        if namespace != name.namespace.as_bytes()
            || generation != name.generation.as_bytes()
            || group != name.chunk.group.0
            || hash != name.chunk.hash.as_bytes()
        {
            return Err(Damage::Renamed);
        }
        let group = descriptor.group_of(name.chunk).map_err(|_| Damage::Shape)?;
        let blocks = BlocksPerChunk::new(blocks).map_err(|_| Damage::Shape)?;
        let coverage = Coverage::new(bits, blocks).map_err(|_| Damage::Shape)?;
        if blocks != group.blocks_per_chunk || parts != group.parts() {
            return Err(Damage::Shape);
        }
        let mut header = Self { name, coverage, parts: Vec::with_capacity(parts) };
        for part in (0..).map(PartIndex).take(parts) {
            let bytes = read.u64().ok_or(Damage::Header)?;
            let digest = read.take(32).ok_or(Damage::Header)?;
            if group.part_bytes(part, coverage) != Ok(bytes) {
                return Err(Damage::Shape);
            }
            header.parts.push((bytes, ContentDigest::parse(digest).map_err(|_| Damage::Header)?));
        }
        if read.0.is_empty() { Ok(header) } else { Err(Damage::Header) }
    }

    fn whole(self, object_bytes: u64) -> Result<Self, Damage> {
        if self.object_bytes() == object_bytes { Ok(self) } else { Err(Damage::Truncated) }
    }
}

/// Bytes that are read from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
