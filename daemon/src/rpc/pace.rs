//! How fast frames go to a reader: by its tenant's rate, and in turn with other tenants.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use crate::access::Tenant;
use crate::fair::{Asked, Fair, Turn};

/// A reader whose tenant has had its share is looked at again after this at the latest: its lease may be over.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Pace {
    fair: Arc<Fair>,
    tenant: Arc<Tenant>,
    frame_bytes: u64,
    /// Every lease is over by then.
    give_up: Instant,
    sleeping: Option<Pin<Box<Sleep>>>,
    queued: Option<oneshot::Receiver<Turn>>,
}

impl Pace {
    pub(super) fn new(
        fair: &Arc<Fair>,
        tenant: &Arc<Tenant>,
        frame_bytes: usize,
        max_lease: Duration,
    ) -> Self {
        Self {
            fair: Arc::clone(fair),
            tenant: Arc::clone(tenant),
            frame_bytes: frame_bytes as u64,
            give_up: Instant::now() + max_lease,
            sleeping: None,
            queued: None,
        }
    }

    /// Payload was put into a frame.
    pub(super) fn sent(&self, bytes: u64) {
        self.tenant.sent(bytes);
    }

    /// Waits until the next frame may be made, and holds the turn for it. Whoever is `over` has nothing to wait for.
    pub(super) fn poll_turn(
        &mut self,
        context: &mut Context<'_>,
        over: impl Fn() -> bool,
    ) -> Poll<Option<Turn>> {
        loop {
            if let Some(sleeping) = &mut self.sleeping {
                ready!(sleeping.as_mut().poll(context));
                self.sleeping = None;
            }
            if over() || Instant::now() >= self.give_up {
                return Poll::Ready(None);
            }
            if let Some(queued) = &mut self.queued {
                let turn = ready!(Pin::new(queued).poll(context));
                self.queued = None;
                return Poll::Ready(turn.ok());
            }
            if let Some(wait) = self.tenant.must_wait() {
                self.sleeping = Some(Box::pin(sleep(wait.min(LOOK_AGAIN))));
                continue;
            }
            match self.fair.ask(self.tenant.usage.number, self.frame_bytes) {
                Asked::Now(turn) => return Poll::Ready(Some(turn)),
                Asked::Later(queued) => self.queued = Some(queued),
            }
        }
    }
}
