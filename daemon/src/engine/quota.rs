//! What a domain may hold. A domain at its quota makes room for what it stores by evicting chunks of its own, never of
//! others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::history::Left;
use super::{Core, DomainStats};
use crate::access::policy::DomainQuota;
use crate::namespace::Namespace;

impl Core {
    /// Brings the domain of a namespace within its quota, with so many chunks more that are about to be reserved in it;
    /// false when that cannot be, since the rest is in use or is being stored.
    pub(super) fn keep_to_quota(&self, namespace: &Namespace, more_chunks: u64) -> bool {
        let domain = &*namespace.descriptor.domain;
        let quotas = self.quotas.load();
        let Some(quota) = quotas.get(domain) else { return true };
        let all = self.namespaces.in_domain(domain);
        // What is being stored cannot be evicted: no need to lose anything for what does not fit even so.
        if !beside_the_ready(*quota, &all, more_chunks) {
            return false;
        }
        while !within(*quota, &all, more_chunks) {
            let Some(evicted) = self.index.evict_next_of(namespace.domain) else {
                return within(*quota, &all, more_chunks);
            };
            self.evicted(evicted, Left::EvictedForQuota);
        }
        true
    }

    /// The numbers of each domain that has a namespace or a quota.
    pub(super) fn domains(&self, namespaces: &[(Arc<Namespace>, Option<String>)]) -> Vec<DomainStats> {
        let named = |domain: &str| DomainStats { domain: domain.to_owned(), ..DomainStats::default() };
        let mut domains = BTreeMap::new();
        for (domain, quota) in self.quotas.load().iter() {
            let quota_bytes = quota.bytes;
            domains.insert(
                domain.to_string(),
                DomainStats { quota_bytes, quota_chunks: quota.chunks, ..named(domain) },
            );
        }
        for (namespace, _) in namespaces {
            let domain = &namespace.descriptor.domain;
            if domain.is_empty() {
                continue;
            }
            let numbers = namespace.stats(None);
            let sums = domains.entry(domain.clone()).or_insert_with(|| named(domain));
            sums.ready_bytes += numbers.ready_bytes;
            sums.ready_chunks += numbers.ready_chunks;
            sums.inflight_bytes += namespace.inflight.used_bytes();
            sums.lookups += numbers.lookups;
            sums.hits += numbers.hits;
            sums.stored_bytes += numbers.stored_bytes;
            sums.evicted_chunks += numbers.evicted_chunks;
        }
        domains.into_values().collect()
    }
}

fn beside_the_ready(quota: DomainQuota, namespaces: &[Arc<Namespace>], more_chunks: u64) -> bool {
    let bytes: u64 = namespaces.iter().map(|n| n.inflight.used_bytes()).sum();
    let pending: u64 = namespaces.iter().map(|n| n.counters.pending_chunks.load(Ordering::Acquire)).sum();
    let chunks = pending + more_chunks;
    (quota.bytes == 0 || bytes <= quota.bytes) && (quota.chunks == 0 || chunks <= quota.chunks)
}

fn within(quota: DomainQuota, namespaces: &[Arc<Namespace>], more_chunks: u64) -> bool {
    let sum = |count: fn(&Namespace) -> u64| namespaces.iter().map(|namespace| count(namespace)).sum::<u64>();
    let bytes = || sum(|n| n.counters.ready_bytes.load(Ordering::Acquire) + n.inflight.used_bytes());
    let chunks = || {
        let ready = sum(|n| n.counters.ready_chunks.load(Ordering::Acquire));
        more_chunks + ready + sum(|n| n.counters.pending_chunks.load(Ordering::Acquire))
    };
    (quota.bytes == 0 || bytes() <= quota.bytes) && (quota.chunks == 0 || chunks() <= quota.chunks)
}
