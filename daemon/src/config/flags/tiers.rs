//! How tiers below the arena are used, whichever they are.

use bytesize::ByteSize;
use clap::Args;
use serde::Deserialize;

use super::shown::{Change, shown};
use crate::config::values::Span;

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Tiers: where chunks are kept and found beyond the arena")]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct TierSettings {
    /// How long a lookup may take to ask the tiers for what the arena does not hold.
    #[arg(
        id = "tier-lookup-time",
        long = "tier-lookup-time",
        value_name = "TIME",
        env = "TENDERD_TIER_LOOKUP_TIME"
    )]
    pub(in crate::config) lookup_time: Option<Span>,
    /// A chunk that takes longer to come is given up.
    #[arg(
        id = "tier-fetch-time",
        long = "tier-fetch-time",
        value_name = "TIME",
        env = "TENDERD_TIER_FETCH_TIME"
    )]
    pub(in crate::config) fetch_time: Option<Span>,
    /// Chunks that one tier brings at one time.
    #[arg(id = "tier-fetches", long = "tier-fetches", value_name = "N", env = "TENDERD_TIER_FETCHES")]
    pub(in crate::config) fetches: Option<usize>,
    /// Bytes of all chunks that are on their way; more are not begun.
    #[arg(
        id = "tier-fetch-bytes",
        long = "tier-fetch-bytes",
        value_name = "SIZE",
        env = "TENDERD_TIER_FETCH_BYTES"
    )]
    pub(in crate::config) fetch_bytes: Option<ByteSize>,
    /// Bytes that each of disk and shared tier is given to keep in a second; 0 for no bound.
    #[arg(
        id = "tier-write-rate",
        long = "tier-write-rate",
        value_name = "SIZE",
        env = "TENDERD_TIER_WRITE_RATE"
    )]
    pub(in crate::config) write_rate: Option<ByteSize>,
    /// Requests that must have found a chunk before the shared tier is given it; 0: it is given everything at once.
    #[arg(
        id = "shared-min-hits",
        long = "shared-min-hits",
        value_name = "N",
        env = "TENDERD_SHARED_MIN_HITS"
    )]
    pub(in crate::config) shared_min_hits: Option<u32>,
}
overlay!(TierSettings { lookup_time, fetch_time, fetches, fetch_bytes, write_rate, shared_min_hits } {});
