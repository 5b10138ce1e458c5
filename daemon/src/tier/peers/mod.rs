//! Other daemons' chunks: found through a directory in a store of the Redis protocol, read straight from whoever holds
//! them.
//!
//! ```text
//! find: generations > directory > link > store         who holds it; one round trip for a whole prefix
//! fetch: pool > fetch > House                          the bytes, verified, into the arena
//! keep, withdraw: publisher > directory                behind everybody's back
//! rpc::peer: > PeerTier::serving, take_offer           what others ask of this daemon
//! ```
//!
//! `entry` is what stands in the directory, `uri` how it is named, `breaker` when nobody is asked, `drain` what happens at
//! the end. docs/directory.md has the layout, the arithmetic and the races.

mod breaker;
mod directory;
mod drain;
mod entry;
mod fetch;
mod generations;
mod link;
mod pool;
mod publisher;
#[cfg(test)]
mod tests;
mod uri;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hashbrown::HashSet;
use moka::sync::Cache;
use parking_lot::Mutex;
use tender_proto::{ChunkId, Coverage, Descriptor, NamespaceDigest};
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use super::{Available, FetchError, Kept, OpenChunk, Tier, TierKind, TierNamespace};
use crate::config::{HostPort, Listen};
use crate::engine::{House, Unfilled};
use crate::metrics::Metrics;
use crate::task::{Task, spawn};
use directory::{Directory, Listed};
use entry::{DaemonId, Entry, Fingerprint, Holder};
use fetch::{Failed, Wanted, fetch};
use generations::{Generations, Learned};
use link::{Link, LinkError};
use pool::{Peer, Pool};
use publisher::{Op, Outbox, Publisher};

pub(crate) use drain::Offer;
pub(crate) use entry::{DaemonId as PeerId, Fingerprint as ChunkFingerprint};
pub(crate) use generations::Forget;
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
    /// Where other daemons reach this one; `None` for the first TCP listener.
    pub advertise: Option<HostPort>,
    /// Entries that are said again each second at most.
    pub entries_per_second: usize,
}

impl PeersConfig {
    /// HOST:PORT where others reach a daemon that listens at these addresses; `None` where nobody could.
    pub(crate) fn reached_at(&self, listening: &[Listen]) -> Option<String> {
        let listener = listening.iter().find_map(|address| match address {
            Listen::Tcp(at) if at.is_one_host() => Some(at),
            _ => None,
        });
        self.advertise.as_ref().or(listener).map(ToString::to_string)
    }
}

/// Where this daemon is and what it keeps beside its arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// HOST:PORT, as other daemons connect.
    pub(crate) address: String,
    /// Where the namespaces' generations are written down; `None` where the arena does not outlive the daemon.
    pub(crate) generations: Option<PathBuf>,
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

/// Who can be asked for a chunk.
#[derive(Debug)]
struct Candidates {
    generation: u64,
    /// The most blocks first.
    list: Vec<Candidate>,
}

#[derive(Clone, Debug)]
struct Candidate {
    holder: Holder,
    coverage: Coverage,
    address: Arc<str>,
}

