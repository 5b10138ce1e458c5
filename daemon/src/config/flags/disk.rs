//! Files of this host.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::Args;
use serde::Deserialize;

use super::shown::{Change, shown};

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Disk: files of this host that keep chunks which leave the arena")]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct DiskSettings {
    /// Folder for the files, of its own and there already; nothing is kept on disk without one.
    #[arg(id = "disk-path", long = "disk-path", value_name = "DIR", env = "TENDERD_DISK_PATH")]
    pub(in crate::config) path: Option<PathBuf>,
    /// Bytes that the folder may take. All of it is reserved at the start.
    #[arg(id = "disk-size", long = "disk-size", value_name = "SIZE", env = "TENDERD_DISK_SIZE")]
    pub(in crate::config) size: Option<ByteSize>,
    /// Bytes of one file. What is oldest is given up a file at a time; a chunk must fit into one.
    #[arg(
        id = "disk-segment-size",
        long = "disk-segment-size",
        value_name = "SIZE",
        env = "TENDERD_DISK_SEGMENT_SIZE"
    )]
    pub(in crate::config) segment_size: Option<ByteSize>,
    /// Bytes that are written each second at most; chunks beyond that are not kept on disk.
    #[arg(
        id = "disk-write-rate",
        long = "disk-write-rate",
        value_name = "SIZE",
        env = "TENDERD_DISK_WRITE_RATE"
    )]
    pub(in crate::config) write_rate: Option<ByteSize>,
    /// Chunks that are read at one time.
    #[arg(id = "disk-reads", long = "disk-reads", value_name = "N", env = "TENDERD_DISK_READS")]
    pub(in crate::config) reads: Option<usize>,
    /// Begin with nothing, whatever the folder holds: also if another version of tenderd wrote it.
    #[arg(
        id = "discard-disk",
        long = "discard-disk",
        value_name = "true|false",
        env = "TENDERD_DISCARD_DISK",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub(in crate::config) discard: Option<bool>,
}
overlay!(DiskSettings { path, size, segment_size, write_rate, reads, discard } {});
