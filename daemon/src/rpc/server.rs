//! The gRPC server: limits on both directions, over Unix sockets and TCP alike.

use std::sync::Arc;
use std::time::Duration;

use tender_proto::limits::{
    HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_FRAME_BYTES, HTTP2_STREAM_WINDOW_BYTES, MAX_MESSAGE_BYTES,
};
use tender_proto::v1::admin_server::AdminServer;
use tender_proto::v1::store_server::StoreServer;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::{Router, TcpIncoming};

use super::Shared;
use super::admin::AdminService;
use super::service::StoreService;

/// Streams of one connection. A client's session is one of them for its whole life, and a process may have many.
const MAX_STREAMS_PER_CONNECTION: u32 = 8192;
/// A peer that vanished without a word is noticed after these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

fn router(shared: &Arc<Shared>) -> Router {
    let store = StoreServer::new(StoreService(Arc::clone(shared)))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let admin = AdminServer::new(AdminService(Arc::clone(shared)));
    Server::builder()
        .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES)
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(store)
        .add_service(admin)
}

/// Serves a Unix socket until `stop` is over, then until its calls are.
pub(crate) async fn serve_unix(
    shared: Arc<Shared>,
    listener: tokio::net::UnixListener,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    router(&shared).serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop).await
}

/// Serves a TCP socket until `stop` is over, then until its calls are.
pub(crate) async fn serve_tcp(
    shared: Arc<Shared>,
    listener: tokio::net::TcpListener,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    router(&shared).serve_with_incoming_shutdown(incoming, stop).await
}
