//! A daemon for tests that keeps the contract, or breaks it on demand. One part per chunk, no eviction, no
//! deadlines; what a daemon must do is tested against the real one.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, setsockopt, socket,
    sockopt::ReceiveTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike};
use parking_lot::Mutex;
use tender_proto::limits::{FRAME_PAYLOAD_BYTES, HTTP2_FRAME_BYTES, MAX_MESSAGE_BYTES};
use tender_proto::shm::{FdReply, FdRequest, Mapping, fd_socket_path, recv_with_fds, send_with_fds};
use tender_proto::v1::admin_server::{Admin, AdminServer};
use tender_proto::v1::store_server::{Store, StoreServer};
use tender_proto::{Reason, Refusal, v1};
use tokio::net::UnixListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::config::Address;

const ARENA_BYTES: u64 = 64 << 20;

/// How the daemon misbehaves.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Trick {
    #[default]
    None,
    /// Lookups miss though the chunk is there.
    Miss,
    /// The read breaks off after this share of the part, in percent.
    CutAt(u64),
    /// The part is one byte longer than it should be.
    OtherLength,
    /// The bytes are those of whatever else lies in the arena, its digest that of the chunk.
    OtherBytes,
    /// The bytes' place is outside the arena; over the network, the item is one that was never asked for.
    OutOfRange,
    /// The read ends well at once, with nothing in it.
    NothingButOk,
    /// Calls of the data path get no answer.
    Stall,
    /// Lookups are answered with one answer too few.
    FewerAnswers,
    /// Coverage bits that the chunk does not have.
    WildCoverage,
    /// Leases turn out to have ended.
    LeaseEnds,
    /// No part is taken.
    NoSpace,
    /// The session is closed and no other is given.
    Gone,
    /// Another version of the contract.
    OtherVersion,
}

#[derive(Clone)]
struct Chunk {
    group: u32,
    coverage: u64,
    offset: u64,
    bytes: u64,
    digest: Bytes,
}

#[derive(Default)]
struct Held {
    chunks: HashMap<(u32, Bytes), Chunk>,
    reservations: HashMap<u64, (u32, Bytes, u64)>,
    leases: HashMap<u64, Vec<Option<Chunk>>>,
    staging: Option<Mapping>,
}

pub(crate) struct State {
    trick: Mutex<Trick>,
    /// Whose chunks are played with; `None`: everybody's.
    victim: Mutex<Option<u32>>,
    pub(crate) lookups: AtomicU64,
    pub(crate) sessions: AtomicU64,
    arena: File,
    map: Mapping,
    next: AtomicU64,
    held: Mutex<Held>,
    cut: Mutex<CancellationToken>,
}

/// It runs until dropped.
pub(crate) struct FakeDaemon {
    pub(crate) address: Address,
    pub(crate) state: Arc<State>,
    stop: CancellationToken,
    fds: Option<std::thread::JoinHandle<()>>,
    fds_stop: Arc<AtomicBool>,
    _directory: tempfile::TempDir,
}

impl FakeDaemon {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fake.sock");
        let arena = File::from(memfd_create(c"fake-arena", MFdFlags::MFD_CLOEXEC).unwrap());
        arena.set_len(ARENA_BYTES).unwrap();
        let state = Arc::new(State {
            trick: Mutex::default(),
            victim: Mutex::default(),
            lookups: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
            map: Mapping::read_write(&arena).unwrap(),
            arena,
            next: AtomicU64::new(4096),
            held: Mutex::default(),
            cut: Mutex::default(),
        });
        let fds_stop = Arc::new(AtomicBool::new(false));
        let fds = serve_fds(&path, Arc::clone(&state), Arc::clone(&fds_stop));
        let stop = CancellationToken::new();
        let handle = crate::runtime::handle().unwrap();
        let _inside = handle.enter();
        let listener = UnixListener::bind(&path).unwrap();
        let store = StoreServer::from_arc(Arc::new(Rpc(Arc::clone(&state))))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let admin = AdminServer::new(Rpc(Arc::clone(&state)));
        let server = tonic::transport::Server::builder()
            .max_frame_size(HTTP2_FRAME_BYTES)
            .add_service(store)
            .add_service(admin)
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.clone().cancelled_owned());
        handle.spawn(server);
        let address = Address::Unix(path);
        Self { address, state, stop, fds: Some(fds), fds_stop, _directory: directory }
    }

    pub(crate) fn play(&self, trick: Trick) {
        *self.state.trick.lock() = trick;
        if trick == Trick::Gone {
            self.end_sessions();
        }
    }

    /// Misbehaves with the chunks of one group only.
    pub(crate) fn play_on(&self, group: u32, trick: Trick) {
        *self.state.victim.lock() = Some(group);
        self.play(trick);
    }

    /// Ends every session there is; the next ones are as good as new.
    pub(crate) fn end_sessions(&self) {
        std::mem::take(&mut *self.state.cut.lock()).cancel();
    }

    pub(crate) fn stored(&self) -> usize {
        self.state.held.lock().chunks.len()
    }
    pub(crate) fn leases(&self) -> usize {
        self.state.held.lock().leases.len()
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        self.end_sessions();
        self.stop.cancel();
        self.fds_stop.store(true, Ordering::Relaxed);
        if let Some(fds) = self.fds.take() {
            fds.join().unwrap();
        }
    }
}

