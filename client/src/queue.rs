//! A bounded queue between the engine's threads and ours.
//!
//! Pushing never waits: a full queue is an answer. It also counts what was taken and is not done yet, so that a
//! flush can wait for the work and not just for an empty queue.

use std::collections::VecDeque;
use std::time::Instant;

use crate::sync::{Condvar, Mutex, Planted, planted};

#[derive(Debug)]
pub(crate) struct Queue<T> {
    depth: usize,
    inner: Mutex<Inner<T>>,
    /// Something came, or the queue was closed.
    filled: Condvar,
    /// The last piece of work was done.
    idle: Condvar,
}

#[derive(Debug)]
struct Inner<T> {
    waiting: VecDeque<T>,
    in_hand: usize,
    closed: bool,
}

/// Work that was taken. Dropping it says that it is done.
pub(crate) struct Taken<'a, T> {
    queue: &'a Queue<T>,
    items: Vec<T>,
    count: usize,
}

impl<T> Queue<T> {
    pub(crate) fn new(depth: usize) -> Self {
        let inner = Inner { waiting: VecDeque::new(), in_hand: 0, closed: false };
        Self { depth, inner: Mutex::new(inner), filled: Condvar::new(), idle: Condvar::new() }
    }

    /// Gives the item back when the queue is full or closed.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut inner = self.inner.lock();
        if inner.closed || inner.waiting.len() >= self.depth {
            return Err(item);
        }
        inner.waiting.push_back(item);
        self.filled.notify_one();
        Ok(())
    }

    /// Waits for work and takes the first item and as many that follow as `more` wants. `None` once closed and
    /// empty.
    pub(crate) fn take(&self, mut more: impl FnMut(&T) -> bool) -> Option<Taken<'_, T>> {
        let mut inner = self.inner.lock();
        let first = loop {
            match inner.waiting.pop_front() {
                Some(first) => break first,
                None if inner.closed => return None,
                None => self.filled.wait(&mut inner),
            }
        };
        // The first one counts, whatever `more` thinks of it.
        more(&first);
        let mut items = vec![first];
        while inner.waiting.front().is_some_and(&mut more) {
            items.extend(inner.waiting.pop_front());
        }
        let count = items.len();
        inner.in_hand += count;
        Some(Taken { queue: self, items, count })
    }

    /// Waits until nothing is waiting and nothing is in hand; false when it takes longer.
    pub(crate) fn wait_idle(&self, deadline: Instant) -> bool {
        let mut inner = self.inner.lock();
        while !inner.waiting.is_empty() || inner.in_hand > 0 && !planted(Planted::HandsNotLookedAt) {
            if self.idle.wait_until(&mut inner, deadline).timed_out() {
                return inner.waiting.is_empty() && inner.in_hand == 0;
            }
        }
        true
    }

    /// Refuses further pushes and hands back what nobody has taken.
    pub(crate) fn close(&self) -> Vec<T> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        if !planted(Planted::CloseWakesNobody) {
            self.filled.notify_all();
        }
        let left = inner.waiting.drain(..).collect();
        if inner.in_hand == 0 {
            self.idle.notify_all();
        }
        left
    }
}

impl<T> Taken<'_, T> {
    /// The items, once; this still counts as in hand until it is dropped.
    pub(crate) fn items(&mut self) -> Vec<T> {
        std::mem::take(&mut self.items)
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let mut inner = self.queue.inner.lock();
        inner.in_hand -= self.count;
        if inner.in_hand == 0 && inner.waiting.is_empty() {
            self.queue.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[test]
    fn a_full_queue_gives_the_item_back() {
        let queue = Queue::new(2);
        assert_eq!((queue.push(1), queue.push(2), queue.push(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!(queue.take(|_| true).unwrap().items(), [1, 2]);
    }

    #[test]
    fn work_in_hand_is_not_idle() {
        let queue = Queue::new(2);
        assert!(queue.wait_idle(soon()));
        queue.push(1).unwrap();
        assert!(!queue.wait_idle(soon()));
        let taken = queue.take(|_| false).unwrap();
        assert!(!queue.wait_idle(soon()));
        drop(taken);
        assert!(queue.wait_idle(soon()));
    }

    #[test]
    fn a_closed_queue_ends_its_takers() {
        let queue = Queue::new(2);
        queue.push(1).unwrap();
        assert_eq!(queue.close(), [1]);
        assert_eq!(queue.push(2), Err(2));
        assert!(queue.take(|_| true).is_none());
        assert!(queue.wait_idle(soon()));
    }
}
