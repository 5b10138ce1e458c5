//! In which generation of its namespace a chunk of this daemon is.
//!
//! A namespace's generation is a number that each reset raises. It stands in the directory of the peers and in the shared
//! store, and a daemon believes whichever is higher. One that learns of a higher one than it knew forgets its own chunks
//! of the namespace, by beginning a local epoch; what is stored in that epoch or a later one belongs to the generation. So
//! a chunk's local epoch says whether others may be told of it or given it, and what others have of another generation is
//! neither found nor fetched: from one generation nothing comes into another, whichever way it goes.
//!
//! The rule for what is here when a daemon first hears of a generation: where the number is 0, nobody has ever reset the
//! namespace, and what is here belongs to it. Where it is higher than the one that was written down, or nothing was, nobody
//! can say whether what is here was stored or gathered before or after that reset: it is forgotten.
//!
//! What was known outlives the daemon in a small file beside the arena: chunks that are served again after a restart are of
//! that generation, and of none that came while nobody was here.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tender_proto::NamespaceDigest;

use crate::engine::House;
use crate::task;

/// Forgets a namespace's chunks in this daemon, its disk included: everything stored or gathered until then. A new local
/// epoch has begun when it returns. It may take its time. An error is an answer too: it is tried again later.
pub(crate) type Forget = Arc<dyn Fn(NamespaceDigest) -> Result<(), String> + Send + Sync>;

/// What this daemon knows of all namespaces' generations.
pub(crate) struct Generations {
    house: Arc<House>,
    forget: Forget,
    file: Option<PathBuf>,
    state: Mutex<State>,
    /// One writer at a time, each with all that is known then. Lookups take the other lock, and never wait for a disk.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The highest that was ever heard of, also by daemons before this one on the same arena.
    highest: HashMap<NamespaceDigest, u64>,
    /// From which local epoch on chunks are of the highest one. Unknown until the directory was asked.
    since: HashMap<NamespaceDigest, u32>,
    /// Whoever learns something of a namespace does so alone: else each of many questions would begin an epoch.
    turns: HashMap<NamespaceDigest, Arc<tokio::sync::Mutex<()>>>,
}

/// What a number means to this daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    /// It is known.
    Same,
    /// There was a reset: what was here is forgotten.
    Higher,
    /// Whoever said it has lost a higher one, or not heard of it: it should be told this one.
    Lost(u64),
}

impl Generations {
    /// Remembers in `file`, which is read first. What cannot be read is not known: then more is forgotten than need be.
    pub(crate) fn new(house: Arc<House>, forget: Forget, file: Option<PathBuf>) -> Self {
        let highest = file.as_deref().map(read).unwrap_or_default();
        let state = State { highest, ..State::default() };
        Self { house, forget, file, state: Mutex::new(state), writing: Mutex::default() }
    }

    /// The session through which it looks at namespaces.
    pub(crate) fn house(&self) -> &Arc<House> {
        &self.house
    }

    /// The generation of what is stored in this local epoch; `None` while that is not known, or for an epoch that is over.
    pub(crate) fn of(&self, namespace: NamespaceDigest, epoch: u32) -> Option<u64> {
        let mut state = self.state.lock();
        // Under the lock: an epoch of before a reset that is being learnt would pass for one that has begun anew.
        let now = self.house.namespace(namespace)?.epoch;
        let since = *state.since.get(&namespace)?;
        if !reaches(now, since) {
            // The namespace was forgotten and has begun anew: everything in it is younger than what is known.
            state.since.insert(namespace, now);
        }
        let since = *state.since.get(&namespace)?;
        reaches(epoch, since).then(|| state.highest.get(&namespace).copied().unwrap_or_default())
    }

    /// The generation that chunks of this daemon have now.
    pub(crate) fn current(&self, namespace: NamespaceDigest) -> Option<u64> {
        self.of(namespace, self.house.namespace(namespace)?.epoch)
    }

    /// The highest that was ever heard of.
    pub(crate) fn highest(&self, namespace: NamespaceDigest) -> u64 {
        self.state.lock().highest.get(&namespace).copied().unwrap_or_default()
    }

    /// What a reset's generation must be above. The time of day is in it, so that whoever has lost the number never gives
    /// out one that was used.
    pub(crate) fn floor(&self, namespace: NamespaceDigest) -> u64 {
        self.highest(namespace).max(now_ms())
    }

    /// The directory or the store says so. If that is news, this daemon's chunks are forgotten when this returns; it is
    /// brought to its end even if nobody waits for it.
    pub(crate) async fn learn(self: &Arc<Self>, namespace: NamespaceDigest, seen: u64) -> Learned {
        if self.is_known(namespace, seen) {
            return Learned::Same;
        }
        let turn = Arc::clone(self.state.lock().turns.entry(namespace).or_default());
        let turn = turn.lock_owned().await;
        let this = Arc::clone(self);
        let learning = task::blocking("generation", move || {
            let learned = this.learn_now(namespace, seen);
            drop(turn);
            learned
        });
        learning.await.unwrap_or(Learned::Same)
    }

    /// A reset that this daemon was asked for has raised the generation. What came in since it began goes too: it may be
    /// older than a reset somewhere else that this one has overtaken.
    pub(crate) async fn raised(
        self: &Arc<Self>,
        namespace: NamespaceDigest,
        generation: u64,
    ) -> Result<(), String> {
        self.learn(namespace, generation).await;
        // Unless this daemon no longer knows it: then nothing of it is here.
        if self.highest(namespace) < generation && self.house.epoch(namespace).is_some() {
            return Err("this daemon could not forget it; reset it again".to_owned());
        }
        Ok(())
    }

