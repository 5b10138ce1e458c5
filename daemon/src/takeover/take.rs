//! The new daemon's side, up to where the arena is its own.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use tender_proto::v1;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{Line, Message, PATIENCE, TakeOverError, VERSION, is_gone, may_take, place_beside};
use crate::app::AppError;
use crate::arena::FORMAT;
use crate::config::Config;
use crate::doors::{Door, Place};

/// Beyond what the old daemon says it needs, before it counts as silent.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);
/// More places than anybody configures.
const MAX_PLACES: u32 = 256;

/// What the old daemon gave.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Every place of the configuration: handed over where the old daemon had it, else bound anew. The files of the
    /// former are the old daemon's until it has ended.
    pub(crate) doors: Vec<Door>,
    /// The arena's file with its lock; `None` where the old daemon died before it could give it.
    pub(crate) arena: Option<File>,
    /// Drop it last: when it ends before [`Message::Serving`] was said, the old daemon serves again.
    pub(crate) line: Line,
}

/// Takes over from the daemon that holds the configured arena; `None` where there is none.
pub(crate) async fn take(config: &Config) -> Result<Option<Taken>, AppError> {
    let Some((line, pid)) = call(&config.engine.arena.place)? else { return Ok(None) };
    let place = place_beside(&config.engine.arena.place);
    let old = Old { line, pid, place: &place };
    let hello = v1::TakeOverHello {
        oldest_version: VERSION,
        newest_version: VERSION,
        daemon_version: env!("CARGO_PKG_VERSION").into(),
        arena_format: FORMAT,
        arena_bytes: config.engine.arena.bytes,
    };
    // A daemon that dies at any moment up to here is one that is not there.
    let offered = match old.greet(hello).await {
        Ok(offered) => offered,
        Err(Trouble::Gone) => return Ok(None),
        Err(Trouble::Error(error)) => return Err(error.into()),
    };
    tracing::info!(pid, version = offered.daemon_version, "taking over from a running daemon");
    let (doors, takes) = match_up(config, offered.doors).await?;
    let arena = match old.get_arena(takes, offered.drain).await {
        Ok(arena) => Some(arena),
        Err(Trouble::Gone) => {
            tracing::warn!(
                pid,
                "the running daemon ended before it had handed over; beginning where it ended"
            );
            None
        }
        Err(Trouble::Error(error)) => return Err(error.into()),
    };
    Ok(Some(Taken { doors, arena, line: old.line }))
}

/// The old daemon, as the new one sees it.
struct Old<'a> {
    line: Line,
    pid: u32,
    place: &'a Path,
}

/// What it has.
struct Offered {
    doors: Vec<(u32, Door)>,
    drain: Duration,
    daemon_version: String,
}

enum Trouble {
    /// It ended.
    Gone,
    Error(TakeOverError),
}

impl From<TakeOverError> for Trouble {
    fn from(error: TakeOverError) -> Self {
        Self::Error(error)
    }
}

