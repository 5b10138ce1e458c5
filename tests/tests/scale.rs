//! A thousand daemons, simulated, against the formulas of docs/scaling.md.

use tender_tests::scale::{Expected, Fleet, Report, Request, ZipfWorkload, expect, read_trace, simulate};

fn work() -> ZipfWorkload {
    ZipfWorkload {
        prefixes: 5000,
        exponent: 0.9,
        prefix_chunks: 8,
        own_chunks: 4,
        requests_per_second: 500.0,
    }
}

fn near(what: &str, seen: f64, expected: f64, tolerance: f64) {
    let off = (seen - expected).abs() / expected.abs().max(1e-9);
    assert!(off <= tolerance, "{what}: {seen:.4} is {:.1} % from {expected:.4}", off * 100.0);
}

/// Arenas are full after a quarter of the requests.
fn run(fleet: &Fleet) -> (Report, Expected) {
    let requests = work().requests(160_000, 7);
    (simulate(fleet, &requests, 80_000, 11), expect(fleet, &work()))
}

#[test]
fn a_thousand_daemons_behave_as_the_formulas_say() {
    let fleet = Fleet { arena_chunks: 300, serving_is_use: false, ..Fleet::of(1000) };
    let (seen, expected) = run(&fleet);
    assert_eq!(seen.local + seen.peer + seen.none, seen.chunks, "each chunk came from somewhere");
    near("local", seen.share(seen.local), expected.local, 0.05);
    near("peer", seen.share(seen.peer), expected.peer, 0.05);
    near("none", seen.share(seen.none), expected.none, 0.05);
    near("lookups", seen.rate(seen.lookups), expected.lookups_per_s, 0.05);
    near("published", seen.rate(seen.published), expected.published_per_s, 0.05);
    near("withdrawn", seen.rate(seen.withdrawn), expected.published_per_s, 0.05);
    near("refreshed", seen.rate(seen.refreshed), expected.refreshed_per_s, 0.05);
    near("fetches", seen.rate(seen.fetches), expected.fetches_per_s, 0.05);
    near("entries", seen.entries as f64, expected.entries, 0.1);
    assert!(seen.stale < seen.fetches / 100, "{seen:?}");
}

#[test]
fn serving_others_keeps_chunks_longer_so_the_formulas_are_a_lower_bound_of_hits() {
    let fleet = Fleet { arena_chunks: 300, ..Fleet::of(1000) };
    let (seen, expected) = run(&fleet);
    let hits = seen.share(seen.local + seen.peer);
    assert!(hits >= (expected.local + expected.peer) * 0.98, "{hits} of {expected:?}");
}

#[test]
fn many_who_ask_one_daemon_at_once_make_one_fetch_for_each_chunk() {
    let fleet = Fleet { fetch_s: 1.0, ..Fleet::of(2) };
    let ask = |at_s: f64| Request { at_s, chunks: (0..10).collect() };
    let mut requests = vec![ask(0.0)];
    // Both daemons are asked by chance; the one that has it serves, the other one fetches once.
    requests.extend((0..100u32).map(|n| ask(10.0 + f64::from(n) / 1000.0)));
    let seen = simulate(&fleet, &requests, 1, 3);
    assert_eq!((seen.fetches, seen.none), (10, 0), "{seen:?}");
    assert!(seen.duplicates_avoided > 100, "{seen:?}");
    assert_eq!(seen, simulate(&fleet, &requests, 1, 3), "the same seed, the same run");
}

#[test]
fn a_trace_is_read_and_a_wrong_line_is_named() {
    let text = "{\"timestamp\": 1000, \"hash_ids\": [0, 1]}\n{\"timestamp\": 2000, \"hash_ids\": [0, 2]}\n";
    let requests = read_trace(text, 2).unwrap();
    assert_eq!((requests.len(), requests[0].at_s), (4, 1.0));
    assert_ne!(requests[0].chunks, requests[1].chunks, "tenants share nothing");
    assert!(read_trace("{\"timestamp\": 1}\n", 1).unwrap_err().contains("line 1"));
}
