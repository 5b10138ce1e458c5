//! Parts of the daemon by themselves, for `tender bench --suite`, which does not link the daemon.

mod churn;
mod stocked;

use serde_json::{Value, json};

pub use churn::Churn;
pub use stocked::{Stocked, look_up_in_turn, resident_bytes};

/// Why a measurement ended.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How large everything is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Chunks of the small index.
    pub few_chunks: u64,
    /// Chunks of the large index.
    pub many_chunks: u64,
    /// Chunks that a new daemon finds.
    pub reattached_chunks: u64,
    /// Lookups in each index.
    pub lookups: u64,
    /// Of simulated churn.
    pub hours: u64,
}

impl Sizes {
    /// As the goals are stated.
    pub const FULL: Self = Self {
        few_chunks: 10_000,
        many_chunks: 10_000_000,
        reattached_chunks: 1_000_000,
        lookups: 300,
        hours: 24,
    };
    /// To see that everything runs.
    pub const QUICK: Self =
        Self { few_chunks: 1_100, many_chunks: 5_000, reattached_chunks: 1_000, lookups: 3, hours: 0 };
}

/// Every row, as `tender bench --json` has them; `tell` hears what is done next.
pub fn rows(sizes: Sizes, tell: &dyn Fn(&str)) -> Result<Vec<Value>, Failure> {
    let mut rows = Vec::new();
    tell("index");
    rows.extend(index(sizes)?);
    tell("re-attach");
    let chunks = sizes.reattached_chunks;
    let seconds = Stocked::fill(chunks, true)?.reattach()?.as_secs_f64();
    rows.push(row(format!("re-attach of {chunks} chunks"), seconds, "s", "< 3 s"));
    tell("allocator");
    let failed = Churn::of_hours(sizes.hours).failed_percent(7);
    let name = "allocations that fail while 5 % of the arena is free, 24 h of churn";
    rows.push(row(name.into(), failed, "%", "<= 1 %"));
    Ok(rows)
}

fn index(sizes: Sizes) -> Result<[Value; 3], Failure> {
    let Sizes { few_chunks, many_chunks, lookups, .. } = sizes;
    let before = resident_bytes()?;
    let many = Stocked::fill(many_chunks, false)?;
    let bytes = resident_bytes()?.saturating_sub(before) as f64 / many_chunks as f64;
    let few = Stocked::fill(few_chunks, false)?;
    let [few_us, many_us] = look_up_in_turn([&few, &many], lookups)?;
    Ok([
        row(format!("index, memory for each of {many_chunks} chunks"), bytes, "B", "< 256 B"),
        row(format!("lookup of 1,000 keys in the index, {many_chunks} chunks"), many_us, "us", ""),
        row(format!("lookup, {many_chunks} chunks / {few_chunks} chunks"), many_us / few_us, "x", "<= 2 x"),
    ])
}

fn row(name: String, value: f64, unit: &str, goal: &str) -> Value {
    json!({ "name": name, "value": value, "unit": unit, "goal": goal })
}
