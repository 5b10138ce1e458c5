//! What a call passes before anything of its message is read: who makes it is found out from the connection and the
//! headers, and how long its message may be follows from which call it is. A stranger costs no more than its headers.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use http::{Request, Response};
use tender_proto::limits::{FRAME_PAYLOAD_BYTES, MAX_MESSAGE_BYTES, MESSAGE_OVERHEAD_BYTES};
use tender_proto::v1::admin_server::{Admin, AdminServer};
use tender_proto::v1::events_server::{Events, EventsServer};
use tender_proto::v1::peer_server::{Peer, PeerServer};
use tender_proto::v1::store_server::{Store, StoreServer};
use tonic::body::Body;
use tonic::server::NamedService;
use tower::{Layer, Service};

use super::Shared;

/// Descriptors have many layers and groups, but not that many.
const DESCRIPTOR_BYTES: usize = 4 << 20;
/// A chunk's id with what stands beside it in the longest list.
const CHUNK_BYTES: usize = 96;
/// A lease, a reservation, an item of a read, with what stands beside it.
const NUMBER_BYTES: usize = 32;

/// What the last part of a call's path means here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kind {
    /// For logs, metrics and the audit.
    pub(super) name: &'static str,
    /// Anybody may make it.
    open: bool,
    longest: Longest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Longest {
    /// No lists and nothing long.
    Small,
    Descriptor,
    /// So many bytes for each chunk that one call may have.
    Each(usize),
    /// A list of chunks and a descriptor.
    Offer,
    Frame,
}

impl Kind {
    /// Of the call with this path.
    pub(super) fn of(path: &str) -> Option<Self> {
        let (service, call) = path.strip_prefix("/tender.v1.")?.split_once('/')?;
        let (name, longest) = match (service, call) {
            ("Store", "Session") => ("session", Longest::Small),
            ("Store", "Register") => ("register", Longest::Descriptor),
            ("Store", "Lookup") => ("lookup", Longest::Each(CHUNK_BYTES)),
            ("Store", "Release") => ("release", Longest::Each(2 * NUMBER_BYTES)),
            ("Store", "Reserve") => ("reserve", Longest::Each(CHUNK_BYTES)),
            ("Store", "Commit") => ("commit", Longest::Each(CHUNK_BYTES)),
            ("Store", "Abort") => ("abort", Longest::Each(NUMBER_BYTES)),
            ("Store", "Put") => ("put", Longest::Frame),
            ("Store", "Get") => ("get", Longest::Each(NUMBER_BYTES)),
            ("Admin", "Ping") => ("ping", Longest::Small),
            ("Admin", "Stats") => ("stats", Longest::Small),
            ("Admin", "Reset") => ("reset", Longest::Small),
            ("Admin", "Explain") => ("explain", Longest::Each(CHUNK_BYTES)),
            ("Admin", "Inspect") => ("inspect", Longest::Small),
            ("Admin", "Verify") => ("verify", Longest::Small),
            ("Admin", "Drain") => ("drain", Longest::Small),
            ("Events", "Watch") => ("watch", Longest::Each(CHUNK_BYTES)),
            ("Peer", "Fetch") => ("fetch", Longest::Each(CHUNK_BYTES)),
            ("Peer", "Offer") => ("offer", Longest::Offer),
            _ => return None,
        };
        Some(Self { name, open: name == "ping", longest })
    }

    fn longest_bytes(self, shared: &Shared) -> usize {
        let each = |bytes: usize| shared.engine.config().max_batch_chunks.saturating_mul(bytes);
        let payload = match self.longest {
            Longest::Small => 0,
            Longest::Descriptor => DESCRIPTOR_BYTES,
            Longest::Each(bytes) => each(bytes),
            Longest::Offer => DESCRIPTOR_BYTES.saturating_add(each(CHUNK_BYTES)),
            // A frame that is somewhat too long is one part's refusal, not the end of the stream.
            Longest::Frame => 4 * FRAME_PAYLOAD_BYTES,
        };
        payload.saturating_add(MESSAGE_OVERHEAD_BYTES).min(MAX_MESSAGE_BYTES)
    }
}

/// Finds out who makes a call, and refuses strangers.
#[derive(Clone, Debug)]
pub(super) struct EntryLayer(pub(super) Arc<Shared>);

impl<S> Layer<S> for EntryLayer {
    type Service = Entry<S>;

