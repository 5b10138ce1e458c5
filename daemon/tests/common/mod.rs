//! A daemon inside the test's process, and a client that speaks the generated messages.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use tender_daemon::app::RunningApp;
use tender_daemon::config::{Config, Listen};
use tender_daemon::engine::Audit;
use tender_proto::limits::{FRAME_PAYLOAD_BYTES, MAX_MESSAGE_BYTES, PROTOCOL_VERSION};
use tender_proto::v1::session_event::Event;
use tender_proto::v1::store_client::StoreClient;
use tender_proto::{
    BlocksPerChunk, ContentDigest, Descriptor, Group, GroupKind, RankGeometry, Reason, Refusal, v1,
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

pub(crate) const BLOCK_BYTES: u64 = 256 << 10;
pub(crate) const FULL: u64 = 0b1111;
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Daemon {
    pub(crate) app: RunningApp,
    pub(crate) socket: PathBuf,
    pub(crate) dir: tempfile::TempDir,
}

impl Daemon {
    pub(crate) async fn start(adjust: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("tenderd.sock");
        let mut config = Config {
            listen: vec![Listen::Unix(socket.clone()), "tcp://127.0.0.1:0".parse().unwrap()],
            admin: Some("127.0.0.1:0".parse().unwrap()),
            drain_grace: Duration::from_secs(2),
            ..Config::default()
        };
        config.engine.arena.place = dir.path().join("arena");
        config.engine.arena.bytes = 64 << 20;
        config.engine.max_inflight_bytes = 32 << 20;
        config.engine.max_session_inflight_bytes = 32 << 20;
        adjust(&mut config);
        let app = RunningApp::start(config).await.unwrap();
        app.phase().wait_for(|phase| phase.is_ready()).await.unwrap();
        Self { app, socket, dir }
    }
    pub(crate) fn tcp(&self) -> String {
        let tcp = self.app.addresses().iter().find_map(|place| match place {
            Listen::Tcp(at) => Some(at.to_string()),
            Listen::Unix(_) | Listen::Tls(_) => None,
        });
        tcp.unwrap()
    }
    /// A session over the Unix socket that has registered the one namespace of these tests.
    pub(crate) async fn session(&self) -> Session {
        Session::open(unix(&self.socket).await, &descriptor()).await
    }
    /// Waits until the recount says so.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Audit) -> bool) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            match self.app.engine().audit() {
                Ok(audit) if holds(&audit) => return,
                audit => assert!(Instant::now() < give_up, "{what}: {audit:?}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    pub(crate) fn refused(&self, reason: Reason) -> u64 {
        let counts = self.app.engine().stats().refusals;
        counts.iter().find(|(r, _)| *r == reason).map_or(0, |(_, count)| *count)
    }
    /// Status and body of a GET on the admin port.
    pub(crate) async fn http(&self, path: &str) -> (u16, String) {
        let (head, body) = self.http_with(path, "").await;
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
    }
    /// Head and body of a GET with more headers, each with its line's end.
    pub(crate) async fn http_with(&self, path: &str, headers: &str) -> (String, String) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(self.app.admin_address().unwrap()).await.unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n").as_bytes())
            .await
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }
}

pub(crate) async fn unix(path: &Path) -> Channel {
    unix_with(path, 16 << 20).await
}

/// With this receive window: a small one makes the daemon feel a slow reader at once.
pub(crate) async fn unix_with(path: &Path, window: u32) -> Channel {
    let path = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://tenderd");
    let endpoint = endpoint.initial_stream_window_size(window).initial_connection_window_size(window);
    endpoint.connect_with_connector(connector).await.unwrap()
}

pub(crate) async fn tcp(address: &str) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

pub(crate) fn store(channel: Channel) -> StoreClient<Channel> {
    StoreClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(usize::MAX)
}

pub(crate) fn descriptor() -> Descriptor {
    let group = Group::new(
        GroupKind::FullAttention,
        16.try_into().unwrap(),
        BlocksPerChunk::new(4).unwrap(),
        None,
        vec![BLOCK_BYTES],
    );
    Descriptor {
        model: "shell".into(),
        weights: "r1".into(),
        kv_dtype: "bfloat16".into(),
        quantisation: "none".into(),
        groups: vec![group.unwrap()],
        page_format: "HNC".into(),
        layout_fingerprint: [1; 32],
        ranks: RankGeometry::SINGLE,
        key_chain_version: 1,
        domain: String::new(),
    }
}

pub(crate) fn chunk(n: u8) -> v1::ChunkId {
    v1::ChunkId { group: 0, hash: Bytes::copy_from_slice(&[n; 32]) }
}

/// The bytes of chunk `n`.
pub(crate) fn content(n: u8) -> Vec<u8> {
    let bytes = usize::try_from(4 * BLOCK_BYTES).unwrap();
    (0..bytes).map(|i| n ^ u8::try_from(i % 251).unwrap()).collect()
}

