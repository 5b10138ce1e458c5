//! Messages to checked types and back.

use bytes::Bytes;
use tender_proto::limits::{MAX_GROUPS, MAX_PARTS};
use tender_proto::{ChainHash, ChunkId, ContentDigest, GroupIndex, PartIndex, Reason, Refusal, v1};

use crate::engine::{
    Already, ChunkAnswer, CommitAsk, LeaseEnd, LookupAnswer, NamespaceStats, PartPlace, ReserveAnswer,
    ReserveAsk, Stats, StoreAnswer,
};

/// A group or part number that no namespace can have stands for every number too large for its type: the engine
/// then refuses that item alone, like any other index out of range.
fn index(raw: u32) -> u16 {
    const { assert!(MAX_GROUPS < u16::MAX as usize) };
    const { assert!(MAX_PARTS < u16::MAX as usize) };
    u16::try_from(raw).unwrap_or(u16::MAX)
}

fn chunk(raw: &v1::ChunkId) -> Result<ChunkId, Refusal> {
    Ok(ChunkId { group: GroupIndex(index(raw.group)), hash: ChainHash::parse(&raw.hash)? })
}

pub(super) fn chunks(raw: &[v1::ChunkId]) -> Result<Vec<ChunkId>, Refusal> {
    raw.iter().map(chunk).collect()
}

pub(super) fn part(raw: u32) -> PartIndex {
    PartIndex(index(raw))
}

pub(super) fn reserve_ask(raw: &v1::ReserveItem) -> Result<ReserveAsk, Reason> {
    let raw_chunk = raw.chunk.as_ref().ok_or(Reason::Malformed)?;
    Ok(ReserveAsk {
        chunk: chunk(raw_chunk).map_err(|no| no.reason)?,
        part: part(raw.part),
        coverage_bits: raw.coverage,
        bytes: raw.bytes,
    })
}

pub(super) fn commit_ask(raw: &v1::CommitItem) -> Result<CommitAsk, Reason> {
    Ok(CommitAsk {
        reservation: raw.reservation_id,
        staging_offset: raw.staging_offset_bytes,
        bytes: raw.bytes,
        coverage_bits: raw.coverage,
        digest: ContentDigest::parse(&raw.digest).map_err(|no| no.reason)?,
    })
}

/// Items that can be asked, and for each item of the call the reason why it cannot.
pub(super) fn sort_out<R, A>(
    raw: &[R],
    parse: impl Fn(&R) -> Result<A, Reason>,
) -> (Vec<A>, Vec<Option<Reason>>) {
    let mut asks = Vec::with_capacity(raw.len());
    let no = |item| match parse(item) {
        Ok(ask) => {
            asks.push(ask);
            None
        }
        Err(reason) => Some(reason),
    };
    let refused = raw.iter().map(no).collect();
    (asks, refused)
}

/// The outcomes of a whole call, in its order: the engine's where it was asked, else the reason.
pub(super) fn merge<A>(
    refused: &[Option<Reason>],
    answers: Vec<A>,
    refusal: impl Fn(usize, Reason) -> A,
) -> impl Iterator<Item = A> {
    let mut answers = answers.into_iter();
    refused.iter().enumerate().map_while(move |(i, refused)| match refused {
        None => answers.next(),
        Some(reason) => Some(refusal(i, *reason)),
    })
}

/// `expected_ms` says of a PENDING chunk when it comes; 0 where nobody knows.
pub(super) fn lookup_answer(answer: LookupAnswer, expected_ms: impl Fn(usize) -> u32) -> v1::LookupResponse {
    let lease = answer.lease.map(|grant| v1::Lease { id: grant.id.get(), lease_ms: millis(grant.ttl) });
    let status = |(index, answer)| chunk_status(answer, || expected_ms(index));
    v1::LookupResponse { chunks: answer.chunks.into_iter().enumerate().map(status).collect(), lease }
}

