//! Every metric: its name, unit and help, in one place. What the engine counts itself is read when somebody asks;
//! the rest is counted here.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, EncodeLabelSet, EncodeMetric, LabelSetEncoder,
};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tender_proto::Reason;

use crate::access::Access;
use crate::engine::{Engine, Stats};
use crate::gate::{Door, Turned, TurnedAway};
use crate::tier::disk::{Disk, DiskStats};
use crate::tier::shared::{SharedCounts, SharedStats};
use crate::tier::{Stack, TierStats};

/// How bytes travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Path {
    /// Through shared memory.
    Shm,
    /// Over a gRPC stream.
    Grpc,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Reloaded {
    what: &'static str,
    outcome: &'static str,
}

impl EncodeLabelSet for Reloaded {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        ("what", self.what).encode(encoder.encode_label())?;
        ("outcome", self.outcome).encode(encoder.encode_label())
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Call(&'static str);

impl EncodeLabelSet for Call {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        ("call", self.0).encode(encoder.encode_label())
    }
}

/// What the directory and other daemons did, and what was done for them.
#[derive(Debug, Default)]
pub(crate) struct PeerCounters {
    pub(crate) asked: AtomicU64,
    pub(crate) unanswered: AtomicU64,
    pub(crate) published: AtomicU64,
    pub(crate) withdrawn: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) fetched: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    pub(crate) gone: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) wrong: AtomicU64,
    pub(crate) slow: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) served_chunks: AtomicU64,
    pub(crate) offered: AtomicU64,
    pub(crate) offers_taken: AtomicU64,
}

