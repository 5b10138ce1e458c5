//! The services of the fake daemon.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tender_proto::limits::FRAME_PAYLOAD_BYTES;
use tender_proto::v1::admin_server::Admin;
use tender_proto::v1::store_server::Store;
use tender_proto::{Reason, Refusal, v1};
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};

use super::{ARENA_BYTES, Chunk, State, Trick};

pub(super) struct Rpc(pub(super) Arc<State>);

type Events<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Store for Rpc {
    type SessionStream = Events<v1::SessionEvent>;
    type GetStream = Events<v1::GetFrame>;

    async fn session(&self, r: Request<v1::SessionRequest>) -> Result<Response<Self::SessionStream>, Status> {
        let no = |reason| Err(Refusal::new(reason, "the session", "as the test wants").to_status());
        match self.0.trick() {
            Trick::Gone => return no(Reason::Draining),
            Trick::OtherVersion => return no(Reason::VersionMismatch),
            _ => {}
        }
        assert_eq!(r.get_ref().protocol_version, tender_proto::limits::PROTOCOL_VERSION);
        self.0.sessions.fetch_add(1, Ordering::Relaxed);
        let opened = v1::SessionOpened {
            session_id: Bytes::from_static(&[7; 16]),
            boot_id: Bytes::from_static(&[8; 16]),
            shm_offered: true,
            arena_bytes: ARENA_BYTES,
            default_lease_ms: 30_000,
            max_lease_ms: 60_000,
            max_frame_bytes: FRAME_PAYLOAD_BYTES as u64,
            max_part_bytes: 16 << 20,
            max_batch_chunks: 64,
            max_staging_bytes: 16 << 20,
            ..Default::default()
        };
        let opened = v1::SessionEvent { event: Some(v1::session_event::Event::Opened(opened)) };
        let cut = self.0.cut.lock().clone();
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            _ = sender.send(Ok(opened)).await;
            tokio::select! { () = cut.cancelled() => {}, () = sender.closed() => {} }
        });
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))))
    }

    async fn register(
        &self,
        r: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        Ok(Response::new(v1::RegisterResponse { namespace: r.into_inner().namespace, epoch: 1 }))
    }

    async fn lookup(&self, r: Request<v1::LookupRequest>) -> Result<Response<v1::LookupResponse>, Status> {
        self.0.lookups.fetch_add(1, Ordering::Relaxed);
        self.0.stall_if_told().await;
        let trick = self.0.trick();
        let request = r.into_inner();
        let mut held = self.0.held.lock();
        held.fetch(request.fetch);
        let found: Vec<Option<Chunk>> = request
            .chunks
            .iter()
            .map(|id| held.chunks.get(&(id.group, id.hash.clone())).cloned())
            .map(|found| found.filter(|chunk| self.0.trick_on(chunk) != Trick::Miss))
            .collect();
        let mut chunks: Vec<_> = found
            .iter()
            .zip(&request.chunks)
            .map(|(found, id)| match found {
                None if held.expected_ms(&(id.group, id.hash.clone())).is_some() => v1::ChunkStatus {
                    state: v1::ChunkState::Pending.into(),
                    expected_ms: held.expected_ms(&(id.group, id.hash.clone())).unwrap(),
                    ..Default::default()
                },
                None => v1::ChunkStatus {
                    state: v1::ChunkState::Miss.into(),
                    reason: Reason::NeverStored.to_wire().into(),
                    ..Default::default()
                },
                Some(chunk) => {
                    let (offset_bytes, bytes) = self.0.told(chunk);
                    let digest = chunk.digest.clone();
                    let place = v1::PartLocation { offset_bytes, bytes, digest };
                    v1::ChunkStatus {
                        state: v1::ChunkState::Ready.into(),
                        coverage: if trick == Trick::WildCoverage { u64::MAX } else { chunk.coverage },
                        parts: if request.locate { vec![place] } else { Vec::new() },
                        ..Default::default()
                    }
                }
            })
            .collect();
        if trick == Trick::FewerAnswers {
            chunks.pop();
        }
        let mut lease = None;
        if request.lease && found.iter().any(Option::is_some) {
            let id = self.0.number();
            held.leases.insert(id, found);
            lease = Some(v1::Lease { id, lease_ms: 30_000 });
        }
        Ok(Response::new(v1::LookupResponse { chunks, lease }))
    }

    async fn release(&self, r: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseResponse>, Status> {
        self.0.stall_if_told().await;
        let ends = self.0.trick() == Trick::LeaseEnds;
        let mut held = self.0.held.lock();
        let live = |id: &u64| held.leases.remove(id).is_some() && !ends;
        let outcome = |live| if live { v1::LeaseOutcome::Live } else { v1::LeaseOutcome::Expired };
        let ids = &r.get_ref().lease_ids;
        let outcomes = ids.iter().map(live).map(outcome).map(i32::from).collect();
        Ok(Response::new(v1::ReleaseResponse { outcomes }))
    }

    async fn reserve(&self, r: Request<v1::ReserveRequest>) -> Result<Response<v1::ReserveResponse>, Status> {
        self.0.stall_if_told().await;
        let mut held = self.0.held.lock();
        let outcomes = r.into_inner().items.into_iter().map(|item| {
            let chunk = item.chunk.unwrap();
            let mut outcome = v1::ReserveOutcome::default();
            if self.0.trick() == Trick::NoSpace {
                outcome.refused = Reason::NoSpace.to_wire().into();
            } else if held.chunks.contains_key(&(chunk.group, chunk.hash.clone())) {
                outcome.already = v1::ChunkState::Ready.into();
            } else {
                outcome.reservation_id = self.0.number();
                let reserved = (chunk.group, chunk.hash, item.bytes);
                held.reservations.insert(outcome.reservation_id, reserved);
            }
            outcome
        });
        Ok(Response::new(v1::ReserveResponse { outcomes: outcomes.collect(), epoch: 1 }))
    }

    async fn commit(&self, r: Request<v1::CommitRequest>) -> Result<Response<v1::CommitResponse>, Status> {
        self.0.stall_if_told().await;
        let outcomes = r.into_inner().items.into_iter().map(|item| {
            let mut bytes = vec![0; usize::try_from(item.bytes).unwrap()];
            let staged = self.0.held.lock();
            staged.staging.as_ref().unwrap().copy_out(item.staging_offset_bytes, &mut bytes).unwrap();
            drop(staged);
            assert_eq!(blake3::hash(&bytes).as_bytes()[..], item.digest[..]);
            let offset = self.0.room(item.bytes);
            self.0.map.copy_in(offset, &bytes).unwrap();
            let (coverage, digest) = (item.coverage, item.digest);
            self.0
                .publish(item.reservation_id, Chunk { group: 0, coverage, offset, bytes: item.bytes, digest })
        });
        Ok(Response::new(v1::CommitResponse { outcomes: outcomes.collect() }))
    }

    async fn abort(&self, _: Request<v1::AbortRequest>) -> Result<Response<v1::AbortResponse>, Status> {
        Ok(Response::new(v1::AbortResponse::default()))
    }

    async fn put(&self, r: Request<Streaming<v1::PutFrame>>) -> Result<Response<v1::PutResponse>, Status> {
        self.0.stall_if_told().await;
        let (mut frames, mut bytes, mut outcomes) = (r.into_inner(), Vec::new(), Vec::new());
        while let Some(frame) = frames.next().await {
            let frame = frame?;
            assert_eq!(frame.offset_bytes, bytes.len() as u64);
            bytes.extend_from_slice(&frame.payload);
            if frame.digest.is_empty() {
                continue;
            }
            let whole = std::mem::take(&mut bytes);
            assert_eq!(blake3::hash(&whole).as_bytes()[..], frame.digest[..]);
            let offset = self.0.room(whole.len() as u64);
            self.0.map.copy_in(offset, &whole).unwrap();
            let bytes = whole.len() as u64;
            let chunk = Chunk { group: 0, coverage: frame.coverage, offset, bytes, digest: frame.digest };
            outcomes.push(self.0.publish(frame.reservation_id, chunk));
        }
        Ok(Response::new(v1::PutResponse { outcomes }))
    }

    async fn get(&self, r: Request<v1::GetRequest>) -> Result<Response<Self::GetStream>, Status> {
        self.0.stall_if_told().await;
        let request = r.into_inner();
        let leased = self.0.held.lock().leases[&request.lease_id].clone();
        let mut frames = Vec::new();
        for (i, item) in request.items.iter().enumerate() {
            let chunk = leased[item.chunk_index as usize].as_ref().unwrap();
            frames.extend(self.0.frames(u32::try_from(i).unwrap(), chunk));
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(frames.into_iter().map(Ok)))))
    }
}

