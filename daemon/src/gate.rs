//! How many connections there may be, in all and from one place or one identity, and what becomes of those that are
//! turned away: they are closed, counted by reason, and written about now and then.
//!
//! There is a gate for the network and another one for local sockets: strangers who take all of the one leave the
//! engines of this host theirs.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use nix::unistd::geteuid;
use parking_lot::Mutex;

use crate::access::peer::{Caller, Peer};
use crate::metrics::Metrics;
use crate::seldom::Seldom;

/// Why a connection was not served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Turned {
    /// There are as many as there may be.
    Full,
    /// There are as many of this host, user or certificate.
    FullOfPeer,
    /// It was not through its opening in time: TLS, then the first bytes of HTTP/2.
    Silent,
    /// It began with something else than HTTP/2, or went away before.
    NotHttp2,
    /// TLS did not come about.
    Handshake,
}

impl Turned {
    /// For logs and metric labels.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::FullOfPeer => "full_of_peer",
            Self::Silent => "silent",
            Self::NotHttp2 => "not_http2",
            Self::Handshake => "handshake",
        }
    }
}

/// How many there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    pub(crate) all: usize,
    /// Of one host, one user other than the daemon's own and root, or one certificate's first name.
    pub(crate) each: usize,
}

/// What connections are counted together by.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Key {
    Host(IpAddr),
    Caller(Caller),
}

/// Lets connections in.
#[derive(Debug)]
pub(crate) struct Gate {
    name: &'static str,
    bounds: Bounds,
    inside: Mutex<Inside>,
    metrics: Arc<Metrics>,
    log: Seldom<Turned>,
}

#[derive(Default, Debug)]
struct Inside {
    all: usize,
    each: HashMap<Key, usize>,
}

/// A connection's place, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    gate: Arc<Gate>,
    keys: Vec<Key>,
}

impl Gate {
    /// `name` is its label in metrics.
    pub(crate) fn new(name: &'static str, bounds: Bounds, metrics: &Arc<Metrics>) -> Arc<Self> {
        let (inside, metrics) = (Mutex::default(), Arc::clone(metrics));
        Arc::new(Self { name, bounds, inside, metrics, log: Seldom::default() })
    }

    /// Lets one in, by where it comes from. Its certificate is not known yet: see [`Place::shows`].
    pub(crate) fn enter(self: &Arc<Self>, peer: &Peer) -> Result<Place, Turned> {
        let mut inside = self.inside.lock();
        if inside.all >= self.bounds.all {
            return Err(Turned::Full);
        }
        let key = origin(peer);
        if let Some(key) = &key {
            inside.count(key, self.bounds.each)?;
        }
        inside.all += 1;
        drop(inside);
        self.metrics.connections(self.name, 1);
        // Only now: its drop takes the lock and gives back what was counted.
        Ok(Place { gate: Arc::clone(self), keys: key.into_iter().collect() })
    }

    /// A connection was not served, or no longer.
    pub(crate) fn turned_away(&self, peer: &Peer, why: Turned, error: Option<&std::io::Error>) {
        self.metrics.turned_away(self.name, why);
        if let Some(left_out) = self.log.due(why, Instant::now()) {
            let (door, reason, error) = (self.name, why.label(), error.map(ToString::to_string));
            tracing::warn!(target: "tender::audit", door, %peer, reason, error, left_out, "a connection was closed");
        }
    }
}

impl Place {
    /// The connection has shown a certificate: it counts for that one's name too.
    pub(crate) fn shows(&mut self, peer: &Peer) -> Result<(), Turned> {
        if let Peer::Tls { certificate: Some(_), .. } = peer {
            let key = Key::Caller(peer.caller());
            self.gate.inside.lock().count(&key, self.gate.bounds.each)?;
            self.keys.push(key);
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inside = self.gate.inside.lock();
        inside.all -= 1;
        for key in &self.keys {
            if let Some(count) = inside.each.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    inside.each.remove(key);
                }
            }
        }
        drop(inside);
        self.gate.metrics.connections(self.gate.name, -1);
    }
}

impl Inside {
    fn count(&mut self, key: &Key, most: usize) -> Result<(), Turned> {
        match self.each.get_mut(key) {
            Some(count) if *count >= most => Err(Turned::FullOfPeer),
            Some(count) => {
                *count += 1;
                Ok(())
            }
            None => {
                self.each.insert(key.clone(), 1);
                Ok(())
            }
        }
    }
}

