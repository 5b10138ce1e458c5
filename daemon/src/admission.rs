//! How many bytes may be in flight: reserved, being written, or waiting for other parts of their chunk. Such
//! memory cannot be evicted, so each session and all together have a budget.

use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Setting;

use tender_proto::Reason;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Planted, planted};

/// A number of bytes with a limit.
#[derive(Debug)]
pub(crate) struct Budget {
    used_bytes: AtomicU64,
    /// Not one of those that models follow: it changes with the configuration alone.
    limit_bytes: Setting,
}

impl Budget {
    pub(crate) fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { used_bytes: AtomicU64::new(0), limit_bytes: Setting::new(limit_bytes) })
    }
    /// From now on. What was taken beyond it is given back as ever.
    pub(crate) fn set_limit(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, std::sync::atomic::Ordering::Relaxed);
    }
    /// The most that may be in use.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(std::sync::atomic::Ordering::Relaxed)
    }
    /// Bytes in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }
    /// Takes bytes; false when they are not there.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let limit_bytes = self.limit_bytes.load(std::sync::atomic::Ordering::Relaxed);
        let within = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit_bytes);
        if planted(Planted::BudgetInTwoSteps) {
            let Some(sum) = within(self.used_bytes.load(Ordering::Acquire)) else { return false };
            self.used_bytes.store(sum, Ordering::Release);
            return true;
        }
        self.used_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, within).is_ok()
    }
    /// Gives bytes back.
    pub(crate) fn give(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// The right to have some bytes in flight, for one session. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Permit {
    all: Arc<Budget>,
    session: Arc<Budget>,
    /// Of the session's domain, where that has one.
    domain: Option<Arc<Budget>>,
    /// Of the chunk's namespace, where somebody counts that too.
    namespace: Option<Arc<Budget>>,
    bytes: u64,
}

impl Permit {
    /// Takes bytes from both budgets or from none; [`Reason::Throttled`] says to come back later.
    pub(crate) fn take(all: &Arc<Budget>, session: &Arc<Budget>, bytes: u64) -> Result<Self, Reason> {
        if !session.take(bytes) {
            return Err(Reason::Throttled);
        }
        if !all.take(bytes) {
            session.give(bytes);
            return Err(Reason::Throttled);
        }
        Ok(Self { all: Arc::clone(all), session: Arc::clone(session), domain: None, namespace: None, bytes })
    }
    /// Takes the bytes from a domain's budget too, or gives all back; [`Reason::OverQuota`] says whose turn it is not.
    pub(crate) fn within(mut self, domain: &Arc<Budget>) -> Result<Self, Reason> {
        if !domain.take(self.bytes) {
            return Err(Reason::OverQuota);
        }
        self.domain = Some(Arc::clone(domain));
        Ok(self)
    }
    /// Counts the bytes as a namespace's too, whose budget has no limit.
    pub(crate) fn counted_in(mut self, namespace: &Arc<Budget>) -> Self {
        if namespace.take(self.bytes) {
            self.namespace = Some(Arc::clone(namespace));
        }
        self
    }
    /// How many.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.all.give(self.bytes);
        self.session.give(self.bytes);
        if let Some(domain) = &self.domain {
            domain.give(self.bytes);
        }
        if let Some(namespace) = &self.namespace {
            namespace.give(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_is_taken_from_both_budgets_or_from_none() {
        let (all, one, two) = (Budget::new(100), Budget::new(80), Budget::new(80));
        let held = Permit::take(&all, &one, 70).unwrap();
        assert_eq!(Permit::take(&all, &one, 20).unwrap_err(), Reason::Throttled);
        assert_eq!(Permit::take(&all, &two, 31).unwrap_err(), Reason::Throttled);
        assert_eq!((two.used_bytes(), all.used_bytes()), (0, 70));
        assert_eq!(Permit::take(&all, &two, 30).unwrap().bytes(), 30);
        drop(held);
        assert_eq!((one.used_bytes(), all.used_bytes()), (0, 0));
    }

    #[test]
    fn a_domain_has_its_share_and_what_it_does_not_get_is_given_back() {
        let (all, one, domain) = (Budget::new(100), Budget::new(80), Budget::new(50));
        let held = Permit::take(&all, &one, 30).unwrap().within(&domain).unwrap();
        assert_eq!(Permit::take(&all, &one, 21).unwrap().within(&domain).unwrap_err(), Reason::OverQuota);
        assert_eq!((all.used_bytes(), one.used_bytes(), domain.used_bytes()), (30, 30, 30));
        domain.set_limit(60);
        drop(Permit::take(&all, &one, 30).unwrap().within(&domain).unwrap());
        domain.set_limit(10);
        assert!(!domain.take(1));
        drop(held);
        assert_eq!((all.used_bytes(), one.used_bytes(), domain.used_bytes()), (0, 0, 0));
    }

    #[test]
    fn an_absurd_size_does_not_wrap() {
        let budget = Budget::new(u64::MAX);
        assert!(budget.take(u64::MAX));
        assert!(!budget.take(1));
    }
}
