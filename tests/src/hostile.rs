//! Daemons that do not keep the contract: they talk as the contract says, and then do their worst. What a network does
//! to a good daemon is [`crate::proxy`]'s.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use rand::Rng;
use tender_proto::limits::{FRAME_PAYLOAD_BYTES, HTTP2_FRAME_BYTES, MAX_BATCH_CHUNKS, MAX_MESSAGE_BYTES};
use tender_proto::v1::store_server::{Store, StoreServer};
use tender_proto::{Reason, Refusal, v1};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// What a daemon does to its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// Accepts connections and never says a word.
    Silent,
    /// Answers everything with random bytes, without end.
    Noise,
    /// Opens sessions, and from then on answers nothing.
    Mute,
    /// Ends every session as soon as it is open.
    Fickle,
    /// Tells of resets, drains and heartbeats as fast as it can.
    Chatty,
    /// Answers a lookup with the largest message there is and more.
    Huge,
    /// Has everything, and sends other bytes than it promised.
    Lying,
    /// Has everything, and sends the bytes of a part again and again without end.
    Endless,
    /// Has everything, and sends a byte now and then.
    Dripping,
    /// Refuses every call, with a different reason each time.
    Refusing,
}

impl Manner {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Silent,
        Self::Noise,
        Self::Mute,
        Self::Fickle,
        Self::Chatty,
        Self::Huge,
        Self::Lying,
        Self::Endless,
        Self::Dripping,
        Self::Refusing,
    ];
    /// By its name in this enumeration.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|manner| format!("{manner:?}") == name)
    }
    fn has_everything(self) -> bool {
        matches!(self, Self::Lying | Self::Endless | Self::Dripping)
    }
}

/// The daemon. It ends when it is dropped.
#[derive(Debug)]
pub struct Hostile {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Hostile {
    /// Listens on a free port. Where it has everything, every chunk is one part of so many bytes with these blocks.
    pub async fn start(manner: Manner, part_bytes: u64, coverage_bits: u64) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        match manner {
            Manner::Silent => tasks.spawn(accept(listener, keep_silent)),
            Manner::Noise => tasks.spawn(accept(listener, make_noise)),
            _ => {
                let store = StoreServer::new(Rpc { manner, part_bytes, coverage_bits })
                    .max_encoding_message_size(usize::MAX);
                let server = tonic::transport::Server::builder()
                    .max_frame_size(HTTP2_FRAME_BYTES)
                    .add_service(store)
                    .serve_with_incoming(TcpListenerStream::new(listener));
                tasks.spawn(async move { drop(server.await) })
            }
        };
        Ok(Self { address, _tasks: tasks })
    }
    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept<F: Future<Output = ()> + Send + 'static>(listener: TcpListener, serve: fn(TcpStream) -> F) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream));
    }
}

async fn keep_silent(stream: TcpStream) {
    std::future::pending::<()>().await;
    drop(stream);
}

async fn make_noise(mut stream: TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    rand::rng().fill(&mut bytes[..]);
    while stream.write_all(&bytes).await.is_ok() {}
}

