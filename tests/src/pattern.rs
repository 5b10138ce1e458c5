//! Content that names where it belongs: every 32-byte cell of a part says which namespace, chunk, part, block
//! and offset it is, so that a misplaced byte names its origin.

use std::fmt::Write;

use tender_proto::{ChunkId, Coverage, Descriptor, NamespaceDigest, PartIndex};

/// Bytes of one cell: mark 2, writer 2, namespace 6, chunk 6, part 2, block 2, offset 8, end mark 4.
const CELL: usize = 32;
const MARK: [u8; 2] = *b"TK";
const END: [u8; 4] = *b"<<>>";

/// Where content belongs. Another `writer` makes other bytes for the same place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Whose namespace.
    pub namespace: NamespaceDigest,
    /// Which chunk of it.
    pub chunk: ChunkId,
    /// Which rank's bytes.
    pub part: PartIndex,
    /// Who wrote it.
    pub writer: u16,
}

impl Place {
    /// Written by writer 0.
    pub fn new(namespace: NamespaceDigest, chunk: ChunkId, part: PartIndex) -> Self {
        Self { namespace, chunk, part, writer: 0 }
    }
    /// The same place, written by somebody else.
    #[must_use]
    pub fn by(self, writer: u16) -> Self {
        Self { writer, ..self }
    }

    /// The bytes of block `block`.
    pub fn block(&self, block: u32, bytes: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes + CELL);
        while out.len() < bytes {
            let at = out.len() as u64;
            out.extend_from_slice(&self.cell(block, at));
        }
        out.truncate(bytes);
        out
    }

    /// The bytes of the whole part: its covered blocks in order.
    pub fn part(&self, coverage: Coverage, block_bytes: u64) -> Vec<u8> {
        let bytes = usize::try_from(block_bytes).expect("a block fits memory");
        coverage.iter().flat_map(|block| self.block(block, bytes)).collect()
    }

    fn cell(&self, block: u32, offset: u64) -> [u8; CELL] {
        let mut out = [0; CELL];
        out[..2].copy_from_slice(&MARK);
        out[2..4].copy_from_slice(&self.writer.to_le_bytes());
        out[4..10].copy_from_slice(&self.namespace.as_bytes()[..6]);
        out[10..16].copy_from_slice(&self.chunk.hash.as_bytes()[..6]);
        out[16..18].copy_from_slice(&self.part.0.to_le_bytes());
        let block = u16::try_from(block).expect("at most 64 blocks");
        out[18..20].copy_from_slice(&block.to_le_bytes());
        out[20..28].copy_from_slice(&offset.to_le_bytes());
        out[28..].copy_from_slice(&END);
        out
    }
}

/// The bytes of a chunk's part as this suite writes them.
pub fn blob(descriptor: &Descriptor, chunk: ChunkId, part: PartIndex, coverage: Coverage) -> Vec<u8> {
    blob_by(descriptor, chunk, part, coverage, 0)
}

/// The same, written by somebody.
pub fn blob_by(
    descriptor: &Descriptor,
    chunk: ChunkId,
    part: PartIndex,
    coverage: Coverage,
    writer: u16,
) -> Vec<u8> {
    let group = descriptor.group_of(chunk).expect("a group of the descriptor");
    let block_bytes = group.block_bytes(part).expect("a part of the group");
    Place::new(descriptor.digest(), chunk, part).by(writer).part(coverage, block_bytes)
}

/// Panics with the first difference and what the found bytes say of themselves.
pub fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    if found == expected {
        return;
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len().min(expected.len()));
    let mut text =
        format!("{what}: {} bytes for {} expected, first difference at {at}", found.len(), expected.len());
    let cell = at / CELL * CELL;
    for (name, bytes) in [("expected", expected), ("found", found)] {
        let end = (cell + CELL).min(bytes.len());
        write!(text, "; {name} {}", describe(bytes.get(cell..end).unwrap_or_default()))
            .expect("a string grows");
    }
    panic!("{text}");
}

/// What a cell says of itself.
fn describe(cell: &[u8]) -> String {
    match cell {
        [b'T', b'K', rest @ ..] if rest.len() == CELL - 2 => {
            let word = |at: usize| u16::from_le_bytes([cell[at], cell[at + 1]]);
            let offset = u64::from_le_bytes(cell[20..28].try_into().expect("eight bytes"));
            format!(
                "writer {} namespace {:02x?} chunk {:02x?} part {} block {} offset {offset}",
                word(2),
                &cell[4..10],
                &cell[10..16],
                word(16),
                word(18)
            )
        }
        other => format!("bytes {other:02x?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn every_place_has_its_own_bytes() {
        let d = fixture::descriptor("m", vec![fixture::group(16, 4, &[100, 100])]);
        let full = fixture::full(&d);
        let a = blob(&d, fixture::chunk(1), PartIndex(0), full);
        assert_eq!(a.len(), 400);
        for other in [
            blob(&d, fixture::chunk(2), PartIndex(0), full),
            blob(&d, fixture::chunk(1), PartIndex(1), full),
            blob_by(&d, fixture::chunk(1), PartIndex(0), full, 1),
        ] {
            assert_ne!(a, other);
        }
        assert_ne!(a[..100], a[100..200], "blocks differ");
        assert_ne!(a[..32], a[32..64], "offsets differ");
    }

    #[test]
    #[should_panic(expected = "first difference at 32; expected writer 0")]
    fn a_difference_names_both_sides() {
        let d = fixture::small("m", 64);
        let mut found = blob(&d, fixture::chunk(1), fixture::PART, fixture::full(&d));
        let expected = found.clone();
        found[32] = 0;
        assert_same(&found, &expected, "test");
    }
}
