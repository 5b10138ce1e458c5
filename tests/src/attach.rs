//! The shared-memory side of the raw client: descriptors over the socket beside the gRPC one, stores through
//! staging, reads from the arena's map.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, send, setsockopt, socket, sockopt,
};
use nix::sys::socket::{MsgFlags, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};
use tender_proto::shm::{FdReply, FdRequest, Mapping, recv_with_fds, send_with_fds};
use tender_proto::{ChunkId, Coverage, NamespaceDigest, PartIndex, Reason, SessionId, v1};

use crate::raw::{Ask, RawSession, digest, item};

/// A connected descriptor socket.
#[derive(Debug)]
pub struct FdSocket(OwnedFd);

impl FdSocket {
    /// Connects to `<grpc socket>.fd`.
    pub fn connect(grpc_socket: &Path) -> io::Result<Self> {
        let path = tender_proto::shm::fd_socket_path(grpc_socket);
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&fd, ReceiveTimeout, &TimeVal::seconds(10))?;
        setsockopt(&fd, sockopt::SendTimeout, &TimeVal::seconds(10))?;
        connect(fd.as_raw_fd(), &UnixAddr::new(&path)?)?;
        Ok(Self(fd))
    }
    /// Sends any bytes as one packet.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        send(self.0.as_raw_fd(), packet, MsgFlags::MSG_NOSIGNAL)?;
        Ok(())
    }
    /// Sends any bytes with a descriptor nobody asked for.
    pub fn send_with_fd(&self, packet: &[u8], fd: &OwnedFd) -> io::Result<()> {
        send_with_fds(self.0.as_fd(), packet, &[fd.as_fd()])
    }
    /// The next packet and its descriptors; an empty packet is the end.
    pub fn receive(&self) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        recv_with_fds(self.0.as_fd())
    }
}

/// What a session holds of the daemon's memory.
#[derive(Debug)]
pub struct Attachment {
    /// All of the arena, read-only.
    pub arena: Mapping,
    /// The descriptor it came by.
    pub arena_fd: File,
    /// The session's own staging region.
    pub staging: Option<Mapping>,
    /// Size as told by the daemon.
    pub staging_bytes: u64,
    // Held so that the daemon sees us connected.
    _socket: FdSocket,
}

/// Asks for the descriptors. A typed no is `Ok(Err(reason))`.
pub fn attach_blocking(
    grpc_socket: &Path,
    session: SessionId,
    staging_bytes: u64,
) -> io::Result<Result<Attachment, Reason>> {
    let socket = FdSocket::connect(grpc_socket)?;
    socket.send(&FdRequest { session, staging_bytes }.encode())?;
    let (packet, fds) = socket.receive()?;
    let (arena_bytes, staging_bytes) = match FdReply::decode(&packet) {
        Some(FdReply::Granted { arena_bytes, staging_bytes }) => (arena_bytes, staging_bytes),
        Some(FdReply::Refused(reason)) => return Ok(Err(reason)),
        None => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a reply of {packet:02x?}"))),
    };
    let mut fds = fds.into_iter().map(File::from);
    let arena_fd = fds.next().ok_or(io::ErrorKind::NotFound)?;
    let arena = Mapping::read_only(&arena_fd)?;
    assert_eq!(arena.len() as u64, arena_bytes, "the arena has the size that was told");
    let staging = fds.next().map(|file| Mapping::read_write(&file)).transpose()?;
    assert_eq!(staging.as_ref().map_or(0, |map| map.len() as u64), staging_bytes);
    Ok(Ok(Attachment { arena, arena_fd, staging, staging_bytes, _socket: socket }))
}

/// The same, off the async threads; it must be granted.
pub async fn attach(grpc_socket: &Path, session: &RawSession, staging_bytes: u64) -> Attachment {
    let (path, id): (PathBuf, _) = (grpc_socket.into(), session.session_id());
    tokio::task::spawn_blocking(move || attach_blocking(&path, id, staging_bytes))
        .await
        .expect("no panic")
        .expect("the descriptor socket works")
        .expect("descriptors are granted")
}

/// One part to commit, whose bytes lie at `staging_offset_bytes`.
pub fn commit_item(
    reservation_id: u64,
    staging_offset_bytes: u64,
    coverage: Coverage,
    part: &[u8],
) -> v1::CommitItem {
    v1::CommitItem {
        reservation_id,
        staging_offset_bytes,
        bytes: part.len() as u64,
        coverage: coverage.bits(),
        digest: digest(part),
    }
}

impl Attachment {
    /// Puts bytes into staging.
    pub fn stage(&self, offset_bytes: u64, bytes: &[u8]) {
        let staging = self.staging.as_ref().expect("a staging region");
        staging.copy_in(offset_bytes, bytes).expect("inside the staging region");
    }

    /// Stores one part through staging. `Err` holds the reservation's answer when there was none.
    pub async fn store(
        &self,
        session: &RawSession,
        namespace: NamespaceDigest,
        chunk: ChunkId,
        part: PartIndex,
        coverage: Coverage,
        bytes: &[u8],
    ) -> Result<v1::StoreOutcome, v1::ReserveOutcome> {
        let reservation = session.reserve_one(namespace, item(chunk, part, coverage, bytes.len())).await?;
        self.stage(0, bytes);
        let outcomes = session.commit(vec![commit_item(reservation, 0, coverage, bytes)]).await;
        Ok(outcomes.expect("an answer to the commit")[0])
    }

    /// Reads one part from the arena's map, the lease LIVE at the end. `None` is a miss.
    pub async fn read(
        &self,
        session: &RawSession,
        namespace: NamespaceDigest,
        chunk: ChunkId,
        part: PartIndex,
    ) -> Option<(u64, Vec<u8>)> {
        let found = session.lookup(namespace, &[chunk], Ask::LOCATE).await.expect("a lookup");
        let lease = found.lease?.id;
        let status = &found.chunks[0];
        let bytes = self.copy(&status.parts[usize::from(part.0)]);
        assert_eq!(session.release(&[lease]).await.expect("an answer"), [v1::LeaseOutcome::Live]);
        Some((status.coverage, bytes))
    }

    /// The bytes at a place as they are now, whatever the lease says.
    pub fn copy(&self, place: &v1::PartLocation) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(place.bytes).expect("fits memory")];
        self.arena.copy_out(place.offset_bytes, &mut bytes).expect("inside the arena");
        bytes
    }
}
