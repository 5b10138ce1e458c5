//! Connections to other daemons, each made when it is needed and closed when it is not, and what is known of how they do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tender_proto::limits::{HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_STREAM_WINDOW_BYTES, MAX_MESSAGE_BYTES};
use tender_proto::v1::peer_client::PeerClient;
use tonic::transport::{Channel, Endpoint};

use super::breaker::{Breaker, BreakerTerms};
use crate::tier::PeerState;
use crate::tls::Tls;

/// A peer that failed is skipped at once: there are others, and computing.
const BREAKER: BreakerTerms =
    BreakerTerms { failures: 1, wait_min: Duration::from_millis(500), wait_max: Duration::from_secs(30) };
/// Peers that are remembered; those that nobody asked for longest go first.
const MAX_PEERS: usize = 1024;
/// A connection that nobody used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A host that vanished without a word is noticed after these two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    peers: Mutex<HashMap<Box<str>, Arc<Peer>>>,
    /// What this daemon shows to others, if it has certificates.
    tls: Option<Arc<Tls>>,
}

/// One other daemon, by its address.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: Box<str>,
    tls: Option<Arc<Tls>>,
    breaker: Mutex<Breaker>,
    connection: Mutex<Connection>,
    /// Nanoseconds for each KiB lately; 0 for unknown.
    nanos_per_kib: AtomicU64,
}

#[derive(Debug)]
struct Connection {
    channel: Option<Channel>,
    used: Instant,
}

impl Pool {
    /// No connection yet.
    pub(crate) fn new(tls: Option<Arc<Tls>>) -> Self {
        Self { peers: Mutex::default(), tls }
    }

    /// The peer at this address, known before or not.
    pub(crate) fn peer(&self, address: &str) -> Arc<Peer> {
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(address) {
            return Arc::clone(peer);
        }
        if peers.len() >= MAX_PEERS
            && let Some(oldest) = peers.values().min_by_key(|peer| peer.connection.lock().used).cloned()
        {
            peers.remove(&oldest.address);
        }
        let peer = Arc::new(Peer::new(address, self.tls.clone()));
        peers.insert(address.into(), Arc::clone(&peer));
        peer
    }

    /// What is known of each, by address.
    pub(crate) fn states(&self) -> Vec<PeerState> {
        let peers: Vec<_> = self.peers.lock().values().cloned().collect();
        let mut states: Vec<_> = peers.iter().map(|peer| peer.state()).collect();
        states.sort_unstable_by(|a, b| a.address.cmp(&b.address));
        states
    }

    /// Closes connections that nobody uses.
    pub(crate) fn close_idle(&self, now: Instant) {
        for peer in self.peers.lock().values() {
            let mut connection = peer.connection.lock();
            if now.saturating_duration_since(connection.used) > IDLE {
                connection.channel = None;
            }
        }
    }
}

