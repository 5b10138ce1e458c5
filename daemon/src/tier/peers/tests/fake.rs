//! Peers that do not keep the contract.

use std::pin::Pin;
use std::time::Duration;

use tender_proto::v1::peer_server::{Peer, PeerServer};
use tender_proto::{ContentDigest, v1};
use tokio::net::TcpListener;
use tokio_stream::Stream;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use super::*;

/// What it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    /// The right bytes.
    Honest,
    /// One byte is another; the digest is that of the right ones.
    FlippedByte,
    /// The same, in the second of two parts.
    FlippedSecondPart,
    /// Other bytes, with their own digest.
    OtherBytes,
    /// Says another size.
    WrongSize,
    /// More bytes than it said.
    TooLong,
    /// Has fewer blocks than it had published.
    LessCoverage,
    /// A frame is left out.
    Gap,
    /// Never answers.
    BlackHole,
    /// Half of it, and then nothing.
    Stalls,
    /// Half of it, and then the connection breaks.
    Cut,
}

#[derive(Debug)]
pub(super) struct FakePeer {
    pub(super) directory: Directory,
    pub(super) asked: Arc<std::sync::atomic::AtomicU64>,
    _server: Task,
}

#[derive(Clone, Debug)]
struct Service(Manner, Arc<std::sync::atomic::AtomicU64>);

type Frames = Pin<Box<dyn Stream<Item = Result<v1::GetFrame, Status>> + Send>>;

#[tonic::async_trait]
impl Peer for Service {
    type FetchStream = Frames;

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<Frames>, Status> {
        self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if self.0 == Manner::BlackHole {
            std::future::pending::<()>().await;
        }
        let chunk = ChunkId::parse(&request.into_inner().chunks[0]).unwrap();
        let (frames, end) = frames(self.0, chunk);
        let sent = tokio_stream::iter(frames.into_iter().map(Ok));
        Ok(Response::new(match end {
            End::Whole => Box::pin(sent),
            End::Silence => Box::pin(tokio_stream::StreamExt::chain(sent, tokio_stream::pending())),
            End::Break => Box::pin(tokio_stream::StreamExt::chain(
                sent,
                tokio_stream::once(Err(Status::unavailable("the process was killed"))),
            )),
        }))
    }
    async fn offer(&self, _: Request<v1::OfferRequest>) -> Result<Response<v1::OfferResponse>, Status> {
        Err(Status::unimplemented("no"))
    }
}

enum End {
    Whole,
    Silence,
    Break,
}

/// A chunk of two parts in a frame each.
fn two_parts(chunk: ChunkId) -> Vec<v1::GetFrame> {
    let part = |part: u16| {
        let mut bytes = bytes_of(chunk, part, FULL);
        let digest = ContentDigest::of(&bytes);
        bytes[77] ^= u8::from(part == 1);
        v1::GetFrame {
            item: u32::from(part),
            part_bytes: bytes.len() as u64,
            digest: digest.as_bytes().to_vec().into(),
            coverage: FULL,
            payload: bytes.into(),
            ..v1::GetFrame::default()
        }
    };
    [0, 1].map(part).into()
}

/// A chunk of one part in two frames.
fn frames(manner: Manner, chunk: ChunkId) -> (Vec<v1::GetFrame>, End) {
    if manner == Manner::FlippedSecondPart {
        return (two_parts(chunk), End::Whole);
    }
    let right = bytes_of(chunk, 0, FULL);
    let mut bytes = right.clone();
    if matches!(manner, Manner::FlippedByte | Manner::OtherBytes) {
        bytes[77] ^= 1;
    }
    let digest = ContentDigest::of(if manner == Manner::OtherBytes { &bytes } else { &right });
    let half = bytes.len() / 2;
    let second = bytes.split_off(half);
    let mut first = v1::GetFrame {
        part_bytes: right.len() as u64,
        digest: digest.as_bytes().to_vec().into(),
        coverage: FULL,
        payload: bytes.into(),
        ..v1::GetFrame::default()
    };
    let mut second =
        v1::GetFrame { offset_bytes: half as u64, payload: second.into(), ..v1::GetFrame::default() };
    match manner {
        Manner::WrongSize => first.part_bytes += 1,
        Manner::LessCoverage => first.coverage = 1,
        Manner::TooLong => second.payload = vec![0; half + 1].into(),
        Manner::Gap => second.offset_bytes += 1,
        _ => {}
    }
    match manner {
        Manner::Stalls => (vec![first], End::Silence),
        Manner::Cut => (vec![first], End::Break),
        _ => (vec![first, second], End::Whole),
    }
}

impl FakePeer {
    /// Serves, and says in the directory that it holds the chunk.
    pub(super) async fn start(setup: &Setup, manner: Manner, chunk: ChunkId) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::default();
        let service = PeerServer::new(Service(manner, Arc::clone(&asked)));
        let server = spawn("fake peer", async move {
            let served = tonic::transport::Server::builder().add_service(service);
            served.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
        let directory = directory_of(setup);
        directory.announce(&address, soon()).await.unwrap();
        directory.apply(&[Change::Publish(listed(0, chunk), honest_entry(chunk))], soon()).await.unwrap();
        Self { directory, asked, _server: server }
    }
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// Short, where a test waits for it to pass.
pub(super) const SHORT: Duration = Duration::from_millis(500);
