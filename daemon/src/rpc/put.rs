//! Parts that come as frames, straight into the arena.

use tender_proto::limits::FRAME_PAYLOAD_BYTES;
use tender_proto::{ContentDigest, Reason, Refusal, SessionId, v1};
use tonic::{Status, Streaming};

use super::Shared;
use crate::engine::{Engine, PartWriter, StoreAnswer};
use crate::metrics::Path;

/// Receives a stream of parts. What goes wrong with one part is its outcome; its further frames are passed over.
pub(super) async fn receive(
    shared: &Shared,
    mut frames: Streaming<v1::PutFrame>,
) -> Result<Vec<StoreAnswer>, Status> {
    let mut answers = Vec::new();
    let mut receiver = None;
    while let Some(frame) = frames.message().await? {
        shared.metrics.received(Path::Grpc, frame.payload.len() as u64);
        let receiver = match &mut receiver {
            Some(receiver) => receiver,
            None => {
                let session = SessionId::parse(&frame.session_id).map_err(|no: Refusal| {
                    shared.engine.count_refusal(no.reason);
                    no.to_status()
                })?;
                receiver.insert(Receiver { engine: &shared.engine, session, part: None })
            }
        };
        answers.extend(receiver.take(&frame));
    }
    // A part that was begun and not ended is given up with its writer.
    if let Some(Receiver { part: Some((id, Ok(_))), engine, .. }) = receiver {
        engine.count_refusal(Reason::WrongSize);
        answers.push(StoreAnswer { reservation: id, outcome: Err(Reason::WrongSize) });
    }
    Ok(answers)
}

struct Receiver<'a> {
    engine: &'a Engine,
    session: SessionId,
    /// The part under way: its reservation, and its writer until something went wrong.
    part: Option<(u64, Result<PartWriter, ()>)>,
}

impl Receiver<'_> {
    /// Takes a frame; gives the answers of parts that it ends or breaks.
    fn take(&mut self, frame: &v1::PutFrame) -> Vec<StoreAnswer> {
        let id = frame.reservation_id;
        let mut answers = Vec::new();
        if self.part.as_ref().is_none_or(|(current, _)| *current != id) {
            if let Some((left, Ok(_))) = self.part.take() {
                self.engine.count_refusal(Reason::WrongSize);
                answers.push(StoreAnswer { reservation: left, outcome: Err(Reason::WrongSize) });
            }
            let writer = self.engine.begin_write(self.session, id);
            self.part = Some((id, writer.map_err(|reason| answers.push(refused(id, reason)))));
        }
        let Some((_, writer)) = &mut self.part else { return answers };
        let Ok(open) = writer else { return answers };
        if let Err(reason) = write(self.engine, open, frame) {
            *writer = Err(());
            answers.push(refused(id, reason));
        } else if !frame.digest.is_empty()
            && let Some((_, Ok(done))) = self.part.take()
        {
            answers.push(finish(self.engine, done, frame));
        }
        answers
    }
}

fn write(engine: &Engine, writer: &mut PartWriter, frame: &v1::PutFrame) -> Result<(), Reason> {
    if frame.payload.len() > FRAME_PAYLOAD_BYTES {
        engine.count_refusal(Reason::FrameTooLarge);
        return Err(Reason::FrameTooLarge);
    }
    writer.write(frame.offset_bytes, &frame.payload)
}

fn finish(engine: &Engine, writer: PartWriter, frame: &v1::PutFrame) -> StoreAnswer {
    match ContentDigest::parse(&frame.digest) {
        Ok(digest) => writer.finish(digest, frame.coverage),
        Err(no) => {
            engine.count_refusal(no.reason);
            refused(frame.reservation_id, no.reason)
        }
    }
}

fn refused(reservation: u64, reason: Reason) -> StoreAnswer {
    StoreAnswer { reservation, outcome: Err(reason) }
}