impl State {
    fn frames(&self, item: u32, chunk: &Chunk) -> Vec<v1::GetFrame> {
        let trick = self.trick_on(chunk);
        let (offset, told_bytes) = match trick {
            Trick::NothingButOk => return Vec::new(),
            Trick::OutOfRange => (chunk.offset, chunk.bytes),
            _ => self.told(chunk),
        };
        let sent = match trick {
            Trick::CutAt(percent) => told_bytes * percent / 100,
            _ => told_bytes,
        };
        let mut bytes = vec![0; usize::try_from(sent).unwrap()];
        self.map.copy_out(offset, &mut bytes).unwrap();
        let frame = 1000.min(bytes.len().max(1));
        let mut frames: Vec<_> = bytes
            .chunks(frame)
            .enumerate()
            .map(|(i, piece)| v1::GetFrame {
                item: if trick == Trick::OutOfRange { item + 1000 } else { item },
                offset_bytes: (i * frame) as u64,
                payload: Bytes::copy_from_slice(piece),
                ..Default::default()
            })
            .collect();
        if let Some(first) = frames.first_mut() {
            first.part_bytes = told_bytes;
            first.coverage = chunk.coverage;
            first.digest = chunk.digest.clone();
        }
        frames
    }
}

#[tonic::async_trait]
impl Admin for Rpc {
    async fn ping(&self, _: Request<v1::PingRequest>) -> Result<Response<v1::PingResponse>, Status> {
        Err(Status::unimplemented("not in tests"))
    }
    async fn stats(&self, _: Request<v1::StatsRequest>) -> Result<Response<v1::StatsResponse>, Status> {
        Err(Status::unimplemented("not in tests"))
    }
    async fn reset(&self, _: Request<v1::ResetRequest>) -> Result<Response<v1::ResetResponse>, Status> {
        let dropped = std::mem::take(&mut self.0.held.lock().chunks).len() as u64;
        Ok(Response::new(v1::ResetResponse { dropped_chunks: dropped, ..v1::ResetResponse::default() }))
    }
    async fn explain(&self, _: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        Err(Status::unimplemented("not in tests"))
    }
    async fn inspect(&self, _: Request<v1::InspectRequest>) -> Result<Response<v1::InspectResponse>, Status> {
        Err(Status::unimplemented("not in tests"))
    }
    type VerifyStream = Events<v1::VerifyProgress>;
    async fn verify(&self, _: Request<v1::VerifyRequest>) -> Result<Response<Self::VerifyStream>, Status> {
        Err(Status::unimplemented("not in tests"))
    }
    async fn drain(&self, _: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        Err(Status::unimplemented("not in tests"))
    }
}
