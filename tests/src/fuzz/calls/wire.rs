//! Requests as bytes, and what comes back.

use bytes::Bytes;
use http_body_util::BodyExt;
use prost::Message;
use tender_proto::Refusal;
use tonic::body::Body;
use tonic::{Code, Status};

use super::script::Damage;
use crate::wire::{self, messages};

/// What arrives of a request.
pub(super) fn damaged(mut request: Vec<u8>, damage: Option<&Damage>) -> Vec<u8> {
    let Some(damage) = damage else { return request };
    if let Some((at, more)) = &damage.more {
        let at = usize::from(*at).min(request.len());
        request.splice(at..at, more.iter().copied());
    }
    for &(at, with) in &damage.flips {
        if let Some(byte) = request.get_mut(usize::from(at)) {
            *byte ^= with;
        }
    }
    if let Some(cut) = damage.cut {
        request.truncate(usize::from(cut));
    }
    request
}

/// A request as a connection brings it, in two pieces.
pub(super) fn request(method: &str, stream: &[u8]) -> http::Request<Body> {
    let (front, back) = stream.split_at(stream.len() / 3);
    wire::request(method, tokio_stream::iter([front, back].map(Bytes::copy_from_slice)))
}

/// What a call came to: its messages, or why not.
pub(super) type Answer<M> = (Vec<M>, Option<Refusal>);

/// Reads an answer to its end.
pub(super) async fn answer<M: Message + Default>(response: http::Response<Body>) -> Answer<M> {
    assert_eq!(response.status(), http::StatusCode::OK);
    let mut status = Status::from_header_map(response.headers());
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => match frame.into_data() {
                Ok(data) => bytes.extend_from_slice(&data),
                Err(frame) => status = frame.trailers_ref().and_then(Status::from_header_map),
            },
            Err(error) => status = Some(error),
        }
    }
    let Some(status) = status else { panic!("an answer without a status") };
    let refusal = (status.code() != Code::Ok).then(|| refusal(&status));
    (messages(&bytes), refusal)
}

/// Why a call was refused: always typed, and never the daemon's own fault.
pub(super) fn refusal(status: &Status) -> Refusal {
    let refusal = Refusal::from_status(status);
    assert!(
        !status.details().is_empty() || status.code() == Code::Cancelled,
        "an error without details: {status:?}"
    );
    assert_ne!(refusal.reason, tender_proto::Reason::Internal, "{refusal}");
    refusal
}
