//! The unary calls of a session, in checked types: messages go no further than this folder.
//!
//! Nothing here waits by itself or retries; deadlines, breaker and the end of the session are `Client::ask`'s.
//! An answer that breaks the contract is refused as [`Reason::Internal`]: its numbers must not be used.

use std::time::{Duration, Instant};

use tender_proto::limits::MAX_MESSAGE_BYTES;
use tender_proto::v1::store_client::StoreClient;
use tender_proto::{
    ChunkId, ContentDigest, Coverage, Descriptor, LeaseId, NamespaceDigest, PartIndex, Reason, Refusal,
    ReservationId, SessionId, v1,
};

use super::connect::Line;

/// Calls in the name of one session.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    store: StoreClient<Line>,
    session: SessionId,
}

/// Where a part lies in the arena, as the daemon says; nothing is checked yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartPlace {
    pub(crate) offset_bytes: u64,
    pub(crate) bytes: u64,
    pub(crate) digest: ContentDigest,
}

/// What a lookup said about one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ChunkAnswer {
    /// `places` has one entry for each part if they were asked for, else none.
    Ready {
        coverage: Coverage,
        places: Vec<PartPlace>,
    },
    /// Somebody is storing it, or the daemon is fetching it and expects it after so many milliseconds. 0: not known.
    Pending {
        expected_ms: u32,
    },
    Miss(Reason),
}

/// A lease, with its time counted from before it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeaseGrant {
    pub(crate) id: LeaseId,
    pub(crate) until: Instant,
}

/// One answer for each chunk, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LookupAnswer {
    pub(crate) chunks: Vec<ChunkAnswer>,
    pub(crate) lease: Option<LeaseGrant>,
}

/// What a lookup shall do beside answering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LookupAsk {
    /// How long the lease shall last; zero for the daemon's default.
    pub(crate) lease: Duration,
    /// Whether to tell where the parts lie.
    pub(crate) locate: bool,
    /// Whether to begin fetching what lower tiers have.
    pub(crate) fetch: bool,
}

/// What an operator may later ask a lookup for.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct LookupMark {
    /// The engine's id of the request; empty for none.
    pub(crate) request_id: String,
    /// Requests that must have asked for a chunk before this engine stores it.
    pub(crate) store_after_requests: u32,
}

/// A part to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReserveAsk {
    pub(crate) chunk: ChunkId,
    pub(crate) part: PartIndex,
    pub(crate) coverage: Coverage,
    pub(crate) bytes: u64,
}

/// The answer to one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReserveAnswer {
    Reserved(ReservationId),
    /// Ready, or being stored by somebody else.
    Already,
    Refused(Reason),
}

/// A part in staging that a reservation waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CommitAsk {
    pub(crate) reservation: ReservationId,
    pub(crate) staging_offset_bytes: u64,
    pub(crate) bytes: u64,
    pub(crate) coverage: Coverage,
    pub(crate) digest: ContentDigest,
}

/// The part is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    /// It was the chunk's last one.
    pub(crate) chunk_ready: bool,
}

