//! Prints the tables of docs/scaling.md: `tender-scale [TRACE.jsonl]`. A trace has a JSON object a line with `timestamp`
//! (milliseconds) and `hash_ids`; ten tenants replay it, each with chunks of
//! its own.

use comfy_table::Table;
use tender_tests::scale::{Fleet, Report, ZipfWorkload, expect, read_trace, simulate};

fn main() -> Result<(), String> {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header([
        "nodes",
        "load",
        "",
        "local %",
        "peer %",
        "none %",
        "lookups/s",
        "entries written/s",
        "commands/s",
        "fetches/s",
        "stale %",
        "avoided/s",
        "entries",
    ]);
    for daemons in [10, 100, 1000] {
        zipf(&mut table, daemons);
    }
    // Nothing but more of the same, and a quarter of an hour.
    on_paper(&mut table, 10_000);
    if let Some(path) = std::env::args().nth(1) {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        // Ten tenants replay it: as many requests for each daemon as for the whole cluster that it was taken from.
        let (daemons, tenants) = (10, 10);
        let requests = read_trace(&text, tenants)?;
        let fleet = Fleet { arena_chunks: 4000, ..Fleet::of(daemons) };
        let seen = simulate(&fleet, &requests, requests.len() / 3, 1);
        table.add_row(row(daemons, "trace", &seen));
    }
    println!("{table}");
    Ok(())
}

/// The load grows with the fleet.
fn work(daemons: usize) -> (Fleet, ZipfWorkload) {
    let work = ZipfWorkload {
        prefixes: 5 * daemons,
        exponent: 0.9,
        prefix_chunks: 8,
        own_chunks: 4,
        requests_per_second: daemons as f64 / 2.0,
    };
    (Fleet { arena_chunks: 300, ..Fleet::of(daemons) }, work)
}

fn zipf(table: &mut Table, daemons: usize) {
    let (fleet, work) = work(daemons);
    let requests = work.requests(160 * daemons, 7);
    let seen = simulate(&fleet, &requests, 80 * daemons, 11);
    table.add_row(row(daemons, "Zipf", &seen));
    on_paper(table, daemons);
}

fn on_paper(table: &mut Table, daemons: usize) {
    let (fleet, work) = work(daemons);
    let paper = expect(&fleet, &work);
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let written = 2.0 * paper.published_per_s + paper.refreshed_per_s;
    table.add_row([
        daemons.to_string(),
        "Zipf".into(),
        "formulas".into(),
        percent(paper.local),
        percent(paper.peer),
        percent(paper.none),
        format!("{:.0}", paper.lookups_per_s),
        format!("{written:.0}"),
        String::new(),
        format!("{:.0}", paper.fetches_per_s),
        String::new(),
        String::new(),
        format!("{:.0}", paper.entries),
    ]);
}

fn row(daemons: usize, load: &str, seen: &Report) -> Vec<String> {
    let percent = |chunks| format!("{:.1}", seen.share(chunks) * 100.0);
    let rate = |count| format!("{:.0}", seen.rate(count));
    vec![
        daemons.to_string(),
        load.into(),
        "simulated".into(),
        percent(seen.local),
        percent(seen.peer),
        percent(seen.none),
        rate(seen.lookups),
        rate(seen.published + seen.withdrawn + seen.refreshed),
        format!("{:.0}", seen.directory_commands_per_second()),
        rate(seen.fetches),
        format!("{:.2}", 100.0 * seen.stale as f64 / (seen.fetches + seen.stale).max(1) as f64),
        rate(seen.duplicates_avoided),
        seen.entries.to_string(),
    ]
}
