//! The shared memory that holds chunk bytes.

mod error;

use std::path::PathBuf;

pub use error::StartError;

/// Where the arena lies and how large it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArenaConfig {
    /// Its file, on a memory filesystem.
    pub place: PathBuf,
    /// Bytes for chunks. The file has one page more, its header.
    pub bytes: u64,
    /// Touch every page before the daemon calls itself ready.
    pub prefault: bool,
    /// Leave the file when the daemon stops.
    pub keep: bool,
}
