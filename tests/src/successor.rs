//! The new daemon's side of a take-over, one step at a time, so that it can go wrong at each.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt,
    sockopt::ReceiveTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike};
use prost::Message as _;
use tender_proto::shm::{recv_packet, send_with_fds};
use tender_proto::v1;
use v1::take_over::Message;

const MAGIC: &[u8] = b"TENDERT1";
/// Format of the arena, as the daemon under test writes it.
const ARENA_FORMAT: u32 = 2;

/// Where the daemon that holds this arena waits for its successor.
pub fn place_beside(arena: &Path) -> PathBuf {
    let mut path = arena.as_os_str().to_owned();
    path.push(".takeover");
    path.into()
}

/// A connection to a running daemon. Dropping it is what the daemon sees of a successor's death.
#[derive(Debug)]
pub struct RawSuccessor(OwnedFd);

impl RawSuccessor {
    /// Connects to the daemon that holds the arena.
    pub fn connect(arena: &Path) -> io::Result<Self> {
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&fd, ReceiveTimeout, &TimeVal::seconds(20))?;
        setsockopt(&fd, sockopt::SendTimeout, &TimeVal::seconds(20))?;
        connect(fd.as_raw_fd(), &UnixAddr::new(&place_beside(arena))?)?;
        Ok(Self(fd))
    }
    /// A greeting that fits an arena of this size.
    pub fn hello(arena_bytes: u64) -> v1::TakeOverHello {
        v1::TakeOverHello {
            oldest_version: 1,
            newest_version: 1,
            daemon_version: "test".into(),
            arena_format: ARENA_FORMAT,
            arena_bytes,
        }
    }
    /// Sends a message.
    pub fn say(&self, message: Message) -> io::Result<()> {
        let mut packet = MAGIC.to_vec();
        packet.extend(v1::TakeOver { message: Some(message) }.encode_to_vec());
        self.say_raw(&packet)
    }
    /// Sends any bytes.
    pub fn say_raw(&self, packet: &[u8]) -> io::Result<()> {
        send_with_fds(self.0.as_fd(), packet, &[])
    }
    /// The next message and its descriptors; `None` is the end.
    pub fn hear(&self) -> Option<(Message, Vec<OwnedFd>)> {
        let (packet, fds) = recv_packet(self.0.as_fd(), &mut [0; 16 << 10]).ok()?;
        let body = packet.strip_prefix(MAGIC)?;
        Some((v1::TakeOver::decode(body).expect("a message").message.expect("a kind"), fds))
    }
    /// Why it was refused.
    pub fn refused(&self) -> String {
        match self.hear() {
            Some((Message::Refused(no), _)) => no.why,
            other => panic!("a refusal, not {other:?}"),
        }
    }

    /// Greets, and takes everything that is offered.
    pub fn get_ready(&self, arena_bytes: u64) -> Vec<v1::TakeOverPlace> {
        self.say(Message::Hello(Self::hello(arena_bytes))).expect("somebody listens");
        let Some((Message::Offer(offer), _)) = self.hear() else { panic!("an offer") };
        let place = |_| match self.hear() {
            Some((Message::Place(place), fds)) => {
                let wanted = if place.kind() == v1::TakeOverKind::Unix { 2 } else { 1 };
                assert_eq!(fds.len(), wanted, "the sockets of {place:?}");
                place
            }
            other => panic!("a place, not {other:?}"),
        };
        (0..offer.places).map(place).collect()
    }
    /// Says that it takes these.
    pub fn take(&self, places: Vec<u32>) {
        self.say(Message::Take(v1::TakeOverTake { places })).expect("somebody listens");
    }
    /// Waits until the daemon has nothing under way any more.
    pub fn drained(&self) {
        let heard = self.hear();
        assert!(matches!(heard, Some((Message::Drained(_), _))), "{heard:?}");
    }
    /// Asks for the arena and gets its descriptor.
    pub fn go(&self) -> OwnedFd {
        self.say(Message::Go(v1::TakeOverGo {})).expect("somebody listens");
        match self.hear() {
            Some((Message::Yours(_), mut fds)) => fds.remove(0),
            other => panic!("the arena, not {other:?}"),
        }
    }
}
