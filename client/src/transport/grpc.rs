//! The network: parts travel as frames. Their bytes go where they belong as they come, and count only when all of the
//! part was checked.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tender_proto::{Reason, Refusal, SessionId, v1};

use super::calls::{Stored, refusal, store_client, store_outcomes};
use super::connect::Line;
use super::frames::{Broken, FrameCheck, Progress};
use super::messages::{Head, Messages};
use super::staging::Staging;
use super::{ReadAsk, ReadItem, Sink, StagedPart, Transport, TransportKind, region};
use crate::client::{Client, Pace};
use crate::session::{Limits, Session};

/// The transport over one bulk connection.
#[derive(Debug)]
pub(crate) struct Grpc {
    bulk: Line,
    session: SessionId,
    max_frame_bytes: usize,
    staging: Arc<Staging>,
}

impl Grpc {
    /// `bulk` must have been connected where bulk connections run.
    pub(crate) fn new(
        bulk: Line,
        session: SessionId,
        staging_bytes: u64,
        limits: Limits,
    ) -> Result<Self, Refusal> {
        let region = region::private(staging_bytes).map_err(|cause| {
            let subject = format!("{staging_bytes} bytes of staging ({cause})");
            Refusal::new(Reason::NoSpace, subject, "choose a smaller staging_bytes")
        })?;
        let (staging, max_frame_bytes) = (Staging::new(region), limits.max_frame_bytes);
        Ok(Self { bulk, session, max_frame_bytes, staging })
    }

    /// A stream that is given up leaves the results of what it completed.
    async fn pump(
        &self,
        ask: &ReadAsk,
        results: &mut Vec<Result<(), Reason>>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Refusal> {
        let request = v1::GetRequest {
            session_id: Bytes::copy_from_slice(self.session.as_bytes()),
            lease_id: ask.lease.get(),
            items: ask.items.iter().map(get_item).collect(),
        };
        let mut messages = Messages::get(self.bulk.clone(), &request).await?;
        take(&mut messages, &ask.items, self.max_frame_bytes, results, sink).await
    }
}

/// Takes the parts out of an answer, one result after another; an error is the fate of those that have none.
pub(super) async fn take(
    messages: &mut Messages,
    items: &[ReadItem],
    max_frame_bytes: usize,
    results: &mut Vec<Result<(), Reason>>,
    sink: &mut Sink<'_>,
) -> Result<(), Refusal> {
    let mut check = FrameCheck::new(items, max_frame_bytes);
    // What the sink thinks of the item whose frames come now.
    let mut taken = Ok(());
    while check.done() < items.len() {
        let Head { frame, payload_bytes } = messages.next().await?.ok_or_else(cut_short)?;
        let progress = match check.begin_frame(&frame, payload_bytes).map_err(broken)? {
            Some(failed) => failed,
            None => {
                let mut left = payload_bytes;
                while left > 0 {
                    let piece = messages.piece(left).await?;
                    left -= piece.len();
                    let (item, offset_bytes) = check.piece(&piece);
                    if taken.is_ok() {
                        taken = sink(item, offset_bytes, &piece);
                    }
                }
                check.end_frame()
            }
        };
        match progress {
            Progress::More => {}
            Progress::Whole(_) => results.push(std::mem::replace(&mut taken, Ok(()))),
            Progress::Failed(_, reason) => {
                taken = Ok(());
                results.push(Err(reason));
            }
        }
    }
    Ok(())
}

impl Transport for Grpc {
    fn kind(&self) -> TransportKind {
        TransportKind::Grpc
    }

    fn locates(&self) -> bool {
        false
    }

    fn staging(&self) -> &Arc<Staging> {
        &self.staging
    }

    fn read(
        &self,
        client: &Client,
        session: &Arc<Session>,
        ask: &ReadAsk,
        sink: &mut Sink<'_>,
    ) -> Vec<Result<(), Reason>> {
        let mut results = Vec::with_capacity(ask.items.len());
        let pump = self.pump(ask, &mut results, sink);
        let pumped = client.ask_blocking(session, ask.deadline, Pace::Bulk, pump);
        // Whatever the stream did not get to shares the stream's fate.
        let rest = pumped.err().unwrap_or(Reason::Internal);
        results.resize(ask.items.len(), Err(rest));
        results
    }

    fn store(
        &self,
        client: &Client,
        session: &Arc<Session>,
        parts: Vec<StagedPart>,
        deadline: Instant,
    ) -> Vec<Result<Stored, Reason>> {
        let reservations: Vec<_> = parts.iter().map(|part| part.reservation).collect();
        let mut frames = Vec::new();
        for part in parts {
            put_frames(part, self.max_frame_bytes, &mut frames);
        }
        if let Some(first) = frames.first_mut() {
            first.session_id = Bytes::copy_from_slice(self.session.as_bytes());
        }
        let mut store = store_client(self.bulk.clone());
        let put = async {
            let answer = store.put(tokio_stream::iter(frames)).await.map_err(refusal)?.into_inner();
            store_outcomes(&reservations, &answer.outcomes)
        };
        match client.ask_blocking(session, deadline, Pace::Bulk, put) {
            Ok(outcomes) => outcomes,
            Err(reason) => vec![Err(reason); reservations.len()],
        }
    }
}

fn get_item(item: &ReadItem) -> v1::GetItem {
    v1::GetItem { chunk_index: item.chunk_index, part: u32::from(item.part.0) }
}

/// The frames of one part. They lend its bytes from staging; the slot is free when the last one is sent.
fn put_frames(part: StagedPart, max_frame_bytes: usize, into: &mut Vec<v1::PutFrame>) {
    let (reservation_id, coverage, digest) = (part.reservation.get(), part.coverage, part.digest);
    let bytes = Bytes::from_owner(part.slot);
    let mut at = 0;
    while at < bytes.len() {
        let end = bytes.len().min(at + max_frame_bytes);
        into.push(v1::PutFrame {
            reservation_id,
            offset_bytes: at as u64,
            payload: bytes.slice(at..end),
            ..v1::PutFrame::default()
        });
        at = end;
    }
    if let Some(last) = into.last_mut() {
        last.digest = Bytes::copy_from_slice(digest.as_bytes());
        last.coverage = coverage.bits();
    }
}

fn cut_short() -> Refusal {
    Refusal::new(Reason::WrongSize, "a stream of parts", "it ended early; what was missing is recomputed")
}

fn broken(Broken(reason): Broken) -> Refusal {
    Refusal::new(reason, "a stream of parts", "it broke the contract; what was missing is recomputed")
}
