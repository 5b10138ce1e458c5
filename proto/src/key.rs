//! What names a chunk, and what names its bytes.

use std::fmt;

use crate::ids::GroupIndex;
use crate::reason::{Reason, Refusal};
use crate::v1;

macro_rules! digest {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 32]);

        impl $name {
            /// Wraps 32 bytes of BLAKE3 output.
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }
            /// Reads it from a message; any length but 32 is refused.
            pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
                bytes.try_into().map(Self).map_err(|_| {
                    Refusal::new(
                        Reason::Malformed,
                        format!(concat!($what, " of {} bytes"), bytes.len()),
                        concat!("a ", $what, " is 32 bytes of BLAKE3 output"),
                    )
                })
            }
            /// Reads the 64 hexadecimal digits an operator types.
            pub fn parse_hex(text: &str) -> Result<Self, Refusal> {
                let bytes = hex::decode(text).unwrap_or_default();
                Self::parse(&bytes).map_err(|_| {
                    Refusal::new(
                        Reason::Malformed,
                        format!(concat!($what, " '{}'"), text.escape_debug()),
                        concat!("write a ", $what, " as 64 hexadecimal digits"),
                    )
                })
            }
            /// The raw bytes, as they go into a message.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
            /// All 64 hexadecimal digits; the short form is `Display`.
            pub fn to_hex(&self) -> String {
                hex::encode(self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(&self.0[..6]))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
        impl From<blake3::Hash> for $name {
            fn from(hash: blake3::Hash) -> Self {
                Self(hash.into())
            }
        }
    };
}

digest!(
    /// Names a namespace: the digest of its descriptor's canonical encoding.
    NamespaceDigest,
    "namespace digest"
);
digest!(
    /// Names the tokens of a chunk and everything before it: one link of the chain in `tender_client::hash`.
    ChainHash,
    "chain hash"
);
digest!(
    /// Names the bytes of one part of a chunk.
    ContentDigest,
    "content digest"
);

impl ContentDigest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        blake3::hash(bytes).into()
    }
}

/// One chunk inside a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ChunkId {
    /// Which group of the namespace's descriptor.
    pub group: GroupIndex,
    /// The chain over all tokens up to and including this chunk.
    pub hash: ChainHash,
}

impl ChunkId {
    /// Reads it from a message. Whether the group exists is the namespace's to say.
    pub fn parse(raw: &v1::ChunkId) -> Result<Self, Refusal> {
        let group = u16::try_from(raw.group).map_err(|_| {
            Refusal::new(
                Reason::GroupOutOfRange,
                format!("group {}", raw.group),
                "use an index into the descriptor's groups",
            )
        })?;
        Ok(Self { group: GroupIndex(group), hash: ChainHash::parse(&raw.hash)? })
    }
    /// As it goes into a message.
    pub fn to_message(self) -> v1::ChunkId {
        v1::ChunkId {
            group: u32::from(self.group.0),
            hash: prost::bytes::Bytes::copy_from_slice(self.hash.as_bytes()),
        }
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.hash)
    }
}

/// One chunk anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ChunkKey {
    /// Whose tokens and layout.
    pub namespace: NamespaceDigest,
    /// Which chunk.
    pub chunk: ChunkId,
}

impl fmt::Display for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.chunk)
    }
}
