//! One HTTP/2 connection to a daemon, with the sizes both sides agreed on.

use std::task::{Context, Poll};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};
use hyper_util::rt::TokioIo;
use tender_proto::limits::{HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_FRAME_BYTES};
use tender_proto::{Reason, Refusal};
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::config::Address;
use crate::credentials::Credentials;

/// A silent peer is asked for a sign of life after this, and given up after [`KEEPALIVE_TIMEOUT`]: a stopped or
/// unplugged daemon counts as lost within seconds, also when nothing is under way.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// What a stream may have under way to us. With less, its sender waits for us; much more leaves the cores' caches and
/// lies in memory that was made present for it. It is 4 GB/s for each stream over a round trip of a millisecond.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;

/// A connection that shows the client's token with every call, and whose trace it is part of.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    channel: Channel,
    bearer: Option<HeaderValue>,
}

impl tower::Service<Request<Body>> for Line {
    type Response = <Channel as tower::Service<Request<Body>>>::Response;
    type Error = <Channel as tower::Service<Request<Body>>>::Error;
    type Future = <Channel as tower::Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        tower::Service::<Request<Body>>::poll_ready(&mut self.channel, context)
    }
    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(bearer) = &self.bearer {
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        }
        tender_trace::inject(request.headers_mut());
        self.channel.call(request)
    }
}

/// Connects, or says why not within the deadline. The channel never reconnects on its own to a daemon that
/// would not know its session: whoever uses it drops it with the session.
pub(crate) async fn connect(
    address: &Address,
    credentials: &Credentials,
    deadline: Duration,
) -> Result<Line, Refusal> {
    let bearer = match address {
        Address::Unix(_) | Address::Tls { .. } => credentials.bearer()?,
        Address::Tcp { .. } => None,
    };
    let bearer = bearer.map(|mut value| {
        value.set_sensitive(true);
        value
    });
    let tls = match address {
        Address::Tls { .. } => Some(credentials.tls.load()?),
        Address::Unix(_) | Address::Tcp { .. } => None,
    };
    let connecting = async {
        match address {
            Address::Unix(path) => {
                let path = path.clone();
                let connector = tower::service_fn(move |_: Uri| {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await.map(TokioIo::new) }
                });
                // The URI is only for the `:authority` header; the connector knows where to go.
                tuned(Endpoint::from_static("http://tenderd")).connect_with_connector(connector).await
            }
            Address::Tcp { .. } | Address::Tls { .. } => {
                let mut endpoint = tuned(Endpoint::from_shared(http_uri(address))?);
                if let Some(tls) = tls {
                    endpoint = endpoint.tls_config(tls.timeout(deadline))?;
                }
                endpoint.connect().await
            }
        }
    };
    match tokio::time::timeout(deadline, connecting).await {
        Ok(Ok(channel)) => Ok(Line { channel, bearer }),
        Ok(Err(error)) => Err(Refusal::new(
            Reason::Unreachable,
            format!("the daemon at {address} ({})", root_cause(&error)),
            "start tenderd there, or correct the address, its scheme (tls:// or tcp://) or the certificates",
        )),
        Err(_) => Err(Refusal::new(
            Reason::Deadline,
            format!("the daemon at {address}"),
            "it did not accept the connection in time; see whether it runs and is reachable",
        )),
    }
}

fn http_uri(address: &Address) -> String {
    address.to_string().replacen("tcp://", "http://", 1).replacen("tls://", "https://", 1)
}

fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
}

/// tonic's own words are "transport error"; what a person needs is at the end of the chain.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
