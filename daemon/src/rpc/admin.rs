//! What operators ask.

use std::sync::Arc;

use bytes::Bytes;
use tender_proto::limits::PROTOCOL_VERSION;
use tender_proto::{NamespaceDigest, Reason, Refusal, v1};
use tonic::{Request, Response, Status};

use super::{Shared, convert};
use crate::engine::ResetScope;
use crate::session::draining;

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

    async fn stats(&self, _: Request<v1::StatsRequest>) -> Result<Response<v1::StatsResponse>, Status> {
        Ok(Response::new(convert::stats(self.0.engine.stats(), self.0.started.elapsed())))
    }

    async fn reset(&self, request: Request<v1::ResetRequest>) -> Result<Response<v1::ResetResponse>, Status> {
        let raw = request.into_inner();
        let scope = match (raw.all, raw.namespace.is_empty()) {
            (true, true) => Ok(ResetScope::All),
            (false, false) => NamespaceDigest::parse(&raw.namespace).map(ResetScope::One),
            _ => Err(Refusal::new(
                Reason::Malformed,
                "a reset of a namespace and of all, or of neither",
                "name one namespace, or set all",
            )),
        };
        let scope = scope.map_err(|no| self.0.refuse_here("reset", no))?;
        let answer = self.0.engine.reset(scope);
        if self.0.engine.is_given_away() {
            // The successor may not know of it: the caller must ask again.
            return Err(self.0.refuse_here("reset", draining()));
        }
        self.0.resets.send_modify(|count| *count += 1);
        if let Some(stack) = &self.0.stack {
            stack.forget(scope).await.map_err(|no| self.0.refuse_here("reset", no))?;
        }
        Ok(Response::new(v1::ResetResponse {
            dropped_chunks: answer.dropped_chunks,
            fenced_reservations: answer.fenced_reservations,
        }))
    }
}