fn serve_fds(
    grpc: &std::path::Path,
    state: Arc<State>,
    stop: Arc<AtomicBool>,
) -> std::thread::JoinHandle<()> {
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&fd_socket_path(grpc)).unwrap()).unwrap();
    listen(&listener, Backlog::new(16).unwrap()).unwrap();
    setsockopt(&listener, ReceiveTimeout, &TimeVal::milliseconds(50)).unwrap();
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let Ok(peer) = accept(&listener) else { continue };
            let Ok((packet, _)) = recv_with_fds(peer.as_fd()) else { continue };
            let request = FdRequest::decode(&packet).unwrap();
            let staging = File::from(memfd_create(c"fake-staging", MFdFlags::MFD_CLOEXEC).unwrap());
            staging.set_len(request.staging_bytes).unwrap();
            let reply = FdReply::Granted { arena_bytes: ARENA_BYTES, staging_bytes: request.staging_bytes };
            state.held.lock().staging = Some(Mapping::read_write(&staging).unwrap());
            _ = send_with_fds(peer.as_fd(), &reply.encode(), &[state.arena.as_fd(), staging.as_fd()]);
        }
    })
}

struct Rpc(Arc<State>);

impl State {
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Room in the arena, never given back.
    fn room(&self, bytes: u64) -> u64 {
        self.next.fetch_add(bytes.next_multiple_of(64), Ordering::Relaxed)
    }

    fn trick(&self) -> Trick {
        *self.trick.lock()
    }

    async fn stall_if_told(&self) {
        if self.trick() == Trick::Stall {
            std::future::pending::<()>().await;
        }
    }

    fn publish(&self, reservation: u64, chunk: Chunk) -> v1::StoreOutcome {
        let mut held = self.held.lock();
        match held.reservations.remove(&reservation) {
            Some((group, hash, _)) => {
                held.chunks.insert((group, hash), Chunk { group, ..chunk });
                v1::StoreOutcome {
                    reservation_id: reservation,
                    stored: true,
                    chunk_ready: true,
                    ..Default::default()
                }
            }
            None => v1::StoreOutcome {
                reservation_id: reservation,
                refused: Reason::UnknownReservation.to_wire().into(),
                ..Default::default()
            },
        }
    }

    fn trick_on(&self, chunk: &Chunk) -> Trick {
        match *self.victim.lock() {
            Some(victim) if victim != chunk.group => Trick::None,
            _ => self.trick(),
        }
    }

    /// What the arena holds for a chunk, as the trick wants it told.
    fn told(&self, chunk: &Chunk) -> (u64, u64) {
        match self.trick_on(chunk) {
            Trick::OtherLength => (chunk.offset, chunk.bytes + 1),
            Trick::OtherBytes => (chunk.offset + 64, chunk.bytes),
            Trick::OutOfRange => (ARENA_BYTES - 1, chunk.bytes),
            Trick::NothingButOk => (chunk.offset, 0),
            _ => (chunk.offset, chunk.bytes),
        }
    }
}

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
        Ok(Response::new(v1::RegisterResponse { namespace: r.into_inner().namespace }))
    }

    async fn lookup(&self, r: Request<v1::LookupRequest>) -> Result<Response<v1::LookupResponse>, Status> {
        self.0.lookups.fetch_add(1, Ordering::Relaxed);
        self.0.stall_if_told().await;
        let trick = self.0.trick();
        let request = r.into_inner();
        let mut held = self.0.held.lock();
        let found: Vec<Option<Chunk>> = request
            .chunks
            .iter()
            .map(|id| held.chunks.get(&(id.group, id.hash.clone())).cloned())
            .map(|found| found.filter(|chunk| self.0.trick_on(chunk) != Trick::Miss))
            .collect();
        let mut chunks: Vec<_> = found
            .iter()
            .map(|found| match found {
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
        Ok(Response::new(v1::ReserveResponse { outcomes: outcomes.collect() }))
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
        Ok(Response::new(v1::AbortResponse {}))
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
        tokio::time::sleep(Duration::from_millis(1)).await;
        let dropped = std::mem::take(&mut self.0.held.lock().chunks).len() as u64;
        Ok(Response::new(v1::ResetResponse { dropped_chunks: dropped, fenced_reservations: 0 }))
    }
}
