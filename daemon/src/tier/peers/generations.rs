//! In which generation of its namespace a chunk of this daemon is.
//!
//! A namespace's generation is a number in the directory that each reset raises. A daemon that learns of a higher one
//! than it knew forgets its own chunks of the namespace, by beginning a local epoch; what is stored in that epoch or a
//! later one belongs to the generation. So a chunk's local epoch says whether it may be published, and a question of
//! another generation finds nothing. What was known outlives the daemon in a small file beside the arena: chunks that are
//! served again after a restart are of that generation, and of none that came while nobody was here.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
}

#[derive(Debug, Default)]
struct State {
    /// The highest that was ever heard of, also by daemons before this one on the same arena.
    highest: HashMap<NamespaceDigest, u64>,
    /// From which local epoch on chunks are of the highest one. Unknown until the directory was asked.
    since: HashMap<NamespaceDigest, u32>,
}

/// What the directory's number means to this daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    /// It is known.
    Same,
    /// There was a reset: what was here is forgotten.
    Higher,
    /// The directory has lost it: it should be told this one.
    Lost(u64),
}

impl Generations {
    /// Remembers in `file`, which is read first. What cannot be read is not known: then more is forgotten than need be.
    pub(crate) fn new(house: Arc<House>, forget: Forget, file: Option<PathBuf>) -> Self {
        let highest = file.as_deref().map(read).unwrap_or_default();
        let state = State { highest, since: HashMap::new() };
        Self { house, forget, file, state: Mutex::new(state) }
    }

    /// The generation of what is stored in this local epoch; `None` while that is not known, or for an epoch that is over.
    pub(crate) fn of(&self, namespace: NamespaceDigest, epoch: u32) -> Option<u64> {
        let now = self.house.namespace(namespace)?.epoch;
        let mut state = self.state.lock();
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

    /// The directory says so. If that is news, this daemon's chunks are forgotten when this returns; it is brought to its
    /// end even if nobody waits for it.
    pub(crate) async fn learn(self: &Arc<Self>, namespace: NamespaceDigest, seen: u64) -> Learned {
        if self.is_known(namespace, seen) {
            return Learned::Same;
        }
        let this = Arc::clone(self);
        let learning = task::blocking("generation", move || this.learn_now(namespace, seen));
        learning.await.unwrap_or(Learned::Same)
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
            tracing::info!(%namespace, generation = seen, "the namespace was reset elsewhere; its chunks are forgotten here");
            if let Err(why) = (self.forget)(namespace) {
                tracing::error!(%namespace, why, "what was reset elsewhere is not forgotten here yet; it is published no more");
                self.state.lock().since.remove(&namespace);
                return Learned::Same;
            }
        }
        let Some(now) = self.house.namespace(namespace) else {
            // Nobody here has it; whoever registers it begins with nothing of it.
            return if seen < highest { Learned::Lost(highest) } else { Learned::Same };
        };
        let mut state = self.state.lock();
        if news && state.highest.get(&namespace).is_none_or(|&known| known < seen) {
            state.highest.insert(namespace, seen);
            state.since.insert(namespace, now.epoch);
            self.write(&state.highest);
            return Learned::Higher;
        }
        state.since.entry(namespace).or_insert(now.epoch);
        match state.highest.get(&namespace).copied().unwrap_or_default() {
            known if seen < known => Learned::Lost(known),
            _ => Learned::Same,
        }
    }

    /// After the chunks were forgotten, never before: a daemon that is killed between the two forgets once more.
    fn write(&self, highest: &HashMap<NamespaceDigest, u64>) {
        let Some(file) = &self.file else { return };
        let mut text = String::new();
        for (namespace, generation) in highest {
            text.push_str(&format!("{} {generation}\n", namespace.to_hex()));
        }
        if let Err(error) = replace(file, text.as_bytes()) {
            let file = file.display();
            tracing::warn!(%error, %file, "resets are not remembered; the next daemon will forget more than it must");
        }
    }
}

/// Epochs go up by one and may pass their end.
fn reaches(epoch: u32, since: u32) -> bool {
    epoch.wrapping_sub(since) <= u32::MAX / 2
}

fn read(file: &Path) -> HashMap<NamespaceDigest, u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| {
        let (namespace, generation) = line.split_once(' ')?;
        Some((NamespaceDigest::parse_hex(namespace).ok()?, generation.parse().ok()?))
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
