//! Turns for bulk work (copies, frames) when several tenants want the processors at once: deficit round robin, so that
//! each gets the same bytes, whatever the sizes of its pieces and however many callers it has.
//!
//! Nobody waits while only one tenant is there. With more of them fewer threads do bulk work than there are, so that
//! one is always free for lookups, which take no turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// What a tenant may do in one round: about as long as a frame.
const QUANTUM_BYTES: u64 = 1 << 20;
/// As much as a turn can cost.
const MOST_CHARGED_BYTES: u64 = 64 * QUANTUM_BYTES;
/// A tenant that made a call counts as present for this long.
const PRESENT_MS: u64 = 1000;

/// Hands out the turns.
#[derive(Debug)]
pub(crate) struct Fair {
    slots: usize,
    start: Instant,
    /// Whose call was the last one, and until when there are others too.
    last: AtomicU64,
    shared_until_ms: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    busy: usize,
    /// Of tenants with work that waits; the one at `next` is asked next.
    queues: Vec<Queue>,
    next: usize,
}

#[derive(Debug)]
struct Queue {
    tenant: u64,
    deficit_bytes: u64,
    waiting: VecDeque<(u64, oneshot::Sender<Turn>)>,
}

/// The right to work; the next one gets it when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn(Option<Arc<Fair>>);

/// A turn, or a place in the queue for one.
#[derive(Debug)]
pub(crate) enum Asked {
    Now(Turn),
    Later(oneshot::Receiver<Turn>),
}

