//! How fast the disk tier is beside plain reads and writes of the same bytes: `tender-disk-speed FOLDER [MIB [ROUNDS]]`.
//!
//! Each round writes a file with pwrite and reads it with pread, past the page cache where the filesystem allows it, from
//! one thread; then it stores as many bytes and waits until all are on the disk tier (write-behind), and begins a daemon
//! with an empty arena that brings all of them back (promotion). Prints medians over the rounds.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use tender_daemon::config::{Config, DiskConfig};
use tender_proto::v1::ChunkState;
use tender_proto::{ChunkId, Descriptor};
use tender_tests::daemon::{Daemon, Setup, http_get};
use tender_tests::fixture::{self, PART};
use tender_tests::raw::Ask;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Four blocks of it are a chunk, and a piece of the plain file.
const BLOCK_BYTES: u64 = 1 << 20;
const CHUNK_BYTES: usize = 4 << 20;
/// What direct I/O asks of an address.
const ALIGNMENT: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(300);
const TICK: Duration = Duration::from_millis(2);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (folder, mib, rounds) = match words[..] {
        [folder] => (folder, 256, 3),
        [folder, mib] => (folder, mib.parse()?, 3),
        [folder, mib, rounds] => (folder, mib.parse()?, rounds.parse()?),
        _ => return Err("usage: tender-disk-speed FOLDER [MIB [ROUNDS]]".into()),
    };
    let chunks = (mib << 20) / CHUNK_BYTES as u64;
    let mut seen: Vec<[f64; 4]> = Vec::new();
    for _ in 0..rounds {
        let dir = tempfile::tempdir_in(folder)?;
        let plain = plain(&dir.path().join("plain"), chunks)?;
        let tier = tier(&dir.path().join("disk"), chunks).await?;
        let bytes = chunks as f64 * CHUNK_BYTES as f64;
        seen.push([plain.0, tier.0, plain.1, tier.1].map(|took| bytes / took.as_secs_f64() / 1e6));
    }
    println!("{chunks} chunks of {} MiB in {folder}, medians of {} rounds:", CHUNK_BYTES >> 20, seen.len());
    let [write, behind, read, promote] = [0, 1, 2, 3].map(|at| median(&seen, at));
    println!("  pwrite, one thread                    {write:>7.0} MB/s");
    println!("  stores until all are on the disk tier {behind:>7.0} MB/s  {:.2} of it", behind / write);
    println!("  pread, one thread                     {read:>7.0} MB/s");
    println!("  lookups until all are in the arena    {promote:>7.0} MB/s  {:.2} of it", promote / read);
    Ok(())
}

fn median(rounds: &[[f64; 4]], at: usize) -> f64 {
    let mut all: Vec<f64> = rounds.iter().map(|round| round[at]).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Writing and reading.
fn plain(path: &Path, pieces: u64) -> Result<(Duration, Duration), Failure> {
    let file = open(path)?;
    nix::fcntl::posix_fallocate(&file, 0, i64::try_from(pieces * CHUNK_BYTES as u64)?)?;
    let mut buffer = vec![7; CHUNK_BYTES + ALIGNMENT];
    let at = buffer.as_ptr().align_offset(ALIGNMENT);
    let piece = &mut buffer[at..at + CHUNK_BYTES];
    let begin = Instant::now();
    for n in 0..pieces {
        file.write_all_at(piece, n * CHUNK_BYTES as u64)?;
    }
    let written = begin.elapsed();
    let begin = Instant::now();
    for n in 0..pieces {
        file.read_exact_at(piece, n * CHUNK_BYTES as u64)?;
    }
    let read = begin.elapsed();
    fs::remove_file(path)?;
    Ok((written, read))
}

/// Past the page cache, if the filesystem has that.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    options.clone().custom_flags(OFlag::O_DIRECT.bits()).open(path).or_else(|_| options.open(path))
}

/// Write-behind and promotion.
async fn tier(folder: &Path, count: u64) -> Result<(Duration, Duration), Failure> {
    fs::create_dir(folder)?;
    let bytes = count * CHUNK_BYTES as u64;
    let setup = Setup { arena_bytes: 2 * bytes, scrub: false, ..Setup::default() };
    let with_disk = |config: &mut Config| {
        config.disk = Some(DiskConfig {
            path: folder.into(),
            bytes: 12 * bytes,
            // All that waits to be written fits in.
            segment_bytes: 2 * bytes,
            write_bytes_per_second: 1 << 40,
            reads: 8,
            discard: false,
        });
    };
    let model = fixture::small("disk speed", BLOCK_BYTES);
    let daemon = Daemon::start_with(setup, with_disk).await;
    let session = daemon.client().await.open_registered(&model).await;
    let begin = Instant::now();
    for n in 0..count {
        session.must_store(&model, fixture::chunk(n), PART, fixture::full(&model)).await;
    }
    on_disk(&daemon, count).await?;
    let behind = begin.elapsed();
    drop(session);
    daemon.stop().await;
    // With an arena of its own.
    let daemon = Daemon::start_with(setup, with_disk).await;
    on_disk(&daemon, count).await?;
    let promoted = promote(&daemon, &model, count).await?;
    daemon.stop().await;
    Ok((behind, promoted))
}

async fn promote(daemon: &Daemon, model: &Descriptor, count: u64) -> Result<Duration, Failure> {
    let session = daemon.client().await.open_registered(model).await;
    let chunks: Vec<ChunkId> = (0..count).map(fixture::chunk).collect();
    let begin = Instant::now();
    loop {
        let answer = session.lookup(model.digest(), &chunks, Ask::FETCH).await?;
        if answer.chunks.iter().all(|chunk| chunk.state() == ChunkState::Ready) {
            return Ok(begin.elapsed());
        }
        if begin.elapsed() > PATIENCE {
            return Err("the disk tier does not bring all back".into());
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Waits until so many chunks can be found on disk.
async fn on_disk(daemon: &Daemon, count: u64) -> Result<(), Failure> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let (_, text) = http_get(daemon.admin(), "/metrics").await?;
        let records = text.lines().find_map(|line| line.strip_prefix("tender_disk_records "));
        if records.is_some_and(|records| records.trim() == count.to_string()) {
            return Ok(());
        }
        tokio::time::sleep(TICK).await;
    }
    Err("not all is on the disk tier".into())
}