/// What is counted outside the engine.
#[derive(Debug)]
pub(crate) struct Metrics {
    received_shm_bytes: AtomicU64,
    received_grpc_bytes: AtomicU64,
    sent_shm_bytes: AtomicU64,
    sent_grpc_bytes: AtomicU64,
    failed_handshakes: AtomicU64,
    connections: Family<Door, Gauge>,
    turned_away: Family<TurnedAway, Counter>,
    reloads: Family<Reloaded, Counter>,
    access: OnceLock<Arc<Access>>,
    calls: Family<Call, Histogram, fn() -> Histogram>,
    shared: OnceLock<Arc<SharedStats>>,
    /// Not held by it: the disk lets go of its folder when its tier ends.
    disk: OnceLock<Weak<Disk>>,
    pub(crate) peers: PeerCounters,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        // 16 us to 1 s in steps of 2.
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(16e-6, 2.0, 17));
        Self {
            received_shm_bytes: AtomicU64::new(0),
            received_grpc_bytes: AtomicU64::new(0),
            sent_shm_bytes: AtomicU64::new(0),
            sent_grpc_bytes: AtomicU64::new(0),
            failed_handshakes: AtomicU64::new(0),
            connections: Family::default(),
            turned_away: Family::default(),
            reloads: Family::default(),
            access: OnceLock::new(),
            calls: Family::new_with_constructor(histogram),
            shared: OnceLock::new(),
            disk: OnceLock::new(),
            peers: PeerCounters::default(),
        }
    }
    /// A TLS connection did not come about.
    pub(crate) fn handshake_failed(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }
    /// Connections came or went.
    pub(crate) fn connections(&self, door: &'static str, change: i64) {
        self.connections.get_or_create(&Door { door }).inc_by(change);
    }
    /// A connection was closed instead of served.
    pub(crate) fn turned_away(&self, door: &'static str, why: Turned) {
        self.turned_away.get_or_create(&TurnedAway { door, reason: why.label() }).inc();
    }
    /// Changed files were read, or refused.
    pub(crate) fn reloaded(&self, what: &'static str, used: bool) {
        let outcome = if used { "used" } else { "refused" };
        self.reloads.get_or_create(&Reloaded { what, outcome }).inc();
    }
    /// Where refusals by tenant are counted.
    pub(crate) fn count_access(&self, access: &Arc<Access>) {
        _ = self.access.set(Arc::clone(access));
    }
    /// There is a disk tier; its counters are shown from here on.
    pub(crate) fn watch_disk(&self, disk: &Arc<Disk>) {
        _ = self.disk.set(Arc::downgrade(disk));
    }
    /// There is a shared store; its counters are shown from here on.
    pub(crate) fn watch_shared(&self, stats: Arc<SharedStats>) {
        _ = self.shared.set(stats);
    }
    /// A call was answered.
    pub(crate) fn call(&self, call: &'static str, took: Duration) {
        self.calls.get_or_create(&Call(call)).observe(took.as_secs_f64());
    }
    /// Payload came in.
    pub(crate) fn received(&self, path: Path, bytes: u64) {
        let counter = match path {
            Path::Shm => &self.received_shm_bytes,
            Path::Grpc => &self.received_grpc_bytes,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
    /// Payload went out, or, for shared memory, a reader was told where it lies.
    pub(crate) fn sent(&self, path: Path, bytes: u64) {
        let counter = match path {
            Path::Shm => &self.sent_shm_bytes,
            Path::Grpc => &self.sent_grpc_bytes,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
    /// All metrics as OpenMetrics text. Before the engine is there, only what is counted here.
    pub(crate) fn render(&self, engine: Option<&Engine>, stack: Option<&Stack>) -> String {
        let mut registry = Registry::default();
        registry.register("tender_call_seconds", "Time to answer a call", self.calls.clone());
        let connections = "Connections of clients, those in their opening included";
        registry.register("tender_connections", connections, self.connections.clone());
        let turned_away = "Connections that were closed and not served, by reason";
        registry.register("tender_refused_connections", turned_away, self.turned_away.clone());
        registry.register(
            "tender_reloads",
            "Changed certificates and policies that were read again",
            self.reloads.clone(),
        );
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        registry.register_collector(Box::new(Snapshot {
            received_shm_bytes: read(&self.received_shm_bytes),
            received_grpc_bytes: read(&self.received_grpc_bytes),
            sent_shm_bytes: read(&self.sent_shm_bytes),
            sent_grpc_bytes: read(&self.sent_grpc_bytes),
            failed_handshakes: read(&self.failed_handshakes),
            access_refusals: self.access.get().map(|access| access.refusals()).unwrap_or_default(),
            peers: peer_families(&self.peers),
            engine: engine.map(Engine::stats),
            tiers: stack.map(Stack::stats).unwrap_or_default(),
            shared: self.shared.get().map(|stats| stats.counts()),
            disk: self.disk.get().and_then(Weak::upgrade).map(|disk| disk.stats()),
        }));
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &registry) {
            text.clear();
            _ = write!(text, "# metrics cannot be written: {error}");
        }
        text
    }
}

/// The content type of [`Metrics::render`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug)]
struct Snapshot {
    received_shm_bytes: u64,
    received_grpc_bytes: u64,
    sent_shm_bytes: u64,
    sent_grpc_bytes: u64,
    failed_handshakes: u64,
    access_refusals: Vec<(String, Reason, u64)>,
    peers: Vec<PeerFamily>,
    engine: Option<Stats>,
    tiers: Vec<TierStats>,
    shared: Option<SharedCounts>,
    disk: Option<DiskStats>,
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut out = Out(encoder);
        out.counters(
            "tender_received_bytes",
            "Payload of stored parts by the way it came",
            &["path"],
            [(vec!["shm".into()], self.received_shm_bytes), (vec!["grpc".into()], self.received_grpc_bytes)],
        )?;
        out.counters(
            "tender_sent_bytes",
            "Payload for readers: sent over the network, or told where it lies in shared memory",
            &["path"],
            [(vec!["shm".into()], self.sent_shm_bytes), (vec!["grpc".into()], self.sent_grpc_bytes)],
        )?;
        out.counters(
            "tender_failed_tls_handshakes",
            "TLS connections that did not come about: wrong authority, expired, none shown, not TLS",
            &[],
            [(Vec::new(), self.failed_handshakes)],
        )?;
        let refusals = self.access_refusals.iter();
        out.counters(
            "tender_access_refusals",
            "What the policy refused, by tenant and reason; - for callers of no tenant",
            &["tenant", "reason"],
            refusals.map(|(tenant, reason, count)| (vec![tenant.clone(), reason.label().into()], *count)),
        )?;
        for (name, help, labels, rows) in &self.peers {
            out.counters(name, help, labels, rows.iter().cloned())?;
        }
        if let Some(stats) = &self.disk {
            disk_metrics(&mut out, stats)?;
        }
        if let Some(counts) = &self.shared {
            shared_metrics(&mut out, counts)?;
        }
        if let Some(stats) = &self.engine {
            engine_metrics(&mut out, stats)?;
        }
        tier_metrics(&mut out, &self.tiers)
    }
}

type PeerFamily = (&'static str, &'static str, &'static [&'static str], Vec<Row>);

