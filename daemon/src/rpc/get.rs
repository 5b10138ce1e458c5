//! Parts that go out as frames.
//!
//! A reader that stops reading must not hold memory beyond its lease. Frames that wait for it inside the connection
//! are copies (`frames`); what pins the arena is the part that this stream has open, and a timer closes it when the
//! lease ends. The reader that comes back late finds its stream ended with the reason.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use parking_lot::Mutex;
use tender_proto::{PartIndex, Reason, Refusal, SessionId, v1};
use tender_trace::Span;
use tonic::Status;

use super::pace::Pace;
use super::{Shared, convert};
use crate::access::Identity;
use crate::engine::{ChunkAnswer, Engine, HouseLease, PartReader};
use crate::fair::Turn;
use crate::fault::{self, Fault};
use crate::metrics::{Metrics, Path};
use crate::task::Task;

#[derive(Debug)]
pub(super) struct GetStream {
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    session: SessionId,
    lease: u64,
    max_frame_bytes: usize,
    items: Vec<Item>,
    /// Which item comes next, or is under way.
    item: usize,
    /// Bytes sent of the part that is open.
    sent: usize,
    open: Arc<Mutex<Open>>,
    /// Closes the open part when the lease ends; aborted with the stream.
    timer: Option<Task>,
    pace: Pace,
    /// Of the call: it ends with the stream.
    _span: Span,
    /// Of a stream for another daemon.
    _lease: Option<HouseLease>,
}

/// One part that was asked for.
#[derive(Clone, Copy, Debug)]
struct Item {
    chunk: usize,
    part: PartIndex,
    /// Known before: it is not there.
    missing: Option<Reason>,
}

#[derive(Debug, Default)]
enum Open {
    #[default]
    Nothing,
    Part(Arc<PartReader>),
    Expired,
}

struct Whole(Arc<PartReader>);

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        PartReader::as_ref(&self.0)
    }
}

impl GetStream {
    pub(super) fn open(
        shared: &Shared,
        identity: &Identity,
        request: &v1::GetRequest,
    ) -> Result<Self, Refusal> {
        let session = shared.session_of(identity, &request.session_id)?;
        let max = shared.engine.config().max_batch_chunks;
        if request.items.len() > max {
            let subject = format!("a read of {} items", request.items.len());
            return Err(Refusal::new(
                Reason::TooLarge,
                subject,
                format!("ask for at most {max} in one call"),
            ));
        }
        let item = |item: &v1::GetItem| {
            let chunk = usize::try_from(item.chunk_index).unwrap_or(usize::MAX);
            Item { chunk, part: convert::part(item.part), missing: None }
        };
        Ok(Self::of(shared, identity, session, request.lease_id, request.items.iter().map(item).collect()))
    }

    /// All parts of chunks that another daemon asks for; `answers` are from the same lookup as the lease. The whole stream
    /// has the time of that one lease.
    pub(super) fn for_peer(
        shared: &Shared,
        identity: &Identity,
        answers: &[ChunkAnswer],
        parts_of: impl Fn(usize) -> usize,
        lease: Option<HouseLease>,
    ) -> Self {
        let chunk = |(chunk, answer): (usize, &ChunkAnswer)| {
            let missing = match answer {
                ChunkAnswer::Ready { .. } if lease.is_some() => None,
                ChunkAnswer::Ready { .. } => Some(Reason::LeaseExpired),
                ChunkAnswer::Pending => Some(Reason::NeverStored),
                ChunkAnswer::Miss(reason) => Some(*reason),
            };
            (0..).map(PartIndex).take(parts_of(chunk)).map(move |part| Item { chunk, part, missing })
        };
        let items = answers.iter().enumerate().flat_map(chunk).collect();
        // Without a lease nothing is opened, so no session is asked.
        let session = lease.as_ref().map_or(SessionId::from_random([0xff; 16]), |lease| lease.session);
        let id = lease.as_ref().map_or(0, |lease| lease.lease.get());
        Self { _lease: lease, ..Self::of(shared, identity, session, id, items) }
    }

    fn of(shared: &Shared, identity: &Identity, session: SessionId, lease: u64, items: Vec<Item>) -> Self {
        Self {
            engine: Arc::clone(&shared.engine),
            metrics: Arc::clone(&shared.metrics),
            session,
            lease,
            max_frame_bytes: shared.max_frame_bytes,
            items,
            item: 0,
            sent: 0,
            open: Arc::default(),
            timer: None,
            pace: Pace::new(
                &shared.fair,
                &identity.tenant,
                shared.max_frame_bytes,
                shared.engine.limits().max_lease,
            ),
            _span: Span::current(),
            _lease: None,
        }
    }

