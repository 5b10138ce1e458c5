//! The descriptor socket: a client that has a session gets the arena (read-only) and its staging region here. gRPC
//! cannot carry descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use tender_proto::Reason;
use tender_proto::shm::{FdReply, FdRequest, recv_with_fds, send_with_fds};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};

use crate::engine::{Engine, Handover};

/// A client that connects and says nothing is dropped after this.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients served at one time; more wait in the socket's queue.
const MAX_CLIENTS: usize = 64;

/// Binds the socket. It keeps packets apart (`SOCK_SEQPACKET`), which the listener's type does not show.
pub(crate) fn bind_packets(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &UnixAddr::new(path)?)?;
    listen(&fd, Backlog::new(128)?)?;
    UnixListener::from_std(fd.into())
}

/// Serves until it is dropped.
pub(crate) async fn serve(listener: UnixListener, engine: Arc<Engine>) {
    let mut clients = tokio::task::JoinSet::new();
    loop {
        while clients.len() >= MAX_CLIENTS {
            clients.join_next().await;
        }
        match listener.accept().await {
            Ok((client, _)) => {
                let engine = Arc::clone(&engine);
                clients.spawn(async move {
                    if let Ok(Err(error)) = tokio::time::timeout(PATIENCE, answer(&client, &engine)).await {
                        tracing::debug!(%error, "a client of the descriptor socket was dropped");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a client of the descriptor socket could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while clients.try_join_next().is_some() {}
    }
}

async fn answer(client: &UnixStream, engine: &Engine) -> io::Result<()> {
    let (packet, fds) = client.async_io(Interest::READABLE, || recv_with_fds(client.as_fd())).await?;
    drop(fds);
    let uid = client.peer_cred()?.uid();
    let given = match FdRequest::decode(&packet) {
        Some(request) => {
            let given = engine.attach_staging(request.session, request.staging_bytes);
            tracing::debug!(session = %request.session, uid, staging_bytes = request.staging_bytes, granted = given.is_ok(), "descriptors");
            given
        }
        None => {
            engine.count_refusal(Reason::Malformed);
            Err(Reason::Malformed)
        }
    };
    let (reply, given) = match &given {
        Ok(given) => {
            let (arena_bytes, staging_bytes) = (given.arena_bytes, given.staging_bytes);
            (FdReply::Granted { arena_bytes, staging_bytes }, Some(given))
        }
        Err(reason) => (FdReply::Refused(*reason), None),
    };
    let fds = given.map(descriptors).unwrap_or_default();
    client.async_io(Interest::WRITABLE, || send_with_fds(client.as_fd(), &reply.encode(), &fds)).await
}

fn descriptors(given: &Handover) -> Vec<BorrowedFd<'_>> {
    std::iter::once(&given.arena).chain(&given.staging).map(AsFd::as_fd).collect()
}
