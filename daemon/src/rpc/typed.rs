//! gRPC refuses some calls by itself: a message above the limit or one that does not decode, a method that does not
//! exist. Those statuses pass here on their way out and get the details that every error of this service has; and
//! they are counted and logged like the others.

use http::Response;
use tender_proto::Refusal;
use tonic::body::Body;
use tonic::{Code, Status};

use super::Shared;

/// A status in the headers, that is, of a call that never got a body, is complete and can be replaced.
pub(super) fn typed(shared: &Shared, response: Response<Body>) -> Response<Body> {
    let status = Status::from_header_map(response.headers());
    let bare =
        |status: &Status| !matches!(status.code(), Code::Ok | Code::Cancelled) && status.details().is_empty();
    match status.filter(bare) {
        Some(status) => shared.refuse_here("grpc", Refusal::from_status(&status)).into_http(),
        None => response,
    }
}
