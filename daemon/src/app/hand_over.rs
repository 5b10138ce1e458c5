//! One daemon after another: the last steps of a take-over on both sides, and back if the new one ends too early.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tender_proto::v1;

use super::tiers::DiskTrouble;
use super::{AppError, DRAIN_TICK, RunningApp};
use crate::config::Config;
use crate::doors::Door;
use crate::engine::StartError;
use crate::shutdown::Phase;
use crate::takeover::{self, Line, Message, Taken};
use crate::task::blocking;

/// How long what runs may go on when another daemon takes over: all that time lookups miss. A load of a gigabyte is
/// done in it; one that is not is computed anew.
const HAND_OVER_GRACE: Duration = Duration::from_millis(500);
/// A successor that needs longer to say one word does not live or is stopped; it would hold everybody up.
const GO: Duration = Duration::from_secs(1);
/// What a process that dies may take to let go of its files; also how often is told that a successor does not serve.
const LAST_MOMENTS: Duration = Duration::from_secs(10);

/// What became of a hand-over.
#[derive(Debug)]
pub enum HandedOver {
    /// Another daemon serves in this one's place.
    Given,
    /// This one serves on, or again.
    Kept(Box<RunningApp>),
}

/// A daemon that stands ready to take over from this one.
#[derive(Debug)]
pub struct Successor(takeover::Successor);

/// What a daemon begins with that another one had before.
struct Inherited {
    doors: Arc<[Door]>,
    arena: File,
}

