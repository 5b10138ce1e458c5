//! Which of a namespace's chunks count: those under the generation that its `generation` object names.
//!
//! A generation has a number, which each reset raises (see [`crate::tier::generations`]), and a name that nobody has had
//! before: the number and chance. Whatever was or still is being stored under other names is found by nobody. Two resets
//! at once lose nothing: whichever is written last, its name is new to everything stored before, and a daemon that knows a
//! higher number writes that one again. So no store needs to compare and write. Where the object is missing, nothing
//! counts, and whoever keeps the first chunk writes one: a store that loses it costs chunks and never brings old ones back.
//!
//! A store that cannot list its namespaces has one more number, for all of them, which a reset of everything raises: no
//! generation below it counts.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tender_proto::NamespaceDigest;

use super::layout;
use super::store::{Store, StoreError};
use crate::tier::generations::{self, now_ms};

/// A reset by another daemon is seen by `find` this much later at most; `fetch` always asks.
pub(super) const MAX_AGE: Duration = Duration::from_secs(1);
/// How far the number for all lies ahead of the time: no daemon's clock is so wrong.
const AHEAD_MS: u64 = 1 << 40;
/// By how much a reset of everything raises it: there are fewer resets of one namespace in between.
const STEP: u64 = 1 << 20;

/// Number and chance: never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Generation([u8; 16]);

impl Generation {
    /// A new name for this number.
    pub(super) fn of(number: u64) -> Self {
        Self((u128::from(number) << 64 | u128::from(rand::random::<u64>())).to_be_bytes())
    }
    /// 0: the namespace was never reset, as far as whoever wrote it knew.
    pub(super) fn number(&self) -> u64 {
        u64::try_from(u128::from_be_bytes(self.0) >> 64).unwrap_or(u64::MAX)
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
        let read = Self(number.to_be_bytes());
        generations::parse(read.number()).map(|_| read).ok_or(NoGeneration)
    }
}

/// What the store says of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Word {
    /// 0 if it was never reset.
    pub(super) number: u64,
    /// Whose chunks count, if any do; its number is the one above.
    pub(super) counts: Option<Generation>,
    /// There is an object, whatever it says.
    pub(super) is_written: bool,
}

impl Word {
    fn read(own: Option<&[u8]>, all: Option<&[u8]>) -> Self {
        let generation = |object: Option<&[u8]>| -> Option<Generation> {
            std::str::from_utf8(object?).ok()?.trim().parse().ok()
        };
        let least = generation(all).map_or(0, |all| all.number());
        let counts = generation(own).filter(|own| own.number() >= least);
        Self { number: counts.map_or(least, |counts| counts.number()), counts, is_written: own.is_some() }
    }
    fn of(generation: Generation) -> Self {
        Self { number: generation.number(), counts: Some(generation), is_written: true }
    }
}

/// What the store has said, each with the moment at which it was asked.
#[derive(Debug, Default)]
pub(super) struct Asked(Mutex<HashMap<NamespaceDigest, (Word, Instant)>>);

impl Asked {
    /// As it was at most [`MAX_AGE`] ago.
    pub(super) async fn recent(
        &self,
        store: &Store,
        namespace: NamespaceDigest,
        folder: &str,
    ) -> Result<Word, StoreError> {
        let said = self.0.lock().get(&namespace).copied();
        match said.filter(|(_, asked)| asked.elapsed() <= MAX_AGE) {
            Some((word, _)) => Ok(word),
            None => self.fresh(store, namespace, folder).await,
        }
    }

    /// What counted when the store was last asked, whenever that was.
    pub(super) fn last(&self, namespace: NamespaceDigest) -> Option<Generation> {
        self.0.lock().get(&namespace).and_then(|(word, _)| word.counts)
    }

    /// Asks the store.
    pub(super) async fn fresh(
        &self,
        store: &Store,
        namespace: NamespaceDigest,
        folder: &str,
    ) -> Result<Word, StoreError> {
        let asked = Instant::now();
        let path = layout::generation(folder);
        let (own, all) = if store.can_list() {
            (store.read_name(&path).await?, None)
        } else {
            let least = layout::least_generation();
            tokio::try_join!(store.read_name(&path), store.read_name(&least))?
        };
        Ok(self.note(namespace, Word::read(own.as_deref(), all.as_deref()), asked))
    }

    /// Begins a new generation of this number; where there is none yet, or in place of any.
    pub(super) async fn begin(
        &self,
        store: &Store,
        namespace: NamespaceDigest,
        folder: &str,
        number: u64,
        replace: bool,
    ) -> Result<(), StoreError> {
        let generation = Generation::of(number);
        let text = format!("{generation}\n").into_bytes();
        store.write_name(&layout::generation(folder), text, replace).await?;
        self.note(namespace, Word::of(generation), Instant::now());
        Ok(())
    }

    /// Ends all generations that there are, of a store that cannot list them.
    pub(super) async fn end_all(&self, store: &Store) -> Result<(), StoreError> {
        let path = layout::least_generation();
        let least = Word::read(store.read_name(&path).await?.as_deref(), None).number;
        let number = least.max(now_ms() + AHEAD_MS) + STEP;
        store.write_name(&path, format!("{}\n", Generation::of(number)).into_bytes(), true).await?;
        self.0.lock().clear();
        Ok(())
    }

    /// Remembers the answer to the latest question, and says what that is: an answer that was asked for before this
    /// daemon's own reset is old.
    fn note(&self, namespace: NamespaceDigest, word: Word, asked: Instant) -> Word {
        let mut all = self.0.lock();
        let (last, at) = all.entry(namespace).or_insert((word, asked));
        if asked >= *at {
            (*last, *at) = (word, asked);
        }
        *last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_reads_back_and_nothing_else_is_one() {
        for number in [0, 1_790_000_000_000, generations::GENERATION_END - 1] {
            let generation = Generation::of(number);
            assert_eq!(generation.to_string().parse(), Ok(generation));
            assert_eq!(generation.number(), number);
            assert_ne!(generation, Generation::of(number), "a name of its own each time");
        }
        for text in [
            "",
            "descriptor.json",
            "+0000000000000000000000000000001",
            &"A".repeat(32),
            &"0".repeat(33),
            &"f".repeat(32),
        ] {
            assert_eq!(text.parse::<Generation>(), Err(NoGeneration), "{text}");
        }
    }

    #[test]
    fn an_answer_from_before_a_reset_does_not_undo_it() {
        let (asked, namespace) = (Asked::default(), NamespaceDigest::from_bytes([1; 32]));
        let (old, new, before) = (Generation::of(1), Generation::of(2), Instant::now());
        let after = before + Duration::from_millis(1);
        assert_eq!(asked.note(namespace, Word::of(new), after), Word::of(new));
        assert_eq!(asked.note(namespace, Word::of(old), before), Word::of(new));
        assert_eq!(asked.last(namespace), Some(new));
    }

    #[test]
    fn nothing_below_the_number_for_all_counts() {
        let text = |number: u64| Generation::of(number).to_string();
        let (own, all) = (text(7), text(8));
        let read = |own: Option<&str>, all: Option<&str>| {
            let word = Word::read(own.map(str::as_bytes), all.map(str::as_bytes));
            (word.number, word.counts.is_some())
        };
        assert_eq!(read(None, None), (0, false));
        assert_eq!(read(Some(&own), None), (7, true));
        assert_eq!(read(Some(&own), Some(&all)), (8, false));
        assert_eq!(read(Some(&all), Some(&all)), (8, true));
        assert_eq!(read(None, Some(&all)), (8, false));
        assert_eq!(read(Some("no generation"), None), (0, false));
    }
}
