//! An operator's questions: ping, statistics, reset, and (in the files of this folder) why chunks are missing, what the
//! daemon is, verify and drain. They need no session and block up to their limit.

mod explain;
mod inspect;
mod verify;

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tender_proto::limits::{MAX_MESSAGE_BYTES, PROTOCOL_VERSION};
use tender_proto::v1::admin_client::AdminClient;
use tender_proto::{BootId, Descriptor, NamespaceDigest, Reason, Refusal, v1};

use crate::config::Address;
use crate::credentials::Credentials;
use crate::error::ClientError;
use crate::runtime;
use crate::transport::connect::{Line, connect};
pub use explain::{ChunkFate, Explained, Fate, Question, explain};
pub use inspect::{Directory, Facts, NamespaceInfo, Peer, Tenant, Tier, drain, inspect, namespaces};
pub use verify::{BadChunk, Verified, verify};

/// What a daemon says about itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Pong {
    /// Its version.
    pub daemon_version: String,
    /// The version of the contract it speaks.
    pub protocol_version: u32,
    /// Whether this client speaks the same.
    pub compatible: bool,
    /// Names this start of it, in hexadecimal digits.
    pub boot_id: String,
    /// Time since it started.
    pub uptime_ms: u64,
    /// False while it starts or drains.
    pub ready: bool,
}

/// How much of what a daemon holds, and what it did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DaemonStats {
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Bytes of it that are given out.
    pub arena_used_bytes: u64,
    /// The largest part it could take without evicting.
    pub arena_largest_free_bytes: u64,
    /// The arena's file.
    pub arena_place: String,
    /// Clients that are connected.
    pub sessions: u64,
    /// Promises to readers.
    pub leases: u64,
    /// The same, counted once for each chunk.
    pub pins: u64,
    /// Parts that are being stored.
    pub reservations: u64,
    /// Bytes of them.
    pub inflight_bytes: u64,
    /// Time since it started.
    pub uptime_ms: u64,
    /// What it holds, by namespace.
    pub namespaces: Vec<NamespaceStats>,
    /// How often it said no, by reason.
    pub refusals: Vec<ReasonCount>,
}

/// One namespace of a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NamespaceStats {
    /// Its digest in hexadecimal digits.
    pub namespace: String,
    /// The name an operator gave it; empty for none.
    pub pinned_name: String,
    /// Model of the descriptor.
    pub model: String,
    /// Weights revision or fingerprint of the descriptor.
    pub weights: String,
    /// Element type of the descriptor.
    pub kv_dtype: String,
    /// Scale mode of the descriptor.
    pub quantisation: String,
    /// Byte order inside a page.
    pub page_format: String,
    /// Tokens of one chunk, for each group.
    pub tokens_per_chunk: Vec<u64>,
    /// Chunks that can be read.
    pub ready_chunks: u64,
    /// Chunks that are being stored.
    pub pending_chunks: u64,
    /// Bytes of the ready ones.
    pub ready_bytes: u64,
    /// Keys asked for.
    pub lookups: u64,
    /// Of these, ready.
    pub hits: u64,
    /// Of these, being stored.
    pub pendings: u64,
    /// Of these, not there, by reason.
    pub misses: Vec<ReasonCount>,
    /// Bytes ever stored.
    pub stored_bytes: u64,
    /// Chunks that had to go.
    pub evicted_chunks: u64,
}

/// How often something happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ReasonCount {
    /// Why.
    pub reason: String,
    /// How often.
    pub count: u64,
}

/// What to forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetScope {
    /// One namespace.
    Namespace(NamespaceDigest),
    /// Everything.
    All,
}

/// What a reset dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Dropped {
    /// Chunks that can no longer be found.
    pub chunks: u64,
    /// Stores under way that can no longer become ready.
    pub fenced_reservations: u64,
    /// Other daemons may hold chunks of namespaces that this one does not know.
    pub may_remain_elsewhere: bool,
}

/// Asks whether a daemon is there.
pub fn ping(address: &Address, credentials: &Credentials, limit: Duration) -> Result<Pong, ClientError> {
    let answer =
        ask(address, credentials, limit, |mut admin| async move { admin.ping(v1::PingRequest {}).await })?;
    Ok(Pong {
        daemon_version: answer.daemon_version,
        protocol_version: answer.protocol_version,
        compatible: answer.protocol_version == PROTOCOL_VERSION,
        boot_id: hex::encode(BootId::parse(&answer.boot_id)?.as_bytes()),
        uptime_ms: answer.uptime_ms,
        ready: answer.ready,
    })
}

