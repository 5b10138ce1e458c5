//! The latest changes of what lookups find, each with a number, for whoever follows them.
//!
//! A change is written while its chunk's shard is locked, and a reset is written where its epoch begins, so their order
//! here is the order in which lookups came to see them: who applies them to what was there at some moment has what is
//! there now. Nobody who changes anything waits for anybody who reads: what is too old is overwritten.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tender_proto::{ChunkId, Coverage, Reason};
use tokio::sync::watch;

use crate::namespace::{Named, Namespace};
use crate::sync::Mutex;

/// Some seconds of a busy daemon, in about 5 MB.
const KEPT: usize = 65_536;
/// Of the descriptors of namespaces whose changes are kept: those of some thousands of models. Who registers ever new
/// ones loses changes for those who fall behind, and not memory.
const KEPT_DESCRIPTOR_BYTES: usize = 64 << 20;
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
    kept_descriptor_bytes: usize,
    /// The last has the number before `next`.
    events: VecDeque<Event>,
    /// How many of them each namespace has, by its number.
    changes_of: HashMap<u32, usize>,
    /// Of the descriptors of all these.
    descriptor_bytes: usize,
}

impl Journal {
    pub(super) fn new() -> Self {
        let inner = Inner {
            next: 1,
            kept: KEPT,
            kept_descriptor_bytes: KEPT_DESCRIPTOR_BYTES,
            events: VecDeque::new(),
            changes_of: HashMap::new(),
            descriptor_bytes: 0,
        };
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
        inner.push(event);
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
        inner.forget_old();
    }
    /// The same by the bytes of descriptors.
    #[cfg(test)]
    pub(crate) fn keep_descriptors(&self, bytes: usize) {
        let mut inner = self.inner.lock();
        inner.kept_descriptor_bytes = bytes;
        inner.forget_old();
    }
    /// Namespaces whose descriptors are kept.
    #[cfg(test)]
    pub(crate) fn namespaces(&self) -> usize {
        self.inner.lock().changes_of.len()
    }
}

impl Inner {
    fn push(&mut self, event: Event) {
        let changes = self.changes_of.entry(event.namespace.index).or_insert(0);
        if *changes == 0 {
            self.descriptor_bytes += event.namespace.descriptor_bytes;
        }
        *changes += 1;
        self.events.push_back(event);
        self.next += 1;
        self.forget_old();
    }

    fn forget_old(&mut self) {
        while self.events.len() > self.kept || self.descriptor_bytes > self.kept_descriptor_bytes {
            let Some(Event { namespace, .. }) = self.events.pop_front() else { return };
            let left = self.changes_of.get_mut(&namespace.index).map(|changes| {
                *changes -= 1;
                *changes
            });
            if left == Some(0) {
                self.changes_of.remove(&namespace.index);
                self.descriptor_bytes -= namespace.descriptor_bytes;
            }
        }
    }
}
