//! The life of sessions: connect, open, attach, register, watch, and again after a pause.
//!
//! ```text
//! Down --open, attach, register--> Up --stream ends, daemon forgot us--> Down --pause--> ...
//!  |                                                                      ^
//!  +--the daemon says no--> Refused --long pause--------------------------+
//! ```
//! When a session is lost the link goes down first and the session's end is signalled after, so that nobody
//! who fails because of it finds it up again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use tender_proto::limits::PROTOCOL_VERSION;
use tender_proto::reason::Retry;
use tender_proto::v1::session_event::Event;
use tender_proto::{NamespaceDigest, Reason, Refusal, SessionId, v1};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use crate::client::{Purpose, Shared};
use crate::config::{Address, TransportChoice};
use crate::retry::Backoff;
use crate::transport::calls::{Calls, nonsense, refusal, store_client};
use crate::transport::connect::connect;
use crate::transport::{Transport, grpc, shm};

/// Events of a session are rare: a heartbeat in seconds. They are read no faster than this, since each takes the lock
/// under which engine threads look for their session.
const EVENT_PAUSE: Duration = Duration::from_millis(10);

/// Whether there is a session.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    Down,
    /// The daemon said no; repeating will hardly help.
    Refused(Refusal),
    Up(Arc<Session>),
}

impl Link {
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Refused(_) => "refused",
            Self::Up(session) if session.is_draining() => "draining",
            Self::Up(_) => "up",
        }
    }
}

/// The daemon's numbers that a client must keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_frame_bytes: usize,
    pub(crate) max_part_bytes: u64,
    pub(crate) max_batch_chunks: usize,
    pub(crate) max_staging_bytes: u64,
}

impl Limits {
    fn parse(opened: &v1::SessionOpened) -> Self {
        let frame = usize::try_from(opened.max_frame_bytes).unwrap_or(usize::MAX);
        let batch = usize::try_from(opened.max_batch_chunks).unwrap_or(usize::MAX);
        Self {
            // Never looser than the contract, whatever the daemon says, and never nothing.
            max_frame_bytes: frame.clamp(1, tender_proto::limits::FRAME_PAYLOAD_BYTES),
            max_part_bytes: opened.max_part_bytes.min(tender_proto::limits::MAX_PART_BYTES),
            max_batch_chunks: batch.clamp(1, tender_proto::limits::MAX_BATCH_CHUNKS),
            max_staging_bytes: opened.max_staging_bytes,
        }
    }
}

/// One session that was up once. It outlives its end for those who still hold it; every call then fails.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) calls: Calls,
    pub(crate) limits: Limits,
    /// `None` for a client that only looks up.
    pub(crate) transport: Option<Arc<dyn Transport>>,
    /// Registered ones, each with its epoch as last told.
    namespaces: RwLock<HashMap<NamespaceDigest, u64>>,
    draining: AtomicBool,
    end: CancellationToken,
}

impl Session {
    pub(crate) fn knows(&self, namespace: NamespaceDigest) -> bool {
        self.namespaces.read().contains_key(&namespace)
    }
    /// How often the namespace was reset, as last told. Bytes must be stored under the epoch that was known before
    /// they were gathered.
    pub(crate) fn epoch(&self, namespace: NamespaceDigest) -> u64 {
        self.namespaces.read().get(&namespace).copied().unwrap_or(0)
    }
    pub(crate) fn learn_epoch(&self, namespace: NamespaceDigest, epoch: u64) {
        // Answers overtake each other, and epochs only grow.
        self.namespaces.write().entry(namespace).and_modify(|known| *known = epoch.max(*known));
    }
    /// The daemon is about to stop: begin nothing new.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
    pub(crate) fn transport_name(&self) -> &'static str {
        self.transport.as_ref().map_or("none", |transport| transport.kind().name())
    }
    /// Returns when the session has ended.
    pub(crate) async fn ended(&self) {
        self.end.cancelled().await;
    }
    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_cancelled()
    }
    /// Gives the session up; a new one will be opened.
    pub(crate) fn end(&self) {
        self.end.cancel();
    }
}

