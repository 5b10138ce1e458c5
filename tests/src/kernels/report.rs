//! The table that `gpu-check` ends with.

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

/// One line of the table.
#[derive(Clone, Debug)]
struct Row {
    what: String,
    size: String,
    figure: String,
    compared: String,
    verdict: String,
}

/// What was found so far.
#[derive(Clone, Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
    wrong: u32,
    fake: bool,
}

impl Report {
    /// An empty one; of a fake device no figure is a measure.
    pub fn new(fake: bool) -> Self {
        Self { fake, ..Self::default() }
    }
    /// A check that must hold.
    pub fn checked(&mut self, what: &str, size: &str, outcome: super::Outcome<()>) {
        let verdict = match outcome {
            Ok(()) => "right".into(),
            Err(error) => {
                self.wrong += 1;
                format!("WRONG: {error}")
            }
        };
        self.push(what, size, String::new(), String::new(), verdict);
    }
    /// A rate, as a share of another one and of what is hoped for. Too low a rate is said, and is no failure.
    pub fn rate(
        &mut self,
        what: &str,
        size: &str,
        gb_per_second: f64,
        base: Option<(&str, f64, Option<f64>)>,
    ) {
        let mut verdict = String::new();
        let compared = base.map_or_else(String::new, |(of, other, wanted)| {
            let share = gb_per_second / other;
            if let Some(wanted) = wanted {
                verdict = if share >= wanted { "reached" } else { "below the goal" }.into();
                return format!("{share:.2} x {of} (goal {wanted:.2})");
            }
            format!("{share:.2} x {of}")
        });
        if self.fake {
            verdict = "fake, no measure".into();
        }
        self.push(what, size, format!("{gb_per_second:.1} GB/s"), compared, verdict);
    }
    /// Any other figure.
    pub fn figure(&mut self, what: &str, size: &str, figure: String, compared: String, verdict: &str) {
        let verdict = if self.fake { "fake, no measure" } else { verdict };
        self.push(what, size, figure, compared, verdict.into());
    }
    /// How many checks failed.
    pub fn wrong(&self) -> u32 {
        self.wrong
    }

    fn push(&mut self, what: &str, size: &str, figure: String, compared: String, verdict: String) {
        self.rows.push(Row { what: what.into(), size: size.into(), figure, compared, verdict });
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut table = Table::new();
        table.load_preset(ASCII_MARKDOWN).set_header(["what", "size", "figure", "compared", "verdict"]);
        for row in &self.rows {
            table.add_row([&row.what, &row.size, &row.figure, &row.compared, &row.verdict]);
        }
        writeln!(f, "{table}")
    }
}
