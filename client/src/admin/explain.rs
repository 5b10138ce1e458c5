//! Why chunks are not there.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tender_proto::{ChunkId, NamespaceDigest, Reason, Refusal, v1};

use super::ask;
use crate::config::Address;
use crate::credentials::Credentials;
use crate::error::ClientError;

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// Chunks of a namespace, which is named as [`super::stats`] names it.
    Chunks(NamespaceDigest, Vec<ChunkId>),
    /// The newest lookup of a request, by the engine's id.
    Request(String),
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explained {
    /// Of the chunks.
    pub namespace: NamespaceDigest,
    /// In the order asked for.
    pub chunks: Vec<ChunkFate>,
    /// For a request: time since its lookup.
    pub asked_ago_ms: Option<u64>,
    /// How far back the daemon remembers; `None`: not at all.
    pub remembers_ms: Option<u64>,
    /// Since then something was forgotten for want of room.
    pub overflowed: bool,
}

/// What became of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Lookups find it.
    Ready,
    /// Somebody is storing or fetching it.
    Pending,
    /// Nothing is known of it.
    NeverStored,
    /// It made room for others.
    Evicted,
    /// It made room for others of its domain.
    EvictedForQuota,
    /// It was not stored, see the reason.
    Refused,
    /// Its bytes had changed in memory.
    Quarantined,
    /// A reset has forgotten it.
    Reset,
    /// Whoever stored it gave up.
    GivenUp,
    /// Too few requests have asked for it.
    BelowReuse,
    /// A daemon of a later version has a word for it.
    Unknown,
}

/// What is known of one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkFate {
    /// Which.
    pub chunk: ChunkId,
    /// Now.
    pub fate: Fate,
    /// Raw coverage of one that is ready.
    pub coverage_bits: u64,
    /// Why it was refused.
    pub reason: Option<Reason>,
    /// Since it left.
    pub ago_ms: u64,
    /// Where else the same key is ready.
    pub elsewhere: Vec<NamespaceDigest>,
    /// Remembered requests that asked for it.
    pub asked_by_requests: u32,
    /// How many its engine wants before it stores; 0: not known.
    pub store_after_requests: u32,
    /// What the request was told: hit, pending, or why not.
    pub told: Option<String>,
    /// The tier below that has it, if it is not in the arena: `disk`, `peers` or `shared`.
    pub tier: Option<String>,
}

/// Asks why chunks are not there.
pub fn explain(
    address: &Address,
    credentials: &Credentials,
    question: Question,
    limit: Duration,
) -> Result<Explained, ClientError> {
    let of_request = matches!(question, Question::Request(_));
    let request = match question {
        Question::Chunks(namespace, chunks) => v1::ExplainRequest {
            namespace: Bytes::copy_from_slice(namespace.as_bytes()),
            chunks: chunks.into_iter().map(ChunkId::to_message).collect(),
            request_id: String::new(),
        },
        Question::Request(request_id) => v1::ExplainRequest { request_id, ..Default::default() },
    };
    let answer = ask(address, credentials, limit, |mut admin| async move { admin.explain(request).await })?;
    Ok(Explained {
        namespace: NamespaceDigest::parse(&answer.namespace)?,
        chunks: answer.chunks.iter().map(chunk_fate).collect::<Result<_, _>>()?,
        asked_ago_ms: of_request.then_some(answer.asked_ago_ms),
        remembers_ms: (answer.remembers_ms > 0).then_some(answer.remembers_ms),
        overflowed: answer.overflowed,
    })
}

fn chunk_fate(raw: &v1::ChunkFate) -> Result<ChunkFate, Refusal> {
    let told = match raw.told() {
        v1::ChunkState::Unspecified => None,
        v1::ChunkState::Ready => Some("ready".to_owned()),
        v1::ChunkState::Pending => Some("pending".to_owned()),
        v1::ChunkState::Miss => {
            Some(Reason::from_wire(raw.told_reason).map_or("miss", Reason::label).to_owned())
        }
    };
    Ok(ChunkFate {
        chunk: ChunkId::parse(&raw.chunk.clone().unwrap_or_default())?,
        fate: fate(raw.fate()),
        coverage_bits: raw.coverage,
        reason: Reason::from_wire(raw.reason),
        ago_ms: raw.ago_ms,
        elsewhere: raw.elsewhere.iter().map(|raw| NamespaceDigest::parse(raw)).collect::<Result<_, _>>()?,
        asked_by_requests: raw.asked_by_requests,
        store_after_requests: raw.store_after_requests,
        told,
        tier: Some(raw.tier.clone()).filter(|tier| !tier.is_empty()),
    })
}

fn fate(raw: v1::Fate) -> Fate {
    match raw {
        v1::Fate::Unspecified => Fate::Unknown,
        v1::Fate::Ready => Fate::Ready,
        v1::Fate::Pending => Fate::Pending,
        v1::Fate::NeverStored => Fate::NeverStored,
        v1::Fate::Evicted => Fate::Evicted,
        v1::Fate::EvictedForQuota => Fate::EvictedForQuota,
        v1::Fate::Refused => Fate::Refused,
        v1::Fate::Quarantined => Fate::Quarantined,
        v1::Fate::Reset => Fate::Reset,
        v1::Fate::GivenUp => Fate::GivenUp,
        v1::Fate::BelowReuse => Fate::BelowReuse,
    }
}
