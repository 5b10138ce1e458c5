//! Stores of a client under torture: right ones, and those that must change nothing.

use bytes::Bytes;
use rand::Rng;
use tender_proto::{Coverage, Reason, v1};
use tokio_stream::StreamExt;

use super::client::{Client, Line, Lost, STAGING_BYTES, timely};
use super::journal::{Event, now_us};
use super::space::{Key, LEVELS};
use crate::attach::commit_item;
use crate::raw::{Ask, item, raw_digest, refused};

/// Payload of one frame: several for most parts.
const FRAME_BYTES: usize = 6 << 10;

/// One part that may be written.
#[derive(Debug)]
struct Claimed {
    reservation: u64,
    bytes: Vec<u8>,
}

/// What a store is about.
#[derive(Clone, Copy, Debug)]
struct About {
    key: Key,
    coverage: Coverage,
    epoch: u64,
    began_us: u64,
}

impl Client {
    /// Stores a chunk, or a part of it.
    pub(super) async fn store(&mut self, line: &mut Line) -> Result<(), Lost> {
        let (about, claimed) = self.claim(line, None).await?;
        if claimed.is_empty() {
            return Ok(());
        }
        let outcomes = self.send(line, about, &claimed).await?;
        self.heard(about, &outcomes);
        Ok(())
    }

    /// Reserves a random chunk, all of its parts or those that are asked for.
    async fn claim(&mut self, line: &mut Line, parts: Option<usize>) -> Result<(About, Vec<Claimed>), Lost> {
        let key = self.pick();
        let level = self.rng.random_range(0..LEVELS);
        let coverage = self.space.coverage(key, level);
        let epoch = line.epochs[key.namespace];
        let about = About { key, coverage, epoch, began_us: now_us() };
        let mut chosen = self.choose_parts(key);
        chosen.truncate(parts.unwrap_or(usize::MAX));
        let bytes: Vec<_> = chosen.iter().map(|&part| self.space.bytes(key, part, coverage, epoch)).collect();
        let chunk = self.space.chunk(key);
        let items = chosen.iter().zip(&bytes).map(|(&part, bytes)| item(chunk, part, coverage, bytes.len()));
        Event::At("reserving".into()).say();
        Event::Try(key, coverage.bits(), epoch).say();
        let request = v1::ReserveRequest {
            session_id: line.session.id.clone(),
            namespace: raw_digest(self.space.namespaces[key.namespace].digest()),
            items: items.collect(),
            epoch,
        };
        let mut store = line.session.client.store.clone();
        let answer = timely(store.reserve(request)).await?.into_inner();
        line.epochs[key.namespace] = answer.epoch;
        let mut claimed = Vec::new();
        for (outcome, bytes) in answer.outcomes.iter().zip(bytes) {
            match (outcome.reservation_id, refused(outcome.refused)) {
                (0, Some(reason)) => self.count(&format!("not reserved: {}", reason.label())),
                (0, None) => self.count("reservations not needed"),
                (reservation, _) => claimed.push(Claimed { reservation, bytes }),
            }
        }
        Ok((about, claimed))
    }

    async fn send(
        &mut self,
        line: &Line,
        about: About,
        claimed: &[Claimed],
    ) -> Result<Vec<v1::StoreOutcome>, Lost> {
        if line.shared.is_some() {
            self.stage(line, claimed).await;
            self.commit(line, about, claimed, false).await
        } else {
            self.put(line, about, claimed).await
        }
    }

    /// Puts parts one after another into staging, piece by piece.
    async fn stage(&mut self, line: &Line, claimed: &[Claimed]) {
        Event::At("filling staging".into()).say();
        let Some(shared) = &line.shared else { return };
        let mut at = 0;
        let slow = self.chance(20);
        for part in claimed {
            for piece in part.bytes.chunks(FRAME_BYTES) {
                shared.stage(at, piece);
                at += piece.len() as u64;
                if slow {
                    self.pause(8).await;
                }
            }
        }
        assert!(at <= STAGING_BYTES, "a chunk fits into staging");
    }

    /// Commits what lies in staging. `wrong` tells digests that are not the bytes'.
    async fn commit(
        &mut self,
        line: &Line,
        about: About,
        claimed: &[Claimed],
        wrong: bool,
    ) -> Result<Vec<v1::StoreOutcome>, Lost> {
        let mut at = 0;
        let items = claimed.iter().map(|part| {
            let offset = at;
            at += part.bytes.len() as u64;
            let mut item = commit_item(part.reservation, offset, about.coverage, &part.bytes);
            if wrong {
                item.digest = Bytes::copy_from_slice(&[1; 32]);
            }
            item
        });
        let items = items.collect();
        Event::At("committing".into()).say();
        timely(line.session.commit(items)).await
    }

