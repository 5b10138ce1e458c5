//! A bounded memory of what is not there any more, or never got in, and why; and of what requests asked for. It is
//! written only when chunks leave, are refused, or are asked for by a request that has an id. Losing an entry costs only
//! the answer to an operator's question.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hashbrown::{DefaultHashBuilder, HashMap};
use parking_lot::Mutex;
use tender_proto::{ChunkId, NamespaceDigest, Reason};

/// Places where one key may stand; the oldest of them is given up.
const WAYS: usize = 4;
/// An id that is longer is none that a person would type.
const MAX_ID_BYTES: usize = 256;
/// A waiting request asks again and again: so far back its last asking is looked for, to take its place.
const REPEATED_WITHIN: usize = 64;

/// Why a chunk is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// It made room for others.
    Evicted,
    /// It made room for others of its domain.
    EvictedForQuota,
    /// It was not stored.
    Refused(Reason),
    /// Its bytes had changed.
    Quarantined,
    /// A reset has forgotten it.
    Reset,
    /// Whoever stored it gave up.
    GivenUp,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Of the key; two keys of one tag are taken for one another, once in 2^64.
    tag: u64,
    /// After the beginning of the memory.
    at_ms: u64,
    why: Left,
}

type Set = [Option<Entry>; WAYS];

/// What a lookup said of one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Ready,
    Pending,
    Miss(Reason),
}

/// One lookup of a request.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub(crate) request_id: Box<str>,
    pub(crate) namespace: NamespaceDigest,
    /// Requests that must have asked for a chunk before its engine stores it.
    pub(crate) store_after_requests: u32,
    pub(crate) at: Instant,
    pub(crate) chunks: Box<[(ChunkId, Told)]>,
}

impl Asked {
    fn bytes(&self) -> u64 {
        let all = size_of::<Self>() + self.request_id.len() + size_of_val(&*self.chunks) + 64;
        all as u64
    }
}

#[derive(Debug, Default)]
struct Requests {
    /// Oldest first.
    all: VecDeque<Arc<Asked>>,
    bytes: u64,
}

/// Both memories. Each has half of the bytes.
#[derive(Debug)]
pub(crate) struct History {
    begin: Instant,
    sets: Box<[Mutex<Set>]>,
    hasher: DefaultHashBuilder,
    overflowed: AtomicBool,
    most_request_bytes: u64,
    requests: Mutex<Requests>,
}

impl History {
    /// Of at most so many bytes; none for 0.
    pub(crate) fn new(bytes: u64, begin: Instant) -> Self {
        let sets = usize::try_from(bytes / 2).unwrap_or(0) / size_of::<Mutex<Set>>();
        Self {
            begin,
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            hasher: DefaultHashBuilder::default(),
            overflowed: AtomicBool::new(false),
            most_request_bytes: bytes / 2,
            requests: Mutex::default(),
        }
    }

