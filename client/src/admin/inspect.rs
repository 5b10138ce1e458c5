//! What the daemon is, what it holds by namespace with the whole descriptor, and its end.

use std::time::Duration;

use serde::Serialize;
use tender_proto::{Descriptor, NamespaceDigest, v1};

use super::ask;
use crate::config::Address;
use crate::credentials::Credentials;
use crate::error::ClientError;

/// Facts of a daemon and of its host.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Facts {
    /// Its version.
    pub daemon_version: String,
    /// The version of the contract it speaks.
    pub protocol_version: u32,
    /// On its host.
    pub pid: u32,
    /// Its clock, in milliseconds since 1970.
    pub unix_ms: u64,
    /// What is under way when it is told to stop has so long.
    pub drain_grace_ms: u64,
    /// Where it listens.
    pub listen: Vec<String>,
    /// The arena's file.
    pub arena_place: String,
    /// Its size.
    pub arena_file_bytes: u64,
    /// Whether the next daemon finds what this one held.
    pub arena_kept: bool,
    /// Size of the filesystem of the arena; 0: not known.
    pub place_bytes: u64,
    /// What is free in it.
    pub place_free_bytes: u64,
    /// What the tightest memory limit leaves.
    pub cgroup_available_bytes: u64,
    /// The file that states the limit; empty where there is none.
    pub cgroup_limit_file: String,
    /// Bytes of all staging regions.
    pub staging_bytes: u64,
    /// And at most.
    pub max_staging_bytes: u64,
    /// Bytes that were read again and compared with their digests.
    pub scrubbed_bytes: u64,
    /// Chunks whose bytes had changed.
    pub quarantined_chunks: u64,
    /// End of its certificate's time, in seconds since 1970; 0: it has none.
    pub certificate_expires_unix_s: u64,
    /// Whether a policy says who may do what.
    pub has_policy: bool,
    /// Tiers below the arena.
    pub tiers: Vec<Tier>,
    /// Where it finds other daemons.
    pub directory: Option<Directory>,
    /// Other daemons that it asked for chunks.
    pub peers: Vec<Peer>,
    /// Of the policy.
    pub tenants: Vec<Tenant>,
    /// Payload since its start, on all paths.
    pub sent_bytes: u64,
    /// The same the other way.
    pub received_bytes: u64,
}

/// A tier below the arena.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Tier {
    /// disk, peers or shared.
    pub kind: String,
    /// Chunks it was asked for.
    pub asked_chunks: u64,
    /// Those that it had.
    pub found_chunks: u64,
    /// Questions that it did not answer in time.
    pub late_finds: u64,
    /// Chunks that it was given and keeps.
    pub kept_chunks: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Those that it could not keep.
    pub failed_keeps: u64,
}

/// The directory of daemons.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Directory {
    /// Without its secrets.
    pub uri: String,
    /// Whether it answers.
    pub reachable: bool,
    /// Where others reach this daemon.
    pub advertised: String,
}

/// Another daemon.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Peer {
    /// Where it is reached.
    pub address: String,
    /// It is not asked now because it failed.
    pub left_alone: bool,
    /// What it sent lately; 0 where nothing came yet.
    pub bytes_per_second: u64,
}

/// A tenant of the policy.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Tenant {
    /// In the policy.
    pub name: String,
    /// Those of one domain share what is stored.
    pub domain: String,
    /// Of the domain.
    pub ready_chunks: u64,
    /// Their bytes.
    pub ready_bytes: u64,
    /// What the domain may hold; 0: no limit.
    pub max_bytes: u64,
    /// How often it was refused something.
    pub refusals: u64,
}

/// A namespace with everything that tells it from others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceInfo {
    /// Its name.
    pub digest: NamespaceDigest,
    /// The name that an operator gave it; empty for none.
    pub pinned_name: String,
    /// What the name stands for.
    pub descriptor: Descriptor,
    /// Chunks that lookups find.
    pub ready_chunks: u64,
    /// Their bytes.
    pub ready_bytes: u64,
}