impl Peer {
    fn new(address: &str, tls: Option<Arc<Tls>>) -> Self {
        Self {
            address: address.into(),
            tls,
            breaker: Mutex::new(Breaker::new(BREAKER)),
            connection: Mutex::new(Connection { channel: None, used: Instant::now() }),
            nanos_per_kib: AtomicU64::new(0),
        }
    }
    /// A client over the peer's one connection, which is made with the first call.
    pub(crate) fn client(&self) -> Result<PeerClient<Channel>, ConnectError> {
        let mut connection = self.connection.lock();
        connection.used = Instant::now();
        let channel = match &connection.channel {
            Some(channel) => channel.clone(),
            None => connection.channel.insert(connect_peer(&self.address, self.tls.as_deref())?).clone(),
        };
        Ok(PeerClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES))
    }
    fn state(&self) -> PeerState {
        let nanos_per_kib = self.nanos_per_kib.load(Ordering::Relaxed);
        PeerState {
            address: self.address.to_string(),
            left_alone: !self.allows(),
            bytes_per_second: (1024 * 1_000_000_000u64).checked_div(nanos_per_kib).unwrap_or(0),
        }
    }
    /// Whether it has a chance to answer.
    pub(crate) fn allows(&self) -> bool {
        self.breaker.lock().allows(Instant::now())
    }
    /// Whether the caller may ask it now.
    pub(crate) fn take_turn(&self) -> bool {
        self.breaker.lock().take_turn(Instant::now())
    }
    /// It answered; for `bytes` it took so long.
    pub(crate) fn answered(&self, bytes: u64, took: Duration) {
        self.breaker.lock().succeeded();
        if bytes == 0 {
            return;
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let new = (nanos / bytes.div_ceil(1024)).max(1);
        let old = self.nanos_per_kib.load(Ordering::Relaxed);
        let mixed = if old == 0 { new } else { old - old / 4 + new / 4 };
        self.nanos_per_kib.store(mixed.max(1), Ordering::Relaxed);
    }
    /// It was slow, dead, or away.
    pub(crate) fn failed(&self) {
        self.breaker.lock().failed(Instant::now());
        // A connection that hangs would hang the probe too.
        self.connection.lock().channel = None;
    }
    /// It sent other bytes than it said.
    pub(crate) fn lied(&self) {
        self.breaker.lock().lied(Instant::now());
    }
    /// Lower is better: how fast it was, times a number from 0.5 to 1.5 that chance draws, so that not everybody asks the
    /// same one. One that nobody knows comes first.
    pub(crate) fn rank(&self) -> u64 {
        let speed = self.nanos_per_kib.load(Ordering::Relaxed);
        speed.saturating_mul(rand::random_range(50..150)) / 100
    }
}

/// Why there can be no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// It asks for a certificate.
    #[error(
        "it is reached by TLS only, and this daemon has no certificate: give it --tls-cert and --tls-key"
    )]
    NoCertificate,
    /// What stands in the directory is no address, or this daemon's certificate cannot be used.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

/// A connection to another daemon: `tls://HOST:PORT`, or without encryption `tcp://HOST:PORT`. The only place that makes
/// one.
fn connect_peer(address: &str, tls: Option<&Tls>) -> Result<Channel, ConnectError> {
    let (scheme, place) = address.split_once("://").unwrap_or(("tcp", address));
    let mut endpoint = if scheme == "tls" {
        let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
        let tls = tls.ok_or(ConnectError::NoCertificate)?;
        let shown = tls.client(host.trim_matches(['[', ']']), CONNECT_TIMEOUT);
        Endpoint::from_shared(format!("https://{place}"))?.tls_config(shown)?
    } else {
        Endpoint::from_shared(format!("http://{place}"))?
    };
    endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    Ok(endpoint.connect_lazy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn peers_are_bounded_and_the_same_address_is_the_same_peer() {
        let pool = Pool::default();
        let first = pool.peer("a:1");
        assert!(Arc::ptr_eq(&first, &pool.peer("a:1")));
        (0..MAX_PEERS * 2).for_each(|n| drop(pool.peer(&format!("b:{n}"))));
        assert_eq!(pool.peers.lock().len(), MAX_PEERS);
    }

    #[tokio::test]
    async fn a_connection_that_nobody_uses_is_closed() {
        let pool = Pool::default();
        let peer = pool.peer("127.0.0.1:1");
        peer.client().unwrap();
        let now = Instant::now();
        pool.close_idle(now);
        assert!(peer.connection.lock().channel.is_some());
        pool.close_idle(now + IDLE + Duration::from_secs(1));
        assert!(peer.connection.lock().channel.is_none());
    }

    #[test]
    fn the_faster_one_ranks_before_the_slower_one_and_chance_only_mixes_equals() {
        let (fast, slow) = (Peer::new("a:1", None), Peer::new("b:1", None));
        fast.answered(1 << 20, Duration::from_millis(1));
        slow.answered(1 << 20, Duration::from_millis(10));
        assert!((0..1000).all(|_| fast.rank() < slow.rank()));
        assert_eq!(Peer::new("c:1", None).rank(), 0);
    }
}