fn peer_families(peers: &PeerCounters) -> Vec<PeerFamily> {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let one = |counter| vec![(Vec::new(), read(counter))];
    let by = |rows: &[(&str, &AtomicU64)]| {
        rows.iter().map(|(label, counter)| (vec![(*label).to_owned()], read(counter))).collect::<Vec<_>>()
    };
    vec![
        (
            "tender_directory_calls",
            "Questions to the directory of who holds what, by whether it answered in time",
            &["outcome"],
            by(&[("answered", &peers.asked), ("unanswered", &peers.unanswered)]),
        ),
        (
            "tender_directory_entries",
            "Chunks that the directory was told of; dropped ones are told again with the next round",
            &["what"],
            by(&[
                ("published", &peers.published),
                ("withdrawn", &peers.withdrawn),
                ("dropped", &peers.dropped),
            ]),
        ),
        (
            "tender_peer_fetches",
            "Chunks asked of other daemons, by what came of it",
            &["outcome"],
            by(&[
                ("fetched", &peers.fetched),
                ("gone", &peers.gone),
                ("stale", &peers.stale),
                ("wrong", &peers.wrong),
                ("slow", &peers.slow),
                ("dead", &peers.dead),
            ]),
        ),
        (
            "tender_peer_fetched_bytes",
            "Bytes of the chunks that were fetched",
            &[],
            one(&peers.fetched_bytes),
        ),
        ("tender_peer_served_chunks", "Chunks that other daemons were sent", &[], one(&peers.served_chunks)),
        (
            "tender_peer_offers",
            "Chunks offered to other daemons while ending, and chunks taken from others' offers",
            &["what"],
            by(&[("offered", &peers.offered), ("taken", &peers.offers_taken)]),
        ),
    ]
}

type TierNumber = fn(&TierStats) -> u64;