    fn is_known(&self, namespace: NamespaceDigest, seen: u64) -> bool {
        let state = self.state.lock();
        state.since.contains_key(&namespace)
            && state.highest.get(&namespace).copied().unwrap_or_default() == seen
    }

    fn learn_now(&self, namespace: NamespaceDigest, seen: u64) -> Learned {
        let highest = self.highest(namespace);
        let news = seen > highest;
        if news {
            tracing::info!(%namespace, generation = seen, "the namespace was reset; its chunks are forgotten here");
            if let Err(why) = (self.forget)(namespace) {
                tracing::error!(%namespace, why, "what was reset is not forgotten here yet; others get nothing of it");
                self.state.lock().since.remove(&namespace);
                return Learned::Same;
            }
        }
        let mut state = self.state.lock();
        let Some(now) = self.house.namespace(namespace) else {
            // Nobody here has it; whoever registers it begins with nothing of it.
            return if seen < highest { Learned::Lost(highest) } else { Learned::Same };
        };
        if news && state.highest.get(&namespace).is_none_or(|&known| known < seen) {
            state.highest.insert(namespace, seen);
            state.since.insert(namespace, now.epoch);
            drop(state);
            self.write();
            return Learned::Higher;
        }
        state.since.entry(namespace).or_insert(now.epoch);
        match state.highest.get(&namespace).copied().unwrap_or_default() {
            known if seen < known => Learned::Lost(known),
            _ => Learned::Same,
        }
    }

    /// After the chunks were forgotten, never before: a daemon that is killed between the two forgets once more.
    fn write(&self) {
        let Some(file) = &self.file else { return };
        let _one = self.writing.lock();
        let line = |(namespace, generation): (&NamespaceDigest, &u64)| {
            format!("{} {generation}\n", namespace.to_hex())
        };
        let text: String = self.state.lock().highest.iter().map(line).collect();
        if let Err(error) = replace(file, text.as_bytes()) {
            let file = file.display();
            tracing::warn!(%error, %file, "resets are not remembered; the next daemon will forget more than it must");
        }
    }
}

/// Numbers are times of day in ms and little more: from here on they are damage, and learnt they would never be overtaken.
pub(crate) const GENERATION_END: u64 = 1 << 48;

/// A generation from where others can write: directory, store, file. `None`: no reset gives such a number.
pub(crate) fn parse(raw: u64) -> Option<u64> {
    (raw < GENERATION_END).then_some(raw)
}

/// Of the time of day.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

/// Epochs go up by one and may pass their end.
fn reaches(epoch: u32, since: u32) -> bool {
    epoch.wrapping_sub(since) <= u32::MAX / 2
}

fn read(file: &Path) -> HashMap<NamespaceDigest, u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| {
        let (namespace, generation) = line.split_once(' ')?;
        let generation = generation.parse().ok().and_then(parse)?;
        Some((NamespaceDigest::parse_hex(namespace).ok()?, generation))
    };
    text.lines().filter_map(line).collect()
}

fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = file.with_extension("generations-new");
    let mut to = fs::File::create(&new)?;
    to.write_all(bytes)?;
    to.sync_all()?;
    fs::rename(new, file)
}

impl fmt::Debug for Generations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generations").field("state", &*self.state.lock()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::engine::ResetScope;
    use crate::engine::tests::{Bench, a};

    fn over(bench: &Bench, file: PathBuf) -> Arc<Generations> {
        let (house, engine) = (Arc::new(House::open(&bench.engine).unwrap()), Arc::clone(&bench.engine));
        let forget = Arc::new(move |namespace| {
            engine.reset(ResetScope::One(namespace));
            Ok(())
        });
        Arc::new(Generations::new(house, forget, Some(file)))
    }

    /// The file's disk is a pipe that nobody reads: writing to it takes until somebody does.
    #[tokio::test(flavor = "multi_thread")]
    async fn nobody_waits_while_it_is_written_down() {
        let dir = tempfile::tempdir().unwrap();
        let bench = Bench::with_slots(4);
        let _session = bench.session();
        let generations = over(&bench, dir.path().join("generations"));
        let slow = dir.path().join("generations.generations-new");
        mkfifo(&slow, Mode::S_IRWXU).unwrap();
        let learner = Arc::clone(&generations);
        let learning = tokio::spawn(async move { learner.learn(a(), 7).await });
        while generations.current(a()) != Some(7) {
            tokio::task::yield_now().await;
        }
        assert_eq!(generations.highest(a()), 7);
        assert!(!learning.is_finished(), "it is written down before it is answered");
        _ = fs::read(&slow).unwrap();
        assert_eq!(learning.await.unwrap(), Learned::Higher);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_known_is_known_to_the_next_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("generations");
        let bench = Bench::with_slots(4);
        let _session = bench.session();
        let first = over(&bench, file.clone());
        assert_eq!(first.learn(a(), 7).await, Learned::Higher);
        let epoch = first.house().epoch(a());
        let second = over(&bench, file);
        assert_eq!((second.highest(a()), second.current(a())), (7, None), "until somebody was asked");
        assert_eq!(second.learn(a(), 7).await, Learned::Same);
        assert_eq!((second.current(a()), second.house().epoch(a())), (Some(7), epoch));
        assert_eq!(second.learn(a(), 6).await, Learned::Lost(7));
    }
}
