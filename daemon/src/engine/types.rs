//! What goes into the engine and comes out of it. No transport's types.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use tender_proto::{
    ChunkId, ContentDigest, Coverage, Descriptor, LeaseId, NamespaceDigest, PartIndex, Reason, ReservationId,
};

pub use crate::arena::{ArenaConfig, StartError};
pub use crate::index::Eviction;
use crate::metrics::Spread;

/// Everything the engine must be told at start. All of it is checked by the daemon's configuration; there
/// are no defaults here, so that each has one home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// The shared memory that holds the chunks.
    pub arena: ArenaConfig,
    /// A lease's time where the reader asks for none.
    pub default_lease: Duration,
    /// Longer wishes are cut to it.
    pub max_lease: Duration,
    /// From the first reservation of a version until it must be READY.
    pub reservation: Duration,
    /// Bytes of all parts that are reserved, being written, or waiting for their chunk's other parts.
    pub max_inflight_bytes: u64,
    /// The same for one session.
    pub max_session_inflight_bytes: u64,
    /// Sessions at one time.
    pub max_sessions: usize,
    /// Leases of one session at one time.
    pub max_leases_per_session: usize,
    /// Largest part that will be stored. The engine lowers it to what arena and budgets can take, see
    /// [`super::Engine::max_part_bytes`].
    pub max_part_bytes: u64,
    /// Staging region of one session.
    pub max_staging_bytes: u64,
    /// Staging regions of all sessions.
    pub max_total_staging_bytes: u64,
    /// Chunks in one lookup, reserve or commit.
    pub max_batch_chunks: usize,
    /// Namespaces known at one time.
    pub max_namespaces: usize,
    /// Memory that remembers why chunks are not there and what was asked for; 0 for none.
    pub history_bytes: u64,
    /// Which chunk goes when room is needed.
    pub eviction: Eviction,
}

/// Those of [`EngineConfig`] that may change while the engine runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the configuration says it")]
pub struct Limits {
    pub default_lease: Duration,
    pub max_lease: Duration,
    pub reservation: Duration,
    pub max_inflight_bytes: u64,
    pub max_session_inflight_bytes: u64,
    pub max_sessions: usize,
    pub max_leases_per_session: usize,
    pub max_staging_bytes: u64,
    pub max_total_staging_bytes: u64,
    pub max_namespaces: usize,
}

impl From<&EngineConfig> for Limits {
    fn from(config: &EngineConfig) -> Self {
        Self {
            default_lease: config.default_lease,
            max_lease: config.max_lease,
            reservation: config.reservation,
            max_inflight_bytes: config.max_inflight_bytes,
            max_session_inflight_bytes: config.max_session_inflight_bytes,
            max_sessions: config.max_sessions,
            max_leases_per_session: config.max_leases_per_session,
            max_staging_bytes: config.max_staging_bytes,
            max_total_staging_bytes: config.max_total_staging_bytes,
            max_namespaces: config.max_namespaces,
        }
    }
}

/// Whether a lookup leases what it finds READY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseAsk {
    /// Only look.
    None,
    /// Lease it.
    Lease {
        /// How long; `None` for the daemon's default.
        ttl: Option<Duration>,
        /// Tell where the bytes lie in the arena.
        locate: bool,
    },
}

/// One answer for each chunk asked for, in order, and the lease over all that were READY.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookupAnswer {
    /// In the order of the question.
    pub chunks: Vec<ChunkAnswer>,
    /// `None` when no lease was asked for or nothing was READY.
    pub lease: Option<LeaseGrant>,
}

/// What is known about one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChunkAnswer {
    /// Stored and verified.
    Ready {
        /// Which blocks are stored.
        coverage: Coverage,
        /// Part p at index p; empty unless the lease asked to locate.
        parts: Vec<PartPlace>,
    },
    /// Somebody is storing it now.
    Pending,
    /// Not there, and why.
    Miss(Reason),
}

/// Where a part's bytes lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartPlace {
    /// From the start of the arena's file.
    pub offset_bytes: u64,
    /// How many.
    pub bytes: u64,
    /// Over all of them.
    pub digest: ContentDigest,
}

/// A promise to a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseGrant {
    /// Names it in later calls.
    pub id: LeaseId,
    /// Counted from when it was granted.
    pub ttl: Duration,
}

/// How a lease ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseEnd {
    /// It was good until this call: what was read under it may be used.
    Live,
    /// It had ended, or is not this session's: what was read under it must not be used.
    Expired,
}

/// One part that a session wants to store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReserveAsk {
    /// Which chunk.
    pub chunk: ChunkId,
    /// Which rank's part of it.
    pub part: PartIndex,
    /// Raw coverage word; it is checked against the group.
    pub coverage_bits: u64,
    /// Must be the covered blocks times the group's block bytes of this part.
    pub bytes: u64,
}

/// What became of one [`ReserveAsk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReserveAnswer {
    /// Room is held; write and commit in time.
    Reserved(ReservationId),
    /// No need to send it.
    Already(Already),
    /// No, and nothing is held.
    Refused(Reason),
}

/// Why a part need not be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Already {
    /// The chunk is READY with at least this coverage.
    Ready,
    /// Somebody stores this part now, or has stored it and the chunk waits for other parts.
    Pending,
}

/// One part that lies in the session's staging region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitAsk {
    /// Raw id, as it came.
    pub reservation: u64,
    /// Where the part starts in the staging region.
    pub staging_offset: u64,
    /// Must be what was reserved.
    pub bytes: u64,
    /// Must be what was reserved.
    pub coverage_bits: u64,
    /// What the bytes must hash to.
    pub digest: ContentDigest,
}

