//! What the tiers below the arena count, as metrics.

use std::sync::atomic::AtomicU64;

use super::text::{Row, Text};
use super::{PeerCounters, read, row, table};
use crate::tier::TierStats;
use crate::tier::disk::DiskStats;
use crate::tier::shared::SharedCounts;

pub(super) fn write(text: &mut Text, tiers: &[TierStats]) {
    let rows = |value: fn(&TierStats) -> u64| tiers.iter().map(move |t| row(&[t.kind.name()], value(t)));
    text.family(&table::TIER_ASKED_CHUNKS, rows(|t| t.asked_chunks));
    text.family(&table::TIER_FOUND_CHUNKS, rows(|t| t.found_chunks));
    text.family(&table::TIER_LATE_FINDS, rows(|t| t.late_finds));
    text.family(&table::TIER_FETCHES, rows(|t| t.lane.begun));
    text.family(&table::TIER_FETCHED_CHUNKS, rows(|t| t.lane.brought));
    text.family(&table::TIER_FETCHED_BYTES, rows(|t| t.lane.brought_bytes));
    let seconds = tiers.iter().map(|t| (vec![t.kind.name().into()], t.lane.fetch_seconds.clone().into()));
    text.family(&table::TIER_FETCH_SECONDS, seconds);
    text.family(&table::TIER_THROTTLED_FETCHES, rows(|t| t.lane.throttled));
    let failures = tiers
        .iter()
        .flat_map(|t| t.lane.failures.iter().map(move |(why, count)| row(&[t.kind.name(), why], *count)));
    text.family(&table::TIER_FAILED_FETCHES, failures);
    text.family(&table::TIER_INFLIGHT_FETCHES, rows(|t| t.lane.under_way));
    text.family(&table::TIER_INFLIGHT_BYTES, rows(|t| t.lane.under_way_bytes));
    let latency_us = |t: &TierStats| u64::try_from(t.lane.latency.as_micros()).unwrap_or(u64::MAX);
    text.family(&table::TIER_LATENCY_US, rows(latency_us));
    text.family(&table::TIER_BYTES_PER_SECOND, rows(|t| t.lane.bytes_per_second));
    let given = |t: &TierStats| {
        let keeps = &t.keeps;
        [
            ("kept", keeps.kept),
            ("unwanted", keeps.unwanted),
            ("throttled", keeps.throttled),
            ("failed", keeps.failed),
            ("dropped", keeps.dropped),
        ]
        .map(|(outcome, count)| row(&[t.kind.name(), outcome], count))
    };
    text.family(&table::TIER_GIVEN_CHUNKS, tiers.iter().flat_map(given));
    text.family(&table::TIER_KEPT_BYTES, rows(|t| t.keeps.kept_bytes));
    let breakers = tiers.iter().flat_map(|t| &t.breakers).map(|(breaker, open)| row(&[breaker], *open));
    text.family(&table::OPEN_BREAKERS, breakers);
}

pub(super) fn write_peers(text: &mut Text, peers: &PeerCounters) {
    let by = |rows: &[(&str, &AtomicU64)]| -> Vec<Row> {
        rows.iter().map(|(label, counter)| row(&[label], read(counter))).collect()
    };
    let calls = [("answered", &peers.asked), ("unanswered", &peers.unanswered)];
    text.family(&table::DIRECTORY_CALLS, by(&calls));
    let entries =
        [("published", &peers.published), ("withdrawn", &peers.withdrawn), ("dropped", &peers.dropped)];
    text.family(&table::DIRECTORY_ENTRIES, by(&entries));
    let fetches = [
        ("fetched", &peers.fetched),
        ("gone", &peers.gone),
        ("stale", &peers.stale),
        ("wrong", &peers.wrong),
        ("slow", &peers.slow),
        ("dead", &peers.dead),
    ];
    text.family(&table::PEER_FETCHES, by(&fetches));
    text.one(&table::PEER_FETCHED_BYTES, read(&peers.fetched_bytes));
    text.one(&table::PEER_SERVED_CHUNKS, read(&peers.served_chunks));
    text.family(&table::PEER_OFFERS, by(&[("offered", &peers.offered), ("taken", &peers.offers_taken)]));
}

fn by(rows: &[(&str, u64)]) -> Vec<Row> {
    rows.iter().map(|&(label, value)| row(&[label], value)).collect()
}

pub(super) fn write_disk(text: &mut Text, stats: &DiskStats) {
    text.one(&table::DISK_BYTES, stats.capacity_bytes);
    text.one(&table::DISK_USED_SEGMENTS, stats.used_segments);
    text.one(&table::DISK_RECORDS, stats.records);
    text.one(&table::DISK_UNRECOVERED_SEGMENTS, stats.unrecovered_segments);
    text.one(&table::DISK_SICK, stats.sick);
    text.one(&table::DISK_DIRECT, stats.direct);
    let keeps = [
        ("kept", stats.kept_chunks),
        ("throttled", stats.throttled_chunks),
        ("unwanted", stats.unwanted_chunks),
    ];
    text.family(&table::DISK_KEEPS, by(&keeps));
    let moved =
        [("kept", stats.kept_bytes), ("kept_again", stats.rewritten_bytes), ("fetched", stats.fetched_bytes)];
    text.family(&table::DISK_MOVED_BYTES, by(&moved));
    text.family(&table::DISK_ERRORS, by(&[("write", stats.write_errors), ("read", stats.read_errors)]));
    let dropped = [
        ("corrupt", stats.corrupt_records),
        ("torn", stats.torn_records),
        ("stale", stats.stale_records),
        ("foreign", stats.foreign_records),
    ];
    text.family(&table::DISK_DROPPED_RECORDS, by(&dropped));
    text.one(&table::DISK_FETCHES, stats.fetched_chunks);
    text.one(&table::DISK_RECOVERED_RECORDS, stats.recovered_records);
    text.one(&table::DISK_RECLAIMED_SEGMENTS, stats.reclaimed_segments);
    text.one(&table::DISK_REWRITTEN_RECORDS, stats.rewritten_records);
    text.one(&table::DISK_RESETS, stats.resets);
}

pub(super) fn write_shared(text: &mut Text, counts: &SharedCounts) {
    let lookups = [("found", counts.found), ("not_found", counts.not_found)];
    text.family(&table::SHARED_LOOKUPS, by(&lookups));
    let troubles = [("skipped", counts.skipped), ("error", counts.errors), ("late", counts.late)];
    text.family(&table::SHARED_TROUBLES, by(&troubles));
    let keeps = [("kept", counts.kept_chunks), ("before", counts.kept_before), ("failed", counts.not_kept)];
    text.family(&table::SHARED_KEEPS, by(&keeps));
    text.family(&table::SHARED_DAMAGED, by(&counts.damaged));
    text.one(&table::SHARED_FETCHES, counts.fetched_chunks);
    text.one(&table::SHARED_FETCHED_BYTES, counts.fetched_bytes);
    text.one(&table::SHARED_KEPT_BYTES, counts.kept_bytes);
    text.one(&table::SHARED_GONE, counts.gone);
}
