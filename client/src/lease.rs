//! A lease that gives itself back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tender_proto::{LeaseId, Reason};

use crate::client::{Client, Pace};
use crate::session::Session;
use crate::transport::calls::LeaseGrant;

/// How long a release that nobody waits for may take; the lease ends by itself anyway.
const QUIET_RELEASE: Duration = Duration::from_secs(2);

/// A promise of the daemon in our hands. Dropping it releases it in the background; nothing leaks if that
/// fails, since the lease has an end and belongs to a session.
#[derive(Debug)]
pub(crate) struct HeldLease {
    client: Client,
    session: Arc<Session>,
    grant: LeaseGrant,
    released: bool,
}

impl HeldLease {
    pub(crate) fn new(client: &Client, session: &Arc<Session>, grant: LeaseGrant) -> Self {
        Self { client: client.clone(), session: Arc::clone(session), grant, released: false }
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.grant.id
    }

    /// Whether the daemon still keeps it, by our clock (which is the stricter one) and our session.
    pub(crate) fn is_good(&self, now: Instant) -> bool {
        now < self.grant.until && !self.session.has_ended()
    }

    /// Ends it. `Ok(true)` alone means that what was read under it may be used. The chunks at the positions `suspects`
    /// of the lookup were read and did not match their digests.
    pub(crate) fn release(mut self, deadline: Instant, suspects: &[u32]) -> Result<bool, Reason> {
        let release = self.session.calls.release(self.grant.id, suspects);
        let live = self.client.ask_blocking(&self.session, deadline, Pace::Quick, release);
        // Unanswered: try again in the background, since the daemon may not have heard it.
        self.released = live.is_ok();
        live
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if self.released || self.session.has_ended() {
            return;
        }
        let (session, id) = (Arc::clone(&self.session), self.grant.id);
        self.client.runtime().spawn(async move {
            // Past the breaker: this asks for nothing.
            _ = tokio::time::timeout(QUIET_RELEASE, session.calls.release(id, &[])).await;
        });
    }
}