/// Keeps a session up until the client stops.
pub(crate) async fn keep(shared: Arc<Shared>) {
    let mut backoff = Backoff::new(shared.config.reconnect_min, shared.config.reconnect_max);
    let mut said = None;
    while !shared.stop.is_cancelled() {
        let lost = tokio::select! {
            () = shared.stop.cancelled() => break,
            lost = live(&shared, &mut backoff) => lost,
        };
        let Lost { why, announced } = lost;
        let hopeless = why.reason.retry() == Retry::Never;
        shared.link.send_replace(if hopeless { Link::Refused(why.clone()) } else { Link::Down });
        // One line for each kind of trouble, not one for each attempt.
        if said.replace(why.reason) != Some(why.reason) {
            tracing::warn!(address = %shared.config.address, %why, "no session; going on without the daemon");
        }
        let pause = match (hopeless, announced) {
            (true, _) => shared.config.refused_retry,
            // The next daemon may be there already; if not, the pauses begin with this attempt.
            (false, true) => Duration::ZERO,
            (false, false) => backoff.pause(),
        };
        tokio::select! {
            () = shared.stop.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
    }
    shared.link.send_replace(Link::Down);
}

/// How a session ended, or did not begin.
struct Lost {
    why: Refusal,
    /// It was up, and the daemon had said that it was about to stop.
    announced: bool,
}

impl From<Refusal> for Lost {
    fn from(why: Refusal) -> Self {
        Self { why, announced: false }
    }
}

/// One session from connecting to its end.
async fn live(shared: &Arc<Shared>, backoff: &mut Backoff) -> Lost {
    let (session, stream) = match open(shared).await {
        Ok(opened) => opened,
        Err(why) => return why.into(),
    };
    // Also when this future is dropped because the client stops.
    let _end = EndGuard { shared, session: &session };
    if let Err(why) = register_missing(shared, &session).await {
        return why.into();
    }
    shared.breaker.reset();
    let up = Instant::now();
    shared.tally.sessions.one();
    tracing::info!(
        address = %shared.config.address, session = %session.calls.session(),
        transport = session.transport_name(), "session is up"
    );
    shared.link.send_replace(Link::Up(Arc::clone(&session)));
    let why = watch(shared, &session, stream).await;
    // A daemon that ends every session at once is asked ever more rarely, whatever it announces.
    let lasted = up.elapsed();
    if lasted > shared.config.reconnect_max {
        backoff.reset();
    }
    shared.tally.sessions_lost.one();
    Lost { why, announced: session.is_draining() && lasted > shared.config.reconnect_min }
}

struct EndGuard<'a> {
    shared: &'a Shared,
    session: &'a Session,
}

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.shared.link.send_replace(Link::Down);
        self.session.end();
    }
}

async fn open(shared: &Shared) -> Result<(Arc<Session>, Streaming<v1::SessionEvent>), Refusal> {
    let config = &shared.config;
    let limit = config.connect_deadline;
    let channel = connect(&config.address, &config.credentials(), limit).await?;
    let mut store = store_client(channel);
    let request = v1::SessionRequest {
        client_name: config.client_name.clone(),
        pid: std::process::id(),
        protocol_version: PROTOCOL_VERSION,
    };
    let opening = async {
        let mut stream = store.session(request).await.map_err(refusal)?.into_inner();
        let first = stream.message().await.map_err(refusal)?;
        Ok::<_, Refusal>((first, stream))
    };
    let (first, stream) = tokio::time::timeout(limit, opening).await.map_err(|_| too_slow("opening"))??;
    let Some(v1::SessionEvent { event: Some(Event::Opened(opened)) }) = first else {
        return Err(nonsense("a session that does not begin with its opening"));
    };
    let calls = Calls::new(store, SessionId::parse(&opened.session_id)?);
    let limits = Limits::parse(&opened);
    let transport = match shared.purpose {
        Purpose::Lookups => None,
        Purpose::Data => Some(choose_transport(shared, &calls, &opened, limits).await?),
    };
    let session = Session {
        calls,
        limits,
        transport,
        namespaces: RwLock::default(),
        draining: AtomicBool::new(false),
        end: CancellationToken::new(),
    };
    Ok((Arc::new(session), stream))
}

