//! A tier for tests: it holds what it is told to hold, and does with it what it is told to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_proto::{ChunkId, ContentDigest, NamespaceDigest, PartIndex};
use tokio::sync::Semaphore;

use super::{Available, FetchError, Kept, Tier, TierKind, TierNamespace};
use crate::engine::tests::{FULL, bytes_of, full};
use crate::engine::{House, OpenChunk, Unfilled};

/// What it does when it is asked for a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trick {
    /// Brings it.
    Bring,
    /// Says that it is gone.
    Gone,
    /// Cannot be reached.
    Away,
    /// Brings other bytes than the digest says.
    Lie,
    /// Says that it has brought it, and has not.
    SayOnly,
    /// Never answers.
    Hang,
    /// Panics.
    Panic,
    /// One of the others (but no panic), drawn from the seed.
    Any,
}

/// Everything it was called for, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    Find(Vec<ChunkId>),
    Fetch(ChunkId),
    Keep(ChunkId),
    Withdraw(Vec<ChunkId>),
    Reset(NamespaceDigest),
    ResetOthers,
    Close,
    Drain,
}

#[derive(Debug)]
pub(crate) struct FakeTier {
    kind: TierKind,
    pub(crate) holds: Mutex<BTreeSet<ChunkId>>,
    pub(crate) trick: Mutex<Trick>,
    /// The first so many fetches fail as if it were away.
    pub(crate) fail_first: AtomicUsize,
    /// How long a find takes.
    pub(crate) find_takes: Mutex<Duration>,
    /// Each fetch and each keep takes one; a test that wants to see them under way gives none.
    pub(crate) turns: Semaphore,
    pub(crate) resets_fail: Mutex<Option<String>>,
    /// They never end.
    pub(crate) resets_hang: AtomicBool,
    pub(crate) keeps: Mutex<Kept>,
    pub(crate) heard: Mutex<Vec<Heard>>,
    pub(crate) kept: Mutex<BTreeMap<ChunkId, Vec<u8>>>,
    pub(crate) under_way: AtomicUsize,
    pub(crate) most_under_way: AtomicUsize,
    random: Mutex<StdRng>,
}

impl FakeTier {
    pub(crate) fn new(kind: TierKind) -> Arc<Self> {
        Self::seeded(kind, 0)
    }
    pub(crate) fn seeded(kind: TierKind, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            kind,
            holds: Mutex::default(),
            trick: Mutex::new(Trick::Bring),
            fail_first: AtomicUsize::new(0),
            find_takes: Mutex::new(Duration::ZERO),
            turns: Semaphore::new(1 << 20),
            resets_fail: Mutex::default(),
            resets_hang: AtomicBool::new(false),
            keeps: Mutex::new(Kept::Yes),
            heard: Mutex::default(),
            kept: Mutex::default(),
            under_way: AtomicUsize::new(0),
            most_under_way: AtomicUsize::new(0),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
        })
    }

    pub(crate) fn hold(&self, chunks: &[ChunkId]) {
        self.holds.lock().extend(chunks);
    }
    /// No fetch and no keep goes on until [`FakeTier::go`].
    pub(crate) fn stop(&self) {
        self.turns.forget_permits(1 << 20);
    }
    pub(crate) fn go(&self, calls: usize) {
        self.turns.add_permits(calls);
    }
    pub(crate) fn fetches(&self) -> Vec<ChunkId> {
        let fetch = |heard: &Heard| match heard {
            Heard::Fetch(chunk) => Some(*chunk),
            _ => None,
        };
        self.heard.lock().iter().filter_map(fetch).collect()
    }
    pub(crate) fn kept(&self) -> Vec<ChunkId> {
        let keep = |heard: &Heard| match heard {
            Heard::Keep(chunk) => Some(*chunk),
            _ => None,
        };
        self.heard.lock().iter().filter_map(keep).collect()
    }
    pub(crate) fn has_heard(&self, heard: &Heard) -> bool {
        self.heard.lock().contains(heard)
    }

    async fn may_forget(&self) -> Result<(), String> {
        if self.resets_hang.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
        self.resets_fail.lock().clone().map_or(Ok(()), Err)
    }

    fn trick(&self) -> Trick {
        let counted =
            self.fail_first.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        if counted.is_ok() {
            return Trick::Away;
        }
        match *self.trick.lock() {
            Trick::Any => {
                let all = [Trick::Bring, Trick::Gone, Trick::Away, Trick::Lie, Trick::SayOnly, Trick::Hang];
                all[self.random.lock().random_range(0..all.len())]
            }
            trick => trick,
        }
    }

    fn bring(house: &House, namespace: &TierNamespace, chunk: ChunkId, lie: bool) -> Result<(), FetchError> {
        let mut filling = house.fill(namespace, chunk, full()).map_err(|no| match no {
            Unfilled::Already(_) => FetchError::NotNeeded,
            Unfilled::Refused(reason) => FetchError::Refused(reason),
        })?;
        let parts = namespace.descriptor.group_of(chunk).unwrap().parts();
        for part in (0..).map(PartIndex).take(parts) {
            let mut bytes = bytes_of(chunk, part.0, FULL);
            let digest = ContentDigest::of(&bytes);
            bytes[0] ^= u8::from(lie);
            let written = filling.part(part).unwrap().write(0, &bytes);
            let finished = written.and_then(|()| filling.finish(part, digest));
            finished.map_err(|reason| match reason {
                tender_proto::Reason::BadDigest => FetchError::Corrupt,
                reason => FetchError::Refused(reason),
            })?;
        }
        Ok(())
    }
}

