//! docs/metrics.md, made from the table.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::table::{Kind, LABELS, Metric, SECTIONS};
use crate::pages;

const INTRODUCTION: &str = "\
# Metrics

`tenderd --admin HOST:PORT` answers `GET /metrics`. A scraper that asks for OpenMetrics gets it
(`application/openmetrics-text`, with units and an end); everybody else gets Prometheus' text. Names and values are the
same in both.

Counters begin at 0 with the daemon. What a namespace counted ends with the namespace: use `rate()` or `increase()` over
them, which take that as a restart. All series of one answer are read one after the other, so that sums may differ by
what happened meanwhile.

Useful quotients:

| what | how |
|---|---|
| hit rate | `sum(rate(tender_hits_total[5m])) / sum(rate(tender_lookups_total[5m]))` |
| why not | `sum by (reason) (rate(tender_misses_total[5m]))` |
| by model | `sum by (model) (rate(tender_hits_total[5m]) * on (instance, namespace) group_left (model) tender_namespace_info)` |
| time of a call, 99th percentile | `histogram_quantile(0.99, sum by (le, call) (rate(tender_call_seconds_bucket[5m])))` |
| is the arena too small? | `histogram_quantile(0.5, sum by (le) (rate(tender_eviction_age_seconds_bucket[1h])))`: chunks that go within minutes of their last use would have been found later |

Bytes by tier and direction: `tender_received_bytes_total` and `tender_sent_bytes_total` are clients' payload into and out
of the arena; `tender_tier_fetched_bytes_total` comes up from a tier, `tender_tier_kept_bytes_total` goes down to it.

This page is made from daemon/src/metrics/table.rs by `TENDER_WRITE_DOCS=1 cargo test -p tender-daemon --lib docs`.
";

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for section in SECTIONS {
        _ = write!(
            page,
            "\n## {}\n\n| metric | kind | unit | labels | what |\n|---|---|---|---|---|\n",
            section.title
        );
        for metric in section.metrics {
            let labels: Vec<_> = metric.labels().iter().map(|label| format!("`{}`", label.name())).collect();
            let (labels, help) = (labels.join(", "), metric.help());
            _ = writeln!(
                page,
                "| `{}` | {} | {} | {labels} | {help} |",
                shown(metric),
                kind(metric),
                metric.unit()
            );
        }
    }
    page.push_str(
        "\n## Labels\n\nNo label has a key, a request or an address in it. What bounds the number of series:\n\n\
         | label | values |\n|---|---|\n",
    );
    for label in LABELS {
        _ = writeln!(page, "| `{}` | {} |", label.name(), label.bound());
    }
    page
}

/// As it is scraped.
fn shown(metric: &Metric) -> String {
    let suffix = if metric.kind() == Kind::Counter { "_total" } else { "" };
    format!("{}{suffix}", metric.name())
}

fn kind(metric: &Metric) -> &'static str {
    match metric.kind() {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    }
}

#[test]
fn the_docs_of_metrics_are_those_of_the_table() {
    pages::check("metrics.md", &page());
}

#[test]
fn every_metric_has_a_name_of_its_own_that_scrapers_take_and_says_what_it_is() {
    let mut names = BTreeSet::new();
    for metric in SECTIONS.iter().flat_map(|section| section.metrics) {
        let name = metric.name();
        assert!(names.insert(name), "{name} is declared twice");
        assert!(name.starts_with("tender_"), "{name}");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
        assert!(!name.ends_with("_total"), "{name}: the text adds it");
        assert!(!metric.help().is_empty() && !metric.help().ends_with('.'), "{name}");
        assert!(!metric.unit().is_empty(), "{name}");
    }
    let used: BTreeSet<_> =
        SECTIONS.iter().flat_map(|s| s.metrics).flat_map(|m| m.labels()).map(|l| l.name()).collect();
    assert_eq!(used, LABELS.iter().map(|label| label.name()).collect(), "labels that nobody uses");
}
