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
    /// Namespaces that are being forgotten (`None`: all), and by how many at one time: no call for them begins.
    barred: Mutex<HashMap<Option<NamespaceDigest>, usize>>,
    /// A namespace was reset.
    resets: watch::Sender<u64>,
    /// A call has ended.
    ends: watch::Sender<u64>,
}

/// Keeps calls for a namespace, or for all, out while it lives.
#[derive(Debug)]
pub(super) struct Barred<'a> {
    calls: &'a Calls,
    namespace: Option<NamespaceDigest>,
}

impl Drop for Barred<'_> {
    fn drop(&mut self) {
        let mut barred = self.calls.barred.lock();
        if let Some(count) = barred.get_mut(&self.namespace) {
            *count -= 1;
            if *count == 0 {
                barred.remove(&self.namespace);
            }
        }
    }
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
            barred: Mutex::default(),
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
            if !is_current() || self.is_barred(namespace.digest) {
                return None;
            }
            tokio::select! {
                done = &mut call => return is_current().then_some(done),
                _ = resets.changed() => {}
            }
        }
    }

    /// Keeps calls for a namespace out and ends those that are under way. Until its tiers have forgotten, a call of the
    /// new epoch would find in them what was stored in the old one. `None`: for all namespaces, also those that are not
    /// known yet.
    pub(super) fn bar(&self, namespace: Option<NamespaceDigest>) -> Barred<'_> {
        *self.barred.lock().entry(namespace).or_default() += 1;
        self.resets.send_modify(|resets| *resets += 1);
        Barred { calls: self, namespace }
    }

    fn is_barred(&self, namespace: NamespaceDigest) -> bool {
        let barred = self.barred.lock();
        barred.contains_key(&Some(namespace)) || barred.contains_key(&None)
    }

    /// Waits until no call for this namespace is under way.
    pub(super) async fn quiet(&self, namespace: NamespaceDigest) {
        let mut ends = self.ends.subscribe();
        while self.under_way.lock().keys().any(|&(digest, _)| digest == namespace) {
            if ends.changed().await.is_err() {
                return;
            }
        }
    }
}
