//! What stands in the directory, byte by byte. docs/directory.md has the arithmetic.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use tender_proto::{ChunkId, ContentDigest, Coverage, NamespaceDigest};

/// Holders that one chunk's entry names at most: more copies than anybody can ask.
pub(crate) const MAX_HOLDERS: usize = 8;

const ID_BYTES: usize = 8;
const FINGERPRINT_BYTES: usize = 8;
const EXPIRY_BYTES: usize = 4;
const KEY_BYTES: usize = 16;

/// A daemon for as long as it runs: a random number, so that nobody takes over another one's entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DaemonId([u8; ID_BYTES]);

impl DaemonId {
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }
    /// `None` for any other number of bytes than 8.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for DaemonId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DaemonId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DaemonId({self})")
    }
}

/// Stands for all bytes of one stored chunk: the digests of its parts and which blocks they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fingerprint([u8; FINGERPRINT_BYTES]);

impl Fingerprint {
    /// Part p's digest at position p.
    pub(crate) fn of(coverage: Coverage, parts: impl IntoIterator<Item = ContentDigest>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("tender 2026-11 directory fingerprint v1");
        hasher.update(&coverage.bits().to_le_bytes());
        parts.into_iter().for_each(|digest| _ = hasher.update(digest.as_bytes()));
        let mut short = [0; FINGERPRINT_BYTES];
        hasher.finalize_xof().fill(&mut short);
        Self(short)
    }
    /// `None` for any other number of bytes than 8.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What a daemon says about a chunk that it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) fingerprint: Fingerprint,
    /// Raw coverage word; `None` for all blocks of the group's chunks.
    pub(crate) coverage: Option<u64>,
}

/// One daemon's word in a chunk's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) daemon: DaemonId,
    pub(crate) entry: Entry,
    /// Seconds since 1970 by the holder's clock. From then on it no longer stands by its word.
    pub(crate) expires_s: u32,
}

impl Holder {
    /// The value in the hash: expiry, fingerprint, and the coverage's bytes without the zeros at its end.
    pub(crate) fn value(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(EXPIRY_BYTES + FINGERPRINT_BYTES);
        value.extend_from_slice(&self.expires_s.to_le_bytes());
        value.extend_from_slice(&self.entry.fingerprint.0);
        if let Some(bits) = self.entry.coverage {
            let bytes = bits.to_le_bytes();
            let used = bytes.iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1);
            value.extend_from_slice(&bytes[..used]);
        }
        value
    }
    /// Reads a field of the hash; `None` for what no daemon of this version writes.
    pub(crate) fn parse(daemon: &[u8], value: &[u8]) -> Option<Self> {
        let (expiry, rest) = value.split_at_checked(EXPIRY_BYTES)?;
        let (fingerprint, coverage) = rest.split_at_checked(FINGERPRINT_BYTES)?;
        let mut bits = [0; 8];
        bits.get_mut(..coverage.len())?.copy_from_slice(coverage);
        Some(Self {
            daemon: DaemonId::parse(daemon)?,
            entry: Entry {
                fingerprint: Fingerprint::parse(fingerprint)?,
                coverage: (!coverage.is_empty()).then(|| u64::from_le_bytes(bits)),
            },
            expires_s: u32::from_le_bytes(expiry.try_into().ok()?),
        })
    }
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

/// The keys under one prefix, so that several deployments can share a store.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }
    /// Of a chunk's entry in one generation. The hash has no tag: entries spread over all slots of a cluster.
    pub(crate) fn chunk(&self, namespace: NamespaceDigest, generation: u64, chunk: ChunkId) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new_derive_key("tender 2026-11 directory entry v1");
        hasher.update(namespace.as_bytes()).update(&generation.to_le_bytes());
        hasher.update(&chunk.group.0.to_le_bytes()).update(chunk.hash.as_bytes());
        let mut short = [0; KEY_BYTES];
        hasher.finalize_xof().fill(&mut short);
        [self.prefix.as_bytes(), b":c:", &short].concat()
    }
    /// Of a namespace's generation, which never expires.
    pub(crate) fn generation(&self, namespace: NamespaceDigest) -> String {
        format!("{}:g:{}", self.prefix, namespace.to_hex())
    }
    /// Of a daemon's address.
    pub(crate) fn daemon(&self, daemon: DaemonId) -> String {
        format!("{}:d:{daemon}", self.prefix)
    }
    /// Of the list of all daemons.
    pub(crate) fn daemons(&self) -> String {
        format!("{}:daemons", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(coverage: Option<u64>) -> Holder {
        let entry = Entry { fingerprint: Fingerprint([7; 8]), coverage };
        Holder { daemon: DaemonId([9; 8]), entry, expires_s: 0x0102_0304 }
    }

    #[test]
    fn a_word_is_read_as_it_was_written_and_is_short() {
        for coverage in [None, Some(0), Some(1), Some(0b1010), Some(1 << 63), Some(u64::MAX - 1)] {
            let word = holder(coverage);
            assert_eq!(Holder::parse(word.daemon.as_bytes(), &word.value()), Some(word));
        }
        assert_eq!(holder(None).value().len(), 12, "the usual one: docs/directory.md counts with it");
        assert_eq!(holder(Some(0b1010)).value().len(), 13);
    }

    #[test]
    fn garbage_is_no_holder() {
        let word = holder(None);
        for value in [&[][..], &[0; 11], &[0; 21]] {
            assert_eq!(Holder::parse(word.daemon.as_bytes(), value), None);
        }
        assert_eq!(Holder::parse(&[1; 7], &word.value()), None);
    }

    #[test]
    fn a_generation_has_keys_of_its_own() {
        let keys = Keys::new("tender");
        let namespace = NamespaceDigest::from_bytes([1; 32]);
        let chunk = ChunkId {
            group: tender_proto::GroupIndex(0),
            hash: tender_proto::ChainHash::from_bytes([2; 32]),
        };
        let other = ChunkId { group: tender_proto::GroupIndex(1), ..chunk };
        let mut all = vec![
            keys.chunk(namespace, 0, chunk),
            keys.chunk(namespace, 1, chunk),
            keys.chunk(namespace, 0, other),
        ];
        all.push(keys.chunk(NamespaceDigest::from_bytes([3; 32]), 0, chunk));
        assert!(all.iter().all(|key| key.len() == "tender:c:".len() + KEY_BYTES));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 4);
    }
}
