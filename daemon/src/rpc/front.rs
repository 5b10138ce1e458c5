//! The way of a connection to the server: past the gate, through TLS where the door has it, to the first bytes of
//! HTTP/2, each beside the others, so that one that dawdles holds up nobody.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;

use super::Shared;
use crate::accept::{Listening, attend_all};
use crate::access::conn::Conn;
use crate::access::peer::Peer;
use crate::gate::{Gate, Place, Turned};
use crate::task::{Task, spawn};
use crate::tls::{Tls, shake};

/// Who has not got to the first bytes of HTTP/2 after this is dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that are through and wait for the server to take them.
const QUEUE: usize = 16;

/// Connections that are through. Accepting ends with the drop of this.
pub(super) struct Front<S> {
    through: mpsc::Receiver<Conn<S>>,
    _accepting: Task,
}

impl<S> Stream for Front<S> {
    type Item = io::Result<Conn<S>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.through.poll_recv(context).map(|conn| conn.map(Ok))
    }
}

/// Of a Unix socket.
pub(super) fn unix(shared: &Shared, listener: UnixListener, gate: Arc<Gate>) -> Front<UnixStream> {
    let origin = |client: &UnixStream| Peer::Local(client.peer_cred().ok());
    let open = async |client: UnixStream, place: Place| {
        let peer = Peer::Local(client.peer_cred().ok());
        Conn::open(client, peer, place).await.map_err(not_http2)
    };
    front(shared, "unix client", listener, gate, origin, open)
}

/// Of plain TCP.
pub(super) fn tcp(shared: &Shared, listener: TcpListener, gate: Arc<Gate>) -> Front<TcpStream> {
    let open = async |client: TcpStream, place: Place| {
        client.set_nodelay(true).map_err(not_http2)?;
        let peer = plain(&client);
        Conn::open(client, peer, place).await.map_err(not_http2)
    };
    front(shared, "tcp client", listener, gate, plain, open)
}

/// Of TCP with TLS.
pub(super) fn tls(
    shared: &Shared,
    listener: TcpListener,
    tls: Arc<Tls>,
    gate: Arc<Gate>,
) -> Front<TlsStream<TcpStream>> {
    let metrics = Arc::clone(&shared.metrics);
    let open = move |client: TcpStream, mut place: Place| {
        let (tls, metrics) = (Arc::clone(&tls), Arc::clone(&metrics));
        async move {
            let (io, peer) = shake(client, &tls).await.map_err(|error| {
                metrics.handshake_failed();
                (Turned::Handshake, Some(error))
            })?;
            place.shows(&peer).map_err(|why| (why, None))?;
            Conn::open(io, peer, place).await.map_err(not_http2)
        }
    };
    front(shared, "tls client", listener, gate, plain, open)
}

fn plain(client: &TcpStream) -> Peer {
    Peer::Plain(client.peer_addr().ok())
}

type Failure = (Turned, Option<io::Error>);

fn not_http2(error: io::Error) -> Failure {
    (Turned::NotHttp2, Some(error))
}

fn front<L: Listening, S, W>(
    shared: &Shared,
    name: &'static str,
    listener: L,
    gate: Arc<Gate>,
    origin: impl Fn(&L::Client) -> Peer + Send + 'static,
    open: impl Fn(L::Client, Place) -> W + Send + 'static,
) -> Front<S>
where
    S: Send + 'static,
    W: Future<Output = Result<Conn<S>, Failure>> + Send + 'static,
{
    let (sender, through) = mpsc::channel(QUEUE);
    let attend = move |client: L::Client| {
        let peer = origin(&client);
        let place = gate.enter(&peer).map_err(|why| gate.turned_away(&peer, why, None)).ok()?;
        let (opening, sender, gate) = (open(client, place), sender.clone(), Arc::clone(&gate));
        Some(async move {
            let opened = tokio::time::timeout(PATIENCE, opening).await;
            match opened.unwrap_or(Err((Turned::Silent, None))) {
                // When the server is gone, so is the daemon.
                Ok(conn) => _ = sender.send(conn).await,
                Err((why, error)) => gate.turned_away(&peer, why, error.as_ref()),
            }
        })
    };
    // The gate bounds them.
    let accepting = attend_all(name, listener, usize::MAX, shared.phase.clone(), attend);
    Front { through, _accepting: spawn("accept", accepting) }
}
