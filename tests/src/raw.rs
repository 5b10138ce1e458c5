//! A client that speaks the contract and does no more: it sends whatever it is told, also what the real client
//! would never send, and hands back the raw answers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use tender_proto::limits::{
    HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_FRAME_BYTES, HTTP2_STREAM_WINDOW_BYTES, MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
};
use tender_proto::v1::admin_client::AdminClient;
use tender_proto::v1::store_client::StoreClient;
use tender_proto::{
    ChunkId, Coverage, Descriptor, NamespaceDigest, PartIndex, Reason, Refusal, SessionId, v1,
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status, Streaming};

pub use crate::stream::{ReadPart, collect};

/// Longer than any answer takes; a call that needs more is a failure of the test.
const CALL_DEADLINE: Duration = Duration::from_secs(60);

/// Where a daemon listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A Unix socket.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

/// The refusal in a status. Panics when the status has no typed details, or words that help nobody.
pub fn refusal(status: &Status) -> Refusal {
    assert!(!status.details().is_empty(), "a status without details: {status:?}");
    let refusal = Refusal::from_status(status);
    assert!(!refusal.subject.is_empty() && !refusal.advice.is_empty(), "no sentence in {refusal:?}");
    assert!(!status.message().is_empty(), "no message in {status:?}");
    assert_ne!(status.code(), Code::Unknown, "a handler that panicked or a code that was not mapped");
    refusal
}

/// The reason of a call that must have been refused.
pub fn reason<T: std::fmt::Debug>(answer: Result<T, Status>) -> Reason {
    refusal(&answer.expect_err("the call must be refused")).reason
}

/// One connection.
#[derive(Clone, Debug)]
pub struct RawClient {
    /// The data path.
    pub store: StoreClient<Channel>,
    /// The operator's calls.
    pub admin: AdminClient<Channel>,
}

impl RawClient {
    /// Connects with the sizes both sides agreed on.
    pub async fn connect(target: &Target) -> Result<Self, tonic::transport::Error> {
        Self::connect_with(target, HTTP2_STREAM_WINDOW_BYTES, HTTP2_CONNECTION_WINDOW_BYTES).await
    }

    /// Connects with these receive windows: small ones make the daemon feel a slow reader at once.
    pub async fn connect_with(
        target: &Target,
        stream_window: u32,
        connection_window: u32,
    ) -> Result<Self, tonic::transport::Error> {
        let tuned = |endpoint: Endpoint| {
            endpoint
                .initial_stream_window_size(stream_window)
                .initial_connection_window_size(connection_window)
                .max_frame_size(HTTP2_FRAME_BYTES)
                .timeout(CALL_DEADLINE * 10)
        };
        let channel = match target {
            Target::Unix(path) => {
                let path = path.clone();
                let connector = tower::service_fn(move |_: Uri| {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await.map(TokioIo::new) }
                });
                tuned(Endpoint::from_static("http://tenderd")).connect_with_connector(connector).await?
            }
            Target::Tcp(address) => {
                tuned(Endpoint::from_shared(format!("http://{address}"))?).connect().await?
            }
        };
        Ok(Self::over(channel))
    }

    /// Over a connection that somebody else has made.
    pub fn over(channel: Channel) -> Self {
        Self {
            store: StoreClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(usize::MAX),
            admin: AdminClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES),
        }
    }

    /// Opens a session that lives until it is dropped.
    pub async fn open(&self, client_name: &str) -> Result<RawSession, Status> {
        let request = v1::SessionRequest {
            client_name: client_name.into(),
            pid: std::process::id(),
            protocol_version: PROTOCOL_VERSION,
        };
        self.open_with(request).await
    }

    /// Opens a session with this very request.
    pub async fn open_with(&self, request: v1::SessionRequest) -> Result<RawSession, Status> {
        let mut events = self.store.clone().session(request).await?.into_inner();
        let first = within(events.message()).await?;
        match first.and_then(|event| event.event) {
            Some(v1::session_event::Event::Opened(opened)) => {
                Ok(RawSession { client: self.clone(), id: opened.session_id.clone(), opened, events })
            }
            other => panic!("the first event of a session must be its opening, not {other:?}"),
        }
    }

    /// Opens a session and makes a namespace known.
    pub async fn open_registered(&self, descriptor: &Descriptor) -> RawSession {
        let session = self.open("test").await.expect("a session");
        session.register(descriptor).await.expect("registered");
        session
    }

    /// The daemon's numbers.
    pub async fn stats(&self) -> Result<v1::StatsResponse, Status> {
        Ok(within(self.admin.clone().stats(v1::StatsRequest {})).await?.into_inner())
    }
    /// Whether it answers.
    pub async fn ping(&self) -> Result<v1::PingResponse, Status> {
        Ok(within(self.admin.clone().ping(v1::PingRequest {})).await?.into_inner())
    }
    /// Forgets one namespace.
    pub async fn reset(&self, namespace: NamespaceDigest) -> Result<v1::ResetResponse, Status> {
        let request = v1::ResetRequest { namespace: raw_digest(namespace), all: false };
        Ok(within(self.admin.clone().reset(request)).await?.into_inner())
    }
    /// How often a reason was given so far.
    pub async fn refused(&self, reason: Reason) -> u64 {
        let wire = i32::from(reason.to_wire());
        let stats = self.stats().await.expect("stats");
        stats.refusals.iter().find(|count| count.reason == wire).map_or(0, |count| count.count)
    }
}

