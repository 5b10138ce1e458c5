//! Budgets: the one count that is changed without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::thread;

use super::{Verdict, holds_but_not_with};
use crate::admission::{Budget, Permit};
use crate::sync::Planted;

/// Three sessions want 60 of 100 bytes, each out of a budget of its own as well.
fn three_wishes_and_room_for_one(verdict: &Verdict) {
    let all = Budget::new(100);
    // Not loom's: it shows who holds a permit at the same time, and orders nothing.
    let held = Arc::new(AtomicU64::new(0));
    loom::explore();
    let wishes: Vec<_> = (0..2)
        .map(|_| {
            let (all, held, verdict) = (Arc::clone(&all), Arc::clone(&held), verdict.clone());
            thread::spawn(move || wish(&all, &held, &verdict))
        })
        .collect();
    wish(&all, &held, verdict);
    wishes.into_iter().for_each(|wish| wish.join().unwrap());
    loom::stop_exploring();
    verdict.wrong_if(all.used_bytes() != 0);
}

fn wish(all: &Arc<Budget>, held: &AtomicU64, verdict: &Verdict) {
    let own = Budget::new(80);
    if let Ok(permit) = Permit::take(all, &own, 60) {
        verdict.wrong_if(held.fetch_add(60, Ordering::Relaxed) > 0);
        verdict.wrong_if(own.used_bytes() != 60);
        held.fetch_sub(60, Ordering::Relaxed);
        drop(permit);
    }
    verdict.wrong_if(own.used_bytes() != 0);
}

#[test]
fn a_budget_is_never_exceeded_and_all_of_it_comes_back() {
    holds_but_not_with(Planted::BudgetInTwoSteps, 3, three_wishes_and_room_for_one);
}
