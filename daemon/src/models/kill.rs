//! A kill at any store into the arena's file, with several threads under way; and what the next daemon makes of it.

use std::sync::Arc;

use loom::thread;

use super::{Bench, Verdict, content, holds_but_not_with, namespace};
use crate::engine::LeaseAsk;
use crate::sync::atomic::Ordering;
use crate::sync::{Planted, kill};

/// One thread stores into a full arena, so that a chunk is evicted and its bytes are overwritten; another one kills.
fn a_kill_while_bytes_change_hands(verdict: &Verdict) {
    let bench = Bench::new();
    (0..16).for_each(|n| _ = bench.store(n).unwrap());
    loom::explore();
    let killer = thread::spawn(|| kill::DEAD.store(true, Ordering::SeqCst));
    // With the kill before its last store this is refused, or would be if somebody were there to hear it.
    _ = bench.store(99);
    killer.join().unwrap();
    loom::stop_exploring();
    kill::DEAD.store(false, Ordering::SeqCst);

    let Ok(Bench { engine, dir, .. }) = Arc::try_unwrap(bench) else { return verdict.wrong_if(true) };
    drop(engine);
    let next = Bench::on(dir);
    let served: Vec<u8> = (0..16).chain([99]).filter(|&n| next.is_ready(n)).collect();
    for &n in &served {
        let ask = LeaseAsk::Lease { ttl: None, locate: true };
        let found = next.engine.lookup(next.session, namespace(), &[super::chunk(n)], ask).unwrap();
        verdict.wrong_if(next.engine.peek(&found.chunks[0]) != content(n));
        next.engine.release(next.session, &[found.lease.unwrap().id.get()]).unwrap();
    }
    // One goes so that one can come; nothing else is lost.
    verdict.wrong_if((1..16).any(|n| !served.contains(&n)) || !next.is_quiet());
}

#[test]
fn a_kill_at_any_store_leaves_right_chunks_only() {
    holds_but_not_with(Planted::RecordNotCleared, 2, a_kill_while_bytes_change_hands);
}
