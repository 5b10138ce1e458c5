//! Settings to a configuration that works, alone and with each other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use tender_proto::limits::{MAX_BATCH_CHUNKS, MAX_PART_BYTES};

use super::flags::Settings;
use super::flags::shared::SharedSettings;
use super::flags::tls::TlsSettings;
use super::values::{Listen, Span};
use super::{ConfigError, PeersConfig, StackConfig, TlsConfig, defaults};
use crate::engine::{ArenaConfig, EngineConfig};
use crate::tier::shared::{BadUri, SharedConfig, SharedUri};
use crate::tls::ClientAuth;

pub(super) fn stack(settings: &Settings) -> Result<StackConfig, ConfigError> {
    let tiers = &settings.tiers;
    let time = |flag, time: Option<Span>, default: Span| match time.unwrap_or(default) {
        Span(zero) if zero.is_zero() => Err(unusable(flag, Span(zero), "must be more than 0")),
        Span(time) => Ok(time),
    };
    let fetch_bytes = tiers.fetch_bytes.unwrap_or(defaults::TIER_FETCH_BYTES).as_u64();
    if fetch_bytes == 0 {
        return Err(unusable("tier-fetch-bytes", ByteSize(fetch_bytes), "must be more than 0"));
    }
    Ok(StackConfig {
        lookup_time: time("tier-lookup-time", tiers.lookup_time, defaults::TIER_LOOKUP_TIME)?,
        fetch_time: time("tier-fetch-time", tiers.fetch_time, defaults::TIER_FETCH_TIME)?,
        fetches: at_least_one("tier-fetches", tiers.fetches.unwrap_or(defaults::TIER_FETCHES))?,
        fetch_bytes,
        write_bytes_per_second: tiers.write_rate.unwrap_or(defaults::TIER_WRITE_RATE).as_u64(),
        shared_min_hits: tiers.shared_min_hits.unwrap_or(defaults::SHARED_MIN_HITS),
    })
}

pub(super) fn peers(settings: &Settings) -> Result<Option<PeersConfig>, ConfigError> {
    let (directory, peers) = (&settings.directory, &settings.peers);
    let advertise = peers.advertise.as_ref().map(advertised).transpose()?;
    let Some(uri) = directory.uri.clone() else {
        return match advertise {
            Some(address) => Err(unusable("advertise", address, "nobody reads it without --directory")),
            None => Ok(None),
        };
    };
    let prefix = directory.prefix.clone().unwrap_or_else(|| defaults::DIRECTORY_PREFIX.into());
    if prefix.is_empty()
        || prefix.len() > 64
        || !prefix.bytes().all(|b| b.is_ascii_graphic() && !b"{}".contains(&b))
    {
        let advice = "use 1 to 64 printable characters without spaces and braces";
        return Err(unusable("directory-prefix", prefix.escape_debug(), advice));
    }
    let ttl = directory.ttl.unwrap_or(defaults::DIRECTORY_TTL);
    if ttl.0 < Duration::from_secs(3) || ttl.0.subsec_nanos() != 0 {
        return Err(unusable("directory-ttl", ttl, "use whole seconds, at least 3s"));
    }
    let timeout = directory.timeout.unwrap_or(defaults::DIRECTORY_TIMEOUT);
    if timeout.0.is_zero() {
        return Err(unusable("directory-timeout", timeout, "must be more than 0"));
    }
    let rate = directory.publish_rate.unwrap_or(defaults::DIRECTORY_PUBLISH_RATE);
    let config = PeersConfig {
        directory: uri,
        prefix,
        ttl: ttl.0,
        timeout: timeout.0,
        advertise,
        entries_per_second: at_least_one("directory-publish-rate", rate)?,
    };
    let reachable = |listen: &Listen| matches!(listen, Listen::Tcp(at) | Listen::Tls(at) if at.is_one_host());
    if config.advertise.is_none() && !settings.listen.iter().flatten().any(reachable) {
        let advice = "other daemons must reach this one: listen at tls://HOST:PORT of this host, or give --advertise \
                      tls://HOST:PORT";
        return Err(unusable("directory", config.directory, advice));
    }
    Ok(Some(config))
}

fn advertised(address: &Listen) -> Result<Listen, ConfigError> {
    match address {
        Listen::Tcp(at) | Listen::Tls(at) if at.is_one_host() && at.port() != 0 => Ok(address.clone()),
        _ => Err(unusable("advertise", address, "give tls://HOST:PORT as other hosts connect to this one")),
    }
}

