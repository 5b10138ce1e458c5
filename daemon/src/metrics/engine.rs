//! What the engine counts, as metrics.

use super::text::{Row, Text, Value};
use super::{row, table};
use crate::engine::{DomainStats, NamespaceStats, Stats};

pub(super) fn write(text: &mut Text, stats: &Stats) {
    let refusals = stats.refusals.iter().map(|(reason, count)| row(&[reason.label()], *count));
    text.family(&table::REFUSALS, refusals);
    text.one(&table::ARENA_BYTES, stats.arena_bytes);
    text.one(&table::ARENA_USED_BYTES, stats.arena_used_bytes);
    text.one(&table::ARENA_LARGEST_FREE_BYTES, stats.arena_largest_free_bytes);
    text.one(&table::ARENA_FRAGMENTATION, Value::Real(stats.fragmentation()));
    text.one(&table::SESSIONS, stats.sessions);
    text.one(&table::LEASES, stats.leases);
    text.one(&table::PINS, stats.pins);
    text.one(&table::RESERVATIONS, stats.reservations);
    text.one(&table::INFLIGHT_BYTES, stats.inflight_bytes);
    text.one(&table::STAGING_BYTES, stats.staging_bytes);
    text.one(&table::EXPIRED_LEASES, stats.expired_leases);
    text.one(&table::EXPIRED_RESERVATIONS, stats.expired_reservations);
    text.one(&table::EVICTION_AGE_SECONDS, stats.eviction_ages_seconds.clone());
    text.one(&table::SCRUBBED_BYTES, stats.scrubbed_bytes);
    text.one(&table::QUARANTINED_CHUNKS, stats.quarantined_chunks);
    namespaces(text, &stats.namespaces);
    domains(text, &stats.domains);
}

fn namespaces(text: &mut Text, all: &[NamespaceStats]) {
    let info = |n: &NamespaceStats| {
        let d = &n.descriptor;
        row(&[&n.digest.to_string(), &d.model, &d.kv_dtype, &d.domain], 1)
    };
    text.family(&table::NAMESPACE_INFO, all.iter().map(info));
    let rows =
        |value: fn(&NamespaceStats) -> u64| all.iter().map(move |n| row(&[&n.digest.to_string()], value(n)));
    text.family(&table::READY_CHUNKS, rows(|n| n.ready_chunks));
    text.family(&table::READY_BYTES, rows(|n| n.ready_bytes));
    text.family(&table::PENDING_CHUNKS, rows(|n| n.pending_chunks));
    text.family(&table::LOOKUPS, rows(|n| n.lookups));
    text.family(&table::HITS, rows(|n| n.hits));
    text.family(&table::PENDINGS, rows(|n| n.pendings));
    let misses = |n: &NamespaceStats| -> Vec<Row> {
        let name = n.digest.to_string();
        n.misses.iter().map(|(reason, count)| row(&[&name, reason.label()], *count)).collect()
    };
    text.family(&table::MISSES, all.iter().flat_map(misses));
    text.family(&table::STORED_BYTES, rows(|n| n.stored_bytes));
    text.family(&table::EVICTIONS, rows(|n| n.evicted_chunks));
}

fn domains(text: &mut Text, all: &[DomainStats]) {
    let rows =
        |value: fn(&DomainStats) -> u64| all.iter().map(move |domain| row(&[&domain.domain], value(domain)));
    text.family(&table::DOMAIN_READY_BYTES, rows(|d| d.ready_bytes));
    text.family(&table::DOMAIN_READY_CHUNKS, rows(|d| d.ready_chunks));
    text.family(&table::DOMAIN_INFLIGHT_BYTES, rows(|d| d.inflight_bytes));
    // 0 is no limit, and no number to draw a line at.
    let limits = |value: fn(&DomainStats) -> u64| {
        all.iter().filter(move |d| value(d) > 0).map(move |d| row(&[&d.domain], value(d)))
    };
    text.family(&table::DOMAIN_QUOTA_BYTES, limits(|d| d.quota_bytes));
    text.family(&table::DOMAIN_QUOTA_CHUNKS, limits(|d| d.quota_chunks));
    text.family(&table::DOMAIN_LOOKUPS, rows(|d| d.lookups));
    text.family(&table::DOMAIN_HITS, rows(|d| d.hits));
    text.family(&table::DOMAIN_STORED_BYTES, rows(|d| d.stored_bytes));
    text.family(&table::DOMAIN_EVICTIONS, rows(|d| d.evicted_chunks));
}
