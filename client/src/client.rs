//! A client: one daemon, one live session at a time, kept up in the background.
//!
//! Nothing here blocks an engine: a client without a session answers "not now" at once.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tender_proto::{Descriptor, NamespaceDigest, Reason, Refusal};
use tender_trace::Tracer;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::admin;
use crate::breaker::Breaker;
use crate::config::ClientConfig;
use crate::counters::{Counters, Tally};
use crate::error::ClientError;
use crate::runtime;
use crate::session::{self, Link, Session};

/// How long an engine that ends may wait for spans on their way to the collector.
const LAST_SPANS: Duration = Duration::from_millis(500);

/// What a client is for: it decides what its sessions ask of the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Lookups and leases only, as a scheduler needs.
    Lookups,
    /// Moving bytes too: with a staging region and, where offered, the arena mapped.
    Data,
}

/// How the breaker judges a call that was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// By its time: it is always small.
    Quick,
    /// Only by being answered: its time grows with its bytes.
    Bulk,
}

/// A client of one daemon. Clones share it; the last one to go ends the session.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    _stops_the_session: Arc<DropGuard>,
}

/// What a client and its background task share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ClientConfig,
    pub(crate) purpose: Purpose,
    pub(crate) runtime: Handle,
    pub(crate) bulk: Handle,
    pub(crate) breaker: Breaker,
    pub(crate) tally: Arc<Tally>,
    /// Registered in every session, in this order.
    pub(crate) namespaces: Mutex<Vec<Arc<Descriptor>>>,
    /// A namespace was added.
    pub(crate) namespaces_changed: Notify,
    pub(crate) link: watch::Sender<Link>,
    pub(crate) stop: CancellationToken,
    pub(crate) trace: Tracer,
}

impl Client {
    /// Starts a client. It does not wait for the daemon, which may come, go and come back.
    pub fn new(config: ClientConfig, purpose: Purpose) -> Result<Self, ClientError> {
        config.check()?;
        let stop = CancellationToken::new();
        let runtime = runtime::calls()?;
        let trace = {
            let _carries_the_connection = runtime.enter();
            Tracer::open(&config.trace, "tender-client", &config.client_name)?
        };
        let shared = Arc::new(Shared {
            breaker: Breaker::new(config.breaker),
            config,
            purpose,
            runtime,
            bulk: runtime::bulk()?,
            tally: Arc::default(),
            namespaces: Mutex::default(),
            namespaces_changed: Notify::new(),
            link: watch::Sender::new(Link::Down),
            stop: stop.clone(),
            trace,
        });
        shared.runtime.spawn(session::keep(Arc::clone(&shared)));
        Ok(Self { shared, _stops_the_session: Arc::new(stop.drop_guard()) })
    }

    /// Registers a namespace in this session and in every later one. What the daemon answers shows in the log
    /// and in [`Counters::session`].
    pub fn register(&self, descriptor: Arc<Descriptor>) -> NamespaceDigest {
        let digest = descriptor.digest();
        let mut all = self.shared.namespaces.lock();
        if all.iter().all(|known| known.digest() != digest) {
            all.push(descriptor);
            self.shared.namespaces_changed.notify_one();
        }
        digest
    }

    /// Waits until a session is up and every namespace is registered in it.
    pub fn wait_until_up(&self, limit: Duration) -> bool {
        let shared = Arc::clone(&self.shared);
        let up = async move {
            let mut link = shared.link.subscribe();
            let ready = |link: &Link| match link {
                Link::Up(session) => shared.namespaces.lock().iter().all(|d| session.knows(d.digest())),
                Link::Down | Link::Refused(_) => false,
            };
            link.wait_for(ready).await.is_ok()
        };
        runtime::wait(&self.shared.runtime, limit, up).unwrap_or(false)
    }

    /// Ends the session and opens no other. What is under way fails at once.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Sends the spans that have ended, for no longer than half a second; later ones go nowhere.
    pub(crate) fn end_trace(&self) {
        self.shared.trace.close(LAST_SPANS);
    }

