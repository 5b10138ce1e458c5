//! A connection that has said that it speaks HTTP/2. It knows where it comes from, tells every call, and holds its place
//! at the gate.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use super::peer::Peer;
use crate::gate::Place;

/// How every connection of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes as they come from `io`; calls find the peer in their extensions.
#[derive(Debug)]
pub(crate) struct Conn<S> {
    io: S,
    peer: Arc<Peer>,
    /// Bytes of the preface that were read here and not yet passed on.
    preface: &'static [u8],
    _place: Place,
}

impl<S: AsyncRead + Unpin> Conn<S> {
    /// Waits for the first bytes; those of anything else than HTTP/2 are an error at once. Who calls this bounds the time.
    pub(crate) async fn open(mut io: S, peer: Peer, place: Place) -> io::Result<Self> {
        let (mut seen, mut at) = ([0; PREFACE.len()], 0);
        while at < PREFACE.len() {
            let count = io.read(&mut seen[at..]).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += count;
            if seen[..at] != PREFACE[..at] {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak HTTP/2"));
            }
        }
        Ok(Self { io, peer: Arc::new(peer), preface: PREFACE, _place: place })
    }
}

impl<S> Connected for Conn<S> {
    type ConnectInfo = Arc<Peer>;

    fn connect_info(&self) -> Arc<Peer> {
        Arc::clone(&self.peer)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Conn<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.preface.is_empty() {
            let (now, later) = self.preface.split_at(self.preface.len().min(into.remaining()));
            into.put_slice(now);
            self.preface = later;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Conn<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, from)
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, from)
    }
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
