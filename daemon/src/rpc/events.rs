//! The stream of changes for routers. It is made as the connection takes it: a watcher that is slow holds nothing but its
//! place in the journal, and loses that.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tender_proto::{ChunkId, Coverage, NamespaceDigest, Reason, Refusal, v1};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::Shared;
use super::caller::Shown;
use crate::access::Identity;
use crate::engine::{Follower, News, Position};
use crate::index::journal::{Change, Event};
use crate::namespace::Named;
use crate::shutdown::Phase;

/// Changes of one batch: some tens of kilobytes.
const MAX_EVENTS: usize = 512;
/// A batch has no more descriptors once it has so many bytes of them, which leaves it far below the longest message.
const MAX_DESCRIPTOR_BYTES: usize = 8 << 20;
/// An empty batch after this long, so that a dead connection is noticed and rights that were taken away end a watch.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Namespaces that one watch may name.
const MAX_NAMESPACES_WATCHED: usize = 1024;

/// The service, cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct EventsService(pub(super) Arc<Shared>);

type Batches = Pin<Box<dyn Stream<Item = Result<v1::EventBatch, Status>> + Send>>;

#[tonic::async_trait]
impl v1::events_server::Events for EventsService {
    type WatchStream = Batches;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let watcher = Watch::open(&self.0, &request)?;
        let batches = futures_util::stream::unfold(Some(watcher), |watcher| async {
            let mut watcher = watcher?;
            match watcher.next().await? {
                Ok(batch) => Some((Ok(batch), Some(watcher))),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(batches)))
    }
}

/// A chunk that lookups find.
type Held = (Arc<Named>, ChunkId, Coverage);

/// What comes before anything else is asked of the follower.
#[derive(Default, Debug)]
enum Rest {
    #[default]
    Nothing,
    Page(Vec<Held>),
    /// From the change of this number on.
    Changes(u64, Vec<Event>),
}

/// One watcher.
#[derive(Debug)]
struct Watch {
    shared: Arc<Shared>,
    shown: Shown,
    identity: Identity,
    /// All where it is empty.
    wanted: HashSet<NamespaceDigest>,
    follower: Follower,
    /// What was taken from it and did not fit into a batch.
    rest: Rest,
    /// Where the last batch ended.
    told: u64,
    /// What a snapshot that begins now begins for.
    start: v1::WatchStart,
    /// Its namespaces by number: whether it sees them. Those that it does were told.
    seen: HashMap<u32, bool>,
    heartbeat: Interval,
    phase: watch::Receiver<Phase>,
}

impl Watch {
    fn open(shared: &Arc<Shared>, request: &Request<v1::WatchRequest>) -> Result<Self, Status> {
        let shown = Shown::of(request);
        let identity = shared.identify("watch", request)?;
        if !identity.may_anywhere() {
            let no = shared.access.deny("watch", &identity, "its tenant has no rights on any namespace");
            return Err(shared.refuse_here("watch", no));
        }
        let raw = request.get_ref();
        let wanted = wanted(&raw.namespaces).map_err(|no| shared.refuse_here("watch", no))?;
        let (from, start) = if raw.boot_id.is_empty() {
            (Position::Start, v1::WatchStart::First)
        } else if *raw.boot_id != *shared.boot.as_bytes() {
            (Position::Start, v1::WatchStart::OtherBoot)
        } else if raw.rights_id != identity.tenant.rights_id {
            (Position::Start, v1::WatchStart::Policy)
        } else {
            (Position::At(raw.from_sequence), v1::WatchStart::Lost)
        };
        let follower = shared.engine.follow(from, identity.domain()).map_err(|no| {
            if no.reason == Reason::OverQuota {
                shared.access.note("watch", &identity, no.reason, "it has as many watchers as its quota");
            }
            shared.refuse("watch", no)
        })?;
        shared.metrics.watches.open.fetch_add(1, Ordering::Relaxed);
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.reset();
        Ok(Self {
            shared: Arc::clone(shared),
            shown,
            identity,
            wanted,
            told: follower.next_sequence(),
            follower,
            rest: Rest::Nothing,
            start,
            seen: HashMap::new(),
            heartbeat,
            phase: shared.phase.clone(),
        })
    }

