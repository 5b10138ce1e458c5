//! Other daemons' chunks: found through a directory in a store of the Redis protocol, read straight from whoever holds
//! them.
//!
//! ```text
//! find: seek > generations > directory > link > store  who holds it; one round trip for a whole prefix
//! fetch: bring > pool > fetch > House                          the bytes, verified, into the arena
//! keep, withdraw: publisher > directory                behind everybody's back
//! rpc::peer: > PeerTier::serving, take_offer           what others ask of this daemon
//! ```
//!
//! `entry` is what stands in the directory, `uri` how it is named, `breaker` when nobody is asked, `drain` what happens at
//! the end. docs/directory.md has the layout, the arithmetic and the races.

mod breaker;
mod bring;
mod directory;
mod drain;
mod entry;
mod fetch;
mod link;
mod pool;
mod publisher;
mod seek;
#[cfg(test)]
mod tests;
mod uri;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moka::sync::Cache;
use parking_lot::Mutex;
use tender_proto::{ChunkId, NamespaceDigest};
use tokio::sync::Semaphore;

use super::generations::Generations;
use super::{Available, FetchError, Kept, OpenChunk, PeerState, Tier, TierKind, TierNamespace};
use crate::config::Listen;
use crate::engine::House;
use crate::metrics::Metrics;
use crate::task::{Task, spawn};
use crate::tls::Tls;
use directory::Directory;
use entry::{DaemonId, Entry, Fingerprint};
use link::Link;
use pool::Pool;
use publisher::{Op, Outbox, Publisher};
use seek::Candidates;

pub(crate) use drain::Offer;
pub(crate) use entry::{DaemonId as PeerId, Fingerprint as ChunkFingerprint};
pub use uri::DirectoryUri;

/// Who holds what is remembered from the question to the fetch, and no longer: words of others grow old.
const REMEMBERED: Duration = Duration::from_secs(10);
const REMEMBERED_CHUNKS: u64 = 100_000;
const REMEMBERED_DAEMONS: u64 = 20_000;
/// An operator waits for it; the stack waits for 5 s.
const RESET_DEADLINE: Duration = Duration::from_secs(3);
/// Offers that are taken at one time: whoever ends can ask somebody else.
const OFFERS_AT_ONCE: usize = 2;

/// What the tier must be told. All of it is checked by the daemon's configuration, which has the defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeersConfig {
    /// Where the directory is.
    pub directory: DirectoryUri,
    /// In front of all its keys.
    pub prefix: String,
    /// How long a word in it is good; whole seconds.
    pub ttl: Duration,
    /// For one question to it.
    pub timeout: Duration,
    /// Where other daemons reach this one; `None` for the first TCP or TLS listener.
    pub advertise: Option<Listen>,
    /// Entries that are said again each second at most.
    pub entries_per_second: usize,
}

impl PeersConfig {
    /// tcp://HOST:PORT or tls://HOST:PORT where others reach a daemon that listens at these addresses; `None` where nobody could.
    pub(crate) fn reached_at(&self, listening: &[Listen]) -> Option<String> {
        let of_one_host =
            |address: &&Listen| matches!(address, Listen::Tcp(at) | Listen::Tls(at) if at.is_one_host());
        let listener = || listening.iter().find(of_one_host);
        self.advertise.as_ref().or_else(listener).map(ToString::to_string)
    }
}

/// Where this daemon is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// tcp://HOST:PORT or tls://HOST:PORT, as other daemons connect.
    pub(crate) address: String,
    /// What it shows to those that are reached by TLS, if it has certificates.
    pub(crate) tls: Option<Arc<Tls>>,
}

/// The tier.
#[derive(Debug)]
pub(crate) struct PeerTier {
    house: Arc<House>,
    directory: Arc<Directory>,
    generations: Arc<Generations>,
    pool: Arc<Pool>,
    outbox: Outbox,
    metrics: Arc<Metrics>,
    address: String,
    timeout: Duration,
    /// `None`: there is no such daemon.
    addresses: Cache<DaemonId, Option<Arc<str>>>,
    candidates: Cache<(NamespaceDigest, ChunkId), Arc<Candidates>>,
    offers: Semaphore,
    publisher: Mutex<Option<Task>>,
}

/// Starts it.
pub(crate) fn start(
    config: &PeersConfig,
    place: Place,
    generations: Arc<Generations>,
    metrics: Arc<Metrics>,
) -> Result<Arc<PeerTier>, redis::RedisError> {
    let link = Link::new(&config.directory, config.timeout)?;
    let directory = Arc::new(Directory::new(link, &config.prefix, DaemonId::random(), config.ttl));
    let house = Arc::clone(generations.house());
    let pool = Arc::new(Pool::new(place.tls));
    let publisher = Publisher {
        engine: Arc::clone(house.engine()),
        directory: Arc::clone(&directory),
        generations: Arc::clone(&generations),
        pool: Arc::clone(&pool),
        metrics: Arc::clone(&metrics),
        address: place.address.clone(),
        timeout: config.timeout,
        entries_per_second: config.entries_per_second,
    };
    let (outbox, inbox) = publisher.outbox();
    tracing::info!(daemon = %directory.me(), address = place.address, directory = %config.directory, "peers are found");
    let remembered = |most| Cache::builder().max_capacity(most).time_to_live(REMEMBERED);
    Ok(Arc::new(PeerTier {
        house,
        directory,
        generations,
        pool,
        outbox,
        metrics,
        address: place.address,
        timeout: config.timeout,
        addresses: Cache::builder().max_capacity(REMEMBERED_DAEMONS).time_to_live(REMEMBERED).build(),
        candidates: remembered(REMEMBERED_CHUNKS).build(),
        offers: Semaphore::new(OFFERS_AT_ONCE),
        publisher: Mutex::new(Some(spawn("publisher", publisher.run(inbox)))),
    }))
}

