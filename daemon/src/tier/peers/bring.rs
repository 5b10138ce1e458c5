//! From those who hold a chunk, one after another, until one has sent it; and what a failure means to each side.

use std::time::{Duration, Instant};

use tender_proto::ChunkId;

use super::PeerTier;
use super::directory::Listed;
use super::fetch::{Failed, Wanted, fetch};
use super::pool::Peer;
use super::publisher::Op;
use super::seek::{Candidate, Candidates};
use crate::engine::Unfilled;
use crate::tier::{FetchError, TierNamespace};

impl PeerTier {
    /// Asks one after another until one has it; each has an equal share of what is left of the time.
    pub(super) async fn fetch_from(
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
}