    /// How far back it can go at most; `None` where nothing is remembered.
    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        (!self.sets.is_empty()).then(|| now.saturating_duration_since(self.begin))
    }
    /// Whether something had to be forgotten.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Remembers why a chunk is not there, in place of what was known of it.
    pub(crate) fn note(&self, namespace: NamespaceDigest, chunk: ChunkId, why: Left, now: Instant) {
        let Some((set, tag)) = self.set_of(namespace, chunk) else { return };
        let age = now.saturating_duration_since(self.begin);
        let entry = Entry { tag, at_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX), why };
        let mut set = set.lock();
        let age = |way: &Option<Entry>| match way {
            Some(known) if known.tag == tag => 0,
            None => 1,
            Some(other) => other.at_ms.saturating_add(2),
        };
        let Some(way) = set.iter_mut().min_by_key(|way| age(way)) else { return };
        if way.replace(entry).is_some_and(|before| before.tag != tag) {
            self.overflowed.store(true, Ordering::Relaxed);
        }
    }

    /// Why a chunk is not there, and since when.
    pub(crate) fn why(
        &self,
        namespace: NamespaceDigest,
        chunk: ChunkId,
        now: Instant,
    ) -> Option<(Left, Duration)> {
        let (set, tag) = self.set_of(namespace, chunk)?;
        let entry = *set.lock().iter().flatten().find(|entry| entry.tag == tag)?;
        let at = self.begin + Duration::from_millis(entry.at_ms);
        Some((entry.why, now.saturating_duration_since(at)))
    }

    fn set_of(&self, namespace: NamespaceDigest, chunk: ChunkId) -> Option<(&Mutex<Set>, u64)> {
        let tag = self.hasher.hash_one((namespace, chunk));
        let at = (tag >> 32).checked_rem(self.sets.len() as u64)?;
        Some((self.sets.get(usize::try_from(at).ok()?)?, tag))
    }

    /// Whether a lookup of this id is remembered.
    pub(crate) fn wants(&self, request_id: &str) -> bool {
        !request_id.is_empty() && request_id.len() <= MAX_ID_BYTES && self.most_request_bytes > 0
    }

    /// Remembers a lookup, in place of the last one of the same request, or of the oldest.
    pub(crate) fn asked(&self, asked: Asked) {
        let bytes = asked.bytes();
        if bytes > self.most_request_bytes {
            return;
        }
        let mut requests = self.requests.lock();
        let same =
            |other: &Arc<Asked>| other.request_id == asked.request_id && other.namespace == asked.namespace;
        let again = requests.all.iter().rev().take(REPEATED_WITHIN).position(same);
        let again = again.map(|back| requests.all.len() - 1 - back);
        if let Some(before) = again.and_then(|at| requests.all.remove(at)) {
            requests.bytes -= before.bytes();
        }
        while requests.bytes + bytes > self.most_request_bytes {
            let Some(oldest) = requests.all.pop_front() else { break };
            requests.bytes -= oldest.bytes();
        }
        requests.bytes += bytes;
        requests.all.push_back(Arc::new(asked));
    }

    /// The newest lookup of a request.
    pub(crate) fn request(&self, id: &str) -> Option<Arc<Asked>> {
        self.requests.lock().all.iter().rev().find(|asked| &*asked.request_id == id).cloned()
    }

    /// How many remembered requests have asked for each of these, and how many the last of them wants before it stores.
    pub(crate) fn askings(&self, namespace: NamespaceDigest, chunks: &[ChunkId]) -> Vec<(u32, u32)> {
        let mut counts: HashMap<ChunkId, (u32, u32)> = chunks.iter().map(|&chunk| (chunk, (0, 0))).collect();
        let all: Vec<_> = self.requests.lock().all.iter().cloned().collect();
        for asked in all.iter().filter(|asked| asked.namespace == namespace) {
            for (chunk, _) in &asked.chunks {
                if let Some((requests, wanted)) = counts.get_mut(chunk) {
                    *requests += 1;
                    *wanted = asked.store_after_requests.max(1);
                }
            }
        }
        chunks.iter().map(|chunk| counts.get(chunk).copied().unwrap_or_default()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{a, b, chunk};

    fn asked(id: &str, chunks: std::ops::Range<u32>, at: Instant) -> Asked {
        let chunks = chunks.map(|n| (chunk(n), Told::Miss(Reason::NeverStored))).collect();
        Asked { request_id: id.into(), namespace: a(), store_after_requests: 2, at, chunks }
    }

    #[test]
    fn the_last_reason_of_a_chunk_is_told_with_its_age() {
        let begin = Instant::now();
        let history = History::new(1 << 20, begin);
        history.note(a(), chunk(1), Left::Evicted, begin + Duration::from_secs(1));
        history.note(a(), chunk(1), Left::Refused(Reason::NoSpace), begin + Duration::from_secs(3));
        let now = begin + Duration::from_secs(10);
        let why = history.why(a(), chunk(1), now);
        assert_eq!(why, Some((Left::Refused(Reason::NoSpace), Duration::from_secs(7))));
        assert_eq!(history.why(b(), chunk(1), now), None, "another namespace is another key");
        assert_eq!(history.why(a(), chunk(2), now), None);
        assert_eq!(history.age(now), Some(Duration::from_secs(10)));
        assert!(!history.has_overflowed());
    }

    #[test]
    fn it_keeps_the_newest_and_does_not_grow() {
        let begin = Instant::now();
        let history = History::new(16 << 10, begin);
        let places = u32::try_from(history.sets.len() * WAYS).unwrap();
        for n in 0..10 * places {
            history.note(a(), chunk(n), Left::Evicted, begin + Duration::from_millis(n.into()));
        }
        let known = |n| history.why(a(), chunk(n), begin + Duration::from_secs(3600)).is_some();
        assert!(history.has_overflowed());
        assert!(known(10 * places - 1), "the newest is there");
        assert!((0..places).filter(|&n| known(n)).count() < 10, "the oldest are gone");
    }

    #[test]
    fn without_memory_nothing_is_remembered() {
        let now = Instant::now();
        let history = History::new(0, now);
        history.note(a(), chunk(1), Left::Evicted, now);
        assert_eq!((history.why(a(), chunk(1), now), history.age(now)), (None, None));
        assert!(!history.wants("one"));
    }

    #[test]
    fn a_request_that_asks_again_is_one_request() {
        let now = Instant::now();
        let history = History::new(1 << 20, now);
        history.asked(asked("one", 0..4, now));
        history.asked(asked("two", 2..6, now));
        history.asked(asked("one", 0..5, now + Duration::from_secs(1)));
        assert_eq!(history.askings(a(), &[chunk(0), chunk(3), chunk(9)]), [(1, 2), (2, 2), (0, 0)]);
        assert_eq!(history.askings(b(), &[chunk(0)]), [(0, 0)]);
        assert_eq!(history.request("one").unwrap().chunks.len(), 5, "its newest lookup");
        assert_eq!(history.request("three"), None);
    }

    #[test]
    fn old_requests_make_room_for_new_ones() {
        let now = Instant::now();
        let history = History::new(64 << 10, now);
        for n in 0..1000 {
            history.asked(asked(&n.to_string(), 0..10, now));
        }
        let requests = history.requests.lock();
        assert!(requests.bytes <= 32 << 10 && requests.all.len() > 10);
        assert_eq!(requests.bytes, requests.all.iter().map(|asked| asked.bytes()).sum::<u64>());
        drop(requests);
        assert!(history.request("0").is_none() && history.request("999").is_some());
        assert!(!history.wants("") && !history.wants(&"x".repeat(257)) && history.wants("x"));
    }
}
