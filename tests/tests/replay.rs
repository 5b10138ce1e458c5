//! `tender replay` on a piece of a public trace: in an arena that has room for everything it finds exactly what was there
//! before, and in one that has not, less.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tender_tests::daemon::{tender, tenderd};

fn excerpt() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("traces/conversation.jsonl")
}

/// Chunks asked for, and those of them that a cache without end finds at the beginnings of requests.
fn without_end() -> (u64, u64) {
    let text = std::fs::read_to_string(excerpt()).unwrap();
    let (mut asked, mut found, mut seen) = (0, 0, HashSet::new());
    for line in text.lines() {
        let request: Value = serde_json::from_str(line).unwrap();
        let blocks: Vec<u64> = serde_json::from_value(request["hash_ids"].clone()).unwrap();
        asked += blocks.len() as u64;
        found += blocks.iter().take_while(|block| seen.contains(*block)).count() as u64;
        seen.extend(blocks);
    }
    (asked, found)
}

#[test]
fn an_arena_with_room_for_all_finds_all_that_came_before_and_a_small_one_less() {
    let mut replay = Command::new(tender());
    replay.args(["replay", "--json", "--arena-chunks", "300,6000", "--eviction", "two-queue,lru"]);
    let output = replay.arg("--tenderd").arg(tenderd()).arg(excerpt()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (asked, found) = without_end();
    for (way, eviction) in ["two-queue", "lru"].into_iter().enumerate() {
        let (small, large) = (&report["runs"][2 * way], &report["runs"][2 * way + 1]);
        assert_eq!(
            (small["eviction"].as_str(), large["eviction"].as_str()),
            (Some(eviction), Some(eviction))
        );
        assert_eq!(
            (large["asked_chunks"].as_u64(), large["found_chunks"].as_u64()),
            (Some(asked), Some(found))
        );
        assert_eq!(large["loaded_bytes"].as_u64(), Some(found * (32 << 10)));
        assert_eq!(large["skipped_chunks"].as_u64(), Some(0));
        let little = small["found_chunks"].as_u64().unwrap();
        assert!(0 < little && little < found, "{little} of {found}");
    }
}
