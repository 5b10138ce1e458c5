//! Promises to readers (rule 8): what a lease holds can neither be evicted nor change until it is released,
//! its session ends, or its time is up. Time is checked whenever a lease is used, not only by the sweep.

use std::collections::BTreeSet;
use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use tender_proto::{LeaseId, Reason, SessionId};

use crate::engine::LeaseEnd;
use crate::ids::IdSource;
use crate::index::Pin;
use crate::recent::Recent;
use crate::sync::{Mutex, Planted, planted};

/// Expired leases that are remembered, to tell a late reader from a confused one.
const REMEMBERED_LEASES: usize = 16_384;

/// What a lookup wants to be leased.
#[derive(Debug)]
pub(crate) struct LeaseWish {
    pub(crate) session: SessionId,
    pub(crate) deadline: Instant,
    /// Chunks asked for, leased or not.
    pub(crate) asked: usize,
    /// Position in the question and pin, ascending.
    pub(crate) pins: Vec<(usize, Pin)>,
}

/// All live leases. Pins are dropped outside its lock.
#[derive(Debug)]
pub(crate) struct Leases {
    ids: IdSource,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    max_per_session: usize,
    by_id: HashMap<LeaseId, LeaseWish>,
    /// One entry for each open session, so that nothing is granted to one that has ended.
    by_session: HashMap<SessionId, HashSet<LeaseId>>,
    by_deadline: BTreeSet<(Instant, LeaseId)>,
    expired: Recent<LeaseId, SessionId>,
    expired_count: u64,
    pins: u64,
}

impl Leases {
    pub(crate) fn new(max_per_session: usize, boot: u32) -> Self {
        let inner = Inner {
            max_per_session,
            by_id: HashMap::new(),
            by_session: HashMap::new(),
            by_deadline: BTreeSet::new(),
            expired: Recent::new(REMEMBERED_LEASES),
            expired_count: 0,
            pins: 0,
        };
        Self { ids: IdSource::new(boot), inner: Mutex::new(inner) }
    }

    /// For leases that are granted from now on.
    pub(crate) fn set_limit(&self, max_per_session: usize) {
        self.inner.lock().max_per_session = max_per_session;
    }

    /// Leases may be granted to this session from now on.
    pub(crate) fn open(&self, session: SessionId) {
        self.inner.lock().by_session.insert(session, HashSet::new());
    }
    /// Leases of one session.
    pub(crate) fn held_by(&self, session: SessionId) -> u64 {
        self.inner.lock().by_session.get(&session).map_or(0, |leases| leases.len() as u64)
    }
    /// Ends every lease of a session.
    pub(crate) fn close(&self, session: SessionId) {
        let mut inner = self.inner.lock();
        let ids = inner.by_session.remove(&session).unwrap_or_default();
        let ended: Vec<_> = ids.into_iter().filter_map(|id| inner.take(id)).collect();
        drop(inner);
        drop(ended);
    }

    /// Grants a lease; too many of one session or an ended session are refused.
    pub(crate) fn grant(&self, wish: LeaseWish) -> Result<LeaseId, Reason> {
        let mut inner = self.inner.lock();
        let refused = match inner.by_session.get(&wish.session) {
            None if planted(Planted::SessionNotLookedAt) => None,
            None => Some(Reason::UnknownSession),
            Some(leases) if leases.len() >= inner.max_per_session => Some(Reason::TooMany),
            Some(_) => None,
        };
        let id = LeaseId::new(self.ids.next()).ok_or(Reason::Internal);
        match (refused, id) {
            (None, Ok(id)) => {
                inner.add(id, wish);
                Ok(id)
            }
            (refused, id) => {
                drop(inner);
                drop(wish);
                Err(refused.or(id.err()).unwrap_or(Reason::Internal))
            }
        }
    }

