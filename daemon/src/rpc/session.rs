//! The stream that a session lives by: when the client goes away, gRPC drops it, and the session ends with it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tender_proto::limits::PROTOCOL_VERSION;
use tender_proto::v1::session_event::Event;
use tender_proto::{Reason, Refusal, SessionId, v1};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Status};

use super::Shared;
use super::convert::millis;
use crate::access::peer::Peer;
use crate::engine::Engine;
use crate::session::Attach;
use crate::shutdown::Phase;

/// Often enough that a connection that died silently is noticed before its leases would end.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A client's name goes into every log line about it.
const MAX_CLIENT_NAME_BYTES: usize = 256;

/// Ends the session when it is dropped.
#[derive(Debug)]
struct OpenSession {
    engine: Arc<Engine>,
    id: SessionId,
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.engine.close_session(self.id);
    }
}

/// Opened, then heartbeats, and a word when the daemon is about to stop.
#[derive(Debug)]
pub(super) struct SessionStream {
    _session: OpenSession,
    opened: Option<v1::SessionOpened>,
    heartbeat: Interval,
    phase: WatchStream<Phase>,
    resets: WatchStream<u64>,
    /// The word about stopping was given. It comes before the end even where the drain took no time.
    warned: bool,
}

impl SessionStream {
    pub(super) fn open(shared: &Shared, request: &Request<v1::SessionRequest>) -> Result<Self, Status> {
        let identity = shared.identify("session", request)?;
        let peer = request.extensions().get::<Arc<Peer>>().cloned();
        let request = request.get_ref();
        check(request).map_err(|no| shared.refuse_here("session", no))?;
        if !identity.may_anywhere() {
            let no = shared.access.deny("session", &identity, "its tenant has no rights on any namespace");
            return Err(shared.refuse_here("session", no));
        }
        let owner = identity.owner();
        let (is_local, attach) = (matches!(peer.as_deref(), Some(Peer::Local(_))), owner.attach);
        let engine = &shared.engine;
        // The engine's own lines about the session say who is behind it.
        let shown = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
        let opening = tracing::info_span!("peer", peer = shown, tenant = %identity.tenant.spec.name);
        let opened = opening.in_scope(|| engine.open_session_of(owner, &request.client_name, request.pid));
        if opened.as_ref().is_err_and(|no| no.reason == Reason::OverQuota) {
            let why = "it has as many sessions as its quota";
            shared.access.note("session", &identity, Reason::OverQuota, why);
        }
        let id = opened.map_err(|no| shared.refuse("session", no))?;
        let session = OpenSession { engine: Arc::clone(engine), id };
        let (config, limits) = (engine.config(), engine.limits());
        let opened = v1::SessionOpened {
            session_id: Bytes::copy_from_slice(id.as_bytes()),
            boot_id: Bytes::copy_from_slice(shared.boot.as_bytes()),
            daemon_version: env!("CARGO_PKG_VERSION").into(),
            shm_offered: is_local && attach != Attach::Nobody,
            arena_bytes: engine.arena_file_bytes(),
            default_lease_ms: millis(limits.default_lease),
            max_lease_ms: millis(limits.max_lease),
            reservation_ms: millis(limits.reservation),
            max_frame_bytes: shared.max_frame_bytes as u64,
            max_part_bytes: engine.max_part_bytes(),
            max_batch_chunks: u32::try_from(config.max_batch_chunks).unwrap_or(u32::MAX),
            max_staging_bytes: limits.max_staging_bytes,
        };
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.reset();
        let phase = WatchStream::from_changes(shared.phase.clone());
        let resets = engine.resets_of(id).map_err(|no| shared.refuse("session", no))?;
        let resets = WatchStream::from_changes(resets);
        Ok(Self { _session: session, opened: Some(opened), heartbeat, phase, resets, warned: false })
    }

    /// What a change of the daemon's phase means for a session; `None` where it means nothing.
    fn on(&mut self, phase: Option<Phase>) -> Option<Poll<Option<<Self as Stream>::Item>>> {
        let grace_ms = match phase {
            // Nobody can take the word back, so a new session follows.
            Some(Phase::Serving) if self.warned => return Some(Poll::Ready(None)),
            Some(Phase::Starting | Phase::Serving) => return None,
            Some(Phase::Draining { grace } | Phase::HandingOver { grace }) => millis(grace),
            Some(Phase::Stopped) | None => 0,
        };
        if self.warned {
            return Some(Poll::Ready(None));
        }
        self.warned = true;
        Some(event(Event::Draining(v1::Draining { grace_ms })))
    }
}

fn event(event: Event) -> Poll<Option<Result<v1::SessionEvent, Status>>> {
    Poll::Ready(Some(Ok(v1::SessionEvent { event: Some(event) })))
}

fn check(request: &v1::SessionRequest) -> Result<(), Refusal> {
    if request.protocol_version != PROTOCOL_VERSION {
        return Err(Refusal::new(
            Reason::VersionMismatch,
            format!("protocol version {}", request.protocol_version),
            format!("this daemon speaks version {PROTOCOL_VERSION}; run client and daemon of one release"),
        ));
    }
    if request.client_name.len() > MAX_CLIENT_NAME_BYTES {
        let subject = format!("a client name of {} bytes", request.client_name.len());
        let advice = format!("use at most {MAX_CLIENT_NAME_BYTES}");
        return Err(Refusal::new(Reason::Malformed, subject, advice));
    }
    Ok(())
}

impl Stream for SessionStream {
    type Item = Result<v1::SessionEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(opened) = self.opened.take() {
            return event(Event::Opened(opened));
        }
        while let Poll::Ready(phase) = Pin::new(&mut self.phase).poll_next(context) {
            if let Some(told) = self.on(phase) {
                // After the word comes the end: asked again, the phase says so or wakes us when it does.
                return told;
            }
        }
        if let Poll::Ready(Some(_)) = Pin::new(&mut self.resets).poll_next(context) {
            return event(Event::Reset(v1::Reset {}));
        }
        match self.heartbeat.poll_tick(context) {
            Poll::Ready(_) => event(Event::Heartbeat(v1::Heartbeat {})),
            Poll::Pending => Poll::Pending,
        }
    }
}
