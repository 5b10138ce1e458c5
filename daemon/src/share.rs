//! What each tenant's domain may take of what all use together: sessions, staging memory and bytes in flight. Where its
//! policy states nothing, it is half of what there is, so that nobody can take all.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tender_proto::Reason;

use crate::access::policy::DomainQuota;
use crate::admission::Budget;
use crate::engine::EngineConfig;

/// A domain's budgets. Its sessions hold it; what they have stored may hold a budget for longer.
#[derive(Debug)]
pub(crate) struct Share {
    sessions: Arc<Budget>,
    pub(crate) staging: Arc<Budget>,
    pub(crate) inflight: Arc<Budget>,
}

/// A session's place in its domain's share, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct SessionPlace(Arc<Budget>);

impl Share {
    fn new(limits: Limits) -> Arc<Self> {
        let Limits { sessions, staging_bytes, inflight_bytes } = limits;
        Arc::new(Self {
            sessions: Budget::new(sessions),
            staging: Budget::new(staging_bytes),
            inflight: Budget::new(inflight_bytes),
        })
    }
    /// For one more session.
    pub(crate) fn open(&self) -> Result<SessionPlace, Reason> {
        if self.sessions.take(1) {
            Ok(SessionPlace(Arc::clone(&self.sessions)))
        } else {
            Err(Reason::OverQuota)
        }
    }
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        self.0.give(1);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Limits {
    sessions: u64,
    staging_bytes: u64,
    inflight_bytes: u64,
}

/// Those of all domains that have had a session.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Where the policy says nothing.
    usual: Limits,
    inner: Mutex<Inner>,
}

#[derive(Default, Debug)]
struct Inner {
    quotas: HashMap<Arc<str>, DomainQuota>,
    by_domain: HashMap<Arc<str>, Arc<Share>>,
}

impl Shares {
    /// For a daemon of this size.
    pub(crate) fn new(config: &EngineConfig) -> Self {
        // What one session may have, a domain may have too.
        let usual = Limits {
            sessions: (config.max_sessions as u64).div_ceil(2),
            staging_bytes: (config.max_total_staging_bytes / 2).max(config.max_staging_bytes),
            inflight_bytes: (config.max_inflight_bytes / 2).max(config.max_session_inflight_bytes),
        };
        Self { usual, inner: Mutex::default() }
    }

    /// A domain's. `None` without a policy: then all are one.
    pub(crate) fn of(&self, domain: &Arc<str>) -> Option<Arc<Share>> {
        if domain.is_empty() {
            return None;
        }
        let Inner { quotas, by_domain } = &mut *self.inner.lock();
        let new = || Share::new(self.limits(quotas.get(domain)));
        Some(Arc::clone(by_domain.entry(Arc::clone(domain)).or_insert_with(new)))
    }

    /// From now on. What is taken above it comes back as it ends.
    pub(crate) fn set(&self, quotas: &HashMap<Arc<str>, DomainQuota>) {
        let mut inner = self.inner.lock();
        inner.quotas.clone_from(quotas);
        for (domain, share) in &inner.by_domain {
            let limits = self.limits(quotas.get(domain));
            share.sessions.set_limit(limits.sessions);
            share.staging.set_limit(limits.staging_bytes);
            share.inflight.set_limit(limits.inflight_bytes);
        }
    }

    fn limits(&self, quota: Option<&DomainQuota>) -> Limits {
        let quota = quota.copied().unwrap_or_default();
        let or = |stated: u64, usual: u64| if stated == 0 { usual } else { stated };
        Limits {
            sessions: or(quota.sessions, self.usual.sessions),
            staging_bytes: or(quota.staging_bytes, self.usual.staging_bytes),
            inflight_bytes: or(quota.inflight_bytes, self.usual.inflight_bytes),
        }
    }
}
