//! Who is connected, and what each session has bound and attached. Leases and reservations know their
//! session themselves.

use std::sync::Arc;

use hashbrown::HashMap;
use tender_proto::{NamespaceDigest, Reason, Refusal, SessionId};
use tokio::sync::watch;

use crate::access::peer::Caller;
use crate::admission::Budget;
use crate::namespace::Namespace;
use crate::share::{Place, Share};
use crate::staging::Staging;
use crate::sync::{Mutex, RwLock};

/// Whose work a session does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whose {
    /// A client's.
    Client,
    /// The daemon's own. It uses every namespace, and keeps none from being forgotten.
    House,
}

/// Who opened a session. Nobody else may use it: for others it does not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    pub(crate) whose: Whose,
    pub(crate) caller: Caller,
    /// Its namespaces are those of this domain, whatever the client calls them.
    pub(crate) domain: Arc<str>,
    pub(crate) attach: Attach,
    /// The tenant's name, for what is written about it.
    pub(crate) tenant: Arc<str>,
}

/// Which processes get the shared memory of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attach {
    /// Those that the descriptor socket lets in.
    Anyone,
    /// Of these, the ones of this user.
    Uid(u32),
    Nobody,
}

impl Owner {
    /// A caller in the same process.
    pub(crate) fn in_process() -> Self {
        Self {
            whose: Whose::Client,
            caller: Caller::Anonymous,
            domain: "".into(),
            attach: Attach::Anyone,
            tenant: "-".into(),
        }
    }
    /// The daemon itself.
    pub(crate) fn house() -> Self {
        Self { whose: Whose::House, attach: Attach::Nobody, ..Self::in_process() }
    }
    /// Whether somebody else than the daemon itself opened it.
    pub(crate) fn is_client(&self) -> bool {
        self.whose == Whose::Client
    }
}

/// One open session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) owner: Owner,
    /// Bytes in flight of this session.
    pub(crate) budget: Arc<Budget>,
    /// Of its domain, where that has one.
    pub(crate) share: Option<Arc<Share>>,
    /// Counts the resets that it must hear of.
    resets: watch::Sender<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ended: bool,
    bound: HashMap<NamespaceDigest, Arc<Namespace>>,
    staging: Option<Arc<Staging>>,
    /// Goes with the session's end, whoever still works for it.
    place: Option<Place>,
}

impl Session {
    /// Binds a namespace under the digest that the client knows it by; `Ok(false)` when it was bound before.
    pub(crate) fn bind(&self, digest: NamespaceDigest, namespace: &Arc<Namespace>) -> Result<bool, Refusal> {
        let mut state = self.state.lock();
        if state.ended {
            return Err(unknown(self.id));
        }
        if !self.owner.is_client() {
            // Those that were forgotten since: nobody else has them.
            state.bound.retain(|_, bound| Arc::strong_count(bound) > 1);
        }
        let before = state.bound.insert(digest, Arc::clone(namespace));
        Ok(before.is_none() && self.owner.is_client())
    }
    /// A namespace that this session has registered, by the digest that the client knows it by.
    pub(crate) fn namespace(&self, digest: NamespaceDigest) -> Result<Arc<Namespace>, Refusal> {
        let state = self.state.lock();
        // It had namespaces, and its end took them away.
        if state.ended {
            return Err(unknown(self.id));
        }
        state.bound.get(&digest).cloned().ok_or_else(|| {
            Refusal::new(
                Reason::UnknownNamespace,
                format!("the namespace {digest}"),
                "register it in this session first",
            )
        })
    }
    /// The region that was attached.
    pub(crate) fn staging(&self) -> Option<Arc<Staging>> {
        self.state.lock().staging.clone()
    }
    /// Attaches a region in place of an earlier one, which lives on while somebody copies out of it.
    pub(crate) fn attach(&self, staging: Arc<Staging>) -> Result<(), Reason> {
        let mut state = self.state.lock();
        if state.ended {
            return Err(Reason::UnknownSession);
        }
        let replaced = state.staging.replace(staging);
        drop(state);
        drop(replaced);
        Ok(())
    }
    /// Hears of the resets of its namespaces.
    pub(crate) fn resets(&self) -> watch::Receiver<u64> {
        self.resets.subscribe()
    }
    /// Some of the namespaces were reset. Who has registered none of them hears nothing: that there is another tenant
    /// which resets is not for it to know.
    pub(crate) fn tell_reset(&self, which: impl Fn(&Namespace) -> bool) {
        if self.state.lock().bound.values().any(|namespace| which(namespace)) {
            self.resets.send_modify(|count| *count += 1);
        }
    }
    fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        drop(state.place.take());
        let (bound, staging) = (std::mem::take(&mut state.bound), state.staging.take());
        drop(state);
        if self.owner.is_client() {
            bound.values().for_each(|namespace| namespace.unbind());
        }
        drop(staging);
    }
}