fn tier_metrics(out: &mut Out<'_>, tiers: &[TierStats]) -> std::fmt::Result {
    let name = |tier: &TierStats| tier.kind.name().to_owned();
    let rows = |value: fn(&TierStats) -> u64| tiers.iter().map(move |tier| (vec![name(tier)], value(tier)));
    let label = &["tier"];
    out.counters("tender_tier_asked_chunks", "Chunks a tier was asked for", label, rows(|t| t.asked_chunks))?;
    out.counters("tender_tier_found_chunks", "Those of them that it had", label, rows(|t| t.found_chunks))?;
    let late = rows(|t| t.late_finds);
    out.counters("tender_tier_late_finds", "Questions not answered in a lookup's time", label, late)?;
    out.counters("tender_tier_fetches", "Fetches begun", label, rows(|t| t.lane.begun))?;
    out.counters("tender_tier_fetched_chunks", "Chunks brought", label, rows(|t| t.lane.brought))?;
    out.counters("tender_tier_fetched_bytes", "Bytes brought", label, rows(|t| t.lane.brought_bytes))?;
    let throttled = rows(|t| t.lane.throttled);
    out.counters("tender_tier_throttled_fetches", "Fetches not begun for want of room", label, throttled)?;
    let failures = tiers.iter().flat_map(|tier| {
        tier.lane.failures.iter().map(move |(why, count)| (vec![name(tier), (*why).into()], *count))
    });
    out.counters(
        "tender_tier_failed_fetches",
        "Fetches that failed, by reason",
        &["tier", "reason"],
        failures,
    )?;
    out.gauges("tender_tier_inflight_fetches", "Fetches under way", label, rows(|t| t.lane.under_way))?;
    let bytes = rows(|t| t.lane.under_way_bytes);
    out.gauges("tender_tier_inflight_bytes", "Bytes of fetches under way", label, bytes)?;
    let latency = rows(|t| u64::try_from(t.lane.latency.as_micros()).unwrap_or(u64::MAX));
    out.gauges("tender_tier_latency_us", "Measured: a fetch's time beyond its bytes' share", label, latency)?;
    let rate = rows(|t| t.lane.bytes_per_second);
    out.gauges("tender_tier_bytes_per_second", "Measured: what a tier brings in all", label, rate)?;
    let outcomes: [(&str, TierNumber); 5] = [
        ("kept", |t| t.keeps.kept),
        ("unwanted", |t| t.keeps.unwanted),
        ("throttled", |t| t.keeps.throttled),
        ("failed", |t| t.keeps.failed),
        ("dropped", |t| t.keeps.dropped),
    ];
    let given = tiers.iter().flat_map(|tier| {
        outcomes.iter().map(move |(outcome, value)| (vec![name(tier), (*outcome).into()], value(tier)))
    });
    out.counters(
        "tender_tier_given_chunks",
        "Chunks given to a tier by outcome; dropped: news of chunks that found its queue full",
        &["tier", "outcome"],
        given,
    )?;
    out.counters(
        "tender_tier_kept_bytes",
        "Bytes of chunks that a tier kept",
        label,
        rows(|t| t.keeps.kept_bytes),
    )
}

fn engine_metrics(out: &mut Out<'_>, stats: &Stats) -> std::fmt::Result {
    out.gauge("tender_arena_bytes", "Shared memory that chunks can use", stats.arena_bytes)?;
    out.gauge("tender_arena_used_bytes", "Shared memory in use, rounding included", stats.arena_used_bytes)?;
    let largest = stats.arena_largest_free_bytes;
    out.gauge("tender_arena_largest_free_bytes", "A part of this size fits without eviction", largest)?;
    out.gauge("tender_sessions", "Connected clients", stats.sessions)?;
    out.gauge("tender_leases", "Live leases", stats.leases)?;
    out.gauge("tender_pins", "Chunks held by leases, once for each lease", stats.pins)?;
    out.gauge("tender_reservations", "Parts that clients may write now", stats.reservations)?;
    out.gauge("tender_inflight_bytes", "Bytes of unfinished chunks", stats.inflight_bytes)?;
    out.gauge("tender_staging_bytes", "Staging memory of local clients", stats.staging_bytes)?;
    let counter = |name, help, value| (name, help, [(Vec::new(), value)]);
    let ended = [
        counter("tender_expired_leases", "Leases that ended because their time was up", stats.expired_leases),
        counter(
            "tender_expired_reservations",
            "Parts that were not written in time",
            stats.expired_reservations,
        ),
        counter("tender_scrubbed_bytes", "Stored bytes that were verified again", stats.scrubbed_bytes),
        counter(
            "tender_quarantined_chunks",
            "Chunks whose bytes had changed in memory and that were taken out",
            stats.quarantined_chunks,
        ),
    ];
    for (name, help, rows) in ended {
        out.counters(name, help, &[], rows)?;
    }
    let refusals = stats.refusals.iter().map(|(reason, count)| (vec![reason.label().into()], *count));
    out.counters("tender_refusals", "Calls and items refused, by reason", &["reason"], refusals)?;
    namespace_metrics(out, stats)
}

