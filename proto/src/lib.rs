//! The contract: everything that two processes of Tender must agree on.
//!
//! * [`v1`]: the generated messages and services of `tender/v1/store.proto`, of `events.proto`, which tells watchers what a
//!   daemon holds, of `peer.proto`, which daemons of several
//!   hosts speak, and of `takeover.proto`, which two on one arena speak. They stop at the edges (the daemon's `rpc/` and
//!   `tier/peers/`, the client's `transport/`); inside, only the checked types below travel.
//! * [`ids`], [`key`], [`coverage`], [`descriptor`]: raw input becomes one of these once, or is refused.
//! * [`reason`]: the closed set of reasons why something was refused, missed or lost.
//! * [`limits`]: the numbers both sides rely on.
//! * [`mutant`]: mistakes that tests of tests switch on; [`model`]: the same, and locks, for models of threads.
//! * [`shm`]: mappings, and the hand-over of file descriptors on one host.

pub mod coverage;
pub mod descriptor;
pub mod ids;
pub mod key;
pub mod limits;
pub mod model;
pub mod mutant;
pub mod reason;
pub mod shm;

/// Generated from the files of `tender/v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated code; its documentation is the .proto file"
)]
pub mod v1 {
    tonic::include_proto!("tender.v1");
}

pub use coverage::{BlocksPerChunk, Coverage};
pub use descriptor::{Descriptor, Group, GroupKind, RankGeometry};
pub use ids::{BootId, GroupIndex, LeaseId, PartIndex, ReservationId, SessionId};
pub use key::{ChainHash, ChunkId, ChunkKey, ContentDigest, NamespaceDigest};
pub use reason::{Reason, Refusal};