impl Old<'_> {
    async fn greet(&self, hello: v1::TakeOverHello) -> Result<Offered, Trouble> {
        self.say(Message::Hello(hello)).await?;
        let Message::Offer(offer) = self.hear(PATIENCE).await?.0 else {
            return Err(self.nonsense("something else than an offer").into());
        };
        if offer.version != VERSION || offer.places > MAX_PLACES {
            return Err(self.nonsense("an offer that this version does not understand").into());
        }
        let mut doors = Vec::new();
        for at in 0..offer.places {
            let (Message::Place(message), descriptors) = self.hear(PATIENCE).await? else {
                return Err(self.nonsense("something else than a place to listen").into());
            };
            let Some(place) = Door::place_of(&message) else { continue };
            match Door::inherit(place, descriptors) {
                Ok(door) => doors.push((at, door)),
                // It will be bound anew, or be in the way then, with a sentence of its own.
                Err(error) => tracing::warn!(place = message.configured, %error, "a socket is of no use"),
            }
        }
        let drain = Duration::from_millis(offer.drain_ms.min(3_600_000));
        Ok(Offered { doors, drain, daemon_version: offer.daemon_version })
    }

    async fn get_arena(&self, places: Vec<u32>, drain: Duration) -> Result<File, Trouble> {
        self.say(Message::Take(v1::TakeOverTake { places })).await?;
        let Message::Drained(_) = self.hear(drain + DRAIN_PATIENCE).await?.0 else {
            return Err(self.nonsense("something else than that it is drained").into());
        };
        self.say(Message::Go(v1::TakeOverGo {})).await?;
        match self.hear(DRAIN_PATIENCE).await? {
            (Message::Yours(_), descriptors) => match <[_; 1]>::try_from(descriptors) {
                Ok([arena]) => Ok(File::from(arena)),
                Err(_) => Err(self.nonsense("that the arena is ours, without its descriptor").into()),
            },
            _ => Err(self.nonsense("something else than that the arena is ours").into()),
        }
    }

    async fn say(&self, message: Message) -> Result<(), Trouble> {
        match timeout(PATIENCE, self.line.say(message, &[])).await {
            Ok(said) => said.map_err(|error| self.broken(error)),
            Err(_) => Err(self.silent().into()),
        }
    }

    async fn hear(&self, patience: Duration) -> Result<(Message, Vec<std::os::fd::OwnedFd>), Trouble> {
        match timeout(patience, self.line.hear()).await {
            Ok(Ok((Message::Refused(no), _))) => {
                Err(TakeOverError::Refused { pid: self.pid, why: no.why }.into())
            }
            Ok(Ok(heard)) => Ok(heard),
            Ok(Err(error)) => Err(self.broken(error)),
            Err(_) => Err(self.silent().into()),
        }
    }

    fn broken(&self, source: io::Error) -> Trouble {
        if is_gone(&source) {
            return Trouble::Gone;
        }
        if source.kind() == io::ErrorKind::InvalidData {
            return self.nonsense("what is no message of this version").into();
        }
        TakeOverError::Io { doing: "talk over", place: self.place.to_owned(), source }.into()
    }
    fn silent(&self) -> TakeOverError {
        TakeOverError::Silent { pid: self.pid, place: self.place.to_owned() }
    }
    fn nonsense(&self, what: &'static str) -> TakeOverError {
        TakeOverError::Nonsense { pid: self.pid, what }
    }
}

/// Connects to whoever holds the arena, and says whose process it is.
fn call(arena: &Path) -> Result<Option<(Line, u32)>, TakeOverError> {
    let place = place_beside(arena);
    let io = |source| TakeOverError::Io { doing: "connect to", place: place.clone(), source };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd =
        socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(|error| io(error.into()))?;
    let address = match UnixAddr::new(&place) {
        Ok(address) => address,
        // Nor can the other daemon have bound it.
        Err(_) => return Ok(None),
    };
    if let Err(error) = connect(fd.as_raw_fd(), &address).map_err(io::Error::from) {
        return match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
            _ => Err(io(error)),
        };
    }
    let line = Line(UnixStream::from_std(fd.into()).map_err(io)?);
    let (uid, pid) = line.peer().map_err(io)?;
    if !may_take(uid) {
        return Err(TakeOverError::Stranger { pid, uid, place });
    }
    Ok(Some((line, pid)))
}

/// The configured places: from what is offered where it is the same, else bound anew. Also the positions of those that
/// are taken, in the order in which they were offered.
async fn match_up(config: &Config, mut offered: Vec<(u32, Door)>) -> Result<(Vec<Door>, Vec<u32>), AppError> {
    let (mut doors, mut takes) = (Vec::new(), Vec::new());
    for place in Place::all_of(config) {
        match offered.iter().position(|(_, door)| door.place == place) {
            Some(found) => {
                let (at, door) = offered.swap_remove(found);
                takes.push(at);
                doors.push(door);
            }
            None => {
                let bound = Door::open(place.clone(), config.socket_mode).await;
                doors.push(bound.map_err(|source| AppError::Bind { place: place.to_string(), source })?);
            }
        }
    }
    for (_, door) in offered {
        tracing::info!(place = %door.place, "the running daemon listens there, and this one will not");
    }
    Ok((doors, takes))
}
