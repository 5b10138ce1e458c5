//! The answer of a `Get` as bytes, written by hand.
//!
//! tonic would put every message into new memory, whose pages are faulted in and given back again and again. Here the
//! bytes of a part are copied once, out of the arena into buffers that go round and stay in a core's cache. They are not
//! lent to the connection, for they would pin the arena until a reader takes them, lease or not: what a connection has
//! queued cannot be taken back from it.
//!
//! On the wire a message has five bytes in front of it, a flag and its length; after the last one comes the status.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes};
use http::{HeaderMap, Response};
use hyper::body::{Body, Frame};
use parking_lot::Mutex;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use tender_proto::v1;
use tonic::Status;

use super::get::GetStream;

const PREFIX_BYTES: usize = 5;
const PAYLOAD_TAG: u32 = 15;
/// What comes before a payload takes less: a digest and some numbers.
const MOST_HEAD_BYTES: usize = 128;
/// Of a payload in its buffer: a line of the processors' caches.
const ALIGNMENT: usize = 64;

/// Rides on the response that tonic makes, until [`framed`] puts it into the place of that one's body.
#[derive(Clone)]
pub(super) struct Rider(Arc<Mutex<Option<FrameBody>>>);

impl Rider {
    pub(super) fn new(stream: GetStream) -> Self {
        Self(Arc::new(Mutex::new(Some(FrameBody { stream, buffers: Buffers::default(), ended: false }))))
    }
}

/// Gives the response of a `Get` its body; others pass.
pub(super) fn framed(mut response: Response<tonic::body::Body>) -> Response<tonic::body::Body> {
    let rider = response.extensions_mut().remove::<Rider>();
    match rider.and_then(|rider| rider.0.lock().take()) {
        Some(body) => response.map(|_| tonic::body::Body::new(body)),
        None => response,
    }
}

struct FrameBody {
    stream: GetStream,
    buffers: Buffers,
    ended: bool,
}

impl Body for FrameBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let turn = ready!(self.stream.poll_turn(context));
        let next = self.stream.next_frame();
        let status = match next {
            Some(Ok(frame)) => {
                let mut buffer = self.buffers.take();
                let begin = encode(frame, &mut buffer)?;
                drop(turn);
                return Poll::Ready(Some(Ok(Frame::data(self.buffers.lend(buffer).slice(begin..)))));
            }
            Some(Err(status)) => status,
            None => Status::ok(""),
        };
        self.ended = true;
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

/// A message with its prefix, and the payload last in it. It begins at the returned place, so that the payload lies as the
/// arena's bytes do: a copy between places that are not aligned to each other takes half as long again.
fn encode(mut frame: v1::GetFrame, into: &mut Vec<u8>) -> Result<usize, Status> {
    let payload = std::mem::take(&mut frame.payload);
    let mut head = Vec::with_capacity(MOST_HEAD_BYTES);
    head.put_bytes(0, PREFIX_BYTES);
    frame.encode(&mut head).map_err(|_| Status::internal("a frame that cannot be written"))?;
    if !payload.is_empty() {
        encode_key(PAYLOAD_TAG, WireType::LengthDelimited, &mut head);
        encode_varint(payload.len() as u64, &mut head);
    }
    let len = u32::try_from(head.len() - PREFIX_BYTES + payload.len())
        .map_err(|_| Status::internal("a frame that does not fit a message"))?;
    head[1..PREFIX_BYTES].copy_from_slice(&len.to_be_bytes());
    into.clear();
    // Before anything is in it, or its place would change afterwards.
    into.reserve(head.len() + payload.len() + ALIGNMENT);
    let begin = (into.as_ptr() as usize + head.len()).wrapping_neg() % ALIGNMENT;
    into.put_bytes(0, begin);
    into.extend_from_slice(&head);
    into.extend_from_slice(&payload);
    Ok(begin)
}

/// Buffers of one stream that are used again. There are as many as the connection queues at one time.
#[derive(Clone, Default)]
struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    fn take(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_default()
    }
    /// The buffer comes back when the connection has sent it.
    fn lend(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { buffer, home: self.clone() })
    }
}

struct Lent {
    buffer: Vec<u8>,
    home: Buffers,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.0.lock().push(std::mem::take(&mut self.buffer));
    }
}

impl fmt::Debug for Rider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rider")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_by_hand_is_what_the_generated_encoder_writes(
            item: u32, part_bytes: u64, coverage: u64, failure in 0i32..40, offset_bytes: u64,
            digest in prop_oneof![Just(Vec::new()), Just(vec![7; 32])],
            payload in proptest::collection::vec(any::<u8>(), 0..2000),
        ) {
            let frame = v1::GetFrame {
                item,
                part_bytes,
                digest: digest.into(),
                coverage,
                failure,
                offset_bytes,
                payload: payload.into(),
            };
            // A buffer that was used before.
            let mut written = vec![0xEE; 50];
            let begin = encode(frame.clone(), &mut written).unwrap();
            let message = frame.encode_to_vec();
            let len = u32::try_from(message.len()).unwrap().to_be_bytes();
            prop_assert_eq!(&written[begin..], &[&[0][..], &len, &message].concat());
            let payload = &written[written.len() - frame.payload.len()..];
            prop_assert_eq!(payload.as_ptr() as usize % ALIGNMENT, 0);
        }
    }

    #[test]
    fn buffers_come_back_when_they_were_sent() {
        let buffers = Buffers::default();
        let mut first = buffers.take();
        first.extend_from_slice(b"first");
        let lent = buffers.lend(first);
        assert_eq!((&lent[..], buffers.take().capacity()), (&b"first"[..], 0));
        drop(lent);
        assert!(buffers.take().capacity() >= 5);
    }
}
