//! Sessions that end while they are used.

use std::sync::Arc;

use loom::thread;

use super::{Bench, Verdict, holds_but_not_with};
use crate::sync::Planted;

/// A session ends while it looks up with a lease, and while it reserves and writes.
fn a_session_that_ends_in_the_middle(verdict: &Verdict) {
    let bench = Bench::new();
    bench.store(1).unwrap();
    loom::explore();
    let end = {
        let bench = Arc::clone(&bench);
        thread::spawn(move || bench.engine.close_session(bench.session))
    };
    _ = bench.lease(1);
    _ = bench.store(2);
    end.join().unwrap();
    loom::stop_exploring();
    let audit = bench.engine.audit();
    verdict.wrong_if(audit.is_ok_and(|audit| audit.sessions != 0));
    verdict.wrong_if(!bench.is_quiet());
}

#[test]
fn a_session_that_has_ended_holds_nothing() {
    holds_but_not_with(Planted::SessionNotLookedAt, 2, a_session_that_ends_in_the_middle);
}