pub(super) fn engine(settings: &Settings, name: &str) -> Result<EngineConfig, ConfigError> {
    let (arena, lease, limits) = (&settings.arena, &settings.lease, &settings.limits);
    let bytes = arena.size.unwrap_or(defaults::ARENA_SIZE).as_u64();
    let inflight = limits.max_inflight.map_or(bytes / defaults::INFLIGHT_SHARE, |size| size.as_u64());
    let session_share = inflight / defaults::SESSION_INFLIGHT_SHARE;
    let config = EngineConfig {
        arena: ArenaConfig {
            place: arena.path.clone().unwrap_or_else(|| default_arena_path(name)),
            bytes,
            prefault: arena.prefault.unwrap_or(defaults::ARENA_PREFAULT),
            keep: arena.keep.unwrap_or(settings.exit_when_unused.is_none()),
            discard: arena.discard.unwrap_or(defaults::ARENA_DISCARD),
        },
        default_lease: lease.default.unwrap_or(defaults::LEASE_DEFAULT).0,
        max_lease: lease.max.unwrap_or(defaults::LEASE_MAX).0,
        reservation: limits.reservation_time.unwrap_or(defaults::RESERVATION_TIME).0,
        max_inflight_bytes: inflight,
        max_session_inflight_bytes: limits.max_session_inflight.map_or(session_share, |size| size.as_u64()),
        max_sessions: at_least_one("max-sessions", limits.max_sessions.unwrap_or(defaults::MAX_SESSIONS))?,
        max_leases_per_session: at_least_one(
            "max-leases-per-session",
            limits.max_leases_per_session.unwrap_or(defaults::MAX_LEASES_PER_SESSION),
        )?,
        max_part_bytes: limits.max_part.unwrap_or(defaults::MAX_PART).as_u64(),
        max_staging_bytes: limits.max_staging.unwrap_or(defaults::MAX_STAGING).as_u64(),
        max_total_staging_bytes: limits.max_total_staging.unwrap_or(defaults::MAX_TOTAL_STAGING).as_u64(),
        max_batch_chunks: at_least_one(
            "max-batch-chunks",
            limits.max_batch_chunks.unwrap_or(MAX_BATCH_CHUNKS),
        )?,
        max_namespaces: at_least_one(
            "max-namespaces",
            limits.max_namespaces.unwrap_or(defaults::MAX_NAMESPACES),
        )?,
        history_bytes: limits.history.unwrap_or(defaults::HISTORY).as_u64(),
        eviction: arena.eviction.unwrap_or(defaults::EVICTION),
    };
    fits_together(&config)?;
    Ok(config)
}

pub(super) fn shared(settings: &SharedSettings) -> Result<Option<SharedConfig>, ConfigError> {
    let max_requests =
        at_least_one("shared-max-requests", settings.max_requests.unwrap_or(defaults::SHARED_MAX_REQUESTS))?;
    let max_uploads =
        at_least_one("shared-max-uploads", settings.max_uploads.unwrap_or(defaults::SHARED_MAX_UPLOADS))?;
    let Some(uri) = &settings.uri else { return Ok(None) };
    let uri = uri.parse::<SharedUri>().map_err(|BadUri(why)| unusable("shared-uri", "as given", why))?;
    let missing = uri.folder().filter(|folder| !folder.is_dir());
    if missing.is_some() {
        return Err(unusable("shared-uri", &uri, "there is no such folder; mount or make it first"));
    }
    if let Some(file) = settings.credentials.as_deref().filter(|file| !file.is_file()) {
        return Err(unusable("shared-credentials", file.display(), "there is no such file"));
    }
    Ok(Some(SharedConfig { uri, credentials: settings.credentials.clone(), max_requests, max_uploads }))
}

