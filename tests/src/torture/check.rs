//! The check after each round: what is served is read and compared, byte for byte and chunk for chunk, and everything
//! is recounted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::Rng;
use tender_proto::{PartIndex, v1};

use super::leg::Leg;
use super::space::Key;
use super::truth::{Judge, Verdict};
use crate::attach::{Attachment, attach};
use crate::pattern::assert_same;
use crate::raw::{Ask, RawClient, RawSession, Target, collect, get_item};

/// Chunks of one lookup.
const BATCH: usize = 32;
/// What nobody holds any more is free by then, on a slow machine too.
const PATIENCE: Duration = Duration::from_secs(10);
/// What must be nothing while everybody rests.
const HELD: [&str; 7] =
    ["leases", "pins", "readers", "reservations", "writers", "pending_chunks", "inflight_bytes"];

impl Leg {
    /// Compares and recounts. Nobody else may be at work.
    pub(super) async fn check(&mut self, judge: Judge<'_>) {
        // Parts of chunks that nobody completes any more stay pending until their time is up.
        self.settled(self.resting_sessions()).await;
        let client = self.connect().await;
        let session = client.open("check").await.expect("a session");
        let shared = attach(&self.victim.socket(), &session, 0).await;
        let mut epochs = Vec::new();
        for descriptor in &self.space.namespaces {
            epochs.push(session.epoch(descriptor).await);
        }
        let told = self.lock().truth.epochs(&epochs);
        told.unwrap_or_else(|error| panic!("after a restart or a reset: {error}"));
        let mut found = BTreeMap::new();
        for (namespace, &epoch) in epochs.iter().enumerate() {
            for keys in self.space.keys(namespace).chunks(BATCH) {
                self.read(&session, &shared, keys, epoch, &mut found).await;
            }
        }
        let verdict = self.lock().truth.compare(&self.space, &found, judge);
        let verdict = verdict.unwrap_or_else(|error| panic!("judged by {judge:?}: {error}"));
        drop((session, shared));
        self.recount(&client, &found).await;
        self.note(judge, verdict);
    }

    fn note(&self, judge: Judge<'_>, Verdict { kept, evicted, unannounced }: Verdict) {
        self.count("checks");
        self.add("chunks found again after a round", kept);
        self.add("chunks found that no client had heard of", unannounced);
        match judge {
            Judge::All => {}
            Judge::Evicted(_) => self.add("chunks missing and counted as evicted", evicted),
            Judge::Recent(_) => self.add("chunks missing and not used lately", evicted),
        }
    }

    async fn connect(&self) -> RawClient {
        RawClient::connect(&Target::Unix(self.victim.socket())).await.expect("a daemon that serves")
    }

    /// Reads and compares every one of these chunks that is served.
    async fn read(
        &mut self,
        session: &RawSession,
        shared: &Attachment,
        keys: &[Key],
        epoch: u64,
        found: &mut BTreeMap<Key, u64>,
    ) {
        let chunks: Vec<_> = keys.iter().map(|&key| self.space.chunk(key)).collect();
        let namespace = self.space.namespaces[keys[0].namespace].digest();
        let answer = session.lookup(namespace, &chunks, Ask::LOCATE.for_ms(20_000)).await.expect("a lookup");
        let Some(lease) = answer.lease else { return };
        let by_stream = self.rng.random_range(0..4) == 0;
        let mut wanted = Vec::new();
        for ((index, &key), status) in (0..).zip(keys).zip(&answer.chunks) {
            match status.state() {
                v1::ChunkState::Ready => {}
                v1::ChunkState::Miss => continue,
                other => panic!("{key:?} is {other:?} while nobody stores"),
            }
            let coverage = self.space.coverage_of(key, status.coverage).expect("bits of the chunk");
            found.insert(key, coverage.bits());
            assert_eq!(status.parts.len(), self.space.parts(key).len(), "a place for each part");
            for (part, place) in (0..).map(PartIndex).zip(&status.parts) {
                let expected = self.space.bytes(key, part, coverage, epoch);
                assert_same(&shared.copy(place), &expected, &format!("{key:?} part {part}"));
                self.add("bytes compared after a round", expected.len() as u64);
                wanted.push((get_item(index, part), expected));
            }
        }
        if by_stream {
            let items: Vec<_> = wanted.iter().map(|(item, _)| *item).collect();
            let count = items.len();
            let stream = session.get(lease.id, items).await.expect("a stream");
            let parts = collect(stream, count).await.expect("frames");
            for (part, (item, expected)) in parts.into_iter().zip(&wanted) {
                let read = part.unwrap_or_else(|reason| panic!("{item:?} cannot be read: {reason}"));
                assert_same(&read.bytes, expected, &format!("{item:?} in a stream"));
                self.add("bytes compared after a round", expected.len() as u64);
            }
        }
        let released = session.release(&[lease.id]).await.expect("an answer");
        assert_eq!(released, [v1::LeaseOutcome::Live]);
    }

    /// Nothing is held, nothing is lost: the daemon's own recount fits, and so do the numbers that it shows.
    async fn recount(&self, client: &RawClient, found: &BTreeMap<Key, u64>) {
        let audit = self.settled(self.resting_sessions()).await;
        assert_eq!(audit["capacity_bytes"], audit["used_bytes"] + audit["free_bytes"]);
        let stats = client.stats().await.expect("stats");
        assert_eq!((stats.leases, stats.pins, stats.reservations, stats.inflight_bytes), (0, 0, 0, 0));
        assert_eq!(
            (stats.arena_bytes, stats.arena_used_bytes),
            (audit["capacity_bytes"], audit["used_bytes"])
        );
        let ready: u64 = stats.namespaces.iter().map(|namespace| namespace.ready_chunks).sum();
        assert_eq!(ready, audit["ready_chunks"], "READY chunks that are shown and recounted");
        for (index, descriptor) in self.space.namespaces.iter().enumerate() {
            let digest = crate::raw::raw_digest(descriptor.digest());
            let shown = stats.namespaces.iter().find(|namespace| namespace.namespace == digest);
            let there = found.keys().filter(|key| key.namespace == index).count() as u64;
            assert_eq!(shown.map_or(0, |namespace| namespace.ready_chunks), there, "namespace {index}");
        }
        self.count("recounts that fit");
    }

    /// Waits until nothing is held and no more than so many sessions are open; the recount's numbers.
    async fn settled(&self, sessions: u64) -> BTreeMap<String, u64> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let audit = self.victim.audit().await;
            if let Ok(numbers) = &audit {
                let numbers: BTreeMap<_, _> = numbers.iter().cloned().collect();
                let held: u64 = HELD.iter().map(|name| numbers[*name]).sum();
                if held == 0 && numbers["sessions"] <= sessions {
                    return numbers;
                }
            }
            assert!(Instant::now() < give_up, "something is held while everybody rests: {audit:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Evictions of this boot by namespace.
    pub(super) async fn evictions(&self) -> Vec<u64> {
        let stats = self.connect().await.stats().await.expect("stats");
        let of = |digest| stats.namespaces.iter().find(|namespace| namespace.namespace == digest);
        let digests = self.space.namespaces.iter().map(|one| crate::raw::raw_digest(one.digest()));
        digests.map(|digest| of(digest).map_or(0, |namespace| namespace.evicted_chunks)).collect()
    }
}
