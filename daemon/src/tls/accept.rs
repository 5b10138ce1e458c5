//! TLS on a connection that comes in.

use std::io;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{ClientAuth, Tls};
use crate::access::peer::{Certificate, Peer};

/// The handshake: the stream, and who it is that has connected.
pub(crate) async fn shake(client: TcpStream, tls: &Tls) -> io::Result<(TlsStream<TcpStream>, Peer)> {
    client.set_nodelay(true)?;
    let address = client.peer_addr().ok();
    let io = TlsAcceptor::from(tls.server()).accept(client).await?;
    let shown = io.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.map(|der| Certificate::read(der));
    Ok((io, Peer::Tls { address, certificate, unasked: tls.config.client_auth == ClientAuth::None }))
}
