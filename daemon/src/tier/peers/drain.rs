//! The end of a daemon: what was used last is offered to others, and then nothing is said to be here any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use hashbrown::HashMap;
use tender_proto::{ChunkId, Coverage, NamespaceDigest, v1};
use tokio::time::timeout_at;

use super::PeerTier;
use super::directory::{Change, Listed};
use super::entry::{DaemonId, Entry, Fingerprint, Holder};
use super::seek::{Candidate, Candidates, chunk_bytes};
use crate::engine::Toured;
use crate::index::Walk;

/// Chunks that are offered: a daemon that ends does not move its whole arena.
const OFFERED_CHUNKS: usize = 1024;
/// Daemons among which chunks are spread.
const TAKERS: usize = 1024;
/// A share of this one's arena that an offer may fill: what its own engines use comes first.
const OFFER_SHARE: u64 = 8;
/// Chunks under way from one offer.
const AT_ONCE: usize = 4;
/// Withdrawals said at one time.
const BATCH: usize = 1024;
/// What is kept of the time for withdrawing.
const WITHDRAW_SHARE: u32 = 4;

/// Offers by who takes them.
type Offers = HashMap<(DaemonId, NamespaceDigest), Vec<Toured>>;

/// An offer of another daemon, checked.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) descriptor: tender_proto::Descriptor,
    pub(crate) generation: u64,
    pub(crate) daemon: DaemonId,
    pub(crate) chunks: Vec<(ChunkId, Coverage, Fingerprint)>,
    pub(crate) within: Duration,
}

impl PeerTier {
    /// Asks others to fetch what was used last and what nobody else holds. Which chunk goes where is the same for every
    /// daemon that ends, so a later one offers to where the chunk already is.
    pub(super) async fn offer_hottest(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let deadline = deadline - left / WITHDRAW_SHARE;
        let soon = || (Instant::now() + self.timeout).min(deadline);
        let hottest = self.house.engine().hottest(OFFERED_CHUNKS);
        let takers = match self.directory.others_alive(TAKERS, soon()).await {
            Ok(takers) if !takers.is_empty() && !hottest.is_empty() => takers,
            Ok(_) => return,
            Err(error) => return tracing::info!(%error, "nothing is offered to other daemons"),
        };
        let mut offers = Offers::new();
        for met in self.held_by_nobody_else(hottest, deadline).await {
            let taker = takers.iter().max_by_key(|taker| weight(**taker, met.chunk));
            if let Some(&taker) = taker {
                offers.entry((taker, met.namespace)).or_default().push(met);
            }
        }
        let ids: Vec<_> = offers.keys().map(|(taker, _)| *taker).collect();
        let Ok(addresses) = self.directory.addresses(&ids, soon()).await else { return };
        let addresses: HashMap<_, _> = ids.into_iter().zip(addresses).collect();
        let send = |((taker, namespace), chunks): ((DaemonId, NamespaceDigest), Vec<Toured>)| {
            let address = addresses.get(&taker).cloned().flatten();
            async move {
                match address {
                    Some(address) => self.offer(&address, namespace, &chunks, deadline).await,
                    None => 0,
                }
            }
        };
        let taken: u32 = join_all(offers.into_iter().map(send)).await.into_iter().sum();
        tracing::info!(taken, "other daemons have taken what was used last");
    }

    async fn held_by_nobody_else(&self, hottest: Vec<Toured>, deadline: Instant) -> Vec<Toured> {
        let mut by_namespace: HashMap<NamespaceDigest, Vec<Toured>> = HashMap::new();
        hottest.into_iter().for_each(|met| by_namespace.entry(met.namespace).or_default().push(met));
        let mut alone = Vec::new();
        for (digest, met) in by_namespace {
            let Some(generation) = self.generations.current(digest) else { continue };
            let chunks: Vec<_> = met.iter().map(|met| met.chunk).collect();
            let soon = (Instant::now() + self.timeout).min(deadline);
            let Ok(found) = self.directory.find(digest, generation, &chunks, soon).await else { continue };
            if found.generation == generation {
                let nobody = met.into_iter().zip(&found.holders).filter(|(_, holders)| holders.is_empty());
                alone.extend(nobody.map(|(met, _)| met));
            }
        }
        alone
    }

