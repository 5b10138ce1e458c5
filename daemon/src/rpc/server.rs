//! The gRPC server: limits on both directions, over Unix sockets, TCP and TLS alike.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tender_proto::limits::{
    HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_FRAME_BYTES, HTTP2_STREAM_WINDOW_BYTES, MAX_MESSAGE_BYTES,
};
use tender_proto::v1::admin_server::AdminServer;
use tender_proto::v1::events_server::EventsServer;
use tender_proto::v1::peer_server::PeerServer;
use tender_proto::v1::store_server::StoreServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpIncoming};
use tower::util::MapResponseLayer;

use super::Shared;
use super::admin::AdminService;
use super::events::EventsService;
use super::frames::framed;
use super::peer::PeerService;
use super::service::StoreService;
use super::typed::typed;
use crate::access::conn::Conn;
use crate::access::peer::Peer;
use crate::fault::{self, Fault};
use crate::shutdown::Phase;
use crate::tls::{self, Tls};

/// Streams of one connection. A client's session is one of them for its whole life, and a process may have many.
const MAX_STREAMS_PER_CONNECTION: u32 = 8192;
/// A peer that vanished without a word is noticed after these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Without descriptors left, accepting fails at once and for as long as that lasts.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves a Unix socket until `stop` is over, then until its calls are.
pub(crate) async fn serve_unix(
    shared: Arc<Shared>,
    listener: UnixListener,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let named = |client: UnixStream| {
        let peer = Peer::Local(client.peer_cred().ok());
        Conn::new(client, peer)
    };
    let incoming = UnixListenerStream::new(listener).map(move |client| client.map(named));
    serve(shared, incoming, stop, None).await
}

/// Serves a TCP socket until `stop` is over, then until its calls are.
pub(crate) async fn serve_tcp(
    shared: Arc<Shared>,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let named = |client: TcpStream| {
        let peer = Peer::Plain(client.peer_addr().ok());
        Conn::new(client, peer)
    };
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true)).map(move |client| client.map(named));
    // Other daemons come from other hosts.
    let peer = peer_service(&shared);
    serve(shared, incoming, stop, peer).await
}

/// Serves a TCP socket with TLS until `stop` is over, then until its calls are.
pub(crate) async fn serve_tls(
    shared: Arc<Shared>,
    listener: TcpListener,
    tls: Arc<Tls>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = tls::incoming(listener, tls, Arc::clone(&shared.metrics), shared.phase.clone());
    let peer = peer_service(&shared);
    serve(shared, incoming, stop, peer).await
}

async fn serve<C>(
    shared: Arc<Shared>,
    incoming: impl Stream<Item = io::Result<C>>,
    stop: impl Future<Output = ()>,
    peer: Option<PeerServer<PeerService>>,
) -> Result<(), tonic::transport::Error>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let (store, admin) = services(&shared);
    let calls = shared.max_calls_per_connection;
    let phase = shared.phase.clone();
    Server::builder()
        .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES)
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .concurrency_limit_per_connection(calls)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .layer(MapResponseLayer::new({
            let shared = Arc::clone(&shared);
            move |response| framed(typed(&shared, response))
        }))
        .add_service(store)
        .add_service(admin)
        .add_service(EventsServer::new(EventsService(Arc::clone(&shared))))
        .add_optional_service(peer)
        .serve_with_incoming_shutdown(Open::while_accepting(incoming.then(unhurried), phase), stop)
        .await
}

fn services(shared: &Arc<Shared>) -> (StoreServer<StoreService>, AdminServer<AdminService>) {
    let store = StoreServer::new(StoreService(Arc::clone(shared)))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let admin =
        AdminServer::new(AdminService(Arc::clone(shared))).max_encoding_message_size(MAX_MESSAGE_BYTES);
    (store, admin)
}

fn peer_service(shared: &Arc<Shared>) -> Option<PeerServer<PeerService>> {
    let peers = shared.peers.clone()?;
    Some(
        PeerServer::new(PeerService::new(Arc::clone(shared), peers))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES),
    )
}

/// One call as a connection would bring it, with all that happens to it on its way in and out.
#[cfg(feature = "fuzzing")]
pub(crate) async fn call(
    shared: &Arc<Shared>,
    request: http::Request<tonic::body::Body>,
) -> http::Response<tonic::body::Body> {
    use tower::ServiceExt;

    let (store, admin) = services(shared);
    let events = EventsServer::new(EventsService(Arc::clone(shared)));
    let routes = tonic::service::Routes::new(store).add_service(admin).add_service(events);
    let Ok(response) = routes.oneshot(request).await;
    framed(typed(shared, response))
}

/// Accepts while the daemon does: who connects while it hands over waits in the queue for the next one.
struct Open<S> {
    incoming: Pin<Box<S>>,
    phase: WatchStream<Phase>,
    accepting: bool,
}

impl<S: Stream> Open<S> {
    fn while_accepting(incoming: S, phase: watch::Receiver<Phase>) -> Self {
        // A watch tells the present phase first.
        Self { incoming: Box::pin(incoming), phase: WatchStream::new(phase), accepting: false }
    }
}

impl<S: Stream> Stream for Open<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        while let Poll::Ready(Some(phase)) = Pin::new(&mut self.phase).poll_next(context) {
            self.accepting = phase.accepts();
        }
        if self.accepting { self.incoming.as_mut().poll_next(context) } else { Poll::Pending }
    }
}

async fn unhurried<C>(accepted: io::Result<C>) -> io::Result<C> {
    let accepted = accepted.and_then(|client| fault::check(Fault::Accept).map(|()| client));
    if let Err(error) = &accepted {
        tracing::warn!(%error, "a connection could not be accepted");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
    accepted
}
