//! What an operator asks about the daemon itself: its facts, and its end.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::statvfs::statvfs;
use tender_proto::limits::PROTOCOL_VERSION;
use tender_proto::v1;
use tokio::sync::{Mutex, Notify};

use super::{Shared, convert};
use crate::access::TenantFacts;
use crate::arena::cgroup;
use crate::config::{Config, Listen};
use crate::engine::Stats;
use crate::tier::{PeerState, TierStats};
use crate::tls::Tls;

/// What the daemon was told that its engine does not know, and the bell for its end.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) facts: Facts,
    /// Rung when somebody asks for a drain.
    pub(crate) drain: Arc<Notify>,
    /// Held by whoever has stored bytes verified: one at a time.
    pub(crate) verifying: Arc<Mutex<()>>,
}

/// As configured.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(super) drain_grace: Duration,
    listen: Vec<String>,
    has_policy: bool,
    /// The directory's address without its secrets, and where others reach this daemon.
    directory: Option<(String, String)>,
    tls: Option<Arc<Tls>>,
}

impl Facts {
    pub(crate) fn of(config: &Config, addresses: &[Listen], tls: Option<&Arc<Tls>>) -> Self {
        let directory = config
            .peers
            .as_ref()
            .map(|peers| (peers.directory.to_string(), peers.reached_at(addresses).unwrap_or_default()));
        Self {
            drain_grace: config.drain_grace,
            listen: addresses.iter().map(ToString::to_string).collect(),
            has_policy: config.policy.is_some(),
            directory,
            tls: tls.cloned(),
        }
    }
}

/// All of it. Asks the filesystem, which may take a moment.
pub(super) fn inspect(shared: &Shared) -> v1::InspectResponse {
    let facts = &shared.desk.facts;
    let (engine, stats) = (shared.engine.config(), shared.engine.stats());
    let folder = engine.arena.place.parent().unwrap_or(&engine.arena.place);
    let (place_bytes, place_free_bytes) = statvfs(folder).map_or((0, 0), |place| {
        let block = place.fragment_size();
        (place.blocks().saturating_mul(block), place.blocks_available().saturating_mul(block))
    });
    let (cgroup_available_bytes, cgroup_limit_file) = cgroup::headroom()
        .map_or((0, String::new()), |room| (room.available_bytes, room.limit.display().to_string()));
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (received_bytes, sent_bytes) = shared.metrics.moved_bytes();
    v1::InspectResponse {
        daemon_version: env!("CARGO_PKG_VERSION").into(),
        protocol_version: PROTOCOL_VERSION,
        pid: std::process::id(),
        unix_ms: convert::millis(since_1970),
        drain_grace_ms: convert::millis(facts.drain_grace),
        listen: facts.listen.clone(),
        arena_place: engine.arena.place.display().to_string(),
        arena_file_bytes: shared.engine.arena_file_bytes(),
        arena_kept: engine.arena.keep,
        place_bytes,
        place_free_bytes,
        cgroup_available_bytes,
        cgroup_limit_file,
        staging_bytes: stats.staging_bytes,
        max_staging_bytes: engine.max_total_staging_bytes,
        scrubbed_bytes: stats.scrubbed_bytes,
        quarantined_chunks: stats.quarantined_chunks,
        certificate_expires_unix_s: facts.tls.as_ref().and_then(|tls| tls.expires_unix_s()).unwrap_or(0),
        has_policy: facts.has_policy,
        tiers: shared.stack.iter().flat_map(|stack| stack.stats()).map(tier).collect(),
        directory: facts.directory.as_ref().map(|(uri, advertised)| v1::DirectoryInfo {
            uri: uri.clone(),
            reachable: shared.peers.as_ref().is_some_and(|peers| peers.reaches_directory()),
            advertised: advertised.clone(),
        }),
        tenants: shared.access.tenants().into_iter().map(|facts| tenant(facts, &stats)).collect(),
        sent_bytes,
        received_bytes,
        peers: shared.stack.iter().flat_map(|stack| stack.known_peers()).map(peer).collect(),
    }
}

fn peer(state: PeerState) -> v1::PeerInfo {
    let PeerState { address, left_alone, bytes_per_second } = state;
    v1::PeerInfo { address, left_alone, bytes_per_second }
}

fn tier(stats: TierStats) -> v1::TierInfo {
    v1::TierInfo {
        kind: stats.kind.name().into(),
        asked_chunks: stats.asked_chunks,
        found_chunks: stats.found_chunks,
        late_finds: stats.late_finds,
        kept_chunks: stats.keeps.kept,
        kept_bytes: stats.keeps.kept_bytes,
        failed_keeps: stats.keeps.failed,
    }
}

fn tenant(facts: TenantFacts, stats: &Stats) -> v1::TenantInfo {
    let own = || stats.namespaces.iter().filter(|namespace| *namespace.descriptor.domain == *facts.domain);
    v1::TenantInfo {
        ready_chunks: own().map(|namespace| namespace.ready_chunks).sum(),
        ready_bytes: own().map(|namespace| namespace.ready_bytes).sum(),
        name: facts.name,
        domain: facts.domain,
        max_bytes: facts.max_bytes,
        refusals: facts.refusals,
    }
}
