//! Which chunks the daemon holds, for an engine that tells routers: a thread watches the daemon, and the scheduler takes
//! what has changed.
//!
//! Only the last state of each chunk waits to be taken, so an engine that is idle for long costs no more than the chunks
//! that changed meanwhile. Whatever cuts the watch off is told as "forget everything": what a daemon holds that cannot be
//! reached is of no use to a router.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use tender_proto::{ChunkId, NamespaceDigest};

use crate::config::ClientConfig;
use crate::error::ClientError;
use crate::events::{Batch, Change, EventStream, Stored, WatchOptions};
use crate::retry::Backoff;

/// For the connection and the daemon's yes.
const OPEN_LIMIT: Duration = Duration::from_secs(5);
/// How soon the thread notices that it is no longer wanted.
const LOOK: Duration = Duration::from_millis(200);
/// Chunks whose change nobody has taken. Above it, all is forgotten and told anew.
const MOST_UNTAKEN: usize = 1 << 20;

/// What has changed since it was last taken. First everything is forgotten, if so, then these are as they are.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Changes {
    /// Nothing that was told before is true.
    pub forget: bool,
    /// The coverage of chunks that are there, `None` of those that are not.
    pub chunks: HashMap<ChunkId, Option<u64>>,
}

impl Changes {
    fn forget(&mut self) {
        *self = Self { forget: true, chunks: HashMap::new() };
    }

    fn apply(&mut self, batch: &Batch) {
        if batch.start.is_some() {
            self.forget();
        }
        let stored = |stored: &Stored| (stored.chunk, Some(stored.coverage));
        self.chunks.extend(batch.snapshot.iter().map(stored));
        for (_, change) in &batch.changes {
            match change {
                Change::Stored(chunk) => self.chunks.extend([stored(chunk)]),
                Change::Removed { chunk, .. } => self.chunks.extend([(*chunk, None)]),
                // One namespace is watched.
                Change::Cleared(_) => self.forget(),
            }
        }
    }
}

/// The watch; it ends with this.
#[derive(Debug)]
pub(super) struct Residents {
    changes: Arc<Mutex<Changes>>,
    _stop: Sender<()>,
}

impl Residents {
    pub(super) fn watch(config: ClientConfig, namespace: NamespaceDigest) -> Result<Self, ClientError> {
        let (changes, (_stop, stop)) = (Arc::<Mutex<Changes>>::default(), channel());
        let into = Arc::clone(&changes);
        std::thread::Builder::new()
            .name("tender-events".into())
            .spawn(move || watch(&config, namespace, &into, &stop))
            .map_err(|source| ClientError::Start { what: "the thread that watches the daemon", source })?;
        Ok(Self { changes, _stop })
    }

    pub(super) fn take(&self) -> Changes {
        std::mem::take(&mut self.changes.lock())
    }
}

fn watch(config: &ClientConfig, namespace: NamespaceDigest, changes: &Mutex<Changes>, stop: &Receiver<()>) {
    let mut backoff = Backoff::new(config.reconnect_min, config.reconnect_max);
    let goes_on = |pause| stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
    while goes_on(Duration::ZERO) {
        let options = WatchOptions { namespaces: vec![namespace], from: None };
        let ended = EventStream::open(&config.address, &config.credentials(), options, OPEN_LIMIT).and_then(
            |mut stream| {
                backoff.reset();
                while goes_on(Duration::ZERO) && changes.lock().chunks.len() < MOST_UNTAKEN {
                    if let Some(batch) = stream.next(LOOK)? {
                        changes.lock().apply(&batch);
                    }
                }
                Ok(())
            },
        );
        if let Err(no) = ended {
            tracing::debug!(%no, "the watch of the daemon has ended and begins again");
        }
        changes.lock().forget();
        if !goes_on(backoff.pause()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tender_proto::{ChainHash, GroupIndex, Reason};

    use super::*;
    use crate::events::{Start, Watched};

    fn chunk(n: u8) -> ChunkId {
        ChunkId { group: GroupIndex(0), hash: ChainHash::from(blake3::hash(&[n])) }
    }

    #[test]
    fn only_the_last_state_of_each_chunk_waits_and_a_start_or_reset_comes_before_it() {
        let descriptor = super::super::tests::descriptor();
        let namespace = Arc::new(Watched { digest: descriptor.digest(), descriptor });
        let stored = |n, coverage| Stored {
            namespace: Arc::clone(&namespace),
            chunk: chunk(n),
            coverage,
            covered_tokens: 1,
        };
        let removed = |n| Change::Removed {
            namespace: Arc::clone(&namespace),
            chunk: chunk(n),
            reason: Reason::Evicted,
        };
        let mut changes = Changes::default();
        let first = Batch { start: Some(Start::First), snapshot: vec![stored(1, 1)], ..Batch::default() };
        changes.apply(&first);
        let more =
            vec![(1, Change::Stored(stored(1, 3))), (2, Change::Stored(stored(2, 1))), (3, removed(2))];
        changes.apply(&Batch { changes: more, ..Batch::default() });
        assert!(changes.forget);
        assert_eq!(changes.chunks, HashMap::from([(chunk(1), Some(3)), (chunk(2), None)]));
        let cleared = vec![(4, Change::Cleared(Arc::clone(&namespace))), (5, Change::Stored(stored(3, 1)))];
        changes = Changes { forget: false, ..changes };
        changes.apply(&Batch { changes: cleared, ..Batch::default() });
        assert_eq!(changes, Changes { forget: true, chunks: HashMap::from([(chunk(3), Some(1))]) });
    }
}
