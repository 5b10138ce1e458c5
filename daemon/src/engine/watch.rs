//! Who hears which chunks have come and gone.

use std::fmt;
use std::sync::Arc;

use tender_proto::{ChunkId, NamespaceDigest};

use super::{Core, Engine};

/// Hears it on the thread that did it, which holds no lock then; it must not wait. What a reset forgets is not told
/// chunk by chunk.
pub(crate) trait Watcher: fmt::Debug + Send + Sync {
    /// A client's chunk is READY. What the daemon itself brings in is known to whoever brought it.
    fn stored(&self, namespace: NamespaceDigest, chunk: ChunkId);
    /// A chunk was evicted, or taken out because its bytes had changed.
    fn lost(&self, namespace: NamespaceDigest, chunk: ChunkId);
}

impl Engine {
    /// Tells this one from now on. There is one for an engine's life: false if there was one already.
    pub(crate) fn watch(&self, watcher: Arc<dyn Watcher>) -> bool {
        self.core.watcher.set(watcher).is_ok()
    }
}

impl Core {
    pub(super) fn tell(&self, word: impl FnOnce(&dyn Watcher)) {
        if let Some(watcher) = self.watcher.get() {
            word(watcher.as_ref());
        }
    }
}
