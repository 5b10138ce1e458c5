//! What was measured: rows with goals, as a table for people or as JSON for programs.

use std::fmt;
use std::str::FromStr;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use indicatif::ProgressStyle;
use serde::{Deserialize, Serialize};

use super::compare::Change;
use crate::cli::json;
use crate::error::ClientError;

/// What a figure is counted in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Unit {
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// How fast against a yardstick, or how large against another size.
    #[serde(rename = "x")]
    Times,
    /// Processor time.
    #[serde(rename = "s/GB")]
    SecondsPerGigabyte,
    #[serde(rename = "us")]
    Micros,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "B")]
    Bytes,
    #[serde(rename = "MiB")]
    Mebibytes,
    #[serde(rename = "%")]
    Percent,
}

/// Where a figure should be. Written as a sign and a number, in the row's unit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Goal {
    AtLeast(f64),
    MoreThan(f64),
    AtMost(f64),
    LessThan(f64),
}

/// One figure and what it should be.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(from = "Written")]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) unit: Unit,
    /// `None` where the figure is only for information.
    pub(super) goal: Option<Goal>,
    /// Against an earlier report that has this row.
    pub(super) change: Option<Change>,
}

/// A row in a report that some program wrote. Whether it met its goal follows from the rest.
#[derive(Deserialize)]
struct Written {
    name: String,
    value: f64,
    unit: Unit,
    goal: String,
}

/// A row in a report that we write.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    value: f64,
    unit: Unit,
    goal: String,
    met: Option<bool>,
    #[serde(flatten)]
    change: Option<&'a Change>,
}

/// Everything that a run found.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    /// Sentences about what was left out or made smaller.
    #[serde(default)]
    pub(super) notes: Vec<String>,
}

impl Unit {
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::GigabytesPerSecond => "GB/s",
            Self::Times => "x",
            Self::SecondsPerGigabyte => "s/GB",
            Self::Micros => "us",
            Self::Seconds => "s",
            Self::Bytes => "B",
            Self::Mebibytes => "MiB",
            Self::Percent => "%",
        }
    }
}

impl Goal {
    pub(super) fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(floor) => value >= floor,
            Self::MoreThan(floor) => value > floor,
            Self::AtMost(limit) => value <= limit,
            Self::LessThan(limit) => value < limit,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(floor) => write!(f, ">= {floor}"),
            Self::MoreThan(floor) => write!(f, "> {floor}"),
            Self::AtMost(limit) => write!(f, "<= {limit}"),
            Self::LessThan(limit) => write!(f, "< {limit}"),
        }
    }
}

impl FromStr for Goal {
    type Err = ();

    /// What stands behind the number, such as the unit, is not looked at.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let (sign, number) = (words.next().ok_or(())?, words.next().ok_or(())?);
        let number = number.parse().map_err(drop)?;
        match sign {
            ">=" => Ok(Self::AtLeast(number)),
            ">" => Ok(Self::MoreThan(number)),
            "<=" => Ok(Self::AtMost(number)),
            "<" => Ok(Self::LessThan(number)),
            _ => Err(()),
        }
    }
}

impl From<Written> for Row {
    fn from(written: Written) -> Self {
        let Written { name, value, unit, goal } = written;
        Self { name, value, unit, goal: goal.parse().ok(), change: None }
    }
}

impl Row {
    /// A figure for information.
    pub(super) fn told(name: impl Into<String>, value: f64, unit: Unit) -> Self {
        Self { name: name.into(), value, unit, goal: None, change: None }
    }
    /// The same with a goal.
    pub(super) fn goal(self, goal: Goal) -> Self {
        Self { goal: Some(goal), ..self }
    }
    /// A speed, for information.
    pub(super) fn speed(name: impl Into<String>, bytes: usize, seconds: f64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a figure of three digits")]
        let value = bytes as f64 / seconds / 1e9;
        Self::told(name, value, Unit::GigabytesPerSecond)
    }
    /// Processor time, for information.
    pub(super) fn cpu(name: impl Into<String>, bytes: usize, seconds: f64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a figure of three digits")]
        let value = seconds * 1e9 / bytes as f64;
        Self::told(name, value, Unit::SecondsPerGigabyte)
    }
    /// How fast the work was against its yardstick, given the seconds of both.
    pub(super) fn ratio(name: impl Into<String>, yardstick: f64, work: f64, goal: Goal) -> Self {
        Self::told(name, yardstick / work, Unit::Times).goal(goal)
    }