/// What a lookup asks beside its keys.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ask {
    /// Lease what is READY.
    pub lease: bool,
    /// 0: the daemon's default.
    pub lease_ms: u64,
    /// Tell where the bytes lie.
    pub locate: bool,
    /// Begin to fetch what lower tiers have.
    pub fetch: bool,
}

impl Ask {
    /// Only look.
    pub const LOOK: Self = Self { lease: false, lease_ms: 0, locate: false, fetch: false };
    /// Lease for the daemon's default.
    pub const LEASE: Self = Self { lease: true, lease_ms: 0, locate: false, fetch: false };
    /// Lease and locate.
    pub const LOCATE: Self = Self { lease: true, lease_ms: 0, locate: true, fetch: false };

    /// Look, and begin to fetch what is not there.
    pub const FETCH: Self = Self { fetch: true, ..Self::LOOK };

    /// With another time.
    #[must_use]
    pub fn for_ms(self, lease_ms: u64) -> Self {
        Self { lease_ms, ..self }
    }
}

/// One session. Its stream ends when it is dropped.
#[derive(Debug)]
pub struct RawSession {
    /// Its connection.
    pub client: RawClient,
    /// As given out; tests may replace it.
    pub id: Bytes,
    /// What the daemon said at the opening.
    pub opened: v1::SessionOpened,
    /// What it says since.
    pub events: Streaming<v1::SessionEvent>,
}

impl RawSession {
    /// The id in its checked form.
    pub fn session_id(&self) -> SessionId {
        SessionId::parse(&self.id).expect("16 bytes")
    }

    /// Makes a namespace known.
    pub async fn register(&self, descriptor: &Descriptor) -> Result<NamespaceDigest, Status> {
        self.register_as(descriptor, "").await
    }
    /// Makes a namespace known under a pinned name.
    pub async fn register_as(&self, descriptor: &Descriptor, name: &str) -> Result<NamespaceDigest, Status> {
        self.register_raw(Some(descriptor.to_message()), raw_digest(descriptor.digest()), name).await
    }
    /// The namespace's epoch, which a repeated registration tells.
    pub async fn epoch(&self, descriptor: &Descriptor) -> u64 {
        let namespace = raw_digest(descriptor.digest());
        let answer = self.register_answer(Some(descriptor.to_message()), namespace, "").await;
        answer.expect("registered").epoch
    }
    /// Sends this very registration.
    pub async fn register_raw(
        &self,
        descriptor: Option<v1::NamespaceDescriptor>,
        namespace: Bytes,
        pinned_name: &str,
    ) -> Result<NamespaceDigest, Status> {
        let answer = self.register_answer(descriptor, namespace, pinned_name).await?;
        Ok(NamespaceDigest::parse(&answer.namespace).expect("32 bytes"))
    }
    /// The same, with the whole answer.
    pub async fn register_answer(
        &self,
        descriptor: Option<v1::NamespaceDescriptor>,
        namespace: Bytes,
        pinned_name: &str,
    ) -> Result<v1::RegisterResponse, Status> {
        let request = v1::RegisterRequest {
            session_id: self.id.clone(),
            descriptor,
            namespace,
            pinned_name: pinned_name.into(),
        };
        Ok(within(self.client.store.clone().register(request)).await?.into_inner())
    }