impl Fair {
    /// For a daemon with this many threads for calls.
    pub(crate) fn new(threads: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: threads.saturating_sub(1).max(1),
            start: Instant::now(),
            last: AtomicU64::new(0),
            shared_until_ms: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    /// A tenant makes a call of any kind.
    pub(crate) fn note(&self, tenant: u64) {
        let before = self.last.swap(tenant, Ordering::Relaxed);
        if before != tenant && before != 0 {
            self.shared_until_ms.store(self.now_ms().saturating_add(PRESENT_MS), Ordering::Relaxed);
        }
    }

    /// Asks for a turn to work on some bytes. The number is the caller's word: no turn costs more than
    /// [`MOST_CHARGED_BYTES`], or one call could ask for more rounds than anybody can go.
    pub(crate) fn ask(self: &Arc<Self>, tenant: u64, bytes: u64) -> Asked {
        let bytes = bytes.min(MOST_CHARGED_BYTES);
        let alone = self.now_ms() >= self.shared_until_ms.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        if alone && state.queues.is_empty() {
            return Asked::Now(Turn(None));
        }
        if state.busy < self.slots && state.queues.is_empty() {
            state.busy += 1;
            return Asked::Now(Turn(Some(Arc::clone(self))));
        }
        let (sender, receiver) = oneshot::channel();
        state.enqueue(tenant, bytes, sender);
        drop(state);
        // A place may have come free while nobody waited for it.
        self.hand_out();
        Asked::Later(receiver)
    }

    /// Waits for a turn. Whoever holds one only works, so this ends.
    pub(crate) async fn turn(self: &Arc<Self>, tenant: u64, bytes: u64) -> Turn {
        match self.ask(tenant, bytes) {
            Asked::Now(turn) => turn,
            Asked::Later(receiver) => receiver.await.unwrap_or(Turn(None)),
        }
    }

    fn hand_out(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            if state.busy >= self.slots {
                return;
            }
            let Some(waiting) = state.pop() else { return };
            state.busy += 1;
            drop(state);
            // Outside the lock: whoever no longer waits gives the turn back here.
            if let Err(mut unwanted) = waiting.send(Turn(Some(Arc::clone(self)))) {
                unwanted.0 = None;
                self.state.lock().busy -= 1;
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(fair) = self.0.take() {
            fair.state.lock().busy -= 1;
            fair.hand_out();
        }
    }
}

impl State {
    fn enqueue(&mut self, tenant: u64, bytes: u64, sender: oneshot::Sender<Turn>) {
        match self.queues.iter_mut().find(|queue| queue.tenant == tenant) {
            Some(queue) => queue.waiting.push_back((bytes, sender)),
            None => {
                let waiting = VecDeque::from([(bytes, sender)]);
                self.queues.push(Queue { tenant, deficit_bytes: 0, waiting });
            }
        }
    }

    fn pop(&mut self) -> Option<oneshot::Sender<Turn>> {
        loop {
            if self.next >= self.queues.len() {
                self.next = 0;
            }
            let queue = self.queues.get_mut(self.next)?;
            match queue.waiting.front() {
                Some((bytes, _)) if *bytes <= queue.deficit_bytes => {
                    queue.deficit_bytes -= bytes;
                    let sender = queue.waiting.pop_front().map(|(_, sender)| sender);
                    if queue.waiting.is_empty() {
                        // Nothing is saved up while nothing is wanted.
                        self.queues.remove(self.next);
                    }
                    return sender;
                }
                Some(_) => {
                    queue.deficit_bytes += QUANTUM_BYTES;
                    self.next += 1;
                }
                None => _ = self.queues.remove(self.next),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With one slot that is taken, and two tenants present.
    fn contended() -> (Arc<Fair>, Turn) {
        let fair = Fair::new(2);
        fair.note(1);
        fair.note(2);
        let Asked::Now(turn) = fair.ask(1, 1) else { panic!("a slot was free") };
        assert!(turn.0.is_some());
        (fair, turn)
    }

    fn wait(fair: &Arc<Fair>, tenant: u64, bytes: u64) -> oneshot::Receiver<Turn> {
        match fair.ask(tenant, bytes) {
            Asked::Later(receiver) => receiver,
            Asked::Now(_) => panic!("the slot was taken"),
        }
    }

    #[test]
    fn a_call_that_claims_all_bytes_there_are_gets_its_turn_like_another() {
        let (fair, turn) = contended();
        let mut liar = wait(&fair, 1, u64::MAX);
        let mut other = wait(&fair, 2, 1);
        drop(turn);
        drop(other.try_recv().unwrap());
        drop(liar.try_recv().unwrap());
    }

    #[test]
    fn who_is_alone_never_waits() {
        let fair = Fair::new(2);
        fair.note(1);
        let turns: Vec<_> = (0..100).map(|_| fair.ask(1, 1 << 30)).collect();
        assert!(turns.iter().all(|asked| matches!(asked, Asked::Now(_))));
    }

    #[test]
    fn tenants_get_the_same_bytes_whatever_the_sizes_and_numbers() {
        let (fair, turn) = contended();
        // One has ten times the callers, with pieces four times as large.
        let mut waiting = Vec::new();
        waiting.extend((0..400).map(|_| (1, 4 << 20, wait(&fair, 1, 4 << 20))));
        waiting.extend((0..100).map(|_| (2, 1 << 20, wait(&fair, 2, 1 << 20))));
        drop(turn);
        let mut done = [0u64; 3];
        while done[2] < 50 << 20 {
            let at = waiting.iter_mut().position(|(_, _, receiver)| receiver.try_recv().map(drop).is_ok());
            let (tenant, bytes, _) = waiting.remove(at.expect("somebody has the turn"));
            done[tenant] += bytes;
        }
        let most = (4 << 20) + 2 * QUANTUM_BYTES;
        assert!(done[1].abs_diff(done[2]) <= most, "{done:?}");
    }

    #[test]
    fn who_no_longer_waits_holds_up_nobody() {
        let (fair, turn) = contended();
        let gone: Vec<_> = (0..1000).map(|_| wait(&fair, 1, 1)).collect();
        let mut here = wait(&fair, 2, 1 << 30);
        drop(gone);
        drop(turn);
        drop(here.try_recv().expect("the turn"));
        assert_eq!(fair.state.lock().busy, 0);
    }
}
