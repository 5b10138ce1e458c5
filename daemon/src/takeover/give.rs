//! The running daemon's side, up to where a successor is ready for everything.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tender_proto::v1;
use tokio::net::UnixListener;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::{Line, Message, PATIENCE, VERSION, may_take, place_beside};
use crate::arena::FORMAT;
use crate::doors::{Door, SocketFile};
use crate::fds;
use crate::task::{Group, Task, spawn};

/// A successor binds what it needs beside what it gets; names may have to be resolved.
const TAKE_PATIENCE: Duration = Duration::from_secs(30);
/// Conversations at one time; all but one are refusals.
const MAX_CALLERS: usize = 8;
/// Without descriptors left, accepting fails at once and for as long as that lasts.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a successor must match, and what it is told.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) arena_place: PathBuf,
    pub(crate) arena_bytes: u64,
    pub(crate) drain: Duration,
}

/// Where successors come to. Its file goes with it.
#[derive(Debug)]
pub(crate) struct Entrance {
    successors: Mutex<mpsc::Receiver<Successor>>,
    _serving: Task,
    _file: SocketFile,
}

/// A daemon that is ready to take over and waits for the arena.
#[derive(Debug)]
pub(crate) struct Successor {
    pub(crate) line: Line,
    pub(crate) pid: u32,
    pub(crate) daemon_version: String,
    /// Positions of the doors that it will serve.
    pub(crate) takes: Vec<usize>,
    /// One at a time.
    pub(crate) _turn: OwnedSemaphorePermit,
}

impl Entrance {
    /// Opens the socket beside the arena, in place of one that an earlier daemon left: whoever holds the arena is the
    /// only one to be taken over from.
    pub(crate) fn open(terms: Terms, doors: Arc<[Door]>) -> io::Result<Self> {
        let place = place_beside(&terms.arena_place);
        let listener = bind_over(&place)?;
        let file = SocketFile::of(&place)?;
        let (sender, successors) = mpsc::channel(1);
        let serving = spawn("take-over", serve(listener, Arc::new(terms), doors, sender));
        Ok(Self { successors: Mutex::new(successors), _serving: serving, _file: file })
    }
    /// The next one that is ready.
    pub(crate) async fn successor(&self) -> Successor {
        match self.successors.lock().await.recv().await {
            Some(successor) => successor,
            // Its task ends with this object only.
            None => std::future::pending().await,
        }
    }
}

/// Binds beside the place and moves it there: at no moment is there a place without a socket.
fn bind_over(place: &Path) -> io::Result<UnixListener> {
    let mut new = place.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    _ = std::fs::remove_file(&new);
    let listener = fds::bind_packets(&new)?;
    let moved = std::fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .and_then(|()| std::fs::rename(&new, place));
    if moved.is_err() {
        _ = std::fs::remove_file(&new);
    }
    moved.map(|()| listener)
}

async fn serve(
    listener: UnixListener,
    terms: Arc<Terms>,
    doors: Arc<[Door]>,
    successors: mpsc::Sender<Successor>,
) {
    let turn = Arc::new(Semaphore::new(1));
    let mut callers = Group::new("take-over");
    loop {
        callers.room_for(MAX_CALLERS).await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let (terms, doors) = (Arc::clone(&terms), Arc::clone(&doors));
                let (turn, successors) = (Arc::clone(&turn), successors.clone());
                callers.spawn(async move {
                    let line = Line(stream);
                    match attend(line, &terms, &doors, turn).await {
                        Ok(successor) => _ = successors.send(successor).await,
                        Err(why) => tracing::warn!(%why, "nobody took over; serving on"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a caller of the take-over socket could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One caller, until it is ready. Nothing of the service changes in here.
async fn attend(
    line: Line,
    terms: &Terms,
    doors: &[Door],
    turn: Arc<Semaphore>,
) -> Result<Successor, String> {
    let broken = |error: io::Error| format!("the caller went away: {error}");
    let (uid, pid) = line.peer().map_err(broken)?;
    // Before any no: a connection that ends with something unread loses what was said last.
    let heard = timeout(PATIENCE, line.hear()).await;
    if !may_take(uid) {
        return Err(refuse(&line, format!("the process {pid} belongs to the user {uid}")).await);
    }
    let Ok(Ok((Message::Hello(hello), _))) = heard else {
        return Err(refuse(&line, "it expected to be greeted in another way".into()).await);
    };
    if let Err(why) = check(&hello, terms) {
        return Err(refuse(&line, why).await);
    }
    // Last: who is refused for another reason is in nobody's way, not even while it is told so.
    let Ok(turn) = turn.try_acquire_owned() else {
        let why = "another daemon is taking over at this moment; see whether one is needed after that";
        return Err(refuse(&line, why.into()).await);
    };
    // One whose file was removed or replaced is reached by nobody: the successor binds anew.
    let offered: Vec<usize> = (0..doors.len()).filter(|&at| doors[at].is_reachable()).collect();
    let offer = v1::TakeOverOffer {
        version: VERSION,
        daemon_version: env!("CARGO_PKG_VERSION").into(),
        places: u32::try_from(offered.len()).unwrap_or(u32::MAX),
        drain_ms: u64::try_from(terms.drain.as_millis()).unwrap_or(u64::MAX),
    };
    line.say(Message::Offer(offer), &[]).await.map_err(broken)?;
    for &at in &offered {
        let door = &doors[at];
        line.say(Message::Place(door.to_message()), &door.descriptors()).await.map_err(broken)?;
    }
    let take = match timeout(TAKE_PATIENCE, line.hear()).await {
        Ok(Ok((Message::Take(take), _))) => take,
        Ok(Ok(_)) => return Err(refuse(&line, "it expected to be told what is taken".into()).await),
        Ok(Err(error)) => return Err(broken(error)),
        Err(_) => return Err(refuse(&line, "the new daemon took too long to get ready".into()).await),
    };
    let takes =
        take.places.iter().filter_map(|&at| offered.get(usize::try_from(at).ok()?).copied()).collect();
    Ok(Successor { line, pid, daemon_version: hello.daemon_version, takes, _turn: turn })
}

fn check(hello: &v1::TakeOverHello, terms: &Terms) -> Result<(), String> {
    if !(hello.oldest_version..=hello.newest_version).contains(&VERSION) {
        return Err(format!(
            "it hands over in the manner of version {VERSION}, the new one in those of {} to {}: restart instead",
            hello.oldest_version, hello.newest_version
        ));
    }
    if hello.arena_format != FORMAT {
        return Err(format!(
            "its arena has format {FORMAT}, the new one writes {}: restart instead",
            hello.arena_format
        ));
    }
    if hello.arena_bytes != terms.arena_bytes {
        return Err(format!(
            "its arena has {} bytes and the new one is configured for {}: use the same --arena-size, or restart to \
             begin with an arena of another size",
            terms.arena_bytes, hello.arena_bytes
        ));
    }
    Ok(())
}

/// Says no, and hands the words back for the log.
async fn refuse(line: &Line, why: String) -> String {
    let said = line.say(Message::Refused(v1::TakeOverRefused { why: why.clone() }), &[]);
    // Whoever does not read it will see the end of the connection.
    _ = timeout(PATIENCE, said).await;
    why
}