    /// Ends leases and says for each whether it was good until now.
    pub(crate) fn release(&self, session: SessionId, ids: &[u64], now: Instant) -> Vec<LeaseEnd> {
        let mut ended = Vec::new();
        let mut inner = self.inner.lock();
        let ends = ids
            .iter()
            .map(|&raw| {
                let own = LeaseId::new(raw).filter(|id| inner.owned(*id, session).is_some());
                let Some(lease) = own.and_then(|id| inner.take(id)) else {
                    return if planted(Planted::UnknownIsLive) { LeaseEnd::Live } else { LeaseEnd::Expired };
                };
                let live = now < lease.deadline;
                if !live {
                    inner.expired_count += 1;
                }
                ended.push(lease);
                if live { LeaseEnd::Live } else { LeaseEnd::Expired }
            })
            .collect();
        drop(inner);
        drop(ended);
        ends
    }

    /// A pin of one's own on a leased chunk, and when the lease ends.
    pub(crate) fn pin(
        &self,
        session: SessionId,
        raw: u64,
        chunk_index: usize,
        now: Instant,
    ) -> Result<(Pin, Instant), Reason> {
        let id = LeaseId::new(raw).ok_or(Reason::UnknownLease)?;
        let inner = self.inner.lock();
        let Some(lease) = inner.owned(id, session) else {
            let expired = inner.expired.get(&id) == Some(&session);
            return Err(if expired { Reason::LeaseExpired } else { Reason::UnknownLease });
        };
        if now >= lease.deadline {
            return Err(Reason::LeaseExpired);
        }
        if chunk_index >= lease.asked {
            return Err(Reason::Malformed);
        }
        let at = lease.pins.binary_search_by_key(&chunk_index, |(index, _)| *index);
        // The chunk was not READY when the lease was granted, so it is not part of it.
        let at = at.map_err(|_| Reason::NeverStored)?;
        Ok((lease.pins[at].1.clone(), lease.deadline))
    }

    /// Ends what is over.
    pub(crate) fn expire(&self, now: Instant) {
        let mut ended = Vec::new();
        let mut inner = self.inner.lock();
        while let Some(&(deadline, id)) = inner.by_deadline.first().filter(|(deadline, _)| *deadline <= now) {
            inner.by_deadline.remove(&(deadline, id));
            if let Some(lease) = inner.take(id) {
                inner.expired.remember(id, lease.session);
                inner.expired_count += 1;
                ended.push(lease);
            }
        }
        drop(inner);
        drop(ended);
    }

    /// Live leases and the chunks they hold.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.by_id.len() as u64, inner.pins)
    }
    /// Leases that were not ended in time.
    pub(crate) fn expired_count(&self) -> u64 {
        self.inner.lock().expired_count
    }
    /// Calls with every pin of every lease, after checking the tables against each other.
    pub(crate) fn audit(&self, mut each: impl FnMut(&Pin)) -> Result<usize, String> {
        let inner = self.inner.lock();
        let owned: usize = inner.by_session.values().map(HashSet::len).sum();
        let pins: usize = inner.by_id.values().map(|lease| lease.pins.len()).sum();
        if owned != inner.by_id.len() || inner.by_deadline.len() != owned || pins as u64 != inner.pins {
            return Err(format!(
                "{} leases, {owned} owned, {} with a deadline, {pins} pins of {}",
                inner.by_id.len(),
                inner.by_deadline.len(),
                inner.pins
            ));
        }
        inner.by_id.values().flat_map(|lease| &lease.pins).for_each(|(_, pin)| each(pin));
        Ok(inner.by_session.len())
    }
}

impl Inner {
    fn add(&mut self, id: LeaseId, wish: LeaseWish) {
        self.by_session.entry(wish.session).or_default().insert(id);
        self.by_deadline.insert((wish.deadline, id));
        self.pins += wish.pins.len() as u64;
        self.by_id.insert(id, wish);
    }
    fn take(&mut self, id: LeaseId) -> Option<LeaseWish> {
        let lease = self.by_id.remove(&id)?;
        self.by_deadline.remove(&(lease.deadline, id));
        if let Some(ids) = self.by_session.get_mut(&lease.session) {
            ids.remove(&id);
        }
        self.pins -= lease.pins.len() as u64;
        Some(lease)
    }
    fn owned(&self, id: LeaseId, session: SessionId) -> Option<&LeaseWish> {
        self.by_id.get(&id).filter(|lease| lease.session == session)
    }
}

impl Drop for LeaseWish {
    /// The last chunk of a prefix goes back first, so that it is evicted before those it depends on.
    fn drop(&mut self) {
        while self.pins.pop().is_some() {}
    }
}
