//! Who gets in, what they may do, and how much: daemons in this process with real certificates, made for each test.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

mod balancer;
mod certs;
mod doubts;
mod fairness;
mod front;
mod hangup;
mod quotas;
mod reload;
mod shares;
mod tenants;
mod tls;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use certs::{Authority, Issued};
use tempfile::TempDir;
use tender_client::{ClientConfig, TlsConfig as ClientTls, TransportChoice};
use tender_daemon::app::{HandedOver, RunningApp};
use tender_daemon::config::{ClientAuth, Config, Listen, TlsConfig};
use tender_proto::Reason;
use tender_proto::limits::{HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_FRAME_BYTES, HTTP2_STREAM_WINDOW_BYTES};
use tender_tests::daemon::{client_config, http_get};
use tender_tests::raw::{RawClient, Target};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// What the daemon's certificate is for.
const NAME: &str = "tender.test";
/// What must come, comes within this also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with a Unix socket and a TLS port.
struct Secure {
    app: RunningApp,
    authority: Authority,
    config: Config,
    dir: TempDir,
}

/// What a test chooses.
struct Wish {
    policy: Option<String>,
    client_auth: ClientAuth,
    arena_bytes: u64,
    /// In all and of one peer.
    connections: Option<(usize, usize)>,
    max_sessions: Option<usize>,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            policy: None,
            client_auth: ClientAuth::Required,
            arena_bytes: 64 << 20,
            connections: None,
            max_sessions: None,
        }
    }
}

impl Wish {
    fn policy(text: &str) -> Self {
        Self { policy: Some(text.into()), ..Self::default() }
    }
}

impl Secure {
    async fn start(wish: Wish) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let authority = Authority::new();
        let (server, path) = (authority.issue(&[NAME]), |name: &str| dir.path().join(name));
        write(&path("cert.pem"), &server.cert);
        write(&path("key.pem"), &server.key);
        write(&path("ca.pem"), &authority.pem());
        let policy = wish.policy.map(|text| {
            write(&path("policy.toml"), &text);
            path("policy.toml")
        });
        let any_port = "127.0.0.1:0".parse().unwrap();
        let listen = vec![
            Listen::Unix(path("tenderd.sock")),
            Listen::Tls("127.0.0.1:0".parse().unwrap()),
            Listen::Tcp("127.0.0.1:0".parse().unwrap()),
        ];
        let mut config = Config {
            listen,
            admin: Some(any_port),
            drain_grace: Duration::from_secs(2),
            tls: Some(TlsConfig {
                cert: path("cert.pem"),
                key: path("key.pem"),
                client_ca: Some(path("ca.pem")),
                client_auth: wish.client_auth,
            }),
            policy,
            ..Config::default()
        };
        if let Some((all, each)) = wish.connections {
            (config.max_connections, config.max_connections_per_peer) = (all, each);
        }
        if let Some(most) = wish.max_sessions {
            config.engine.max_sessions = most;
        }
        config.engine.arena.place = path("arena");
        config.engine.arena.bytes = wish.arena_bytes;
        config.engine.arena.prefault = false;
        config.engine.arena.keep = false;
        let app = RunningApp::start(config.clone()).await.unwrap();
        app.phase().wait_for(|phase| phase.is_ready()).await.unwrap();
        Self { app, authority, config, dir }
    }

    /// Another daemon takes over.
    async fn take_over(self) -> Self {
        let Self { app, authority, config, dir } = self;
        let next = tokio::spawn(RunningApp::start(Config { take_over: true, ..config.clone() }));
        let successor = app.successor().await;
        match app.hand_over(successor).await.unwrap() {
            HandedOver::Given => {}
            HandedOver::Kept(_) => panic!("nobody took over: {:?}", next.await),
        }
        Self { app: next.await.unwrap().unwrap(), authority, config, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn tls_port(&self) -> String {
        let port = self.app.addresses().iter().find_map(|place| match place {
            Listen::Tls(at) => Some(at.to_string()),
            Listen::Unix(_) | Listen::Tcp(_) => None,
        });
        port.unwrap()
    }
    fn tcp_port(&self) -> String {
        let port = self.app.addresses().iter().find_map(|place| match place {
            Listen::Tcp(at) => Some(at.to_string()),
            Listen::Unix(_) | Listen::Tls(_) => None,
        });
        port.unwrap()
    }

    /// A certificate of the authority that the daemon trusts.
    fn issue(&self, name: &str) -> Issued {
        self.authority.issue(&[name])
    }
    async fn connect(&self, shown: Option<&Issued>) -> Result<RawClient, tonic::transport::Error> {
        connect(&self.tls_port(), &self.authority.pem(), NAME, shown).await
    }
    /// A connection of somebody with this name in a good certificate.
    async fn client(&self, name: &str) -> RawClient {
        self.connect(Some(&self.issue(name))).await.unwrap()
    }
    async fn local(&self) -> RawClient {
        RawClient::connect(&Target::Unix(self.path("tenderd.sock"))).await.unwrap()
    }

    /// A real client's configuration with this certificate.
    fn client_config(&self, shown: Option<&Issued>) -> ClientConfig {
        let address = format!("tls://{}", self.tls_port()).parse().unwrap();
        let mut config = client_config(address, TransportChoice::Auto);
        config.tls = ClientTls {
            ca: Some(self.path("ca.pem")),
            server_name: Some(NAME.into()),
            ..ClientTls::default()
        };
        if let Some(shown) = shown {
            let name = blake3::hash(shown.cert.as_bytes()).to_hex();
            let (cert, key) = (self.path(&format!("{name}.cert")), self.path(&format!("{name}.key")));
            write(&cert, &shown.cert);
            write(&key, &shown.key);
            (config.tls.cert, config.tls.key) = (Some(cert), Some(key));
        }
        config
    }

    /// A line of the metrics with its number, 0 where it is not there.
    async fn metric(&self, line: &str) -> u64 {
        let (_, text) = http_get(&self.app.admin_address().unwrap(), "/metrics").await.unwrap();
        // Without labels there may be an empty pair of braces.
        let number = |found: &str| {
            found.strip_prefix(line)?.trim_start_matches("{}").strip_prefix(' ').map(str::to_owned)
        };
        let found = text.lines().find_map(number);
        found.map_or(0, |number| number.parse().unwrap())
    }
}

async fn connect(
    port: &str,
    ca: &str,
    name: &str,
    shown: Option<&Issued>,
) -> Result<RawClient, tonic::transport::Error> {
    // Whoever installed one before has installed the same.
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name(name);
    if let Some(shown) = shown {
        tls = tls.identity(Identity::from_pem(&shown.cert, &shown.key));
    }
    let endpoint = Endpoint::from_shared(format!("https://{port}"))?
        .tls_config(tls)?
        .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES)
        .connect_timeout(PATIENCE);
    Ok(RawClient::over(endpoint.connect().await?))
}

/// Replaces a file at once, as a secret's mount is.
fn write(path: &std::path::Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, path).unwrap();
}

/// Waits until something has come about.
async fn eventually(what: &str, mut there: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !there().await {
        assert!(Instant::now() < give_up, "{what} has not come about");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The typed reason of a refused call.
fn reason<T: std::fmt::Debug>(answer: Result<T, tonic::Status>) -> Reason {
    tender_tests::raw::reason(answer)
}
