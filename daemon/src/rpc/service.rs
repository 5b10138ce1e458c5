//! The calls of `tender.v1.Store`, each thin.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tender_proto::{Descriptor, NamespaceDigest, Reason, Refusal, SessionId, v1};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::convert;
use super::get::GetStream;
use super::session::SessionStream;
use super::{Shared, put};
use crate::engine::{CommitAsk, LeaseAsk, StoreAnswer};
use crate::metrics::Path;

/// The service, cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StoreService(pub(super) Arc<Shared>);

type EventStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl v1::store_server::Store for StoreService {
    type SessionStream = EventStream<v1::SessionEvent>;
    type GetStream = EventStream<v1::GetFrame>;

    async fn session(
        &self,
        request: Request<v1::SessionRequest>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let stream = SessionStream::open(&self.0, &request.into_inner()).map_err(|no| self.no(&no))?;
        Ok(Response::new(Box::pin(stream)))
    }

    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        self.answer("register", || {
            let raw = request.into_inner();
            let session = SessionId::parse(&raw.session_id)?;
            let descriptor = raw.descriptor.as_ref().ok_or_else(|| {
                Refusal::new(Reason::Malformed, "a registration without descriptor", "send the descriptor")
            })?;
            let (descriptor, claimed) = (Descriptor::parse(descriptor)?, NamespaceDigest::parse(&raw.namespace)?);
            let name = Some(raw.pinned_name.as_str()).filter(|name| !name.is_empty());
            let namespace = self.0.engine.register(session, descriptor, claimed, name)?;
            Ok(v1::RegisterResponse { namespace: Bytes::copy_from_slice(namespace.as_bytes()) })
        })
    }

    async fn lookup(
        &self,
        request: Request<v1::LookupRequest>,
    ) -> Result<Response<v1::LookupResponse>, Status> {
        self.answer("lookup", || {
            let raw = request.into_inner();
            let session = SessionId::parse(&raw.session_id)?;
            let namespace = NamespaceDigest::parse(&raw.namespace)?;
            let ask = match raw.lease {
                true => LeaseAsk::Lease {
                    ttl: (raw.lease_ms > 0).then(|| Duration::from_millis(raw.lease_ms)),
                    locate: raw.locate,
                },
                false => LeaseAsk::None,
            };
            let chunks = convert::chunks(&raw.chunks)?;
            Ok(convert::lookup_answer(self.0.engine.lookup(session, namespace, &chunks, ask)?))
        })
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseResponse>, Status> {
        self.answer("release", || {
            let raw = request.into_inner();
            let ends = self.0.engine.release(SessionId::parse(&raw.session_id)?, &raw.lease_ids)?;
            Ok(v1::ReleaseResponse { outcomes: ends.into_iter().map(convert::lease_end).collect() })
        })
    }

    async fn reserve(
        &self,
        request: Request<v1::ReserveRequest>,
    ) -> Result<Response<v1::ReserveResponse>, Status> {
        self.answer("reserve", || {
            let raw = request.into_inner();
            let session = SessionId::parse(&raw.session_id)?;
            let namespace = NamespaceDigest::parse(&raw.namespace)?;
            let asks = raw.items.iter().map(convert::reserve_ask).collect::<Result<Vec<_>, _>>()?;
            let answers = self.0.engine.reserve(session, namespace, &asks)?;
            Ok(v1::ReserveResponse { outcomes: answers.into_iter().map(convert::reserve_outcome).collect() })
        })
    }

    async fn commit(
        &self,
        request: Request<v1::CommitRequest>,
    ) -> Result<Response<v1::CommitResponse>, Status> {
        let raw = request.into_inner();
        let parsed = SessionId::parse(&raw.session_id).and_then(|session| {
            let asks = raw.items.iter().map(convert::commit_ask).collect::<Result<Vec<_>, _>>()?;
            Ok((session, asks))
        });
        let (session, asks) = parsed.map_err(|no| self.malformed(&no))?;
        let start = Instant::now();
        let answers = self.commit_aside(session, asks).await?;
        self.0.metrics.call("commit", start.elapsed());
        let outcomes = answers.iter().map(convert::store_outcome).collect();
        Ok(Response::new(v1::CommitResponse { outcomes }))
    }

    async fn abort(&self, request: Request<v1::AbortRequest>) -> Result<Response<v1::AbortResponse>, Status> {
        self.answer("abort", || {
            let raw = request.into_inner();
            self.0.engine.abort(SessionId::parse(&raw.session_id)?, &raw.reservation_ids)?;
            Ok(v1::AbortResponse {})
        })
    }

    async fn put(
        &self,
        request: Request<Streaming<v1::PutFrame>>,
    ) -> Result<Response<v1::PutResponse>, Status> {
        let start = Instant::now();
        let answers = put::receive(&self.0, request.into_inner()).await?;
        self.0.metrics.call("put", start.elapsed());
        Ok(Response::new(v1::PutResponse { outcomes: answers.iter().map(convert::store_outcome).collect() }))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<Self::GetStream>, Status> {
        let stream = GetStream::open(&self.0, &request.into_inner()).map_err(|no| self.malformed(&no))?;
        Ok(Response::new(Box::pin(stream)))
    }
}

impl StoreService {
    fn answer<T>(
        &self,
        call: &'static str,
        run: impl FnOnce() -> Result<T, Refusal>,
    ) -> Result<Response<T>, Status> {
        let start = Instant::now();
        let answer = run().map(Response::new).map_err(|no| self.no(&no));
        self.0.metrics.call(call, start.elapsed());
        answer
    }

    /// Copies and hashes off the threads that serve lookups, a few at a time.
    async fn commit_aside(&self, session: SessionId, asks: Vec<CommitAsk>) -> Result<Vec<StoreAnswer>, Status> {
        let broken = |what: String| {
            Refusal::new(Reason::Internal, format!("a commit ({what})"), "try again; see the daemon's log").to_status()
        };
        let turn = self.0.copies.acquire().await.map_err(|error| broken(error.to_string()))?;
        let shared = Arc::clone(&self.0);
        // The caller may go away meanwhile; the copy then still runs to its end, and its outcome stands.
        let (answers, sizes) = crate::task::blocking("commit", move || {
            let sizes: u64 = asks.iter().map(|ask| ask.bytes).sum();
            (shared.engine.commit(session, &asks), sizes)
        })
        .await
        .map_err(|error| broken(error.to_string()))?;
        drop(turn);
        let answers = answers.map_err(|no| self.no(&no))?;
        self.0.metrics.received(Path::Shm, sizes);
        Ok(answers)
    }

    /// A refusal that the engine has counted.
    pub(super) fn no(&self, refusal: &Refusal) -> Status {
        tracing::debug!(%refusal, "refused");
        refusal.to_status()
    }

    /// A refusal of a message that did not get to the engine.
    fn malformed(&self, refusal: &Refusal) -> Status {
        self.0.engine.count_refusal(refusal.reason);
        self.no(refusal)
    }
}
