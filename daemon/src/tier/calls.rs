//! Calls into tiers that a reset of their namespace ends.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tender_proto::NamespaceDigest;
use tokio::sync::watch;

use super::TierNamespace;

/// A namespace in one epoch.
type Key = (NamespaceDigest, u32);

/// How many are under way, by namespace and epoch.
#[derive(Debug)]
pub(super) struct Calls {
    under_way: Mutex<HashMap<Key, usize>>,
    /// A namespace was reset.
    resets: watch::Sender<u64>,
    /// A call has ended.
    ends: watch::Sender<u64>,
}

/// Counts one while it lives.
struct UnderWay<'a> {
    calls: &'a Calls,
    key: Key,
}

impl<'a> UnderWay<'a> {
    fn begin(calls: &'a Calls, key: Key) -> Self {
        *calls.under_way.lock().entry(key).or_default() += 1;
        Self { calls, key }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut under_way = self.calls.under_way.lock();
        if let Some(count) = under_way.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.key);
            }
        }
        drop(under_way);
        self.calls.ends.send_modify(|ends| *ends += 1);
    }
}

impl Calls {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            under_way: Mutex::default(),
            resets: watch::Sender::new(0),
            ends: watch::Sender::new(0),
        })
    }

    /// Runs a call for a namespace that `is_current` says is of this epoch. `None`, and nothing of it goes on, when it
    /// was reset before or meanwhile.
    pub(super) async fn run<T>(
        &self,
        namespace: &TierNamespace,
        is_current: impl Fn() -> bool,
        call: impl Future<Output = T>,
    ) -> Option<T> {
        // Counted first: a reset that this does not see waits for it.
        let _under_way = UnderWay::begin(self, (namespace.digest, namespace.epoch));
        let mut resets = self.resets.subscribe();
        tokio::pin!(call);
        loop {
            if !is_current() {
                return None;
            }
            tokio::select! {
                done = &mut call => return is_current().then_some(done),
                _ = resets.changed() => {}
            }
        }
    }

    /// Epochs have ended: their calls end now.
    pub(super) fn look_again(&self) {
        self.resets.send_modify(|resets| *resets += 1);
    }

    /// Waits until no call for this namespace is under way that began in an epoch before.
    pub(super) async fn quiet(&self, namespace: &TierNamespace) {
        let mut ends = self.ends.subscribe();
        let before = |&(digest, epoch): &Key| digest == namespace.digest && epoch != namespace.epoch;
        while self.under_way.lock().keys().any(before) {
            if ends.changed().await.is_err() {
                return;
            }
        }
    }
}