fn namespace_metrics(out: &mut Out<'_>, stats: &Stats) -> std::fmt::Result {
    let all = &stats.namespaces;
    let name = |n: &crate::engine::NamespaceStats| n.digest.to_string();
    let rows =
        |value: fn(&crate::engine::NamespaceStats) -> u64| all.iter().map(move |n| (vec![name(n)], value(n)));
    let label = &["namespace"];
    out.gauges("tender_ready_chunks", "Chunks that lookups find", label, rows(|n| n.ready_chunks))?;
    out.gauges("tender_ready_bytes", "Bytes of those chunks", label, rows(|n| n.ready_bytes))?;
    out.gauges("tender_pending_chunks", "Chunks being stored", label, rows(|n| n.pending_chunks))?;
    out.counters("tender_lookups", "Keys asked for", label, rows(|n| n.lookups))?;
    out.counters("tender_hits", "Keys found ready", label, rows(|n| n.hits))?;
    out.counters("tender_pendings", "Keys found being stored", label, rows(|n| n.pendings))?;
    out.counters("tender_stored_bytes", "Bytes of parts that became ready", label, rows(|n| n.stored_bytes))?;
    out.counters("tender_evictions", "Chunks that made room for others", label, rows(|n| n.evicted_chunks))?;
    let misses = all.iter().flat_map(|n| {
        n.misses.iter().map(move |(reason, count)| (vec![name(n), reason.label().into()], *count))
    });
    out.counters("tender_misses", "Keys not found, by reason", &["namespace", "reason"], misses)
}

