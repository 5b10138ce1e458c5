//! Memory that tests describe and copy through.
#![allow(unsafe_code, reason = "describes buffers of the tests' own, and copies through their layouts")]

use tender_kernels::{Move, PageMap, reference};

use super::super::*;

pub(super) fn axis(name: char, count: u32, stride_bytes: u64) -> Axis {
    Axis { name, count, stride_bytes }
}

pub(super) fn buffer(address: u64, bytes: u64) -> BufferDesc {
    // SAFETY: a layout over this is only proved, or the memory is a `Memory` that outlives the copies.
    unsafe { BufferDesc::new(address, bytes) }
}

/// A buffer of bytes whose addresses go into descriptions.
pub(super) struct Memory(Vec<u8>);

impl Memory {
    /// Bytes that tell their places apart.
    pub(super) fn patterned(len: u64) -> Self {
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        blake3::Hasher::new().update(b"pattern").finalize_xof().fill(&mut bytes);
        Self(bytes)
    }
    pub(super) fn filled(len: u64, byte: u8) -> Self {
        Self(vec![byte; usize::try_from(len).unwrap()])
    }
    pub(super) fn address(&mut self) -> u64 {
        self.0.as_mut_ptr().expose_provenance() as u64
    }
    pub(super) fn desc(&mut self) -> BufferDesc {
        let len = self.0.len() as u64;
        buffer(self.address(), len)
    }
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
    pub(super) fn byte(&mut self, address: u64) -> &mut u8 {
        let at = address - self.address();
        &mut self.0[usize::try_from(at).unwrap()]
    }
    /// The blocks' packed bytes, as the copy kernel makes them.
    pub(super) fn gather(&mut self, map: &PageMap, blocks: &[u32]) -> Vec<u8> {
        self.address();
        let mut packed = vec![0xEE; usize::try_from(map.block_bytes()).unwrap() * blocks.len()];
        // SAFETY: every map of these tests was proved over the memory of `self`, which nobody else uses.
        unsafe { reference::gather(map, &moves(blocks), &mut packed) }.unwrap();
        packed
    }
    /// Scatters packed bytes to the blocks.
    pub(super) fn scatter(&mut self, map: &PageMap, blocks: &[u32], packed: &[u8]) {
        self.address();
        // SAFETY: as above; `packed` is another allocation.
        unsafe { reference::scatter(map, &moves(blocks), packed) }.unwrap();
    }
}

fn moves(blocks: &[u32]) -> Vec<Move> {
    blocks.iter().zip(0..).map(|(&block, slot)| Move { block, slot }).collect()
}
