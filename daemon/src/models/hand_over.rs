//! The arena goes to another daemon while a store is under way.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use loom::thread;
use tender_proto::Reason;

use super::{Bench, Verdict, holds_but_not_with};
use crate::sync::atomic::Ordering;
use crate::sync::{Planted, kill};

fn a_store_and_a_hand_over(verdict: &Verdict) {
    let bench = Bench::new();
    bench.store(1).unwrap();
    loom::explore();
    let writer = {
        let bench = Arc::clone(&bench);
        thread::spawn(move || bench.store(2).map(drop))
    };
    let file = bench.engine.give_away().unwrap();
    let given = digest(&file);
    let stored = writer.join().unwrap();
    loom::stop_exploring();
    // From then on it is the next daemon's, which may have begun to write.
    verdict.wrong_if(digest(&file) != given);
    let next = bench.successor(file);
    verdict.wrong_if(!next.is_ready(1) || stored.is_ok() && !next.is_ready(2));
    let known = [Reason::Draining, Reason::UnknownSession, Reason::UnknownReservation];
    verdict.wrong_if(stored.is_err_and(|reason| !known.contains(&reason)));
    verdict.wrong_if(!next.is_quiet());
}

fn digest(file: &File) -> blake3::Hash {
    kill::STORES.load(Ordering::SeqCst);
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    blake3::hash(&bytes)
}

#[test]
fn what_was_answered_goes_along_and_nothing_is_written_afterwards() {
    holds_but_not_with(Planted::RightNotAsked, 2, a_store_and_a_hand_over);
}
