//! The right to write one part: its owner, its room in the arena, and why it ended.
//!
//! A reservation is *waiting* until its owner begins to write; then the claim is with the writer, and nothing
//! that ends the reservation frees memory under it. The writer learns of the end when it publishes.

use std::sync::Arc;
use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use tender_proto::{ChunkId, Coverage, PartIndex, Reason, ReservationId, SessionId};

use crate::admission::Permit;
use crate::arena::alloc::Extent;
use crate::ids::IdSource;
use crate::index::Place;
use crate::namespace::Namespace;
use crate::recent::Recent;
use crate::sync::Mutex;

/// Ended reservations that are remembered, so that a late commit learns why.
const REMEMBERED_RESERVATIONS: usize = 16_384;

/// What a reservation holds. Dropping it frees the memory and the budgets.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) chunk: ChunkId,
    pub(crate) part: PartIndex,
    pub(crate) coverage: Coverage,
    pub(crate) place: Place,
    pub(crate) deadline: Instant,
    pub(crate) extent: Extent,
    pub(crate) permit: Permit,
}

#[derive(Debug)]
struct Reservation {
    session: SessionId,
    place: Place,
    part: PartIndex,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Waiting(Claim),
    /// The claim is with a writer; the numbers are for the audit.
    Writing {
        permit_bytes: u64,
        extent: (u64, u64),
        ended: Option<Reason>,
    },
}

/// All reservations. Claims are dropped outside its lock.
#[derive(Debug)]
pub(crate) struct Reservations {
    ids: IdSource,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    by_id: HashMap<ReservationId, Reservation>,
    /// One entry for each open session, so that nothing is reserved for one that has ended.
    by_session: HashMap<SessionId, HashSet<ReservationId>>,
    ended: Recent<ReservationId, (SessionId, Reason)>,
    expired_count: u64,
}

/// What an audit wants to know.
#[derive(Debug, Default)]
pub(crate) struct ReservationAudit {
    pub(crate) sessions: usize,
    pub(crate) waiting: u64,
    pub(crate) writing: u64,
    pub(crate) permit_bytes: u64,
    pub(crate) extents: Vec<(u64, u64)>,
    /// Those that still count, that is, whose end nobody has declared.
    pub(crate) current: Vec<(ReservationId, Place, PartIndex)>,
}

impl Reservations {
    pub(crate) fn new(boot: u32) -> Self {
        let inner = Inner {
            by_id: HashMap::new(),
            by_session: HashMap::new(),
            ended: Recent::new(REMEMBERED_RESERVATIONS),
            expired_count: 0,
        };
        Self { ids: IdSource::new(boot), inner: Mutex::new(inner) }
    }

    /// An id for the next reservation.
    pub(crate) fn next_id(&self) -> Result<ReservationId, Reason> {
        ReservationId::new(self.ids.next()).ok_or(Reason::Internal)
    }
    /// Reservations may be made by this session from now on.
    pub(crate) fn open(&self, session: SessionId) {
        self.inner.lock().by_session.insert(session, HashSet::new());
    }
    /// Ends every reservation of a session and says which parts they held.
    pub(crate) fn close(&self, session: SessionId) -> Vec<(ReservationId, Place, PartIndex)> {
        let mut inner = self.inner.lock();
        let ids = inner.by_session.remove(&session).unwrap_or_default();
        let held = ids.iter().filter_map(|id| inner.by_id.get(id).map(|r| (*id, r.place, r.part))).collect();
        let claims: Vec<_> = ids.into_iter().filter_map(|id| inner.end(id, Reason::UnknownSession)).collect();
        drop(inner);
        drop(claims);
        held
    }

    /// Makes a reservation known; an ended session is refused.
    pub(crate) fn insert(&self, session: SessionId, id: ReservationId, claim: Claim) -> Result<(), Reason> {
        let mut inner = self.inner.lock();
        inner.by_session.get_mut(&session).ok_or(Reason::UnknownSession)?.insert(id);
        let (place, part) = (claim.place, claim.part);
        inner.by_id.insert(id, Reservation { session, place, part, stage: Stage::Waiting(claim) });
        Ok(())
    }

