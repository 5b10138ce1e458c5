//! A daemon for tests that keeps the contract, or breaks it on demand. One part per chunk, no eviction, no
//! deadlines; what a daemon must do is tested against the real one.

mod rpc;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, setsockopt, socket,
    sockopt::ReceiveTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike};
use parking_lot::Mutex;
use tender_proto::limits::{HTTP2_FRAME_BYTES, MAX_MESSAGE_BYTES};
use tender_proto::shm::{FdReply, FdRequest, Mapping, fd_socket_path, recv_with_fds, send_with_fds};
use tender_proto::v1::admin_server::AdminServer;
use tender_proto::v1::store_server::StoreServer;
use tender_proto::{ChunkId, Coverage, Reason, v1};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;

use crate::config::Address;
use rpc::Rpc;

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
    /// What lookups that fetch are told to come, and when; `None` for a fetch that was not asked for yet.
    coming: HashMap<(u32, Bytes), Coming>,
    reservations: HashMap<u64, (u32, Bytes, u64)>,
    leases: HashMap<u64, Vec<Option<Chunk>>>,
    staging: Option<Mapping>,
}

/// A chunk that a tier below has.
#[derive(Clone)]
struct Coming {
    chunk: Chunk,
    /// What the daemon expects.
    expected_ms: u32,
    /// What it takes, from when it was asked for; `None`: it never comes.
    takes: Option<Duration>,
    asked: Option<Instant>,
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
        let handle = crate::runtime::calls().unwrap();
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

    /// Holds a chunk as if it had been stored, with bytes of no meaning.
    pub(crate) fn hold(&self, chunk: ChunkId, coverage: Coverage) {
        let message = chunk.to_message();
        self.state.held.lock().chunks.insert((message.group, message.hash), meaningless(chunk, coverage));
    }

    /// Has a chunk in a tier below: a lookup that fetches is told to expect it after so long, and it comes after `takes`.
    pub(crate) fn hold_below(
        &self,
        chunk: ChunkId,
        coverage: Coverage,
        expected: Duration,
        takes: Option<Duration>,
    ) {
        let expected_ms = u32::try_from(expected.as_millis()).unwrap();
        let coming = Coming { chunk: meaningless(chunk, coverage), expected_ms, takes, asked: None };
        let message = chunk.to_message();
        self.state.held.lock().coming.insert((message.group, message.hash), coming);
    }

    pub(crate) fn stored(&self) -> usize {
        self.state.held.lock().chunks.len()
    }
    pub(crate) fn leases(&self) -> usize {
        self.state.held.lock().leases.len()
    }
}

fn meaningless(chunk: ChunkId, coverage: Coverage) -> Chunk {
    Chunk {
        group: u32::from(chunk.group.0),
        coverage: coverage.bits(),
        offset: 0,
        bytes: 64,
        digest: Bytes::from_static(&[0; 32]),
    }
}

impl Held {
    /// A lookup came: what it fetches begins, and what has come is there.
    fn fetch(&mut self, asks: bool) {
        let now = Instant::now();
        let mut come = Vec::new();
        for (key, coming) in &mut self.coming {
            if asks {
                coming.asked.get_or_insert(now);
            }
            if let (Some(takes), Some(asked)) = (coming.takes, coming.asked)
                && now >= asked + takes
            {
                come.push(key.clone());
            }
        }
        for key in come {
            if let Some(coming) = self.coming.remove(&key) {
                self.chunks.insert(key, coming.chunk);
            }
        }
    }
    /// What a lookup is told of a chunk on its way: in how many milliseconds it is expected.
    fn expected_ms(&self, key: &(u32, Bytes)) -> Option<u32> {
        let coming = self.coming.get(key)?;
        let since = u32::try_from(coming.asked?.elapsed().as_millis()).unwrap_or(u32::MAX);
        Some(coming.expected_ms.saturating_sub(since).max(1))
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