fn disk_metrics(out: &mut Out<'_>, stats: &DiskStats) -> std::fmt::Result {
    out.gauge("tender_disk_bytes", "Bytes of the disk tier's segments", stats.capacity_bytes)?;
    out.gauge("tender_disk_used_segments", "Segments that hold records", stats.used_segments)?;
    out.gauge("tender_disk_records", "Chunks that can be found on disk", stats.records)?;
    let unrecovered = "Segments that the recovery after the start has still to look at";
    out.gauge("tender_disk_unrecovered_segments", unrecovered, stats.unrecovered_segments)?;
    out.gauge("tender_disk_sick", "1 while the disk is left alone because it fails or hangs", stats.sick)?;
    out.gauge("tender_disk_direct", "1 where files bypass the page cache", stats.direct)?;
    let rows = |rows: &[(&'static str, u64)]| -> Vec<Row> {
        rows.iter().map(|&(name, value)| (vec![name.into()], value)).collect()
    };
    let keeps = rows(&[
        ("kept", stats.kept_chunks),
        ("throttled", stats.throttled_chunks),
        ("unwanted", stats.unwanted_chunks),
    ]);
    out.counters("tender_disk_keeps", "Chunks offered to the disk, by outcome", &["outcome"], keeps)?;
    let bytes = rows(&[
        ("kept", stats.kept_bytes),
        ("kept_again", stats.rewritten_bytes),
        ("fetched", stats.fetched_bytes),
    ]);
    out.counters("tender_disk_moved_bytes", "Bytes written to and read from the disk", &["what"], bytes)?;
    let errors = rows(&[("write", stats.write_errors), ("read", stats.read_errors)]);
    out.counters("tender_disk_errors", "Writes and reads that failed", &["what"], errors)?;
    let dropped = rows(&[
        ("corrupt", stats.corrupt_records),
        ("torn", stats.torn_records),
        ("stale", stats.stale_records),
        ("foreign", stats.foreign_records),
    ]);
    out.counters(
        "tender_disk_dropped_records",
        "Records that were taken out, by reason",
        &["reason"],
        dropped,
    )?;
    let alone = |value| [(Vec::new(), value)];
    let fetched = "Chunks that came from the disk and were verified";
    out.counters("tender_disk_fetches", fetched, &[], alone(stats.fetched_chunks))?;
    let recovered = "Records found again after the start";
    out.counters("tender_disk_recovered_records", recovered, &[], alone(stats.recovered_records))?;
    let reclaimed = "Segments emptied to be filled again";
    out.counters("tender_disk_reclaimed_segments", reclaimed, &[], alone(stats.reclaimed_segments))?;
    let again = "Records kept once more because they were read";
    out.counters("tender_disk_rewritten_records", again, &[], alone(stats.rewritten_records))?;
    out.counters("tender_disk_resets", "Namespaces forgotten", &[], alone(stats.resets))
}

fn shared_metrics(out: &mut Out<'_>, counts: &SharedCounts) -> std::fmt::Result {
    let by = |rows: &[(&'static str, u64)]| -> Vec<Row> {
        rows.iter().map(|&(name, value)| (vec![name.into()], value)).collect()
    };
    let lookups = by(&[("found", counts.found), ("not_found", counts.not_found)]);
    out.counters(
        "tender_shared_lookups",
        "Chunks looked for in the shared store, by outcome",
        &["outcome"],
        lookups,
    )?;
    let troubles = by(&[("skipped", counts.skipped), ("error", counts.errors), ("late", counts.late)]);
    out.counters(
        "tender_shared_troubles",
        "Calls to the shared store that were not made because it is left alone, failed, or were not over in time",
        &["kind"],
        troubles,
    )?;
    let kept =
        by(&[("kept", counts.kept_chunks), ("before", counts.kept_before), ("failed", counts.not_kept)]);
    out.counters(
        "tender_shared_keeps",
        "Chunks offered to the shared store, by outcome",
        &["outcome"],
        kept,
    )?;
    let kind = &["kind"];
    let damaged = by(&counts.damaged);
    out.counters("tender_shared_damaged", "Objects that were not what their name says", kind, damaged)?;
    let alone = |value| [(Vec::new(), value)];
    let fetched = "Chunks that came from the shared store and were verified";
    out.counters("tender_shared_fetches", fetched, &[], alone(counts.fetched_chunks))?;
    out.counters("tender_shared_fetched_bytes", "Bytes of those objects", &[], alone(counts.fetched_bytes))?;
    out.counters("tender_shared_kept_bytes", "Bytes of objects written", &[], alone(counts.kept_bytes))?;
    out.counters(
        "tender_shared_gone",
        "Objects that were gone when they were fetched",
        &[],
        alone(counts.gone),
    )
}

/// Writes families of constants.
struct Out<'a>(DescriptorEncoder<'a>);

type Row = (Vec<String>, u64);

impl Out<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> std::fmt::Result {
        self.gauges(name, help, &[], [(Vec::new(), value)])
    }
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        rows: impl IntoIterator<Item = Row>,
    ) -> std::fmt::Result {
        let rows = rows
            .into_iter()
            .map(|(values, n)| (values, ConstGauge::new(i64::try_from(n).unwrap_or(i64::MAX))));
        self.family(name, help, labels, rows)
    }
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        rows: impl IntoIterator<Item = Row>,
    ) -> std::fmt::Result {
        self.family(name, help, labels, rows.into_iter().map(|(values, n)| (values, ConstCounter::new(n))))
    }
    fn family<M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        rows: impl IntoIterator<Item = (Vec<String>, M)>,
    ) -> std::fmt::Result {
        let mut rows = rows.into_iter().peekable();
        let Some((_, first)) = rows.peek() else { return Ok(()) };
        let mut family = self.0.encode_descriptor(name, help, None, first.metric_type())?;
        for (values, metric) in rows {
            let labels: Vec<_> = labels.iter().copied().zip(values).collect();
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
