//! Hit rates of ways to evict on a recorded load, simulated: `tender-eviction TRACE.jsonl [CHUNKS,...]`. Prints JSON in the
//! shape of `tender replay --json`, for scripts/replay_plot.py.

use std::num::NonZeroUsize;

use serde_json::json;
use tender_tests::eviction::{POLICIES, arena, replay};
use tender_tests::scale::read_trace;

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: tender-eviction TRACE.jsonl [CHUNKS,...]")?;
    let sizes = args.next().unwrap_or_else(|| "1000,2000,5000,10000,20000,50000".into());
    let sizes: Result<Vec<NonZeroUsize>, _> = sizes.split(',').map(str::parse).collect();
    let sizes = sizes.map_err(|error| format!("sizes of arenas in chunks: {error}"))?;
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let requests: Vec<_> = read_trace(&text, 1)?.into_iter().map(|request| request.chunks).collect();
    let mut runs = Vec::new();
    for policy in POLICIES {
        for &arena_chunks in &sizes {
            let mut arena = arena(policy, arena_chunks.get(), &requests).ok_or("no such way to evict")?;
            let (found, asked) = replay(&mut *arena, &requests);
            let hit_rate = found as f64 / asked.max(1) as f64;
            runs.push(json!({"eviction": policy, "arena_chunks": arena_chunks, "hit_rate": hit_rate,
                             "found_chunks": found, "asked_chunks": asked}));
        }
    }
    println!("{:#}", json!({"trace": path, "runs": runs}));
    Ok(())
}
