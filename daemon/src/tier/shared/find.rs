//! Which chunks are there.
//!
//! By arithmetic (S3: 10-30 ms a request, 1,000 names a list page): a namespace of a million chunks is a thousand pages
//! in a row, so listing is out. One stat a chunk, many at once, is what is left, and most prefixes end early: waves of
//! 8, 32, 64, 64, ... stats, each group for itself, until a wave finds nothing. A miss costs one wave; a prefix of 1,000
//! chunks 18 waves, a third of a second, and nothing at all while it is known.

use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tender_proto::{ChunkId, GroupIndex};
use tokio::time::timeout_at;

use super::known::{Known, KnownObjects};
use super::object::{Name, header_bytes};
use super::stats::add;
use super::store::{Store, StoreError};
use super::ties::Ties;
use super::{SharedTier, layout};
use crate::tier::{Available, TierNamespace};

const FIRST_WAVE: usize = 8;
const LONGEST_WAVE: usize = 64;
/// After each wave.
const GROWTH: usize = 4;

/// One group's chunks that nobody has asked for yet.
struct Row {
    group: GroupIndex,
    /// Places in the question, the next one last.
    ahead: Vec<usize>,
    wave: usize,
}

/// One question. It owns all it needs, so it can go on without the caller.
struct Look {
    store: Store,
    ties: Arc<Ties>,
    known: Arc<KnownObjects>,
    namespace: TierNamespace,
    chunks: Vec<ChunkId>,
    answers: Mutex<Vec<Option<Available>>>,
}

impl SharedTier {
    /// One answer for each; what is not known by the deadline is not there.
    pub(super) async fn find_all(
        &self,
        namespace: &TierNamespace,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Vec<Option<Available>> {
        let answers = if self.breaker.allows(Instant::now()) {
            self.look(namespace, chunks, deadline).await
        } else {
            add(&self.stats.skipped, chunks.len() as u64);
            vec![None; chunks.len()]
        };
        let found = answers.iter().flatten().count();
        add(&self.stats.found, found as u64);
        add(&self.stats.not_found, (chunks.len() - found) as u64);
        answers
    }

    /// A caller in a hurry gets what has come by the deadline; the question goes on, and the next one finds it known.
    async fn look(
        &self,
        namespace: &TierNamespace,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Vec<Option<Available>> {
        let begun = Instant::now();
        let look = Arc::new(Look {
            store: self.store.clone(),
            ties: Arc::clone(&self.ties),
            known: Arc::clone(&self.known),
            namespace: namespace.clone(),
            chunks: chunks.to_vec(),
            answers: Mutex::new(vec![None; chunks.len()]),
        });
        let this = Arc::clone(&look);
        let mut looking = Box::pin(async move { this.run().await });
        match timeout_at(deadline.into(), &mut looking).await {
            Ok(Ok(())) => self.breaker.answered(),
            Ok(Err(error)) => self.failed(error),
            Err(_) => {
                self.was_late(begun);
                self.go_on(looking);
            }
        }
        look.answers.lock().clone()
    }

    /// The store's own patience is with each request, so it ends, and the breaker hears how.
    fn go_on(&self, looking: impl Future<Output = Result<(), StoreError>> + Send + 'static) {
        let (breaker, stats, place) =
            (Arc::clone(&self.breaker), Arc::clone(&self.stats), self.place.clone());
        self.aside(async move {
            let Err(error) = looking.await else { return breaker.answered() };
            add(&stats.errors, 1);
            let now = Instant::now();
            // Those that were asked before it was left alone say nothing new.
            if !breaker.is_open(now) && breaker.failed(now) {
                tracing::warn!(store = place, why = %error, "the shared store is left alone for a while");
            }
        });
    }
}

impl Look {
    async fn run(&self) -> Result<(), StoreError> {
        let namespace = &self.namespace;
        let folder = layout::folder(namespace.digest, &namespace.descriptor);
        let generation = self.ties.recent(namespace, &folder).await?;
        let Some(generation) = generation else { return Ok(()) };
        let name = |at: usize| Name { namespace: namespace.digest, generation, chunk: self.chunks[at] };
        let mut rows = rows(namespace, &self.chunks);
        while !rows.is_empty() {
            let mut asking = FuturesUnordered::new();
            for (row_at, row) in rows.iter_mut().enumerate() {
                for at in row.ahead.split_off(row.ahead.len().saturating_sub(row.wave)) {
                    let (name, folder) = (name(at), folder.as_str());
                    asking.push(async move { (row_at, at, self.size_of(name, folder).await) });
                }
            }
            let mut found = vec![false; rows.len()];
            while let Some((row_at, at, size)) = asking.next().await {
                let Some(bytes) = size? else { continue };
                let header =
                    namespace.descriptor.group_of(self.chunks[at]).map_or(0, |g| header_bytes(g.parts()));
                let bytes = bytes.saturating_sub(header as u64);
                self.answers.lock()[at] = Some(Available { bytes, coverage: None });
                found[row_at] = true;
            }
            let mut found = found.into_iter();
            rows.retain_mut(|row| {
                row.wave = (row.wave * GROWTH).min(LONGEST_WAVE);
                found.next().unwrap_or(false) && !row.ahead.is_empty()
            });
        }
        Ok(())
    }

    /// The size of an object that may be used.
    async fn size_of(&self, name: Name, folder: &str) -> Result<Option<u64>, StoreError> {
        match self.known.get(&name) {
            Some(Known::Bytes(bytes)) => return Ok(Some(bytes)),
            Some(Known::Absent | Known::Broken) => return Ok(None),
            None => {}
        }
        let bytes = self.store.bytes_of(&layout::chunk(folder, name.generation, name.chunk)).await?;
        self.known.note(name, bytes.map_or(Known::Absent, Known::Bytes));
        Ok(bytes)
    }
}

fn rows(namespace: &TierNamespace, chunks: &[ChunkId]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (at, chunk) in chunks.iter().enumerate().rev() {
        if namespace.descriptor.group_of(*chunk).is_err() {
            continue;
        }
        match rows.iter_mut().find(|row| row.group == chunk.group) {
            Some(row) => row.ahead.push(at),
            None => rows.push(Row { group: chunk.group, ahead: vec![at], wave: FIRST_WAVE }),
        }
    }
    rows
}
