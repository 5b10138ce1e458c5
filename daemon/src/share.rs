//! What each tenant's domain may take of what all use together: sessions, watchers, staging memory and bytes in flight. Where its
//! policy states nothing, it is half of what there is, so that nobody can take all.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tender_proto::Reason;

use crate::access::policy::DomainQuota;
use crate::admission::Budget;
use crate::engine::{Limits as DaemonLimits, MAX_FOLLOWERS};

/// A domain's budgets. Its sessions hold it; what they have stored may hold a budget for longer.
#[derive(Debug)]
pub(crate) struct Share {
    sessions: Arc<Budget>,
    watchers: Arc<Budget>,
    pub(crate) staging: Arc<Budget>,
    pub(crate) inflight: Arc<Budget>,
}

/// The place of a session or watcher in its domain's share, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Budget>);

impl Share {
    fn new(limits: Limits) -> Arc<Self> {
        let Limits { sessions, watchers, staging_bytes, inflight_bytes } = limits;
        Arc::new(Self {
            sessions: Budget::new(sessions),
            watchers: Budget::new(watchers),
            staging: Budget::new(staging_bytes),
            inflight: Budget::new(inflight_bytes),
        })
    }
    /// For one more session.
    pub(crate) fn open(&self) -> Result<Place, Reason> {
        Place::take(&self.sessions)
    }
    /// For one more watcher of events.
    pub(crate) fn watch(&self) -> Result<Place, Reason> {
        Place::take(&self.watchers)
    }
}

impl Place {
    fn take(places: &Arc<Budget>) -> Result<Self, Reason> {
        if places.take(1) { Ok(Self(Arc::clone(places))) } else { Err(Reason::OverQuota) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.give(1);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Limits {
    sessions: u64,
    watchers: u64,
    staging_bytes: u64,
    inflight_bytes: u64,
}

/// Those of all domains that have had a session.
#[derive(Debug)]
pub(crate) struct Shares {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Where the policy says nothing.
    usual: Limits,
    quotas: HashMap<Arc<str>, DomainQuota>,
    by_domain: HashMap<Arc<str>, Arc<Share>>,
}

impl Shares {
    /// For a daemon of this size.
    pub(crate) fn new(daemon: &DaemonLimits) -> Self {
        let (quotas, by_domain) = (HashMap::new(), HashMap::new());
        Self { inner: Mutex::new(Inner { usual: usual(daemon), quotas, by_domain }) }
    }

    /// A domain's. `None` without a policy: then all are one.
    pub(crate) fn of(&self, domain: &Arc<str>) -> Option<Arc<Share>> {
        if domain.is_empty() {
            return None;
        }
        let mut inner = self.inner.lock();
        let limits = inner.limits(domain);
        Some(Arc::clone(inner.by_domain.entry(Arc::clone(domain)).or_insert_with(|| Share::new(limits))))
    }

    /// The policy's quotas from now on. What is taken above them comes back as it ends.
    pub(crate) fn set(&self, quotas: &HashMap<Arc<str>, DomainQuota>) {
        let mut inner = self.inner.lock();
        inner.quotas.clone_from(quotas);
        inner.apply();
    }

    /// The daemon's own limits from now on.
    pub(crate) fn set_usual(&self, daemon: &DaemonLimits) {
        let mut inner = self.inner.lock();
        inner.usual = usual(daemon);
        inner.apply();
    }
}

impl Inner {
    fn apply(&self) {
        for (domain, share) in &self.by_domain {
            let limits = self.limits(domain);
            share.sessions.set_limit(limits.sessions);
            share.watchers.set_limit(limits.watchers);
            share.staging.set_limit(limits.staging_bytes);
            share.inflight.set_limit(limits.inflight_bytes);
        }
    }

    fn limits(&self, domain: &str) -> Limits {
        let quota = self.quotas.get(domain).copied().unwrap_or_default();
        let or = |stated: u64, usual: u64| if stated == 0 { usual } else { stated };
        Limits {
            sessions: or(quota.sessions, self.usual.sessions),
            watchers: or(quota.watchers, self.usual.watchers),
            staging_bytes: or(quota.staging_bytes, self.usual.staging_bytes),
            inflight_bytes: or(quota.inflight_bytes, self.usual.inflight_bytes),
        }
    }
}

/// Half of the daemon's; but what one session may have, a domain may have too.
fn usual(daemon: &DaemonLimits) -> Limits {
    Limits {
        sessions: (daemon.max_sessions as u64).div_ceil(2),
        watchers: (MAX_FOLLOWERS as u64).div_ceil(2),
        staging_bytes: (daemon.max_total_staging_bytes / 2).max(daemon.max_staging_bytes),
        inflight_bytes: (daemon.max_inflight_bytes / 2).max(daemon.max_session_inflight_bytes),
    }
}
