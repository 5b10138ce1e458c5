//! Calls as bytes, for a daemon without sockets: a message has five bytes in front of it, a flag and its length.

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use prost::Message;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use tonic::body::Body;

/// A message with the five bytes in front of it.
pub fn framed(message: &impl Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0][..], &len, &message].concat()
}

/// A request as a connection brings it, piece by piece.
pub fn request(method: &str, pieces: impl Stream<Item = Bytes> + Send + 'static) -> http::Request<Body> {
    let body = StreamBody::new(pieces.map(|piece| Ok::<_, Status>(Frame::data(piece))));
    let mut request = http::Request::new(Body::new(body));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = format!("/tender.v1.{method}").parse().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
    headers.insert(http::header::TE, http::HeaderValue::from_static("trailers"));
    request
}

/// The messages of a whole body. Panics where it is none.
pub fn messages<M: Message + Default>(mut bytes: &[u8]) -> Vec<M> {
    let mut messages = Vec::new();
    while let Some((&[flag, a, b, c, d], rest)) = bytes.split_first_chunk() {
        assert_eq!(flag, 0);
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        let (message, rest) = rest.split_at(len);
        messages.push(
            M::decode(message).unwrap_or_else(|error| panic!("an answer that cannot be read: {error}")),
        );
        bytes = rest;
    }
    assert!(bytes.is_empty(), "an answer that ends in the middle of a message");
    messages
}
