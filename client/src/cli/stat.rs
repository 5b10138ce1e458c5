//! `tender stat`.

use std::fmt::Write;

use bytesize::ByteSize;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::{Target, ago, json};
use crate::admin::{self, DaemonStats, NamespaceStats, ReasonCount};
use crate::error::ClientError;

/// Shows what the daemon holds.
#[derive(Debug, clap::Args)]
pub(super) struct Stat {
    /// As JSON, for programs: every number, digests in full.
    #[arg(long)]
    json: bool,
}

impl Stat {
    pub(super) fn run(&self, target: &Target) -> Result<String, ClientError> {
        let stats = admin::stats(&target.address, &target.credentials()?, target.timeout)?;
        if self.json { json(&stats) } else { Ok(render(&stats)) }
    }
}

fn render(stats: &DaemonStats) -> String {
    let mut out = String::new();
    let used = percent(stats.arena_used_bytes, stats.arena_bytes);
    let mut table = plain();
    table.add_row(["up", &ago(stats.uptime_ms)]);
    table.add_row(["arena", &format!("{} in {}", size(stats.arena_bytes), stats.arena_place)]);
    table.add_row(["used", &format!("{} ({used})", size(stats.arena_used_bytes))]);
    table.add_row(["largest free", &size(stats.arena_largest_free_bytes)]);
    table.add_row(["sessions", &stats.sessions.to_string()]);
    table.add_row(["leases", &format!("{} on {} chunks", stats.leases, stats.pins)]);
    let storing = format!("{} parts, {}", stats.reservations, size(stats.inflight_bytes));
    table.add_row(["being stored", &storing]);
    _ = writeln!(out, "{}\n", text(&mut table));
    if stats.namespaces.is_empty() {
        _ = writeln!(out, "No namespaces: no engine has registered yet.");
    } else {
        _ = writeln!(out, "{}", text(&mut namespaces(&stats.namespaces)));
    }
    let misses = stats.namespaces.iter().flat_map(|ns| &ns.misses);
    reasons(&mut out, "Misses", misses);
    reasons(&mut out, "Refusals", stats.refusals.iter());
    out
}

fn namespaces(all: &[NamespaceStats]) -> Table {
    let mut table = plain();
    table.set_header([
        "NAMESPACE",
        "MODEL",
        "WEIGHTS",
        "DTYPE",
        "CHUNK TOKENS",
        "READY",
        "PENDING",
        "SIZE",
        "LOOKUPS",
        "HITS",
        "HIT RATE",
        "STORED",
        "EVICTED",
    ]);
    for ns in all {
        let name = if ns.pinned_name.is_empty() { short(&ns.namespace) } else { ns.pinned_name.clone() };
        let chunk: Vec<_> = ns.tokens_per_chunk.iter().map(u64::to_string).collect();
        table.add_row([
            name,
            ns.model.clone(),
            short(&ns.weights),
            ns.kv_dtype.clone(),
            chunk.join(","),
            ns.ready_chunks.to_string(),
            ns.pending_chunks.to_string(),
            size(ns.ready_bytes),
            ns.lookups.to_string(),
            ns.hits.to_string(),
            percent(ns.hits, ns.lookups),
            size(ns.stored_bytes),
            ns.evicted_chunks.to_string(),
        ]);
    }
    for at in 4..13 {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Counts of one reason from several places are added up.
fn reasons<'a>(out: &mut String, title: &str, counts: impl Iterator<Item = &'a ReasonCount>) {
    let mut sums = std::collections::BTreeMap::<&str, u64>::new();
    for count in counts.filter(|c| c.count > 0) {
        *sums.entry(&count.reason).or_default() += count.count;
    }
    if !sums.is_empty() {
        let list: Vec<_> = sums.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
        _ = writeln!(out, "{title}: {}", list.join(", "));
    }
}

pub(super) fn plain() -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table
}

/// Columns apart by two spaces, nothing at the ends of lines.
pub(super) fn text(table: &mut Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

pub(super) fn size(bytes: u64) -> String {
    ByteSize::b(bytes).to_string()
}

pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    #[expect(clippy::cast_precision_loss, reason = "a rounded share for people")]
    let share = part as f64 * 100.0 / whole as f64;
    format!("{share:.1}%")
}

/// Enough of a digest or revision to tell it from others; JSON has all of it.
pub(super) fn short(text: &str) -> String {
    text.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> DaemonStats {
        DaemonStats {
            arena_bytes: 1 << 30,
            arena_used_bytes: 1 << 28,
            arena_largest_free_bytes: 1 << 29,
            arena_place: "/dev/shm/tender".into(),
            sessions: 2,
            leases: 1,
            pins: 7,
            reservations: 0,
            inflight_bytes: 0,
            uptime_ms: 5_000,
            namespaces: Vec::new(),
            refusals: vec![ReasonCount { reason: "no_space".into(), count: 3 }],
        }
    }

    #[test]
    fn an_empty_daemon_is_described() {
        let text = render(&sample());
        assert!(text.contains("/dev/shm/tender") && text.contains("25.0%"), "{text}");
        assert!(text.contains("No namespaces"), "{text}");
        assert!(text.contains("Refusals: no_space 3"), "{text}");
    }

    #[test]
    fn a_namespace_is_one_row_with_its_hit_rate() {
        let mut stats = sample();
        let ns = NamespaceStats {
            namespace: "abcdef0123456789".into(),
            pinned_name: String::new(),
            model: "tiny-llama".into(),
            weights: "rev".into(),
            kv_dtype: "float32".into(),
            quantisation: "none".into(),
            page_format: "HNC".into(),
            tokens_per_chunk: vec![64],
            ready_chunks: 3,
            pending_chunks: 0,
            ready_bytes: 3 << 20,
            lookups: 8,
            hits: 6,
            pendings: 0,
            misses: vec![ReasonCount { reason: "never_stored".into(), count: 2 }],
            stored_bytes: 3 << 20,
            evicted_chunks: 0,
        };
        stats.namespaces = vec![ns.clone(), ns];
        let text = render(&stats);
        assert!(text.lines().all(|line| line == line.trim()), "{text}");
        assert!(text.contains("tiny-llama") && text.contains("75.0%"), "{text}");
        assert!(text.contains("abcdef012345 ") && !text.contains("abcdef0123456789"), "{text}");
        assert!(text.contains("Misses: never_stored 4"), "{text}");
    }
}
