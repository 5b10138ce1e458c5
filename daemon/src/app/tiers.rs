//! Which tiers this daemon has, and when they begin and end.

use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use tender_proto::NamespaceDigest;

use super::{AppError, RunningApp};
use crate::config::{Config, DiskConfig, Listen, PeersConfig};
use crate::engine::{Engine, House, ResetScope};
use crate::metrics::Metrics;
use crate::task::blocking;
use crate::tier::disk::{Disk, DiskError};
use crate::tier::generations::{Forget, Generations};
use crate::tier::peers::{self, PeerTier, Place};
use crate::tier::shared::SharedTier;
use crate::tier::{Stack, Tier};
use crate::tls::Tls;

/// For a daemon that ends to let go of its disk.
const FOLDER_PATIENCE: Duration = Duration::from_secs(5);

/// For opening a disk that the daemon can do without.
const OPEN_TIME: Duration = Duration::from_secs(10);
/// For opening one that it begins with: all its room may have to be taken first.
const FIRST_OPEN_TIME: Duration = Duration::from_secs(120);
/// For tiers to let go of what they hold. A disk that hangs is left behind.
const LAST_TIME: Duration = Duration::from_secs(2);

/// What tiers need of the daemon.
pub(super) struct Surroundings<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) metrics: &'a Arc<Metrics>,
    /// Where it listens, with real ports.
    pub(super) addresses: &'a [Listen],
    /// The daemon's certificates, if it has any.
    pub(super) tls: Option<&'a Arc<Tls>>,
    pub(super) disk_trouble: DiskTrouble,
}

/// What a disk does that cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DiskTrouble {
    /// It ends the start: somebody looks at it.
    Ends,
    /// It is a warning, for a daemon that has served before and nobody watches: it goes on without the disk.
    Warns,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiers {
    /// `None` where none is configured.
    pub(super) stack: Option<Arc<Stack>>,
    /// The one among them that answers other daemons.
    pub(super) peers: Option<Arc<PeerTier>>,
    /// The session of what the daemon shares with others.
    house: Option<Arc<House>>,
}

impl Tiers {
    /// Opens those that are configured, in the order in which they are asked: disk, peers, shared.
    pub(super) async fn open(config: &Config, around: Surroundings<'_>) -> Result<Self, AppError> {
        let stack_slot = Arc::new(OnceLock::new());
        let mut tiers: Vec<Arc<dyn Tier>> = Vec::new();
        if let Some(disk) = &config.disk {
            tiers.extend(open_disk(disk, &around).await?);
        }
        let generations = match (&config.peers, &config.shared) {
            (None, None) => None,
            _ => Some(open_generations(config, &around, &stack_slot)?),
        };
        let mut all =
            Self { house: generations.as_ref().map(|all| Arc::clone(all.house())), ..Self::default() };
        if let (Some(peers), Some(generations)) = (&config.peers, &generations) {
            let peers = open_peers(peers, &around, Arc::clone(generations))?;
            all.peers = Some(Arc::clone(&peers));
            tiers.push(peers);
        }
        if let (Some(shared), Some(generations)) = (&config.shared, generations) {
            let shared = SharedTier::open(shared, generations)?;
            around.metrics.watch_shared(shared.stats());
            tiers.push(Arc::new(shared));
        }
        if tiers.is_empty() {
            return Ok(all);
        }
        let stack = Stack::open(around.engine, tiers, config.stack.clone()).map_err(AppError::Tiers)?;
        let stack = Arc::new(stack);
        _ = stack_slot.set(Arc::downgrade(&stack));
        all.stack = Some(stack);
        Ok(all)
    }
}

