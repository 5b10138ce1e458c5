//! Identifiers. Each is its own type, so that none can stand in for another.

use std::fmt;

use crate::reason::{Reason, Refusal};

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 16]);

        impl $name {
            /// Wraps 16 random bytes.
            pub fn from_random(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }
            /// Reads the id from a message; any length but 16 is refused.
            pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
                bytes.try_into().map(Self).map_err(|_| {
                    Refusal::new(
                        Reason::Malformed,
                        format!(concat!($what, " of {} bytes"), bytes.len()),
                        concat!("send the 16 bytes of the ", $what, " as they were given out"),
                    )
                })
            }
            /// The raw bytes, as they go into a message.
            pub fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(&self.0[..4]))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

random_id!(
    /// The right to act for one session. Unguessable; its text form shows four of its sixteen bytes only.
    SessionId,
    "session id"
);
random_id!(
    /// One start of a daemon.
    BootId,
    "boot id"
);

macro_rules! counter_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(std::num::NonZeroU64);

        impl $name {
            /// `None` for 0, which no id ever is.
            pub fn new(raw: u64) -> Option<Self> {
                std::num::NonZeroU64::new(raw).map(Self)
            }
            /// The number as it goes into a message.
            pub fn get(self) -> u64 {
                self.0.get()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter_id!(
    /// A promise to a reader. Never used twice, so a late release changes nothing.
    LeaseId
);
counter_id!(
    /// The right to write one part. Never used twice, so a late commit changes nothing.
    ReservationId
);

/// Which group of a namespace: an index into its descriptor's groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GroupIndex(pub u16);

/// Which rank's bytes of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PartIndex(pub u16);

impl fmt::Display for GroupIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for PartIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
