//! Why an arena cannot be opened, in words that an operator can act on.

use std::io;
use std::path::PathBuf;

/// The daemon cannot start with this arena. No file of its own making is left behind.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The filesystem has too little room.
    #[error(
        "the arena {} needs {needed_bytes} bytes, but its filesystem has {available_bytes} available: choose a \
         smaller arena, another directory, or enlarge the filesystem (for /dev/shm: mount option size=)",
        place.display()
    )]
    FilesystemTooSmall {
        /// The arena's file.
        place: PathBuf,
        /// What the configured arena takes.
        needed_bytes: u64,
        /// What there is.
        available_bytes: u64,
    },
    /// The control group's memory limit leaves too little.
    #[error(
        "the arena {} needs {needed_bytes} bytes of memory, but the control group ({}) leaves {available_bytes}: \
         choose a smaller arena or raise the container's memory limit",
        place.display(), limit.display()
    )]
    MemoryLimitTooSmall {
        /// The arena's file.
        place: PathBuf,
        /// The file that states the limit.
        limit: PathBuf,
        /// What the configured arena takes.
        needed_bytes: u64,
        /// What the limit leaves beside what is used already.
        available_bytes: u64,
    },
    /// The configured size holds no chunk, or more than one arena can.
    #[error("an arena of {bytes} bytes is not possible: choose 64 KiB to 8 TiB")]
    ImpossibleSize {
        /// As configured.
        bytes: u64,
    },
    /// Another daemon serves this arena.
    #[error("the arena {} is in use by the process {pid}: stop it first, or give this daemon its own arena", place.display())]
    InUse {
        /// The arena's file.
        place: PathBuf,
        /// Who holds it, as its header says.
        pid: u32,
    },
    /// Another daemon gave away what is not an arena of this shape. It was not touched.
    #[error(
        "the arena {} that was handed over has another shape than this program expects: run tenderd of one version, \
         or stop the old daemon and start this one without --take-over",
        place.display()
    )]
    NotTheSame {
        /// The arena's file.
        place: PathBuf,
    },
    /// There is a file, and it is not an arena. It was not touched.
    #[error("{} is not an arena of this program and was left untouched: move it away or choose another path", place.display())]
    Foreign {
        /// The file.
        place: PathBuf,
    },
    /// There is an arena of a newer format. It was not touched.
    #[error(
        "the arena {} has format {found}, this program knows {known} and left it untouched: run the newer daemon, \
         or move the file away",
        place.display()
    )]
    NewerFormat {
        /// The arena's file.
        place: PathBuf,
        /// Its format.
        found: u32,
        /// The newest that this program knows.
        known: u32,
    },
    /// The system refused something.
    #[error("cannot {doing} the arena {}: {source}", place.display())]
    Io {
        /// The arena's file.
        place: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}
