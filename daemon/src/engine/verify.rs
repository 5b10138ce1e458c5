//! Verifying all of a namespace now, at an operator's word.

use std::sync::atomic::Ordering;

use tender_proto::{ChunkId, NamespaceDigest, Reason, Refusal};

use super::{Engine, ResetScope};
use crate::index::Walk;

/// A walk through READY chunks, and what it found. Other than the scrub in the background, it begins at the beginning.
#[derive(Default, Debug)]
pub(crate) struct Verifying {
    only: Option<NamespaceDigest>,
    walk: Walk,
    pub(crate) good_chunks: u64,
    pub(crate) bad_chunks: u64,
    pub(crate) read_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) done: bool,
}

/// A chunk that was taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bad {
    pub(crate) namespace: NamespaceDigest,
    pub(crate) chunk: ChunkId,
}

impl Engine {
    /// Begins to verify. A namespace that is not there is refused.
    pub(crate) fn begin_verify(&self, scope: ResetScope) -> Result<Verifying, Refusal> {
        let only = match scope {
            ResetScope::All => None,
            ResetScope::One(digest) => match self.core.namespaces.get(digest) {
                Some(namespace) => Some(namespace.digest),
                None => {
                    return Err(Refusal::new(
                        Reason::UnknownNamespace,
                        format!("the namespace {digest}"),
                        "`tender ls` shows those that are there",
                    ));
                }
            },
        };
        let mut begun = Verifying { only, ..Verifying::default() };
        begun.total_bytes = self.bytes_of(&begun);
        Ok(begun)
    }

    fn bytes_of(&self, verifying: &Verifying) -> u64 {
        let all = self.core.namespaces.list().into_iter().map(|(namespace, _)| namespace);
        let meant = all.filter(|namespace| verifying.means(namespace.digest));
        meant.map(|namespace| namespace.counters.ready_bytes.load(Ordering::Acquire)).sum()
    }

    /// Goes on until so many bytes were read or all were seen, and returns the bad ones, which are found by nobody any
    /// more. Takes time by the bytes.
    pub(crate) fn verify(&self, verifying: &mut Verifying, budget_bytes: u64) -> Vec<Bad> {
        let core = &self.core;
        let (mut bad, mut read_bytes) = (Vec::new(), 0);
        core.scrub.reading.fetch_add(1, Ordering::AcqRel);
        while read_bytes < budget_bytes {
            let Some(stored) = core.index.next_ready(&mut verifying.walk) else {
                verifying.done = true;
                break;
            };
            if !verifying.means(stored.namespace.digest) {
                continue;
            }
            let (bytes, quarantined) = core.verify(&stored);
            read_bytes += bytes;
            if quarantined {
                verifying.bad_chunks += 1;
                bad.push(Bad { namespace: stored.namespace.digest, chunk: stored.chunk });
            } else {
                verifying.good_chunks += 1;
            }
        }
        core.scrub.reading.fetch_sub(1, Ordering::AcqRel);
        core.scrub.scrubbed_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        verifying.read_bytes += read_bytes;
        verifying.total_bytes = self.bytes_of(verifying).max(verifying.read_bytes);
        bad
    }
}

impl Verifying {
    fn means(&self, namespace: NamespaceDigest) -> bool {
        self.only.is_none_or(|only| only == namespace)
    }
}
