//! Models of what the engine's thread and ours share: the client's own code under loom, which runs a few threads through
//! every order in which they can meet. What each covers and what it does not is in docs/reliability.md. Each is run a
//! second time with a mistake planted ([`Planted`]), which it must notice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use loom::thread;

use crate::breaker::Breaker;
use crate::config::BreakerConfig;
use crate::queue::Queue;
use crate::sync::{Planted, plant};

/// Runs a model through its schedules. It returns whether all is right; a deadlock is loom's to find.
fn holds(model: impl Fn() -> bool + Send + Sync + 'static) -> bool {
    let wrong = Arc::new(AtomicU64::new(0));
    let inside = Arc::clone(&wrong);
    let explored = catch_unwind(AssertUnwindSafe(|| {
        loom::model(move || _ = inside.fetch_add(u64::from(!model()), Ordering::Relaxed));
    }));
    explored.is_ok() && wrong.load(Ordering::Relaxed) == 0
}

fn holds_but_not_with(mistake: Planted, model: fn() -> bool) {
    plant(None);
    assert!(holds(model));
    plant(Some(mistake));
    assert!(!holds(model), "{mistake:?} was not noticed");
    plant(None);
}

/// The engine pushes and flushes, a worker takes.
fn a_flush_and_a_worker() -> bool {
    let queue = Arc::new(Queue::new(2));
    // Not loom's: it only counts.
    let done = Arc::new(AtomicU64::new(0));
    let worker = {
        let (queue, done) = (Arc::clone(&queue), Arc::clone(&done));
        thread::spawn(move || {
            while let Some(mut taken) = queue.take(|_| false) {
                let items = taken.items();
                thread::yield_now();
                done.fetch_add(items.len() as u64, Ordering::Relaxed);
            }
        })
    };
    let pushed = queue.push(1).is_ok() && queue.push(2).is_ok();
    let idle = queue.wait_idle(Instant::now());
    let flushed = done.load(Ordering::Relaxed) == 2;
    let left = queue.close();
    worker.join().expect("the worker ends");
    pushed && idle && flushed && left.is_empty()
}

#[test]
fn a_flush_ends_when_the_work_is_done_and_not_before() {
    holds_but_not_with(Planted::HandsNotLookedAt, a_flush_and_a_worker);
}

/// A queue is closed while one waits for work and one may still push.
fn a_worker_a_late_push_and_the_end() -> bool {
    let queue = Arc::new(Queue::new(1));
    let worker = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || {
            let mut taken = 0;
            while let Some(mut work) = queue.take(|_| false) {
                taken += work.items().len();
            }
            taken
        })
    };
    let pusher = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || usize::from(queue.push(1).is_ok()))
    };
    let left = queue.close().len();
    let (taken, pushed) = (worker.join().expect("it ends"), pusher.join().expect("it ends"));
    // Everything that went in came out once, by one way or the other.
    taken + left == pushed
}

#[test]
fn closing_a_queue_ends_its_takers_and_loses_nothing() {
    holds_but_not_with(Planted::CloseWakesNobody, a_worker_a_late_push_and_the_end);
}

/// Two threads want to call a daemon whose breaker may be tried again.
fn two_callers_and_one_trial() -> bool {
    let second = Duration::from_secs(1);
    let config = BreakerConfig { failures: 1, slow_call: second, open_min: second, open_max: second };
    let (breaker, now) = (Arc::new(Breaker::new(config)), Instant::now());
    breaker.record(now, false, Duration::ZERO);
    let other = {
        let breaker = Arc::clone(&breaker);
        thread::spawn(move || breaker.admits(now + second))
    };
    let own = breaker.admits(now + second);
    own != other.join().expect("it ends")
}

#[test]
fn one_trial_goes_out_whoever_asks() {
    holds_but_not_with(Planted::TrialNotNoted, two_callers_and_one_trial);
}