    /// What the daemon last said no to, if that is why no session is up.
    pub fn refusal(&self) -> Option<Refusal> {
        match &*self.shared.link.borrow() {
            Link::Refused(refusal) => Some(refusal.clone()),
            Link::Up(_) | Link::Down => None,
        }
    }

    /// Forgets everything the daemon has stored in a namespace. When it returns `Ok`, no later lookup finds
    /// anything that was stored before. Works without a session.
    pub fn reset(&self, namespace: NamespaceDigest) -> Result<admin::Dropped, ClientError> {
        let config = &self.shared.config;
        let scope = admin::ResetScope::Namespace(namespace);
        admin::reset(&config.address, &config.credentials(), scope, config.reset_deadline)
    }

    /// This moment's numbers.
    pub fn counters(&self) -> Counters {
        let mut counters = self.shared.tally.read();
        let link = self.shared.link.borrow();
        counters.session = link.label().into();
        counters.transport = match &*link {
            Link::Up(session) => session.transport_name().into(),
            Link::Down | Link::Refused(_) => "none".into(),
        };
        let spans = self.shared.trace.counts().unwrap_or_default();
        counters.exported_spans = spans.exported;
        counters.lost_spans = spans.failed + spans.dropped;
        counters.breaker = self.shared.breaker.state().label().into();
        counters
    }

    pub(crate) fn config(&self) -> &ClientConfig {
        &self.shared.config
    }

    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.shared.tally
    }

    pub(crate) fn trace(&self) -> &Tracer {
        &self.shared.trace
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    /// The session to use for something new in this namespace, or why there is none.
    pub(crate) fn session(&self, namespace: NamespaceDigest) -> Result<Arc<Session>, Reason> {
        match &*self.shared.link.borrow() {
            Link::Up(_) if self.shared.breaker.is_open(Instant::now()) => Err(Reason::BreakerOpen),
            Link::Up(session) if session.is_draining() => Err(Reason::Draining),
            Link::Up(session) if session.knows(namespace) => Ok(Arc::clone(session)),
            Link::Up(_) => Err(Reason::UnknownNamespace),
            Link::Down => Err(Reason::Unreachable),
            Link::Refused(refusal) => Err(refusal.reason),
        }
    }

    /// Makes one call: not while the breaker is open, not past the deadline, not beyond the session's end. The
    /// result feeds the breaker. If this future is dropped, the call is cancelled.
    pub(crate) async fn ask<T>(
        &self,
        session: &Session,
        deadline: Instant,
        pace: Pace,
        call: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Reason> {
        let breaker = &self.shared.breaker;
        let start = Instant::now();
        if !breaker.admits(start) {
            return Err(Reason::BreakerOpen);
        }
        let result = tokio::select! {
            biased;
            // No verdict for the breaker: it judges answers, the session's task judges connections.
            () = session.ended() => return Err(Reason::Unreachable),
            result = tokio::time::timeout_at(deadline.into(), call) => result,
        };
        let reason = match &result {
            Ok(Ok(_)) => None,
            Ok(Err(refusal)) => Some(refusal.reason),
            Err(_) => Some(Reason::Deadline),
        };
        let answered = !matches!(reason, Some(Reason::Unreachable | Reason::Deadline));
        let took = if pace == Pace::Quick { start.elapsed() } else { Duration::ZERO };
        if breaker.record(Instant::now(), answered, took) {
            self.shared.tally.breaker_opened.one();
            tracing::warn!(address = %self.shared.config.address, "the daemon does not answer; pausing");
        }
        if let Some(Reason::UnknownSession | Reason::UnknownNamespace) = reason {
            // The daemon has forgotten us: only a new session mends that.
            session.end();
        }
        match result {
            Ok(answer) => answer.map_err(|refusal| {
                tracing::debug!(%refusal, "a call was refused");
                refusal.reason
            }),
            Err(_) => Err(Reason::Deadline),
        }
    }

    /// The same, waited for from a thread of ours (never from inside the runtime).
    pub(crate) fn ask_blocking<T>(
        &self,
        session: &Session,
        deadline: Instant,
        pace: Pace,
        call: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Reason> {
        self.shared.runtime.block_on(self.ask(session, deadline, pace, call))
    }
}
