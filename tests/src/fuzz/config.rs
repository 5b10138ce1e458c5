//! Configurations: the daemon's as a file and as flags, the client's as it comes from an engine.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;

use arbitrary::{Arbitrary, Unstructured};
use tender_client::ClientConfig;
use tender_daemon::config::{Config, Listen};
use tender_proto::limits::{FRAME_PAYLOAD_BYTES, MAX_BATCH_CHUNKS, MAX_PART_BYTES};

/// A setting: its table in the file, its key there, its flag, and whether the file wants it without quotes.
type Setting = (&'static str, &'static str, &'static str, bool);

const SETTINGS: &[Setting] = &[
    ("", "name", "name", false),
    ("", "listen", "listen", false),
    ("", "allow_plaintext_tcp", "allow-plaintext-tcp", true),
    ("", "policy", "policy", false),
    ("", "socket_mode", "socket-mode", false),
    ("", "admin", "admin", false),
    ("", "drain_grace", "drain-grace", false),
    ("", "exit_when_unused", "exit-when-unused", false),
    ("", "worker_threads", "worker-threads", true),
    ("tls", "cert", "tls-cert", false),
    ("tls", "key", "tls-key", false),
    ("tls", "client_ca", "tls-client-ca", false),
    ("tls", "client_auth", "tls-client-auth", false),
    ("arena", "size", "arena-size", false),
    ("arena", "path", "arena-path", false),
    ("arena", "prefault", "arena-prefault", true),
    ("arena", "keep", "arena-keep", true),
    ("arena", "scrub_rate", "arena-scrub-rate", false),
    ("arena", "discard", "discard-arena", true),
    ("disk", "path", "disk-path", false),
    ("disk", "size", "disk-size", false),
    ("disk", "segment_size", "disk-segment-size", false),
    ("disk", "write_rate", "disk-write-rate", false),
    ("disk", "reads", "disk-reads", true),
    ("disk", "discard", "discard-disk", true),
    ("lease", "default", "lease-default", false),
    ("lease", "max", "lease-max", false),
    ("limits", "reservation_time", "reservation-time", false),
    ("limits", "max_inflight", "max-inflight", false),
    ("limits", "max_session_inflight", "max-session-inflight", false),
    ("limits", "max_sessions", "max-sessions", true),
    ("limits", "max_leases_per_session", "max-leases-per-session", true),
    ("limits", "max_part", "max-part", false),
    ("limits", "max_staging", "max-staging", false),
    ("limits", "max_total_staging", "max-total-staging", false),
    ("limits", "max_batch_chunks", "max-batch-chunks", true),
    ("limits", "max_namespaces", "max-namespaces", true),
    ("limits", "history", "history", false),
    ("limits", "max_frame", "max-frame", false),
    ("limits", "max_calls_per_connection", "max-calls-per-connection", true),
    ("limits", "max_connections", "max-connections", true),
    ("limits", "max_connections_per_peer", "max-connections-per-peer", true),
    ("tiers", "lookup_time", "tier-lookup-time", false),
    ("tiers", "fetch_time", "tier-fetch-time", false),
    ("tiers", "fetches", "tier-fetches", true),
    ("tiers", "fetch_bytes", "tier-fetch-bytes", false),
    ("tiers", "write_rate", "tier-write-rate", false),
    ("tiers", "shared_min_hits", "shared-min-hits", true),
    ("log", "format", "log-format", false),
    ("log", "level", "log-level", false),
];

/// Values that mean something somewhere.
const VALUES: &[&str] = &[
    "1GiB",
    "64MiB",
    "0",
    "1",
    "2",
    "65536",
    "4GiB",
    "30s",
    "500ms",
    "0s",
    "2m",
    "true",
    "false",
    "json",
    "text",
    "debug",
    "0600",
    "unix:/run/t.sock",
    "tcp://127.0.0.1:0",
    "tls://127.0.0.1:0",
    "optional",
    "none",
    "127.0.0.1:1",
    "/dev/shm/a",
    "18446744073709551615",
    "16EiB",
    "1B",
    "256KiB",
    "584942417355years",
];

#[derive(Arbitrary, Debug)]
enum Draft<'a> {
    Toml(&'a str),
    Flags(Vec<(u8, Value<'a>)>),
    Same(Vec<(u8, Value<'a>)>),
    Client(&'a str),
    ClientField { key: u8, value: Value<'a>, quoted: bool },
}

#[derive(Arbitrary, Debug)]
enum Value<'a> {
    Known(u8),
    Given(&'a str),
}

impl<'a> Value<'a> {
    fn text(&self) -> &'a str {
        match *self {
            Self::Known(n) => VALUES[usize::from(n) % VALUES.len()],
            Self::Given(text) => text,
        }
    }
}

/// Whatever is written becomes a configuration that works, or an error that can be shown.
pub fn run(data: &[u8]) {
    let Ok(draft) = Draft::arbitrary_take_rest(Unstructured::new(data)) else { return };
    match draft {
        Draft::Toml(text) => _ = daemon(Config::from_toml(Path::new("tenderd.toml"), text)),
        Draft::Flags(settings) => _ = daemon(Config::load(flags(&settings))),
        Draft::Same(mut settings) => {
            settings.sort_by_key(|(n, _)| setting(*n));
            settings.dedup_by_key(|(n, _)| setting(*n));
            let file = daemon(Config::from_toml(Path::new("tenderd.toml"), &toml(&settings)));
            let typed = daemon(Config::load(flags(&settings)));
            if let (Some(file), Some(typed)) = (file, typed) {
                assert_eq!(file, typed, "a setting means the same in a file and as a flag");
            }
        }
        Draft::Client(text) => client(text),
        Draft::ClientField { key, value, quoted } => client_field(key, value.text(), quoted),
    }
}

fn setting(n: u8) -> &'static Setting {
    &SETTINGS[usize::from(n) % SETTINGS.len()]
}

/// Values with a comma would be two addresses as a flag, and one in a file.
fn flags(settings: &[(u8, Value<'_>)]) -> Vec<OsString> {
    let flag = |(n, value): &(u8, Value<'_>)| {
        format!("--{}={}", setting(*n).2, value.text().replace(',', "")).into()
    };
    std::iter::once("tenderd".into()).chain(settings.iter().map(flag)).collect()
}

/// Tables in the order of the settings, so that each comes once.
fn toml(settings: &[(u8, Value<'_>)]) -> String {
    let (mut text, mut table) = (String::new(), "");
    let mut ordered: Vec<_> = settings.iter().map(|(n, value)| (*setting(*n), value.text())).collect();
    ordered.sort_by_key(|((of, ..), _)| *of);
    for ((of, key, _, bare), value) in ordered {
        if of != table {
            table = of;
            _ = writeln!(text, "[{of}]");
        }
        let value = value.replace(',', "");
        _ = match (key, bare) {
            (_, true) => writeln!(text, "{key} = {value}"),
            ("listen", _) => writeln!(text, "{key} = [{value:?}]"),
            _ => writeln!(text, "{key} = {value:?}"),
        };
    }
    text
}

/// What every other module takes for granted.
fn daemon(config: Result<Config, tender_daemon::config::ConfigError>) -> Option<Config> {
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    let engine = &config.engine;
    assert!(!config.listen.is_empty() && config.worker_threads > 0 && config.max_calls_per_connection > 0);
    assert!((1..=FRAME_PAYLOAD_BYTES).contains(&config.max_frame_bytes));
    assert!(config.socket_mode <= 0o777);
    let encrypted = config.listen.iter().any(|place| matches!(place, Listen::Tls(_)));
    assert!(!encrypted || config.tls.is_some());
    assert!(engine.arena.place.is_absolute());
    assert!(!engine.default_lease.is_zero() && engine.default_lease <= engine.max_lease);
    assert!(!engine.reservation.is_zero());
    assert!((1..=MAX_PART_BYTES).contains(&engine.max_part_bytes));
    assert!((1..=engine.max_inflight_bytes).contains(&engine.max_session_inflight_bytes));
    assert!((1..=engine.max_total_staging_bytes).contains(&engine.max_staging_bytes));
    assert!((1..=MAX_BATCH_CHUNKS).contains(&engine.max_batch_chunks));
    assert!(engine.max_sessions > 0 && engine.max_leases_per_session > 0 && engine.max_namespaces > 0);
    // Times are added to the clock with every call.
    let now = std::time::Instant::now();
    for time in [engine.max_lease, engine.reservation, config.drain_grace] {
        assert!(now.checked_add(time).is_some(), "{time:?} is beyond every clock");
    }
    Some(config)
}

fn client(text: &str) {
    let Ok(config) = serde_json::from_str::<ClientConfig>(text) else { return };
    if let Err(error) = config.check() {
        assert!(!error.to_string().is_empty());
        return;
    }
    let Ok(written) = serde_json::to_string(&config) else { panic!("{config:?} cannot be written") };
    assert_eq!(serde_json::from_str::<ClientConfig>(&written).ok(), Some(config), "{written}");
}

/// One key of a client's configuration that is otherwise right.
fn client_field(key: u8, value: &str, quoted: bool) {
    let Ok(serde_json::Value::Object(mut fields)) = serde_json::to_value(ClientConfig::default()) else {
        return;
    };
    let Some(name) = fields.keys().nth(usize::from(key) % fields.len()).cloned() else { return };
    let value = match serde_json::from_str(value) {
        Ok(value) if !quoted => value,
        _ => serde_json::Value::String(value.to_owned()),
    };
    fields.insert(name, value);
    client(&serde_json::Value::Object(fields).to_string());
}
