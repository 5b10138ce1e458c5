//! The latest changes of what lookups find, each with a number, for whoever follows them.
//!
//! A change is written while its chunk's shard is locked, and a reset is written where its epoch begins, so their order
//! here is the order in which lookups came to see them: who applies them to what was there at some moment has what is
//! there now. Nobody who changes anything waits for anybody who reads: what is too old is overwritten.

use std::collections::VecDeque;
use std::sync::Arc;

use tender_proto::{ChunkId, Coverage, Reason};
use tokio::sync::watch;

use crate::namespace::{Named, Namespace};
use crate::sync::Mutex;

/// Some seconds of a busy daemon, in about 5 MB.
const KEPT: usize = 65_536;
/// Nothing in a model looks at it, and its lock would only multiply the orders to look at.
const OFF: bool = cfg!(feature = "loom");

/// What happened to what lookups find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// A chunk is READY, perhaps in place of one with fewer blocks.
    Stored(ChunkId, Coverage),
    /// A chunk was taken away, and why.
    Removed(ChunkId, Reason),
    /// All chunks of the namespace were.
    Cleared,
}

/// One change.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) namespace: Arc<Named>,
    pub(crate) change: Change,
}

#[derive(Debug)]
pub(crate) struct Journal {
    inner: Mutex<Inner>,
    /// The number of the next change, for those who wait for it.
    head: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    next: u64,
    kept: usize,
    /// The last has the number before `next`.
    events: VecDeque<Event>,
}

impl Journal {
    pub(super) fn new() -> Self {
        let inner = Inner { next: 1, kept: KEPT, events: VecDeque::new() };
        Self { inner: Mutex::new(inner), head: watch::Sender::new(1) }
    }

    /// Writes a change of a chunk of this epoch. Call it with the chunk's shard locked. What a reset has forgotten since
    /// has left with it.
    pub(super) fn write(&self, namespace: &Arc<Namespace>, epoch: u32, change: Change) {
        if OFF {
            return;
        }
        let mut inner = self.inner.lock();
        if namespace.epoch() == epoch {
            self.push(&mut inner, Event { namespace: Arc::clone(&namespace.named), change });
        }
    }

    /// Begins an epoch, and writes that. `is_known`: whether this is still the namespace of its name, since what is
    /// stored in the one after it was not forgotten.
    pub(super) fn begin_epoch(&self, namespace: &Arc<Namespace>, is_known: impl FnOnce() -> bool) {
        if OFF {
            namespace.begin_epoch();
            return;
        }
        // Under the lock: whatever is stored in the new epoch is written after this.
        let mut inner = self.inner.lock();
        namespace.begin_epoch();
        if is_known() {
            self.push(&mut inner, Event { namespace: Arc::clone(&namespace.named), change: Change::Cleared });
        }
    }

    fn push(&self, inner: &mut Inner, event: Event) {
        if inner.events.len() >= inner.kept {
            inner.events.pop_front();
        }
        inner.events.push_back(event);
        inner.next += 1;
        if self.head.receiver_count() > 0 {
            self.head.send_replace(inner.next);
        }
    }

    /// The number of the next change.
    pub(crate) fn next(&self) -> u64 {
        self.inner.lock().next
    }

    /// At most `most` changes from this number on; `None` when they are no longer kept, or never were.
    pub(crate) fn since(&self, from: u64, most: usize) -> Option<Vec<Event>> {
        let inner = self.inner.lock();
        let behind = usize::try_from(inner.next.checked_sub(from)?).ok()?;
        let start = inner.events.len().checked_sub(behind)?;
        Some(inner.events.range(start..).take(most).cloned().collect())
    }

    /// Wakes whoever holds this when something has changed.
    pub(crate) fn wakes(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }
    /// Those who hold one.
    pub(crate) fn followers(&self) -> usize {
        self.head.receiver_count()
    }

    /// Keeps this many, for tests that fall behind.
    #[cfg(test)]
    pub(crate) fn keep(&self, kept: usize) {
        let mut inner = self.inner.lock();
        inner.kept = kept;
        while inner.events.len() > kept {
            inner.events.pop_front();
        }
    }
}
