//! One chunk of the arena into the store, unless it is there.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tender_proto::{ChunkId, Descriptor};

use super::known::Known;
use super::object::{Header, Name};
use super::stats::add;
use super::store::{StoreError, Upload};
use super::{PIECE_BYTES, SharedTier, layout};
use crate::engine::OpenChunk;
use crate::tier::{Kept, TierNamespace};

/// After that the chunk is given up. A chunk of 1 GiB needs 18 MB/s.
const KEEP_TIME: Duration = Duration::from_secs(60);

impl SharedTier {
    /// Keeps one chunk, if there is a place in the queue.
    pub(super) async fn keep_one(
        &self,
        namespace: &TierNamespace,
        chunk: ChunkId,
        stored: &OpenChunk,
    ) -> Kept {
        if !self.breaker.allows(Instant::now()) {
            add(&self.stats.skipped, 1);
            return Kept::Failed;
        }
        let Ok(_place) = self.keeping.try_acquire() else { return Kept::Throttled };
        let begun = Instant::now();
        let keeping = tokio::time::timeout(KEEP_TIME, self.put(namespace, chunk, stored));
        match keeping.await {
            Ok(Ok(kept)) => {
                self.breaker.answered();
                kept
            }
            Ok(Err(error)) => {
                self.failed(error);
                add(&self.stats.not_kept, 1);
                Kept::Failed
            }
            Err(_) => {
                self.was_late(begun);
                add(&self.stats.not_kept, 1);
                Kept::Failed
            }
        }
    }

    async fn put(
        &self,
        namespace: &TierNamespace,
        chunk: ChunkId,
        stored: &OpenChunk,
    ) -> Result<Kept, StoreError> {
        let folder = layout::folder(namespace.digest, &namespace.descriptor);
        let generation = self.ties.to_keep(namespace, &folder).await?;
        // It was stored before a reset; or what was written is gone at once, because somebody deletes the namespace.
        let Some(generation) = generation else { return Ok(Kept::Unwanted) };
        let name = Name { namespace: namespace.digest, generation, chunk };
        let parts = stored.parts.iter().map(|part| (part.as_ref().len() as u64, part.digest())).collect();
        let header = Header { name, coverage: stored.coverage, parts };
        let path = layout::chunk(&folder, generation, chunk);
        if self.is_kept(name, &path, header.object_bytes()).await? {
            add(&self.stats.kept_before, 1);
            return Ok(Kept::Yes);
        }
        self.describe(namespace, &folder).await?;
        let Some(start) = header.encode() else { return Ok(Kept::Unwanted) };
        let mut upload = self.store.begin(&path, header.object_bytes()).await?;
        let sent = send(&mut upload, start, stored).await;
        let closed = match sent {
            Ok(()) => upload.close().await,
            Err(error) => {
                upload.abort().await;
                Err(error)
            }
        };
        match closed {
            Ok(()) => {
                self.known.mend(name, header.object_bytes());
                add(&self.stats.kept_chunks, 1);
                add(&self.stats.kept_bytes, header.object_bytes());
                Ok(Kept::Yes)
            }
            // Another daemon was faster.
            Err(StoreError::Exists) => {
                add(&self.stats.kept_before, 1);
                Ok(Kept::Yes)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the object is there. One that is known to be broken, or has another size, is taken out for a better one.
    async fn is_kept(&self, name: Name, path: &str, object_bytes: u64) -> Result<bool, StoreError> {
        match self.known.get(&name) {
            Some(Known::Bytes(bytes)) if bytes == object_bytes => return Ok(true),
            Some(Known::Broken) => {
                self.store.delete(path).await?;
                return Ok(false);
            }
            Some(Known::Bytes(_) | Known::Absent) | None => {}
        }
        match self.store.bytes_of(path).await? {
            Some(bytes) if bytes == object_bytes => {
                self.known.note(name, Known::Bytes(bytes));
                Ok(true)
            }
            Some(_) => {
                self.store.delete(path).await?;
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Says beside the chunks what they are; once for each namespace and start of the daemon.
    async fn describe(&self, namespace: &TierNamespace, folder: &str) -> Result<(), StoreError> {
        if self.described.lock().contains(&namespace.digest) {
            return Ok(());
        }
        let text = readable(namespace.digest.to_hex(), &namespace.descriptor);
        match self.store.write_name(&layout::descriptor(folder), text.into_bytes(), false).await {
            Ok(()) | Err(StoreError::Exists) => {}
            Err(error) => return Err(error),
        }
        self.described.lock().insert(namespace.digest);
        Ok(())
    }
}

async fn send(upload: &mut Upload, start: Vec<u8>, stored: &OpenChunk) -> Result<(), StoreError> {
    upload.write(Bytes::from(start)).await?;
    for part in &stored.parts {
        for piece in part.as_ref().chunks(PIECE_BYTES) {
            upload.write(Bytes::copy_from_slice(piece)).await?;
        }
    }
    Ok(())
}

fn readable(digest: String, descriptor: &Descriptor) -> String {
    let group = |group: &tender_proto::Group| {
        serde_json::json!({
            "kind": format!("{:?}", group.kind),
            "tokens_per_block": group.tokens_per_block.get(),
            "blocks_per_chunk": group.blocks_per_chunk.get(),
            "window_tokens": group.window_tokens.map(std::num::NonZeroU32::get),
            "lookahead_tokens": group.lookahead_tokens,
            "parts": group.parts(),
        })
    };
    let ranks = &descriptor.ranks;
    let fields = serde_json::json!({
        "namespace": digest,
        "model": descriptor.model,
        "weights": descriptor.weights,
        "kv_dtype": descriptor.kv_dtype,
        "quantisation": descriptor.quantisation,
        "page_format": descriptor.page_format,
        "groups": descriptor.groups.iter().map(group).collect::<Vec<_>>(),
        "tensor_parallel": ranks.tensor_parallel.get(),
        "pipeline_parallel": ranks.pipeline_parallel.get(),
        "context_parallel": ranks.context_parallel.get(),
        "key_chain_version": descriptor.key_chain_version,
    });
    format!("{fields:#}\n")
}
