//! Shared memory: parts are read where they lie in the arena and committed where they lie in staging.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt::ReceiveTimeout,
    sockopt::SendTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike};
use tender_proto::shm::{FdReply, FdRequest, Mapping, fd_socket_path, recv_with_fds, send_with_fds};
use tender_proto::{ContentDigest, Reason, Refusal, SessionId};
use tokio::sync::oneshot;

use super::calls::{Calls, CommitAsk, Stored, nonsense};
use super::staging::Staging;
use super::{ReadAsk, ReadItem, Sink, StagedPart, Transport, TransportKind, region};
use crate::client::{Client, Pace};
use crate::session::Session;

/// What the daemon handed over: the arena for reading, a staging region of our own for writing.
#[derive(Debug)]
pub(crate) struct Attached {
    arena: Arc<Mapping>,
    staging: Arc<Staging>,
}

/// Asks for the descriptors and maps them. Blocks a helper thread, not the runtime.
pub(crate) async fn attach(
    grpc_socket: PathBuf,
    session: SessionId,
    staging_bytes: u64,
    limit: Duration,
) -> Result<Attached, Refusal> {
    let request = FdRequest { session, staging_bytes };
    tokio::task::spawn_blocking(move || attach_now(grpc_socket, &request, limit))
        .await
        .unwrap_or_else(|_| Err(refuse("the hand-over's thread ended early")))
}

fn attach_now(grpc_socket: PathBuf, request: &FdRequest, limit: Duration) -> Result<Attached, Refusal> {
    let (packet, fds) = exchange(grpc_socket, request, limit).map_err(refuse)?;
    match FdReply::decode(&packet) {
        Some(FdReply::Granted { arena_bytes, staging_bytes }) => {
            let mut fds = fds.into_iter();
            let (Some(arena), Some(staging), None) = (fds.next(), fds.next(), fds.next()) else {
                return Err(nonsense("a hand-over of other than two descriptors"));
            };
            let arena = Arc::new(Mapping::read_only(&File::from(arena)).map_err(refuse)?);
            let staging = Mapping::read_write(&File::from(staging)).map_err(refuse)?;
            if arena.len() as u64 != arena_bytes || staging.len() as u64 != staging_bytes {
                return Err(nonsense("descriptors of other sizes than it says"));
            }
            let staging = Staging::new(staging);
            warm_up(&staging, &arena);
            Ok(Attached { arena, staging })
        }
        Some(FdReply::Refused(reason)) => {
            Err(Refusal::new(reason, "shared memory", "the daemon's log says more about this session"))
        }
        None => Err(nonsense("a hand-over that is not one")),
    }
}

fn exchange(
    grpc_socket: PathBuf,
    request: &FdRequest,
    limit: Duration,
) -> std::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    let timeout = TimeVal::milliseconds(i64::try_from(limit.as_millis()).unwrap_or(i64::MAX).max(1));
    setsockopt(&socket, SendTimeout, &timeout)?;
    setsockopt(&socket, ReceiveTimeout, &timeout)?;
    let address = UnixAddr::new(&fd_socket_path(&grpc_socket))?;
    connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &address)?;
    send_with_fds(socket.as_fd(), &request.encode(), &[])?;
    recv_with_fds(socket.as_fd())
}

/// Maps the pages of staging and arena in the background. Else the first gathers and loads would pay for it: a copy
/// that meets unmapped pages runs at a third of its speed.
fn warm_up(staging: &Arc<Staging>, arena: &Arc<Mapping>) {
    let (staging, arena) = (Arc::downgrade(staging), Arc::downgrade(arena));
    let populate = move || {
        // Where only this thread is left, the session is gone.
        if let Some(staging) = staging.upgrade() {
            region::populate(staging.region(), &|| Arc::strong_count(&staging) == 1);
        }
        if let Some(arena) = arena.upgrade() {
            region::populate(&arena, &|| Arc::strong_count(&arena) == 1);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("tender-warm-up".into()).spawn(populate) {
        tracing::debug!(%error, "staging and arena are not warmed up");
    }
}

/// The transport over an attached session.
#[derive(Debug)]
pub(crate) struct Shm {
    attached: Attached,
    calls: Calls,
    verify: bool,
}

impl Shm {
    pub(crate) fn new(attached: Attached, calls: Calls, verify: bool) -> Self {
        Self { attached, calls, verify }
    }

    /// The daemon's numbers are checked before they are used: a wrong place must not become a wrong byte.
    fn read_one(&self, item: &ReadItem) -> Result<&[u8], Reason> {
        let place = item.place.ok_or(Reason::Internal)?;
        if place.bytes != item.bytes {
            return Err(Reason::WrongSize);
        }
        let len = usize::try_from(place.bytes).map_err(|_| Reason::TooLarge)?;
        let bytes =
            region::leased(&self.attached.arena, place.offset_bytes, len).map_err(|_| Reason::WrongSize)?;
        if self.verify && ContentDigest::of(bytes) != place.digest {
            return Err(Reason::BadDigest);
        }
        Ok(bytes)
    }
}

impl Transport for Shm {
    fn kind(&self) -> TransportKind {
        TransportKind::Shm
    }

    fn locates(&self) -> bool {
        true
    }

    fn arena(&self) -> Option<&Arc<Mapping>> {
        Some(&self.attached.arena)
    }

    fn staging(&self) -> &Arc<Staging> {
        &self.attached.staging
    }

    fn read(
        &self,
        _client: &Client,
        session: &Arc<Session>,
        ask: &ReadAsk,
        sink: &mut Sink<'_>,
    ) -> Vec<Result<(), Reason>> {
        let mut read = |(i, item)| {
            if session.has_ended() {
                return Err(Reason::Unreachable);
            }
            if Instant::now() >= ask.deadline {
                return Err(Reason::Deadline);
            }
            sink(i, 0, self.read_one(item)?)
        };
        ask.items.iter().enumerate().map(&mut read).collect()
    }

    fn store(
        &self,
        client: &Client,
        session: &Arc<Session>,
        parts: Vec<StagedPart>,
        deadline: Instant,
    ) -> Vec<Result<Stored, Reason>> {
        let count = parts.len();
        let asks: Vec<_> = parts.iter().map(commit_ask).collect();
        let (answer, answered) = oneshot::channel();
        let calls = self.calls.clone();
        // A task of its own, never cancelled: as long as the daemon may read the slots, somebody must own them.
        client.runtime().spawn(async move {
            let result = calls.commit(&asks).await;
            let silent =
                matches!(&result, Err(no) if matches!(no.reason, Reason::Unreachable | Reason::Deadline));
            for part in parts {
                if silent {
                    part.slot.abandon();
                }
            }
            // Nobody waits any more after the deadline.
            _ = answer.send(result);
        });
        let answer =
            async { answered.await.unwrap_or_else(|_| Err(refuse("the committing task ended early"))) };
        match client.ask_blocking(session, deadline, Pace::Bulk, answer) {
            Ok(outcomes) => outcomes,
            Err(reason) => vec![Err(reason); count],
        }
    }
}

fn commit_ask(part: &StagedPart) -> CommitAsk {
    CommitAsk {
        reservation: part.reservation,
        staging_offset_bytes: part.slot.offset_bytes(),
        bytes: part.slot.len() as u64,
        coverage: part.coverage,
        digest: part.digest,
    }
}

fn refuse(cause: impl std::fmt::Display) -> Refusal {
    Refusal::new(
        Reason::Unreachable,
        format!("shared memory ({cause})"),
        "check that the socket beside the daemon's, ending in .fd, is there and may be used",
    )
}
