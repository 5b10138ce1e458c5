//! The stream that a session lives by: when the client goes away, gRPC drops it, and the session ends with it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tender_proto::limits::{FRAME_PAYLOAD_BYTES, PROTOCOL_VERSION};
use tender_proto::v1::session_event::Event;
use tender_proto::{Reason, Refusal, SessionId, v1};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;
use tonic::Status;

use super::Shared;
use super::convert::millis;
use crate::engine::Engine;
use crate::shutdown::Phase;

/// Often enough that a connection that died silently is noticed before its leases would end.
const HEARTBEAT: Duration = Duration::from_secs(5);

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
}

impl SessionStream {
    pub(super) fn open(shared: &Shared, request: &v1::SessionRequest) -> Result<Self, Refusal> {
        if request.protocol_version != PROTOCOL_VERSION {
            shared.engine.count_refusal(Reason::VersionMismatch);
            return Err(Refusal::new(
                Reason::VersionMismatch,
                format!("protocol version {}", request.protocol_version),
                format!("this daemon speaks version {PROTOCOL_VERSION}; run client and daemon of one release"),
            ));
        }
        let engine = &shared.engine;
        let id = engine.open_session(&request.client_name, request.pid)?;
        let session = OpenSession { engine: Arc::clone(engine), id };
        let config = engine.config();
        let opened = v1::SessionOpened {
            session_id: Bytes::copy_from_slice(id.as_bytes()),
            boot_id: Bytes::copy_from_slice(shared.boot.as_bytes()),
            daemon_version: env!("CARGO_PKG_VERSION").into(),
            shm_offered: shared.shm_offered,
            arena_bytes: engine.arena_file_bytes(),
            default_lease_ms: millis(config.default_lease),
            max_lease_ms: millis(config.max_lease),
            reservation_ms: millis(config.reservation),
            max_frame_bytes: FRAME_PAYLOAD_BYTES as u64,
            max_part_bytes: engine.max_part_bytes(),
            max_batch_chunks: u32::try_from(config.max_batch_chunks).unwrap_or(u32::MAX),
            max_staging_bytes: config.max_staging_bytes,
        };
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.reset();
        let phase = WatchStream::from_changes(shared.phase.clone());
        Ok(Self { _session: session, opened: Some(opened), heartbeat, phase })
    }
}

impl Stream for SessionStream {
    type Item = Result<v1::SessionEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = |event| Poll::Ready(Some(Ok(v1::SessionEvent { event: Some(event) })));
        if let Some(opened) = self.opened.take() {
            return event(Event::Opened(opened));
        }
        match Pin::new(&mut self.phase).poll_next(context) {
            Poll::Ready(Some(Phase::Draining { grace })) => {
                return event(Event::Draining(v1::Draining { grace_ms: millis(grace) }));
            }
            // The server stops: so does every session.
            Poll::Ready(Some(Phase::Stopped) | None) => return Poll::Ready(None),
            Poll::Ready(Some(Phase::Starting | Phase::Serving)) => {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Pending => {}
        }
        match self.heartbeat.poll_tick(context) {
            Poll::Ready(_) => event(Event::Heartbeat(v1::Heartbeat {})),
            Poll::Pending => Poll::Pending,
        }
    }
}