    fn layer(&self, inner: S) -> Entry<S> {
        Entry { shared: Arc::clone(&self.0), inner }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Entry<S> {
    shared: Arc<Shared>,
    inner: S,
}

impl<S> Service<Request<Body>> for Entry<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let Some(kind) = Kind::of(request.uri().path()).filter(|kind| !kind.open) else {
            return Either::Left(self.inner.call(request));
        };
        match self.shared.identify_by(kind.name, request.headers(), request.extensions()) {
            Ok(identity) => {
                request.extensions_mut().insert(identity);
                Either::Left(self.inner.call(request))
            }
            // The body goes unread.
            Err(status) => Either::Right(ready(Ok(status.into_http()))),
        }
    }
}

/// A service whose messages may be as long as their call needs.
#[derive(Clone, Debug)]
pub(super) struct Bounded<S> {
    shared: Arc<Shared>,
    inner: S,
}

impl<S> Bounded<S> {
    pub(super) fn new(shared: &Arc<Shared>, inner: S) -> Self {
        Self { shared: Arc::clone(shared), inner }
    }
}

impl<S: NamedService> NamedService for Bounded<S> {
    const NAME: &'static str = S::NAME;
}

/// What can be told how long its messages may be.
pub(super) trait Limited {
    fn limited(&self, bytes: usize) -> Self;
}

impl<T: Store> Limited for StoreServer<T> {
    fn limited(&self, bytes: usize) -> Self {
        self.clone().max_decoding_message_size(bytes)
    }
}
impl<T: Admin> Limited for AdminServer<T> {
    fn limited(&self, bytes: usize) -> Self {
        self.clone().max_decoding_message_size(bytes)
    }
}
impl<T: Events> Limited for EventsServer<T> {
    fn limited(&self, bytes: usize) -> Self {
        self.clone().max_decoding_message_size(bytes)
    }
}
impl<T: Peer> Limited for PeerServer<T> {
    fn limited(&self, bytes: usize) -> Self {
        self.clone().max_decoding_message_size(bytes)
    }
}

impl<S> Service<Request<Body>> for Bounded<S>
where
    S: Limited + Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Generated services always are.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let kind = Kind::of(request.uri().path());
        let longest = kind.map_or(MESSAGE_OVERHEAD_BYTES, |kind| kind.longest_bytes(&self.shared));
        self.inner.limited(longest).call(request)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tender_proto::v1;

    use super::*;

    #[test]
    fn every_call_of_the_contract_has_a_kind_and_only_a_ping_is_open() {
        for (service, text) in [
            ("Store", include_str!("../../../proto/tender/v1/store.proto")),
            ("Events", include_str!("../../../proto/tender/v1/events.proto")),
            ("Peer", include_str!("../../../proto/tender/v1/peer.proto")),
        ] {
            let mut service = service;
            for line in text.lines() {
                if let Some(rest) = line.strip_prefix("service ") {
                    service = rest.trim_end_matches([' ', '{']);
                }
                let Some(rest) = line.trim().strip_prefix("rpc ") else { continue };
                let call = rest.split('(').next().unwrap();
                let kind = Kind::of(&format!("/tender.v1.{service}/{call}"));
                assert_eq!(kind.map(|kind| kind.open), Some(call == "Ping"), "{service}/{call}");
            }
        }
        assert_eq!(Kind::of("/tender.v1.Store/Nothing"), None);
        assert_eq!(Kind::of("/other"), None);
    }

    #[test]
    fn the_longest_item_of_every_list_fits_its_share() {
        let id = v1::ChunkId { group: u32::MAX, hash: vec![0xff; 32].into() };
        let chunk = Some(id.clone());
        let list = |item: usize| item + 1 + prost::length_delimiter_len(item);
        let reserve =
            v1::ReserveItem { chunk: chunk.clone(), part: u32::MAX, coverage: u64::MAX, bytes: u64::MAX };
        let commit = v1::CommitItem {
            reservation_id: u64::MAX,
            staging_offset_bytes: u64::MAX,
            bytes: u64::MAX,
            coverage: u64::MAX,
            digest: vec![0xff; 32].into(),
        };
        let offered =
            v1::OfferedChunk { chunk: chunk.clone(), coverage: u64::MAX, fingerprint: vec![0xff; 8].into() };
        for longest in [reserve.encoded_len(), commit.encoded_len(), offered.encoded_len(), id.encoded_len()]
        {
            assert!(list(longest) <= CHUNK_BYTES, "{longest}");
        }
        let suspect = v1::Suspect { lease_id: u64::MAX, chunk_index: u32::MAX }.encoded_len();
        let item = v1::GetItem { chunk_index: u32::MAX, part: u32::MAX }.encoded_len();
        assert!(list(suspect) <= NUMBER_BYTES && list(item) <= NUMBER_BYTES);
    }
}
