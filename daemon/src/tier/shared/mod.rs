//! A store that outlives all daemons: a filesystem, S3 or Redis, through OpenDAL.
//!
//! ```text
//! uri, credentials -> store (operators with timeouts, retries, limits) <- { find, fetch, keep } <- the tier stack
//!                       generation, ties (what counts, and for whom) | known (what need not be asked) | breaker (when not to ask)
//!                       layout (names) | object (bytes)
//! ```
//!
//! It owns nothing that matters: every object may vanish, lie or belong to somebody else, and costs a miss then.

mod breaker;
mod credentials;
mod fetch;
mod find;
mod generation;
mod keep;
mod known;
mod layout;
mod object;
mod stats;
mod store;
#[cfg(test)]
mod tests;
mod ties;
mod uri;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use hashbrown::HashSet;
use parking_lot::Mutex;
use tender_proto::{ChunkId, NamespaceDigest};
use tokio::sync::Semaphore;

use self::breaker::Breaker;
use self::credentials::Credentials;
use self::generation::{Asked, Generation};
use self::known::KnownObjects;
pub(crate) use self::stats::{SharedCounts, SharedStats};
use self::store::{ASK_TIME, Store, StoreError};
use self::ties::Ties;
pub use self::uri::{BadUri, SharedUri};
use crate::engine::{House, OpenChunk};
use crate::task::Group;
use crate::tier::generations::Generations;
use crate::tier::{Available, FetchError, Kept, Tier, TierKind, TierNamespace};

/// Bytes that are read or written at once. A fetch holds two of these.
const PIECE_BYTES: usize = 4 << 20;
/// Namespaces that a reset of everything resets at one time.
const RESETS_AT_ONCE: usize = 8;
/// A reset that takes longer has failed.
const RESET_TIME: Duration = Duration::from_secs(10);
/// Work that nobody waits for: deletions.
const ASIDE_TIME: Duration = Duration::from_secs(600);
const MOST_ASIDE: usize = 64;

/// How the shared store is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedConfig {
    /// Where it is.
    pub uri: SharedUri,
    /// A file with what it asks for; without, the environment is looked at.
    pub credentials: Option<PathBuf>,
    /// Requests under way at once, at least 1: small ones and chunks each.
    pub max_requests: usize,
    /// Chunks being written at once, at least 1.
    pub max_uploads: usize,
}

/// Why the store cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The place is not to be had.
    #[error("--shared-uri {uri}: {advice}")]
    Unusable {
        /// As configured; it holds no secret.
        uri: String,
        /// What would work.
        advice: &'static str,
    },
    /// The file does not hold credentials.
    #[error("--shared-credentials {}: {why}", path.display())]
    Credentials {
        /// As configured.
        path: PathBuf,
        /// What is wrong, and with which line.
        why: String,
    },
}

impl OpenError {
    fn unusable(uri: &SharedUri, advice: &'static str) -> Self {
        Self::Unusable { uri: uri.to_string(), advice }
    }
}

/// The shared store as a tier.
#[derive(Debug)]
pub(crate) struct SharedTier {
    store: Store,
    /// For logs.
    place: String,
    ties: Arc<Ties>,
    known: Arc<KnownObjects>,
    breaker: Arc<Breaker>,
    keeping: Semaphore,
    max_uploads: usize,
    /// Namespaces whose descriptor has been written down.
    described: Mutex<HashSet<NamespaceDigest>>,
    asides: Mutex<Group>,
    places_aside: Arc<Semaphore>,
    stats: Arc<SharedStats>,
}

impl SharedTier {
    /// Opens the store. It is not asked anything yet: one that is away at the start costs misses, not the daemon.
    pub(crate) fn open(config: &SharedConfig, generations: Arc<Generations>) -> Result<Self, OpenError> {
        // Somebody else may have installed it before.
        _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        opendal::install_default();
        let credentials = Credentials::load(config.credentials.as_deref())?;
        let store = Store::open(&config.uri, &credentials, config.max_requests)?;
        Ok(Self::over(store, config.uri.to_string(), config.max_uploads, generations))
    }

    fn over(store: Store, place: String, max_uploads: usize, generations: Arc<Generations>) -> Self {
        Self {
            ties: Arc::new(Ties::new(store.clone(), generations)),
            store,
            place,
            known: Arc::default(),
            breaker: Arc::default(),
            keeping: Semaphore::new(max_uploads),
            max_uploads,
            described: Mutex::default(),
            asides: Mutex::new(Group::new("shared store, aside")),
            places_aside: Arc::new(Semaphore::new(MOST_ASIDE)),
            stats: Arc::default(),
        }
    }

    /// Its counters.
    pub(crate) fn stats(&self) -> Arc<SharedStats> {
        Arc::clone(&self.stats)
    }

