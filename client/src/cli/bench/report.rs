//! The table.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use indicatif::ProgressStyle;
use serde::Serialize;

use crate::cli::json;
use crate::error::ClientError;

/// One figure and what it should be.
#[derive(Serialize, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) unit: &'static str,
    /// In words; empty where the figure is only for information.
    pub(super) goal: String,
    pub(super) met: Option<bool>,
}

#[derive(Serialize)]
struct Report<'a> {
    rows: &'a [Row],
}

impl Row {
    /// A speed, for information.
    pub(super) fn speed(name: impl Into<String>, bytes: usize, seconds: f64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a figure of three digits")]
        let value = bytes as f64 / seconds / 1e9;
        Self { name: name.into(), value, unit: "GB/s", goal: String::new(), met: None }
    }
    /// Processor time, for information.
    pub(super) fn cpu(name: impl Into<String>, bytes: usize, seconds: f64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a figure of three digits")]
        let value = seconds * 1e9 / bytes as f64;
        Self { name: name.into(), value, unit: "s/GB", goal: String::new(), met: None }
    }
    /// How fast the work was against its yardstick, given the seconds of both.
    pub(super) fn ratio(name: impl Into<String>, yardstick: f64, work: f64, floor: f64) -> Self {
        let value = yardstick / work;
        Self { name: name.into(), value, unit: "x", goal: format!(">= {floor} x"), met: Some(value >= floor) }
    }
    /// The same for information.
    pub(super) fn told_ratio(name: impl Into<String>, yardstick: f64, work: f64) -> Self {
        Self { goal: String::new(), met: None, ..Self::ratio(name, yardstick, work, 0.0) }
    }
    /// A time that has a limit.
    pub(super) fn time(name: impl Into<String>, micros: f64, limit: Option<f64>) -> Self {
        Self {
            name: name.into(),
            value: micros,
            unit: "us",
            goal: limit.map_or_else(String::new, |limit| format!("< {limit} us")),
            met: limit.map(|limit| micros < limit),
        }
    }
}

/// As a table for people or as JSON for programs.
pub(super) fn render(rows: &[Row], as_json: bool) -> Result<String, ClientError> {
    if as_json {
        return json(&Report { rows });
    }
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(["work", "value", "unit", "goal", "met"]);
    for row in rows {
        let met = row.met.map_or("", |met| if met { "yes" } else { "no" });
        table.add_row([&row.name, &format!("{:.2}", row.value), row.unit, &row.goal, met]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    Ok(format!("{table}\n"))
}

/// The value that `percent` of the samples do not exceed.
pub(super) fn percentile(samples: &mut [f64], percent: usize) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len().saturating_sub(1) * percent / 100).copied().unwrap_or(f64::NAN)
}

pub(super) fn progress_style() -> ProgressStyle {
    ProgressStyle::with_template("[{bar:20}] {msg}").unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_says_how_fast_against_the_yardstick() {
        let row = Row::ratio("load", 1.0, 2.0, 0.7);
        assert!((row.value - 0.5).abs() < 1e-9);
        assert_eq!(row.met, Some(false));
    }

    #[test]
    fn percentiles() {
        let mut samples: Vec<f64> = (1..=101).map(f64::from).collect();
        assert!((percentile(&mut samples, 50) - 51.0).abs() < 1e-9);
        assert!((percentile(&mut samples, 99) - 100.0).abs() < 1e-9);
    }
}
