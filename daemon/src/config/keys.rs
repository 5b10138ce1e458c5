//! Every setting by its key in the file, and which of them may change while the daemon runs.

/// When a change of a key in the file is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// With SIGHUP.
    Reload,
    /// With the next start.
    Restart,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    /// Of the flag, as clap knows it.
    #[cfg_attr(not(test), expect(dead_code, reason = "the docs and their test need it"))]
    pub(super) id: &'static str,
    /// In the file, `table.key`.
    pub(super) name: &'static str,
    pub(super) takes: Use,
}

macro_rules! keys {
    ($($id:literal = $name:literal $takes:ident;)*) => {
        pub(super) static KEYS: &[Key] = &[$(Key { id: $id, name: $name, takes: Use::$takes }),*];
    };
}

keys! {
    "name" = "name" Restart;
    "listen" = "listen" Restart;
    "allow_plaintext_tcp" = "allow_plaintext_tcp" Restart;
    "policy" = "policy" Restart;
    "socket_mode" = "socket_mode" Restart;
    "admin" = "admin" Restart;
    "drain_grace" = "drain_grace" Restart;
    "exit_when_unused" = "exit_when_unused" Restart;
    "take_over" = "take_over" Restart;
    "worker_threads" = "worker_threads" Restart;
    "tls-cert" = "tls.cert" Restart;
    "tls-key" = "tls.key" Restart;
    "tls-client-ca" = "tls.client_ca" Restart;
    "tls-client-auth" = "tls.client_auth" Restart;
    "arena-size" = "arena.size" Restart;
    "arena-path" = "arena.path" Restart;
    "arena-prefault" = "arena.prefault" Restart;
    "arena-keep" = "arena.keep" Restart;
    "arena-scrub-rate" = "arena.scrub_rate" Restart;
    "eviction" = "arena.eviction" Restart;
    "discard-arena" = "arena.discard" Restart;
    "lease-default" = "lease.default" Reload;
    "lease-max" = "lease.max" Reload;
    "reservation_time" = "limits.reservation_time" Reload;
    "max_inflight" = "limits.max_inflight" Reload;
    "max_session_inflight" = "limits.max_session_inflight" Reload;
    "max_sessions" = "limits.max_sessions" Reload;
    "max_leases_per_session" = "limits.max_leases_per_session" Reload;
    "max_part" = "limits.max_part" Restart;
    "max_staging" = "limits.max_staging" Reload;
    "max_total_staging" = "limits.max_total_staging" Reload;
    "max_batch_chunks" = "limits.max_batch_chunks" Restart;
    "max_namespaces" = "limits.max_namespaces" Reload;
    "history" = "limits.history" Restart;
    "max_frame" = "limits.max_frame" Restart;
    "max_calls_per_connection" = "limits.max_calls_per_connection" Restart;
    "max_connections" = "limits.max_connections" Restart;
    "max_connections_per_peer" = "limits.max_connections_per_peer" Restart;
    "tier-lookup-time" = "tiers.lookup_time" Restart;
    "tier-fetch-time" = "tiers.fetch_time" Restart;
    "tier-fetches" = "tiers.fetches" Restart;
    "tier-fetch-bytes" = "tiers.fetch_bytes" Restart;
    "tier-write-rate" = "tiers.write_rate" Restart;
    "shared-min-hits" = "tiers.shared_min_hits" Restart;
    "disk-path" = "disk.path" Restart;
    "disk-size" = "disk.size" Restart;
    "disk-segment-size" = "disk.segment_size" Restart;
    "disk-write-rate" = "disk.write_rate" Restart;
    "disk-reads" = "disk.reads" Restart;
    "discard-disk" = "disk.discard" Restart;
    "directory-uri" = "directory.uri" Restart;
    "directory-prefix" = "directory.prefix" Restart;
    "directory-ttl" = "directory.ttl" Restart;
    "directory-timeout" = "directory.timeout" Restart;
    "directory-publish-rate" = "directory.publish_rate" Restart;
    "advertise" = "peers.advertise" Restart;
    "shared-uri" = "shared.uri" Restart;
    "shared-credentials" = "shared.credentials" Restart;
    "shared-max-requests" = "shared.max_requests" Restart;
    "shared-max-uploads" = "shared.max_uploads" Restart;
    "log-format" = "log.format" Restart;
    "log-level" = "log.level" Reload;
    "trace-endpoint" = "trace.endpoint" Restart;
    "trace-ratio" = "trace.ratio" Restart;
}

/// Whether a change of this key can be used without a restart.
pub(super) fn is_reloadable(name: &str) -> bool {
    KEYS.iter().any(|key| key.name == name && key.takes == Use::Reload)
}
