//! How large and how long everything is, cut to what the machine has.

use std::time::Duration;

use bytesize::ByteSize;

use super::failed;
use crate::error::ClientError;

/// Chunks of 16 MiB, and two of them.
pub(super) const LEAST_BYTES: u64 = 32 << 20;
pub(super) const MOST_BYTES: u64 = 4 << 30;
/// A round's bytes lie this often in shared memory: the arena has room for four rounds, and a worker's staging for one.
const SHARED_COPIES: u64 = 6;
/// And this often in memory altogether: each measurement has an engine's cache of its own, which stays.
const ALL_COPIES: u64 = 18;

/// Of every measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    /// Bytes that every round moves.
    pub(super) bytes: usize,
    /// Rounds of each measurement, after one to warm up.
    pub(super) rounds: u32,
    /// After a session is up: it makes its memory present in the background, which takes a core from what is measured.
    pub(super) settle: Duration,
    pub(super) lookups: usize,
    /// Steps of the scheduler.
    pub(super) steps: usize,
    /// How long the idle daemon is watched.
    pub(super) watch: Duration,
    /// Figures say that everything runs, not how fast.
    pub(super) quick: bool,
}

impl Sizes {
    pub(super) fn full(bytes: ByteSize, rounds: u32) -> Result<Self, ClientError> {
        if !(LEAST_BYTES..=MOST_BYTES).contains(&bytes.as_u64()) {
            return Err(ClientError::Config {
                key: "bytes",
                value: bytes.to_string(),
                advice: "choose 32 MiB to 4 GiB",
            });
        }
        Ok(Self {
            bytes: to_usize(bytes.as_u64()),
            rounds,
            settle: Duration::from_secs(3),
            lookups: 1_000,
            steps: 1_000,
            watch: Duration::from_secs(10),
            quick: false,
        })
    }

    pub(super) fn quick() -> Self {
        Self {
            bytes: to_usize(LEAST_BYTES),
            rounds: 1,
            settle: Duration::ZERO,
            lookups: 20,
            steps: 20,
            watch: Duration::from_millis(200),
            quick: true,
        }
    }

    /// Makes rounds smaller where the machine has no room for them, and says so.
    pub(super) fn fit(&mut self) -> Result<Option<String>, ClientError> {
        let (memory, shared) = (available_memory()?, free_shared_memory()?);
        let Some(bytes) = fitting(self.bytes as u64, memory, shared) else {
            let why = format!(
                "the smallest rounds need {} of memory and {} of /dev/shm; {} and {} are free",
                ByteSize(LEAST_BYTES * ALL_COPIES),
                ByteSize(LEAST_BYTES * SHARED_COPIES),
                ByteSize(memory),
                ByteSize(shared)
            );
            return Err(failed("the benchmark", why));
        };
        let wanted = ByteSize(std::mem::replace(&mut self.bytes, to_usize(bytes)) as u64);
        let cut = bytes < wanted.as_u64();
        Ok(cut.then(|| {
            format!(
                "Rounds move {} instead of {wanted}: {} of memory and {} of /dev/shm are free.",
                ByteSize(bytes),
                ByteSize(memory),
                ByteSize(shared)
            )
        }))
    }
}

/// Bytes of a round that there is room for, whole chunks of every size; `None` if that is less than the least.
fn fitting(wanted: u64, memory: u64, shared: u64) -> Option<u64> {
    let room = (memory / ALL_COPIES).min(shared / SHARED_COPIES);
    if wanted <= room {
        return Some(wanted);
    }
    Some(room - room % LEAST_BYTES).filter(|&bytes| bytes > 0)
}

fn available_memory() -> Result<u64, ClientError> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|error| failed("/proc/meminfo", error))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| failed("/proc/meminfo", "it does not say what is available"))
}

fn free_shared_memory() -> Result<u64, ClientError> {
    let stat = nix::sys::statvfs::statvfs("/dev/shm").map_err(|error| failed("/dev/shm", error))?;
    Ok(stat.blocks_available() * stat.fragment_size())
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_cut_to_what_there_is_in_whole_steps() {
        let (much, mib) = (1 << 40, 1 << 20);
        assert_eq!(fitting(256 * mib, much, much), Some(256 * mib));
        assert_eq!(fitting(256 * mib, 18 * 100 * mib, much), Some(96 * mib));
        assert_eq!(fitting(256 * mib, much, 6 * 40 * mib), Some(32 * mib));
        assert_eq!(fitting(256 * mib, much, 6 * 31 * mib), None);
    }

    #[test]
    fn rounds_that_are_no_rounds_are_refused() {
        assert!(Sizes::full(ByteSize::mib(31), 1).is_err());
        assert!(Sizes::full(ByteSize::gib(5), 1).is_err());
        assert!(Sizes::full(ByteSize::mib(32), 1).is_ok());
    }
}
