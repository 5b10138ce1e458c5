//! Where chunks are kept and found beyond the arena: on this host's disk, with other daemons, in a store that all share.
//!
//! ```text
//! rpc: Lookup > stack > find in { disk, peers, shared } > fetch > House: reserve, write, verify, publish
//! engine: READY, gone > stack > { disk, peers, shared }, behind everybody's back
//! ```
//!
//! A tier is soft state. It may forget, be slow, be away, or lie: what it brings is held to its digest before anybody
//! sees it, and everything else about it costs a miss.

mod behind;
mod calls;
mod cost;
pub(crate) mod disk;
#[cfg(test)]
pub(crate) mod fake;
mod fetches;
pub(crate) mod generations;
pub(crate) mod peers;
pub(crate) mod shared;
mod stack;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Instant;

use tender_proto::{ChunkId, Coverage, Descriptor, NamespaceDigest, Reason};

use crate::engine::{House, OpenChunk};
pub(crate) use fetches::Sought;
use stack::Running;
pub(crate) use stack::{Stack, TierStats};

/// Which tier, in the order in which they are asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum TierKind {
    /// Files of this host.
    Disk,
    /// Other daemons, found through the directory.
    Peers,
    /// A store that outlives all of them.
    Shared,
}

impl TierKind {
    /// In logs and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Peers => "peers",
            Self::Shared => "shared",
        }
    }
}

/// A namespace as it was when somebody asked. What is fetched under it becomes READY only in the same epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TierNamespace {
    /// Names it everywhere, on all hosts.
    pub(crate) digest: NamespaceDigest,
    /// What the name stands for: sizes, and what goes beside the bytes where somebody may look.
    pub(crate) descriptor: Descriptor,
    /// Raised by each reset; of this daemon only.
    pub(crate) epoch: u32,
}

/// A chunk that a tier can bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Available {
    /// Bytes of all its parts, as far as known; for the estimate of how long it takes.
    pub(crate) bytes: u64,
    /// Which of its blocks are stored, where that is known before the fetch.
    pub(crate) coverage: Option<Coverage>,
}

/// Why a chunk did not come.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The tier no longer has it; it has forgotten that it once did.
    #[error("it is no longer there")]
    Gone,
    /// Other bytes than its digest says, or a form that is not ours. The tier has taken it out.
    #[error("its bytes are not what was stored")]
    Corrupt,
    /// Not in time.
    #[error("it did not come in time")]
    Deadline,
    /// The arena holds it or is getting it from somebody else, so there was nothing to do.
    #[error("it is there already")]
    NotNeeded,
    /// The arena refused it.
    #[error("the arena does not take it: {0:?}")]
    Refused(Reason),
    /// The tier cannot be reached or read now.
    #[error("{0}")]
    Unavailable(String),
}

impl FetchError {
    /// In metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Corrupt => "corrupt",
            Self::Deadline => "deadline",
            Self::NotNeeded => "not_needed",
            Self::Refused(_) => "refused",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

/// What is known of another daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PeerState {
    pub(crate) address: String,
    /// It is not asked now because it failed.
    pub(crate) left_alone: bool,
    /// Lately; 0 where nothing came yet.
    pub(crate) bytes_per_second: u64,
}

/// What became of a chunk that a tier was given to keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    /// It has it, or had it.
    Yes,
    /// It does not want it: too large, not asked for often enough.
    Unwanted,
    /// Its budget for now is spent; the chunk is not offered again.
    Throttled,
    /// It could not.
    Failed,
}

/// One place below the arena. Every call may be made at any time from any task, ends by its deadline, and must leave
/// nothing half done when its future is dropped.
#[tonic::async_trait]
pub(crate) trait Tier: fmt::Debug + Send + Sync {
    /// Which one.
    fn kind(&self) -> TierKind;

    /// Which of these chunks can be fetched: one answer for each, in order. `None`: not here, or nobody could say in
    /// time. One round trip for all of them.
    async fn find(
        &self,
        namespace: &TierNamespace,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Vec<Option<Available>>;

    /// Brings one chunk into the arena through `house`, verified part by part. READY when it returns `Ok`.
    async fn fetch(
        &self,
        namespace: &TierNamespace,
        chunk: ChunkId,
        house: &House,
        deadline: Instant,
    ) -> Result<(), FetchError>;

    /// A chunk is READY in the arena: keep it, or tell others that it is here.
    async fn keep(&self, namespace: &TierNamespace, chunk: ChunkId, stored: &OpenChunk) -> Kept;

    /// Chunks have left the arena (evicted or found bad): whoever was told that they are here is told otherwise.
    async fn withdraw(&self, namespace: NamespaceDigest, chunks: &[ChunkId]);

    /// Forgets a namespace. After `Ok`, nothing that was stored before is found or fetched through this tier by any
    /// daemon, nor kept by a call that is under way. `raised` is the generation to which another tier has raised the
    /// namespace for this reset; the answer is that one, or this tier's own.
    async fn reset(&self, namespace: &TierNamespace, raised: Option<u64>) -> Result<Option<u64>, String>;

    /// Forgets all namespaces that it knows, those included that no engine uses here. These are reset by name after it,
    /// and may stay until then.
    async fn reset_others(&self, than: &[TierNamespace]) -> Result<(), String>;

    /// Lets go of what it holds, by the deadline; what hangs is left behind. Nothing is asked of it any more.
    async fn close(&self, deadline: Instant);

    /// What is left alone now because it failed, by what it is.
    fn open_breakers(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The daemons that it knows.
    fn peers(&self) -> Vec<PeerState> {
        Vec::new()
    }

    /// The daemon ends: brings to an end by the deadline what would be lost, and withdraws.
    async fn drain(&self, deadline: Instant);
}
