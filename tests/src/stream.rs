//! Parts from a Get stream.

use bytes::Bytes;
use tender_proto::{Reason, v1};
use tonic::{Status, Streaming};

use crate::raw::{digest, within};

/// One part as the daemon sent it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadPart {
    /// Which blocks it holds.
    pub coverage: u64,
    /// The bytes, checked against the digest that came with them.
    pub bytes: Vec<u8>,
}

/// Collects the parts of a Get stream and holds every rule of `GetFrame` to them. A part that cannot be read is
/// its reason.
pub async fn collect(
    mut stream: Streaming<v1::GetFrame>,
    items: usize,
) -> Result<Vec<Result<ReadPart, Reason>>, Status> {
    let mut parts: Vec<Result<ReadPart, Reason>> = Vec::new();
    let mut open: Option<(u64, Bytes)> = None;
    while let Some(frame) = within(stream.message()).await? {
        let index = usize::try_from(frame.item).expect("an index");
        assert!(index < items, "a frame of item {index} that nobody asked for");
        let failure = Reason::from_wire(frame.failure);
        if let Some(reason) = failure
            && open.take().is_some()
        {
            // It could be read when it began; what came of it counts for nothing.
            parts[index] = Err(reason);
            continue;
        }
        if index == parts.len() {
            assert!(open.is_none(), "item {index} began before the one before it was complete");
            assert_eq!(frame.offset_bytes, 0, "the first frame of an item starts at 0");
            if let Some(reason) = failure {
                assert!(frame.payload.is_empty(), "a failed item has no payload");
                parts.push(Err(reason));
                continue;
            }
            open = Some((frame.part_bytes, frame.digest.clone()));
            parts.push(Ok(ReadPart { coverage: frame.coverage, bytes: Vec::new() }));
        }
        assert_eq!(index + 1, parts.len(), "items come in the order asked for");
        let part = parts[index].as_mut().expect("no frame follows a failure");
        assert_eq!(frame.offset_bytes, part.bytes.len() as u64, "frames are in order and without gaps");
        part.bytes.extend_from_slice(&frame.payload);
        if let Some((part_bytes, expected)) = &open
            && *part_bytes == part.bytes.len() as u64
        {
            assert_eq!(digest(&part.bytes), *expected, "the digest of item {index}");
            open = None;
        }
    }
    assert!(open.is_none() && parts.len() == items, "the stream ended early without an error");
    Ok(parts)
}
