//! Whether a number that was sampled again and again has stayed flat.
//!
//! The first quarter is warm-up. What is compared are the means of the second and of the last quarter: a leak of any
//! kind moves the mean, a single peak does not.

use std::fmt::Write;

/// How a quantity may move.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rule {
    /// It may fall, and grow by no more than this, or this part of it, whichever is more.
    NoGrowth {
        /// In its own unit.
        by: f64,
        /// Of the second quarter's mean.
        share: f64,
    },
    /// It may move by no more than this, either way.
    Still {
        /// In its own unit.
        by: f64,
        /// Of the second quarter's mean.
        share: f64,
    },
}

/// One quantity over time.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// What it is, with its unit.
    pub name: &'static str,
    /// How it may move.
    pub rule: Rule,
    /// The samples, evenly spaced.
    pub values: Vec<f64>,
}

/// What became of one quantity.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// What it is.
    pub name: &'static str,
    /// Mean of the second quarter.
    pub second: f64,
    /// Mean of the last quarter.
    pub last: f64,
    /// The largest sample.
    pub most: f64,
    /// What the means may differ by.
    pub allowed: f64,
    /// Whether it stayed within it.
    pub flat: bool,
}

impl Series {
    /// An empty one.
    pub fn new(name: &'static str, rule: Rule) -> Self {
        Self { name, rule, values: Vec::new() }
    }

    /// Judges it. Fewer than eight samples are no trend and never flat.
    pub fn judge(&self) -> Verdict {
        let quarter = self.values.len() / 4;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let second = mean(&self.values[quarter..2 * quarter]);
        let last = mean(&self.values[self.values.len() - quarter..]);
        let (by, share, both_ways) = match self.rule {
            Rule::NoGrowth { by, share } => (by, share, false),
            Rule::Still { by, share } => (by, share, true),
        };
        let allowed = by.max(share * second);
        let moved = if both_ways { (last - second).abs() } else { last - second };
        Verdict {
            name: self.name,
            second,
            last,
            most: self.values.iter().copied().fold(f64::MIN, f64::max),
            allowed,
            flat: quarter >= 2 && moved <= allowed,
        }
    }
}

/// The verdicts as a Markdown table.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut text =
        "| quantity | second quarter | last quarter | may differ by | most | |\n|---|--:|--:|--:|--:|---|\n"
            .to_owned();
    for v in verdicts {
        let word = if v.flat { "flat" } else { "NOT FLAT" };
        let Verdict { name, second, last, allowed, most, .. } = v;
        // Writing to a string cannot fail.
        _ = writeln!(text, "| {name} | {second:.2} | {last:.2} | {allowed:.2} | {most:.2} | {word} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(rule: Rule, value: impl Fn(usize) -> f64) -> bool {
        let values = (0..400).map(value).collect();
        Series { values, ..Series::new("x", rule) }.judge().flat
    }
    const MEMORY: Rule = Rule::NoGrowth { by: 2.0, share: 0.05 };

    #[test]
    fn noise_peaks_and_warm_up_are_flat() {
        assert!(judged(MEMORY, |i| 100.0 + (i % 7) as f64));
        assert!(judged(MEMORY, |i| if i == 390 { 300.0 } else { 100.0 }));
        assert!(judged(MEMORY, |i| 100.0_f64.min(i as f64)));
        assert!(judged(MEMORY, |i| 100.0 - i as f64 / 8.0), "what is given back is no leak");
    }

    #[test]
    fn a_slow_leak_is_not() {
        assert!(!judged(MEMORY, |i| 100.0 + i as f64 / 20.0));
        assert!(!judged(Rule::NoGrowth { by: 1.0, share: 0.0 }, |i| (10 + i / 100) as f64));
    }

    #[test]
    fn what_must_be_still_may_not_fall_either() {
        let still = Rule::Still { by: 1.0, share: 0.02 };
        assert!(judged(still, |_| 64.0));
        assert!(!judged(still, |i| 64.0 - i as f64 / 100.0));
    }

    #[test]
    fn a_few_samples_are_no_trend() {
        assert!(!Series { values: vec![1.0; 7], ..Series::new("x", MEMORY) }.judge().flat);
        assert!(!Series::new("x", MEMORY).judge().flat);
    }

    #[test]
    fn the_table_says_what_is_not_flat() {
        let values = (0..40).map(f64::from).collect();
        let text = table(&[Series { values, ..Series::new("threads", MEMORY) }.judge()]);
        assert!(text.contains("| threads | 14.50 | 34.50 | 2.00 | 39.00 | NOT FLAT |"), "{text}");
    }
}
