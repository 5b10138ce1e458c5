//! Rule 11 as a program: recounts what the parts hold and compares.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Audit, Core};
use crate::index::{IndexAudit, Place, Version, recorded};
use crate::reservation::ReservationAudit;

pub(super) fn recount(core: &Core) -> Result<Audit, String> {
    let index = core.index.audit()?;
    let reservations = core.reservations.audit();
    let readers = core.readers.load(Ordering::Acquire);
    let leases = Leased::recount(core)?;
    // Who may hold bytes that nothing else shows.
    let unseen = readers + core.scrub.reading.load(Ordering::Acquire);

    compare("sessions with leases", leases.sessions as u64, core.sessions.len() as u64)?;
    compare("sessions with reservations", reservations.sessions as u64, core.sessions.len() as u64)?;
    check_holders(&index, &reservations)?;
    check_pins(&index, &leases, readers)?;
    check_bytes(core, &index, &reservations, &leases, unseen)?;
    check_namespaces(core, &index)?;
    check_catalogue(core, &index, &leases, unseen)?;
    let inflight = index.waiting_bytes + reservations.permit_bytes;
    compare("bytes in flight", inflight, core.inflight.used_bytes())?;
    core.arena.pool().audit()?;

    let (lease_count, pins) = core.leases.counts();
    let (capacity_bytes, used_bytes) = (core.arena.pool().capacity_bytes(), core.arena.pool().used_bytes());
    Ok(Audit {
        capacity_bytes,
        used_bytes,
        free_bytes: capacity_bytes - used_bytes,
        sessions: core.sessions.len() as u64,
        leases: lease_count,
        pins,
        readers,
        reservations: reservations.waiting,
        writers: reservations.writing,
        ready_chunks: index.ready_chunks,
        pending_chunks: index.pending_chunks,
        inflight_bytes: inflight,
    })
}

/// What the leases hold.
#[derive(Debug, Default)]
struct Leased {
    sessions: usize,
    pins: BTreeMap<Place, u32>,
    /// Versions that lookups no longer find, by address, with their extents.
    retired: BTreeMap<usize, Vec<(u64, u64)>>,
    /// How many of their parts have a place in the catalogue, cleared as it is.
    retired_records: u64,
}

impl Leased {
    fn recount(core: &Core) -> Result<Self, String> {
        let mut leased = Self::default();
        let (mut pins, mut retired, mut records) = (BTreeMap::new(), BTreeMap::new(), 0);
        leased.sessions = core.leases.audit(|pin| {
            if pin.is_current() {
                *pins.entry(pin.place()).or_default() += 1;
            } else {
                let version = pin.version();
                if retired.insert(Arc::as_ptr(version).addr(), extents_of(version)).is_none() {
                    records += recorded(version.parts());
                }
            }
        })?;
        (leased.pins, leased.retired, leased.retired_records) = (pins, retired, records);
        Ok(leased)
    }
}

fn extents_of(version: &Version) -> Vec<(u64, u64)> {
    let extents = version.parts().iter().map(|part| &part.extent);
    extents.map(|extent| (extent.offset_bytes(), extent.footprint_bytes())).collect()
}

/// Every part that is held belongs to a reservation, and the other way round.
fn check_holders(index: &IndexAudit, reservations: &ReservationAudit) -> Result<(), String> {
    let known: BTreeMap<_, _> =
        reservations.current.iter().map(|&(id, place, part)| (id, (place, part))).collect();
    if known == index.held {
        return Ok(());
    }
    Err(format!("reservations {known:?} hold parts {:?}", index.held))
}

/// Pins of versions that lookups find are those of leases, and those of readers.
fn check_pins(index: &IndexAudit, leases: &Leased, readers: u64) -> Result<(), String> {
    let mut by_readers = 0;
    for place in index.pins.keys().chain(leases.pins.keys()).collect::<BTreeSet<_>>() {
        let (all, leased) = (index.pins.get(place).copied(), leases.pins.get(place).copied());
        match all.unwrap_or(0).checked_sub(leased.unwrap_or(0)) {
            Some(more) => by_readers += u64::from(more),
            None => return Err(format!("{place:?} has {all:?} pins, leases hold {leased:?}")),
        }
    }
    if by_readers <= readers {
        return Ok(());
    }
    Err(format!("{by_readers} pins belong to neither a lease nor one of {readers} readers"))
}

/// No two extents share a byte, and together they are what is used. Versions that only readers, or the scrub, hold are
/// not seen here, so with them there may be more.
fn check_bytes(
    core: &Core,
    index: &IndexAudit,
    reservations: &ReservationAudit,
    leases: &Leased,
    unseen: u64,
) -> Result<(), String> {
    let mut extents: Vec<_> = index
        .extents
        .iter()
        .chain(&reservations.extents)
        .chain(leases.retired.values().flatten())
        .copied()
        .collect();
    extents.sort_unstable();
    if let Some(pair) = extents.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        return Err(format!("two extents share bytes: {pair:?}"));
    }
    let (found, used) = (extents.iter().map(|(_, bytes)| bytes).sum(), core.arena.pool().used_bytes());
    if unseen > 0 && used > found {
        return Ok(());
    }
    compare("used bytes", found, used)
}

fn check_namespaces(core: &Core, index: &IndexAudit) -> Result<(), String> {
    let mut known = 0;
    for (namespace, _) in core.namespaces.list() {
        let found = index.namespaces.get(&namespace.index).copied();
        known += usize::from(found.is_some());
        let (ready, bytes, pending) = found.unwrap_or_default();
        let counters = &namespace.counters;
        compare("ready chunks", ready, counters.ready_chunks.load(Ordering::Acquire))?;
        compare("ready bytes", bytes, counters.ready_bytes.load(Ordering::Acquire))?;
        compare("pending chunks", pending, counters.pending_chunks.load(Ordering::Acquire))?;
    }
    compare("namespaces with chunks", index.namespaces.len() as u64, known as u64)
}

/// The arena's catalogue has a place for exactly what is recorded.
fn check_catalogue(core: &Core, index: &IndexAudit, leases: &Leased, unseen: u64) -> Result<(), String> {
    let namespaces = core.namespaces.list().iter().filter(|(namespace, _)| namespace.entry.is_some()).count();
    let found = namespaces as u64 + index.recorded_parts + leases.retired_records;
    let counted = core.arena.catalogue().len();
    if unseen > 0 && counted > found {
        return Ok(());
    }
    compare("records of the catalogue", found, counted)
}

fn compare(what: &str, found: u64, counted: u64) -> Result<(), String> {
    if found == counted { Ok(()) } else { Err(format!("{what}: {found} found, {counted} counted")) }
}