    async fn offer(
        &self,
        address: &str,
        digest: NamespaceDigest,
        chunks: &[Toured],
        deadline: Instant,
    ) -> u32 {
        let (Some(namespace), Some(generation)) =
            (self.house.namespace(digest), self.generations.current(digest))
        else {
            return 0;
        };
        let offered = |met: &Toured| v1::OfferedChunk {
            chunk: Some(met.chunk.to_message()),
            coverage: met.coverage.bits(),
            fingerprint: Bytes::copy_from_slice(
                Fingerprint::of(met.coverage, met.digests.iter().copied()).as_bytes(),
            ),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let request = v1::OfferRequest {
            descriptor: Some(namespace.descriptor.to_message()),
            generation,
            daemon_id: Bytes::copy_from_slice(self.directory.me().as_bytes()),
            chunks: chunks.iter().map(offered).collect(),
            within_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        };
        self.metrics.peers.offered.fetch_add(chunks.len() as u64, Ordering::Relaxed);
        let Ok(mut client) = self.pool.peer(address).client() else { return 0 };
        match timeout_at(deadline.into(), client.offer(request)).await {
            Ok(Ok(answer)) => answer.into_inner().taken,
            Ok(Err(status)) => {
                tracing::debug!(peer = address, %status, "an offer was refused");
                0
            }
            Err(_) => 0,
        }
    }

    /// Nobody finds this daemon any more, and then its words go too, as far as the time reaches; the rest expires.
    pub(super) async fn withdraw_all(&self, deadline: Instant) {
        let soon = || (Instant::now() + self.timeout).min(deadline);
        if let Err(error) = self.directory.leave(soon()).await {
            tracing::info!(%error, "the directory was not told of the end; what it says of this daemon expires");
            return;
        }
        let mut walk = Walk::default();
        loop {
            let (met, end) = self.house.engine().tour(&mut walk, BATCH);
            let withdraw = |met: &Toured| {
                let generation = self.generations.highest(met.namespace);
                Change::Withdraw(Listed { namespace: met.namespace, generation, chunk: met.chunk })
            };
            let changes: Vec<_> = met.iter().map(withdraw).collect();
            if self.directory.apply(&changes, soon()).await.is_err() || end || Instant::now() >= deadline {
                return;
            }
        }
    }

    /// Fetches what another daemon offers, within its time and a share of the arena. Returns how many chunks came;
    /// `None` when this daemon is busy with other offers.
    pub(crate) async fn take_offer(self: &Arc<Self>, offer: Offer) -> Option<u32> {
        let _turn = self.offers.try_acquire().ok()?;
        let deadline = Instant::now() + offer.within;
        let soon = (Instant::now() + self.timeout).min(deadline);
        let address = self.directory.addresses(&[offer.daemon], soon).await.ok()?.pop()??;
        let namespace = self.house.know(&offer.descriptor)?;
        if self.generation(&namespace, soon).await.ok()? != Some(offer.generation) {
            return Some(0);
        }
        let mut room = self.house.engine().stats().arena_bytes / OFFER_SHARE;
        let fits = |(chunk, coverage, _): &(ChunkId, Coverage, Fingerprint)| {
            let bytes = chunk_bytes(&offer.descriptor, *chunk, *coverage).unwrap_or(u64::MAX);
            room.checked_sub(bytes).inspect(|left| room = *left).is_some()
        };
        let chunks: Vec<_> = offer.chunks.into_iter().take(OFFERED_CHUNKS).filter(fits).collect();
        let mut taken = 0;
        for some in chunks.chunks(AT_ONCE) {
            let one = |&(chunk, coverage, fingerprint): &(ChunkId, Coverage, Fingerprint)| {
                let entry = Entry { fingerprint, coverage: Some(coverage.bits()) };
                let holder = Holder { daemon: offer.daemon, entry, expires_s: u32::MAX };
                let list = vec![Candidate { holder, coverage, address: address.as_str().into() }];
                let candidates = Candidates { generation: offer.generation, list };
                let namespace = &namespace;
                async move { self.fetch_from(&candidates, namespace, chunk, deadline).await.is_ok() }
            };
            taken += join_all(some.iter().map(one)).await.into_iter().filter(|&came| came).count();
            if Instant::now() >= deadline {
                break;
            }
        }
        self.metrics.peers.offers_taken.fetch_add(taken as u64, Ordering::Relaxed);
        u32::try_from(taken).ok()
    }
}

/// The daemon with the greatest weight takes the chunk.
fn weight(taker: DaemonId, chunk: ChunkId) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("tender 2026-11 offer v1");
    hasher.update(taker.as_bytes()).update(&chunk.group.0.to_le_bytes()).update(chunk.hash.as_bytes());
    hasher.finalize().into()
}
