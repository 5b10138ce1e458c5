//! The answer of a `Get`, read as the network transport reads it.

use tender_proto::{Coverage, PartIndex, Reason};
use tonic::body::Body;

use super::grpc::take;
use super::messages::Messages;
use super::{ReadItem, Sink};

/// Reads the parts of an answer. `items` are the coverage and the bytes that each must have. One result for each; only a
/// good one says that the sink had the whole part and that it was right.
pub async fn read_answer(
    items: &[(Coverage, u64)],
    max_frame_bytes: usize,
    body: Body,
    sink: &mut Sink<'_>,
) -> Vec<Result<(), Reason>> {
    let item = |(chunk_index, &(coverage, bytes)): (u32, &(Coverage, u64))| ReadItem {
        chunk_index,
        part: PartIndex(0),
        coverage,
        bytes,
        place: None,
    };
    let items: Vec<_> = (0..).zip(items).map(item).collect();
    let mut results = Vec::new();
    let taken = take(&mut Messages::of(body), &items, max_frame_bytes, &mut results, sink).await;
    let rest = taken.err().map_or(Reason::Internal, |refusal| refusal.reason);
    results.resize(items.len(), Err(rest));
    results
}
