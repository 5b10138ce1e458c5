//! Loads of a client under torture. Bytes are checked whenever the daemon says that they may be used, and whenever a
//! digest vouched for them.

use rand::Rng;
use tender_proto::{Coverage, PartIndex, v1};

use super::client::{Client, Line, Lost, timely};
use super::journal::{Event, now_us};
use super::space::Key;
use crate::pattern::assert_same;
use crate::raw::{Ask, collect, get_item};

/// A chunk that was found.
#[derive(Clone, Debug)]
struct Found {
    index: u32,
    key: Key,
    coverage: Coverage,
    places: Vec<v1::PartLocation>,
}

/// The epochs in which what was found can have been stored: the one before the lookup and the one after it.
type Epochs = std::ops::RangeInclusive<u64>;

impl Client {
    /// Looks chunks of one namespace up, reads them and checks them.
    pub(super) async fn load(&mut self, line: &mut Line) -> Result<(), Lost> {
        let namespace = self.rng.random_range(0..self.space.namespaces.len());
        let count = self.rng.random_range(1..=6);
        let keys: Vec<_> = (0..count).map(|_| self.pick_in(namespace)).collect();
        Event::At("looking up".into()).say();
        let before = self.epoch(&line.session, namespace).await?;
        let chunks: Vec<_> = keys.iter().map(|&key| self.space.chunk(key)).collect();
        let digest = self.space.namespaces[namespace].digest();
        let lease_ms = [40, 300, 3000][self.rng.random_range(0..3)];
        let ask = if line.shared.is_some() { Ask::LOCATE } else { Ask::LEASE };
        let began_us = now_us();
        let answer = timely(line.session.lookup(digest, &chunks, ask.for_ms(lease_ms))).await?;
        self.count("lookups");
        let found = self.found(&keys, &answer);
        let Some(lease) = answer.lease else {
            assert!(found.is_empty(), "READY chunks without a lease: {answer:?}");
            return Ok(());
        };
        let after = self.epoch(&line.session, namespace).await?;
        assert!((before..before + 1000).contains(&after), "epochs {before} and {after} of one session");
        line.epochs[namespace] = after;
        let say = || {
            if before == after {
                for chunk in &found {
                    Event::Ready(chunk.key, chunk.coverage.bits(), after, (began_us, now_us())).say();
                }
            }
        };
        say();
        let read = if line.shared.is_some() {
            self.read_shared(line, lease.id, &found, before..=after).await
        } else {
            self.read_stream(line, lease.id, &found, before..=after).await
        };
        // The end of a lease is a use too.
        say();
        read
    }

    fn found(&mut self, keys: &[Key], answer: &v1::LookupResponse) -> Vec<Found> {
        assert_eq!(answer.chunks.len(), keys.len(), "one answer for each key");
        let mut found = Vec::new();
        for ((index, &key), status) in (0..).zip(keys).zip(&answer.chunks) {
            match status.state() {
                v1::ChunkState::Ready => {
                    let coverage = self.space.coverage_of(key, status.coverage).expect("bits of the chunk");
                    found.push(Found { index, key, coverage, places: status.parts.clone() });
                }
                v1::ChunkState::Pending => self.count("found pending"),
                _ => self.count("misses"),
            }
        }
        found
    }

    async fn read_shared(
        &mut self,
        line: &Line,
        lease: u64,
        found: &[Found],
        epochs: Epochs,
    ) -> Result<(), Lost> {
        Event::At("reading the arena".into()).say();
        let Some(shared) = &line.shared else { return Ok(()) };
        let mut copies = Vec::new();
        for chunk in found {
            for (part, place) in (0..).map(PartIndex).zip(&chunk.places) {
                copies.push((chunk, part, shared.copy(place)));
            }
            if self.chance(5) {
                // Slower than some leases.
                self.pause(120).await;
            }
        }
        match timely(line.session.release(&[lease])).await?[0] {
            v1::LeaseOutcome::Live => {
                for (chunk, part, bytes) in copies {
                    self.check(chunk, part, &bytes, epochs.clone());
                }
                self.count("loads through shared memory");
            }
            // What was copied may be anything.
            _ => self.count("leases that ended first"),
        }
        Ok(())
    }

    async fn read_stream(
        &mut self,
        line: &Line,
        lease: u64,
        found: &[Found],
        epochs: Epochs,
    ) -> Result<(), Lost> {
        Event::At("getting".into()).say();
        let mut wanted = Vec::new();
        for chunk in found {
            wanted.extend(self.space.parts(chunk.key).into_iter().map(|part| (chunk, part)));
        }
        if self.chance(5) {
            self.pause(120).await;
        }
        let items: Vec<_> = wanted.iter().map(|(chunk, part)| get_item(chunk.index, *part)).collect();
        let count = items.len();
        let parts = timely(async { collect(line.session.get(lease, items).await?, count).await }).await;
        let Ok(parts) = parts else {
            // Cut off, or the lease was over. The first needs a new session; the second does no harm to get one.
            self.count("streams that broke");
            return Err(Lost);
        };
        for ((chunk, part), read) in wanted.into_iter().zip(parts) {
            match read {
                Ok(read) => {
                    assert_eq!(read.coverage, chunk.coverage.bits(), "the coverage that was promised");
                    self.check(chunk, part, &read.bytes, epochs.clone());
                }
                Err(reason) => self.count(&format!("not read: {}", reason.label())),
            }
        }
        self.count("loads through a stream");
        let outcome = timely(line.session.release(&[lease])).await?[0];
        if outcome != v1::LeaseOutcome::Live {
            self.count("leases that ended first");
        }
        Ok(())
    }

    /// The bytes are those of one of these epochs, whole and without a mistake.
    fn check(&mut self, chunk: &Found, part: PartIndex, bytes: &[u8], mut epochs: Epochs) {
        let what = format!("{:?} part {part}", chunk.key);
        let expected = |epoch| self.space.bytes(chunk.key, part, chunk.coverage, epoch);
        let last = *epochs.end();
        if !epochs.any(|epoch| expected(epoch) == bytes) {
            assert_same(bytes, &expected(last), &what);
        }
        self.add("bytes checked", bytes.len() as u64);
    }
}