/// Starts it. `forget` must make [`House`]'s engine, and every tier that serves this daemon only, forget a namespace.
pub(crate) fn start(
    config: &PeersConfig,
    place: Place,
    house: Arc<House>,
    forget: Forget,
    metrics: Arc<Metrics>,
) -> Result<Arc<PeerTier>, redis::RedisError> {
    let link = Link::new(&config.directory, config.timeout)?;
    let directory = Arc::new(Directory::new(link, &config.prefix, DaemonId::random(), config.ttl));
    let generations = Arc::new(Generations::new(Arc::clone(&house), forget, place.generations));
    let pool = Arc::new(Pool::default());
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
    pub(crate) fn house(&self) -> &House {
        &self.house
    }
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The generation in which the caller's epoch is. The directory is asked the first time.
    async fn generation(
        &self,
        namespace: &TierNamespace,
        deadline: Instant,
    ) -> Result<Option<u64>, LinkError> {
        if let Some(known) = self.generations.of(namespace.digest, namespace.epoch) {
            return Ok(Some(known));
        }
        let seen = self.directory.generation(namespace.digest, deadline).await?;
        self.heard(namespace.digest, seen, deadline).await;
        Ok(self.generations.of(namespace.digest, namespace.epoch))
    }

    /// Learns a generation, and has a lost one restored. What takes longer than the deadline goes on behind the caller.
    async fn heard(&self, namespace: NamespaceDigest, seen: u64, deadline: Instant) {
        let learning = self.generations.learn(namespace, seen);
        if let Ok(Learned::Lost(_)) = timeout_at(deadline.into(), learning).await {
            self.outbox.put(Op::Restore(namespace));
        }
    }

    async fn look(
        &self,
        namespace: &TierNamespace,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Result<Vec<Option<Available>>, LinkError> {
        let nothing = Ok(vec![None; chunks.len()]);
        let Some(generation) = self.generation(namespace, deadline).await? else { return nothing };
        let found = self.directory.find(namespace.digest, generation, chunks, deadline).await?;
        if found.generation != generation {
            self.heard(namespace.digest, found.generation, deadline).await;
            return nothing;
        }
        self.resolve(&found.holders, deadline).await?;
        let one = |(&chunk, holders): (&ChunkId, &Vec<Holder>)| {
            self.remember(namespace, generation, chunk, holders)
        };
        Ok(chunks.iter().zip(&found.holders).map(one).collect())
    }

    /// Asks for the addresses of daemons that were not heard of lately.
    async fn resolve(&self, holders: &[Vec<Holder>], deadline: Instant) -> Result<(), LinkError> {
        let ids: HashSet<_> = holders.iter().flatten().map(|holder| holder.daemon).collect();
        let unknown: Vec<_> = ids.into_iter().filter(|id| !self.addresses.contains_key(id)).collect();
        let addresses = self.directory.addresses(&unknown, deadline).await?;
        for (id, address) in unknown.into_iter().zip(addresses) {
            self.addresses.insert(id, address.map(Arc::from));
        }
        Ok(())
    }

    fn remember(
        &self,
        namespace: &TierNamespace,
        generation: u64,
        chunk: ChunkId,
        holders: &[Holder],
    ) -> Option<Available> {
        let group = namespace.descriptor.group_of(chunk).ok()?;
        let candidate = |holder: &Holder| {
            let coverage = match holder.entry.coverage {
                None => Coverage::full(group.blocks_per_chunk),
                Some(bits) => Coverage::new(bits, group.blocks_per_chunk)
                    .ok()
                    .filter(|coverage| !coverage.is_empty())?,
            };
            let address = self.addresses.get(&holder.daemon).flatten()?;
            // An address of its own is one of a daemon before it.
            let usable = *address != *self.address && self.pool.peer(&address).allows();
            usable.then(|| Candidate { holder: *holder, coverage, address })
        };
        let mut list: Vec<_> = holders.iter().filter_map(candidate).collect();
        list.sort_by_key(|candidate| std::cmp::Reverse(candidate.coverage.count()));
        let coverage = list.first()?.coverage;
        let bytes = chunk_bytes(&namespace.descriptor, chunk, coverage)?;
        self.candidates.insert((namespace.digest, chunk), Arc::new(Candidates { generation, list }));
        Some(Available { bytes, coverage: Some(coverage) })
    }

    /// Who was found lately, in the generation of the caller's epoch; else the directory is asked again.
    async fn candidates(
        &self,
        namespace: &TierNamespace,
        chunk: ChunkId,
        deadline: Instant,
    ) -> Option<Arc<Candidates>> {
        let known = || {
            let generation = self.generations.of(namespace.digest, namespace.epoch)?;
            let found = self.candidates.get(&(namespace.digest, chunk))?;
            (found.generation == generation).then_some(found)
        };
        if let Some(found) = known() {
            return Some(found);
        }
        self.find(namespace, &[chunk], deadline).await;
        known()
    }

    /// Asks one after another until one has it; each has an equal share of what is left of the time.
    async fn fetch_from(
        &self,
        candidates: &Candidates,
        namespace: &TierNamespace,
        chunk: ChunkId,
        deadline: Instant,
    ) -> Result<(), FetchError> {
        let mut order: Vec<_> =
            candidates.list.iter().map(|one| (one, self.pool.peer(&one.address))).collect();
        order.sort_by_cached_key(|(one, peer)| (std::cmp::Reverse(one.coverage.count()), peer.rank()));
        let mut worst = FetchError::Gone;
        let shares = order.len();
        for (asked, (candidate, peer)) in order.into_iter().enumerate() {
            let listed = Listed { namespace: namespace.digest, generation: candidates.generation, chunk };
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(shares - asked).unwrap_or(1);
            let attempt = self.try_one(&peer, candidate, namespace, listed, Instant::now() + share);
            match attempt.await {
                Ok(()) => return Ok(()),
                Err(no @ (FetchError::NotNeeded | FetchError::Refused(_))) => return Err(no),
                Err(FetchError::Gone) => {}
                Err(error) => worst = error,
            }
        }
        Err(worst)
    }

    async fn try_one(
        &self,
        peer: &Peer,
        candidate: &Candidate,
        namespace: &TierNamespace,
        listed: Listed,
        deadline: Instant,
    ) -> Result<(), FetchError> {
        let filling =
            self.house.fill(namespace, listed.chunk, candidate.coverage).map_err(|no| match no {
                Unfilled::Already(_) => FetchError::NotNeeded,
                Unfilled::Refused(reason) => FetchError::Refused(reason),
            })?;
        if !peer.take_turn() {
            return Err(FetchError::Unavailable(format!(
                "{} does not answer and is left alone",
                peer.address
            )));
        }
        let wanted = Wanted {
            namespace,
            generation: listed.generation,
            chunk: listed.chunk,
            coverage: candidate.coverage,
            fingerprint: candidate.holder.entry.fingerprint,
        };
        let begin = Instant::now();
        match fetch(peer, wanted, filling, deadline).await {
            Ok(bytes) => {
                peer.answered(bytes, begin.elapsed());
                self.count(|peers| &peers.fetched, 1);
                self.count(|peers| &peers.fetched_bytes, bytes);
                Ok(())
            }
            Err(failed) => Err(self.failed(peer, candidate, listed, failed)),
        }
    }

    /// What a failure means: for the peer, for its word in the directory, for the caller.
    fn failed(&self, peer: &Peer, candidate: &Candidate, listed: Listed, failed: Failed) -> FetchError {
        let address = &*peer.address;
        if !matches!(failed, Failed::Refused(_)) {
            // Whatever it was, the word led to nothing. A holder that is only slow says it again with its next round.
            self.outbox.put(Op::Forget(listed, candidate.holder));
        }
        match failed {
            Failed::Gone | Failed::Stale => {
                peer.answered(0, Duration::ZERO);
                self.count(|peers| if failed == Failed::Gone { &peers.gone } else { &peers.stale }, 1);
                FetchError::Gone
            }
            Failed::Wrong(what) => {
                peer.lied();
                self.count(|peers| &peers.wrong, 1);
                let (namespace, chunk) = (listed.namespace, listed.chunk);
                tracing::warn!(peer = address, %namespace, %chunk, "a peer sent {what}; it is left alone for a while");
                FetchError::Corrupt
            }
            Failed::Slow => {
                peer.failed();
                self.count(|peers| &peers.slow, 1);
                FetchError::Deadline
            }
            Failed::Dead(why) => {
                peer.failed();
                self.count(|peers| &peers.dead, 1);
                tracing::debug!(peer = address, why, "a peer broke off");
                FetchError::Unavailable(format!("{address}: {why}"))
            }
            Failed::Refused(reason) => {
                peer.answered(0, Duration::ZERO);
                FetchError::Refused(reason)
            }
        }
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

    async fn reset(&self, namespace: &TierNamespace) -> Result<(), String> {
        // The time of day is in it, so that a directory that has lost the number never gives out one that was used.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let floor =
            self.generations.highest(namespace.digest).max(u64::try_from(since.as_millis()).unwrap_or(0));
        let deadline = Instant::now() + RESET_DEADLINE;
        let raised = self.directory.raise(namespace.digest, floor, 1, deadline).await;
        let generation = raised.map_err(|error| {
            format!("other daemons may still serve the namespace: {error}; reset it again when the directory answers")
        })?;
        self.generations.learn(namespace.digest, generation).await;
        // Unless this daemon no longer knows it: then nothing of it is here.
        if self.generations.highest(namespace.digest) < generation
            && self.house.epoch(namespace.digest).is_some()
        {
            return Err("this daemon could not forget it; reset it again".to_owned());
        }
        Ok(())
    }

    async fn drain(&self, deadline: Instant) {
        self.offer_hottest(deadline).await;
        // Or it would say again what is withdrawn.
        self.stop();
        self.withdraw_all(deadline).await;
    }
}

/// Bytes of all parts.
fn chunk_bytes(descriptor: &Descriptor, chunk: ChunkId, coverage: Coverage) -> Option<u64> {
    let group = descriptor.group_of(chunk).ok()?;
    let part = |part| group.part_bytes(tender_proto::PartIndex(part), coverage).ok();
    (0..u16::try_from(group.parts()).ok()?).map(part).sum()
}