async fn choose_transport(
    shared: &Shared,
    calls: &Calls,
    opened: &v1::SessionOpened,
    limits: Limits,
) -> Result<Arc<dyn Transport>, Refusal> {
    let config = &shared.config;
    let wanted = config.staging_bytes.as_u64();
    let attached = match (&config.address, config.transport) {
        (_, TransportChoice::Grpc) | (Address::Tcp { .. } | Address::Tls { .. }, TransportChoice::Auto) => {
            None
        }
        (Address::Unix(_), TransportChoice::Auto) if !opened.shm_offered => None,
        (Address::Unix(path), choice) => {
            let staging = wanted.min(limits.max_staging_bytes);
            let attach = shm::attach(path.clone(), calls.session(), staging, config.connect_deadline);
            match attach.await {
                Ok(attached) => Some(attached),
                Err(why) if choice == TransportChoice::Auto => {
                    tracing::warn!(%why, "no shared memory; using the network path");
                    None
                }
                Err(why) => return Err(why),
            }
        }
        (Address::Tcp { .. } | Address::Tls { .. }, TransportChoice::Shm) => {
            return Err(Refusal::new(
                Reason::Unsupported,
                format!("shared memory over {}", config.address),
                "use the daemon's Unix socket, or transport = \"auto\"",
            ));
        }
    };
    Ok(match attached {
        Some(attached) => Arc::new(shm::Shm::new(attached, calls.clone(), config.verify_shm_reads)),
        None => {
            // Bulk frames get a connection of their own, or small calls would wait behind them.
            let (address, deadline) = (config.address.clone(), config.connect_deadline);
            let credentials = config.credentials();
            let connecting =
                shared.bulk.spawn(async move { connect(&address, &credentials, deadline).await });
            let bulk = connecting.await.unwrap_or_else(|_| Err(nonsense("a connection that panics")))?;
            Arc::new(grpc::Grpc::new(bulk, calls.session(), wanted, limits)?)
        }
    })
}

async fn register_missing(shared: &Shared, session: &Session) -> Result<(), Refusal> {
    register(shared, session, |digest| !session.knows(digest)).await
}

/// Registers those of the client's namespaces that are `wanted`; repeating it tells their epochs anew.
async fn register(
    shared: &Shared,
    session: &Session,
    wanted: impl Fn(NamespaceDigest) -> bool,
) -> Result<(), Refusal> {
    let all = shared.namespaces.lock().clone();
    for descriptor in all.iter().filter(|descriptor| wanted(descriptor.digest())) {
        let registering = session.calls.register(descriptor);
        let (digest, epoch) = tokio::time::timeout(shared.config.connect_deadline, registering)
            .await
            .map_err(|_| too_slow("registering a namespace"))??;
        session.namespaces.write().insert(digest, epoch);
    }
    Ok(())
}

/// Follows the session's stream to its end.
async fn watch(shared: &Shared, session: &Arc<Session>, mut stream: Streaming<v1::SessionEvent>) -> Refusal {
    loop {
        tokio::select! {
            () = session.ended() => {
                return Refusal::new(Reason::UnknownSession, "the session", "opening a new one");
            }
            () = shared.namespaces_changed.notified() => {
                if let Err(why) = register_missing(shared, session).await {
                    return why;
                }
            }
            event = stream.message() => match event {
                Ok(Some(v1::SessionEvent { event: Some(Event::Draining(_)) })) => {
                    if !session.draining.swap(true, Ordering::Relaxed) {
                        tracing::info!(session = %session.calls.session(), "the daemon is draining");
                    }
                }
                Ok(Some(v1::SessionEvent { event: Some(Event::Reset(_)) })) => {
                    if let Err(why) = register(shared, session, |_| true).await {
                        return why;
                    }
                }
                // Heartbeats, and events of newer daemons.
                Ok(Some(_)) => {}
                Ok(None) => return Refusal::new(Reason::Unreachable, "the session", "the daemon closed it"),
                Err(status) => return refusal(status),
            },
        }
        // For those who wait for a namespace, and for the counters.
        shared.link.send_replace(Link::Up(Arc::clone(session)));
        // A daemon that chatters without end gets no more of us than this; what it says meanwhile waits at its side.
        tokio::time::sleep(EVENT_PAUSE).await;
    }
}

fn too_slow(what: &'static str) -> Refusal {
    Refusal::new(Reason::Deadline, what, "the daemon was too slow; trying again later")
}
