//! Metrics as text, in the two forms that scrapers read.

use std::fmt::Write as _;

use super::histogram::Spread;
use super::table::{Kind, Metric};

/// How it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// Prometheus' own text, version 0.0.4: everybody reads it.
    Prometheus,
    /// OpenMetrics 1.0: with units and an end, so that a cut answer is noticed.
    OpenMetrics,
}

impl Format {
    /// What an `Accept` header prefers; Prometheus' text where it does not name the other.
    pub(crate) fn accepted(accept: &str) -> Self {
        let quality = |wanted: &str| {
            let mut kinds = accept.split(',').map(|kind| kind.split(';').map(str::trim));
            let mut parameters = kinds.find_map(|mut kind| (kind.next() == Some(wanted)).then_some(kind))?;
            let given = parameters.find_map(|parameter| parameter.strip_prefix("q="));
            Some(given.map_or(1.0, |q| q.parse::<f32>().unwrap_or(0.0)))
        };
        let open = quality("application/openmetrics-text").filter(|q| *q > 0.0);
        match (open, quality("text/plain")) {
            (Some(open), plain) if open >= plain.unwrap_or(0.0) => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }
    /// Of the answer.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// One series' value.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
    Spread(Spread),
}

impl From<u64> for Value {
    fn from(whole: u64) -> Self {
        Self::Whole(whole)
    }
}

/// The labels' values in the order of the declaration, and the series' value.
pub(super) type Row = (Vec<String>, Value);

/// The text, as far as it is written.
#[derive(Debug)]
pub(super) struct Text {
    format: Format,
    out: String,
}

impl Text {
    pub(super) fn new(format: Format) -> Self {
        Self { format, out: String::new() }
    }

    /// Writes all series of a metric; nothing where there are none.
    pub(super) fn family(&mut self, metric: &'static Metric, rows: impl IntoIterator<Item = Row>) {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return;
        }
        self.head(metric);
        for (labels, value) in rows {
            debug_assert_eq!(labels.len(), metric.labels().len(), "labels of {}", metric.name());
            let names = metric.labels().iter().map(|label| label.name());
            let labels: Vec<_> = names.zip(labels.iter().map(String::as_str)).collect();
            match value {
                Value::Whole(value) => self.sample(metric.name(), suffix(metric), &labels, &value),
                Value::Real(value) => self.sample(metric.name(), suffix(metric), &labels, &value),
                Value::Spread(spread) => self.spread(metric.name(), &labels, &spread),
            }
        }
    }
    /// A metric without labels.
    pub(super) fn one(&mut self, metric: &'static Metric, value: impl Into<Value>) {
        self.family(metric, [(Vec::new(), value.into())]);
    }

    /// All of it.
    pub(super) fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn head(&mut self, metric: &Metric) {
        let (kind, name) = match (metric.kind(), self.format) {
            (Kind::Counter, Format::Prometheus) => ("counter", format!("{}_total", metric.name())),
            (Kind::Counter, Format::OpenMetrics) => ("counter", metric.name().to_owned()),
            (Kind::Gauge, _) => ("gauge", metric.name().to_owned()),
            (Kind::Histogram, _) => ("histogram", metric.name().to_owned()),
        };
        let unit = metric.unit();
        _ = writeln!(self.out, "# HELP {name} {}", escape(metric.help(), self.format == Format::OpenMetrics));
        _ = writeln!(self.out, "# TYPE {name} {kind}");
        // Only where the name ends in it, as the form demands.
        if self.format == Format::OpenMetrics && name.strip_suffix(unit).is_some_and(|n| n.ends_with('_')) {
            _ = writeln!(self.out, "# UNIT {name} {unit}");
        }
    }

    fn spread(&mut self, name: &str, labels: &[(&str, &str)], spread: &Spread) {
        for (bound, count) in spread.up_to() {
            // 1.0 and not 1, in both forms.
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound:?}"));
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.sample(name, "_bucket", &labels, &count);
        }
        self.sample(name, "_sum", labels, &spread.sum());
        self.sample(name, "_count", labels, &spread.count());
    }

    fn sample(&mut self, name: &str, suffix: &str, labels: &[(&str, &str)], value: &dyn std::fmt::Display) {
        _ = write!(self.out, "{name}{suffix}");
        for (at, (label, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            _ = write!(self.out, "{before}{label}=\"{}\"", escape(value, true));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        _ = writeln!(self.out, "{after} {value}");
    }
}

fn suffix(metric: &Metric) -> &'static str {
    match metric.kind() {
        Kind::Counter => "_total",
        Kind::Gauge | Kind::Histogram => "",
    }
}

fn escape(text: &str, quotes: bool) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes { escaped.replace('"', "\\\"") } else { escaped }
}

#[cfg(test)]
mod tests {
    use super::super::histogram::Histogram;
    use super::super::table;
    use super::*;

    fn written(format: Format) -> String {
        static BOUNDS: &[f64] = &[0.5, 1.0];
        let spread = Histogram::new(BOUNDS);
        spread.observe(0.75);
        let mut text = Text::new(format);
        text.one(&table::ARENA_BYTES, 7);
        text.family(&table::MISSES, [(vec!["a\"b\\c\nd".into(), "evicted".into()], Value::Whole(3))]);
        text.family(&table::CALL_SECONDS, [(vec!["put".into()], Value::Spread(spread.spread()))]);
        text.family(&table::HITS, []);
        text.end()
    }

    #[test]
    fn open_metrics_have_units_and_an_end() {
        let expected = r#"# HELP tender_arena_bytes Shared memory that chunks can use
# TYPE tender_arena_bytes gauge
# UNIT tender_arena_bytes bytes
tender_arena_bytes 7
# HELP tender_misses Keys not found, by the reason that the lookup gave
# TYPE tender_misses counter
tender_misses_total{namespace="a\"b\\c\nd",reason="evicted"} 3
# HELP tender_call_seconds Time to answer a call
# TYPE tender_call_seconds histogram
# UNIT tender_call_seconds seconds
tender_call_seconds_bucket{call="put",le="0.5"} 0
tender_call_seconds_bucket{call="put",le="1.0"} 1
tender_call_seconds_bucket{call="put",le="+Inf"} 1
tender_call_seconds_sum{call="put"} 0.75
tender_call_seconds_count{call="put"} 1
# EOF
"#;
        assert_eq!(written(Format::OpenMetrics), expected);
    }

    #[test]
    fn prometheus_text_names_counters_as_their_samples() {
        let text = written(Format::Prometheus);
        assert!(text.contains("# TYPE tender_misses_total counter\n"), "{text}");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
        let samples =
            |text: &str| text.lines().filter(|l| !l.starts_with('#')).collect::<Vec<_>>().join("\n");
        assert_eq!(samples(&text), samples(&written(Format::OpenMetrics)));
    }

    #[test]
    fn the_form_is_what_the_scraper_prefers() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        for (accept, format) in [
            ("", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("text/html,application/xhtml+xml;q=0.9", Format::Prometheus),
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text;q=0.2, text/plain;q=0.9", Format::Prometheus),
            ("application/openmetrics-text;q=0", Format::Prometheus),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }
}