impl PeerTier {
    /// The namespace in which another daemon may read what it asks for; `None` when nothing of that generation is here.
    pub(crate) fn serving(&self, namespace: NamespaceDigest, generation: u64) -> Option<TierNamespace> {
        let namespace = self.house.namespace(namespace)?;
        (self.generations.of(namespace.digest, namespace.epoch) == Some(generation)).then_some(namespace)
    }
    /// Nothing is told to the directory any more: the arena is another daemon's.
    pub(crate) fn stop(&self) {
        *self.publisher.lock() = None;
    }
    /// Whether the directory answers, as far as is known.
    pub(crate) fn reaches_directory(&self) -> bool {
        self.directory.is_up()
    }
    pub(crate) fn house(&self) -> &House {
        &self.house
    }
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn count(&self, which: impl Fn(&crate::metrics::PeerCounters) -> &AtomicU64, by: u64) {
        which(&self.metrics.peers).fetch_add(by, Ordering::Relaxed);
    }
}

#[tonic::async_trait]
impl Tier for PeerTier {
    fn kind(&self) -> TierKind {
        TierKind::Peers
    }

    fn open_breakers(&self) -> Vec<(&'static str, u64)> {
        let left_alone = self.pool.states().iter().filter(|peer| peer.left_alone).count();
        vec![("directory", u64::from(!self.directory.is_up())), ("peers", left_alone as u64)]
    }

    fn peers(&self) -> Vec<PeerState> {
        self.pool.states()
    }

    async fn find(
        &self,
        namespace: &TierNamespace,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Vec<Option<Available>> {
        if chunks.is_empty() || !self.directory.is_up() {
            return vec![None; chunks.len()];
        }
        match self.look(namespace, chunks, deadline).await {
            Ok(found) => {
                self.count(|peers| &peers.asked, 1);
                found
            }
            Err(error) => {
                self.count(|peers| &peers.unanswered, 1);
                tracing::debug!(%error, "nobody knows who holds what");
                vec![None; chunks.len()]
            }
        }
    }

    async fn fetch(
        &self,
        namespace: &TierNamespace,
        chunk: ChunkId,
        _house: &House,
        deadline: Instant,
    ) -> Result<(), FetchError> {
        let candidates = self.candidates(namespace, chunk, deadline).await.ok_or(FetchError::Gone)?;
        let outcome = self.fetch_from(&candidates, namespace, chunk, deadline).await;
        if outcome.is_err() {
            self.candidates.invalidate(&(namespace.digest, chunk));
        }
        outcome
    }

    async fn keep(&self, namespace: &TierNamespace, chunk: ChunkId, stored: &OpenChunk) -> Kept {
        let fingerprint = Fingerprint::of(stored.coverage, stored.parts.iter().map(|part| part.digest()));
        let coverage = (!stored.coverage.is_full()).then(|| stored.coverage.bits());
        let entry = Entry { fingerprint, coverage };
        let said = Op::Publish { namespace: namespace.digest, epoch: namespace.epoch, chunk, entry };
        if self.outbox.put(said) { Kept::Yes } else { Kept::Throttled }
    }

    async fn withdraw(&self, namespace: NamespaceDigest, chunks: &[ChunkId]) {
        chunks.iter().for_each(|&chunk| _ = self.outbox.put(Op::Withdraw { namespace, chunk }));
    }

    async fn reset(&self, namespace: &TierNamespace, _: Option<u64>) -> Result<Option<u64>, String> {
        let floor = self.generations.floor(namespace.digest);
        let deadline = Instant::now() + RESET_DEADLINE;
        let raised = self.directory.raise(namespace.digest, floor, 1, deadline).await;
        let generation = raised.map_err(|error| {
            format!("other daemons may still serve the namespace: {error}; reset it again when the directory answers")
        })?;
        self.generations.raised(namespace.digest, generation).await?;
        Ok(Some(generation))
    }

    /// The directory holds no bytes. What is named there of namespaces that only others use, they serve.
    async fn reset_others(&self, _: &[TierNamespace]) -> Result<(), String> {
        Ok(())
    }

    async fn close(&self, _: Instant) {
        self.stop();
    }

    async fn drain(&self, deadline: Instant) {
        self.offer_hottest(deadline).await;
        // Or it would say again what is withdrawn.
        self.stop();
        self.withdraw_all(deadline).await;
    }
}
