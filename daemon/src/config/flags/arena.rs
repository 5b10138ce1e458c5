//! The shared memory that holds the chunks.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::Args;
use serde::Deserialize;

use super::shown::{Change, shown};
use crate::engine::Eviction;

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Arena: the shared memory that holds the chunks")]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct ArenaSettings {
    /// Bytes for chunks. All of it is reserved at the start; a filesystem or memory limit that is too small is an
    /// error then, not later.
    #[arg(id = "arena-size", long = "arena-size", value_name = "SIZE", env = "TENDERD_ARENA_SIZE")]
    pub(in crate::config) size: Option<ByteSize>,
    /// File of the arena, on a memory filesystem.
    #[arg(id = "arena-path", long = "arena-path", value_name = "FILE", env = "TENDERD_ARENA_PATH")]
    pub(in crate::config) path: Option<PathBuf>,
    /// Touch every page in the background after the start; ready once done. A first touch is many times slower than
    /// a later one.
    #[arg(
        id = "arena-prefault",
        long = "arena-prefault",
        value_name = "true|false",
        env = "TENDERD_ARENA_PREFAULT"
    )]
    pub(in crate::config) prefault: Option<bool>,
    /// Leave the file when the daemon ends, so that the next one serves at once what it holds. A daemon that is killed
    /// leaves it in any case.
    #[arg(id = "arena-keep", long = "arena-keep", value_name = "true|false", env = "TENDERD_ARENA_KEEP")]
    pub(in crate::config) keep: Option<bool>,
    /// Stored bytes that are read again each second and compared with their digests; 0 for none. What has changed is
    /// taken out, counted and logged.
    #[arg(
        id = "arena-scrub-rate",
        long = "arena-scrub-rate",
        value_name = "SIZE",
        env = "TENDERD_ARENA_SCRUB_RATE"
    )]
    pub(in crate::config) scrub_rate: Option<ByteSize>,
    /// Which chunk goes when room is needed: two-queue, first what was not used again since it was stored; lru, what was
    /// used longest ago.
    #[arg(id = "eviction", long = "eviction", value_name = "two-queue|lru", env = "TENDERD_EVICTION")]
    pub(in crate::config) eviction: Option<Eviction>,
    /// Begin with nothing, whatever the arena's file holds: also if a newer tenderd or somebody else made it.
    #[arg(
        id = "discard-arena",
        long = "discard-arena",
        value_name = "true|false",
        env = "TENDERD_DISCARD_ARENA",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub(in crate::config) discard: Option<bool>,
}
overlay!(ArenaSettings { size, path, prefault, keep, scrub_rate, eviction, discard } {});
