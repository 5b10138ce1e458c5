//! What operators ask.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tender_proto::limits::PROTOCOL_VERSION;
use tender_proto::{Reason, Refusal, v1};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::explain::{self, Question};
use super::{Shared, convert, desk, verify};
use crate::access::Identity;
use crate::engine::{ResetAnswer, ResetScope};
use crate::session::draining;
use crate::task;

#[derive(Clone, Debug)]
pub(crate) struct AdminService(pub(super) Arc<Shared>);

#[tonic::async_trait]
impl v1::admin_server::Admin for AdminService {
    async fn ping(&self, _: Request<v1::PingRequest>) -> Result<Response<v1::PingResponse>, Status> {
        let shared = &self.0;
        Ok(Response::new(v1::PingResponse {
            daemon_version: env!("CARGO_PKG_VERSION").into(),
            protocol_version: PROTOCOL_VERSION,
            boot_id: Bytes::copy_from_slice(shared.boot.as_bytes()),
            uptime_ms: convert::millis(shared.started.elapsed()),
            ready: shared.phase.borrow().is_ready(),
        }))
    }

    async fn stats(&self, request: Request<v1::StatsRequest>) -> Result<Response<v1::StatsResponse>, Status> {
        self.operator("stats", &request)?;
        Ok(Response::new(convert::stats(self.0.engine.stats(), self.0.started.elapsed())))
    }

    async fn reset(&self, request: Request<v1::ResetRequest>) -> Result<Response<v1::ResetResponse>, Status> {
        let identity = self.0.identify("reset", &request)?;
        let raw = request.into_inner();
        let scope = verify::scope_of(&raw.namespace, raw.all, "reset");
        let scope = scope.map_err(|no| self.0.refuse_here("reset", no))?;
        let scope = self.own(&identity, scope).map_err(|no| self.0.refuse_here("reset", no))?;
        let all = scope == Some(ResetScope::All);
        let answer = match scope {
            None => Ok(ResetAnswer::default()),
            Some(scope) => {
                // A caller that goes away must not leave a reset of the arena alone.
                let forgetting = task::finish("reset", forget(Arc::clone(&self.0), scope));
                forgetting
                    .await
                    .map_err(|error| Status::internal(format!("the reset has stopped: {error}")))?
            }
        };
        if self.0.engine.is_given_away() {
            // The successor may not know of it: the caller must ask again.
            return Err(self.0.refuse_here("reset", draining()));
        }
        let answer = answer.map_err(|no| self.0.refuse_here("reset", no))?;
        Ok(Response::new(v1::ResetResponse {
            dropped_chunks: answer.dropped_chunks,
            fenced_reservations: answer.fenced_reservations,
            may_remain_elsewhere: all && self.0.peers.is_some(),
        }))
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::ExplainResponse>, Status> {
        self.operator("explain", &request)?;
        let question = Question::parse(request.into_inner());
        let question = question.map_err(|no| self.0.refuse_here("explain", no))?;
        let engine = Arc::clone(&self.0.engine);
        let answer = self.aside("explain", move || question.answer(&engine)).await?;
        let mut answer = answer.map_err(|no| self.0.refuse("explain", no))?;
        if let Some(stack) = &self.0.stack {
            explain::below(stack, &mut answer).await.map_err(|no| self.0.refuse("explain", no))?;
        }
        Ok(Response::new(answer))
    }

    async fn inspect(
        &self,
        request: Request<v1::InspectRequest>,
    ) -> Result<Response<v1::InspectResponse>, Status> {
        self.operator("inspect", &request)?;
        let shared = Arc::clone(&self.0);
        Ok(Response::new(self.aside("inspect", move || desk::inspect(&shared)).await?))
    }

    type VerifyStream = Pin<Box<dyn Stream<Item = Result<v1::VerifyProgress, Status>> + Send>>;

    async fn verify(
        &self,
        request: Request<v1::VerifyRequest>,
    ) -> Result<Response<Self::VerifyStream>, Status> {
        self.operator("verify", &request)?;
        let raw = request.into_inner();
        let stream = verify::scope_of(&raw.namespace, raw.all, "verify")
            .and_then(|scope| verify::stream(&self.0, scope))
            .map_err(|no| self.0.refuse_here("verify", no))?;
        Ok(Response::new(Box::pin(stream)))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        let identity = self.operator("drain", &request)?;
        tracing::info!(caller = %identity.caller, "told to drain");
        self.0.desk.drain.notify_one();
        Ok(Response::new(v1::DrainResponse { grace_ms: convert::millis(self.0.desk.facts.drain_grace) }))
    }
}

/// Forgets everywhere, and tells the clients also after what failed: the arena may have forgotten, and they must learn the
/// epoch.
async fn forget(shared: Arc<Shared>, scope: ResetScope) -> Result<ResetAnswer, Refusal> {
    let answer = match &shared.stack {
        None => Ok(shared.engine.reset(scope)),
        Some(stack) => stack.forget(scope).await,
    };
    if !shared.engine.is_given_away() {
        shared.engine.tell_reset(scope);
    }
    answer
}

impl AdminService {
    /// The caller, who must be an operator.
    fn operator<T>(&self, call: &'static str, request: &Request<T>) -> Result<Identity, Status> {
        let identity = self.0.identify(call, request)?;
        if identity.general().admin {
            return Ok(identity);
        }
        let no = self.0.access.deny(call, &identity, "it is no operator");
        Err(self.0.refuse_here(call, no))
    }

    /// Runs what takes a moment off the threads that serve lookups.
    async fn aside<T: Send + 'static>(
        &self,
        call: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        task::blocking(call, work).await.map_err(|_| {
            let no = Refusal::new(Reason::Internal, "the call", "try again; the daemon's log says more");
            self.0.refuse_here(call, no)
        })
    }

    /// What of a reset is the caller's: everything for operators, else a namespace of its own domain that it may write
    /// to. `None` where there is nothing to forget: a namespace that is not there, or that the caller has nothing to do
    /// with, which look the same.
    fn own(&self, identity: &Identity, scope: ResetScope) -> Result<Option<ResetScope>, Refusal> {
        let deny = |why| Err(self.0.access.deny("reset", identity, why));
        let digest = match scope {
            ResetScope::All if identity.general().admin => return Ok(Some(ResetScope::All)),
            ResetScope::All => return deny("it is no operator"),
            ResetScope::One(digest) => digest,
        };
        if !identity.general().admin && !identity.may_anywhere() {
            return deny("its tenant has no rights on any namespace");
        }
        let found = self.0.engine.find_in_domain(identity.domain(), digest);
        // Operators name any namespace as Stats shows it.
        let Some((inside, model)) = found else {
            return Ok(identity.general().admin.then_some(ResetScope::One(digest)));
        };
        let rights = identity.rights_on(&model, digest);
        if rights.write || rights.admin {
            return Ok(Some(ResetScope::One(inside)));
        }
        self.0.access.note("reset", identity, Reason::NotAllowed, "it may not write to the namespace");
        Ok(None)
    }
}
