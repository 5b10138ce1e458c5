//! What the status page is told: `/status.json`. Names and numbers, never keys or bytes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use http::header::CACHE_CONTROL;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::history::{EVERY, Sample, Step};
use super::{Sources, reply};
use crate::engine::{DomainStats, NamespaceStats, Stats};
use crate::tier::{PeerState, TierStats};

#[derive(Serialize, Debug)]
struct Status {
    version: &'static str,
    /// Of this daemon, seconds since 1970.
    now_unix_s: u64,
    uptime_s: u64,
    ready: bool,
    /// For people.
    phase: &'static str,
    /// `None` until the arena is there.
    arena: Option<Arena>,
    clients: Option<Clients>,
    chunks: Option<Chunks>,
    namespaces: Vec<Namespace>,
    domains: Vec<Domain>,
    tiers: Vec<Tier>,
    peers: Vec<Peer>,
    refusals: Vec<Refused>,
    history: Vec<Point>,
    sample_every_s: u64,
}

#[derive(Serialize, Debug)]
struct Arena {
    bytes: u64,
    used_bytes: u64,
    largest_free_bytes: u64,
    fragmentation: f64,
}

#[derive(Serialize, Debug)]
struct Clients {
    sessions: u64,
    leases: u64,
    pins: u64,
    reservations: u64,
    inflight_bytes: u64,
    staging_bytes: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

/// Of all namespaces since the start.
#[derive(Serialize, Debug)]
struct Chunks {
    ready: u64,
    pending: u64,
    lookups: u64,
    hits: u64,
    pendings: u64,
    misses: u64,
    evicted: u64,
    quarantined: u64,
}

#[derive(Serialize, Debug)]
struct Namespace {
    digest: String,
    model: String,
    kv_dtype: String,
    domain: String,
    name: Option<String>,
    ready_chunks: u64,
    ready_bytes: u64,
    pending_chunks: u64,
    lookups: u64,
    hits: u64,
    evicted_chunks: u64,
}

#[derive(Serialize, Debug)]
struct Domain {
    name: String,
    ready_bytes: u64,
    inflight_bytes: u64,
    quota_bytes: u64,
    lookups: u64,
    hits: u64,
}

#[derive(Serialize, Debug)]
struct Tier {
    name: &'static str,
    asked_chunks: u64,
    found_chunks: u64,
    fetched_chunks: u64,
    fetched_bytes: u64,
    failed_fetches: u64,
    under_way: u64,
    kept_chunks: u64,
    kept_bytes: u64,
    latency_us: u64,
    bytes_per_second: u64,
    /// What is left alone because it failed.
    left_alone: Vec<&'static str>,
}

#[derive(Serialize, Debug)]
struct Peer {
    address: String,
    left_alone: bool,
    bytes_per_second: u64,
}

#[derive(Serialize, Debug)]
struct Refused {
    reason: &'static str,
    total: u64,
    last_hour: u64,
    last_unix_s: Option<u64>,
    /// The last call that was refused as a whole, and what its caller was told to do.
    call: Option<&'static str>,
    advice: Option<String>,
}

#[derive(Serialize, Debug)]
struct Point {
    unix_s: u64,
    /// `None` when nobody asked.
    hit_rate: Option<f64>,
    lookups_per_s: f64,
    received_bytes_per_s: f64,
    sent_bytes_per_s: f64,
    evicted_per_s: f64,
    arena_used_bytes: u64,
}

pub(super) fn answer(sources: &Sources) -> Response<Full<Bytes>> {
    let (code, text) = match serde_json::to_string(&status(sources)) {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    let mut response = reply(code, "application/json", text);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn status(sources: &Sources) -> Status {
    let phase = *sources.phase.borrow();
    let stats = sources.engine.get().map(|engine| engine.stats());
    let stack = sources.stack.get();
    let moved = sources.metrics.moved_bytes();
    let history = sources.history.lock();
    let mut steps = history.steps();
    if let (Some(stats), Some(last)) = (&stats, history.newest()) {
        // Up to this moment, so that a page that was just opened shows what is going on.
        let now = Sample::of(stats, moved);
        steps.extend((now.unix_s > last.unix_s).then(|| Step::between(last, &now)));
    }
    Status {
        version: env!("CARGO_PKG_VERSION"),
        now_unix_s: unix_s(),
        uptime_s: sources.metrics.uptime().as_secs(),
        ready: phase.is_ready(),
        phase: phase.words(),
        arena: stats.as_ref().map(Arena::of),
        clients: stats.as_ref().map(|stats| Clients::of(stats, moved)),
        chunks: stats.as_ref().map(Chunks::of),
        namespaces: stats.iter().flat_map(|stats| &stats.namespaces).map(Namespace::of).collect(),
        domains: stats.iter().flat_map(|stats| &stats.domains).map(Domain::of).collect(),
        tiers: stack.map_or_else(Vec::new, |stack| stack.stats().iter().map(Tier::of).collect()),
        peers: stack.map_or_else(Vec::new, |stack| stack.known_peers().into_iter().map(Peer::of).collect()),
        refusals: stats.as_ref().map_or_else(Vec::new, |stats| refusals(sources, stats, &history)),
        history: steps.iter().map(Point::of).collect(),
        sample_every_s: EVERY.as_secs(),
    }
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Those of the last hour first.
fn refusals(sources: &Sources, stats: &Stats, history: &super::History) -> Vec<Refused> {
    let words = sources.metrics.last_refusals();
    let ago = |at: Instant| unix_s().saturating_sub(Duration::as_secs(&at.elapsed()));
    let one = |&(reason, total): &(tender_proto::Reason, u64)| {
        let (last_hour, seen) = history.refused(reason, total);
        let last = words.get(&reason);
        Refused {
            reason: reason.label(),
            total,
            last_hour,
            last_unix_s: last.map(|last| ago(last.at)).max(seen),
            call: last.map(|last| last.call),
            advice: last.map(|last| last.advice.clone()),
        }
    };
    let mut all: Vec<_> = stats.refusals.iter().map(one).collect();
    all.sort_by_key(|refused| std::cmp::Reverse((refused.last_unix_s, refused.total)));
    all
}

impl Arena {
    fn of(stats: &Stats) -> Self {
        Self {
            bytes: stats.arena_bytes,
            used_bytes: stats.arena_used_bytes,
            largest_free_bytes: stats.arena_largest_free_bytes,
            fragmentation: stats.fragmentation(),
        }
    }
}

impl Clients {
    fn of(stats: &Stats, (received_bytes, sent_bytes): (u64, u64)) -> Self {
        Self {
            sessions: stats.sessions,
            leases: stats.leases,
            pins: stats.pins,
            reservations: stats.reservations,
            inflight_bytes: stats.inflight_bytes,
            staging_bytes: stats.staging_bytes,
            received_bytes,
            sent_bytes,
        }
    }
}

impl Chunks {
    fn of(stats: &Stats) -> Self {
        let sum = |value: fn(&NamespaceStats) -> u64| stats.namespaces.iter().map(value).sum();
        Self {
            ready: sum(|n| n.ready_chunks),
            pending: sum(|n| n.pending_chunks),
            lookups: sum(|n| n.lookups),
            hits: sum(|n| n.hits),
            pendings: sum(|n| n.pendings),
            misses: sum(|n| n.misses.iter().map(|(_, count)| count).sum()),
            evicted: sum(|n| n.evicted_chunks),
            quarantined: stats.quarantined_chunks,
        }
    }
}

impl Namespace {
    fn of(stats: &NamespaceStats) -> Self {
        Self {
            digest: stats.digest.to_string(),
            model: stats.descriptor.model.clone(),
            kv_dtype: stats.descriptor.kv_dtype.clone(),
            domain: stats.descriptor.domain.clone(),
            name: stats.pinned_name.clone(),
            ready_chunks: stats.ready_chunks,
            ready_bytes: stats.ready_bytes,
            pending_chunks: stats.pending_chunks,
            lookups: stats.lookups,
            hits: stats.hits,
            evicted_chunks: stats.evicted_chunks,
        }
    }
}

impl Domain {
    fn of(stats: &DomainStats) -> Self {
        Self {
            name: stats.domain.clone(),
            ready_bytes: stats.ready_bytes,
            inflight_bytes: stats.inflight_bytes,
            quota_bytes: stats.quota_bytes,
            lookups: stats.lookups,
            hits: stats.hits,
        }
    }
}

impl Tier {
    fn of(stats: &TierStats) -> Self {
        Self {
            name: stats.kind.name(),
            asked_chunks: stats.asked_chunks,
            found_chunks: stats.found_chunks,
            fetched_chunks: stats.lane.brought,
            fetched_bytes: stats.lane.brought_bytes,
            failed_fetches: stats.lane.failures.values().sum(),
            under_way: stats.lane.under_way,
            kept_chunks: stats.keeps.kept,
            kept_bytes: stats.keeps.kept_bytes,
            latency_us: u64::try_from(stats.lane.latency.as_micros()).unwrap_or(u64::MAX),
            bytes_per_second: stats.lane.bytes_per_second,
            left_alone: stats.breakers.iter().filter(|(_, open)| *open > 0).map(|(what, _)| *what).collect(),
        }
    }
}

impl Peer {
    fn of(state: PeerState) -> Self {
        let PeerState { address, left_alone, bytes_per_second } = state;
        Self { address, left_alone, bytes_per_second }
    }
}

impl Point {
    fn of(step: &Step) -> Self {
        let each_second = |n: u64| n as f64 / step.seconds as f64;
        Self {
            unix_s: step.unix_s,
            hit_rate: (step.lookups > 0).then(|| step.hits as f64 / step.lookups as f64),
            lookups_per_s: each_second(step.lookups),
            received_bytes_per_s: each_second(step.received_bytes),
            sent_bytes_per_s: each_second(step.sent_bytes),
            evicted_per_s: each_second(step.evicted_chunks),
            arena_used_bytes: step.arena_used_bytes,
        }
    }
}
