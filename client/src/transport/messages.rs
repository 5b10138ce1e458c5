//! The answer of a `Get`, read by hand: the payload of a frame goes from the connection's buffer to its part in one
//! copy. The generated client would first put every message together, which costs a copy of all bytes.
//!
//! On the wire a message has five bytes in front of it, a flag and its length. Our encoders write a frame's payload
//! last, so what comes before it is its head.

use bytes::{Buf, Bytes};
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt, Full};
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use tender_proto::{Refusal, v1};
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt};

use super::calls::{nonsense, refusal};
use super::connect::Line;

/// Numbers, a digest and an offset: the head of a frame is far below this.
const MAX_HEAD_BYTES: usize = 256;
const PREFIX_BYTES: usize = 5;
const PAYLOAD_TAG: u32 = 15;

/// A frame without its payload, of which this many bytes follow.
#[derive(Debug, PartialEq)]
pub(super) struct Head {
    pub(super) frame: v1::GetFrame,
    pub(super) payload_bytes: usize,
}

/// The messages of one answer.
#[derive(Debug)]
pub(super) struct Messages {
    body: Body,
    /// Received and not read yet: what was read of a payload together with its head, and what came behind it.
    front: Bytes,
    rest: Bytes,
}

impl Messages {
    /// Asks for parts.
    pub(super) async fn get(mut channel: Line, request: &v1::GetRequest) -> Result<Self, Refusal> {
        let mut message = vec![0; PREFIX_BYTES];
        let len = u32::try_from(request.encoded_len()).map_err(|_| nonsense("a request of 4 GiB"))?;
        message[1..].copy_from_slice(&len.to_be_bytes());
        request.encode(&mut message).map_err(|error| nonsense(&error.to_string()))?;
        let mut request = Request::post("/tender.v1.Store/Get")
            .body(Body::new(Full::new(Bytes::from(message))))
            .map_err(|error| nonsense(&error.to_string()))?;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        let lost = |error: tonic::transport::Error| refusal(Status::from_error(error.into()));
        let answer = channel.ready().await.map_err(lost)?.call(request).await.map_err(lost)?;
        // A call that is refused at once has its status among the headers.
        if let Some(status) = Status::from_header_map(answer.headers())
            && status.code() != tonic::Code::Ok
        {
            return Err(refusal(status));
        }
        if answer.status() != http::StatusCode::OK {
            return Err(refusal(Status::unavailable(format!("HTTP status {}", answer.status()))));
        }
        Ok(Self::of(answer.into_body()))
    }

    /// Of an answer that has begun.
    pub(super) fn of(body: Body) -> Self {
        Self { body, front: Bytes::new(), rest: Bytes::new() }
    }

    /// The next frame's head; its payload must be taken before the next one. `None` at the end of the answer.
    pub(super) async fn next(&mut self) -> Result<Option<Head>, Refusal> {
        let mut prefix = [0; PREFIX_BYTES];
        if !self.more().await? {
            return Ok(None);
        }
        self.fill(&mut prefix).await?;
        let [0, length @ ..] = prefix else {
            return Err(nonsense("a compressed message that nobody asked for"));
        };
        let len = u32::from_be_bytes(length) as usize;
        let start_bytes = len.min(MAX_HEAD_BYTES);
        if let Some(start) = self.rest.get(..start_bytes).filter(|_| self.front.is_empty()) {
            // Nothing is cut off the payload with its head: BLAKE3 takes half as long again for pieces that do not begin and end
            // at powers of two.
            let (head, read) = parse(start, len)?;
            self.rest.advance(read);
            return Ok(Some(head));
        }
        let mut start = vec![0; start_bytes];
        self.fill(&mut start).await?;
        let (head, read) = parse(&start, len)?;
        self.front = Bytes::from(start).slice(read..);
        Ok(Some(head))
    }

    /// The next piece of a payload of which `left` bytes are to come.
    pub(super) async fn piece(&mut self, left: usize) -> Result<Bytes, Refusal> {
        if !self.more().await? {
            return Err(nonsense("a message that ends early"));
        }
        let next = if self.front.is_empty() { &mut self.rest } else { &mut self.front };
        Ok(next.split_to(next.len().min(left)))
    }