    /// `None` without a goal.
    pub(super) fn met(&self) -> Option<bool> {
        self.goal.map(|goal| goal.is_met(self.value))
    }
    /// Whether more of it is good. The goal says so where there is one: not all ratios are speeds.
    pub(super) fn more_is_better(&self) -> bool {
        match self.goal {
            Some(Goal::AtLeast(_) | Goal::MoreThan(_)) => true,
            Some(Goal::AtMost(_) | Goal::LessThan(_)) => false,
            None => matches!(self.unit, Unit::GigabytesPerSecond | Unit::Times),
        }
    }
    fn goal_text(&self) -> String {
        self.goal.map_or_else(String::new, |goal| format!("{goal} {}", self.unit.symbol()))
    }
}

impl Serialize for Row {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { name, value, unit, change, .. } = self;
        let shown = Shown {
            name,
            value: *value,
            unit: *unit,
            goal: self.goal_text(),
            met: self.met(),
            change: change.as_ref(),
        };
        shown.serialize(serializer)
    }
}

impl Report {
    /// As a table for people or as JSON for programs.
    pub(super) fn render(&self, as_json: bool) -> Result<String, ClientError> {
        if as_json {
            return json(&serde_json::json!({ "rows": self.rows, "notes": self.notes }));
        }
        let compared = self.rows.iter().any(|row| row.change.is_some());
        let mut table = Table::new();
        let mut header = vec!["work", "value", "unit", "goal", "met"];
        if compared {
            header.extend(["before", "change", ""]);
        }
        table.load_preset(UTF8_FULL_CONDENSED).set_header(header);
        for row in &self.rows {
            let met = row.met().map_or("", |met| if met { "yes" } else { "no" });
            let (name, unit) = (row.name.clone(), row.unit.symbol().into());
            let mut cells = vec![name, figure(row.value), unit, row.goal_text(), met.into()];
            if compared {
                cells.extend(row.change.as_ref().map_or_else(Default::default, Change::cells));
            }
            table.add_row(cells);
        }
        for column in [1, 5, 6] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let notes: String = self.notes.iter().map(|note| format!("{note}\n")).collect();
        Ok(format!("{table}\n{notes}"))
    }
}

/// Two digits behind the point, and more where nothing would be left.
pub(super) fn figure(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.05 { format!("{value:.5}") } else { format!("{value:.2}") }
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
        let row = Row::ratio("load", 1.0, 2.0, Goal::AtLeast(0.7));
        assert!((row.value - 0.5).abs() < 1e-9);
        assert_eq!(row.met(), Some(false));
    }

    #[test]
    fn a_goal_is_met_on_its_own_side() {
        let met = |goal: Goal| [0.9, 1.0, 1.1].map(|value| goal.is_met(value));
        assert_eq!(met(Goal::AtLeast(1.0)), [false, true, true]);
        assert_eq!(met(Goal::MoreThan(1.0)), [false, false, true]);
        assert_eq!(met(Goal::AtMost(1.0)), [true, true, false]);
        assert_eq!(met(Goal::LessThan(1.0)), [true, false, false]);
    }

    #[test]
    fn a_row_comes_back_from_its_json() {
        let goals = [Goal::AtLeast(0.9), Goal::MoreThan(1.0), Goal::AtMost(2.0), Goal::LessThan(500.0)];
        let row = |goal| Row::told("load", 1.5, Unit::Times).goal(goal);
        let rows: Vec<Row> =
            goals.map(row).into_iter().chain([Row::told("alone", 3.0, Unit::Bytes)]).collect();
        let text = serde_json::to_string(&rows).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Row>>(&text).unwrap(), rows);
        assert!(
            text.contains(r#"{"name":"load","value":1.5,"unit":"x","goal":">= 0.9 x","met":true}"#),
            "{text}"
        );
    }

    #[test]
    fn a_table_has_the_changes_only_where_there_are_some() {
        let report = Report { rows: vec![Row::told("load", 1.5, Unit::Times)], notes: vec!["So.".into()] };
        let table = report.render(false).unwrap();
        assert!(table.contains("load") && table.ends_with("So.\n") && !table.contains("before"), "{table}");
    }

    #[test]
    fn percentiles() {
        let mut samples: Vec<f64> = (1..=101).map(f64::from).collect();
        assert!((percentile(&mut samples, 50) - 51.0).abs() < 1e-9);
        assert!((percentile(&mut samples, 99) - 100.0).abs() < 1e-9);
    }
}