struct UnderWay<'a>(&'a AtomicUsize);
impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[tonic::async_trait]
impl Tier for FakeTier {
    fn kind(&self) -> TierKind {
        self.kind
    }

    async fn find(&self, _: &TierNamespace, chunks: &[ChunkId], _: Instant) -> Vec<Option<Available>> {
        self.heard.lock().push(Heard::Find(chunks.to_vec()));
        let takes = *self.find_takes.lock();
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        let holds = self.holds.lock();
        let has =
            |chunk| holds.contains(chunk).then_some(Available { bytes: 1 << 14, coverage: Some(full()) });
        chunks.iter().map(has).collect()
    }

    async fn fetch(
        &self,
        namespace: &TierNamespace,
        chunk: ChunkId,
        house: &House,
        _: Instant,
    ) -> Result<(), FetchError> {
        self.heard.lock().push(Heard::Fetch(chunk));
        let now = self.under_way.fetch_add(1, Ordering::AcqRel) + 1;
        let _under_way = UnderWay(&self.under_way);
        self.most_under_way.fetch_max(now, Ordering::AcqRel);
        let turn = self.turns.acquire().await.unwrap();
        turn.forget();
        match self.trick() {
            Trick::Bring => Self::bring(house, namespace, chunk, false),
            Trick::Lie => Self::bring(house, namespace, chunk, true),
            Trick::Gone => Err(FetchError::Gone),
            Trick::Away => Err(FetchError::Unavailable("nobody answers".into())),
            Trick::SayOnly => Ok(()),
            Trick::Hang => std::future::pending().await,
            Trick::Panic => panic!("as the test wants"),
            Trick::Any => unreachable!("it was drawn"),
        }
    }

    async fn keep(&self, _: &TierNamespace, chunk: ChunkId, stored: &OpenChunk) -> Kept {
        self.heard.lock().push(Heard::Keep(chunk));
        let turn = self.turns.acquire().await.unwrap();
        turn.forget();
        let bytes = stored.parts.iter().flat_map(|part| part.as_ref().to_vec()).collect();
        self.kept.lock().insert(chunk, bytes);
        *self.keeps.lock()
    }

    async fn withdraw(&self, _: NamespaceDigest, chunks: &[ChunkId]) {
        self.heard.lock().push(Heard::Withdraw(chunks.to_vec()));
    }

    async fn reset(&self, namespace: &TierNamespace, raised: Option<u64>) -> Result<Option<u64>, String> {
        self.heard.lock().push(Heard::Reset(namespace.digest));
        self.may_forget().await?;
        self.holds.lock().clear();
        Ok(raised)
    }

    async fn reset_others(&self, _: &[TierNamespace]) -> Result<(), String> {
        self.heard.lock().push(Heard::ResetOthers);
        self.may_forget().await
    }

    async fn close(&self, _: Instant) {
        self.heard.lock().push(Heard::Close);
    }

    async fn drain(&self, _: Instant) {
        self.heard.lock().push(Heard::Drain);
    }
}
