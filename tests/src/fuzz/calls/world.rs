//! A daemon in this process, what was given out, and what was stored.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use prost::Message;
use tempfile::TempDir;
use tender_daemon::clock::ManualClock;
use tender_daemon::engine::{Engine, EngineConfig};
use tender_daemon::fuzzing::InProcess;
use tender_proto::shm::Mapping;
use tender_proto::{ChunkId, ContentDigest, PartIndex, v1};
use tonic::body::Body;

use super::script::{Damage, Limits};
use super::wire::{Answer, answer, damaged, refusal, request};
use crate::fuzz::small::{self, BLOCK_BYTES, BLOCKS, RESERVATION};
use crate::wire::{framed, messages};

const STAGING_BYTES: u64 = 64 << 10;

pub(super) struct World {
    pub(super) engine: Arc<Engine>,
    pub(super) daemon: InProcess,
    pub(super) clock: Arc<ManualClock>,
    pub(super) sessions: Vec<Session>,
    pub(super) leases: Vec<Lease>,
    pub(super) reservations: Vec<Reservation>,
    /// Digests of all contents that were ever sent.
    pub(super) sent: HashSet<ContentDigest>,
    config: EngineConfig,
    _dir: TempDir,
}

pub(super) struct Session {
    pub(super) id: Bytes,
    pub(super) staging: Option<Mapping>,
    /// The session's stream; it ends with this.
    _stream: Body,
}

#[derive(Clone)]
pub(super) struct Lease {
    pub(super) id: u64,
    /// The chunks of its lookup.
    pub(super) chunks: Vec<ChunkId>,
}

#[derive(Clone, Copy)]
pub(super) struct Reservation {
    pub(super) id: u64,
    pub(super) chunk: ChunkId,
    pub(super) part: PartIndex,
    pub(super) coverage: u64,
    pub(super) bytes: u64,
}

impl World {
    pub(super) fn new(limits: &Limits) -> Self {
        let dir = small::folder();
        let few = |n: u8, most: usize| usize::from(n) % most + 1;
        let inflight = few(limits.inflight_parts, 16) as u64 * BLOCK_BYTES * u64::from(BLOCKS);
        let config = EngineConfig {
            max_inflight_bytes: inflight,
            max_session_inflight_bytes: inflight,
            max_sessions: few(limits.sessions, 8),
            max_leases_per_session: few(limits.leases, 8),
            max_staging_bytes: STAGING_BYTES,
            max_total_staging_bytes: 3 * STAGING_BYTES,
            max_batch_chunks: few(limits.batch, 32),
            max_namespaces: few(limits.namespaces, 4),
            history_bytes: 1 << 16,
            ..small::config(dir.path())
        };
        let clock = Arc::new(ManualClock::new());
        let engine = small::open(&config, &clock);
        let daemon = InProcess::new(Arc::clone(&engine), usize::from(limits.frame) * 16 + 64);
        Self {
            engine,
            daemon,
            clock,
            sessions: Vec::new(),
            leases: Vec::new(),
            reservations: Vec::new(),
            sent: HashSet::new(),
            config,
            _dir: dir,
        }
    }

    /// One call with one answer or several; what it says when it is refused was checked.
    pub(super) async fn call<M: Message + Default>(
        &self,
        method: &str,
        message: &impl Message,
        damage: Option<&Damage>,
    ) -> Answer<M> {
        self.send(method, &damaged(framed(message), damage)).await
    }

    pub(super) async fn send<M: Message + Default>(&self, method: &str, stream: &[u8]) -> Answer<M> {
        answer(self.daemon.call(request(method, stream)).await).await
    }

    /// Opens a session, if it is given.
    pub(super) async fn open(&mut self, stream: &[u8]) {
        let response = self.daemon.call(request("Store/Session", stream)).await;
        if let Some(status) = tonic::Status::from_header_map(response.headers()) {
            refusal(&status);
            return;
        }
        let mut body = response.into_body();
        let Some(Ok(first)) = body.frame().await else { panic!("a session that begins with nothing") };
        let opened: Vec<v1::SessionEvent> = messages(first.data_ref().map_or(&[], |data| data));
        let Some(v1::session_event::Event::Opened(opened)) =
            opened.into_iter().next().and_then(|first| first.event)
        else {
            panic!("a session that does not begin with its number")
        };
        self.sessions.push(Session { id: opened.session_id, staging: None, _stream: body });
    }

    /// The id of session `n`; where there is none, one that nobody has.
    pub(super) fn session(&self, n: u8) -> Bytes {
        let count = self.sessions.len().max(1);
        let session = self.sessions.get(usize::from(n) % count);
        session.map_or_else(|| Bytes::from_static(&[9; 16]), |session| session.id.clone())
    }
    /// A number of a reservation that was given out, or one that was not.
    pub(super) fn reservation(&self, n: u8) -> Reservation {
        let count = self.reservations.len();
        // The newest first.
        let at = (count.max(1) - 1).wrapping_sub(usize::from(n) % count.max(1));
        self.reservations.get(at).copied().unwrap_or(Reservation {
            id: u64::from(n) + 1,
            chunk: small::chunk(0, n),
            part: PartIndex(0),
            coverage: 1,
            bytes: BLOCK_BYTES,
        })
    }
    pub(super) fn lease(&self, n: u8) -> Lease {
        let count = self.leases.len();
        let at = (count.max(1) - 1).wrapping_sub(usize::from(n) % count.max(1));
        self.leases.get(at).cloned().unwrap_or(Lease { id: u64::from(n), chunks: Vec::new() })
    }

    pub(super) fn audit(&self) {
        if let Err(error) = self.engine.audit() {
            panic!("{error}");
        }
    }

    /// All clients go away; nothing may be left of them, and the next daemon finds the same chunks.
    pub(super) async fn end(mut self) {
        self.sessions.clear();
        self.audit();
        self.clock.advance(RESERVATION + Duration::from_millis(1));
        self.engine.sweep();
        let Ok(audit) = self.engine.audit() else { panic!("{:?}", self.engine.audit()) };
        let held =
            [audit.sessions, audit.leases, audit.pins, audit.readers, audit.reservations, audit.writers];
        assert_eq!(held, [0; 6], "{audit:?}");
        assert_eq!((audit.pending_chunks, audit.inflight_bytes), (0, 0), "{audit:?}");
        assert_eq!(self.engine.stats().staging_bytes, 0);
        let Self { engine, daemon, clock, config, _dir, .. } = self;
        // Timers of reads that are over go now; the arena is locked until the last of the old daemon is gone.
        tokio::task::yield_now().await;
        drop((daemon, engine));
        let next = small::reopen(&config, &clock);
        let restored = next.restored();
        assert_eq!((restored.dropped_records, restored.dropped_parts), (0, 0), "{restored:?}");
        assert_eq!(restored.chunks, audit.ready_chunks);
        assert!(next.audit().is_ok_and(|next| next.used_bytes == audit.used_bytes));
    }
}
