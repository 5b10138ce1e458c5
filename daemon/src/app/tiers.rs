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
use crate::tier::disk::Disk;
use crate::tier::peers::{self, Forget, PeerTier, Place};
use crate::tier::shared::SharedTier;
use crate::tier::{Stack, Tier};
use crate::tls::Tls;

/// For a daemon that ends to let go of its disk.
const FOLDER_PATIENCE: Duration = Duration::from_secs(5);

/// What tiers need of the daemon.
pub(super) struct Surroundings<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) metrics: &'a Arc<Metrics>,
    /// Where it listens, with real ports.
    pub(super) addresses: &'a [Listen],
    /// The daemon's certificates, if it has any.
    pub(super) tls: Option<&'a Arc<Tls>>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiers {
    /// `None` where none is configured.
    pub(super) stack: Option<Arc<Stack>>,
    /// The one among them that answers other daemons.
    pub(super) peers: Option<Arc<PeerTier>>,
}

impl Tiers {
    /// Opens those that are configured, in the order in which they are asked: disk, peers, shared.
    pub(super) async fn open(config: &Config, around: Surroundings<'_>) -> Result<Self, AppError> {
        let stack_slot = Arc::new(OnceLock::new());
        let mut tiers: Vec<Arc<dyn Tier>> = Vec::new();
        if let Some(disk) = &config.disk {
            tiers.push(open_disk(disk, around.metrics).await?);
        }
        let peers = match &config.peers {
            Some(peers) => Some(open_peers(config, peers, &around, &stack_slot)?),
            None => None,
        };
        tiers.extend(peers.iter().map(|peers| Arc::clone(peers) as Arc<dyn Tier>));
        if let Some(shared) = &config.shared {
            let shared = SharedTier::open(shared)?;
            around.metrics.watch_shared(shared.stats());
            tiers.push(Arc::new(shared));
        }
        if tiers.is_empty() {
            return Ok(Self::default());
        }
        let stack = Stack::open(around.engine, tiers, config.stack.clone()).map_err(AppError::Tiers)?;
        let stack = Arc::new(stack);
        _ = stack_slot.set(Arc::downgrade(&stack));
        Ok(Self { stack: Some(stack), peers })
    }
}

/// A daemon that hands over lets go of the folder at about the same time.
async fn open_disk(config: &DiskConfig, metrics: &Metrics) -> Result<Arc<dyn Tier>, AppError> {
    let config = config.clone();
    let opening = blocking("open disk", move || Disk::open(&config, FOLDER_PATIENCE)).await;
    let failed = |source| AppError::System { what: "the disk's thread", source: io::Error::other(source) };
    let disk = Arc::new(opening.map_err(failed)??);
    metrics.watch_disk(&disk);
    Ok(disk)
}

fn open_peers(
    config: &Config,
    peers: &PeersConfig,
    around: &Surroundings<'_>,
    stack: &Arc<OnceLock<Weak<Stack>>>,
) -> Result<Arc<PeerTier>, AppError> {
    let arena = &config.engine.arena;
    let place = Place {
        address: peers.reached_at(around.addresses).ok_or(AppError::Unreachable)?,
        generations: arena.keep.then(|| arena.place.with_added_extension("generations")),
        tls: around.tls.cloned(),
    };
    let house = Arc::new(House::open(around.engine).map_err(AppError::Tiers)?);
    let forget = forget_through(stack, Arc::clone(around.engine));
    peers::start(peers, place, house, forget, Arc::clone(around.metrics)).map_err(AppError::Directory)
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
        match &self.tiers.peers {
            Some(peers) => (sessions + 1, leases, reservations + peers.house().held().1),
            None => (sessions, leases, reservations),
        }
    }

    /// The daemon ends: the tiers have until the deadline to bring to an end what would be lost.
    pub(super) async fn drain_tiers(&self, deadline: Instant) {
        if let Some(stack) = &self.tiers.stack {
            stack.drain(deadline).await;
            stack.stop().await;
        }
        self.tiers.peers.iter().for_each(|peers| peers.stop());
    }

    /// The tiers are another daemon's from now on.
    pub(super) async fn stop_tiers(&mut self) {
        let Tiers { stack, peers } = std::mem::take(&mut self.tiers);
        if let Some(stack) = stack {
            stack.stop().await;
        }
        peers.iter().for_each(|peers| peers.stop());
    }
}