/// Asks for the daemon's facts.
pub fn inspect(address: &Address, credentials: &Credentials, limit: Duration) -> Result<Facts, ClientError> {
    let raw =
        ask(
            address,
            credentials,
            limit,
            |mut admin| async move { admin.inspect(v1::InspectRequest {}).await },
        )?;
    Ok(Facts {
        daemon_version: raw.daemon_version,
        protocol_version: raw.protocol_version,
        pid: raw.pid,
        unix_ms: raw.unix_ms,
        drain_grace_ms: raw.drain_grace_ms,
        listen: raw.listen,
        arena_place: raw.arena_place,
        arena_file_bytes: raw.arena_file_bytes,
        arena_kept: raw.arena_kept,
        place_bytes: raw.place_bytes,
        place_free_bytes: raw.place_free_bytes,
        cgroup_available_bytes: raw.cgroup_available_bytes,
        cgroup_limit_file: raw.cgroup_limit_file,
        staging_bytes: raw.staging_bytes,
        max_staging_bytes: raw.max_staging_bytes,
        scrubbed_bytes: raw.scrubbed_bytes,
        quarantined_chunks: raw.quarantined_chunks,
        certificate_expires_unix_s: raw.certificate_expires_unix_s,
        has_policy: raw.has_policy,
        tiers: raw.tiers.into_iter().map(tier).collect(),
        directory: raw.directory.map(|raw| Directory {
            uri: raw.uri,
            reachable: raw.reachable,
            advertised: raw.advertised,
        }),
        peers: raw.peers.into_iter().map(peer).collect(),
        tenants: raw.tenants.into_iter().map(tenant).collect(),
        sent_bytes: raw.sent_bytes,
        received_bytes: raw.received_bytes,
    })
}

fn tier(raw: v1::TierInfo) -> Tier {
    Tier {
        kind: raw.kind,
        asked_chunks: raw.asked_chunks,
        found_chunks: raw.found_chunks,
        late_finds: raw.late_finds,
        kept_chunks: raw.kept_chunks,
        kept_bytes: raw.kept_bytes,
        failed_keeps: raw.failed_keeps,
    }
}

fn peer(raw: v1::PeerInfo) -> Peer {
    let v1::PeerInfo { address, left_alone, bytes_per_second } = raw;
    Peer { address, left_alone, bytes_per_second }
}

fn tenant(raw: v1::TenantInfo) -> Tenant {
    Tenant {
        name: raw.name,
        domain: raw.domain,
        ready_chunks: raw.ready_chunks,
        ready_bytes: raw.ready_bytes,
        max_bytes: raw.max_bytes,
        refusals: raw.refusals,
    }
}

/// Asks for all namespaces, in the order of their registration.
pub fn namespaces(
    address: &Address,
    credentials: &Credentials,
    limit: Duration,
) -> Result<Vec<NamespaceInfo>, ClientError> {
    let raw =
        ask(address, credentials, limit, |mut admin| async move { admin.stats(v1::StatsRequest {}).await })?;
    let one = |raw: v1::NamespaceStats| {
        Ok(NamespaceInfo {
            digest: NamespaceDigest::parse(&raw.namespace)?,
            pinned_name: raw.pinned_name,
            descriptor: Descriptor::parse(&raw.descriptor.unwrap_or_default())?,
            ready_chunks: raw.ready_chunks,
            ready_bytes: raw.ready_bytes,
        })
    };
    raw.namespaces.into_iter().map(one).collect()
}

/// Tells a daemon to stop in order. How long what is under way has.
pub fn drain(address: &Address, credentials: &Credentials, limit: Duration) -> Result<Duration, ClientError> {
    let answer =
        ask(address, credentials, limit, |mut admin| async move { admin.drain(v1::DrainRequest {}).await })?;
    Ok(Duration::from_millis(answer.grace_ms))
}
