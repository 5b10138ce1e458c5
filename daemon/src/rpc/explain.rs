//! Why chunks are not there: the engine's answer as a message, and which tier below has them.

use std::time::Instant;

use bytes::Bytes;
use tender_proto::{ChunkId, NamespaceDigest, Reason, Refusal, v1};

use super::convert;
use crate::engine::history::{Left, Told};
use crate::engine::{Engine, Fate};
use crate::tier::{Stack, TierKind};

/// Chunks of a namespace, or those of a request.
#[derive(Debug)]
pub(super) enum Question {
    Chunks(NamespaceDigest, Vec<ChunkId>),
    Request(String),
}

impl Question {
    pub(super) fn parse(raw: v1::ExplainRequest) -> Result<Self, Refusal> {
        match (raw.namespace.is_empty(), raw.request_id.is_empty()) {
            (false, true) => {
                Ok(Self::Chunks(NamespaceDigest::parse(&raw.namespace)?, convert::chunks(&raw.chunks)?))
            }
            (true, false) if raw.chunks.is_empty() => Ok(Self::Request(raw.request_id)),
            _ => Err(Refusal::new(
                Reason::Malformed,
                "a question for chunks and for a request, or for neither",
                "name a namespace and chunks of it, or the id of a request",
            )),
        }
    }

    /// Takes time by chunks and namespaces.
    pub(super) fn answer(self, engine: &Engine) -> Result<v1::ExplainResponse, Refusal> {
        let remembers = engine.remembers();
        let (namespace, chunks, told, ago) = match self {
            Self::Chunks(namespace, chunks) => (namespace, chunks, Vec::new(), None),
            Self::Request(id) => {
                let (asked, ago) = engine.request(&id).ok_or_else(|| no_request(&id))?;
                let (chunks, told) = asked.chunks.iter().copied().unzip();
                (asked.namespace, chunks, told, Some(ago))
            }
        };
        let fates = engine.explain(namespace, &chunks)?;
        let told = told.into_iter().map(Some).chain(std::iter::repeat(None));
        let one = |((&chunk, fate), told): ((&ChunkId, Fate), Option<Told>)| message(chunk, fate, told);
        Ok(v1::ExplainResponse {
            namespace: Bytes::copy_from_slice(namespace.as_bytes()),
            chunks: chunks.iter().zip(fates).zip(told).map(one).collect(),
            asked_ago_ms: ago.map_or(0, convert::millis),
            remembers_ms: remembers.age.map_or(0, |age| convert::millis(age).max(1)),
            overflowed: remembers.overflowed,
        })
    }
}

fn no_request(id: &str) -> Refusal {
    Refusal::new(
        Reason::NeverStored,
        format!("the request '{}'", id.escape_debug()),
        "no lookup of it is remembered: it never came here, it was too long ago, or --history is 0; ask by its tokens",
    )
}

fn message(chunk: ChunkId, fate: Fate, told: Option<Told>) -> v1::ChunkFate {
    let (what, reason) = what(&fate);
    let (told, told_reason) = match told {
        None => (v1::ChunkState::Unspecified, None),
        Some(Told::Ready) => (v1::ChunkState::Ready, None),
        Some(Told::Pending) => (v1::ChunkState::Pending, None),
        Some(Told::Miss(reason)) => (v1::ChunkState::Miss, Some(reason)),
    };
    let wire = |reason: Option<Reason>| reason.map_or(0, |reason| reason.to_wire().into());
    v1::ChunkFate {
        chunk: Some(chunk.to_message()),
        fate: what.into(),
        coverage: fate.ready.map_or(0, |coverage| coverage.bits()),
        reason: wire(reason),
        ago_ms: fate.left.map_or(0, |(_, ago)| convert::millis(ago)),
        elsewhere: fate.elsewhere.iter().map(|other| Bytes::copy_from_slice(other.as_bytes())).collect(),
        asked_by_requests: fate.asked_by,
        store_after_requests: fate.store_after,
        told: told.into(),
        told_reason: wire(told_reason),
        tier: String::new(),
    }
}

/// Adds what lower tiers have of what is not in the arena. They are asked as a lookup asks them, and have its time.
pub(super) async fn below(stack: &Stack, answer: &mut v1::ExplainResponse) -> Result<(), Refusal> {
    let namespace = NamespaceDigest::parse(&answer.namespace)?;
    let here = |fate: &v1::ChunkFate| matches!(fate.fate(), v1::Fate::Ready | v1::Fate::Pending);
    let missing: Vec<_> = answer.chunks.iter_mut().filter(|fate| !here(fate)).collect();
    let chunk = |fate: &&mut v1::ChunkFate| ChunkId::parse(&fate.chunk.clone().unwrap_or_default());
    let chunks = missing.iter().map(chunk).collect::<Result<Vec<_>, _>>()?;
    if chunks.is_empty() {
        return Ok(());
    }
    let holders = stack.holders(namespace, &chunks, Instant::now() + stack.lookup_time()).await;
    for (fate, holder) in missing.into_iter().zip(holders) {
        fate.tier = holder.map_or("", TierKind::name).to_owned();
    }
    Ok(())
}

fn what(fate: &Fate) -> (v1::Fate, Option<Reason>) {
    if fate.ready.is_some() {
        return (v1::Fate::Ready, None);
    }
    if fate.pending {
        return (v1::Fate::Pending, None);
    }
    let what = match fate.left {
        Some((Left::Refused(reason), _)) => return (v1::Fate::Refused, Some(reason)),
        Some((Left::Evicted, _)) => v1::Fate::Evicted,
        Some((Left::EvictedForQuota, _)) => v1::Fate::EvictedForQuota,
        Some((Left::Quarantined, _)) => v1::Fate::Quarantined,
        Some((Left::Reset, _)) => v1::Fate::Reset,
        Some((Left::GivenUp, _)) => v1::Fate::GivenUp,
        // The last one's own asking counts.
        None if fate.store_after > 1 && fate.asked_by < fate.store_after => v1::Fate::BelowReuse,
        None => v1::Fate::NeverStored,
    };
    (what, None)
}