/// A daemon that hands over lets go of the folder at about the same time.
async fn open_disk(
    config: &DiskConfig,
    around: &Surroundings<'_>,
) -> Result<Option<Arc<dyn Tier>>, AppError> {
    let limit = match around.disk_trouble {
        DiskTrouble::Ends => FIRST_OPEN_TIME,
        DiskTrouble::Warns => OPEN_TIME,
    };
    match open_in_time(config, limit).await? {
        Ok(disk) => {
            let disk = Arc::new(disk);
            around.metrics.watch_disk(&disk);
            Ok(Some(disk))
        }
        Err(error) if around.disk_trouble == DiskTrouble::Ends => Err(error.into()),
        Err(error) => {
            tracing::error!(%error, "serving without the disk tier until the next start");
            Ok(None)
        }
    }
}

/// The thread of a disk that hangs is left behind.
pub(super) async fn open_in_time(
    config: &DiskConfig,
    limit: Duration,
) -> Result<Result<Disk, DiskError>, AppError> {
    let (config, folder) = (config.clone(), config.path.clone());
    let opening = blocking("open disk", move || Disk::open(&config, FOLDER_PATIENCE));
    match tokio::time::timeout(limit, opening).await {
        Ok(opened) => opened
            .map_err(|error| AppError::System { what: "the disk's thread", source: io::Error::other(error) }),
        Err(_) => Ok(Err(DiskError::Hangs { folder, waited: limit })),
    }
}

/// What is known of the namespaces' generations, in the directory and the shared store alike.
fn open_generations(
    config: &Config,
    around: &Surroundings<'_>,
    stack: &Arc<OnceLock<Weak<Stack>>>,
) -> Result<Arc<Generations>, AppError> {
    let arena = &config.engine.arena;
    let house = Arc::new(House::open(around.engine).map_err(AppError::Tiers)?);
    let forget = forget_through(stack, Arc::clone(around.engine));
    // What does not outlive the daemon has nothing to be remembered of.
    let file = arena.keep.then(|| arena.place.with_added_extension("generations"));
    Ok(Arc::new(Generations::new(house, forget, file)))
}

fn open_peers(
    peers: &PeersConfig,
    around: &Surroundings<'_>,
    generations: Arc<Generations>,
) -> Result<Arc<PeerTier>, AppError> {
    let place = Place {
        address: peers.reached_at(around.addresses).ok_or(AppError::Unreachable)?,
        tls: around.tls.cloned(),
    };
    peers::start(peers, place, generations, Arc::clone(around.metrics)).map_err(AppError::Directory)
}

/// Forgets a namespace that was reset on another daemon, and tells this one's clients. Called on a thread that may wait.
fn forget_through(stack: &Arc<OnceLock<Weak<Stack>>>, engine: Arc<Engine>) -> Forget {
    let stack = Arc::clone(stack);
    Arc::new(move |namespace: NamespaceDigest| {
        let stack = stack.get().and_then(Weak::upgrade).ok_or_else(|| "the tiers are not open".to_owned())?;
        let forgotten = tokio::runtime::Handle::current().block_on(stack.forget_here(namespace));
        // Whatever became of it, the engine has begun a new epoch.
        engine.tell_reset(ResetScope::One(namespace));
        forgotten
    })
}

impl RunningApp {
    /// What the daemon's own sessions hold now: sessions, leases, reservations. Leases that other daemons read under are
    /// theirs, like a client's.
    pub(super) fn held_by_tiers(&self) -> (u64, u64, u64) {
        let (sessions, leases, reservations) =
            self.tiers.stack.as_ref().map_or((0, 0, 0), |stack| stack.held());
        match &self.tiers.house {
            Some(house) => (sessions + 1, leases, reservations + house.held().1),
            None => (sessions, leases, reservations),
        }
    }

    /// The daemon ends: the tiers have until the deadline to bring to an end what would be lost.
    pub(super) async fn drain_tiers(&self, deadline: Instant) {
        if let Some(stack) = &self.tiers.stack {
            stack.drain(deadline).await;
            stack.stop(deadline.max(Instant::now() + LAST_TIME)).await;
        }
    }

    /// The tiers are another daemon's from now on.
    pub(super) async fn stop_tiers(&mut self) {
        let tiers = std::mem::take(&mut self.tiers);
        if let Some(stack) = tiers.stack {
            stack.stop(Instant::now() + LAST_TIME).await;
        }
    }
}
