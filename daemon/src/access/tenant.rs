//! A tenant while the daemon runs: its part of the policy, and what it has used of its rates.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tender_proto::NamespaceDigest;

use super::policy::{Rights, TenantSpec};
use super::rate::Rate;

/// What outlives a reload of the policy.
#[derive(Debug)]
pub(crate) struct Usage {
    /// Names the tenant to the fair scheduler; never used for another one.
    pub(crate) number: u64,
    store: Rate,
    read: Rate,
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

impl Usage {
    pub(crate) fn new() -> Arc<Self> {
        let now = Instant::now();
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { number, store: Rate::new(now), read: Rate::new(now) })
    }
}

/// One tenant of the policy in force.
#[derive(Debug)]
pub(crate) struct Tenant {
    /// Stands for its rights; another one each time the policy is read. Random, since it tells others nothing that way.
    pub(crate) rights_id: u64,
    pub(crate) spec: TenantSpec,
    pub(crate) usage: Arc<Usage>,
}

impl Tenant {
    /// What it may do on a namespace, `digest` being the one that clients compute.
    pub(crate) fn rights_on(&self, general: Rights, model: &str, digest: NamespaceDigest) -> Rights {
        self.spec.namespaces.iter().fold(general, |rights, rule| rights.and(rule.rights_on(model, digest)))
    }
    /// Whether its rights are the same on every namespace.
    pub(crate) fn is_uniform(&self) -> bool {
        self.spec.namespaces.is_empty()
    }
    /// Takes bytes that are to be stored out of its rate; false when it must come back later.
    pub(crate) fn may_store(&self, bytes: u64) -> bool {
        let rate = self.spec.store_rate_bytes;
        rate == 0 || self.usage.store.take(rate, bytes, Instant::now())
    }
    /// Counts bytes that were sent to it.
    pub(crate) fn sent(&self, bytes: u64) {
        let rate = self.spec.read_rate_bytes;
        if rate > 0 {
            self.usage.read.spend(rate, bytes, Instant::now());
        }
    }
    /// How long to send it nothing, if it has had more than its rate.
    pub(crate) fn must_wait(&self) -> Option<Duration> {
        let rate = self.spec.read_rate_bytes;
        if rate == 0 { None } else { self.usage.read.debt(rate, Instant::now()) }
    }
}
