//! The answer of a `Get` at the client: right frames that were changed, cut anywhere, or bytes that never were frames.

use arbitrary::{Arbitrary, Unstructured};
use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use prost::Message;
use tender_client::fuzzing::read_answer;
use tender_proto::{BlocksPerChunk, ContentDigest, Coverage, Reason, v1};
use tonic::Status;
use tonic::body::Body;

use super::wait;

const MAX_ITEMS: usize = 6;

#[derive(Arbitrary, Debug)]
struct Draft {
    items: Vec<Item>,
    max_frame: u8,
    changes: Vec<Change>,
    flips: Vec<(u16, u8)>,
    cut: Option<u16>,
    /// Sizes of the pieces that the connection hands over, again and again.
    pieces: Vec<u8>,
    end: End,
    /// After this many bytes the sink takes no more.
    full: Option<u16>,
}

#[derive(Arbitrary, Debug)]
struct Item {
    blocks: u8,
    bits: u64,
    block_bytes: u8,
}

/// Each names a frame, by its number modulo the frames there are.
#[derive(Arbitrary, Debug)]
enum Change {
    Drop(u8),
    Again(u8),
    Swap(u8, u8),
    Item(u8, u32),
    PartBytes(u8, u64),
    Coverage(u8, u64),
    Failure(u8, i32),
    Offset(u8, u64),
    Digest(u8, Vec<u8>),
    Payload(u8, Vec<u8>),
    /// The digest of an item becomes that of what its frames have now.
    Seal(u8),
}

#[derive(Arbitrary, Debug)]
enum End {
    Good,
    Status(u8),
    Silent,
    Lost,
}

/// The first byte chooses: the rest are the bytes of an answer, or what becomes of a right one.
pub fn run(data: &[u8]) {
    let Some((&way, rest)) = data.split_first() else { return };
    if way % 4 == 0 {
        raw(rest);
    } else if let Ok(draft) = Draft::arbitrary_take_rest(Unstructured::new(rest)) {
        drawn(&draft);
    }
}

fn raw(stream: &[u8]) {
    let Ok(blocks) = BlocksPerChunk::new(4) else { return };
    let items = [(Coverage::full(blocks), 64), (Coverage::full(blocks), 200)];
    let body = body(stream, &[], &End::Good);
    let mut have = [0, 0];
    let results = wait(read_answer(&items, 64, body, &mut |item, at, piece: &[u8]| {
        assert_eq!(at, have[item]);
        have[item] += piece.len() as u64;
        Ok(())
    }));
    for ((result, have), (_, bytes)) in results.iter().zip(have).zip(items) {
        assert!(result.is_err() || have == bytes);
    }
}

fn drawn(draft: &Draft) {
    let items: Vec<(Coverage, u64)> = draft.items.iter().take(MAX_ITEMS).filter_map(item).collect();
    let max_frame = usize::from(draft.max_frame).max(1);
    let contents: Vec<Vec<u8>> = (0..).zip(&items).map(|(n, (_, bytes))| content(n, *bytes)).collect();
    let mut right: Vec<ContentDigest> = contents.iter().map(|content| ContentDigest::of(content)).collect();
    let mut frames: Vec<v1::GetFrame> = (0..)
        .zip(&items)
        .zip(&contents)
        .flat_map(|((n, item), content)| split(n, item.0, content, max_frame))
        .collect();
    draft.changes.iter().for_each(|change| apply(change, &mut frames, &mut right));
    let mut stream: Vec<u8> = frames.iter().flat_map(message).collect();
    let end = draft.cut.map_or(stream.len(), |cut| usize::from(cut).min(stream.len()));
    let whole = end == stream.len();
    stream.truncate(end);
    for &(at, with) in &draft.flips {
        if let Some(byte) = stream.get_mut(usize::from(at)) {
            *byte ^= with;
        }
    }

    let mut taken: Vec<Vec<u8>> = vec![Vec::new(); items.len()];
    let mut refused = vec![false; items.len()];
    let room = draft.full.map_or(usize::MAX, usize::from);
    let mut sink = |item: usize, at: u64, piece: &[u8]| {
        assert_eq!(at, taken[item].len() as u64, "pieces come in order and without gaps");
        assert!(!refused[item], "nothing more comes of an item that was refused");
        taken[item].extend_from_slice(piece);
        refused[item] = taken[item].len() > room;
        if refused[item] { Err(Reason::NoSpace) } else { Ok(()) }
    };
    let results = wait(read_answer(&items, max_frame, body(&stream, &draft.pieces, &draft.end), &mut sink));

    assert_eq!(results.len(), items.len());
    for ((result, taken), (_, bytes)) in results.iter().zip(&taken).zip(&items) {
        assert!(taken.len() as u64 <= *bytes);
        if result.is_ok() {
            assert_eq!(taken.len() as u64, *bytes);
            assert!(right.contains(&ContentDigest::of(taken)), "wrong bytes were taken for right ones");
        }
    }
    let untouched = whole && draft.changes.is_empty() && draft.flips.is_empty() && draft.full.is_none();
    if untouched {
        assert_eq!(results, vec![Ok(()); items.len()]);
        assert_eq!(taken, contents);
    }
}

