//! What a daemon holds, told as it changes: for routers that send a request to where its prefix is.
//!
//! [`EventStream`] gives one batch after another; [`View`] applies them. A stream that breaks is opened again at
//! [`EventStream::position`], and goes on there if the daemon still can, else starts over.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use tender_proto::limits::MAX_MESSAGE_BYTES;
use tender_proto::v1::events_client::EventsClient;
use tender_proto::v1::kv_event;
use tender_proto::{BootId, ChunkId, Descriptor, NamespaceDigest, Reason, Refusal, v1};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::config::Address;
use crate::credentials::Credentials;
use crate::error::ClientError;
use crate::runtime;
use crate::transport::connect::connect;

/// Batches that may wait for [`EventStream::next`]; what comes then waits at the daemon, or is lost there.
const READ_AHEAD: usize = 4;

/// What to watch, and from where on.
#[derive(Clone, Default, Debug)]
pub struct WatchOptions {
    /// Only these. Empty: all that the caller may read.
    pub namespaces: Vec<NamespaceDigest>,
    /// Where an earlier stream ended. `None`: from a snapshot.
    pub from: Option<Position>,
}

/// A place in a daemon's changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Which start of the daemon.
    pub boot: BootId,
    /// The number of the next change.
    pub sequence: u64,
    /// Stands for what the watcher could read; where that has changed, the daemon starts over.
    pub rights: u64,
}

/// Why a watcher begins with nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// It asked for no position.
    First,
    /// Its position is of another start of the daemon.
    OtherBoot,
    /// It fell behind what the daemon keeps, and lost changes.
    Lost,
    /// What it may read has changed.
    Policy,
}

impl Start {
    /// One word.
    pub fn label(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::OtherBoot => "other_boot",
            Self::Lost => "lost",
            Self::Policy => "policy",
        }
    }
}

/// A namespace that is watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watched {
    /// Its name.
    pub digest: NamespaceDigest,
    /// What the name stands for.
    pub descriptor: Descriptor,
}

/// A chunk that lookups find.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Where.
    pub namespace: Arc<Watched>,
    /// Which.
    pub chunk: ChunkId,
    /// Bit b is set when block b is stored.
    pub coverage: u64,
    /// Token slots of these blocks.
    pub covered_tokens: u64,
}

/// A change of what lookups find.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A chunk is there, or has more blocks than before.
    Stored(Stored),
    /// A chunk is no longer there.
    Removed {
        /// Where.
        namespace: Arc<Watched>,
        /// Which.
        chunk: ChunkId,
        /// Why.
        reason: Reason,
    },
    /// Nothing of this namespace is there.
    Cleared(Arc<Watched>),
}

/// What belongs together. It is applied in the order of its fields.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Batch {
    /// Forget everything: a snapshot begins.
    pub start: Option<Start>,
    /// What was there when the batch was made.
    pub snapshot: Vec<Stored>,
    /// Changes with their numbers, in order.
    pub changes: Vec<(u64, Change)>,
    /// Nothing is missing from here on.
    pub complete: bool,
    /// The number of the change after this batch.
    pub next_sequence: u64,
}

/// What a daemon tells, batch after batch. Dropping it ends the watch.
#[derive(Debug)]
pub struct EventStream {
    batches: mpsc::Receiver<Result<v1::EventBatch, Refusal>>,
    room: Arc<Semaphore>,
    task: JoinHandle<()>,
    address: String,
    namespaces: HashMap<u32, Arc<Watched>>,
    position: Option<Position>,
    complete: bool,
}

impl EventStream {
    /// Begins a watch; `limit` is for the connection and the daemon's yes.
    pub fn open(
        address: &Address,
        credentials: &Credentials,
        options: WatchOptions,
        limit: Duration,
    ) -> Result<Self, ClientError> {
        let handle = runtime::calls()?;
        let mut request = v1::WatchRequest {
            namespaces: options.namespaces.iter().map(|ns| Bytes::copy_from_slice(ns.as_bytes())).collect(),
            ..v1::WatchRequest::default()
        };
        if let Some(from) = options.from {
            request.boot_id = Bytes::copy_from_slice(from.boot.as_bytes());
            request.from_sequence = from.sequence;
            request.rights_id = from.rights;
        }
        let (to, shown) = (address.clone(), credentials.clone());
        let opening = async move {
            let channel = connect(&to, &shown, limit).await?;
            let mut events = EventsClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
            let answer = events.watch(request).await.map_err(|status| Refusal::from_status(&status))?;
            Ok::<_, Refusal>(answer.into_inner())
        };
        let mut stream = runtime::wait(&handle, limit, opening).ok_or_else(|| {
            let advice = "it did not answer in time; see whether it is overloaded or stopped";
            Refusal::new(Reason::Deadline, format!("the daemon at {address}"), advice)
        })??;
        let (sender, batches) = mpsc::channel();
        let room = Arc::new(Semaphore::new(READ_AHEAD));
        let taken = Arc::clone(&room);
        let task = handle.spawn(async move {
            while let Ok(turn) = taken.acquire().await {
                turn.forget();
                let next = match stream.message().await {
                    Ok(Some(batch)) => Ok(batch),
                    Ok(None) => return,
                    Err(status) => Err(Refusal::from_status(&status)),
                };
                let over = next.is_err();
                if sender.send(next).is_err() || over {
                    return;
                }
            }
        });
        Ok(Self {
            batches,
            room,
            task,
            address: address.to_string(),
            namespaces: HashMap::new(),
            position: options.from,
            complete: options.from.is_some(),
        })
    }

