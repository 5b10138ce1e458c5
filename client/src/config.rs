//! What a user may choose, its defaults (each in one place: the `Default` impls here), and its checks.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize, Serializer};
use tender_trace::TraceConfig;

use crate::credentials::{Credentials, TlsConfig};
use crate::error::ClientError;

/// Where a daemon is looked for when nobody says: the place its packages and manifests use.
pub const DEFAULT_ADDRESS: &str = "unix:/run/tender/tenderd.sock";

/// Where a daemon listens: `unix:/path`, `tls://host:port` (`https://` means the same), or `tcp://host:port` without
/// encryption (`http://` means the same).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// A Unix socket. Shared memory can be had beside it.
    Unix(PathBuf),
    /// A TCP port, reached without encryption.
    Tcp {
        /// Name or address; an IPv6 address without its brackets.
        host: String,
        /// Never 0.
        port: u16,
    },
    /// A TCP port that speaks TLS; see [`ClientConfig::tls`].
    Tls {
        /// Name or address; an IPv6 address without its brackets.
        host: String,
        /// Never 0.
        port: u16,
    },
}

impl Address {
    fn refuse(text: &str, advice: &'static str) -> ClientError {
        ClientError::Config { key: "address", value: text.to_owned(), advice }
    }

    fn parse_host(text: &str, rest: &str) -> Result<(String, u16), ClientError> {
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest
            .rsplit_once(':')
            .ok_or_else(|| Self::refuse(text, "write host and port: tcp://host:port"))?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        if bare.is_none() && host.contains([':', '[', ']']) {
            return Err(Self::refuse(text, "put an IPv6 address into brackets: tcp://[::1]:9471"));
        }
        let host = bare.unwrap_or(host);
        if host.is_empty() || host.contains(['/', '@', '?', '#', ' ']) {
            return Err(Self::refuse(text, "the host is a name or an address, without path or user"));
        }
        match port.parse() {
            Ok(port) if port != 0 => Ok((host.to_owned(), port)),
            _ => Err(Self::refuse(text, "the port is a number from 1 to 65535")),
        }
    }
}

impl FromStr for Address {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        if let Some(path) = text.strip_prefix("unix:") {
            // `unix:///path` is how gRPC tools write it.
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                p if p.starts_with('/') && !p.contains('\0') => Ok(Self::Unix(path.into())),
                _ => Err(Self::refuse(text, "name the socket by its absolute path: unix:/path")),
            };
        }
        if let Some(rest) = text.strip_prefix("tls://").or_else(|| text.strip_prefix("https://")) {
            return Self::parse_host(text, rest).map(|(host, port)| Self::Tls { host, port });
        }
        match text.strip_prefix("tcp://").or_else(|| text.strip_prefix("http://")) {
            Some(rest) => Self::parse_host(text, rest).map(|(host, port)| Self::Tcp { host, port }),
            None => Err(Self::refuse(text, "write unix:/path, tls://host:port or tcp://host:port")),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = ClientError;

    fn try_from(text: String) -> Result<Self, ClientError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } => write!(f, "tcp://{}:{port}", bracketed(host)),
            Self::Tls { host, port } => write!(f, "tls://{}:{port}", bracketed(host)),
        }
    }
}

fn bracketed(host: &str) -> Cow<'_, str> {
    if host.contains(':') { format!("[{host}]").into() } else { host.into() }
}

/// How bytes travel.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportChoice {
    /// Shared memory where the daemon offers it, else the network.
    #[default]
    Auto,
    /// Shared memory or nothing: a daemon that does not offer it counts as lost.
    Shm,
    /// The network, even on one host.
    Grpc,
}

/// When to stop asking a daemon that does not answer, see `breaker.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerConfig {
    /// Failed or slow calls in a row that open it.
    pub failures: u32,
    /// A call that took longer counts as failed.
    #[serde(with = "humantime_serde")]
    pub slow_call: Duration,
    /// How long it stays open the first time; doubles with every failed trial.
    #[serde(with = "humantime_serde")]
    pub open_min: Duration,
    /// How long it stays open at most.
    #[serde(with = "humantime_serde")]
    pub open_max: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: 5,
            slow_call: Duration::from_secs(2),
            open_min: Duration::from_millis(500),
            open_max: Duration::from_secs(10),
        }
    }
}