fn drip(
    frames: impl Iterator<Item = v1::GetFrame> + Send + 'static,
) -> ReceiverStream<Result<v1::GetFrame, Status>> {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        for frame in frames {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if sender.send(Ok(frame)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

struct Rpc {
    manner: Manner,
    part_bytes: u64,
    coverage_bits: u64,
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Rpc {
    /// What all calls have in common, for the manners that answer none of them well.
    async fn receive(&self) -> Result<(), Status> {
        match self.manner {
            Manner::Mute => std::future::pending().await,
            Manner::Refusing => {
                let reasons = [
                    Reason::NoSpace,
                    Reason::Internal,
                    Reason::Draining,
                    Reason::TooMany,
                    Reason::UnknownSession,
                ];
                let reason = reasons[rand::rng().random_range(0..reasons.len())];
                Err(Refusal::new(reason, "everything", "give up").to_status())
            }
            _ => Ok(()),
        }
    }

    fn frames(&self, item: u32) -> impl Iterator<Item = v1::GetFrame> + use<> {
        let frame_bytes = match self.manner {
            Manner::Dripping => 1,
            _ => FRAME_PAYLOAD_BYTES.min(usize::try_from(self.part_bytes).unwrap_or(usize::MAX)),
        };
        let (part_bytes, coverage) = (self.part_bytes, self.coverage_bits);
        (0..).map(move |number: u64| {
            let first = number == 0;
            v1::GetFrame {
                item,
                offset_bytes: number * frame_bytes as u64,
                part_bytes: if first { part_bytes } else { 0 },
                coverage: if first { coverage } else { 0 },
                digest: if first { vec![0x5a; 32].into() } else { Bytes::new() },
                payload: vec![0xbd; frame_bytes].into(),
                ..v1::GetFrame::default()
            }
        })
    }
}

#[tonic::async_trait]
impl Store for Rpc {
    type SessionStream = Messages<v1::SessionEvent>;
    type GetStream = Messages<v1::GetFrame>;

    async fn session(&self, _: Request<v1::SessionRequest>) -> Result<Response<Self::SessionStream>, Status> {
        use v1::session_event::Event;
        let opened = v1::SessionOpened {
            session_id: vec![7; 16].into(),
            boot_id: vec![8; 16].into(),
            default_lease_ms: 30_000,
            max_lease_ms: 60_000,
            max_frame_bytes: FRAME_PAYLOAD_BYTES as u64,
            max_part_bytes: 1 << 30,
            max_batch_chunks: u32::try_from(MAX_BATCH_CHUNKS).unwrap_or(u32::MAX),
            max_staging_bytes: 1 << 30,
            ..v1::SessionOpened::default()
        };
        let event = |event| Ok(v1::SessionEvent { event: Some(event) });
        let first = tokio_stream::once(event(Event::Opened(opened)));
        Ok(Response::new(match self.manner {
            Manner::Fickle => Box::pin(first),
            Manner::Chatty => {
                let chat = [
                    Event::Reset(v1::Reset {}),
                    Event::Draining(v1::Draining { grace_ms: 1 }),
                    Event::Heartbeat(v1::Heartbeat {}),
                ];
                let chat = std::iter::repeat(chat).flatten().map(event);
                Box::pin(first.chain(tokio_stream::iter(chat)))
            }
            _ => Box::pin(first.chain(tokio_stream::pending())),
        }))
    }

    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        Ok(Response::new(v1::RegisterResponse { namespace: request.into_inner().namespace, epoch: 1 }))
    }

    async fn lookup(
        &self,
        request: Request<v1::LookupRequest>,
    ) -> Result<Response<v1::LookupResponse>, Status> {
        self.receive().await?;
        let status = match self.manner.has_everything() {
            true => v1::ChunkStatus {
                state: v1::ChunkState::Ready.into(),
                coverage: self.coverage_bits,
                ..v1::ChunkStatus::default()
            },
            false => v1::ChunkStatus {
                state: v1::ChunkState::Miss.into(),
                reason: Reason::NeverStored.to_wire().into(),
                ..v1::ChunkStatus::default()
            },
        };
        let mut chunks = vec![status; request.get_ref().chunks.len()];
        if let (Manner::Huge, Some(first)) = (self.manner, chunks.first_mut()) {
            let digest = vec![0; MAX_MESSAGE_BYTES + 1].into();
            first.parts = vec![v1::PartLocation { digest, ..v1::PartLocation::default() }];
        }
        let lease = self.manner.has_everything().then_some(v1::Lease { id: 1, lease_ms: 30_000 });
        Ok(Response::new(v1::LookupResponse { chunks, lease }))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseResponse>, Status> {
        self.receive().await?;
        let outcomes = vec![v1::LeaseOutcome::Live.into(); request.get_ref().lease_ids.len()];
        Ok(Response::new(v1::ReleaseResponse { outcomes }))
    }

    async fn reserve(
        &self,
        request: Request<v1::ReserveRequest>,
    ) -> Result<Response<v1::ReserveResponse>, Status> {
        self.receive().await?;
        let reserved = |number: usize| v1::ReserveOutcome {
            reservation_id: 1 + number as u64,
            ..v1::ReserveOutcome::default()
        };
        let outcomes = (0..request.get_ref().items.len()).map(reserved).collect();
        Ok(Response::new(v1::ReserveResponse { outcomes, epoch: 1 }))
    }

    async fn commit(&self, _: Request<v1::CommitRequest>) -> Result<Response<v1::CommitResponse>, Status> {
        Err(Status::unimplemented("there is no shared memory"))
    }

    async fn abort(&self, _: Request<v1::AbortRequest>) -> Result<Response<v1::AbortResponse>, Status> {
        Ok(Response::new(v1::AbortResponse::default()))
    }

    async fn put(
        &self,
        request: Request<Streaming<v1::PutFrame>>,
    ) -> Result<Response<v1::PutResponse>, Status> {
        self.receive().await?;
        // Reads nothing of it, so that the client's part stays on its way, and says that all went well.
        tokio::time::sleep(Duration::from_millis(5)).await;
        drop(request);
        let stored = v1::StoreOutcome {
            reservation_id: 1,
            stored: true,
            chunk_ready: true,
            ..v1::StoreOutcome::default()
        };
        Ok(Response::new(v1::PutResponse { outcomes: vec![stored] }))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<Self::GetStream>, Status> {
        self.receive().await?;
        let items = u32::try_from(request.get_ref().items.len()).unwrap_or(u32::MAX);
        Ok(Response::new(match self.manner {
            Manner::Dripping => Box::pin(drip(self.frames(0))),
            Manner::Endless => Box::pin(tokio_stream::iter(self.frames(0)).map(Ok)),
            _ => {
                let whole = self.part_bytes.div_ceil(FRAME_PAYLOAD_BYTES as u64);
                let whole = usize::try_from(whole).unwrap_or(usize::MAX);
                let parts: Vec<_> = (0..items).flat_map(|item| self.frames(item).take(whole)).collect();
                Box::pin(tokio_stream::iter(parts).map(Ok))
            }
        }))
    }
}