impl RunningApp {
    /// Begins with what another daemon gave, and lets that one end.
    pub(super) async fn succeed(config: Config, taken: Taken) -> Result<Self, AppError> {
        // The line goes last: the other one takes everything back when it ends too early.
        let Taken { line, doors, arena } = taken;
        let (mut doors, mode): (Arc<[Door]>, _) = (doors.into(), config.socket_mode);
        let give_up = Instant::now() + LAST_MOMENTS;
        let app = loop {
            let inherited = match &arena {
                Some(file) => {
                    file.try_clone().map(Some).map_err(AppError::system("the arena's descriptor"))?
                }
                None => None,
            };
            match Self::begin(config.clone(), Arc::clone(&doors), inherited, DiskTrouble::Ends).await {
                // It died a moment ago, and the system is not done with it.
                Err(AppError::Arena(StartError::InUse { .. })) if Instant::now() < give_up => {}
                Ok(app) if arena.is_none() && !doors.iter().all(Door::is_reachable) => {
                    // It did not die but ended in order, and took its sockets' files with it.
                    drop(app);
                    doors = reopened(&doors, mode).await?;
                }
                begun => break begun?,
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        if let Err(error) = line.say(Message::Serving(v1::TakeOverServing {}), &[]).await {
            tracing::debug!(%error, "the daemon before has ended already");
        }
        for door in doors.iter() {
            door.own_files();
            if let Err(error) = door.set_mode(mode) {
                tracing::warn!(place = %door.place, %error, "the socket keeps the mode that it had");
            }
        }
        Ok(app)
    }

    pub(super) fn hand_over_grace(&self) -> Duration {
        self.config.drain_grace.min(HAND_OVER_GRACE)
    }

    /// The next daemon that stands ready to take over. Until [`RunningApp::hand_over`] it has changed nothing here.
    pub async fn successor(&self) -> Successor {
        match &self.entrance {
            Some(entrance) => Successor(entrance.successor().await),
            None => std::future::pending().await,
        }
    }

    /// Lets a successor have the arena and the sockets. Whatever happens to it before it serves, this daemon serves on
    /// or again; an error is this daemon's own, when it cannot.
    pub async fn hand_over(mut self, successor: Successor) -> Result<HandedOver, AppError> {
        let Successor(takeover::Successor { line, pid, daemon_version, takes, _turn }) = successor;
        tracing::info!(pid, version = daemon_version, "another daemon takes over");
        let grace = self.hand_over_grace();
        self.engine.begin_drain();
        self.phase.send_replace(Phase::HandingOver { grace });
        if let Err(why) = self.ready_to_go(&line, grace).await {
            tracing::warn!(pid, why, "the other daemon did not take over; serving on");
            self.engine.open_reads();
            self.engine.end_drain();
            self.phase.send_replace(Phase::Serving);
            return Ok(HandedOver::Kept(Box::new(self)));
        }
        self.stop_tiers().await;
        let arena = self.engine.give_away().map_err(AppError::system("the arena's descriptor"))?;
        // Sessions have ended; their streams end with this.
        self.phase.send_replace(Phase::Stopped);
        let said = line.say(Message::Yours(v1::TakeOverYours {}), &[arena.as_fd()]).await;
        if said.is_ok() && serves(&line, pid).await {
            takes.iter().for_each(|&at| self.doors[at].leave_files());
            self.close().await;
            return Ok(HandedOver::Given);
        }
        tracing::warn!(pid, "the other daemon ended before it served; serving again");
        let inherited = Inherited { doors: Arc::clone(&self.doors), arena };
        self.again(inherited).await
    }

    /// Waits for what is under way, and asks the successor whether it is still there.
    async fn ready_to_go(&self, line: &Line, grace: Duration) -> Result<(), &'static str> {
        tokio::select! {
            () = self.idle_within(grace) => {}
            _ = line.hear() => return Err("it went away or spoke out of turn"),
        }
        // Asked while everything can still stay as it is: one that hangs may write into the arena at any later time.
        let engine = Arc::clone(&self.engine);
        if !blocking("reads", move || engine.shut_reads()).await.unwrap_or(false) {
            let why =
                "a read of its disk hangs; look at the disk that holds the disk tier, or restart instead";
            _ = tokio::time::timeout(GO, line.say(refused(why), &[])).await;
            return Err("a read of this daemon's disk hangs");
        }
        line.say(Message::Drained(v1::TakeOverDrained {}), &[]).await.map_err(|_| "it went away")?;
        match tokio::time::timeout(GO, line.hear()).await {
            Ok(Ok((Message::Go(_), _))) => Ok(()),
            Ok(_) => Err("it went away or spoke out of turn"),
            Err(_) => Err("it said nothing when all was ready"),
        }
    }

    /// Serves again what this daemon had given away in vain.
    async fn again(mut self, inherited: Inherited) -> Result<HandedOver, AppError> {
        let Inherited { doors, arena } = inherited;
        self.close().await;
        let mut config = self.in_force.lock().clone();
        config.engine.arena.discard = false;
        drop(self);
        let app = Self::begin(config, doors, Some(arena), DiskTrouble::Warns).await?;
        Ok(HandedOver::Kept(Box::new(app)))
    }
}

fn refused(why: &str) -> Message {
    Message::Refused(v1::TakeOverRefused { why: why.to_owned() })
}

/// The same doors; those whose files are gone are bound anew.
async fn reopened(doors: &[Door], socket_mode: u32) -> Result<Arc<[Door]>, AppError> {
    let mut all = Vec::new();
    for door in doors {
        let failed = |source| AppError::Bind { place: door.place.to_string(), source };
        let again = match door.is_reachable() {
            true => door.duplicate(),
            false => Door::open(door.place.clone(), socket_mode).await,
        };
        all.push(again.map_err(failed)?);
    }
    Ok(all.into())
}

/// Whether the successor has come to serve. It has the arena: as long as it lives, nobody else may.
async fn serves(line: &Line, pid: u32) -> bool {
    loop {
        match tokio::time::timeout(LAST_MOMENTS, line.hear()).await {
            Ok(Ok((Message::Serving(_), _))) => return true,
            Ok(Err(error)) if takeover::is_gone(&error) => return false,
            Ok(_) => tokio::time::sleep(DRAIN_TICK).await,
            Err(_) => tracing::error!(
                pid,
                "the other daemon has the arena and does not serve: continue it, or end it with SIGKILL and this one \
                 serves again"
            ),
        }
    }
}