/// Everything a client can be told. Durations are written like `250ms`, sizes like `256 MiB` or as bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientConfig {
    /// Where the daemon listens.
    pub address: Address,
    /// What the daemon's operator sees in logs and statistics.
    pub client_name: String,
    /// How bytes travel.
    pub transport: TransportChoice,
    /// Room for parts that were gathered and are not stored yet. The daemon's limit may cut it.
    #[serde(serialize_with = "in_bytes")]
    pub staging_bytes: ByteSize,
    /// Connecting, opening a session, registering, attaching: each this long at most.
    #[serde(with = "humantime_serde")]
    pub connect_deadline: Duration,
    /// The pause after the first lost session; it doubles up to `reconnect_max`, with jitter.
    #[serde(with = "humantime_serde")]
    pub reconnect_min: Duration,
    /// The longest pause between two attempts to connect.
    #[serde(with = "humantime_serde")]
    pub reconnect_max: Duration,
    /// The pause after a refusal that repeating cannot mend, such as another version.
    #[serde(with = "humantime_serde")]
    pub refused_retry: Duration,
    /// What all calls of one scheduler step may take together. Lookups are waited for only as long as that leaves, and
    /// steps that took longer all the same are counted.
    #[serde(with = "humantime_serde")]
    pub step_budget: Duration,
    /// How long a worker's step may gather what is to be stored, before and after its pass each. What does not fit is
    /// skipped and counted.
    #[serde(with = "humantime_serde")]
    pub gather_budget: Duration,
    /// After this a lookup counts as a miss.
    #[serde(with = "humantime_serde")]
    pub lookup_deadline: Duration,
    /// How long a request may wait for chunks that the daemon is fetching, where that is faster than computing them; 0:
    /// never. What comes later serves later requests.
    #[serde(with = "humantime_serde")]
    pub fetch_wait: Duration,
    /// After this a load is reported as failed.
    #[serde(with = "humantime_serde")]
    pub load_deadline: Duration,
    /// After this nobody waits for the answer to a store.
    #[serde(with = "humantime_serde")]
    pub store_deadline: Duration,
    /// How long a reset may block.
    #[serde(with = "humantime_serde")]
    pub reset_deadline: Duration,
    /// Threads that load, 1 to 64.
    pub load_threads: usize,
    /// Threads that hash and store, 1 to 64.
    pub store_threads: usize,
    /// Loads that may wait for a thread; further ones fail at once.
    pub load_queue: usize,
    /// Gathered parts that may wait for a thread; further ones are skipped.
    pub store_queue: usize,
    /// When to stop asking.
    pub breaker: BreakerConfig,
    /// Check the digest of what was read through shared memory too. Network reads are always checked.
    pub verify_shm_reads: bool,
    /// How copies from and to a GPU are made.
    pub device: DeviceConfig,
    /// Certificates for a `tls://` address.
    pub tls: TlsConfig,
    /// Where spans go, and how many.
    pub trace: TraceConfig,
    /// File whose one line is this client's bearer token. Sent over TLS and Unix sockets only.
    pub token_file: Option<PathBuf>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            address: Address::Unix(DEFAULT_ADDRESS.trim_start_matches("unix:").into()),
            client_name: "tender-client".into(),
            transport: TransportChoice::Auto,
            staging_bytes: ByteSize::mib(256),
            connect_deadline: Duration::from_secs(2),
            reconnect_min: Duration::from_millis(100),
            reconnect_max: Duration::from_secs(5),
            refused_retry: Duration::from_secs(30),
            step_budget: Duration::from_millis(5),
            // Half a gigabyte and more: what a pass that takes seconds makes final.
            gather_budget: Duration::from_millis(250),
            lookup_deadline: Duration::from_millis(250),
            fetch_wait: Duration::from_secs(2),
            load_deadline: Duration::from_secs(5),
            store_deadline: Duration::from_secs(10),
            reset_deadline: Duration::from_secs(2),
            load_threads: 2,
            store_threads: 2,
            load_queue: 1024,
            store_queue: 4096,
            breaker: BreakerConfig::default(),
            verify_shm_reads: false,
            device: DeviceConfig::default(),
            tls: TlsConfig::default(),
            trace: TraceConfig::default(),
            token_file: None,
        }
    }
}

impl ClientConfig {
    /// The defaults, for this daemon.
    pub fn new(address: Address) -> Self {
        Self { address, ..Self::default() }
    }