    /// The next batch; `None` when the daemon stops.
    async fn next(&mut self) -> Option<Result<v1::EventBatch, Status>> {
        loop {
            if let Err(no) = self.identify_again() {
                return Some(Err(no));
            }
            let news = match std::mem::take(&mut self.rest) {
                Rest::Page(page) => News::Snapshot(page),
                Rest::Changes(first, events) => News::Changes(first, events),
                Rest::Nothing => self.follower.take(MAX_EVENTS),
            };
            let batch = match news {
                News::Begin { lost } => self.begin(lost),
                News::Snapshot(page) => self.page(page),
                News::Changes(first, events) => self.changes(first, events),
                News::Complete => v1::EventBatch { complete: true, ..v1::EventBatch::default() },
                News::Nothing => match self.wait().await {
                    Wake::Changed => continue,
                    Wake::Heartbeat => return Some(Ok(self.finish(v1::EventBatch::default()))),
                    Wake::Stopped => return None,
                },
            };
            // Nothing of what others do is told, but now and then that something was done.
            if is_empty(&batch) && self.heartbeat.tick().now_or_never().is_none() {
                tokio::task::yield_now().await;
                continue;
            }
            return Some(Ok(self.finish(batch)));
        }
    }

    fn finish(&mut self, mut batch: v1::EventBatch) -> v1::EventBatch {
        self.shared.metrics.watches.batches.fetch_add(1, Ordering::Relaxed);
        batch.boot_id = Bytes::copy_from_slice(self.shared.boot.as_bytes());
        batch.rights_id = self.identity.tenant.rights_id;
        batch.next_sequence = match self.rest {
            Rest::Changes(next, _) => next,
            Rest::Nothing | Rest::Page(_) => self.follower.next_sequence(),
        };
        let begins = batch.start() != v1::WatchStart::Unspecified;
        batch.first_sequence = if begins { batch.next_sequence } else { self.told };
        self.told = batch.next_sequence;
        batch
    }

    async fn wait(&mut self) -> Wake {
        tokio::select! {
            () = self.follower.changed() => Wake::Changed,
            _ = self.heartbeat.tick() => Wake::Heartbeat,
            _ = self.phase.wait_for(|phase| *phase == Phase::Stopped) => Wake::Stopped,
        }
    }

    /// A policy that was loaded since counts from now on. A watcher that may see more or less than before starts over.
    fn identify_again(&mut self) -> Result<(), Status> {
        let now = self.shown.identify(&self.shared, "watch")?;
        if now.tenant.rights_id != self.identity.tenant.rights_id {
            self.identity = now;
            self.rest = Rest::Nothing;
            self.start = v1::WatchStart::Policy;
            self.follower.restart();
        }
        Ok(())
    }

    fn begin(&mut self, lost: bool) -> v1::EventBatch {
        // All that was ever asked for was told; what comes from now on comes for a loss.
        let start = std::mem::replace(&mut self.start, v1::WatchStart::Lost);
        self.seen.clear();
        if lost {
            self.shared.metrics.watches.lost.fetch_add(1, Ordering::Relaxed);
        }
        let start = if lost { v1::WatchStart::Lost } else { start };
        v1::EventBatch { start: start.into(), ..v1::EventBatch::default() }
    }

    fn page(&mut self, page: Vec<Held>) -> v1::EventBatch {
        let (mut draft, mut rest) = (Draft::default(), page.into_iter());
        while !draft.is_full()
            && let Some((namespace, chunk, coverage)) = rest.next()
        {
            if self.sees(&namespace, &mut draft) {
                draft.batch.snapshot.push(stored(&namespace, chunk, coverage));
            }
        }
        if rest.len() > 0 {
            self.rest = Rest::Page(rest.collect());
        }
        draft.batch
    }

