//! A report beside an earlier one of the same machine.

use std::path::Path;

use serde::Serialize;

use super::failed;
use super::report::{Report, Row, figure};
use crate::error::ClientError;

/// A figure that got worse by more than this share of what it was is marked. Below it is what two runs of one program
/// differ by on a noisy machine.
pub(super) const WORSE_BY: f64 = 0.2;

/// One row beside the same of before.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Change {
    before: f64,
    /// Of what it was, up or down.
    change_percent: f64,
    /// By more than [`WORSE_BY`].
    worse: bool,
    /// It met this goal and does no more.
    pub(super) lost: bool,
}

impl Change {
    fn of(now: &Row, before: &Row) -> Self {
        let share = (now.value - before.value) / before.value;
        let loss = if now.more_is_better() { -share } else { share };
        let met_today = |row: &Row| now.goal.is_some_and(|goal| goal.is_met(row.value));
        Self {
            before: before.value,
            change_percent: share * 100.0,
            worse: loss > WORSE_BY,
            lost: met_today(before) && !met_today(now),
        }
    }

    /// Before, change, and the mark.
    pub(super) fn cells(&self) -> [String; 3] {
        let mark = match (self.lost, self.worse) {
            (true, _) => "GOAL LOST",
            (false, true) => "worse",
            (false, false) => "",
        };
        [figure(self.before), format!("{:+.0} %", self.change_percent), mark.into()]
    }
}

/// An earlier report, as `--json` has printed it.
pub(super) fn read(path: &Path) -> Result<Report, ClientError> {
    let read = std::fs::read(path).map_err(|error| failed("the comparison", why(path, &error)))?;
    serde_json::from_slice(&read).map_err(|error| failed("the comparison", why(path, &error)))
}

fn why(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{} is no report of `tender bench --json`: {error}", path.display())
}

/// Puts the change into each row that the earlier report has too.
pub(super) fn compare(now: &mut Report, before: &Report) {
    for row in &mut now.rows {
        let same = before.rows.iter().find(|before| before.name == row.name && before.unit == row.unit);
        row.change = same.map(|before| Change::of(row, before));
    }
    let gone = before.rows.iter().filter(|before| !now.rows.iter().any(|row| row.name == before.name));
    let gone: Vec<_> = gone.map(|row| format!("Not measured now: {}.", row.name)).collect();
    now.notes.extend(gone);
}

/// No goal that was met before is missed now.
pub(super) fn is_well(report: &Report) -> bool {
    !report.rows.iter().any(|row| row.change.as_ref().is_some_and(|change| change.lost))
}

#[cfg(test)]
mod tests {
    use super::super::report::{Goal, Unit};
    use super::*;

    fn changed(row: impl Fn(f64) -> Row, before: f64, now: f64) -> (bool, bool) {
        let mut report = Report { rows: vec![row(now)], notes: Vec::new() };
        compare(&mut report, &Report { rows: vec![row(before)], notes: Vec::new() });
        let change = report.rows[0].change.clone().unwrap();
        assert_eq!(is_well(&report), !change.lost);
        (change.worse, change.lost)
    }

    #[test]
    fn what_is_worse_depends_on_what_is_counted() {
        let speed = |value| Row::told("speed", value, Unit::GigabytesPerSecond);
        let time = |value| Row::told("time", value, Unit::Micros);
        assert_eq!(changed(speed, 10.0, 7.9), (true, false));
        assert_eq!(changed(speed, 10.0, 8.1), (false, false));
        assert_eq!(changed(speed, 10.0, 20.0), (false, false));
        assert_eq!(changed(time, 10.0, 12.1), (true, false));
        assert_eq!(changed(time, 10.0, 11.9), (false, false));
        let growth = |value| Row::told("growth", value, Unit::Times).goal(Goal::AtMost(2.0));
        assert_eq!(changed(growth, 1.0, 1.5), (true, false), "a ratio of which less is better");
    }

    #[test]
    fn only_a_goal_that_was_met_can_be_lost() {
        let load = |value| Row::told("load", value, Unit::Times).goal(Goal::AtLeast(0.9));
        assert_eq!(changed(load, 0.91, 0.89), (false, true));
        assert_eq!(changed(load, 0.88, 0.4), (true, false), "missed before, too");
        assert_eq!(changed(load, 1.5, 0.95), (true, false), "worse, and still good enough");
    }

    #[test]
    fn rows_that_only_one_report_has_are_not_compared() {
        let row = |name: &str| Row::told(name, 1.0, Unit::Seconds);
        let mut now = Report { rows: vec![row("new")], notes: Vec::new() };
        compare(&mut now, &Report { rows: vec![row("old")], notes: Vec::new() });
        assert_eq!(now.rows[0].change, None);
        assert_eq!(now.notes, ["Not measured now: old."]);
        assert!(is_well(&now));
    }

    #[test]
    fn what_is_no_report_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("old.json");
        std::fs::write(&path, "{\"rows\": [{}]}").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("old.json is no report"));
        std::fs::write(&path, "{\"rows\": []}").unwrap();
        assert!(read(&path).unwrap().rows.is_empty(), "reports of before notes were added can be read");
    }
}