/// What a connection is counted by from its first moment. The daemon's own user and root are not held back by each
/// other: all engines of a host may be one user.
fn origin(peer: &Peer) -> Option<Key> {
    match peer {
        Peer::Local(Some(cred)) if cred.uid() == 0 || cred.uid() == geteuid().as_raw() => None,
        Peer::Local(Some(cred)) => Some(Key::Caller(Caller::Uid(cred.uid()))),
        Peer::Local(None) => Some(Key::Caller(Caller::Anonymous)),
        Peer::Plain(address) | Peer::Tls { address, .. } => {
            address.map(|address| Key::Host(host(address.ip())))
        }
    }
}

/// A host with IPv6 has a network of 64 bits to itself.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::access::peer::Certificate;

    fn gate(all: usize, each: usize) -> Arc<Gate> {
        Gate::new("network", Bounds { all, each }, &Arc::new(Metrics::new()))
    }
    fn plain(address: &str) -> Peer {
        Peer::Plain(Some(address.parse().unwrap()))
    }

    #[test]
    fn a_gate_lets_in_as_many_as_its_bounds_and_one_more_when_one_has_gone() {
        let gate = gate(3, 2);
        let one = gate.enter(&plain("10.0.0.1:1")).unwrap();
        let _two = gate.enter(&plain("10.0.0.1:2")).unwrap();
        assert_eq!(gate.enter(&plain("10.0.0.1:3")).unwrap_err(), Turned::FullOfPeer);
        assert_eq!(gate.enter(&plain("[::ffff:10.0.0.1]:3")).unwrap_err(), Turned::FullOfPeer);
        let _three = gate.enter(&plain("10.0.0.2:1")).unwrap();
        assert_eq!(gate.enter(&plain("10.0.0.3:1")).unwrap_err(), Turned::Full);
        drop(one);
        let _four = gate.enter(&plain("10.0.0.1:4")).unwrap();
        assert_eq!(gate.inside.lock().all, 3);
    }

    #[test]
    fn what_was_turned_away_holds_no_place() {
        let gate = gate(10, 1);
        for address in ["10.0.0.1:1", "[fd00::1]:1"] {
            let first = gate.enter(&plain(address)).unwrap();
            for _ in 0..20 {
                gate.enter(&plain(address)).unwrap_err();
            }
            drop(first);
        }
        let inside = gate.inside.lock();
        assert!(inside.all == 0 && inside.each.is_empty());
    }

    #[test]
    fn a_host_with_ipv6_is_its_network() {
        let gate = gate(10, 1);
        let _one = gate.enter(&plain("[2001:db8:0:1::1]:1")).unwrap();
        assert_eq!(gate.enter(&plain("[2001:db8:0:1:ffff::2]:1")).unwrap_err(), Turned::FullOfPeer);
        let _other = gate.enter(&plain("[2001:db8:0:2::1]:1")).unwrap();
    }

    #[test]
    fn a_certificate_is_counted_by_its_name_from_wherever_it_comes() {
        let gate = gate(10, 1);
        let shown = |address: &str, name: &str| Peer::Tls {
            address: Some(address.parse::<SocketAddr>().unwrap()),
            certificate: Some(Certificate {
                uris: Vec::new(),
                dns: vec![name.into()],
                digest: blake3::hash(name.as_bytes()),
            }),
            unasked: false,
        };
        let enter = |address, name| {
            let peer = shown(address, name);
            let mut place = gate.enter(&peer)?;
            place.shows(&peer).map(|()| place)
        };
        let _a = enter("10.0.0.1:1", "a.test").unwrap();
        assert_eq!(enter("10.0.0.2:1", "a.test").unwrap_err(), Turned::FullOfPeer);
        let _b = enter("10.0.0.2:1", "b.test").unwrap();
        assert_eq!(gate.inside.lock().all, 2, "what was turned away is not inside");
    }

    #[test]
    fn the_daemons_own_user_has_all_places_of_the_local_gate() {
        let gate = gate(4, 1);
        let (here, _there) = tokio_pair();
        let places: Vec<_> = (0..4).map(|_| gate.enter(&Peer::Local(Some(here))).unwrap()).collect();
        assert_eq!(gate.enter(&Peer::Local(Some(here))).unwrap_err(), Turned::Full);
        drop(places);
        // Whom the system does not name shares one place.
        let _one = gate.enter(&Peer::Local(None)).unwrap();
        assert_eq!(gate.enter(&Peer::Local(None)).unwrap_err(), Turned::FullOfPeer);
    }

    /// The credentials of this process.
    fn tokio_pair() -> (tokio::net::unix::UCred, tokio::net::UnixStream) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (here, there) = tokio::net::UnixStream::pair().unwrap();
            (here.peer_cred().unwrap(), there)
        })
    }
}
