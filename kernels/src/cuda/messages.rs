//! Byte ranges to be hashed by one launch.

use super::abi::{BLAKE3_GROUPS, BLAKE3_ROOTS, GROUP_LEAVES, LEAF_BYTES, MESSAGE_WORDS};
use super::variants::{Launch, Limits, hash_launch};

/// Bytes of a digest, and of a value of the tree.
const VALUE_BYTES: u64 = 32;

/// Byte ranges to be hashed, each to a digest of 32 bytes: BLAKE3 as the `blake3` crate's `hash` computes it.
///
/// Two kernels do it, one behind the other on one stream: [`Messages::groups`] and, unless no message is larger
/// than 128 KiB, [`Messages::roots`].
#[derive(Clone, Debug, Default)]
pub struct Messages {
    words: Vec<u64>,
    groups: u64,
    longest: u64,
    bytes: u64,
}

impl Messages {
    /// Nothing to hash yet.
    pub fn new() -> Self {
        Self::default()
    }
    /// Adds the bytes at a device address, of any number and alignment; multiples of 16 are read fastest.
    pub fn push(&mut self, address: u64, bytes: u64) {
        self.words.extend([address, bytes, self.groups]);
        let groups = bytes.div_ceil(LEAF_BYTES * GROUP_LEAVES).max(1);
        self.groups += groups;
        self.longest = self.longest.max(groups);
        self.bytes += bytes;
    }
    /// How many messages there are.
    pub fn count(&self) -> u64 {
        (self.words.len() / MESSAGE_WORDS) as u64
    }
    /// Whether there is nothing to hash.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
    /// Bytes of all messages together.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// What to upload.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
    /// Bytes of device memory that the kernels need for themselves, aligned to 16.
    pub fn scratch_bytes(&self) -> u64 {
        self.groups * VALUE_BYTES
    }
    /// Bytes of device memory for the digests, in the order of the messages, aligned to 16.
    pub fn digest_bytes(&self) -> u64 {
        self.count() * VALUE_BYTES
    }
    /// The first kernel's launch and its arguments.
    pub fn groups(&self, limits: Limits, messages: u64, scratch: u64, digests: u64) -> (Launch, [u64; 5]) {
        let launch = hash_launch(BLAKE3_GROUPS, self.groups, limits);
        (launch, [messages, self.count(), self.groups, scratch, digests])
    }
    /// The second kernel's, if it is needed.
    pub fn roots(
        &self,
        limits: Limits,
        messages: u64,
        scratch: u64,
        digests: u64,
    ) -> Option<(Launch, [u64; 4])> {
        let launch = hash_launch(BLAKE3_ROOTS, self.count(), limits);
        (self.longest > 1).then_some((launch, [messages, self.count(), scratch, digests]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_has_a_group_and_long_ones_need_the_second_kernel() {
        let limits = Limits::default();
        let mut messages = Messages::new();
        messages.push(4096, 0);
        messages.push(8192, 128 << 10);
        assert!(messages.roots(limits, 1, 2, 3).is_none());
        messages.push(1, (128 << 10) + 1);
        assert_eq!(messages.words(), [4096, 0, 0, 8192, 128 << 10, 1, 1, (128 << 10) + 1, 2]);
        assert_eq!((messages.scratch_bytes(), messages.digest_bytes()), (4 * 32, 3 * 32));
        assert_eq!(messages.groups(limits, 7, 8, 9).1, [7, 3, 4, 8, 9]);
        assert_eq!(messages.roots(limits, 7, 8, 9).unwrap().1, [7, 3, 8, 9]);
    }
}
