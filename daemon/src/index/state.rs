//! The life of a version (rule 7), as one table of legal moves.

use crate::sync::atomic::{AtomicU8, Ordering};

/// Where a version is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    /// No trace of it in the index.
    Absent,
    /// Room is held for at least one part; no byte was written.
    Reserved,
    /// At least one part is being written or was written.
    Filling,
    /// Every part is in and verified; lookups find it.
    Ready,
    /// Lookups no longer find it; its memory goes with the last reader.
    Evicting,
}

impl State {
    /// Every state, in the order of the table.
    pub(crate) const ALL: [Self; 5] =
        [Self::Absent, Self::Reserved, Self::Filling, Self::Ready, Self::Evicting];
}

/// `MOVES[from][to]`. What is not here cannot happen: above all nothing becomes READY but what was filled,
/// and nothing comes back from EVICTING but as a new version.
const MOVES: [[bool; 5]; 5] = {
    const NO: bool = false;
    const YES: bool = true;
    [
        // to: Absent Reserved Filling Ready Evicting
        [NO, YES, NO, NO, NO],  // Absent: somebody reserves
        [YES, NO, YES, NO, NO], // Reserved: given up, or writing begins
        [YES, NO, NO, YES, NO], // Filling: given up, or the last part is in
        [NO, NO, NO, NO, YES],  // Ready: evicted, superseded or reset
        [YES, NO, NO, NO, NO],  // Evicting: the last reader has gone
    ]
};

/// Whether a version may go from one state to the other.
pub(crate) const fn is_legal(from: State, to: State) -> bool {
    MOVES[from as usize][to as usize]
}

/// The state of one version. Moves are made under the lock of the version's shard; the atomic only lets them
/// be made through a shared reference.
#[derive(Debug)]
pub(crate) struct Lifecycle(AtomicU8);

impl Lifecycle {
    /// A version that nobody has reserved yet.
    pub(crate) fn absent() -> Self {
        Self(AtomicU8::new(State::Absent as u8))
    }
    /// Where it is.
    pub(crate) fn state(&self) -> State {
        State::ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }
    /// Makes a move; an illegal one is a bug and panics in debug builds.
    pub(crate) fn advance(&self, to: State) {
        let from = self.state();
        debug_assert!(is_legal(from, to), "a version cannot go from {from:?} to {to:?}");
        self.0.store(to as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All 25 pairs, written out a second time as rule 7 says them.
    #[test]
    fn only_the_moves_of_rule_7_are_legal() {
        use State::{Absent, Evicting, Filling, Ready, Reserved};
        let legal = [
            (Absent, Reserved),
            (Reserved, Filling),
            (Filling, Ready),
            (Ready, Evicting),
            (Evicting, Absent),
            // Back to Absent on failure.
            (Reserved, Absent),
            (Filling, Absent),
        ];
        for from in State::ALL {
            for to in State::ALL {
                assert_eq!(is_legal(from, to), legal.contains(&(from, to)), "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn every_pair_is_checked_when_it_is_made() {
        for from in State::ALL {
            for to in State::ALL {
                let life = Lifecycle(AtomicU8::new(from as u8));
                let made =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| life.advance(to))).is_ok();
                assert_eq!(made, is_legal(from, to) || !cfg!(debug_assertions), "{from:?} to {to:?}");
                assert_eq!(life.state(), if made { to } else { from });
            }
        }
    }
}