    /// Sends parts as frames.
    async fn put(
        &mut self,
        line: &Line,
        about: About,
        claimed: &[Claimed],
    ) -> Result<Vec<v1::StoreOutcome>, Lost> {
        Event::At("putting".into()).say();
        let mut frames = Vec::new();
        for part in claimed {
            let mut more = line.session.frames(part.reservation, about.coverage, &part.bytes, FRAME_BYTES);
            if !frames.is_empty() {
                more[0].session_id = Bytes::new();
            }
            frames.append(&mut more);
        }
        let pause = if self.chance(20) { 8 } else { 0 };
        let frames = tokio_stream::iter(frames).then(move |frame| async move {
            if pause > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
            }
            frame
        });
        let mut store = line.session.client.store.clone();
        Ok(timely(store.put(frames)).await?.into_inner().outcomes)
    }

    fn heard(&mut self, about: About, outcomes: &[v1::StoreOutcome]) {
        for outcome in outcomes {
            match refused(outcome.refused) {
                Some(reason) => self.count(&format!("not stored: {}", reason.label())),
                None => self.count("parts stored"),
            }
            if outcome.chunk_ready {
                self.count("chunks made READY");
                let span = (about.began_us, now_us());
                Event::Ready(about.key, about.coverage.bits(), about.epoch, span).say();
            }
        }
    }

    /// What must change nothing: given up, wrong, late or repeated.
    pub(super) async fn misbehave(&mut self, line: &mut Line) -> Result<(), Lost> {
        let (about, claimed) = self.claim(line, Some(1)).await?;
        if claimed.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = claimed.iter().map(|part| part.reservation).collect();
        match self.rng.random_range(0..40) {
            0..10 => {
                self.count("reservations given up");
                timely(line.session.abort(&ids)).await?;
                let outcomes = self.send(line, about, &claimed).await?;
                self.expect_refusal(&outcomes, "given up", &[Reason::UnknownReservation]);
            }
            // Takes half a second: seldom.
            10 => {
                self.count("reservations left to expire");
                let patience = line.session.opened.reservation_ms + 100;
                tokio::time::sleep(std::time::Duration::from_millis(patience)).await;
                let outcomes = self.send(line, about, &claimed).await?;
                self.expect_refusal(&outcomes, "late", &[Reason::ReservationExpired]);
            }
            11..20 if line.shared.is_some() => {
                self.count("wrong digests sent");
                self.stage(line, &claimed).await;
                let outcomes = self.commit(line, about, &claimed, true).await?;
                self.expect_refusal(&outcomes, "wrong", &[Reason::BadDigest, Reason::ReservationExpired]);
            }
            20..30 => {
                let outcomes = self.send(line, about, &claimed).await?;
                self.heard(about, &outcomes);
                self.count("commits repeated");
                let again = self.send(line, about, &claimed).await?;
                self.expect_refusal(&again, "repeated", &[]);
            }
            _ => self.count("reservations abandoned"),
        }
        Ok(())
    }

    /// Nothing of these was stored, for one of the reasons, or because a reset or the session's end came first.
    fn expect_refusal(&mut self, outcomes: &[v1::StoreOutcome], what: &str, reasons: &[Reason]) {
        for outcome in outcomes {
            assert!(!outcome.stored && !outcome.chunk_ready, "a {what} commit was stored: {outcome:?}");
            let reason = refused(outcome.refused).expect("a reason");
            let fits = reasons.is_empty()
                || reasons.contains(&reason)
                || matches!(reason, Reason::NamespaceReset | Reason::UnknownSession);
            assert!(fits, "a {what} commit was refused as {reason:?}, not as one of {reasons:?}");
        }
    }

    /// Takes a reservation and a lease and goes away with both.
    pub(super) async fn hold_something(&mut self, line: &mut Line) -> Result<(), Lost> {
        let (about, _) = self.claim(line, None).await?;
        let namespace = self.space.namespaces[about.key.namespace].digest();
        let chunk = self.space.chunk(about.key);
        Event::At("holding".into()).say();
        timely(line.session.lookup(namespace, &[chunk], Ask::LEASE.for_ms(20_000))).await?;
        self.count("left while holding");
        Ok(())
    }
}
