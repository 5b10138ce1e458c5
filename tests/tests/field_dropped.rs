//! Case 24 of the field reports: a handler whose client goes away is dropped at whatever await it is parked. Here every
//! call of the daemon is dropped at each of its awaits in turn, by a future that counts how often it had to wait, and
//! everything is recounted. The clock stands still, so nothing that is over was ended by its time.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};
use prost::Message;
use tempfile::TempDir;
use tender_daemon::clock::{Clock, ManualClock};
use tender_daemon::engine::{ArenaConfig, Audit, Engine, EngineConfig, Eviction};
use tender_daemon::fuzzing::{InProcess, attend};
use tender_proto::limits::PROTOCOL_VERSION;
use tender_proto::shm::{FdReply, FdRequest, Mapping, recv_with_fds};
use tender_proto::{ChunkId, Descriptor, PartIndex, SessionId, v1};
use tender_tests::wire::{framed, messages, request};
use tender_tests::{attach, conserve, fixture, pattern, raw};
use tokio::net::UnixStream;
use tokio::task::yield_now;
use tokio_stream::StreamExt;
use tonic::body::Body;

const BLOCK_BYTES: u64 = 1500;
const FRAME_BYTES: usize = 2000;
const STAGING_BYTES: u64 = 64 << 10;
/// Promises of the daemon last longer than any test.
const LONG: Duration = Duration::from_secs(3600);
/// More awaits than any call has.
const MOST_WAITS: usize = 1000;

/// What comes of a call, bytes for bytes; nothing if it was dropped.
type Call = Pin<Box<dyn Future<Output = Vec<u8>>>>;