    async fn fill(&mut self, mut to: &mut [u8]) -> Result<(), Refusal> {
        while !to.is_empty() {
            let piece = self.piece(to.len()).await?;
            let (now, later) = to.split_at_mut(piece.len());
            now.copy_from_slice(&piece);
            to = later;
        }
        Ok(())
    }

    /// Whether there are bytes to read; false at a good end.
    async fn more(&mut self) -> Result<bool, Refusal> {
        while self.front.is_empty() && self.rest.is_empty() {
            let Some(frame) = self.body.frame().await else { return Ok(false) };
            match frame.map_err(refusal)?.into_data() {
                Ok(data) => self.rest = data,
                Err(frame) => {
                    let status = frame.trailers_ref().and_then(Status::from_header_map);
                    return match status {
                        Some(status) if status.code() != tonic::Code::Ok => Err(refusal(status)),
                        _ => Ok(false),
                    };
                }
            }
        }
        Ok(true)
    }
}

/// Reads the head out of the first bytes of a message of `len` bytes; also how many of them it takes.
fn parse(start: &[u8], len: usize) -> Result<(Head, usize), Refusal> {
    let mut rest = start;
    while rest.has_remaining() {
        let before = start.len() - rest.len();
        let (tag, kind) = decode_key(&mut rest).map_err(broken)?;
        let value = match kind {
            WireType::Varint => {
                decode_varint(&mut rest).map_err(broken)?;
                continue;
            }
            WireType::LengthDelimited => decode_varint(&mut rest).map_err(broken)?,
            _ => return Err(nonsense("a frame with fields of an unknown kind")),
        };
        let value = usize::try_from(value).unwrap_or(usize::MAX);
        let at = start.len() - rest.len();
        if tag == PAYLOAD_TAG {
            if at.checked_add(value) != Some(len) {
                return Err(nonsense("a frame whose payload is not its last field"));
            }
            let frame = v1::GetFrame::decode(&start[..before]).map_err(broken)?;
            return Ok((Head { frame, payload_bytes: value }, at));
        }
        if value > rest.len() {
            return Err(nonsense("a frame with a head of more than 256 bytes"));
        }
        rest.advance(value);
    }
    if start.len() < len {
        return Err(nonsense("a frame with a head of more than 256 bytes"));
    }
    let frame = v1::GetFrame::decode(start).map_err(broken)?;
    Ok((Head { frame, payload_bytes: 0 }, start.len()))
}

fn broken(_: prost::DecodeError) -> Refusal {
    nonsense("a frame that cannot be read")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(frame: &v1::GetFrame) -> Result<(Head, usize), Refusal> {
        let message = frame.encode_to_vec();
        parse(&message[..message.len().min(MAX_HEAD_BYTES)], message.len())
    }

    proptest! {
        #[test]
        fn a_frame_is_its_head_and_its_payload(
            item: u32, part_bytes: u64, coverage: u64, offset_bytes: u64, first: bool, payload in 0usize..2000,
        ) {
            let frame = v1::GetFrame {
                item,
                part_bytes,
                coverage,
                offset_bytes,
                digest: if first { vec![7; 32].into() } else { Bytes::new() },
                payload: vec![9; payload].into(),
                ..v1::GetFrame::default()
            };
            let (head, at) = read(&frame).unwrap();
            prop_assert_eq!(head.payload_bytes, payload);
            prop_assert_eq!(at, frame.encoded_len() - payload);
            prop_assert_eq!(head.frame, v1::GetFrame { payload: Bytes::new(), ..frame });
        }

        #[test]
        fn garbage_is_refused_or_read_but_never_more_than_there_is(
            start in proptest::collection::vec(any::<u8>(), 0..256), more in 0usize..1000,
        ) {
            if let Ok((head, at)) = parse(&start, start.len() + more) {
                prop_assert!(at <= start.len());
                prop_assert!(head.payload_bytes == 0 || at + head.payload_bytes == start.len() + more);
            }
        }
    }

    #[test]
    fn a_failure_has_no_payload() {
        let frame =
            v1::GetFrame { item: 3, failure: v1::Reason::LeaseExpired.into(), ..v1::GetFrame::default() };
        assert_eq!(read(&frame).unwrap().0, Head { frame, payload_bytes: 0 });
    }
}
