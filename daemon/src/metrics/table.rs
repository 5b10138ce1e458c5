//! Every metric that there is: its name, kind, unit, help and labels. What is shown to a scraper and what
//! docs/metrics.md says are both made from this table. A [`Metric`] can be made nowhere else, so nothing is shown that
//! is not declared here.

/// How a metric changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Grows until the daemon ends.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of values by size.
    Histogram,
}

/// What a label stands for and why it has few values.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Label {
    name: &'static str,
    bound: &'static str,
}

/// One metric.
#[derive(Debug)]
pub(super) struct Metric {
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    help: &'static str,
    labels: &'static [&'static Label],
}

/// Metrics that belong together.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct Section {
    /// For people.
    pub(super) title: &'static str,
    /// In the order in which they are shown.
    pub(super) metrics: &'static [&'static Metric],
}

impl Label {
    pub(super) fn name(&self) -> &'static str {
        self.name
    }
    /// What keeps the number of its values small.
    #[cfg(test)]
    pub(super) fn bound(&self) -> &'static str {
        self.bound
    }
}

impl Metric {
    /// Without what the text adds to it.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }
    /// Of its values.
    pub(super) fn unit(&self) -> &'static str {
        self.unit
    }
    pub(super) fn help(&self) -> &'static str {
        self.help
    }
    pub(super) fn labels(&self) -> &'static [&'static Label] {
        self.labels
    }
}

macro_rules! labels {
    ($($id:ident = $name:literal: $bound:literal;)*) => {
        mod label {
            use super::Label;
            $(pub(super) static $id: Label = Label { name: $name, bound: $bound };)*
        }
        /// Every label.
        #[cfg(test)]
        pub(super) static LABELS: &[&Label] = &[$(&label::$id),*];
    };
}

labels! {
    BREAKER = "breaker": "`disk`, `peers`, `directory`, `shared`";
    CALL = "call": "the calls of the protocol, by name";
    DOOR = "door": "`local`, `network`";
    DOMAIN = "domain": "domains that the policy names; none without a policy";
    DTYPE = "kv_dtype": "as in the namespace's descriptor: one for each namespace";
    KIND = "kind": "a closed list in the code";
    MODEL = "model": "as in the namespace's descriptor: one for each namespace";
    NAMESPACE = "namespace": "namespaces that are known, at most `--max-namespaces`; an idle one makes room for a new one, and its series end";
    OUTCOME = "outcome": "a closed list in the code";
    PATH = "path": "`shm`, `grpc`";
    REASON = "reason": "the closed list of reasons of the protocol, or one in the code";
    TENANT = "tenant": "tenants that the policy names, and `-` for callers of none";
    TIER = "tier": "`disk`, `peers`, `shared`";
    VERSION = "version": "one";
    WHAT = "what": "a closed list in the code";
}

macro_rules! metrics {
    ($($title:literal { $($id:ident = $kind:ident $name:literal ($unit:literal) [$($label:ident),*] $help:literal;)* })*) => {
        $($(pub(super) static $id: Metric = Metric {
            name: $name,
            kind: Kind::$kind,
            unit: $unit,
            help: $help,
            labels: &[$(&label::$label),*],
        };)*)*
        /// Every metric.
        #[cfg(test)]
        pub(super) static SECTIONS: &[Section] = &[$(Section { title: $title, metrics: &[$(&$id),*] }),*];
    };
}