/// Runs a call until it waits for the `n`th time, and drops it there. What came of it, if it waits less often.
async fn dropped_at(n: usize, mut call: Call) -> Option<Vec<u8>> {
    let mut waits = 0;
    std::future::poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => {
            waits += 1;
            if waits == n { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}

/// One call over a slow line, both ways: it waits before each piece of a message, and after each frame of the answer.
async fn exchange(daemon: Arc<InProcess>, method: &'static str, stream: Vec<u8>) -> Vec<u8> {
    let step = (stream.len() / 7).clamp(1, FRAME_BYTES / 2);
    let pieces: Vec<_> = stream.chunks(step).map(Bytes::copy_from_slice).collect();
    let pieces = tokio_stream::iter(pieces).then(|piece| async {
        yield_now().await;
        piece
    });
    let mut body = daemon.call(request(method, pieces)).await.into_body();
    let mut answer = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        yield_now().await;
        answer.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        // A session's stream goes on for ever.
        if method == "Store/Session" {
            break;
        }
    }
    answer
}

/// A daemon and one client, which has stored chunk 0, leased it, and reserved a part of chunk 1 and both of chunk 2.
struct World {
    engine: Arc<Engine>,
    clock: Arc<ManualClock>,
    daemon: Arc<InProcess>,
    descriptor: Descriptor,
    session: Bytes,
    /// The session ends with it.
    stream: Body,
    staging: Mapping,
    lease: u64,
    reserved: Vec<(u64, ChunkId, PartIndex)>,
    _dir: TempDir,
}

fn config(dir: &TempDir) -> EngineConfig {
    EngineConfig {
        arena: ArenaConfig {
            place: dir.path().join("arena"),
            bytes: 128 << 10,
            prefault: false,
            keep: false,
            discard: false,
        },
        default_lease: LONG,
        max_lease: LONG,
        reservation: LONG,
        max_inflight_bytes: 1 << 20,
        max_session_inflight_bytes: 1 << 20,
        max_sessions: 4,
        max_leases_per_session: 4,
        max_part_bytes: 1 << 20,
        max_staging_bytes: STAGING_BYTES,
        max_total_staging_bytes: 3 * STAGING_BYTES,
        max_batch_chunks: 100,
        max_namespaces: 4,
        history_bytes: 1 << 16,
        eviction: Eviction::TwoQueue,
    }
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let clock = Arc::new(ManualClock::new());
        let engine =
            Arc::new(Engine::new(config(&dir), Arc::clone(&clock) as Arc<dyn Clock>).expect("an arena"));
        let daemon = Arc::new(InProcess::new(Arc::clone(&engine), FRAME_BYTES));
        let groups = vec![fixture::group(16, 4, &[BLOCK_BYTES]), fixture::group(16, 4, &[BLOCK_BYTES; 2])];
        let descriptor = fixture::descriptor("dropped", groups);
        let (session, stream) = open(&daemon).await;
        let staging = given(&engine, &session).await;
        let mut world = Self {
            engine,
            clock,
            daemon,
            descriptor,
            session,
            stream,
            staging,
            lease: 0,
            reserved: Vec::new(),
            _dir: dir,
        };
        world.ask::<v1::RegisterResponse>("Store/Register", &world.register()).await;
        world.reserved = world.reserve_now(&[(fixture::chunk(0), 0)]).await;
        let stored: v1::PutResponse = answer(&world.put().await);
        assert_eq!(stored.outcomes.iter().filter(|outcome| outcome.chunk_ready).count(), 1);
        let found: v1::LookupResponse = world.ask("Store/Lookup", &world.lookup(true)).await;
        world.lease = found.lease.expect("what is READY is leased").id;
        let twin = fixture::chunk_of(1, 2);
        world.reserved = world.reserve_now(&[(fixture::chunk(1), 0), (twin, 0), (twin, 1)]).await;
        for (&(_, chunk, part), offset) in world.reserved.iter().zip(world.offsets()) {
            world.staging.copy_in(offset, &world.content(chunk, part)).expect("it fits");
        }
        world
    }

    async fn ask<M: Message + Default>(&self, method: &'static str, message: &impl Message) -> M {
        answer(&exchange(Arc::clone(&self.daemon), method, framed(message)).await)
    }

    fn all_chunks() -> [ChunkId; 3] {
        [fixture::chunk(0), fixture::chunk(1), fixture::chunk_of(1, 2)]
    }
    fn content(&self, chunk: ChunkId, part: PartIndex) -> Vec<u8> {
        pattern::blob(&self.descriptor, chunk, part, fixture::full(&self.descriptor))
    }
    fn offsets(&self) -> impl Iterator<Item = u64> {
        (0..self.reserved.len() as u64).map(|n| n * 4 * BLOCK_BYTES)
    }
    fn namespace(&self) -> Bytes {
        raw::raw_digest(self.descriptor.digest())
    }

    fn register(&self) -> v1::RegisterRequest {
        v1::RegisterRequest {
            session_id: self.session.clone(),
            descriptor: Some(self.descriptor.to_message()),
            namespace: self.namespace(),
            pinned_name: String::new(),
        }
    }
    fn lookup(&self, lease: bool) -> v1::LookupRequest {
        v1::LookupRequest {
            session_id: self.session.clone(),
            namespace: self.namespace(),
            chunks: Self::all_chunks().into_iter().map(ChunkId::to_message).collect(),
            lease,
            lease_ms: 0,
            locate: lease,
            fetch: true,
            ..v1::LookupRequest::default()
        }
    }
    fn reserve(&self, parts: &[(ChunkId, u16)]) -> v1::ReserveRequest {
        let full = fixture::full(&self.descriptor);
        let bytes = usize::try_from(4 * BLOCK_BYTES).expect("it fits");
        let item = |&(chunk, part)| raw::item(chunk, PartIndex(part), full, bytes);
        let items = parts.iter().map(item).collect();
        v1::ReserveRequest { session_id: self.session.clone(), namespace: self.namespace(), items, epoch: 0 }
    }
    async fn reserve_now(&self, parts: &[(ChunkId, u16)]) -> Vec<(u64, ChunkId, PartIndex)> {
        let reserved: v1::ReserveResponse = self.ask("Store/Reserve", &self.reserve(parts)).await;
        let given = reserved.outcomes.iter().map(|outcome| outcome.reservation_id);
        let named = given.zip(parts).map(|(id, &(chunk, part))| (id, chunk, PartIndex(part)));
        named.inspect(|(id, ..)| assert_ne!(*id, 0, "{reserved:?}")).collect()
    }
    /// All that is reserved, in frames.
    fn put(&self) -> Call {
        let full = fixture::full(&self.descriptor);
        let frames = self.reserved.iter().flat_map(|&(id, chunk, part)| {
            raw::frames(&self.session, id, full, &self.content(chunk, part), FRAME_BYTES)
        });
        let stream = frames.flat_map(|frame| framed(&frame)).collect();
        Box::pin(exchange(Arc::clone(&self.daemon), "Store/Put", stream))
    }
    /// All that is reserved, from staging.
    fn commit(&self) -> v1::CommitRequest {
        let full = fixture::full(&self.descriptor);
        let items = self.reserved.iter().zip(self.offsets()).map(|(&(id, chunk, part), offset)| {
            attach::commit_item(id, offset, full, &self.content(chunk, part))
        });
        v1::CommitRequest { session_id: self.session.clone(), items: items.collect() }
    }
    fn get(&self) -> v1::GetRequest {
        let items = vec![raw::get_item(0, fixture::PART)];
        v1::GetRequest { session_id: self.session.clone(), lease_id: self.lease, items }
    }

    /// The call of this name, not begun.
    fn call(&self, name: &str) -> Call {
        let session_id = self.session.clone();
        let ids: Vec<u64> = self.reserved.iter().map(|(id, ..)| *id).collect();
        let (method, stream) = match name {
            "put" => return self.put(),
            "commit, waiting for its turn" => return self.commit_behind_others(),
            "descriptors" => return self.descriptors(),
            "session" => ("Store/Session", framed(&session_request())),
            "register" => ("Store/Register", framed(&self.register())),
            "lookup" => ("Store/Lookup", framed(&self.lookup(true))),
            "release" => {
                let suspects = vec![v1::Suspect { lease_id: self.lease, chunk_index: 0 }];
                let lease_ids = vec![self.lease];
                ("Store/Release", framed(&v1::ReleaseRequest { session_id, lease_ids, suspects }))
            }
            "reserve" => ("Store/Reserve", framed(&self.reserve(&[(fixture::chunk(3), 0)]))),
            "commit" => ("Store/Commit", framed(&self.commit())),
            "abort" => ("Store/Abort", framed(&v1::AbortRequest { session_id, reservation_ids: ids })),
            "get" => ("Store/Get", framed(&self.get())),
            "ping" => ("Admin/Ping", framed(&v1::PingRequest {})),
            "stats" => ("Admin/Stats", framed(&v1::StatsRequest {})),
            "reset" => ("Admin/Reset", framed(&v1::ResetRequest { namespace: self.namespace(), all: false })),
            _ => panic!("no call {name}"),
        };
        Box::pin(exchange(Arc::clone(&self.daemon), method, stream))
    }

    /// Others copy for a while; both end with the future.
    fn commit_behind_others(&self) -> Call {
        let others = self.daemon.busy().expect("nobody copies yet");
        let commit = self.call("commit");
        Box::pin(async move {
            let others = async move {
                for _ in 0..20 {
                    yield_now().await;
                }
                drop(others);
            };
            tokio::join!(commit, others).0
        })
    }

    /// Another client of the descriptor socket, for a session that has none of its own yet.
    fn descriptors(&self) -> Call {
        let (engine, daemon) = (Arc::clone(&self.engine), Arc::clone(&self.daemon));
        Box::pin(async move {
            let (session, _stream) = open(&daemon).await;
            given(&engine, &session).await;
            Vec::new()
        })
    }

    /// After a call that was dropped or not: its client goes, and all that it held goes with it at once. What is served
    /// then is right, and whatever was under way can be stored anew.
    async fn check(self, what: &str) {
        // Work that runs on another thread is not dropped; it runs to its end.
        conserve::until(&self.engine, what, |audit| audit.readers + audit.writers == 0).await;
        let Self { engine, clock, daemon, descriptor, staging, stream, _dir, .. } = self;
        drop((stream, staging));
        let free = |audit: &Audit| {
            let held =
                [audit.sessions, audit.leases, audit.pins, audit.reservations, audit.writers, audit.readers];
            held == [0; 6]
        };
        conserve::until(&engine, what, free).await;
        // Parts that are in wait for their chunk's other parts, whoever brings those, until its time is over.
        clock.advance(LONG);
        engine.sweep();
        conserve::deserted(&engine).await;
        let (session, stream) = open(&daemon).await;
        let staging = given(&engine, &session).await;
        let mut next = Self {
            engine,
            clock,
            daemon,
            descriptor,
            session,
            stream,
            staging,
            lease: 0,
            reserved: Vec::new(),
            _dir,
        };
        next.ask::<v1::RegisterResponse>("Store/Register", &next.register()).await;
        let missing = next.read_all(what).await;
        let parts: Vec<_> =
            missing.iter().flat_map(|&chunk| (0..=chunk.group.0).map(move |part| (chunk, part))).collect();
        next.reserved = next.reserve_now(&parts).await;
        let stored: v1::PutResponse = answer(&next.put().await);
        assert!(stored.outcomes.iter().all(|outcome| outcome.refused == 0), "{what}: {stored:?}");
        assert!(next.read_all(what).await.is_empty(), "{what}: not all is READY that was stored");
        drop((next.stream, next.staging));
        conserve::deserted(&next.engine).await;
    }

    /// Reads every chunk that is READY and compares it; the others.
    async fn read_all(&self, what: &str) -> BTreeSet<ChunkId> {
        let found: v1::LookupResponse = self.ask("Store/Lookup", &self.lookup(true)).await;
        let mut missing = BTreeSet::new();
        for ((index, chunk), status) in (0..).zip(Self::all_chunks()).zip(&found.chunks) {
            if status.state() != v1::ChunkState::Ready {
                missing.insert(chunk);
                continue;
            }
            for part in (0..=chunk.group.0).map(PartIndex) {
                let request = v1::GetRequest {
                    session_id: self.session.clone(),
                    lease_id: found.lease.expect("what is READY is leased").id,
                    items: vec![raw::get_item(index, part)],
                };
                let stream = exchange(Arc::clone(&self.daemon), "Store/Get", framed(&request)).await;
                let frames: Vec<v1::GetFrame> = messages(&stream);
                let bytes: Vec<u8> = frames.iter().flat_map(|frame| &frame.payload[..]).copied().collect();
                pattern::assert_same(&bytes, &self.content(chunk, part), what);
            }
        }
        missing
    }
}