/// Asks what a daemon holds.
pub fn stats(
    address: &Address,
    credentials: &Credentials,
    limit: Duration,
) -> Result<DaemonStats, ClientError> {
    let answer =
        ask(address, credentials, limit, |mut admin| async move { admin.stats(v1::StatsRequest {}).await })?;
    Ok(DaemonStats {
        arena_bytes: answer.arena_bytes,
        arena_used_bytes: answer.arena_used_bytes,
        arena_largest_free_bytes: answer.arena_largest_free_bytes,
        arena_place: answer.arena_place,
        sessions: answer.sessions,
        leases: answer.leases,
        pins: answer.pins,
        reservations: answer.reservations,
        inflight_bytes: answer.inflight_bytes,
        uptime_ms: answer.uptime_ms,
        namespaces: answer.namespaces.iter().map(namespace_stats).collect::<Result<_, _>>()?,
        refusals: reason_counts(&answer.refusals),
    })
}

/// Makes a daemon forget.
pub fn reset(
    address: &Address,
    credentials: &Credentials,
    scope: ResetScope,
    limit: Duration,
) -> Result<Dropped, ClientError> {
    let request = match scope {
        ResetScope::Namespace(digest) => {
            v1::ResetRequest { namespace: Bytes::copy_from_slice(digest.as_bytes()), all: false }
        }
        ResetScope::All => v1::ResetRequest { namespace: Bytes::new(), all: true },
    };
    let answer = ask(address, credentials, limit, |mut admin| async move { admin.reset(request).await })?;
    Ok(Dropped {
        chunks: answer.dropped_chunks,
        fenced_reservations: answer.fenced_reservations,
        may_remain_elsewhere: answer.may_remain_elsewhere,
    })
}

fn ask<T: Send + 'static, F>(
    address: &Address,
    credentials: &Credentials,
    limit: Duration,
    call: impl FnOnce(AdminClient<Line>) -> F + Send + 'static,
) -> Result<T, ClientError>
where
    F: Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send,
{
    let (to, shown) = (address.clone(), credentials.clone());
    let asking = async move {
        let channel = connect(&to, &shown, limit).await?;
        let admin = AdminClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let answer = call(admin).await.map_err(|status| Refusal::from_status(&status))?;
        Ok::<_, Refusal>(answer.into_inner())
    };
    let answer = runtime::wait(&runtime::calls()?, limit, asking).ok_or_else(|| {
        Refusal::new(
            Reason::Deadline,
            format!("the daemon at {address}"),
            "it did not answer in time; see whether it is overloaded or stopped",
        )
    })?;
    Ok(answer?)
}

fn namespace_stats(raw: &v1::NamespaceStats) -> Result<NamespaceStats, Refusal> {
    let descriptor = Descriptor::parse(&raw.descriptor.clone().unwrap_or_default())?;
    Ok(NamespaceStats {
        namespace: NamespaceDigest::parse(&raw.namespace)?.to_hex(),
        pinned_name: raw.pinned_name.clone(),
        tokens_per_chunk: descriptor.groups.iter().map(tender_proto::Group::tokens_per_chunk).collect(),
        model: descriptor.model,
        weights: descriptor.weights,
        kv_dtype: descriptor.kv_dtype,
        quantisation: descriptor.quantisation,
        page_format: descriptor.page_format,
        ready_chunks: raw.ready_chunks,
        pending_chunks: raw.pending_chunks,
        ready_bytes: raw.ready_bytes,
        lookups: raw.lookups,
        hits: raw.hits,
        pendings: raw.pendings,
        misses: reason_counts(&raw.misses),
        stored_bytes: raw.stored_bytes,
        evicted_chunks: raw.evicted_chunks,
    })
}

fn reason_counts(raw: &[v1::ReasonCount]) -> Vec<ReasonCount> {
    let label = |reason| Reason::from_wire(reason).map_or("unknown", Reason::label).to_owned();
    raw.iter().map(|r| ReasonCount { reason: label(r.reason), count: r.count }).collect()
}
