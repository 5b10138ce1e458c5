//! Digests of what was gathered, computed where it lies.
#![allow(unsafe_code, reason = "begins kernels; the lane keeps their memory until their event")]

use tender_kernels::cuda::Messages;
use tender_proto::ContentDigest;

use super::super::driver::{Event, PinnedMemory};
use super::super::gpu::{Gpu, as_bytes};
use super::super::ring::{ALIGN_BYTES, Ring, Span};
use super::lane::Memory;

const DIGEST_BYTES: usize = 32;

/// Digests that the device computes of a batch's parts, in their order.
#[derive(Debug)]
pub(super) struct Hashed {
    /// Where tables and digests lie, on both sides.
    words: Span,
    digests_at: u64,
    event: Option<Event>,
    good: bool,
}

impl Hashed {
    pub(super) fn words(&self) -> Span {
        self.words
    }
    /// When the digests are there. `None`: it could not be recorded.
    pub(super) fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }
    /// The digest of a part, all of whose bytes have come: they were copied behind its digest.
    pub(super) fn digest(&self, host: &PinnedMemory, part: usize) -> Option<ContentDigest> {
        let at = self.words.at + self.digests_at + (DIGEST_BYTES * part) as u64;
        // SAFETY: the span is ours until the batch is over, and the copy of the digests into it is done.
        let bytes = unsafe { host.slice(at, DIGEST_BYTES) };
        bytes.try_into().ok().filter(|_| self.good).map(ContentDigest::from_bytes)
    }
}

/// Lets the device hash what was gathered, on our stream. `None`: the host has to.
pub(super) fn hash(gpu: &Gpu, memory: &Memory, ring: &mut Ring, places: Vec<(u64, u64)>) -> Option<Hashed> {
    let mut messages = Messages::new();
    places.into_iter().for_each(|(address, bytes)| messages.push(address, bytes));
    let table = as_bytes(messages.words());
    let digests_at = (table.len() as u64).next_multiple_of(ALIGN_BYTES);
    let scratch_at = (digests_at + messages.digest_bytes()).next_multiple_of(ALIGN_BYTES);
    let words = ring.take(scratch_at + messages.scratch_bytes())?;
    let (here, there) = (memory.words_host.address() + words.at, memory.words.address() + words.at);
    let (digests, scratch) = (there + digests_at, there + scratch_at);
    let (driver, stream, limits) = (&gpu.driver, memory.stream.handle(), gpu.beside());
    // SAFETY: the span of words is ours until the event below, on both sides; the parts' spans are until their copies
    // are over, which come later on this stream.
    let begun = unsafe {
        memory.words_host.write(words.at, &table);
        let groups = messages.groups(limits, there, scratch, digests);
        driver
            .to_device(stream, there, here, table.len() as u64)
            .and_then(|()| gpu.launch(stream, groups.0, &groups.1))
            .and_then(|()| match messages.roots(limits, there, scratch, digests) {
                Some(roots) => gpu.launch(stream, roots.0, &roots.1),
                None => Ok(()),
            })
            .and_then(|()| driver.to_host(stream, here + digests_at, digests, messages.digest_bytes()))
    };
    let good = begun.inspect_err(|fault| gpu.note(fault)).is_ok();
    let event = Event::record(driver, stream).inspect_err(|fault| gpu.note(fault)).ok();
    Some(Hashed { words, digests_at, event, good })
}
