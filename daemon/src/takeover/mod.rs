//! Upgrade without a gap: a new daemon gets the listening sockets and the arena of the one that runs.
//!
//! `give` is the running one's side, `take` the new one's; what they say to each other is in `takeover.proto`. The order
//! makes every death harmless: until the arena is given the old daemon serves on, and afterwards whoever is left finds
//! in the arena's file what any daemon finds after a kill.

mod give;
mod take;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use prost::Message as _;
use tender_proto::shm::{recv_packet, send_with_fds};
use tender_proto::v1;
use tokio::io::Interest;
use tokio::net::UnixStream;

pub(crate) use give::{Entrance, Successor, Terms};
pub(crate) use take::{Taken, take};
pub(crate) use v1::take_over::Message;

/// Version of the conversation.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"TENDERT1";
/// Two paths fit, and sentences.
const MAX_PACKET_BYTES: usize = 16 << 10;
/// How long the other side may take for an answer that needs no work.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a daemon could not take over from the one that runs. That one serves on.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// The running daemon said no.
    #[error("the running daemon (process {pid}) does not hand over: {why}; it serves on")]
    Refused {
        /// Whose no it is.
        pid: u32,
        /// Its words.
        why: String,
    },
    /// The running daemon says nothing.
    #[error(
        "the running daemon (process {pid}) holds the arena and does not answer at {}: it may be stopped (SIGCONT) or \
         hang; if it serves nobody, end it with SIGKILL and start this one again: nothing that was READY is lost",
        place.display()
    )]
    Silent {
        /// Who holds the socket.
        pid: u32,
        /// The socket.
        place: PathBuf,
    },
    /// Somebody else's process.
    #[error(
        "the process {pid} at {} belongs to the user {uid}: only a daemon of this user or of root is taken over from",
        place.display()
    )]
    Stranger {
        /// Its process.
        pid: u32,
        /// Its user.
        uid: u32,
        /// The socket.
        place: PathBuf,
    },
    /// What it says makes no sense to this version.
    #[error("the running daemon (process {pid}) says {what}: stop it and start this one without --take-over")]
    Nonsense {
        /// Who said it.
        pid: u32,
        /// What.
        what: &'static str,
    },
    /// The system refused something.
    #[error("cannot {doing} {}: {source}", place.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With what.
        place: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Where a daemon that holds this arena waits for its successor.
pub(crate) fn place_beside(arena: &Path) -> PathBuf {
    let mut path = arena.as_os_str().to_owned();
    path.push(".takeover");
    path.into()
}

/// A connection between the two.
#[derive(Debug)]
pub(crate) struct Line(UnixStream);

impl Line {
    /// Sends a message with the descriptors that belong to it.
    pub(crate) async fn say(&self, message: Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut packet = MAGIC.to_vec();
        packet.extend(v1::TakeOver { message: Some(message) }.encode_to_vec());
        self.0.async_io(Interest::WRITABLE, || send_with_fds(self.0.as_fd(), &packet, fds)).await
    }
    /// The next message. The other side's end is [`io::ErrorKind::UnexpectedEof`], and a message of a kind that this
    /// version does not know is [`io::ErrorKind::InvalidData`].
    pub(crate) async fn hear(&self) -> io::Result<(Message, Vec<OwnedFd>)> {
        let mut buffer = vec![0; MAX_PACKET_BYTES];
        let receive = || recv_packet(self.0.as_fd(), &mut buffer);
        let (packet, fds) = self.0.async_io(Interest::READABLE, receive).await?;
        if packet.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let message = packet.strip_prefix(&MAGIC).and_then(|body| v1::TakeOver::decode(body).ok()?.message);
        message.map(|message| (message, fds)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
    /// User and process of the other side.
    fn peer(&self) -> io::Result<(u32, u32)> {
        let peer = self.0.peer_cred()?;
        Ok((peer.uid(), peer.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0)))
    }
}

/// Whether the other side has ended the connection, as opposed to having said something odd.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// A process of this user, or of root: the arena is theirs already.
fn may_take(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}
