//! Parts that come as frames, straight into the arena. Whatever is open when the call ends, for whatever reason,
//! is given up by the drop of its writer.

use std::time::Duration;

use tender_proto::{ContentDigest, Reason, Refusal, SessionId, v1};
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status, Streaming};

use super::Shared;
use crate::access::Identity;
use crate::engine::{Engine, PartWriter, StoreAnswer};
use crate::metrics::Path;

/// Receives a stream of parts. What goes wrong with one part is its outcome, and its further frames are passed over.
/// A client that stops sending holds memory no longer than its reservation: the call then ends with what there is.
pub(super) async fn receive(
    shared: &Shared,
    identity: &Identity,
    mut frames: Streaming<v1::PutFrame>,
) -> Result<Vec<StoreAnswer>, Status> {
    // Nothing is reserved by this call yet, so nothing else bounds the wait.
    let patience = Instant::now() + shared.engine.limits().reservation;
    let Ok(first) = timeout_at(patience, frames.message()).await else { return Ok(Vec::new()) };
    let Some(first) = first.map_err(|status| broken(shared, &status))? else { return Ok(Vec::new()) };
    let session =
        shared.session_of(identity, &first.session_id).map_err(|no| shared.refuse_here("put", no))?;
    let mut receiver = Receiver::new(&shared.engine, session, shared.max_frame_bytes);
    let mut frame = first;
    loop {
        shared.metrics.received(Path::Grpc, frame.payload.len() as u64);
        let turn = shared.fair.turn(identity.tenant.usage.number, frame.payload.len() as u64).await;
        let taken = receiver.take(&frame);
        drop(turn);
        taken.map_err(|no| shared.refuse_here("put", no))?;
        match timeout_at(receiver.deadline(), frames.message()).await {
            Ok(Ok(Some(next))) => frame = next,
            Ok(Ok(None)) => break receiver.give_up(Reason::WrongSize),
            Ok(Err(status)) => return Err(broken(shared, &status)),
            Err(_) => break receiver.give_up(Reason::ReservationExpired),
        }
    }
    Ok(receiver.answers)
}

/// The stream itself broke: the client went away (then nobody hears the answer), or sent what is no frame.
fn broken(shared: &Shared, status: &Status) -> Status {
    if status.code() == Code::Cancelled {
        tracing::debug!("a client went away in the middle of a put");
        return Status::cancelled("the client went away");
    }
    shared.refuse_here("put", Refusal::from_status(status))
}

/// What the frames make of the parts. No transport's types but the frame.
struct Receiver<'a> {
    engine: &'a Engine,
    session: SessionId,
    max_frame_bytes: usize,
    /// How long nothing may come while no part is open.
    idle: Duration,
    part: Option<Part>,
    answers: Vec<StoreAnswer>,
}

/// The part that frames come for now.
struct Part {
    reservation: u64,
    /// Gone once something went wrong; that is answered already.
    writer: Option<PartWriter>,
}

impl<'a> Receiver<'a> {
    fn new(engine: &'a Engine, session: SessionId, max_frame_bytes: usize) -> Self {
        let idle = engine.limits().reservation;
        Self { engine, session, max_frame_bytes, idle, part: None, answers: Vec::new() }
    }

    /// When the next frame must have come.
    fn deadline(&self) -> Instant {
        let open = self.part.as_ref().and_then(|part| part.writer.as_ref());
        open.map_or_else(|| Instant::now() + self.idle, |writer| writer.deadline().into())
    }

    /// Takes a frame. Refused as a whole: more parts than one call may have.
    fn take(&mut self, frame: &v1::PutFrame) -> Result<(), Refusal> {
        if self.part.as_ref().is_none_or(|part| part.reservation != frame.reservation_id) {
            self.begin(frame.reservation_id)?;
        }
        let Some(Part { writer: slot, .. }) = &mut self.part else { return Ok(()) };
        let last = !frame.digest.is_empty();
        let Some(writer) = slot else {
            // The frames of a broken part are passed over, its last one included.
            if last {
                self.part = None;
            }
            return Ok(());
        };
        let written = if frame.payload.len() > self.max_frame_bytes {
            self.engine.count_refusal(Reason::FrameTooLarge);
            Err(Reason::FrameTooLarge)
        } else {
            writer.write(frame.offset_bytes, &frame.payload)
        };
        if let Err(reason) = written {
            *slot = None;
            self.answer(frame.reservation_id, reason);
        }
        if last && let Some(part) = self.part.take() {
            self.finish(part, frame);
        }
        Ok(())
    }

    fn begin(&mut self, reservation: u64) -> Result<(), Refusal> {
        self.give_up(Reason::WrongSize);
        let max = self.engine.config().max_batch_chunks;
        if self.answers.len() >= max {
            let advice = format!("send at most {max} in one call");
            return Err(Refusal::new(Reason::TooLarge, "a stream of many parts", advice));
        }
        let writer = match self.engine.begin_write(self.session, reservation) {
            Ok(writer) => Some(writer),
            Err(reason) => {
                self.answer(reservation, reason);
                None
            }
        };
        self.part = Some(Part { reservation, writer });
        Ok(())
    }

    fn finish(&mut self, part: Part, frame: &v1::PutFrame) {
        let Some(writer) = part.writer else { return };
        match ContentDigest::parse(&frame.digest) {
            Ok(digest) => self.answers.push(writer.finish(digest, frame.coverage)),
            Err(no) => {
                self.engine.count_refusal(no.reason);
                self.answer(part.reservation, no.reason);
            }
        }
    }

    /// Ends an open part without its last frame.
    fn give_up(&mut self, reason: Reason) {
        if let Some(Part { reservation, writer: Some(_) }) = self.part.take() {
            self.engine.count_refusal(reason);
            self.answer(reservation, reason);
        }
    }

    fn answer(&mut self, reservation: u64, reason: Reason) {
        self.answers.push(StoreAnswer { reservation, outcome: Err(reason) });
    }
}
