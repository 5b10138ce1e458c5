//! `tender bench --suite` with tiny sizes: every row of docs/benchmarks.md is there with its goal. Never whether it is met.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::process::{Command, Output};

use serde_json::Value;
use tender_tests::daemon::{tender, tenderd};

/// Name, unit and goal of every row that has a goal.
const GOALS: &[(&str, &str, &str)] = &[
    ("idle daemon, memory beside the arena", "MiB", "< 50 MiB"),
    ("idle daemon, share of a core", "%", "< 0.5 %"),
    ("load / memcpy, shm, 1 MiB chunks", "x", ">= 0.9 x"),
    ("store / memcpy, shm, 1 MiB chunks", "x", ">= 0.5 x"),
    ("gather / memcpy, shm, 1 MiB chunks", "x", ">= 0.9 x"),
    ("load / memcpy, shm, 4 MiB chunks", "x", ">= 0.9 x"),
    ("store / memcpy, shm, 4 MiB chunks", "x", ">= 0.5 x"),
    ("gather / memcpy, shm, 4 MiB chunks", "x", ">= 0.9 x"),
    ("load / memcpy, shm, 16 MiB chunks", "x", ">= 0.9 x"),
    ("store / memcpy, shm, 16 MiB chunks", "x", ">= 0.5 x"),
    ("gather / memcpy, shm, 16 MiB chunks", "x", ">= 0.9 x"),
    ("get / bare TCP, 4 MiB chunks", "x", ">= 0.9 x"),
    ("put / bare TCP, 4 MiB chunks", "x", ">= 0.9 x"),
    ("get / bare TLS 1.3, 4 MiB chunks", "x", ">= 0.7 x"),
    ("put / bare TLS 1.3, 4 MiB chunks", "x", ">= 0.7 x"),
    ("lookup of 1,000 keys with lease, Unix socket, 8 others storing, p50", "us", "< 500 us"),
    ("lookup of 1,000 keys with lease, Unix socket, 8 others storing, p99", "us", "< 2000 us"),
    ("scheduler's step, 256 running requests, p50", "us", "< 1000 us"),
    ("put, shm / Redis over Unix socket", "x", "> 1 x"),
    ("get, shm / Redis over Unix socket", "x", "> 1 x"),
    ("put, gRPC over TCP / Redis over TCP", "x", "> 1 x"),
    ("get, gRPC over TCP / Redis over TCP", "x", "> 1 x"),
    ("index, memory for each of 5000 chunks", "B", "< 256 B"),
    ("lookup, 5000 chunks / 1100 chunks", "x", "<= 2 x"),
    ("re-attach of 1000 chunks", "s", "< 3 s"),
    ("allocations that fail while 5 % of the arena is free, 24 h of churn", "%", "<= 1 %"),
];

fn bench(arguments: &[&str]) -> Output {
    // Built for this test, beside the tool.
    assert!(std::path::Path::new(env!("CARGO_BIN_EXE_tender-bench-parts")).is_file());
    let mut command = Command::new(tender());
    command.args(["bench", "--quick", "--json"]).args(arguments).arg("--tenderd").arg(tenderd());
    command.output().unwrap()
}

#[test]
fn the_suite_has_a_row_for_every_goal_and_can_be_compared() {
    let output = bench(&["--suite"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    for (name, unit, goal) in GOALS {
        let row = rows.iter().find(|row| row["name"] == *name);
        let row = row.unwrap_or_else(|| panic!("no row '{name}' in {report:#}"));
        assert_eq!((&row["unit"], &row["goal"]), (&Value::from(*unit), &Value::from(*goal)), "{name}");
        assert!(row["value"].as_f64().is_some_and(f64::is_finite) && row["met"].is_boolean(), "{row}");
    }
    let with_goal = rows.iter().filter(|row| row["met"].is_boolean()).count();
    assert_eq!(with_goal, GOALS.len(), "a goal that this test does not know: {report:#}");

    // Beside a report in which the goal was missed by far more than any machine can.
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old.json");
    let row = |value: f64| {
        format!(
            "{{\"rows\": [{{\"name\": \"scheduler's step, 256 running requests, p50\", \"value\": {value}, \"unit\": \"us\", \
             \"goal\": \"< 1000 us\", \"met\": null}}]}}"
        )
    };
    std::fs::write(&old, row(5e9)).unwrap();
    let output = bench(&["--only", "scheduler", "--compare", old.to_str().unwrap()]);
    assert!(output.status.success(), "what was missed before cannot be lost");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["rows"][0]["before"], &report["rows"][0]["worse"]), (&5e9.into(), &false.into()));
    let output = bench(&["--only", "scheduler", "--compare", "/nonexistent.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nonexistent.json"), "it names the file");
}
