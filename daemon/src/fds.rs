//! The descriptor socket: a client that has a session gets the arena (read-only) and its staging region here. gRPC
//! cannot carry descriptors.
//!
//! Who may connect is the file mode's to say; who gets memory is decided here, by what the system says about the
//! other end: processes of the daemon's own user, and of root.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::unistd::geteuid;
use tender_proto::Reason;
use tender_proto::shm::{FdReply, FdRequest, recv_with_fds, send_with_fds};
use tokio::io::Interest;
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::accept::attend_all;
use crate::access::Access;
use crate::access::peer::Peer;
use crate::engine::{Engine, Handover};
use crate::fault::{self, Fault};
use crate::gate::{Bounds, Gate};
use crate::metrics::Metrics;
use crate::shutdown::Phase;
use crate::task::blocking;

/// A client that connects and says nothing is dropped after this.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients served at one time; more wait in the socket's queue.
const MAX_CLIENTS: usize = 512;
/// The socket's queue: every session of a starting fleet may come at once.
const BACKLOG: i32 = 1024;
/// Of another user than the daemon's own and root, who gets a refusal anyway.
const MAX_CLIENTS_OF_A_STRANGER: usize = 16;

/// Binds the socket. It keeps packets apart (`SOCK_SEQPACKET`), which the listener's type does not show.
pub(crate) fn bind_packets(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&fd, Backlog::new(BACKLOG)?)?;
    UnixListener::from_std(fd.into())
}

/// Who gives memory, and who writes down to whom it was refused.
#[derive(Clone, Debug)]
pub(crate) struct Hands {
    pub(crate) engine: Arc<Engine>,
    pub(crate) access: Arc<Access>,
}

/// Serves until it is dropped. While the daemon hands over, who connects waits in the queue.
pub(crate) async fn serve(
    listener: UnixListener,
    hands: Hands,
    metrics: &Arc<Metrics>,
    phase: watch::Receiver<Phase>,
) {
    let gate =
        Gate::new("descriptors", Bounds { all: MAX_CLIENTS, each: MAX_CLIENTS_OF_A_STRANGER }, metrics);
    let client = |client: UnixStream| {
        let peer = Peer::Local(client.peer_cred().ok());
        let place = gate.enter(&peer).map_err(|why| gate.turned_away(&peer, why, None)).ok()?;
        let hands = hands.clone();
        Some(async move {
            let _place = place;
            attend(client, hands).await;
        })
    };
    // One fewer than the gate: who waits in the socket's queue is not turned away.
    attend_all("descriptor client", listener, MAX_CLIENTS - 1, phase, client).await;
}

/// One client, one question.
pub(crate) async fn attend(client: UnixStream, hands: Hands) {
    match tokio::time::timeout(PATIENCE, exchange(&client, hands)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a client of the descriptor socket went away"),
        Err(_) => tracing::debug!("a client of the descriptor socket said nothing and was dropped"),
    }
}

async fn exchange(client: &UnixStream, hands: Hands) -> io::Result<()> {
    let peer = client.peer_cred()?;
    // Descriptors that nobody asked for are closed at once.
    let (packet, _) = client.async_io(Interest::READABLE, || recv_with_fds(client.as_fd())).await?;
    if packet.is_empty() {
        return Ok(());
    }
    let given = hand_over(&packet, peer, hands).await;
    let (reply, fds) = match &given {
        Ok(given) => {
            let (arena_bytes, staging_bytes) = (given.arena_bytes, given.staging_bytes);
            (FdReply::Granted { arena_bytes, staging_bytes }, descriptors(given))
        }
        Err(reason) => (FdReply::Refused(*reason), Vec::new()),
    };
    fault::check(Fault::SendDescriptors)?;
    client.async_io(Interest::WRITABLE, || send_with_fds(client.as_fd(), &reply.encode(), &fds)).await
}

async fn hand_over(packet: &[u8], peer: UCred, hands: Hands) -> Result<Handover, Reason> {
    let Hands { engine, access } = hands;
    let (uid, pid) = (peer.uid(), peer.pid().unwrap_or(0));
    let Some(FdRequest { session, staging_bytes }) = FdRequest::decode(packet) else {
        tracing::warn!(
            uid,
            pid,
            bytes = packet.len(),
            "a packet that is no request came to the descriptor socket"
        );
        engine.count_refusal(Reason::Malformed);
        return Err(Reason::Malformed);
    };
    if !may_have(uid) {
        tracing::warn!(uid, pid, %session, "a process of another user asked for shared memory and was refused");
        engine.count_refusal(Reason::NotOwner);
        return Err(Reason::NotOwner);
    }
    if let Err(reason) = engine.may_attach(session, uid) {
        tracing::warn!(target: "tender::audit", uid, pid, %session, %reason, "no shared memory for this process");
        engine.count_refusal(reason);
        return Err(reason);
    }
    let owner = engine.owner_of(session);
    // Reserving a large region takes a while.
    let given = blocking("staging", move || engine.attach_staging(session, staging_bytes)).await;
    let given = given.unwrap_or(Err(Reason::Internal));
    match &given {
        Ok(given) => {
            tracing::info!(%session, uid, pid, staging_bytes = given.staging_bytes, "shared memory handed over")
        }
        Err(reason) => {
            tracing::warn!(%session, uid, pid, staging_bytes, %reason, "no shared memory for a session");
            if let (Reason::OverQuota, Some(owner)) = (*reason, &owner) {
                access.note_owner("attach", owner, *reason, "its staging regions fill its quota");
            }
        }
    }
    given
}

fn may_have(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

fn descriptors(given: &Handover) -> Vec<BorrowedFd<'_>> {
    std::iter::once(&given.arena).chain(&given.staging).map(AsFd::as_fd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_for_the_same_user_and_for_root() {
        let own = geteuid().as_raw();
        assert!(may_have(own) && may_have(0));
        assert!(!may_have(own + 1));
    }
}