fn item(item: &Item) -> Option<(Coverage, u64)> {
    let blocks = BlocksPerChunk::new(u32::from(item.blocks % 64) + 1).ok()?;
    let coverage = Coverage::new(item.bits & Coverage::full(blocks).bits(), blocks).ok()?;
    // A part without blocks is never asked for.
    let bytes = u64::from(coverage.count()) * u64::from(item.block_bytes % 16 + 1);
    (bytes > 0).then_some((coverage, bytes))
}

fn content(n: u32, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(bytes).unwrap_or(0)];
    blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut content);
    content
}

fn split(item: u32, coverage: Coverage, content: &[u8], max_frame: usize) -> Vec<v1::GetFrame> {
    let frame = |(n, piece): (usize, &[u8])| {
        let first = n == 0;
        v1::GetFrame {
            item,
            part_bytes: if first { content.len() as u64 } else { 0 },
            digest: if first { digest(content) } else { Bytes::new() },
            coverage: if first { coverage.bits() } else { 0 },
            failure: 0,
            offset_bytes: (n * max_frame) as u64,
            payload: piece.to_vec().into(),
        }
    };
    content.chunks(max_frame).enumerate().map(frame).collect()
}

fn digest(content: &[u8]) -> Bytes {
    Bytes::copy_from_slice(ContentDigest::of(content).as_bytes())
}

fn apply(change: &Change, frames: &mut Vec<v1::GetFrame>, right: &mut Vec<ContentDigest>) {
    let count = frames.len();
    if count == 0 {
        return;
    }
    let at = |n: u8| usize::from(n) % count;
    match change {
        Change::Drop(n) => _ = frames.remove(at(*n)),
        Change::Again(n) => {
            let again = frames[at(*n)].clone();
            frames.insert(at(*n), again);
        }
        Change::Swap(a, b) => frames.swap(at(*a), at(*b)),
        Change::Item(n, item) => frames[at(*n)].item = *item,
        Change::PartBytes(n, bytes) => frames[at(*n)].part_bytes = *bytes,
        Change::Coverage(n, bits) => frames[at(*n)].coverage = *bits,
        Change::Failure(n, reason) => frames[at(*n)].failure = *reason,
        Change::Offset(n, offset) => frames[at(*n)].offset_bytes = *offset,
        Change::Digest(n, digest) => frames[at(*n)].digest = digest.clone().into(),
        Change::Payload(n, payload) => frames[at(*n)].payload = payload.clone().into(),
        Change::Seal(n) => {
            let item = frames[at(*n)].item;
            let of_item = frames.iter().filter(|frame| frame.item == item);
            let content: Vec<u8> = of_item.flat_map(|frame| frame.payload.iter().copied()).collect();
            right.push(ContentDigest::of(&content));
            if let Some(first) = frames.iter_mut().find(|frame| frame.item == item) {
                first.digest = digest(&content);
            }
        }
    }
}

/// As it goes over the wire.
fn message(frame: &v1::GetFrame) -> Vec<u8> {
    let message = frame.encode_to_vec();
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0][..], &len, &message].concat()
}

fn body(stream: &[u8], pieces: &[u8], end: &End) -> Body {
    let mut rest = Bytes::copy_from_slice(stream);
    let mut frames = Vec::new();
    let sizes = pieces.iter().map(|size| usize::from(*size)).chain([usize::MAX]).collect::<Vec<_>>();
    for size in sizes.iter().cycle() {
        frames.push(Ok(Frame::data(rest.split_to(rest.len().min(*size)))));
        if rest.is_empty() {
            break;
        }
    }
    let trailers = |status: Status| {
        let mut trailers = http::HeaderMap::new();
        status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))
    };
    match end {
        End::Good => frames.push(trailers(Status::ok(""))),
        End::Status(code) => frames.push(trailers(Status::new(i32::from(*code % 20).into(), "an end"))),
        End::Silent => {}
        End::Lost => frames.push(Err(Status::unavailable("the connection is lost"))),
    }
    Body::new(StreamBody::new(tokio_stream::iter(frames)))
}
