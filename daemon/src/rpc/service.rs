//! The calls of `tender.v1.Store`, each thin: decode, engine, encode.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use prost::Message;
use tender_proto::limits::MAX_MESSAGE_BYTES;
use tender_proto::{Descriptor, NamespaceDigest, Reason, Refusal, SessionId, v1};
use tender_trace::names;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::caller::Want;
use super::convert;
use super::frames::Rider;
use super::get::GetStream;
use super::session::SessionStream;
use super::{Shared, lookup, put};
use crate::access::Identity;
use crate::engine::{CommitAsk, LeaseGrant, ReserveAnswer, StoreAnswer, Suspects};
use crate::fair::Turn;
use crate::metrics::Path;

/// The service, cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StoreService(pub(super) Arc<Shared>);

type EventStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl v1::store_server::Store for StoreService {
    type SessionStream = EventStream<v1::SessionEvent>;
    type GetStream = tokio_stream::Empty<Result<v1::GetFrame, Status>>;

    async fn session(
        &self,
        request: Request<v1::SessionRequest>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        Ok(Response::new(Box::pin(SessionStream::open(&self.0, &request)?)))
    }

    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        let identity = self.0.identify("register", &request)?;
        let raw = request.into_inner();
        let decode = || {
            let descriptor = raw.descriptor.as_ref().ok_or_else(|| {
                Refusal::new(Reason::Malformed, "a registration without descriptor", "send the descriptor")
            })?;
            let session = self.0.session_of(&identity, &raw.session_id)?;
            let (descriptor, claimed) =
                (Descriptor::parse(descriptor)?, NamespaceDigest::parse(&raw.namespace)?);
            self.0.check_descriptor(&identity, &descriptor, claimed)?;
            Ok((session, descriptor, claimed))
        };
        self.0.answer("register", decode, |(session, descriptor, claimed)| {
            let name = Some(raw.pinned_name.as_str()).filter(|name| !name.is_empty());
            let namespace = self.0.engine.register(session, descriptor, claimed, name)?;
            let epoch = u64::from(self.0.engine.epoch(session, namespace)?);
            Ok(v1::RegisterResponse { namespace: Bytes::copy_from_slice(namespace.as_bytes()), epoch })
        })
    }

    async fn lookup(
        &self,
        request: Request<v1::LookupRequest>,
    ) -> Result<Response<v1::LookupResponse>, Status> {
        let identity = self.0.identify("lookup", &request)?;
        let raw = request.into_inner();
        let start = Instant::now();
        let asked = lookup::Asked::decode(&self.0, &identity, &raw)?;
        // Leases are granted after the last wait: a caller that goes away leaves none.
        let sought = asked.seek(&self.0).await;
        let answer = asked.answer(&self.0, &sought).map_err(|no| self.0.refuse("lookup", no))?;
        self.0.metrics.call("lookup", start.elapsed());
        Ok(Response::new(answer))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseResponse>, Status> {
        let identity = self.0.identify("release", &request)?;
        let raw = request.into_inner();
        self.0.answer(
            "release",
            || self.0.session_of(&identity, &raw.session_id),
            |session| {
                doubt_aside(&self.0, session, &raw);
                let ends = self.0.engine.release(session, &raw.lease_ids)?;
                Ok(v1::ReleaseResponse { outcomes: ends.into_iter().map(convert::lease_end).collect() })
            },
        )
    }

    async fn reserve(
        &self,
        request: Request<v1::ReserveRequest>,
    ) -> Result<Response<v1::ReserveResponse>, Status> {
        let identity = self.0.identify("reserve", &request)?;
        let raw = request.into_inner();
        let decode = || {
            let session = self.0.session_of(&identity, &raw.session_id)?;
            Ok((session, NamespaceDigest::parse(&raw.namespace)?))
        };
        self.0.answer("reserve", decode, |(session, namespace)| {
            self.0.check_right("reserve", &identity, Want::Write, session, namespace)?;
            tender_trace::note(names::CHUNKS, names::count(raw.items.len()));
            let in_time = |item: &v1::ReserveItem| {
                let ask = convert::reserve_ask(item)?;
                // More than can be stored is refused for its size; the word alone must not cost a tenant its rate.
                let bytes = ask.bytes.min(self.0.engine.max_part_bytes());
                if identity.tenant.may_store(bytes) { Ok(ask) } else { Err(Reason::Throttled) }
            };
            let (asks, refused) = convert::sort_out(&raw.items, in_time);
            // An epoch that no namespace reaches is as stale as one that is over.
            let gathered_in = (raw.epoch != 0).then(|| u32::try_from(raw.epoch).unwrap_or(0));
            let (answers, epoch) = self.0.engine.reserve_gathered(session, namespace, gathered_in, &asks)?;
            self.0.count(&refused);
            self.0.note_quota(&identity, &refused, &answers);
            let merged = convert::merge(&refused, answers, |_, reason| ReserveAnswer::Refused(reason));
            let outcomes = merged.map(convert::reserve_outcome).collect();
            Ok(v1::ReserveResponse { outcomes, epoch: u64::from(epoch) })
        })
    }

    async fn commit(
        &self,
        request: Request<v1::CommitRequest>,
    ) -> Result<Response<v1::CommitResponse>, Status> {
        let start = Instant::now();
        let identity = self.0.identify("commit", &request)?;
        let raw = request.into_inner();
        let session =
            self.0.session_of(&identity, &raw.session_id).map_err(|no| self.0.refuse_here("commit", no))?;
        let (asks, refused) = convert::sort_out(&raw.items, convert::commit_ask);
        let bytes = asks.iter().map(|ask| ask.bytes).fold(0, u64::saturating_add);
        tender_trace::note(names::BYTES, i64::try_from(bytes).unwrap_or(i64::MAX));
        let turn = self.0.fair.turn(identity.tenant.usage.number, bytes).await;
        let answers = commit_aside(&self.0, session, asks, turn).await?;
        // A reservation is over after its commit, also after one that could not be read.
        let unread = raw.items.iter().zip(&refused).filter(|(_, refused)| refused.is_some());
        let unread: Vec<u64> = unread.map(|(item, _)| item.reservation_id).collect();
        if !unread.is_empty() {
            self.0.count(&refused);
            self.0.engine.abort(session, &unread).map_err(|no| self.0.refuse("commit", no))?;
        }
        let merged = convert::merge(&refused, answers, |item, reason| StoreAnswer {
            reservation: raw.items[item].reservation_id,
            outcome: Err(reason),
        });
        let outcomes = merged.map(|answer| convert::store_outcome(&answer)).collect();
        self.0.metrics.call("commit", start.elapsed());
        Ok(Response::new(v1::CommitResponse { outcomes }))
    }

    async fn abort(&self, request: Request<v1::AbortRequest>) -> Result<Response<v1::AbortResponse>, Status> {
        let identity = self.0.identify("abort", &request)?;
        let raw = request.into_inner();
        self.0.answer(
            "abort",
            || self.0.session_of(&identity, &raw.session_id),
            |session| {
                let outcomes = self.0.engine.abort(session, &raw.reservation_ids)?;
                let wire = |no: Option<Reason>| no.map_or(0, |reason| reason.to_wire().into());
                Ok(v1::AbortResponse { refused: outcomes.into_iter().map(wire).collect() })
            },
        )
    }

    async fn put(
        &self,
        request: Request<Streaming<v1::PutFrame>>,
    ) -> Result<Response<v1::PutResponse>, Status> {
        let start = Instant::now();
        let identity = self.0.identify("put", &request)?;
        let answers = put::receive(&self.0, &identity, request.into_inner()).await?;
        self.0.metrics.call("put", start.elapsed());
        Ok(Response::new(v1::PutResponse { outcomes: answers.iter().map(convert::store_outcome).collect() }))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<Self::GetStream>, Status> {
        let identity = self.0.identify("get", &request)?;
        let stream = GetStream::open(&self.0, &identity, &request.into_inner());
        let stream = stream.map_err(|no| self.0.refuse_here("get", no))?;
        // The frames are written by hand; this body only stands in for theirs.
        let mut response = Response::new(tokio_stream::empty());
        response.extensions_mut().insert(Rider::new(stream));
        Ok(response)
    }
}

impl Shared {
    /// A call that takes no time. What does not decode is counted here, what is refused then was counted by the
    /// engine.
    fn answer<A, T>(
        &self,
        call: &'static str,
        decode: impl FnOnce() -> Result<A, Refusal>,
        act: impl FnOnce(A) -> Result<T, Refusal>,
    ) -> Result<Response<T>, Status> {
        let start = Instant::now();
        let ask = decode().map_err(|no| self.refuse_here(call, no))?;
        let answer = act(ask).map_err(|no| self.refuse(call, no))?;
        self.metrics.call(call, start.elapsed());
        Ok(Response::new(answer))
    }

    /// Refusals for the tenant's quotas go into its audit, once for each reason.
    fn note_quota(&self, identity: &Identity, refused: &[Option<Reason>], answers: &[ReserveAnswer]) {
        if refused.contains(&Some(Reason::Throttled)) {
            self.access.note("reserve", identity, Reason::Throttled, "it stores faster than its quota");
        }
        if answers.contains(&ReserveAnswer::Refused(Reason::OverQuota)) {
            let why = "its quota is full of what is in use or being stored";
            self.access.note("reserve", identity, Reason::OverQuota, why);
        }
    }

    fn count(&self, refused: &[Option<Reason>]) {
        refused.iter().flatten().for_each(|&reason| self.engine.count_refusal(reason));
    }

    /// Chunks of many parts can make an answer that no client would take; its lease must not stay then.
    pub(super) fn fits_a_message(
        &self,
        session: SessionId,
        lease: Option<LeaseGrant>,
        answer: &v1::LookupResponse,
    ) -> Result<(), Refusal> {
        let bytes = answer.encoded_len();
        if bytes <= MAX_MESSAGE_BYTES {
            return Ok(());
        }
        if let Some(lease) = lease {
            self.engine.release(session, &[lease.id.get()])?;
        }
        self.engine.count_refusal(Reason::TooLarge);
        Err(Refusal::new(
            Reason::TooLarge,
            format!("an answer of {bytes} bytes"),
            "ask for fewer chunks in one call",
        ))
    }
}

/// Chunks that one call may have looked into.
const MOST_DOUBTS: usize = 64;

/// Looks into what a reader doubts, beside the answer to it: one call's doubts at one time, and each chunk once. Other
/// doubts are forgotten meanwhile: whoever reads the chunk next will tell of it again.
fn doubt_aside(shared: &Arc<Shared>, session: SessionId, request: &v1::ReleaseRequest) {
    if request.suspects.is_empty() {
        return;
    }
    let Ok(turn) = Arc::clone(&shared.doubts).try_acquire_owned() else { return };
    let suspects = request.suspects.iter().map(|suspect| (suspect.lease_id, suspect.chunk_index));
    let suspects: BTreeSet<_> = suspects.take(MOST_DOUBTS).collect();
    let doubted = suspects.into_iter().map(|(lease, index)| {
        shared.engine.suspects(session, lease, &[usize::try_from(index).unwrap_or(usize::MAX)])
    });
    let doubted: Vec<_> = doubted.collect();
    crate::task::aside("doubt", move || {
        let _turn = turn;
        doubted.iter().for_each(Suspects::verify);
    });
}

/// Copies and hashes off the threads that serve lookups, a few at a time. The caller may go away meanwhile: the copy
/// then runs to its end and its outcome stands.
async fn commit_aside(
    shared: &Arc<Shared>,
    session: SessionId,
    asks: Vec<CommitAsk>,
    fair: Turn,
) -> Result<Vec<StoreAnswer>, Status> {
    let broken = || {
        let no = Refusal::new(Reason::Internal, "a commit", "try again; the daemon's log says more");
        shared.refuse_here("commit", no)
    };
    let turn = Arc::clone(&shared.copies).acquire_owned().await.map_err(|_| broken())?;
    let worker = Arc::clone(shared);
    let work = move || {
        // Held until the copy is done, also when nobody waits for it any more.
        let (_turn, _fair) = (turn, fair);
        let answers = worker.engine.commit(session, &asks)?;
        let stored = asks.iter().zip(&answers).filter(|(_, answer)| answer.outcome.is_ok());
        worker.metrics.received(Path::Shm, stored.map(|(ask, _)| ask.bytes).sum());
        Ok(answers)
    };
    let done = crate::task::blocking("commit", work).await.map_err(|_| broken())?;
    done.map_err(|no: Refusal| shared.refuse("commit", no))
}
