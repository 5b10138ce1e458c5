//! Tells the directory what is here, behind everybody's back: what becomes READY and what goes, in batches as it comes,
//! and everything again and again before it expires. That round is also what fills a directory that was away or lost
//! everything, so nothing is kept of what could not be said.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use tender_proto::{ChunkId, NamespaceDigest};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::directory::{Change, Directory, Listed};
use super::entry::{Entry, Fingerprint, Holder};
use super::link::LinkError;
use super::pool::Pool;
use crate::engine::{Engine, Toured};
use crate::index::Walk;
use crate::metrics::Metrics;
use crate::tier::generations::{Generations, Learned};

/// What waits to be said. More is dropped; the next round says it.
const OUTBOX: usize = 1 << 16;
/// What is said at one time.
const BATCH: usize = 1024;
const TICK: Duration = Duration::from_millis(100);
/// An entry is said again this often in its lifetime: two rounds may fail.
const ROUNDS_PER_TTL: u32 = 3;

/// Something to say.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// A chunk of a local epoch is here.
    Publish { namespace: NamespaceDigest, epoch: u32, chunk: ChunkId, entry: Entry },
    /// It has gone.
    Withdraw { namespace: NamespaceDigest, chunk: ChunkId },
    /// Another daemon does not have what it says.
    Forget(Listed, Holder),
    /// The directory has lost the namespace's generation.
    Restore(NamespaceDigest),
}

/// Where everybody leaves what is to be said.
#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    sender: mpsc::Sender<Op>,
    metrics: Arc<Metrics>,
}

impl Outbox {
    /// Waits for nothing. False when too much waits already.
    pub(crate) fn put(&self, op: Op) -> bool {
        let taken = self.sender.try_send(op).is_ok();
        if !taken {
            self.metrics.peers.dropped.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }
}

/// The one task that speaks.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) engine: Arc<Engine>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) generations: Arc<Generations>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) metrics: Arc<Metrics>,
    /// Where this daemon is reached.
    pub(crate) address: String,
    /// For one batch.
    pub(crate) timeout: Duration,
    /// Entries of a round that are said each second at most.
    pub(crate) entries_per_second: usize,
}

/// Where the round has come to.
#[derive(Debug, Default)]
struct Round {
    walk: Walk,
    /// The directory may have lost everything: as fast as allowed.
    hurry: bool,
}

impl Publisher {
    pub(crate) fn outbox(&self) -> (Outbox, mpsc::Receiver<Op>) {
        let (sender, receiver) = mpsc::channel(OUTBOX);
        (Outbox { sender, metrics: Arc::clone(&self.metrics) }, receiver)
    }