    /// What it shows the daemon.
    pub fn credentials(&self) -> Credentials {
        Credentials { tls: self.tls.clone(), token_file: self.token_file.clone() }
    }

    /// Refuses values that cannot work, naming the key.
    pub fn check(&self) -> Result<(), ClientError> {
        let positive = [
            ("connect_deadline", self.connect_deadline),
            ("gather_budget", self.gather_budget),
            ("reconnect_min", self.reconnect_min),
            ("lookup_deadline", self.lookup_deadline),
            ("load_deadline", self.load_deadline),
            ("store_deadline", self.store_deadline),
            ("reset_deadline", self.reset_deadline),
            ("breaker.slow_call", self.breaker.slow_call),
            ("breaker.open_min", self.breaker.open_min),
        ];
        if let Some((key, _)) = positive.into_iter().find(|(_, value)| value.is_zero()) {
            return Err(refuse(key, "0s", "give a time above 0, such as 250ms"));
        }
        let ordered = [
            ("reconnect_max", self.reconnect_max, self.reconnect_min),
            ("breaker.open_max", self.breaker.open_max, self.breaker.open_min),
        ];
        if let Some((key, most, _)) = ordered.into_iter().find(|(_, most, least)| most < least) {
            let value = humantime::format_duration(most);
            return Err(refuse(key, value, "the longest pause is at least the shortest"));
        }
        for (key, threads) in [("load_threads", self.load_threads), ("store_threads", self.store_threads)] {
            if !(1..=64).contains(&threads) {
                return Err(refuse(key, threads, "use 1 to 64 threads"));
            }
        }
        for (key, depth) in [("load_queue", self.load_queue), ("store_queue", self.store_queue)] {
            if depth == 0 {
                return Err(refuse(key, depth, "let at least 1 wait"));
            }
        }
        if self.staging_bytes.as_u64() == 0 {
            return Err(refuse("staging_bytes", 0, "give room for at least a few chunks"));
        }
        self.device.check()?;
        self.tls.check()?;
        if let (Address::Tcp { .. }, Some(file)) = (&self.address, &self.token_file) {
            return Err(refuse(
                "token_file",
                file.display(),
                "a token is not sent in the clear: use tls:// or unix:",
            ));
        }
        if self.breaker.failures == 0 {
            return Err(refuse("breaker.failures", 0, "let at least 1 call fail"));
        }
        Ok(())
    }
}

/// Who computes the digests of what is stored from a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DigestBy {
    /// Whoever turns out to be faster when the worker starts.
    #[default]
    Auto,
    /// The host's threads.
    Host,
    /// The GPU.
    Device,
}

/// Copies from and to a GPU. An engine on the host uses none of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceConfig {
    /// Device memory between the engine's stream and staging. Where the device has less to spare, a smaller ring does.
    pub ring_bytes: ByteSize,
    /// Device memory for each of the threads that load.
    pub load_ring_bytes: ByteSize,
    /// Pinned host memory for each of the threads that load, and as much for the stores: the way for bytes that
    /// cannot be copied in place.
    pub bounce_bytes: ByteSize,
    /// How long a step may wait, for all its stores together, if the ring is full; 0: what finds no room is skipped.
    #[serde(with = "humantime_serde")]
    pub ring_wait: Duration,
    /// The most that stores take of the link to the host in a second; 0 for no limit.
    pub store_bytes_per_second: ByteSize,
    /// The most that loads take of the link to the device in a second; 0 for no limit.
    pub load_bytes_per_second: ByteSize,
    /// Multiprocessors, in percent, that kernels may fill while the forward pass runs.
    pub side_percent: u32,
    /// Register staging and the arena with the driver, so that copies use them in place.
    pub register_memory: bool,
    /// Who computes digests.
    pub digest: DigestBy,
    /// Where compiled kernels are kept; a folder `tender` in the user's cache folder if it is not given.
    pub kernel_cache: Option<PathBuf>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            ring_bytes: ByteSize::mib(256),
            load_ring_bytes: ByteSize::mib(32),
            bounce_bytes: ByteSize::mib(16),
            ring_wait: Duration::ZERO,
            store_bytes_per_second: ByteSize::b(0),
            load_bytes_per_second: ByteSize::b(0),
            side_percent: 25,
            register_memory: true,
            digest: DigestBy::Auto,
            kernel_cache: None,
        }
    }
}