    /// Asks for chunks.
    pub async fn lookup(
        &self,
        namespace: NamespaceDigest,
        chunks: &[ChunkId],
        ask: Ask,
    ) -> Result<v1::LookupResponse, Status> {
        let chunks: Vec<_> = chunks.iter().map(|chunk| chunk.to_message()).collect();
        self.lookup_raw(raw_digest(namespace), chunks, ask).await
    }
    /// Sends this very lookup.
    pub async fn lookup_raw(
        &self,
        namespace: Bytes,
        chunks: Vec<v1::ChunkId>,
        ask: Ask,
    ) -> Result<v1::LookupResponse, Status> {
        let Ask { lease, lease_ms, locate, fetch } = ask;
        let session_id = self.id.clone();
        let request = v1::LookupRequest {
            session_id,
            namespace,
            chunks,
            lease,
            lease_ms,
            locate,
            fetch,
            ..v1::LookupRequest::default()
        };
        Ok(within(self.client.store.clone().lookup(request)).await?.into_inner())
    }
    /// The states of chunks, no lease.
    pub async fn states(&self, namespace: NamespaceDigest, chunks: &[ChunkId]) -> Vec<v1::ChunkState> {
        let answer = self.lookup(namespace, chunks, Ask::LOOK).await.expect("a lookup");
        assert_eq!(answer.chunks.len(), chunks.len(), "one answer for each chunk");
        answer.chunks.iter().map(v1::ChunkStatus::state).collect()
    }

    /// Ends leases.
    pub async fn release(&self, lease_ids: &[u64]) -> Result<Vec<v1::LeaseOutcome>, Status> {
        self.release_doubting(lease_ids, &[]).await
    }
    /// Ends leases, and says that chunks of the first of them did not match their digests.
    pub async fn release_doubting(
        &self,
        lease_ids: &[u64],
        suspects: &[u32],
    ) -> Result<Vec<v1::LeaseOutcome>, Status> {
        let lease_id = lease_ids.first().copied().unwrap_or(0);
        let suspects = suspects.iter().map(|&chunk_index| v1::Suspect { lease_id, chunk_index }).collect();
        let session_id = self.id.clone();
        let request = v1::ReleaseRequest { session_id, lease_ids: lease_ids.to_vec(), suspects };
        let answer = within(self.client.store.clone().release(request)).await?.into_inner();
        assert_eq!(answer.outcomes.len(), lease_ids.len(), "one outcome for each lease");
        Ok(answer.outcomes().collect())
    }

    /// Claims room.
    pub async fn reserve(
        &self,
        namespace: NamespaceDigest,
        items: Vec<v1::ReserveItem>,
    ) -> Result<Vec<v1::ReserveOutcome>, Status> {
        let asked = items.len();
        let session_id = self.id.clone();
        let request = v1::ReserveRequest { session_id, namespace: raw_digest(namespace), items, epoch: 0 };
        let answer = within(self.client.store.clone().reserve(request)).await?.into_inner();
        assert_eq!(answer.outcomes.len(), asked, "one outcome for each item");
        Ok(answer.outcomes)
    }
    /// Claims room for one part and must get it.
    pub async fn reserve_one(
        &self,
        namespace: NamespaceDigest,
        item: v1::ReserveItem,
    ) -> Result<u64, v1::ReserveOutcome> {
        let outcome = self.reserve(namespace, vec![item]).await.expect("an answer")[0];
        if outcome.reservation_id == 0 { Err(outcome) } else { Ok(outcome.reservation_id) }
    }
    /// Hands over parts that lie in staging.
    pub async fn commit(&self, items: Vec<v1::CommitItem>) -> Result<Vec<v1::StoreOutcome>, Status> {
        let request = v1::CommitRequest { session_id: self.id.clone(), items };
        Ok(within(self.client.store.clone().commit(request)).await?.into_inner().outcomes)
    }
    /// Gives reservations back, and says for each why it could not be.
    pub async fn abort(&self, reservation_ids: &[u64]) -> Result<Vec<Option<Reason>>, Status> {
        let reservation_ids = reservation_ids.to_vec();
        let request = v1::AbortRequest { session_id: self.id.clone(), reservation_ids };
        let answer = within(self.client.store.clone().abort(request)).await?.into_inner();
        Ok(answer.refused.into_iter().map(Reason::from_wire).collect())
    }

    /// Sends these frames and ends the stream.
    pub async fn put(&self, frames: Vec<v1::PutFrame>) -> Result<Vec<v1::StoreOutcome>, Status> {
        let frames = tokio_stream::iter(frames);
        Ok(within(self.client.store.clone().put(frames)).await?.into_inner().outcomes)
    }
    /// Reads leased parts.
    pub async fn get(
        &self,
        lease_id: u64,
        items: Vec<v1::GetItem>,
    ) -> Result<Streaming<v1::GetFrame>, Status> {
        let request = v1::GetRequest { session_id: self.id.clone(), lease_id, items };
        Ok(within(self.client.store.clone().get(request)).await?.into_inner())
    }

