//! The gRPC server: limits on both directions, over Unix sockets, TCP and TLS alike. `front` brings the connections,
//! `entry` is what each call passes first.

use std::sync::Arc;
use std::time::Duration;

use tender_proto::limits::{
    HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_FRAME_BYTES, HTTP2_STREAM_WINDOW_BYTES, MAX_MESSAGE_BYTES,
};
use tender_proto::v1::admin_server::AdminServer;
use tender_proto::v1::events_server::EventsServer;
use tender_proto::v1::peer_server::PeerServer;
use tender_proto::v1::store_server::StoreServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tonic::transport::Server;
use tower::util::MapResponseLayer;

use super::Shared;
use super::admin::AdminService;
use super::entry::{Bounded, EntryLayer};
use super::events::EventsService;
use super::frames::framed;
use super::front::{self, Front};
use super::peer::PeerService;
use super::service::StoreService;
use super::trace::TraceLayer;
use super::typed::typed;
use crate::gate::Gate;
use crate::tls::Tls;

/// Streams of one connection. A client's session is one of them for its whole life, and a process may have many.
const MAX_STREAMS_PER_CONNECTION: u32 = 8192;
/// A peer that vanished without a word is noticed after these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves a Unix socket until `stop` is over, then until its calls are.
pub(crate) async fn serve_unix(
    shared: Arc<Shared>,
    listener: UnixListener,
    gate: Arc<Gate>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = front::unix(&shared, listener, gate);
    serve(shared, incoming, stop, None).await
}

/// Serves a TCP socket until `stop` is over, then until its calls are.
pub(crate) async fn serve_tcp(
    shared: Arc<Shared>,
    listener: TcpListener,
    gate: Arc<Gate>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = front::tcp(&shared, listener, gate);
    // Other daemons come from other hosts.
    let peer = peer_service(&shared);
    serve(shared, incoming, stop, peer).await
}

/// Serves a TCP socket with TLS until `stop` is over, then until its calls are.
pub(crate) async fn serve_tls(
    shared: Arc<Shared>,
    listener: TcpListener,
    tls: Arc<Tls>,
    gate: Arc<Gate>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = front::tls(&shared, listener, tls, gate);
    let peer = peer_service(&shared);
    serve(shared, incoming, stop, peer).await
}

async fn serve<S>(
    shared: Arc<Shared>,
    incoming: Front<S>,
    stop: impl Future<Output = ()>,
    peer: Option<Bounded<PeerServer<PeerService>>>,
) -> Result<(), tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (store, admin) = services(&shared);
    let calls = shared.max_calls_per_connection;
    let entry = Arc::clone(&shared);
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
        .layer(EntryLayer(entry))
        .layer(TraceLayer(shared.trace.clone()))
        .add_service(store)
        .add_service(admin)
        .add_service(events_service(&shared))
        .add_optional_service(peer)
        .serve_with_incoming_shutdown(incoming, stop)
        .await
}

type Services = (Bounded<StoreServer<StoreService>>, Bounded<AdminServer<AdminService>>);

fn services(shared: &Arc<Shared>) -> Services {
    let store =
        StoreServer::new(StoreService(Arc::clone(shared))).max_encoding_message_size(MAX_MESSAGE_BYTES);
    let admin =
        AdminServer::new(AdminService(Arc::clone(shared))).max_encoding_message_size(MAX_MESSAGE_BYTES);
    (Bounded::new(shared, store), Bounded::new(shared, admin))
}

fn events_service(shared: &Arc<Shared>) -> Bounded<EventsServer<EventsService>> {
    let service = EventsServer::new(EventsService(Arc::clone(shared)));
    Bounded::new(shared, service.max_encoding_message_size(MAX_MESSAGE_BYTES))
}

fn peer_service(shared: &Arc<Shared>) -> Option<Bounded<PeerServer<PeerService>>> {
    let peers = shared.peers.clone()?;
    let service = PeerServer::new(PeerService::new(Arc::clone(shared), peers));
    Some(Bounded::new(shared, service.max_encoding_message_size(MAX_MESSAGE_BYTES)))
}

/// One call as a connection would bring it, with all that happens to it on its way in and out.
#[cfg(feature = "fuzzing")]
pub(crate) async fn call(
    shared: &Arc<Shared>,
    request: http::Request<tonic::body::Body>,
) -> http::Response<tonic::body::Body> {
    use tower::{Layer, ServiceExt};

    let (store, admin) = services(shared);
    let routes = tonic::service::Routes::new(store).add_service(admin).add_service(events_service(shared));
    let Ok(response) = EntryLayer(Arc::clone(shared))
        .layer(TraceLayer(shared.trace.clone()).layer(routes))
        .oneshot(request)
        .await;
    framed(typed(shared, response))
}
