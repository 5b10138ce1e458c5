//! Which of a namespace's chunks count: those under the generation that its `generation` object names.
//!
//! A reset writes a generation that nobody has had before; whatever was or still is being stored under others is then
//! found by nobody. Two resets at once lose nothing: whichever is written last, it is new to everything stored before.
//! So no store needs to compare and write. Where the object is missing, nothing counts, and whoever keeps the first
//! chunk writes one: a store that loses it costs chunks and never brings old ones back.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tender_proto::NamespaceDigest;

use super::layout;
use super::store::{Store, StoreError};

/// A reset by another daemon is seen by `find` this much later at most; `fetch` always asks.
pub(super) const MAX_AGE: Duration = Duration::from_secs(1);

/// Random, so never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Generation([u8; 16]);

impl Generation {
    pub(super) fn random() -> Self {
        Self(rand::random())
    }
    pub(super) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The text is no generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoGeneration;

impl FromStr for Generation {
    type Err = NoGeneration;
    fn from_str(text: &str) -> Result<Self, NoGeneration> {
        let digits =
            text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let number = u128::from_str_radix(text, 16).ok().filter(|_| digits).ok_or(NoGeneration)?;
        Ok(Self(number.to_be_bytes()))
    }
}

/// What this daemon knows of generations, each with the moment at which the store was asked.
#[derive(Debug, Default)]
pub(super) struct Generations(Mutex<HashMap<NamespaceDigest, Seen>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    generation: Option<Generation>,
    asked: Instant,
}

impl Generations {
    /// As it was at most [`MAX_AGE`] ago.
    pub(super) async fn recent(
        &self,
        store: &Store,
        namespace: NamespaceDigest,
        folder: &str,
    ) -> Result<Option<Generation>, StoreError> {
        let seen = self.0.lock().get(&namespace).copied();
        match seen.filter(|seen| seen.asked.elapsed() <= MAX_AGE) {
            Some(seen) => Ok(seen.generation),
            None => self.fresh(store, namespace, folder).await,
        }
    }

    /// As it was last seen, whenever that was.
    pub(super) fn last(&self, namespace: NamespaceDigest) -> Option<Generation> {
        self.0.lock().get(&namespace).and_then(|seen| seen.generation)
    }

    /// Asks the store.
    pub(super) async fn fresh(
        &self,
        store: &Store,
        namespace: NamespaceDigest,
        folder: &str,
    ) -> Result<Option<Generation>, StoreError> {
        let asked = Instant::now();
        let object = store.read_name(&layout::generation(folder)).await?;
        let text = object.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
        let generation = text.and_then(|text| text.trim().parse().ok());
        Ok(self.note(namespace, generation, asked))
    }

    /// The one that counts; writes the first one if there is none.
    pub(super) async fn recent_or_first(
        &self,
        store: &Store,
        namespace: NamespaceDigest,
        folder: &str,
    ) -> Result<Option<Generation>, StoreError> {
        if let Some(generation) = self.recent(store, namespace, folder).await? {
            return Ok(Some(generation));
        }
        match self.write(store, folder, Generation::random(), false).await {
            Ok(()) | Err(StoreError::Exists) => {}
            Err(error) => return Err(error),
        }
        // Another daemon may have been first, or last.
        self.fresh(store, namespace, folder).await
    }

    /// Begins a new one.
    pub(super) async fn begin(
        &self,
        store: &Store,
        namespace: NamespaceDigest,
        folder: &str,
    ) -> Result<(), StoreError> {
        let generation = Generation::random();
        self.write(store, folder, generation, true).await?;
        self.note(namespace, Some(generation), Instant::now());
        Ok(())
    }

    async fn write(
        &self,
        store: &Store,
        folder: &str,
        generation: Generation,
        replace: bool,
    ) -> Result<(), StoreError> {
        let text = format!("{generation}\n").into_bytes();
        store.write_name(&layout::generation(folder), text, replace).await
    }

    /// Remembers the answer to the latest question, and says what that is: an answer that was asked for before this
    /// daemon's own reset is old.
    fn note(
        &self,
        namespace: NamespaceDigest,
        generation: Option<Generation>,
        asked: Instant,
    ) -> Option<Generation> {
        let mut all = self.0.lock();
        let seen = all.entry(namespace).or_insert(Seen { generation, asked });
        if asked >= seen.asked {
            *seen = Seen { generation, asked };
        }
        seen.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_reads_back_and_nothing_else_is_one() {
        let generation = Generation::random();
        assert_eq!(generation.to_string().parse(), Ok(generation));
        for text in
            ["", "descriptor.json", "+0000000000000000000000000000001", &"A".repeat(32), &"0".repeat(33)]
        {
            assert_eq!(text.parse::<Generation>(), Err(NoGeneration), "{text}");
        }
    }

    #[test]
    fn an_answer_from_before_a_reset_does_not_undo_it() {
        let (generations, namespace) = (Generations::default(), NamespaceDigest::from_bytes([1; 32]));
        let (old, new, before) = (Generation::random(), Generation::random(), Instant::now());
        let after = before + Duration::from_millis(1);
        assert_eq!(generations.note(namespace, Some(new), after), Some(new));
        assert_eq!(generations.note(namespace, Some(old), before), Some(new));
        assert_eq!(generations.last(namespace), Some(new));
    }
}
