//! TLS on connections that come in. Handshakes run beside each other, so that a peer that dawdles holds up nobody.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;

use super::{ClientAuth, Tls};
use crate::access::conn::Conn;
use crate::access::peer::{Certificate, Peer};
use crate::fault::{self, Fault};
use crate::metrics::Metrics;
use crate::shutdown::Phase;
use crate::task::{Group, Task, spawn};

/// A peer that has not finished its handshake after this is dropped.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at one time; more wait in the socket's queue.
const MAX_HANDSHAKES: usize = 256;
/// Connections that are through and wait for the server to take them.
const QUEUE: usize = 16;
/// Without descriptors left, accepting fails at once and for as long as that lasts.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection that is through its handshake.
pub(crate) type Secure = Conn<TlsStream<TcpStream>>;

/// Connections of a listener, each with its own handshake. It accepts while the daemon does, and ends with the drop of
/// the stream.
pub(crate) fn incoming(
    listener: TcpListener,
    tls: Arc<Tls>,
    metrics: Arc<Metrics>,
    phase: watch::Receiver<Phase>,
) -> impl Stream<Item = io::Result<Secure>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let accepting = spawn("tls accept", accept(listener, tls, metrics, phase, sender));
    Incoming { receiver, _accepting: accepting }
}

struct Incoming {
    receiver: mpsc::Receiver<Secure>,
    _accepting: Task,
}

impl Stream for Incoming {
    type Item = io::Result<Secure>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(context).map(|secure| secure.map(Ok))
    }
}

async fn accept(
    listener: TcpListener,
    tls: Arc<Tls>,
    metrics: Arc<Metrics>,
    mut phase: watch::Receiver<Phase>,
    through: mpsc::Sender<Secure>,
) {
    let mut handshakes = Group::new("tls handshake");
    loop {
        handshakes.room_for(MAX_HANDSHAKES).await;
        if phase.wait_for(|phase| phase.accepts()).await.is_err() {
            return;
        }
        let accepted = tokio::select! {
            biased;
            _ = phase.changed() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted.and_then(|client| fault::check(Fault::Accept).map(|()| client)) {
            Ok((client, address)) => {
                let (tls, metrics, through) = (Arc::clone(&tls), Arc::clone(&metrics), through.clone());
                handshakes.spawn(async move {
                    let shaking = tokio::time::timeout(HANDSHAKE, shake(client, &tls));
                    match shaking.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                        // When the server is gone, so is the daemon.
                        Ok(secure) => _ = through.send(secure).await,
                        Err(error) => {
                            metrics.handshake_failed();
                            tracing::info!(target: "tender::audit", %address, %error, "a TLS handshake failed");
                        }
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn shake(client: TcpStream, tls: &Tls) -> io::Result<Secure> {
    client.set_nodelay(true)?;
    let address = client.peer_addr().ok();
    let io = TlsAcceptor::from(tls.server()).accept(client).await?;
    let shown = io.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.map(|der| Certificate::read(der));
    let unasked = tls.config.client_auth == ClientAuth::None;
    Ok(Conn::new(io, Peer::Tls { address, certificate, unasked }))
}
