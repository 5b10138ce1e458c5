//! One chunk from one peer, into the arena. Sizes and coverage are held to the descriptor, the parts' bytes to their
//! digests, and those to the fingerprint that the holder published when it stored the chunk.

use std::time::Instant;

use tender_proto::{ChunkId, ContentDigest, Coverage, Group, PartIndex, Reason, v1};
use tender_trace::{Side, names};
use tokio::time::timeout_at;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Streaming};

use super::entry::Fingerprint;
use super::pool::Peer;
use crate::engine::Filling;
use crate::tier::TierNamespace;

/// What is asked for, as the directory has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) namespace: &'a TierNamespace,
    pub(crate) generation: u64,
    pub(crate) chunk: ChunkId,
    pub(crate) coverage: Coverage,
    pub(crate) fingerprint: Fingerprint,
}

/// Why it did not come from this peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failed {
    /// It no longer has it.
    Gone,
    /// It has another version of it than it said: the word in the directory is an old one.
    Stale,
    /// Other bytes than it said, or no sense at all.
    Wrong(&'static str),
    /// Not in time.
    Slow,
    /// It cannot be reached, or broke off.
    Dead(String),
    /// The arena does not take it; not the peer's fault.
    Refused(Reason),
}

/// Reads the chunk and makes it READY. Returns its bytes.
pub(crate) async fn fetch(
    peer: &Peer,
    wanted: Wanted<'_>,
    filling: Filling,
    deadline: Instant,
) -> Result<u64, Failed> {
    let group =
        wanted.namespace.descriptor.group_of(wanted.chunk).map_err(|no| Failed::Refused(no.reason))?;
    let whole = async {
        let mut client = peer.client().map_err(|error| Failed::Dead(error.to_string()))?;
        let request = v1::FetchRequest {
            namespace: bytes::Bytes::copy_from_slice(wanted.namespace.digest.as_bytes()),
            generation: wanted.generation,
            chunks: vec![wanted.chunk.to_message()],
        };
        let answer = client.fetch(traced(request)).await.map_err(dead)?;
        receive(answer.into_inner(), group, wanted, filling).await
    };
    let span = tender_trace::child(names::PEER_FETCH, Side::Asks);
    if !span.is_none() {
        span.set(names::PEER, peer.address.to_string());
    }
    timeout_at(deadline.into(), span.around(whole)).await.unwrap_or(Err(Failed::Slow))
}

/// With the trace that it is part of.
fn traced(request: v1::FetchRequest) -> tonic::Request<v1::FetchRequest> {
    let mut headers = http::HeaderMap::new();
    tender_trace::inject(&mut headers);
    tonic::Request::from_parts(MetadataMap::from_headers(headers), Extensions::default(), request)
}

async fn receive(
    mut frames: Streaming<v1::GetFrame>,
    group: &Group,
    wanted: Wanted<'_>,
    mut filling: Filling,
) -> Result<u64, Failed> {
    let mut digests = Vec::with_capacity(group.parts());
    let mut bytes = 0;
    for part in (0..).map(PartIndex).take(group.parts()) {
        let total = group.part_bytes(part, wanted.coverage).map_err(|no| Failed::Refused(no.reason))?;
        let writer = filling.part(part).ok_or(Failed::Refused(Reason::Internal))?;
        while writer.written_bytes() < total {
            let frame =
                frames.message().await.map_err(dead)?.ok_or(Failed::Wrong("its stream ends too early"))?;
            if frame.failure != 0 {
                return Err(Failed::Gone);
            }
            if frame.item != u32::from(part.0) || frame.payload.is_empty() {
                return Err(Failed::Wrong("a frame that does not belong here"));
            }
            if writer.written_bytes() == 0 {
                digests.push(first(&frame, total, wanted.coverage)?);
            }
            writer.write(frame.offset_bytes, &frame.payload).map_err(|reason| match reason {
                Reason::Malformed | Reason::WrongSize => {
                    Failed::Wrong("frames with a gap, or too many bytes")
                }
                reason => Failed::Refused(reason),
            })?;
        }
        bytes += total;
    }
    if Fingerprint::of(wanted.coverage, digests.iter().copied()) != wanted.fingerprint {
        return Err(Failed::Wrong("another chunk than it had published"));
    }
    filling.finish_all(&digests).map_err(|reason| match reason {
        Reason::BadDigest => Failed::Wrong("bytes that do not match their digest"),
        reason => Failed::Refused(reason),
    })?;
    Ok(bytes)
}

fn first(frame: &v1::GetFrame, total: u64, coverage: Coverage) -> Result<ContentDigest, Failed> {
    if frame.coverage != coverage.bits() {
        return Err(Failed::Stale);
    }
    if frame.part_bytes != total {
        return Err(Failed::Wrong("a part of another size than the namespace has"));
    }
    ContentDigest::parse(&frame.digest).map_err(|_| Failed::Wrong("a digest of no length that digests have"))
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err takes")]
fn dead(status: tonic::Status) -> Failed {
    Failed::Dead(status.to_string())
}
