//! Which chunks are there.
//!
//! By arithmetic (S3: 10-30 ms a request, 1,000 names a list page): a namespace of a million chunks is a thousand pages
//! in a row, so listing is out. One stat a chunk, many at once, is what is left, and most prefixes end early: waves of
//! 8, 32, 64, 64, ... stats, each group for itself, until a wave finds nothing. A miss costs one wave; a prefix of 1,000
//! chunks 18 waves, a third of a second, and nothing at all while it is known.

use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tender_proto::{ChunkId, GroupIndex};
use tokio::time::timeout_at;

use super::known::Known;
use super::object::{Name, header_bytes};
use super::stats::add;
use super::store::StoreError;
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

impl SharedTier {
    /// One answer for each; what is not known by the deadline is not there.
    pub(super) async fn find_all(
        &self,
        namespace: &TierNamespace,
        chunks: &[ChunkId],
        deadline: Instant,
    ) -> Vec<Option<Available>> {
        let mut answers = vec![None; chunks.len()];
        if self.breaker.allows(Instant::now()) {
            let looking = self.look(namespace, chunks, &mut answers);
            match timeout_at(deadline.into(), looking).await {
                Ok(Ok(())) => self.breaker.answered(),
                Ok(Err(error)) => self.failed(error),
                Err(_) => self.was_late(),
            }
        } else {
            add(&self.stats.skipped, chunks.len() as u64);
        }
        let found = answers.iter().flatten().count();
        add(&self.stats.found, found as u64);
        add(&self.stats.not_found, (chunks.len() - found) as u64);
        answers
    }

    async fn look(
        &self,
        namespace: &TierNamespace,
        chunks: &[ChunkId],
        answers: &mut [Option<Available>],
    ) -> Result<(), StoreError> {
        let folder = layout::folder(namespace.digest, &namespace.descriptor);
        let generation = self.generations.recent(&self.store, namespace.digest, &folder).await?;
        let Some(generation) = generation else { return Ok(()) };
        let name = |at: usize| Name { namespace: namespace.digest, generation, chunk: chunks[at] };
        let mut rows = rows(namespace, chunks);
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
                let header = namespace.descriptor.group_of(chunks[at]).map_or(0, |g| header_bytes(g.parts()));
                answers[at] = Some(Available { bytes: bytes.saturating_sub(header as u64), coverage: None });
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