fn answer<M: Message + Default>(bytes: &[u8]) -> M {
    messages(bytes).into_iter().next().expect("an answer that is no refusal")
}

fn session_request() -> v1::SessionRequest {
    v1::SessionRequest { client_name: "dropped".into(), pid: 1, protocol_version: PROTOCOL_VERSION }
}

/// A session and the stream that it lives by.
async fn open(daemon: &InProcess) -> (Bytes, Body) {
    let pieces = tokio_stream::once(Bytes::from(framed(&session_request())));
    let mut stream = daemon.call(request("Store/Session", pieces)).await.into_body();
    let first = stream.frame().await.expect("a frame").expect("no error").into_data().expect("no trailers");
    match answer::<v1::SessionEvent>(&first).event {
        Some(v1::session_event::Event::Opened(opened)) => (opened.session_id, stream),
        other => panic!("a session begins with its number, not {other:?}"),
    }
}

/// The session's staging region, by the descriptor socket.
async fn given(engine: &Arc<Engine>, session: &Bytes) -> Mapping {
    let session = SessionId::parse(session).expect("16 bytes");
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("a pair of sockets");
    let theirs = UnixStream::from_std(StdStream::from(theirs)).expect("a socket");
    let packet = FdRequest { session, staging_bytes: STAGING_BYTES }.encode();
    send(ours.as_raw_fd(), &packet, MsgFlags::MSG_NOSIGNAL).expect("it is sent");
    attend(theirs, Arc::clone(engine)).await;
    let (reply, mut fds) = recv_with_fds(ours.as_fd()).expect("an answer");
    assert!(matches!(FdReply::decode(&reply), Some(FdReply::Granted { .. })), "{reply:?}");
    Mapping::read_write(&fds.pop().expect("a descriptor").into()).expect("a region")
}

/// Every call, and how often it waits at least: what a call of one message over seven pieces must, and more where it
/// streams or waits for a turn.
const CALLS: [(&str, usize); 14] = [
    ("session", 8),
    ("register", 8),
    ("lookup", 8),
    ("release", 8),
    ("reserve", 8),
    ("commit", 9),
    ("commit, waiting for its turn", 21),
    ("abort", 8),
    ("put", 20),
    ("get", 11),
    ("descriptors", 1),
    ("ping", 2),
    ("stats", 2),
    ("reset", 8),
];

#[tokio::test]
async fn field_24_every_handler_dropped_at_each_of_its_awaits_leaves_nothing() {
    for (name, at_least) in CALLS {
        let mut waits = 0;
        for n in 1..MOST_WAITS {
            let world = World::new().await;
            let answered = dropped_at(n, world.call(name)).await.is_some();
            world.check(&format!("{name}, dropped at wait {n}")).await;
            if answered {
                break;
            }
            waits = n;
        }
        println!("{name}: dropped at {waits} awaits");
        assert!((at_least..MOST_WAITS - 1).contains(&waits), "{name} waits {waits} times");
    }
}
