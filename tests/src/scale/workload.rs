//! What engines ask for.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// One prompt: the chunks of its prefix in order, each named by all before it too.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// Seconds since the start.
    pub at_s: f64,
    /// Which chunks.
    pub chunks: Vec<u64>,
}

/// Shared prefixes whose popularity follows Zipf's law, each followed by chunks that nobody asks for again.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ZipfWorkload {
    /// Different prefixes.
    pub prefixes: usize,
    /// Prefix k is asked for in proportion to 1/k to this power.
    pub exponent: f64,
    /// Chunks of a prefix.
    pub prefix_chunks: u64,
    /// Chunks behind it.
    pub own_chunks: u64,
    /// All engines together.
    pub requests_per_second: f64,
}

impl ZipfWorkload {
    /// How often each prefix is asked for, as a share.
    pub fn popularity(&self) -> Vec<f64> {
        let weights: Vec<f64> = (1..=self.prefixes).map(|k| (k as f64).powf(-self.exponent)).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    /// So many requests, by chance in time (Poisson) and in their prefix.
    pub fn requests(&self, count: usize, seed: u64) -> Vec<Request> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut sums = self.popularity();
        for k in 1..sums.len() {
            sums[k] += sums[k - 1];
        }
        let mut at_s = 0.0;
        // Own chunks are named after all that prefixes can be.
        let mut own = self.prefixes as u64 * self.prefix_chunks;
        let request = |_| {
            at_s -= random.random_range(f64::EPSILON..1.0f64).ln() / self.requests_per_second;
            let drawn: f64 = random.random();
            let prefix = sums.partition_point(|&sum| sum < drawn).min(self.prefixes - 1) as u64;
            let first = prefix * self.prefix_chunks;
            let shared = first..first + self.prefix_chunks;
            let chunks = shared.chain(own..own + self.own_chunks).collect();
            own += self.own_chunks;
            Request { at_s, chunks }
        };
        (0..count).map(request).collect()
    }
}

/// Reads a trace: a JSON object a line with `timestamp` in milliseconds and `hash_ids`. `copies` tenants replay it, each
/// with chunks of its own and begun a bit later, so that a fleet has enough to do.
pub fn read_trace(text: &str, copies: u64) -> Result<Vec<Request>, String> {
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |what: &str| format!("line {}: {what}", number + 1);
        let row: serde_json::Value = serde_json::from_str(line).map_err(|error| wrong(&error.to_string()))?;
        let at_ms = row["timestamp"].as_f64().ok_or_else(|| wrong("no timestamp"))?;
        let ids = row["hash_ids"].as_array().ok_or_else(|| wrong("no hash_ids"))?;
        let ids: Option<Vec<u64>> = ids.iter().map(serde_json::Value::as_u64).collect();
        let ids = ids.ok_or_else(|| wrong("a hash id is no number"))?;
        for copy in 0..copies {
            let chunks = ids.iter().map(|id| id * copies + copy).collect();
            let later_s = copy as f64 * 0.37 % 60.0;
            all.push(Request { at_s: at_ms / 1000.0 + later_s, chunks });
        }
    }
    all.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    Ok(all)
}