    /// Speaks until it is dropped.
    pub(crate) async fn run(self, mut inbox: mpsc::Receiver<Op>) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What an earlier daemon left in the arena is new to the directory.
        let mut round = Round { hurry: true, ..Round::default() };
        let mut announced: Option<Instant> = None;
        let mut was_up = true;
        let mut ops = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                came = inbox.recv_many(&mut ops, BATCH) => if came == 0 { return },
                _ = tick.tick() => {
                    self.pool.close_idle(Instant::now());
                    let due = announced.is_none_or(|at| at.elapsed() >= self.directory.ttl() / ROUNDS_PER_TTL);
                    if due && self.announce().await {
                        announced = Some(Instant::now());
                    }
                    self.go_round(&mut round, &mut ops);
                }
            }
            let is_up = self.say(&ops).await || (ops.is_empty() && was_up);
            if is_up && !was_up {
                tracing::info!("the directory answers again; it is told everything that is here");
                (round, announced) = (Round { hurry: true, ..Round::default() }, None);
            }
            was_up = is_up;
            ops.clear();
        }
    }

    async fn announce(&self) -> bool {
        let said = self.directory.announce(&self.address, Instant::now() + self.timeout).await;
        said.inspect_err(|error| tracing::debug!(%error, "the directory was not told where this daemon is"))
            .is_ok()
    }

    /// Adds the next chunks of the round.
    fn go_round(&self, round: &mut Round, ops: &mut Vec<Op>) {
        let most = self.entries_per_second.div_ceil(10);
        let share = if round.hurry {
            most
        } else {
            let ticks = (self.directory.ttl() / ROUNDS_PER_TTL).as_millis() / TICK.as_millis();
            let ticks = usize::try_from(ticks).unwrap_or(1).max(1);
            usize::try_from(self.engine.ready_chunks()).unwrap_or(usize::MAX).div_ceil(ticks).min(most)
        };
        let (met, end) = self.engine.tour(&mut round.walk, share);
        ops.extend(met.iter().map(publish));
        if end {
            round.hurry = false;
        }
    }

    /// Says a batch; false when the directory did not take it.
    async fn say(&self, ops: &[Op]) -> bool {
        if ops.is_empty() {
            return false;
        }
        match self.try_to_say(ops).await {
            Ok(()) => true,
            Err(error) => {
                self.metrics.peers.dropped.fetch_add(ops.len() as u64, Ordering::Relaxed);
                tracing::debug!(%error, entries = ops.len(), "the directory was not told; it will be with the next round");
                false
            }
        }
    }

    async fn try_to_say(&self, ops: &[Op]) -> Result<(), LinkError> {
        for op in ops {
            if let Op::Restore(namespace) = op {
                let highest = self.generations.highest(*namespace);
                let now = self.directory.raise(*namespace, highest, 0, Instant::now() + self.timeout).await?;
                self.generations.learn(*namespace, now).await;
            }
        }
        let changes = self.changes(ops).await?;
        if changes.is_empty() {
            return Ok(());
        }
        let generations = self.directory.apply(&changes, Instant::now() + self.timeout).await?;
        self.count(&changes);
        for (namespace, seen) in generations {
            self.heard(namespace, seen).await?;
        }
        Ok(())
    }

    /// The last word about each chunk, as far as its generation is known.
    async fn changes(&self, ops: &[Op]) -> Result<Vec<Change>, LinkError> {
        let mut last = HashMap::with_capacity(ops.len());
        let mut changes = Vec::with_capacity(ops.len());
        for op in ops {
            let (key, change) = match *op {
                Op::Publish { namespace, epoch, chunk, entry } => {
                    let Some(generation) = self.generation(namespace, epoch).await? else { continue };
                    ((namespace, chunk), Change::Publish(Listed { namespace, generation, chunk }, entry))
                }
                Op::Withdraw { namespace, chunk } => {
                    let generation = self.generations.highest(namespace);
                    ((namespace, chunk), Change::Withdraw(Listed { namespace, generation, chunk }))
                }
                Op::Forget(listed, holder) => {
                    changes.push(Change::Forget(listed, holder));
                    continue;
                }
                Op::Restore(_) => continue,
            };
            last.insert(key, change);
        }
        changes.extend(last.into_values());
        Ok(changes)
    }

    /// The generation of what is stored in an epoch. The directory is asked where that is not known.
    async fn generation(&self, namespace: NamespaceDigest, epoch: u32) -> Result<Option<u64>, LinkError> {
        if self.generations.current(namespace).is_none() {
            match self.directory.generation(namespace, Instant::now() + self.timeout).await {
                Ok(seen) => self.heard(namespace, seen).await?,
                // It says nothing about the other namespaces of a batch, which go on.
                Err(LinkError::Damaged) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(self.generations.of(namespace, epoch))
    }

    async fn heard(&self, namespace: NamespaceDigest, seen: u64) -> Result<(), LinkError> {
        if let Learned::Lost(highest) = self.generations.learn(namespace, seen).await {
            self.directory.raise(namespace, highest, 0, Instant::now() + self.timeout).await?;
        }
        Ok(())
    }

    fn count(&self, changes: &[Change]) {
        let published = changes.iter().filter(|change| matches!(change, Change::Publish(..))).count() as u64;
        let withdrawn = changes.iter().filter(|change| matches!(change, Change::Withdraw(_))).count() as u64;
        self.metrics.peers.published.fetch_add(published, Ordering::Relaxed);
        self.metrics.peers.withdrawn.fetch_add(withdrawn, Ordering::Relaxed);
    }
}

fn publish(met: &Toured) -> Op {
    let coverage = (!met.coverage.is_full()).then(|| met.coverage.bits());
    let entry = Entry { fingerprint: Fingerprint::of(met.coverage, met.digests.iter().copied()), coverage };
    Op::Publish { namespace: met.namespace, epoch: met.epoch, chunk: met.chunk, entry }
}