/// What became of one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreAnswer {
    /// The raw id that was given.
    pub reservation: u64,
    /// Stored, or why not.
    pub outcome: Result<Stored, Reason>,
}

/// A part is stored and verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// It was the last part: the chunk is READY.
    pub chunk_ready: bool,
}

/// Descriptors for a client on the same host.
#[derive(Debug)]
pub struct Handover {
    /// The arena's file, read-only.
    pub arena: OwnedFd,
    /// Size of that file.
    pub arena_bytes: u64,
    /// The session's staging region, read-write; `None` when none was asked for.
    pub staging: Option<OwnedFd>,
    /// Its size, 0 when there is none.
    pub staging_bytes: u64,
}

/// What a reset forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetScope {
    /// One namespace; unknown ones have nothing to forget.
    One(NamespaceDigest),
    /// Every namespace.
    All,
}

/// What a reset has forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ResetAnswer {
    /// Chunks that were READY.
    pub dropped_chunks: u64,
    /// Reservations that can no longer become READY.
    pub fenced_reservations: u64,
}

/// One moment's numbers. Those that grow only are counted from the engine's start.
#[derive(Clone, PartialEq, Debug)]
pub struct Stats {
    /// Bytes that chunks can use.
    pub arena_bytes: u64,
    /// Bytes in use, rounding included.
    pub arena_used_bytes: u64,
    /// A part of this size can be stored without evicting.
    pub arena_largest_free_bytes: u64,
    /// The arena's file.
    pub arena_place: PathBuf,
    /// Open sessions.
    pub sessions: u64,
    /// Live leases.
    pub leases: u64,
    /// Leases counted once for each chunk they hold.
    pub pins: u64,
    /// Reservations, those being written included.
    pub reservations: u64,
    /// Bytes of unfinished chunks.
    pub inflight_bytes: u64,
    /// Bytes of all sessions' staging regions.
    pub staging_bytes: u64,
    /// Leases that ended because their time was up. Grows only.
    pub expired_leases: u64,
    /// Reservations that ended because their time was up. Grows only.
    pub expired_reservations: u64,
    /// Stored bytes that were read again and compared with their digests.
    pub scrubbed_bytes: u64,
    /// Chunks whose bytes had changed and that were taken out.
    pub quarantined_chunks: u64,
    /// How long evicted chunks had not been used. Grows only.
    pub eviction_ages_seconds: Spread,
    /// In the order of their registration.
    pub namespaces: Vec<NamespaceStats>,
    /// Of tenants: those that have a namespace or a quota, by name.
    pub domains: Vec<DomainStats>,
    /// Every reason that was ever given and how often; misses are not refusals. Grows only.
    pub refusals: Vec<(Reason, u64)>,
}

impl Stats {
    /// Of the free bytes, the share that is not in the largest piece; 0 when nothing is free.
    pub fn fragmentation(&self) -> f64 {
        let free = self.arena_bytes.saturating_sub(self.arena_used_bytes);
        let outside = free.saturating_sub(self.arena_largest_free_bytes);
        if free == 0 { 0.0 } else { outside as f64 / free as f64 }
    }
}

/// One domain's numbers: the sums of its namespaces, and what it may hold.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DomainStats {
    /// Its name.
    pub domain: String,
    /// 0 for no limit.
    pub quota_bytes: u64,
    /// 0 for no limit.
    pub quota_chunks: u64,
    /// Bytes of the READY chunks' parts.
    pub ready_bytes: u64,
    /// Chunks that lookups find.
    pub ready_chunks: u64,
    /// Bytes of unfinished chunks.
    pub inflight_bytes: u64,
    /// Keys asked for.
    pub lookups: u64,
    /// Keys answered READY.
    pub hits: u64,
    /// Bytes of parts that became READY.
    pub stored_bytes: u64,
    /// Chunks that made room for others.
    pub evicted_chunks: u64,
}

/// One namespace's numbers.
#[derive(Clone, PartialEq, Debug)]
pub struct NamespaceStats {
    /// Its name.
    pub digest: NamespaceDigest,
    /// What the name stands for.
    pub descriptor: Descriptor,
    /// The operator's name for it.
    pub pinned_name: Option<String>,
    /// Chunks that lookups find.
    pub ready_chunks: u64,
    /// Chunks being stored.
    pub pending_chunks: u64,
    /// Bytes of the READY chunks' parts.
    pub ready_bytes: u64,
    /// Keys asked for: hits + pendings + misses. Grows only, like all below.
    pub lookups: u64,
    /// Keys answered READY.
    pub hits: u64,
    /// Keys answered PENDING.
    pub pendings: u64,
    /// Keys answered MISS, by reason.
    pub misses: Vec<(Reason, u64)>,
    /// Bytes of parts that became READY.
    pub stored_bytes: u64,
    /// Chunks that made room for others.
    pub evicted_chunks: u64,
}

/// What a recount found. It equals [`Stats`] where both have a number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Audit {
    /// Bytes that chunks can use.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// capacity - used.
    pub free_bytes: u64,
    /// Open sessions.
    pub sessions: u64,
    /// Live leases.
    pub leases: u64,
    /// Chunks held by leases.
    pub pins: u64,
    /// Parts being read.
    pub readers: u64,
    /// Reservations that nobody is writing.
    pub reservations: u64,
    /// Reservations that somebody is writing, ended ones included until their writer has let go.
    pub writers: u64,
    /// READY chunks.
    pub ready_chunks: u64,
    /// Pending versions.
    pub pending_chunks: u64,
    /// Bytes of unfinished chunks.
    pub inflight_bytes: u64,
}