pub(crate) fn digest(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(ContentDigest::of(bytes).as_bytes())
}

/// The typed refusal that every error must carry.
pub(crate) fn refusal(status: &Status) -> Refusal {
    assert!(!status.details().is_empty(), "no details: {status:?}");
    Refusal::from_status(status)
}

pub(crate) struct Session {
    pub(crate) store: StoreClient<Channel>,
    pub(crate) id: Bytes,
    pub(crate) opened: v1::SessionOpened,
    pub(crate) events: Streaming<v1::SessionEvent>,
    pub(crate) namespace: Bytes,
}

impl Session {
    pub(crate) async fn open(channel: Channel, descriptor: &Descriptor) -> Self {
        let mut store = store(channel);
        let request =
            v1::SessionRequest { client_name: "test".into(), pid: 1, protocol_version: PROTOCOL_VERSION };
        let mut events = store.session(request).await.unwrap().into_inner();
        let Some(Event::Opened(opened)) = events.message().await.unwrap().unwrap().event else {
            panic!("a session begins with its opening");
        };
        let namespace = Bytes::copy_from_slice(descriptor.digest().as_bytes());
        let register = v1::RegisterRequest {
            session_id: opened.session_id.clone(),
            descriptor: Some(descriptor.to_message()),
            namespace: namespace.clone(),
            pinned_name: String::new(),
        };
        store.register(register).await.unwrap();
        Self { store, id: opened.session_id.clone(), opened, events, namespace }
    }
    pub(crate) async fn reserve(&self, items: Vec<v1::ReserveItem>) -> Vec<v1::ReserveOutcome> {
        let request = v1::ReserveRequest {
            session_id: self.id.clone(),
            namespace: self.namespace.clone(),
            items,
            epoch: 0,
        };
        self.store.clone().reserve(request).await.unwrap().into_inner().outcomes
    }
    pub(crate) async fn reserved(&self, n: u8) -> u64 {
        self.reserve(vec![item(n)]).await[0].reservation_id
    }
    pub(crate) fn frame(&self, reservation_id: u64, offset: usize, payload: &[u8]) -> v1::PutFrame {
        v1::PutFrame {
            session_id: self.id.clone(),
            reservation_id,
            offset_bytes: offset as u64,
            payload: Bytes::copy_from_slice(payload),
            ..v1::PutFrame::default()
        }
    }
    /// The frames of a whole part.
    pub(crate) fn frames(&self, reservation: u64, bytes: &[u8], frame_bytes: usize) -> Vec<v1::PutFrame> {
        let pieces = bytes.chunks(frame_bytes).enumerate();
        let mut frames: Vec<_> =
            pieces.map(|(i, piece)| self.frame(reservation, i * frame_bytes, piece)).collect();
        let last = frames.last_mut().unwrap();
        (last.digest, last.coverage) = (digest(bytes), FULL);
        frames
    }
    pub(crate) async fn put(&self, frames: Vec<v1::PutFrame>) -> Result<Vec<v1::StoreOutcome>, Status> {
        let answer = self.store.clone().put(tokio_stream::iter(frames)).await?;
        Ok(answer.into_inner().outcomes)
    }
    pub(crate) async fn store_chunk(&self, n: u8) {
        let reservation = self.reserved(n).await;
        let outcomes = self.put(self.frames(reservation, &content(n), FRAME_PAYLOAD_BYTES)).await.unwrap();
        assert!(outcomes.len() == 1 && outcomes[0].chunk_ready, "{outcomes:?}");
    }
    pub(crate) async fn lookup(&self, chunks: &[u8], lease_ms: u64, locate: bool) -> v1::LookupResponse {
        let request = v1::LookupRequest {
            session_id: self.id.clone(),
            namespace: self.namespace.clone(),
            chunks: chunks.iter().map(|&n| chunk(n)).collect(),
            lease: true,
            lease_ms,
            locate,
            fetch: false,
            ..v1::LookupRequest::default()
        };
        self.store.clone().lookup(request).await.unwrap().into_inner()
    }
    pub(crate) async fn get(&self, lease_id: u64, items: &[(u32, u32)]) -> Streaming<v1::GetFrame> {
        let items = items.iter().map(|&(chunk_index, part)| v1::GetItem { chunk_index, part }).collect();
        let request = v1::GetRequest { session_id: self.id.clone(), lease_id, items };
        self.store.clone().get(request).await.unwrap().into_inner()
    }
    pub(crate) async fn release(&self, lease: u64) -> v1::LeaseOutcome {
        let request =
            v1::ReleaseRequest { session_id: self.id.clone(), lease_ids: vec![lease], suspects: Vec::new() };
        self.store.clone().release(request).await.unwrap().into_inner().outcomes().next().unwrap()
    }
}

pub(crate) fn item(n: u8) -> v1::ReserveItem {
    v1::ReserveItem { chunk: Some(chunk(n)), part: 0, coverage: FULL, bytes: 4 * BLOCK_BYTES }
}
