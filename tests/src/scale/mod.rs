//! Many daemons with one directory, on paper and by simulation: discrete events, one seed, no sockets.
//!
//! What is simulated is the policy: each daemon keeps what it has used last, says in batches what it holds, says it again
//! before that expires, asks the directory once for all that it lacks of a prefix, fetches each chunk once however many
//! wait for it, and computes what nobody holds. `formulas` says the same without a simulation; `docs/scaling.md` has both.

mod formulas;
mod lru;
mod simulation;
mod workload;

pub use formulas::{Expected, expect};
pub use simulation::simulate;
pub use workload::{Request, ZipfWorkload, read_trace};

/// How the fleet and its directory behave. Times are in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fleet {
    /// Daemons, each with engines of its own.
    pub daemons: usize,
    /// Chunks that one arena holds.
    pub arena_chunks: usize,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// A daemon speaks to the directory this often.
    pub tick_s: f64,
    /// Life of what it said.
    pub ttl_s: f64,
    /// It says everything again this many times in that life.
    pub rounds_per_ttl: u32,
    /// Holders that the directory names for a chunk.
    pub max_holders: usize,
    /// To bring a chunk from another daemon.
    pub fetch_s: f64,
    /// To compute one.
    pub compute_s: f64,
    /// Whether serving others counts as a use, so that it keeps a chunk in the arena.
    pub serving_is_use: bool,
}

impl Fleet {
    /// The directory's defaults, and chunks of 256 tokens of a model with 128 KiB of KV a token.
    pub fn of(daemons: usize) -> Self {
        Self {
            daemons,
            arena_chunks: 2000,
            chunk_bytes: 32 << 20,
            tick_s: 0.1,
            ttl_s: 300.0,
            rounds_per_ttl: 3,
            max_holders: 8,
            fetch_s: 0.03,
            compute_s: 0.1,
            serving_is_use: true,
        }
    }
}

/// What happened after the warm-up.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Report {
    /// Seconds that were measured.
    pub seconds: f64,
    /// Requests.
    pub requests: u64,
    /// Chunks that requests needed.
    pub chunks: u64,
    /// Chunks that were there.
    pub local: u64,
    /// Chunks that came from another daemon, or were coming already.
    pub peer: u64,
    /// Chunks that were computed.
    pub none: u64,
    /// Questions to the directory, each for all that a request lacks.
    pub lookups: u64,
    /// Entries that these questions named.
    pub looked_up_chunks: u64,
    /// Entries written because a chunk became ready.
    pub published: u64,
    /// Entries taken back because a chunk went.
    pub withdrawn: u64,
    /// Entries said again.
    pub refreshed: u64,
    /// Chunks fetched.
    pub fetches: u64,
    /// Fetches that found the chunk gone.
    pub stale: u64,
    /// Chunks that were wanted while they were already coming or being computed.
    pub duplicates_avoided: u64,
    /// Entries in the directory at the end.
    pub entries: u64,
}

impl Report {
    /// A share of the chunks that were needed.
    pub fn share(&self, chunks: u64) -> f64 {
        ratio(chunks as f64, self.chunks as f64)
    }
    /// So many each second.
    pub fn rate(&self, count: u64) -> f64 {
        ratio(count as f64, self.seconds)
    }
    /// Commands that the directory executes each second: one for each entry that is asked for, and two for each that is
    /// written (the word and its expiry).
    pub fn directory_commands_per_second(&self) -> f64 {
        self.rate(self.looked_up_chunks + 2 * (self.published + self.refreshed) + self.withdrawn)
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
