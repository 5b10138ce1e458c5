//! Why a chunk is not there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tender_proto::{ChunkId, Coverage, NamespaceDigest, Reason, Refusal, SessionId};

use super::history::{Asked, Left, Told};
use super::{ChunkAnswer, Core, Engine};
use crate::index::{Evicted, Key, Peeked};
use crate::namespace::Namespace;

/// Other namespaces that are named for one chunk.
const MOST_ELSEWHERE: usize = 8;

/// What is known of one chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fate {
    /// READY with this coverage.
    pub(crate) ready: Option<Coverage>,
    pub(crate) pending: bool,
    /// The last thing that kept it out, and how long ago.
    pub(crate) left: Option<(Left, Duration)>,
    /// Where else the same key is READY, if it is not here.
    pub(crate) elsewhere: Vec<NamespaceDigest>,
    /// Remembered requests that asked for it, and how many its engine wants before it stores.
    pub(crate) asked_by: u32,
    pub(crate) store_after: u32,
}

/// How far back the memory goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remembers {
    /// `None`: not at all.
    pub(crate) age: Option<Duration>,
    pub(crate) overflowed: bool,
}

impl Engine {
    /// What is known of chunks of a namespace, which is named as statistics name it. Takes time by chunks and namespaces.
    pub(crate) fn explain(
        &self,
        namespace: NamespaceDigest,
        chunks: &[ChunkId],
    ) -> Result<Vec<Fate>, Refusal> {
        let core = &self.core;
        core.counted(|| {
            core.refuse_large_batch(chunks.len())?;
            let namespace = core.namespaces.get(namespace).ok_or_else(|| {
                Refusal::new(
                    Reason::UnknownNamespace,
                    format!("the namespace {namespace}"),
                    "`tender ls` shows those that are there; one that nobody uses may have been forgotten",
                )
            })?;
            let others = core.others(&namespace);
            let askings = core.history.askings(namespace.digest, chunks);
            let one = |(&chunk, (asked_by, store_after))| {
                let (ready, pending) = core.peek(&namespace, chunk);
                let gone = ready.is_none() && !pending;
                let left = core.history.why(namespace.digest, chunk, core.clock.now()).filter(|_| gone);
                let has = |other: &&Arc<Namespace>| core.peek(other, chunk).0.is_some();
                let elsewhere = others.iter().filter(|_| gone).filter(has).map(|other| other.digest);
                let elsewhere = elsewhere.take(MOST_ELSEWHERE).collect();
                Fate { ready, pending, left, elsewhere, asked_by, store_after }
            };
            Ok(chunks.iter().zip(askings).map(one).collect())
        })
    }

    /// The newest remembered lookup of a request, and how long ago it was.
    pub(crate) fn request(&self, id: &str) -> Option<(Arc<Asked>, Duration)> {
        let asked = self.core.history.request(id)?;
        let ago = self.core.clock.now().saturating_duration_since(asked.at);
        Some((asked, ago))
    }

    /// How far back all this goes.
    pub(crate) fn remembers(&self) -> Remembers {
        let history = &self.core.history;
        Remembers { age: history.age(self.core.clock.now()), overflowed: history.has_overflowed() }
    }

    /// Remembers what a request was told, if it has an id.
    pub(crate) fn remember_request(
        &self,
        (session, namespace): (SessionId, NamespaceDigest),
        (request_id, store_after_requests): (&str, u32),
        chunks: &[ChunkId],
        answers: &[ChunkAnswer],
    ) {
        let core = &self.core;
        if !core.history.wants(request_id) {
            return;
        }
        let Ok((_, namespace)) = core.bound(session, namespace) else { return };
        let told = |answer: &ChunkAnswer| match answer {
            ChunkAnswer::Ready { .. } => Told::Ready,
            ChunkAnswer::Pending => Told::Pending,
            ChunkAnswer::Miss(reason) => Told::Miss(*reason),
        };
        core.history.asked(Asked {
            request_id: request_id.into(),
            namespace: namespace.digest,
            store_after_requests,
            at: core.clock.now(),
            chunks: chunks.iter().zip(answers).map(|(&chunk, answer)| (chunk, told(answer))).collect(),
        });
    }
}

impl Core {
    /// Namespaces that hold something, but this one.
    fn others(&self, but: &Namespace) -> Vec<Arc<Namespace>> {
        let holds = |other: &Namespace| other.counters.ready_chunks.load(Ordering::Acquire) > 0;
        let all = self.namespaces.list().into_iter().map(|(namespace, _)| namespace);
        all.filter(|other| other.index != but.index && holds(other)).collect()
    }

    fn peek(&self, namespace: &Arc<Namespace>, chunk: ChunkId) -> (Option<Coverage>, bool) {
        match self.index.peek(Key { namespace, chunk }, self.clock.now()) {
            Peeked::Ready(coverage) => (Some(coverage), false),
            Peeked::Pending => (None, true),
            Peeked::Absent => (None, false),
        }
    }

    /// Remembers why a chunk is not there.
    pub(super) fn note(&self, namespace: NamespaceDigest, chunk: ChunkId, why: Left) {
        self.history.note(namespace, chunk, why, self.clock.now());
    }

    /// A chunk has made room.
    pub(super) fn evicted(&self, evicted: Evicted, why: Left) {
        self.note(evicted.namespace, evicted.chunk, why);
        self.tell(|watcher| watcher.lost(evicted.namespace, evicted.chunk));
    }
}