fn chunk_status(answer: ChunkAnswer, expected_ms: impl Fn() -> u32) -> v1::ChunkStatus {
    match answer {
        ChunkAnswer::Ready { coverage, parts } => v1::ChunkStatus {
            state: v1::ChunkState::Ready.into(),
            coverage: coverage.bits(),
            parts: parts.into_iter().map(place).collect(),
            ..v1::ChunkStatus::default()
        },
        ChunkAnswer::Pending => v1::ChunkStatus {
            state: v1::ChunkState::Pending.into(),
            expected_ms: expected_ms(),
            ..v1::ChunkStatus::default()
        },
        ChunkAnswer::Miss(reason) => v1::ChunkStatus {
            state: v1::ChunkState::Miss.into(),
            reason: reason.to_wire().into(),
            ..v1::ChunkStatus::default()
        },
    }
}

fn place(place: PartPlace) -> v1::PartLocation {
    v1::PartLocation { offset_bytes: place.offset_bytes, bytes: place.bytes, digest: digest(&place.digest) }
}

pub(super) fn lease_end(end: LeaseEnd) -> i32 {
    match end {
        LeaseEnd::Live => v1::LeaseOutcome::Live.into(),
        LeaseEnd::Expired => v1::LeaseOutcome::Expired.into(),
    }
}

pub(super) fn reserve_outcome(answer: ReserveAnswer) -> v1::ReserveOutcome {
    match answer {
        ReserveAnswer::Reserved(id) => {
            v1::ReserveOutcome { reservation_id: id.get(), ..v1::ReserveOutcome::default() }
        }
        ReserveAnswer::Already(already) => {
            let state = match already {
                Already::Ready => v1::ChunkState::Ready,
                Already::Pending => v1::ChunkState::Pending,
            };
            v1::ReserveOutcome { already: state.into(), ..v1::ReserveOutcome::default() }
        }
        ReserveAnswer::Refused(reason) => {
            v1::ReserveOutcome { refused: reason.to_wire().into(), ..v1::ReserveOutcome::default() }
        }
    }
}

pub(super) fn store_outcome(answer: &StoreAnswer) -> v1::StoreOutcome {
    v1::StoreOutcome {
        reservation_id: answer.reservation,
        stored: answer.outcome.is_ok(),
        chunk_ready: answer.outcome.is_ok_and(|stored| stored.chunk_ready),
        refused: answer.outcome.err().map_or(0, |reason| reason.to_wire().into()),
    }
}

pub(super) fn stats(stats: Stats, uptime: std::time::Duration) -> v1::StatsResponse {
    v1::StatsResponse {
        arena_bytes: stats.arena_bytes,
        arena_used_bytes: stats.arena_used_bytes,
        arena_largest_free_bytes: stats.arena_largest_free_bytes,
        arena_place: stats.arena_place.display().to_string(),
        sessions: stats.sessions,
        leases: stats.leases,
        pins: stats.pins,
        reservations: stats.reservations,
        inflight_bytes: stats.inflight_bytes,
        uptime_ms: millis(uptime),
        namespaces: stats.namespaces.into_iter().map(namespace).collect(),
        refusals: reasons(stats.refusals),
    }
}

fn namespace(stats: NamespaceStats) -> v1::NamespaceStats {
    v1::NamespaceStats {
        namespace: Bytes::copy_from_slice(stats.digest.as_bytes()),
        descriptor: Some(stats.descriptor.to_message()),
        pinned_name: stats.pinned_name.unwrap_or_default(),
        ready_chunks: stats.ready_chunks,
        pending_chunks: stats.pending_chunks,
        ready_bytes: stats.ready_bytes,
        lookups: stats.lookups,
        hits: stats.hits,
        pendings: stats.pendings,
        misses: reasons(stats.misses),
        stored_bytes: stats.stored_bytes,
        evicted_chunks: stats.evicted_chunks,
    }
}

fn reasons(counts: Vec<(Reason, u64)>) -> Vec<v1::ReasonCount> {
    counts
        .into_iter()
        .map(|(reason, count)| v1::ReasonCount { reason: reason.to_wire().into(), count })
        .collect()
}

pub(super) fn digest(digest: &ContentDigest) -> Bytes {
    Bytes::copy_from_slice(digest.as_bytes())
}

/// Milliseconds of a message; what is longer than 584 million years is cut.
pub(super) fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