metrics! {
    "Daemon" {
        BUILD = Gauge "tender_build_info" ("1") [VERSION] "Always 1; the daemon's version";
        UPTIME = Gauge "tender_uptime_seconds" ("seconds") [] "Since the daemon began to start";
        READY = Gauge "tender_ready" ("1") [] "1 while /ready says yes";
        CALL_SECONDS = Histogram "tender_call_seconds" ("seconds") [CALL] "Time to answer a call";
        RELOADS = Counter "tender_reloads" ("reloads") [WHAT, OUTCOME] "Changed certificates, policies and configurations that were read again";
        FAILED_TLS_HANDSHAKES = Counter "tender_failed_tls_handshakes" ("connections") [] "TLS connections that did not come about: wrong authority, expired, none shown, not TLS";
        CONNECTIONS = Gauge "tender_connections" ("connections") [DOOR] "Connections of clients, those in their opening included";
        REFUSED_CONNECTIONS = Counter "tender_refused_connections" ("connections") [DOOR, REASON] "Connections that were closed and not served, by reason";
        REFUSALS = Counter "tender_refusals" ("refusals") [REASON] "Calls and items refused, by reason";
        ACCESS_REFUSALS = Counter "tender_access_refusals" ("refusals") [TENANT, REASON] "What the policy refused, by tenant and reason; - for callers of no tenant";
        CERTIFICATE_EXPIRES = Gauge "tender_certificate_expires_seconds" ("seconds") [WHAT] "When the certificate in force ends, since 1970: the daemon's own (server), the first of the clients' authorities (client_ca)";
        WATCHERS = Gauge "tender_watchers" ("watchers") [] "Routers that follow the changes";
        WATCH_BATCHES = Counter "tender_watch_batches" ("batches") [] "Batches of changes that were made for them";
        LOST_WATCHES = Counter "tender_lost_watches" ("watches") [] "Times that one was too slow for the changes and had to begin anew";
        SPANS = Counter "tender_spans" ("spans") [OUTCOME] "Spans of traces by what became of them: exported, failed (no collector took them), dropped (too many at once)";
    }
    "Bytes of clients" {
        RECEIVED_BYTES = Counter "tender_received_bytes" ("bytes") [PATH] "Payload of stored parts by the way it came";
        SENT_BYTES = Counter "tender_sent_bytes" ("bytes") [PATH] "Payload for readers: sent over the network, or told where it lies in shared memory";
    }
    "Arena, sessions and leases" {
        ARENA_BYTES = Gauge "tender_arena_bytes" ("bytes") [] "Shared memory that chunks can use";
        ARENA_USED_BYTES = Gauge "tender_arena_used_bytes" ("bytes") [] "Shared memory in use, rounding included";
        ARENA_LARGEST_FREE_BYTES = Gauge "tender_arena_largest_free_bytes" ("bytes") [] "A part of this size fits without eviction";
        ARENA_FRAGMENTATION = Gauge "tender_arena_fragmentation_ratio" ("ratio") [] "Of the free bytes, the share outside the largest piece; 0 when nothing is free";
        SESSIONS = Gauge "tender_sessions" ("sessions") [] "Connected clients";
        LEASES = Gauge "tender_leases" ("leases") [] "Live leases";
        PINS = Gauge "tender_pins" ("pins") [] "Chunks held by leases, once for each lease";
        RESERVATIONS = Gauge "tender_reservations" ("parts") [] "Parts that clients may write now";
        INFLIGHT_BYTES = Gauge "tender_inflight_bytes" ("bytes") [] "Bytes of unfinished chunks";
        STAGING_BYTES = Gauge "tender_staging_bytes" ("bytes") [] "Staging memory of local clients";
        EXPIRED_LEASES = Counter "tender_expired_leases" ("leases") [] "Leases that ended because their time was up";
        EXPIRED_RESERVATIONS = Counter "tender_expired_reservations" ("parts") [] "Parts that were not written in time";
        EVICTION_AGE_SECONDS = Histogram "tender_eviction_age_seconds" ("seconds") [] "Time since the last use of a chunk when it made room for others; an old one is known to a part of its age";
        SCRUBBED_BYTES = Counter "tender_scrubbed_bytes" ("bytes") [] "Stored bytes that were verified again";
        QUARANTINED_CHUNKS = Counter "tender_quarantined_chunks" ("chunks") [] "Chunks whose bytes had changed in memory and that were taken out";
    }
    "Namespaces" {
        NAMESPACE_INFO = Gauge "tender_namespace_info" ("1") [NAMESPACE, MODEL, DTYPE, DOMAIN] "Always 1; what a namespace's digest stands for, to join with";
        READY_CHUNKS = Gauge "tender_ready_chunks" ("chunks") [NAMESPACE] "Chunks that lookups find";
        READY_BYTES = Gauge "tender_ready_bytes" ("bytes") [NAMESPACE] "Bytes of those chunks";
        PENDING_CHUNKS = Gauge "tender_pending_chunks" ("chunks") [NAMESPACE] "Chunks being stored";
        LOOKUPS = Counter "tender_lookups" ("chunks") [NAMESPACE] "Keys asked for; hits, pendings and misses add up to it";
        HITS = Counter "tender_hits" ("chunks") [NAMESPACE] "Keys found ready";
        PENDINGS = Counter "tender_pendings" ("chunks") [NAMESPACE] "Keys found being stored, or on their way from a tier";
        MISSES = Counter "tender_misses" ("chunks") [NAMESPACE, REASON] "Keys not found, by the reason that the lookup gave";
        STORED_BYTES = Counter "tender_stored_bytes" ("bytes") [NAMESPACE] "Bytes of parts that became ready";
        EVICTIONS = Counter "tender_evictions" ("chunks") [NAMESPACE] "Chunks that made room for others";
    }
    "Domains of tenants" {
        DOMAIN_READY_BYTES = Gauge "tender_domain_ready_bytes" ("bytes") [DOMAIN] "Bytes of chunks that lookups find";
        DOMAIN_READY_CHUNKS = Gauge "tender_domain_ready_chunks" ("chunks") [DOMAIN] "Those chunks";
        DOMAIN_INFLIGHT_BYTES = Gauge "tender_domain_inflight_bytes" ("bytes") [DOMAIN] "Bytes of unfinished chunks";
        DOMAIN_QUOTA_BYTES = Gauge "tender_domain_quota_bytes" ("bytes") [DOMAIN] "What the policy lets it hold, where it says";
        DOMAIN_QUOTA_CHUNKS = Gauge "tender_domain_quota_chunks" ("chunks") [DOMAIN] "The same in chunks";
        DOMAIN_LOOKUPS = Counter "tender_domain_lookups" ("chunks") [DOMAIN] "Keys asked for in its namespaces that are known";
        DOMAIN_HITS = Counter "tender_domain_hits" ("chunks") [DOMAIN] "Keys found ready";
        DOMAIN_STORED_BYTES = Counter "tender_domain_stored_bytes" ("bytes") [DOMAIN] "Bytes of parts that became ready";
        DOMAIN_EVICTIONS = Counter "tender_domain_evictions" ("chunks") [DOMAIN] "Chunks that made room for others";
    }
    "Tiers below the arena" {
        TIER_ASKED_CHUNKS = Counter "tender_tier_asked_chunks" ("chunks") [TIER] "Chunks a tier was asked for";
        TIER_FOUND_CHUNKS = Counter "tender_tier_found_chunks" ("chunks") [TIER] "Those of them that it had";
        TIER_LATE_FINDS = Counter "tender_tier_late_finds" ("calls") [TIER] "Questions not answered in a lookup's time";
        TIER_FETCHES = Counter "tender_tier_fetches" ("chunks") [TIER] "Fetches begun";
        TIER_FETCHED_CHUNKS = Counter "tender_tier_fetched_chunks" ("chunks") [TIER] "Chunks brought";
        TIER_FETCHED_BYTES = Counter "tender_tier_fetched_bytes" ("bytes") [TIER] "Bytes brought: from the tier into the arena";
        TIER_FETCH_SECONDS = Histogram "tender_tier_fetch_seconds" ("seconds") [TIER] "From when a chunk was asked of a tier until it was ready, its time in the queue included";
        TIER_THROTTLED_FETCHES = Counter "tender_tier_throttled_fetches" ("chunks") [TIER] "Fetches not begun for want of room";
        TIER_FAILED_FETCHES = Counter "tender_tier_failed_fetches" ("chunks") [TIER, REASON] "Fetches that failed, by reason";
        TIER_INFLIGHT_FETCHES = Gauge "tender_tier_inflight_fetches" ("chunks") [TIER] "Fetches under way";
        TIER_INFLIGHT_BYTES = Gauge "tender_tier_inflight_bytes" ("bytes") [TIER] "Bytes of fetches under way";
        TIER_LATENCY_US = Gauge "tender_tier_latency_us" ("microseconds") [TIER] "Measured: a fetch's time beyond its bytes' share";
        TIER_BYTES_PER_SECOND = Gauge "tender_tier_bytes_per_second" ("bytes per second") [TIER] "Measured: what a tier brings in all";
        TIER_GIVEN_CHUNKS = Counter "tender_tier_given_chunks" ("chunks") [TIER, OUTCOME] "Chunks given to a tier by outcome; dropped: news of chunks that found its queue full";
        TIER_KEPT_BYTES = Counter "tender_tier_kept_bytes" ("bytes") [TIER] "Bytes of chunks that a tier kept: from the arena into the tier";
        OPEN_BREAKERS = Gauge "tender_open_breakers" ("1") [BREAKER] "What is left alone now because it failed: 0 or 1, and for peers how many of them";
    }
    "Directory and peers" {
        DIRECTORY_CALLS = Counter "tender_directory_calls" ("calls") [OUTCOME] "Questions to the directory of who holds what, by whether it answered in time";
        DIRECTORY_ENTRIES = Counter "tender_directory_entries" ("chunks") [WHAT] "Chunks that the directory was told of; dropped ones are told again with the next round";
        PEER_FETCHES = Counter "tender_peer_fetches" ("chunks") [OUTCOME] "Chunks asked of other daemons, by what came of it";
        PEER_FETCHED_BYTES = Counter "tender_peer_fetched_bytes" ("bytes") [] "Bytes of the chunks that were fetched";
        PEER_SERVED_CHUNKS = Counter "tender_peer_served_chunks" ("chunks") [] "Chunks that other daemons were sent";
        PEER_OFFERS = Counter "tender_peer_offers" ("chunks") [WHAT] "Chunks offered to other daemons while ending, and chunks taken from others' offers";
    }
    "Disk tier" {
        DISK_BYTES = Gauge "tender_disk_bytes" ("bytes") [] "Bytes of the disk tier's segments";
        DISK_USED_SEGMENTS = Gauge "tender_disk_used_segments" ("segments") [] "Segments that hold records";
        DISK_RECORDS = Gauge "tender_disk_records" ("chunks") [] "Chunks that can be found on disk";
        DISK_UNRECOVERED_SEGMENTS = Gauge "tender_disk_unrecovered_segments" ("segments") [] "Segments that the recovery after the start has still to look at";
        DISK_SICK = Gauge "tender_disk_sick" ("1") [] "1 while the disk is left alone because it fails or hangs";
        DISK_DIRECT = Gauge "tender_disk_direct" ("1") [] "1 where files bypass the page cache";
        DISK_KEEPS = Counter "tender_disk_keeps" ("chunks") [OUTCOME] "Chunks offered to the disk, by outcome";
        DISK_MOVED_BYTES = Counter "tender_disk_moved_bytes" ("bytes") [WHAT] "Bytes written to and read from the disk";
        DISK_ERRORS = Counter "tender_disk_errors" ("errors") [WHAT] "Writes and reads that failed";
        DISK_DROPPED_RECORDS = Counter "tender_disk_dropped_records" ("chunks") [REASON] "Records that were taken out, by reason";
        DISK_FETCHES = Counter "tender_disk_fetches" ("chunks") [] "Chunks that came from the disk and were verified";
        DISK_RECOVERED_RECORDS = Counter "tender_disk_recovered_records" ("chunks") [] "Records found again after the start";
        DISK_RECLAIMED_SEGMENTS = Counter "tender_disk_reclaimed_segments" ("segments") [] "Segments emptied to be filled again";
        DISK_REWRITTEN_RECORDS = Counter "tender_disk_rewritten_records" ("chunks") [] "Records kept once more because they were read";
        DISK_RESETS = Counter "tender_disk_resets" ("namespaces") [] "Namespaces forgotten";
    }
    "Shared store" {
        SHARED_LOOKUPS = Counter "tender_shared_lookups" ("chunks") [OUTCOME] "Chunks looked for in the shared store, by outcome";
        SHARED_TROUBLES = Counter "tender_shared_troubles" ("calls") [KIND] "Calls to the shared store that were not made because it is left alone, failed, or were not over in time";
        SHARED_KEEPS = Counter "tender_shared_keeps" ("chunks") [OUTCOME] "Chunks offered to the shared store, by outcome";
        SHARED_DAMAGED = Counter "tender_shared_damaged" ("objects") [KIND] "Objects that were not what their name says";
        SHARED_FETCHES = Counter "tender_shared_fetches" ("chunks") [] "Chunks that came from the shared store and were verified";
        SHARED_FETCHED_BYTES = Counter "tender_shared_fetched_bytes" ("bytes") [] "Bytes of those objects";
        SHARED_KEPT_BYTES = Counter "tender_shared_kept_bytes" ("bytes") [] "Bytes of objects written";
        SHARED_GONE = Counter "tender_shared_gone" ("objects") [] "Objects that were gone when they were fetched";
    }
}