    /// Whether the store is left alone at this moment.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.breaker.is_open(Instant::now())
    }

    fn failed(&self, error: StoreError) {
        stats::add(&self.stats.errors, 1);
        if self.breaker.failed(Instant::now()) {
            tracing::warn!(store = self.place, why = %error, "the shared store is left alone for a while");
        }
    }

    /// What began then was not over by its deadline. A caller in a hurry says nothing of the store; one who waited as long
    /// as an answer may take does.
    fn was_late(&self, begun: Instant) {
        stats::add(&self.stats.late, 1);
        if begun.elapsed() < ASK_TIME {
            return;
        }
        if self.breaker.failed(Instant::now()) {
            let why = "it did not answer in time";
            tracing::warn!(store = self.place, why, "the shared store is left alone for a while");
        }
    }

    /// Does something that nobody waits for. If too much of that is under way, not at all.
    fn aside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Ok(place) = Arc::clone(&self.places_aside).try_acquire_owned() else { return };
        self.asides.lock().spawn(async move {
            _ = tokio::time::timeout(ASIDE_TIME, work).await;
            drop(place);
        });
    }

    /// Deletes the generations of a namespace that do not count any more.
    fn sweep(&self, digest: NamespaceDigest, folder: String) {
        if !self.store.can_list() {
            return;
        }
        let store = self.store.clone();
        self.aside(async move {
            if let Err(error) = sweep(&store, &folder, digest).await {
                tracing::warn!(folder, why = %error, "ended generations of the shared store were not deleted");
            }
        });
    }

    async fn reset_one(
        &self,
        digest: NamespaceDigest,
        folder: String,
        raised: Option<u64>,
    ) -> Result<u64, String> {
        let number = self.ties.reset(digest, &folder, raised).await.map_err(|error| error.to_string())?;
        self.sweep(digest, folder);
        Ok(number)
    }

    /// The namespaces that the store has, without these, by their folders.
    async fn others(&self, than: &[TierNamespace]) -> Result<Vec<(NamespaceDigest, String)>, StoreError> {
        let all = layout::all();
        let names = match self.store.folders(&all).await {
            Err(StoreError::NotFound) => Vec::new(),
            listed => listed?,
        };
        let other = |name: String| {
            let digest = layout::namespace_of(&name)?;
            let is_other = than.iter().all(|namespace| namespace.digest != digest);
            is_other.then(|| (digest, format!("{all}{name}/")))
        };
        Ok(names.into_iter().filter_map(other).collect())
    }

    async fn reset_all_others(&self, than: &[TierNamespace]) -> Result<(), String> {
        let failed = |error: StoreError| format!("the shared store: {error}");
        if !self.store.can_list() {
            return self.ties.asked.end_all(&self.store).await.map_err(failed);
        }
        let others = self.others(than).await.map_err(failed)?;
        let resets = others.into_iter().map(|(digest, folder)| self.reset_one(digest, folder, None));
        let mut resets = futures_util::stream::iter(resets).buffer_unordered(RESETS_AT_ONCE);
        while let Some(reset) = resets.next().await {
            reset?;
        }
        Ok(())
    }
}

/// First the list, then which one counts: a generation that is listed and does not count then never will again.
async fn sweep(store: &Store, folder: &str, digest: NamespaceDigest) -> Result<(), StoreError> {
    let listed = store.folders(folder).await?;
    let counts = Asked::default().fresh(store, digest, folder).await?.counts;
    let ended = listed.iter().filter_map(|name| name.parse::<Generation>().ok());
    for generation in ended.filter(|&generation| Some(generation) != counts) {
        store.delete_folder(&layout::generation_folder(folder, generation)).await?;
    }
    Ok(())
}

#[tonic::async_trait]
impl Tier for SharedTier {
    fn kind(&self) -> TierKind {
        TierKind::Shared
    }

    fn open_breakers(&self) -> Vec<(&'static str, u64)> {
        vec![("shared", u64::from(self.is_left_alone()))]
    }

    async fn find(
        &self,
        namespace: &TierNamespace,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Vec<Option<Available>> {
        self.find_all(namespace, chunks, deadline).await
    }

    async fn fetch(
        &self,
        namespace: &TierNamespace,
        chunk: ChunkId,
        house: &House,
        deadline: Instant,
    ) -> Result<(), FetchError> {
        self.fetch_one(namespace, chunk, house, deadline).await
    }

    async fn keep(&self, namespace: &TierNamespace, chunk: ChunkId, stored: &OpenChunk) -> Kept {
        self.keep_one(namespace, chunk, stored).await
    }

    /// The store keeps what this arena loses.
    async fn withdraw(&self, _: NamespaceDigest, _: &[ChunkId]) {}

    async fn reset(&self, namespace: &TierNamespace, raised: Option<u64>) -> Result<Option<u64>, String> {
        let folder = layout::folder(namespace.digest, &namespace.descriptor);
        let resetting = self.reset_one(namespace.digest, folder, raised);
        match tokio::time::timeout(RESET_TIME, resetting).await {
            Ok(reset) => reset.map(Some),
            Err(_) => Err("the shared store did not answer in time".into()),
        }
    }

    async fn reset_others(&self, than: &[TierNamespace]) -> Result<(), String> {
        let resetting = self.reset_all_others(than);
        let done = tokio::time::timeout(RESET_TIME, resetting).await;
        done.unwrap_or_else(|_| Err("the shared store did not answer in time".into()))
    }

    /// Waits for what is being kept; what is not whole by the deadline is nothing.
    async fn drain(&self, deadline: Instant) {
        let all = u32::try_from(self.max_uploads).unwrap_or(u32::MAX);
        if let Ok(Ok(places)) = tokio::time::timeout_at(deadline.into(), self.keeping.acquire_many(all)).await
        {
            // Nothing is kept from here on.
            places.forget();
        }
    }

    async fn close(&self, _: Instant) {
        *self.asides.lock() = Group::new("shared store, aside");
    }
}