    fn changes(&mut self, first: u64, events: Vec<Event>) -> v1::EventBatch {
        let (mut draft, mut next, mut rest) = (Draft::default(), first, events.into_iter());
        while !draft.is_full()
            && let Some(event) = rest.next()
        {
            if self.sees(&event.namespace, &mut draft) {
                draft.batch.events.push(v1::KvEvent { sequence: next, change: Some(change(&event)) });
            }
            next += 1;
        }
        if rest.len() > 0 {
            self.rest = Rest::Changes(next, rest.collect());
        }
        draft.batch
    }

    /// Whether the watcher may know what is in a namespace, and wants to. One that it sees for the first time is told.
    fn sees(&mut self, namespace: &Named, draft: &mut Draft) -> bool {
        if let Some(&sees) = self.seen.get(&namespace.index) {
            return sees;
        }
        let descriptor = namespace.descriptor.clone().in_domain("");
        let digest = descriptor.digest();
        let wanted = self.wanted.is_empty() || self.wanted.contains(&digest);
        let own = namespace.descriptor.domain == **self.identity.domain();
        let sees = wanted && own && self.identity.rights_on(&descriptor.model, digest).read;
        self.seen.insert(namespace.index, sees);
        if sees {
            draft.descriptor_bytes += namespace.descriptor_bytes;
            draft.batch.namespaces.push(v1::WatchedNamespace {
                number: namespace.index,
                namespace: Bytes::copy_from_slice(digest.as_bytes()),
                descriptor: Some(descriptor.to_message()),
            });
        }
        sees
    }
}

/// A batch that is being made.
#[derive(Default)]
struct Draft {
    batch: v1::EventBatch,
    descriptor_bytes: usize,
}

impl Draft {
    fn is_full(&self) -> bool {
        self.descriptor_bytes >= MAX_DESCRIPTOR_BYTES
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.metrics.watches.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_empty(batch: &v1::EventBatch) -> bool {
    let begins = batch.start() != v1::WatchStart::Unspecified;
    !begins && !batch.complete && batch.snapshot.is_empty() && batch.events.is_empty()
}

enum Wake {
    Changed,
    Heartbeat,
    Stopped,
}

fn wanted(raw: &[Bytes]) -> Result<HashSet<NamespaceDigest>, Refusal> {
    if raw.len() > MAX_NAMESPACES_WATCHED {
        return Err(Refusal::new(
            Reason::TooMany,
            format!("a watch of {} namespaces", raw.len()),
            format!("name at most {MAX_NAMESPACES_WATCHED}, or none for all"),
        ));
    }
    raw.iter().map(|digest| NamespaceDigest::parse(digest)).collect()
}

fn change(event: &Event) -> v1::kv_event::Change {
    let namespace = event.namespace.index;
    match event.change {
        Change::Stored(chunk, coverage) => {
            v1::kv_event::Change::Stored(stored(&event.namespace, chunk, coverage))
        }
        Change::Removed(chunk, reason) => v1::kv_event::Change::Removed(v1::RemovedChunk {
            namespace,
            chunk: Some(chunk.to_message()),
            medium: v1::Medium::Memory.into(),
            reason: reason.to_wire().into(),
        }),
        Change::Cleared => v1::kv_event::Change::Cleared(v1::ClearedNamespace { namespace }),
    }
}

fn stored(namespace: &Named, chunk: ChunkId, coverage: Coverage) -> v1::StoredChunk {
    let tokens_per_block =
        namespace.descriptor.group_of(chunk).map_or(0, |group| group.tokens_per_block.get());
    v1::StoredChunk {
        namespace: namespace.index,
        chunk: Some(chunk.to_message()),
        coverage: coverage.bits(),
        covered_tokens: u64::from(coverage.count()) * u64::from(tokens_per_block),
        medium: v1::Medium::Memory.into(),
    }
}