/// All open sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    inner: RwLock<Open>,
}

#[derive(Debug, Default)]
struct Open {
    max: usize,
    /// Of each session.
    budget_bytes: u64,
    by_id: HashMap<SessionId, Arc<Session>>,
    /// No more are opened.
    shut: bool,
}

impl Sessions {
    /// At most `max` sessions, each with a budget of bytes in flight.
    pub(crate) fn new(max: usize, budget_bytes: u64) -> Self {
        Self { inner: RwLock::new(Open { max, budget_bytes, ..Open::default() }) }
    }
    /// For those that come, and the budget for those that are open too.
    pub(crate) fn set_limits(&self, max: usize, budget_bytes: u64) {
        let mut inner = self.inner.write();
        (inner.max, inner.budget_bytes) = (max, budget_bytes);
        inner.by_id.values().for_each(|session| session.budget.set_limit(budget_bytes));
    }
    /// Opens one. `ready` is called before anybody can name it.
    pub(crate) fn open(
        &self,
        owner: Owner,
        share: Option<Arc<Share>>,
        ready: impl FnOnce(SessionId),
    ) -> Result<SessionId, Refusal> {
        let mut inner = self.inner.write();
        if inner.shut {
            return Err(draining());
        }
        // Before the number of all is looked at: at its quota a tenant learns nothing of how many others have.
        let place = share.as_ref().map(|share| share.open()).transpose().map_err(|reason| {
            let advice = "close sessions, or let the policy give the tenant more";
            Refusal::new(reason, "one session more than the tenant's quota", advice)
        })?;
        let clients = || inner.by_id.values().filter(|session| session.owner.is_client()).count();
        if owner.is_client() && inner.by_id.len() >= inner.max && clients() >= inner.max {
            return Err(Refusal::new(
                Reason::TooMany,
                format!("one session more than {}", inner.max),
                "close sessions or raise the daemon's limit",
            ));
        }
        let id = SessionId::from_random(rand::random());
        ready(id);
        let budget = Budget::new(inner.budget_bytes);
        let state = Mutex::new(State { place, ..State::default() });
        let session = Session { id, owner, budget, share, resets: watch::Sender::new(0), state };
        inner.by_id.insert(id, Arc::new(session));
        Ok(id)
    }
    /// Ends one; false when it had ended.
    pub(crate) fn close(&self, id: SessionId) -> bool {
        let removed = self.inner.write().by_id.remove(&id);
        if let Some(session) = &removed {
            session.end();
        }
        removed.is_some()
    }
    /// Those that are open now; no other is opened from now on.
    pub(crate) fn shut(&self) -> Vec<SessionId> {
        let mut inner = self.inner.write();
        inner.shut = true;
        inner.by_id.keys().copied().collect()
    }
    /// An open one.
    pub(crate) fn get(&self, id: SessionId) -> Result<Arc<Session>, Refusal> {
        self.inner.read().by_id.get(&id).cloned().ok_or_else(|| unknown(id))
    }
    /// An open one of this owner; anybody else's is as unknown as one that never was.
    pub(crate) fn check_owner(&self, id: SessionId, owner: &Owner) -> Result<(), Refusal> {
        let session = self.get(id)?;
        let same = session.owner.caller == owner.caller && session.owner.domain == owner.domain;
        if same { Ok(()) } else { Err(unknown(id)) }
    }
    /// All that are open.
    pub(crate) fn list(&self) -> Vec<Arc<Session>> {
        self.inner.read().by_id.values().cloned().collect()
    }
    pub(crate) fn len(&self) -> usize {
        self.inner.read().by_id.len()
    }
}

/// What a daemon that is about to stop answers to new work.
pub(crate) fn draining() -> Refusal {
    Refusal::new(Reason::Draining, "the call", "the daemon is about to stop; go on without it")
}

fn unknown(id: SessionId) -> Refusal {
    Refusal::new(Reason::UnknownSession, format!("the session {id}"), "open a new session and register again")
}