    /// The next batch, which may be empty; `None`: none came within the limit. A daemon tells something every few seconds.
    pub fn next(&mut self, limit: Duration) -> Result<Option<Batch>, ClientError> {
        let raw = match self.batches.recv_timeout(limit) {
            Ok(raw) => raw?,
            Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let subject = format!("the watch of the daemon at {}", self.address);
                let advice = "it has ended; the daemon stops, or another takes over: begin again";
                return Err(Refusal::new(Reason::Unreachable, subject, advice).into());
            }
        };
        self.room.add_permits(1);
        Ok(Some(self.read(&raw)?))
    }

    /// Where a later stream can go on. `None` while a snapshot is not complete.
    pub fn position(&self) -> Option<Position> {
        self.position.filter(|_| self.complete)
    }

    fn read(&mut self, raw: &v1::EventBatch) -> Result<Batch, Refusal> {
        let start = match raw.start() {
            v1::WatchStart::Unspecified => None,
            v1::WatchStart::First => Some(Start::First),
            v1::WatchStart::OtherBoot => Some(Start::OtherBoot),
            v1::WatchStart::Lost => Some(Start::Lost),
            v1::WatchStart::Policy => Some(Start::Policy),
        };
        let boot = BootId::parse(&raw.boot_id)?;
        let expected = self.position.map(|position| position.sequence);
        if start.is_none() && expected.is_some_and(|expected| expected != raw.first_sequence) {
            return Err(malformed(format!("a batch from {} on after {expected:?}", raw.first_sequence)));
        }
        if start.is_some() {
            self.namespaces.clear();
            self.complete = false;
        }
        for told in &raw.namespaces {
            let descriptor = Descriptor::parse(&told.descriptor.clone().unwrap_or_default())?;
            let watched = Watched { digest: NamespaceDigest::parse(&told.namespace)?, descriptor };
            self.namespaces.insert(told.number, Arc::new(watched));
        }
        let snapshot = raw.snapshot.iter().map(|stored| self.stored(stored)).collect::<Result<_, _>>()?;
        let change = |event: &v1::KvEvent| Ok((event.sequence, self.change(event)?));
        let changes = raw.events.iter().map(change).collect::<Result<_, Refusal>>()?;
        self.complete |= raw.complete;
        self.position = Some(Position { boot, sequence: raw.next_sequence, rights: raw.rights_id });
        Ok(Batch { start, snapshot, changes, complete: raw.complete, next_sequence: raw.next_sequence })
    }

    fn change(&self, raw: &v1::KvEvent) -> Result<Change, Refusal> {
        Ok(match &raw.change {
            Some(kv_event::Change::Stored(stored)) => Change::Stored(self.stored(stored)?),
            Some(kv_event::Change::Removed(removed)) => Change::Removed {
                namespace: self.namespace(removed.namespace)?,
                chunk: chunk(removed.chunk.as_ref())?,
                reason: Reason::from_wire(removed.reason).unwrap_or(Reason::Internal),
            },
            Some(kv_event::Change::Cleared(cleared)) => Change::Cleared(self.namespace(cleared.namespace)?),
            None => return Err(malformed("a change that this release does not know".into())),
        })
    }

    fn stored(&self, raw: &v1::StoredChunk) -> Result<Stored, Refusal> {
        Ok(Stored {
            namespace: self.namespace(raw.namespace)?,
            chunk: chunk(raw.chunk.as_ref())?,
            coverage: raw.coverage,
            covered_tokens: raw.covered_tokens,
        })
    }

    fn namespace(&self, number: u32) -> Result<Arc<Watched>, Refusal> {
        let known = self.namespaces.get(&number).map(Arc::clone);
        known.ok_or_else(|| malformed(format!("a namespace {number} that was not told")))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn chunk(raw: Option<&v1::ChunkId>) -> Result<ChunkId, Refusal> {
    ChunkId::parse(raw.ok_or_else(|| malformed("a change of no chunk".into()))?)
}

fn malformed(what: String) -> Refusal {
    Refusal::new(
        Reason::Malformed,
        what,
        "watch from the start again, and run client and daemon of one release",
    )
}

/// What a daemon holds, as far as it was told: the coverage of each chunk.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct View {
    chunks: BTreeMap<(NamespaceDigest, ChunkId), u64>,
    complete: bool,
}

impl View {
    /// Takes a batch in.
    pub fn apply(&mut self, batch: &Batch) {
        if batch.start.is_some() {
            *self = Self::default();
        }
        for stored in &batch.snapshot {
            self.store(stored);
        }
        for (_, change) in &batch.changes {
            match change {
                Change::Stored(stored) => self.store(stored),
                Change::Removed { namespace, chunk, .. } => {
                    self.chunks.remove(&(namespace.digest, *chunk));
                }
                Change::Cleared(namespace) => self.chunks.retain(|(of, _), _| *of != namespace.digest),
            }
        }
        self.complete |= batch.complete;
    }

    fn store(&mut self, stored: &Stored) {
        self.chunks.insert((stored.namespace.digest, stored.chunk), stored.coverage);
    }

    /// The blocks that are stored of a chunk.
    pub fn coverage(&self, namespace: NamespaceDigest, chunk: ChunkId) -> Option<u64> {
        self.chunks.get(&(namespace, chunk)).copied()
    }
    /// Chunks that are there.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }
    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
    /// Whether nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}