    /// Hands the claim to a writer of the session that owns it.
    pub(crate) fn begin(
        &self,
        session: SessionId,
        raw: u64,
        now: Instant,
    ) -> Result<(ReservationId, Claim), Reason> {
        let id = ReservationId::new(raw).ok_or(Reason::UnknownReservation)?;
        let mut inner = self.inner.lock();
        if !inner.by_id.contains_key(&id) {
            return Err(inner.why_over(id, session));
        }
        let Some(reservation) = inner.by_id.get_mut(&id) else { return Err(Reason::UnknownReservation) };
        if reservation.session != session {
            return Err(Reason::NotOwner);
        }
        let Stage::Waiting(claim) = &reservation.stage else {
            // Somebody is writing it: the second commit of the two changes nothing.
            return Err(Reason::UnknownReservation);
        };
        if now >= claim.deadline {
            return Err(Reason::ReservationExpired);
        }
        let writing = Stage::Writing {
            permit_bytes: claim.permit.bytes(),
            extent: (claim.extent.offset_bytes(), claim.extent.footprint_bytes()),
            ended: None,
        };
        match std::mem::replace(&mut reservation.stage, writing) {
            Stage::Waiting(claim) => Ok((id, claim)),
            Stage::Writing { .. } => Err(Reason::Internal),
        }
    }
    /// Why a reservation that is being written has ended meanwhile, if it has.
    pub(crate) fn ended(&self, id: ReservationId) -> Option<Reason> {
        match self.inner.lock().by_id.get(&id).map(|reservation| &reservation.stage) {
            Some(Stage::Writing { ended, .. }) => *ended,
            _ => None,
        }
    }
    /// A writer has let go of its claim.
    pub(crate) fn finish(&self, id: ReservationId) {
        let mut inner = self.inner.lock();
        if let Some(reservation) = inner.by_id.remove(&id)
            && let Some(ids) = inner.by_session.get_mut(&reservation.session)
        {
            ids.remove(&id);
        }
    }
    /// Takes a waiting reservation away from its owner, for an abort. Refused when it is not there, not
    /// waiting, or not this session's.
    pub(crate) fn abort(&self, session: SessionId, raw: u64) -> Result<(ReservationId, Claim), Reason> {
        let id = ReservationId::new(raw).ok_or(Reason::UnknownReservation)?;
        let mut inner = self.inner.lock();
        match inner.by_id.get(&id) {
            None => return Err(inner.why_over(id, session)),
            Some(reservation) if reservation.session != session => return Err(Reason::NotOwner),
            // Its writer gives it up, or publishes it.
            Some(Reservation { stage: Stage::Writing { .. }, .. }) => return Err(Reason::UnknownReservation),
            Some(_) => {}
        }
        inner.end(id, Reason::UnknownReservation).map(|claim| (id, claim)).ok_or(Reason::UnknownReservation)
    }
    /// Ends reservations whose pending version was removed.
    pub(crate) fn end(&self, ids: &[ReservationId], reason: Reason) {
        let mut inner = self.inner.lock();
        if reason == Reason::ReservationExpired {
            inner.expired_count += ids.len() as u64;
        }
        let claims: Vec<_> = ids.iter().filter_map(|id| inner.end(*id, reason)).collect();
        drop(inner);
        drop(claims);
    }

    /// Those of one session.
    pub(crate) fn held_by(&self, session: SessionId) -> u64 {
        self.inner.lock().by_session.get(&session).map_or(0, |ids| ids.len() as u64)
    }
    /// Reservations, those being written included.
    pub(crate) fn len(&self) -> u64 {
        self.inner.lock().by_id.len() as u64
    }
    /// Reservations whose time was up.
    pub(crate) fn expired_count(&self) -> u64 {
        self.inner.lock().expired_count
    }
    /// Recounts everything.
    pub(crate) fn audit(&self) -> ReservationAudit {
        let inner = self.inner.lock();
        let mut found = ReservationAudit { sessions: inner.by_session.len(), ..Default::default() };
        for (id, reservation) in &inner.by_id {
            let (permit_bytes, extent, ended) = match &reservation.stage {
                Stage::Waiting(claim) => {
                    found.waiting += 1;
                    let extent = (claim.extent.offset_bytes(), claim.extent.footprint_bytes());
                    (claim.permit.bytes(), extent, None)
                }
                Stage::Writing { permit_bytes, extent, ended } => {
                    found.writing += 1;
                    (*permit_bytes, *extent, *ended)
                }
            };
            found.permit_bytes += permit_bytes;
            found.extents.push(extent);
            if ended.is_none() {
                found.current.push((*id, reservation.place, reservation.part));
            }
        }
        found
    }
}

impl Inner {
    /// Why a reservation is not there, for the session that had it.
    fn why_over(&self, id: ReservationId, session: SessionId) -> Reason {
        let why = self.ended.get(&id).filter(|(owner, _)| *owner == session);
        why.map_or(Reason::UnknownReservation, |(_, reason)| *reason)
    }

    /// The claim of a waiting reservation; one that is being written is marked.
    fn end(&mut self, id: ReservationId, reason: Reason) -> Option<Claim> {
        let reservation = self.by_id.get_mut(&id)?;
        let session = reservation.session;
        if let Stage::Writing { ended, .. } = &mut reservation.stage {
            ended.get_or_insert(reason);
            return None;
        }
        if let Some(ids) = self.by_session.get_mut(&session) {
            ids.remove(&id);
        }
        self.ended.remember(id, (session, reason));
        match self.by_id.remove(&id)?.stage {
            Stage::Waiting(claim) => Some(claim),
            Stage::Writing { .. } => None,
        }
    }
}