    /// The next frame of the open part, or the first one of the next item; its payload is lent from the arena and must
    /// be copied at once. A part that was begun and cannot be
    /// ended is the end of the stream, since a frame that says so would be taken for more of it.
    pub(super) fn next_frame(&mut self) -> Option<Result<v1::GetFrame, Status>> {
        let &Item { chunk, part, missing } = self.items.get(self.item)?;
        let first = self.sent == 0;
        if let Some(reason) = missing {
            return Some(Ok(self.failed(reason)));
        }
        if first && let Err(reason) = self.open_part(chunk, part) {
            return Some(Ok(self.failed(reason)));
        }
        // With the arena given away every lease has ended.
        let reader = match &*self.open.lock() {
            Open::Part(_) if self.engine.is_given_away() => None,
            Open::Part(reader) => Some(Arc::clone(reader)),
            Open::Nothing | Open::Expired => None,
        };
        let Some(reader) = reader else { return Some(Err(self.cut())) };
        if fault::hit(Fault::PartRead) {
            return Some(Err(self.broken()));
        }
        let total = reader.as_ref().as_ref().len();
        let end = total.min(self.sent + self.max_frame_bytes);
        let mut frame = v1::GetFrame {
            item: u32::try_from(self.item).unwrap_or(u32::MAX),
            offset_bytes: self.sent as u64,
            ..v1::GetFrame::default()
        };
        if first {
            frame.part_bytes = total as u64;
            frame.digest = convert::digest(&reader.digest());
            frame.coverage = reader.coverage().bits();
        }
        frame.payload = Bytes::from_owner(Whole(reader)).slice(self.sent..end);
        self.metrics.sent(Path::Grpc, (end - self.sent) as u64);
        self.pace.sent((end - self.sent) as u64);
        self.sent = end;
        if end == total {
            self.next_item();
        }
        Some(Ok(frame))
    }

    /// Waits until it is this stream's turn to make a frame.
    pub(super) fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Option<Turn>> {
        if self.item >= self.items.len() {
            return Poll::Ready(None);
        }
        let (open, engine) = (&self.open, &self.engine);
        let over = || matches!(*open.lock(), Open::Expired) || engine.is_given_away();
        self.pace.poll_turn(context, over)
    }

    /// Nothing more comes; a client that asks on gets the end of the stream.
    fn cut(&mut self) -> Status {
        tracing::info!(session = %self.session, lease = self.lease, "a reader was slower than its lease; its stream is cut");
        self.engine.count_refusal(Reason::LeaseExpired);
        self.items.clear();
        let advice = "do not use what came; read faster, or ask for a longer lease";
        Refusal::new(Reason::LeaseExpired, "a stream of parts", advice).to_status()
    }

    /// The part cannot be read on: the end of the stream.
    fn broken(&mut self) -> Status {
        self.engine.count_refusal(Reason::Internal);
        self.items.clear();
        *self.open.lock() = Open::Nothing;
        Refusal::new(Reason::Internal, "a stream of parts", "do not use what came; compute it instead")
            .to_status()
    }

    fn open_part(&mut self, chunk: usize, part: PartIndex) -> Result<(), Reason> {
        let reader = self.engine.read(self.session, self.lease, chunk, part)?;
        if self.timer.is_none() {
            let (deadline, open) = (reader.deadline(), Arc::clone(&self.open));
            self.timer = Some(crate::task::spawn("get deadline", async move {
                tokio::time::sleep_until(deadline.into()).await;
                *open.lock() = Open::Expired;
            }));
        }
        let mut open = self.open.lock();
        if matches!(*open, Open::Expired) {
            return Err(Reason::LeaseExpired);
        }
        *open = Open::Part(Arc::new(reader));
        Ok(())
    }

    fn failed(&mut self, reason: Reason) -> v1::GetFrame {
        let item = u32::try_from(self.item).unwrap_or(u32::MAX);
        self.next_item();
        v1::GetFrame { item, failure: reason.to_wire().into(), ..v1::GetFrame::default() }
    }

    fn next_item(&mut self) {
        self.item += 1;
        self.sent = 0;
        let mut open = self.open.lock();
        if matches!(*open, Open::Part(_)) {
            *open = Open::Nothing;
        }
    }
}