impl DeviceConfig {
    fn check(&self) -> Result<(), ClientError> {
        if self.ring_bytes.as_u64() == 0 {
            return Err(refuse("device.ring_bytes", 0, "give room for at least a few chunks"));
        }
        if !(1..=100).contains(&self.side_percent) {
            return Err(refuse("device.side_percent", self.side_percent, "use 1 to 100 percent"));
        }
        Ok(())
    }
}

/// A size with its unit is rounded when it is written.
fn in_bytes<S: Serializer>(size: &ByteSize, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(size.as_u64())
}

fn refuse(key: &'static str, value: impl fmt::Display, advice: &'static str) -> ClientError {
    ClientError::Config { key, value: value.to_string(), advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_the_same() {
        for (text, canonical) in [
            ("unix:/run/t.sock", "unix:/run/t.sock"),
            ("unix:///run/t.sock", "unix:/run/t.sock"),
            ("tcp://localhost:7070", "tcp://localhost:7070"),
            ("http://10.0.0.1:1/", "tcp://10.0.0.1:1"),
            ("tcp://[::1]:7070", "tcp://[::1]:7070"),
            ("tls://tender.example:7070", "tls://tender.example:7070"),
            ("https://[::1]:7070", "tls://[::1]:7070"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), canonical);
            assert_eq!(canonical.parse::<Address>().unwrap(), address);
        }
    }

    #[test]
    fn an_address_that_cannot_work_is_refused_with_advice() {
        for text in [
            "",
            "unix:",
            "unix:relative",
            "/run/t.sock",
            "tcp://host",
            "tcp://:1",
            "tcp://h:0",
            "tcp://h:70000",
            "tcp://::1:7070",
            "http://user@h:1",
            "tls://h",
            "ftp://h:1",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("address"), "{text}: {error}");
        }
    }

    #[test]
    fn a_config_is_read_from_json_with_units() {
        let config: ClientConfig = serde_json::from_str(
            r#"{"address":"tcp://h:1","step_budget":"2ms","staging_bytes":"64 MiB","breaker":{"failures":2}}"#,
        )
        .unwrap();
        assert_eq!(config.step_budget, Duration::from_millis(2));
        assert_eq!(config.staging_bytes, ByteSize::mib(64));
        assert_eq!(config.breaker.failures, 2);
        assert_eq!(config.breaker.open_min, BreakerConfig::default().open_min);
        config.check().unwrap();
        let again: ClientConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn a_config_that_was_written_reads_as_it_was_whatever_its_sizes() {
        for staging in [1, 1023, 1_992_294, (256 << 20) + 1, u64::MAX] {
            let config = ClientConfig { staging_bytes: ByteSize::b(staging), ..ClientConfig::default() };
            let written = serde_json::to_string(&config).unwrap();
            assert_eq!(serde_json::from_str::<ClientConfig>(&written).unwrap(), config, "{written}");
        }
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let error = serde_json::from_str::<ClientConfig>(r#"{"adress":"tcp://h:1"}"#).unwrap_err();
        assert!(error.to_string().contains("adress"));
    }

    #[test]
    fn values_that_cannot_work_are_refused_with_their_key() {
        type Change = fn(&mut ClientConfig);
        let changes: &[(Change, &str)] = &[
            (|c| c.load_deadline = Duration::ZERO, "load_deadline"),
            (|c| c.reconnect_max = Duration::from_millis(1), "reconnect_max"),
            (|c| c.store_threads = 0, "store_threads"),
            (|c| c.load_threads = 65, "load_threads"),
            (|c| c.store_queue = 0, "store_queue"),
            (|c| c.staging_bytes = ByteSize::b(0), "staging_bytes"),
            (|c| c.breaker.failures = 0, "breaker.failures"),
            (|c| c.tls.cert = Some("/c.pem".into()), "tls.cert"),
            (
                |c| {
                    c.address = "tcp://h:1".parse().unwrap();
                    c.token_file = Some("/t".into());
                },
                "token_file",
            ),
            (|c| c.device.ring_bytes = ByteSize::b(0), "device.ring_bytes"),
            (|c| c.device.side_percent = 0, "device.side_percent"),
        ];
        for (change, key) in changes {
            let mut config = ClientConfig::default();
            change(&mut config);
            assert!(config.check().unwrap_err().to_string().contains(key));
        }
        assert_eq!(ClientConfig::default().address, DEFAULT_ADDRESS.parse().unwrap());
    }
}