fn fits_together(config: &EngineConfig) -> Result<(), ConfigError> {
    let span = |time: Duration| Span(time);
    if !config.arena.place.is_absolute() {
        return Err(unusable("arena-path", config.arena.place.display(), "give an absolute path"));
    }
    if config.default_lease.is_zero() || config.default_lease > config.max_lease {
        let advice =
            format!("must be more than 0 and at most --lease-max, which is {}", span(config.max_lease));
        return Err(unusable("lease-default", span(config.default_lease), advice));
    }
    if config.reservation.is_zero() {
        return Err(unusable("reservation-time", span(config.reservation), "must be more than 0"));
    }
    for (flag, bytes, most) in [
        ("max-inflight", config.max_inflight_bytes, u64::MAX),
        ("max-session-inflight", config.max_session_inflight_bytes, config.max_inflight_bytes),
        ("max-part", config.max_part_bytes, MAX_PART_BYTES),
        ("max-staging", config.max_staging_bytes, config.max_total_staging_bytes),
    ] {
        if bytes == 0 || bytes > most {
            return Err(unusable(
                flag,
                ByteSize(bytes),
                format!("must be more than 0 and at most {}", ByteSize(most)),
            ));
        }
    }
    if config.max_batch_chunks > MAX_BATCH_CHUNKS {
        return Err(unusable(
            "max-batch-chunks",
            config.max_batch_chunks,
            format!("must be at most {MAX_BATCH_CHUNKS}"),
        ));
    }
    Ok(())
}

pub(super) fn listen_on(
    listen: Option<Vec<Listen>>,
    allow_plaintext_tcp: Option<bool>,
    tls: &TlsSettings,
) -> Result<Vec<Listen>, ConfigError> {
    let listen = match listen {
        Some(listen) => listen,
        None => vec![Listen::Unix(defaults::LISTEN.trim_start_matches("unix:").into())],
    };
    if listen.is_empty() {
        return Err(unusable("listen", "[]", "name at least one address"));
    }
    for (i, address) in listen.iter().enumerate() {
        if listen[..i].contains(address) && !address.to_string().ends_with(":0") {
            return Err(unusable("listen", address, "is named twice"));
        }
        if let (Listen::Tcp(_), false) =
            (address, allow_plaintext_tcp.unwrap_or(defaults::ALLOW_PLAINTEXT_TCP))
        {
            let advice = "it is not encrypted, and nobody can tell its callers apart: use tls:// with --tls-cert and \
                          --tls-key, or say --allow-plaintext-tcp where the network is trusted";
            return Err(unusable("listen", address, advice));
        }
        if let (Listen::Tls(_), None) = (address, &tls.cert) {
            return Err(unusable("listen", address, "give --tls-cert and --tls-key"));
        }
        if let Listen::Unix(path) = address {
            // sun_path holds 107 bytes, and the descriptor socket's name is 3 longer.
            if !path.is_absolute() || path.as_os_str().len() > 104 {
                return Err(unusable("listen", address, "give an absolute path of at most 104 bytes"));
            }
        }
    }
    Ok(listen)
}

pub(super) fn tls(settings: TlsSettings) -> Result<Option<TlsConfig>, ConfigError> {
    let shown = |path: &Option<PathBuf>| path.as_deref().unwrap_or(Path::new("")).display().to_string();
    let client_auth = settings.client_auth.unwrap_or(defaults::CLIENT_AUTH);
    let TlsSettings { cert, key, client_ca, .. } = settings;
    match (cert, key) {
        (Some(cert), Some(key)) => {
            if client_ca.is_none() && client_auth != ClientAuth::None {
                let advice =
                    "clients must show a certificate: give --tls-client-ca, or say --tls-client-auth none";
                return Err(unusable("tls-cert", cert.display(), advice));
            }
            Ok(Some(TlsConfig { cert, key, client_ca, client_auth }))
        }
        (cert @ Some(_), None) => Err(unusable("tls-cert", shown(&cert), "give --tls-key too")),
        (None, key @ Some(_)) => Err(unusable("tls-key", shown(&key), "give --tls-cert too")),
        (None, None) if client_ca.is_some() => {
            Err(unusable("tls-client-ca", shown(&client_ca), "give --tls-cert and --tls-key too"))
        }
        (None, None) => Ok(None),
    }
}

pub(super) fn default_arena_path(name: &str) -> PathBuf {
    format!("/dev/shm/tender-{name}.arena").into()
}

/// More than there are processors, so that a lookup finds a thread while those are busy with others' bytes. Which of them
/// runs is the system's to decide, and it lets nobody wait for the end of somebody's work.
const MORE_THREADS_THAN_CPUS: usize = 2;

pub(super) fn worker_threads_of_host() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) + MORE_THREADS_THAN_CPUS
}

pub(super) fn at_least_one(flag: &'static str, n: usize) -> Result<usize, ConfigError> {
    if n == 0 { Err(unusable(flag, n, "must be at least 1")) } else { Ok(n) }
}

pub(super) fn unusable(flag: &'static str, value: impl ToString, advice: impl Into<String>) -> ConfigError {
    ConfigError::Unusable { flag, value: value.to_string(), advice: advice.into() }
}