impl Calls {
    pub(crate) fn new(store: StoreClient<Line>, session: SessionId) -> Self {
        Self { store, session }
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    pub(crate) fn store(&self) -> StoreClient<Line> {
        self.store.clone()
    }

    fn session_bytes(&self) -> bytes::Bytes {
        bytes::Bytes::copy_from_slice(self.session.as_bytes())
    }

    /// Makes the namespace known, and tells its epoch. The daemon computes the digest itself and must come to the same.
    pub(crate) async fn register(&self, descriptor: &Descriptor) -> Result<(NamespaceDigest, u64), Refusal> {
        let ours = descriptor.digest();
        let request = v1::RegisterRequest {
            session_id: self.session_bytes(),
            descriptor: Some(descriptor.to_message()),
            namespace: bytes::Bytes::copy_from_slice(ours.as_bytes()),
            pinned_name: String::new(),
        };
        let answer = self.store().register(request).await.map_err(refusal)?.into_inner();
        match NamespaceDigest::parse(&answer.namespace)? {
            theirs if theirs == ours => Ok((ours, answer.epoch)),
            _ => Err(nonsense("a namespace that nobody asked for")),
        }
    }

    /// Asks for chunks and leases what is ready.
    pub(crate) async fn lookup(
        &self,
        descriptor: &Descriptor,
        namespace: NamespaceDigest,
        chunks: &[ChunkId],
        ask: LookupAsk,
    ) -> Result<LookupAnswer, Refusal> {
        self.lookup_for(LookupMark::default(), descriptor, namespace, chunks, ask).await
    }

    /// The same in the name of a request.
    pub(crate) async fn lookup_for(
        &self,
        mark: LookupMark,
        descriptor: &Descriptor,
        namespace: NamespaceDigest,
        chunks: &[ChunkId],
        ask: LookupAsk,
    ) -> Result<LookupAnswer, Refusal> {
        let asked = Instant::now();
        let request = v1::LookupRequest {
            session_id: self.session_bytes(),
            namespace: bytes::Bytes::copy_from_slice(namespace.as_bytes()),
            chunks: chunks.iter().map(|c| c.to_message()).collect(),
            lease: true,
            lease_ms: u64::try_from(ask.lease.as_millis()).unwrap_or(u64::MAX),
            locate: ask.locate,
            fetch: ask.fetch,
            request_id: mark.request_id,
            store_after_requests: mark.store_after_requests,
        };
        let answer = self.store().lookup(request).await.map_err(refusal)?.into_inner();
        if answer.chunks.len() != chunks.len() {
            return Err(nonsense("another number of answers than questions"));
        }
        let chunks = chunks
            .iter()
            .zip(answer.chunks)
            .map(|(&chunk, status)| chunk_answer(descriptor, chunk, &status))
            .collect::<Result<_, _>>()?;
        let lease = answer.lease.map(|lease| {
            let id = LeaseId::new(lease.id).ok_or_else(|| nonsense("a lease without a number"))?;
            // Cut, so that a nonsense number cannot overflow the clock.
            let lasts = Duration::from_millis(lease.lease_ms.min(24 * 3600 * 1000));
            Ok::<_, Refusal>(LeaseGrant { id, until: asked + lasts })
        });
        Ok(LookupAnswer { chunks, lease: lease.transpose()? })
    }

    /// Ends a lease; true when it was good until now. Of its chunks, `suspects` did not match their digests.
    pub(crate) async fn release(&self, lease: LeaseId, suspects: &[u32]) -> Result<bool, Refusal> {
        let suspect = |&chunk_index| v1::Suspect { lease_id: lease.get(), chunk_index };
        let request = v1::ReleaseRequest {
            session_id: self.session_bytes(),
            lease_ids: vec![lease.get()],
            suspects: suspects.iter().map(suspect).collect(),
        };
        let answer = self.store().release(request).await.map_err(refusal)?.into_inner();
        // Whatever is not plainly LIVE is not.
        Ok(answer.outcomes == [i32::from(v1::LeaseOutcome::Live)])
    }

    /// Claims room for parts that were gathered in `epoch`. The epoch of now comes with the answers.
    pub(crate) async fn reserve(
        &self,
        namespace: NamespaceDigest,
        epoch: u64,
        asks: &[ReserveAsk],
    ) -> Result<(Vec<ReserveAnswer>, u64), Refusal> {
        let request = v1::ReserveRequest {
            session_id: self.session_bytes(),
            namespace: bytes::Bytes::copy_from_slice(namespace.as_bytes()),
            items: asks.iter().map(reserve_item).collect(),
            epoch,
        };
        let answer = self.store().reserve(request).await.map_err(refusal)?.into_inner();
        if answer.outcomes.len() != asks.len() {
            return Err(nonsense("another number of reservations than was asked for"));
        }
        Ok((answer.outcomes.iter().map(reserve_answer).collect(), answer.epoch))
    }

    /// Hands over parts that lie in staging.
    pub(crate) async fn commit(&self, asks: &[CommitAsk]) -> Result<Vec<Result<Stored, Reason>>, Refusal> {
        let request = v1::CommitRequest {
            session_id: self.session_bytes(),
            items: asks.iter().map(commit_item).collect(),
        };
        let answer = self.store().commit(request).await.map_err(refusal)?.into_inner();
        let reservations: Vec<_> = asks.iter().map(|ask| ask.reservation).collect();
        store_outcomes(&reservations, &answer.outcomes)
    }
}

/// A client with the message limits both sides agreed on.
pub(crate) fn store_client(channel: Line) -> StoreClient<Line> {
    StoreClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

/// What a status says, in our words. For `map_err`.
#[expect(clippy::needless_pass_by_value, reason = "map_err hands over the error")]
pub(crate) fn refusal(status: tonic::Status) -> Refusal {
    Refusal::from_status(&status)
}

/// An answer that breaks the contract.
pub(crate) fn nonsense(what: &str) -> Refusal {
    Refusal::new(
        Reason::Internal,
        format!("an answer with {what}"),
        "upgrade the daemon; the answer was ignored",
    )
}

/// Reads the outcomes of Commit and Put: one for each reservation, in order.
pub(crate) fn store_outcomes(
    reservations: &[ReservationId],
    outcomes: &[v1::StoreOutcome],
) -> Result<Vec<Result<Stored, Reason>>, Refusal> {
    let same = outcomes.len() == reservations.len()
        && outcomes.iter().zip(reservations).all(|(o, r)| o.reservation_id == r.get());
    if !same {
        return Err(nonsense("outcomes of other reservations than were committed"));
    }
    Ok(outcomes
        .iter()
        .map(|o| match o.stored {
            true => Ok(Stored { chunk_ready: o.chunk_ready }),
            false => Err(Reason::from_wire(o.refused).unwrap_or(Reason::Internal)),
        })
        .collect())
}

fn chunk_answer(
    descriptor: &Descriptor,
    chunk: ChunkId,
    status: &v1::ChunkStatus,
) -> Result<ChunkAnswer, Refusal> {
    match v1::ChunkState::try_from(status.state) {
        Ok(v1::ChunkState::Ready) => {
            let coverage = Coverage::new(status.coverage, descriptor.group_of(chunk)?.blocks_per_chunk)?;
            let places = status
                .parts
                .iter()
                .map(|part| {
                    let digest = ContentDigest::parse(&part.digest)?;
                    Ok(PartPlace { offset_bytes: part.offset_bytes, bytes: part.bytes, digest })
                })
                .collect::<Result<_, Refusal>>()?;
            Ok(ChunkAnswer::Ready { coverage, places })
        }
        Ok(v1::ChunkState::Pending) => Ok(ChunkAnswer::Pending { expected_ms: status.expected_ms }),
        Ok(v1::ChunkState::Miss) => {
            Ok(ChunkAnswer::Miss(Reason::from_wire(status.reason).unwrap_or(Reason::NeverStored)))
        }
        Ok(v1::ChunkState::Unspecified) | Err(_) => Err(nonsense("a chunk in no known state")),
    }
}

fn reserve_item(ask: &ReserveAsk) -> v1::ReserveItem {
    v1::ReserveItem {
        chunk: Some(ask.chunk.to_message()),
        part: u32::from(ask.part.0),
        coverage: ask.coverage.bits(),
        bytes: ask.bytes,
    }
}

fn reserve_answer(outcome: &v1::ReserveOutcome) -> ReserveAnswer {
    match ReservationId::new(outcome.reservation_id) {
        Some(id) => ReserveAnswer::Reserved(id),
        None => match v1::ChunkState::try_from(outcome.already) {
            Ok(v1::ChunkState::Ready | v1::ChunkState::Pending) => ReserveAnswer::Already,
            _ => ReserveAnswer::Refused(Reason::from_wire(outcome.refused).unwrap_or(Reason::Internal)),
        },
    }
}

fn commit_item(ask: &CommitAsk) -> v1::CommitItem {
    v1::CommitItem {
        reservation_id: ask.reservation.get(),
        staging_offset_bytes: ask.staging_offset_bytes,
        bytes: ask.bytes,
        coverage: ask.coverage.bits(),
        digest: bytes::Bytes::copy_from_slice(ask.digest.as_bytes()),
    }
}