    /// The frames of a whole part, `frame_bytes` each.
    pub fn frames(
        &self,
        reservation_id: u64,
        coverage: Coverage,
        part: &[u8],
        frame_bytes: usize,
    ) -> Vec<v1::PutFrame> {
        frames(&self.id, reservation_id, coverage, part, frame_bytes)
    }

    /// Stores one part over the network path. `Err` holds the reservation's answer when there was none.
    pub async fn store(
        &self,
        namespace: NamespaceDigest,
        chunk: ChunkId,
        part: PartIndex,
        coverage: Coverage,
        bytes: &[u8],
    ) -> Result<v1::StoreOutcome, v1::ReserveOutcome> {
        let reservation = self.reserve_one(namespace, item(chunk, part, coverage, bytes.len())).await?;
        let frame_bytes = usize::try_from(self.opened.max_frame_bytes).expect("fits memory");
        let frames = self.frames(reservation, coverage, bytes, frame_bytes);
        let outcomes = self.put(frames).await.expect("an answer to the part");
        assert_eq!(outcomes.len(), 1, "one outcome for one part");
        Ok(outcomes[0])
    }
    /// Stores one part, which must succeed.
    pub async fn must_store(
        &self,
        descriptor: &Descriptor,
        chunk: ChunkId,
        part: PartIndex,
        coverage: Coverage,
    ) -> v1::StoreOutcome {
        let bytes = crate::pattern::blob(descriptor, chunk, part, coverage);
        let outcome = self.store(descriptor.digest(), chunk, part, coverage, &bytes).await.expect("room");
        assert!(outcome.stored, "not stored: {outcome:?}");
        outcome
    }

    /// Reads one part over the network path: its coverage and bytes, the digest checked, and the lease LIVE at
    /// the end. `None` is a miss.
    pub async fn read(
        &self,
        namespace: NamespaceDigest,
        chunk: ChunkId,
        part: PartIndex,
    ) -> Option<(u64, Vec<u8>)> {
        let found = self.lookup(namespace, &[chunk], Ask::LEASE).await.expect("a lookup");
        let lease = found.lease?.id;
        let stream = self.get(lease, vec![get_item(0, part)]).await.expect("a stream");
        let mut parts = collect(stream, 1).await.expect("frames");
        let read = parts.remove(0).expect("a part");
        assert_eq!(self.release(&[lease]).await.expect("an answer"), [v1::LeaseOutcome::Live]);
        Some((read.coverage, read.bytes))
    }
}

/// One part to reserve.
pub fn item(chunk: ChunkId, part: PartIndex, coverage: Coverage, bytes: usize) -> v1::ReserveItem {
    v1::ReserveItem {
        chunk: Some(chunk.to_message()),
        part: u32::from(part.0),
        coverage: coverage.bits(),
        bytes: bytes as u64,
    }
}

/// The frames of one part.
pub fn frames(
    session: &Bytes,
    reservation_id: u64,
    coverage: Coverage,
    part: &[u8],
    frame_bytes: usize,
) -> Vec<v1::PutFrame> {
    let last = part.chunks(frame_bytes).count().saturating_sub(1);
    let mut offset_bytes = 0;
    part.chunks(frame_bytes)
        .enumerate()
        .map(|(index, payload)| {
            let frame = v1::PutFrame {
                session_id: if index == 0 { session.clone() } else { Bytes::new() },
                reservation_id,
                offset_bytes,
                digest: if index == last { digest(part) } else { Bytes::new() },
                coverage: if index == last { coverage.bits() } else { 0 },
                payload: Bytes::copy_from_slice(payload),
            };
            offset_bytes += payload.len() as u64;
            frame
        })
        .collect()
}

/// One part to read.
pub fn get_item(chunk_index: u32, part: PartIndex) -> v1::GetItem {
    v1::GetItem { chunk_index, part: u32::from(part.0) }
}

/// Content digest as it goes into a message.
pub fn digest(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(blake3::hash(bytes).as_bytes())
}

/// Namespace digest as it goes into a message.
pub fn raw_digest(namespace: NamespaceDigest) -> Bytes {
    Bytes::copy_from_slice(namespace.as_bytes())
}

/// The reason in an outcome of a batch.
pub fn refused(raw: i32) -> Option<Reason> {
    Reason::from_wire(raw)
}

/// The descriptor socket beside a gRPC socket.
pub fn fd_socket(socket: &Path) -> PathBuf {
    tender_proto::shm::fd_socket_path(socket)
}

/// Waits for an answer that must come.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(CALL_DEADLINE, future).await.expect("an answer within a minute")
}
