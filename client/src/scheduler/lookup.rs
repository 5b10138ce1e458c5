//! One lookup of a request: started, waited for a little, believed for a while.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use tender_proto::{ChunkId, Descriptor, NamespaceDigest, Reason};
use tender_trace::{Span, names};

use crate::client::{Client, Pace};
use crate::lease::HeldLease;
use crate::plan::ChunkView;
use crate::session::Session;
use crate::transport::calls::{ChunkAnswer, LookupAsk, LookupMark};

/// How long an answer without a lease is believed while its request waits to be scheduled.
const MISS_TTL: Duration = Duration::from_millis(500);

/// A lease that ends sooner is of no use to a worker that has not begun yet.
const LEASE_LEAST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) enum Lookup {
    /// Not asked.
    #[default]
    None,
    /// The answer has not come.
    UnderWay(UnderWay),
    /// The answer, or none (no views) if the asking failed.
    Answered(Answered),
}

#[derive(Debug)]
pub(super) struct UnderWay {
    answer: Receiver<Result<Answered, Reason>>,
    since: Instant,
}

/// Dropping it gives the lease back.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) views: Vec<ChunkView>,
    /// Why those are not there that are not, in no order.
    misses: Vec<Reason>,
    /// When each is expected that is being fetched.
    pub(super) due: Vec<Option<Instant>>,
    pub(super) lease: Option<HeldLease>,
    at: Instant,
    /// Its misses were counted.
    counted: bool,
}

impl Answered {
    fn nothing() -> Self {
        Self {
            views: Vec::new(),
            misses: Vec::new(),
            due: Vec::new(),
            lease: None,
            at: Instant::now(),
            counted: false,
        }
    }

    fn ready(&self) -> usize {
        self.views.iter().filter(|view| matches!(view, ChunkView::Ready(_))).count()
    }

    /// This answer is what the engine hears: its misses count, once.
    pub(super) fn count_misses(&mut self, client: &Client) {
        if !std::mem::replace(&mut self.counted, true) {
            let pending = self.views.iter().filter(|view| matches!(view, ChunkView::Pending));
            client.tally().missed(&self.misses, pending.count() as u64);
        }
    }
}

impl Lookup {
    /// Asks in the background.
    pub(super) fn start(
        client: &Client,
        session: Arc<Session>,
        descriptor: Arc<Descriptor>,
        namespace: NamespaceDigest,
        keys: Vec<ChunkId>,
        mark: LookupMark,
        span: Span,
    ) -> Self {
        client.tally().lookups.one();
        let (sender, answer) = sync_channel(1);
        let asking = client.clone();
        client.runtime().spawn(async move {
            if !span.is_none() {
                span.set(names::REQUEST, mark.request_id.clone());
                span.set(names::CHUNKS, names::count(keys.len()));
            }
            let asked = ask(&asking, &session, &descriptor, (namespace, &keys), mark);
            let answer = span.clone().around(asked).await;
            match &answer {
                Ok(answered) => span.set(names::READY, names::count(answered.ready())),
                Err(reason) => span.fail(reason.label()),
            }
            drop(span);
            // Nobody may be waiting any more; the lease in it then gives itself back.
            _ = sender.send(answer);
        });
        Self::UnderWay(UnderWay { answer, since: Instant::now() })
    }

    /// The asking failed: nothing is there, for a while.
    pub(super) fn failed(client: &Client, reason: Reason) -> Self {
        client.tally().lookup_failed(reason);
        Self::Answered(Answered::nothing())
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, Self::UnderWay(_))
    }

    /// Forgets an answer that is too old, or is for another number of chunks than are asked for now.
    pub(super) fn forget_stale(&mut self, keys: usize) {
        let Self::Answered(answered) = self else { return };
        let now = Instant::now();
        let fresh = match &answered.lease {
            Some(lease) => lease.is_good(now + LEASE_LEAST) && answered.views.len() == keys,
            None => now.duration_since(answered.at) < MISS_TTL,
        };
        if !fresh {
            *self = Self::None;
        }
    }

    /// Waits for an answer until `until` at the latest. `None`: not yet.
    pub(super) fn settle(&mut self, client: &Client, until: Instant) -> Option<&mut Answered> {
        if let Self::UnderWay(under_way) = self {
            *self = match under_way.wait(client.config().lookup_deadline, until)? {
                Ok(answered) => Self::Answered(answered),
                Err(reason) => Self::failed(client, reason),
            };
        }
        match self {
            Self::Answered(answered) => Some(answered),
            Self::None | Self::UnderWay(_) => None,
        }
    }

    /// The lease of the answer, for whoever goes on with it.
    pub(super) fn into_lease(self) -> Option<HeldLease> {
        match self {
            Self::Answered(answered) => answered.lease,
            Self::None | Self::UnderWay(_) => None,
        }
    }
}

impl UnderWay {
    fn wait(&self, limit: Duration, until: Instant) -> Option<Result<Answered, Reason>> {
        let left = until.min(self.since + limit).saturating_duration_since(Instant::now());
        let answer = match self.answer.try_recv() {
            Err(TryRecvError::Empty) => self.answer.recv_timeout(left).ok(),
            Ok(answer) => Some(answer),
            Err(TryRecvError::Disconnected) => Some(Err(Reason::Internal)),
        };
        answer.or_else(|| (self.since.elapsed() >= limit).then_some(Err(Reason::Deadline)))
    }
}

async fn ask(
    client: &Client,
    session: &Arc<Session>,
    descriptor: &Descriptor,
    (namespace, keys): (NamespaceDigest, &[ChunkId]),
    mark: LookupMark,
) -> Result<Answered, Reason> {
    if keys.len() > session.limits.max_batch_chunks {
        return Err(Reason::TooMany);
    }
    let deadline = Instant::now() + client.config().lookup_deadline;
    // The daemon's default lease: how long the request will wait for its worker is not known here.
    let ask = LookupAsk { lease: Duration::ZERO, locate: false, fetch: true };
    let call = session.calls.lookup_for(mark, descriptor, namespace, keys, ask);
    let answer = client.ask(session, deadline, Pace::Quick, call).await?;
    let lease = answer.lease.map(|grant| HeldLease::new(client, session, grant));
    let at = Instant::now();
    let due = answer.chunks.iter().map(|answer| due(answer, at)).collect();
    let misses = answer.chunks.iter().filter_map(|answer| match answer {
        ChunkAnswer::Miss(reason) => Some(*reason),
        ChunkAnswer::Pending { .. } | ChunkAnswer::Ready { .. } => None,
    });
    let misses = misses.collect();
    Ok(Answered { views: answer.chunks.iter().map(view).collect(), misses, due, lease, at, counted: false })
}

/// Nobody waits for what another engine stores: when that comes nobody knows.
fn due(answer: &ChunkAnswer, now: Instant) -> Option<Instant> {
    match answer {
        ChunkAnswer::Pending { expected_ms } if *expected_ms > 0 => {
            Some(now + Duration::from_millis(u64::from(*expected_ms)))
        }
        ChunkAnswer::Pending { .. } | ChunkAnswer::Ready { .. } | ChunkAnswer::Miss(_) => None,
    }
}

/// What is not READY counts as not there (rule 4).
fn view(answer: &ChunkAnswer) -> ChunkView {
    match answer {
        ChunkAnswer::Ready { coverage, .. } => ChunkView::Ready(*coverage),
        ChunkAnswer::Pending { .. } => ChunkView::Pending,
        ChunkAnswer::Miss(_) => ChunkView::Miss,
    }
}
