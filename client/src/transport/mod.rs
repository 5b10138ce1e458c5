//! How bytes travel between a client and the daemon.
//!
//! Looking up, leasing, reserving and releasing are the same calls for everybody ([`calls`]). What differs is
//! one small trait: where gathered parts are staged, how they are handed over, and how leased parts are read.
//! [`shm`] reads the arena in place and commits what lies in a shared staging region; [`grpc`] streams frames
//! both ways. One test suite runs over both.
//!
//! A transport belongs to one session and is dropped with it. Its methods block and are called from the
//! client's own threads only.

pub(crate) mod calls;
pub(crate) mod connect;
mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod grpc;
mod messages;
mod region;
pub(crate) mod shm;
pub(crate) mod staging;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tender_proto::shm::Mapping;
use tender_proto::{ContentDigest, Coverage, LeaseId, PartIndex, Reason, ReservationId};

use crate::client::Client;
use crate::session::Session;
use calls::{PartPlace, Stored};
use staging::{Slot, Staging};

/// Which transport it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransportKind {
    Shm,
    Grpc,
}

impl TransportKind {
    /// For logs and counters.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Grpc => "grpc",
        }
    }
}

/// One leased part to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadItem {
    /// Position of its chunk in the lookup that made the lease.
    pub(crate) chunk_index: u32,
    pub(crate) part: PartIndex,
    /// As the lookup said; a part that comes with another is not what was promised.
    pub(crate) coverage: Coverage,
    /// What the part must have: covered blocks times block bytes.
    pub(crate) bytes: u64,
    /// Where the daemon says it lies; only asked for if the transport [locates](Transport::locates).
    pub(crate) place: Option<PartPlace>,
}

/// Parts to be read under one lease.
#[derive(Debug)]
pub(crate) struct ReadAsk {
    pub(crate) lease: LeaseId,
    pub(crate) items: Vec<ReadItem>,
    pub(crate) deadline: Instant,
}

/// Takes bytes of item `.0`: the piece that lies at `.1` in the part. The pieces of an item come in order and without
/// gaps, and may come before all of it is checked: only a result that is good says that they were right. After an
/// error, which becomes the item's result, it gets no more of that item.
pub(crate) type Sink<'a> = dyn FnMut(usize, u64, &[u8]) -> Result<(), Reason> + 'a;

/// A reserved part in staging.
#[derive(Debug)]
pub(crate) struct StagedPart {
    pub(crate) reservation: ReservationId,
    pub(crate) coverage: Coverage,
    pub(crate) digest: ContentDigest,
    pub(crate) slot: Slot,
}

/// What differs between shared memory and the network.
pub(crate) trait Transport: fmt::Debug + Send + Sync {
    fn kind(&self) -> TransportKind;

    /// Whether lookups for [`Transport::read`] must tell where the parts lie.
    fn locates(&self) -> bool;

    /// The memory that [`Transport::read`] hands out pieces of. They stay in it as they are until the lease ends. `None`:
    /// pieces are gone when the sink returns.
    fn arena(&self) -> Option<&Arc<Mapping>> {
        None
    }

    /// Where parts are gathered before they are stored.
    fn staging(&self) -> &Arc<Staging>;

    /// Reads parts in order and hands their bytes to the sink. One result for each item, good only if the sink had the
    /// whole part and every check that the transport owes was passed. Returns when the session ends or the deadline is
    /// over, and never calls the sink after it has returned.
    fn read(
        &self,
        client: &Client,
        session: &Arc<Session>,
        ask: &ReadAsk,
        sink: &mut Sink<'_>,
    ) -> Vec<Result<(), Reason>>;

    /// Hands parts over. One result for each part, in order. A part's slot is used again only when the daemon
    /// is done with it.
    fn store(
        &self,
        client: &Client,
        session: &Arc<Session>,
        parts: Vec<StagedPart>,
        deadline: Instant,
    ) -> Vec<Result<Stored, Reason>>;
}
