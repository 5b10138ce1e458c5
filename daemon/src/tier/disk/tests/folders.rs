//! Folders as they should not be.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use super::super::format::{FORMAT, Superblock};
use super::*;

fn poke(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

fn peek(path: &Path, at: u64) -> u8 {
    let mut byte = [0];
    fs::File::open(path).unwrap().read_exact_at(&mut byte, at).unwrap();
    byte[0]
}

fn refused(config: &DiskConfig) -> DiskError {
    Disk::open(config, Duration::ZERO).unwrap_err()
}

/// Chunks 0 to 3 in the first segment: their records begin at 4 KiB and have 20 KiB each.
async fn four() -> Rig {
    let rig = Rig::new();
    for n in 0..4 {
        assert_eq!(rig.keep(chunk(n)).await, Kept::Yes);
    }
    rig
}

const RECORD: u64 = 20 << 10;
fn record(n: u64) -> u64 {
    4096 + n * RECORD
}

#[tokio::test]
async fn a_flipped_bit_is_found_before_anybody_sees_it() {
    let rig = four().await;
    let at = record(1) + 4096 + 7777;
    poke(&rig.segment(0), at, &[peek(&rig.segment(0), at) ^ 0x10]);
    assert_eq!(rig.fetch(chunk(1)).await, Err(FetchError::Corrupt));
    assert_eq!(rig.find(chunk(1)).await, None, "taken out");
    assert_eq!(rig.fetch(chunk(1)).await, Err(FetchError::Gone));
    assert_eq!(rig.disk.stats().corrupt_records, 1);
    rig.fetch(chunk(2)).await.unwrap();
    assert_eq!(rig.keep(chunk(1)).await, Kept::Yes, "it may come again");
    rig.fetch(chunk(1)).await.unwrap();
}

#[tokio::test]
async fn a_damaged_second_part_leaves_no_pending_chunk_and_no_reservation() {
    let rig = Rig::new();
    let chunk = chunk_of(1, 1);
    assert_eq!(rig.keep(chunk).await, Kept::Yes);
    // Behind the superblock's block, the header and the first part.
    let at = 4096 + 4096 + (16 << 10) + 77;
    poke(&rig.segment(0), at, &[peek(&rig.segment(0), at) ^ 1]);
    assert_eq!(rig.fetch(chunk).await, Err(FetchError::Corrupt));
    let audit = rig.bench.engine.audit().unwrap();
    assert_eq!((audit.pending_chunks, audit.reservations, audit.writers, audit.inflight_bytes), (0, 0, 0, 0));
    assert_eq!(rig.keep(chunk).await, Kept::Yes, "whoever has it stores it at once");
    rig.fetch(chunk).await.unwrap();
}

#[tokio::test]
async fn another_chunks_record_is_not_taken_for_this_one() {
    let rig = four().await;
    // Whole, with a good checksum, in a place where the index expects another.
    let all = fs::read(rig.segment(0)).unwrap();
    let record = |n: u64| usize::try_from(record(n)).unwrap()..usize::try_from(record(n + 1)).unwrap();
    poke(&rig.segment(0), record(1).start as u64, &all[record(2)]);
    assert_eq!(rig.fetch(chunk(1)).await, Err(FetchError::Corrupt));
    rig.fetch(chunk(2)).await.unwrap();
}

#[tokio::test]
async fn recovery_reads_headers_and_no_bytes() {
    let rig = four().await;
    let zeroes = vec![0; 16 << 10];
    (0..4).for_each(|n| poke(&rig.segment(0), record(n) + 4096, &zeroes));
    let rig = rig.reopen().await;
    assert_eq!(rig.disk.stats().recovered_records, 4, "found without a look at them");
    assert_eq!(rig.fetch(chunk(0)).await, Err(FetchError::Corrupt), "and noticed when it counts");
}

#[tokio::test]
async fn a_half_written_record_ends_the_log_and_the_next_one_takes_its_place() {
    let rig = four().await;
    let path = rig.segment(0);
    let folder = Arc::clone(&rig.folder);
    drop(rig);
    // The daemon died in the middle of the header of chunk 3.
    poke(&path, record(3) + 80, &[0; 4000]);
    let rig = Rig::on(folder, |_| ());
    rig.recovered().await;
    let stats = rig.disk.stats();
    assert_eq!((stats.recovered_records, stats.torn_records), (3, 1));
    assert_eq!(rig.find(chunk(3)).await, None);
    assert_eq!(rig.keep(chunk(4)).await, Kept::Yes);
    let rig = rig.reopen().await;
    assert_eq!(rig.disk.stats().used_segments, 1, "written on in the same segment");
    for n in [0, 1, 2, 4] {
        rig.fetch(chunk(n)).await.unwrap();
    }
}

#[tokio::test]
async fn a_cut_renamed_or_strange_segment_is_dropped_and_counted() {
    let rig = four().await;
    for n in 4..8 {
        rig.keep(chunk(n)).await;
    }
    let (first, second, config) = (rig.segment(0), rig.segment(1), rig.config.clone());
    let folder = Arc::clone(&rig.folder);
    drop(rig);
    // Cut in the bytes of chunk 1.
    OpenOptions::new().write(true).open(&first).unwrap().set_len(record(1) + 6000).unwrap();
    let rig = Rig::on(Arc::clone(&folder), |_| ());
    rig.recovered().await;
    rig.fetch(chunk(0)).await.unwrap();
    assert_eq!(rig.fetch(chunk(1)).await, Err(FetchError::Corrupt));
    assert_eq!(rig.find(chunk(2)).await, None);
    assert_eq!(fs::metadata(&first).unwrap().len(), SEGMENT_BYTES, "whole again");
    rig.fetch(chunk(7)).await.unwrap();
    drop(rig);
    // Each under the other's name.
    let aside = folder.path().join("segment-000099");
    fs::rename(&first, &aside).unwrap();
    fs::rename(&second, &first).unwrap();
    fs::rename(&aside, &second).unwrap();
    let rig = Rig::on(Arc::clone(&folder), |_| ());
    rig.recovered().await;
    assert_eq!((rig.disk.stats().records, rig.disk.stats().foreign_records), (0, 2));
    assert_eq!(rig.keep(chunk(8)).await, Kept::Yes);
    drop(rig);
    // A record of a format to come: it and what is behind it.
    let rig = Rig::on(Arc::clone(&folder), |config| config.discard = true);
    rig.keep(chunk(0)).await;
    rig.keep(chunk(1)).await;
    drop(rig);
    poke(&first, record(1) + 8, &(FORMAT + 1).to_le_bytes());
    let rig = Rig::on(folder, |_| ());
    rig.recovered().await;
    assert_eq!((rig.disk.stats().recovered_records, rig.disk.stats().foreign_records), (1, 1));
    assert_eq!(rig.config, config);
}

#[tokio::test]
async fn a_folder_of_another_format_or_owner_is_left_untouched() {
    let rig = four().await;
    let (config, folder) = (rig.config.clone(), Arc::clone(&rig.folder));
    drop(rig);
    let superblock = folder.path().join("superblock");
    let good = fs::read(&superblock).unwrap();
    Superblock::decode(&good).unwrap();
    let before = fs::read(folder.path().join(folder::segment_name(0))).unwrap();
    poke(&superblock, 8, &(FORMAT + 1).to_le_bytes());
    assert!(matches!(refused(&config), DiskError::OtherFormat { found, .. } if found == FORMAT + 1));
    fs::write(&superblock, &good[..30]).unwrap();
    assert!(matches!(refused(&config), DiskError::Damaged { .. }));
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    assert!(matches!(refused(&DiskConfig { discard: true, ..config.clone() }), DiskError::Foreign { .. }));
    assert_eq!(fs::read(folder.path().join(folder::segment_name(0))).unwrap(), before);
    fs::remove_file(folder.path().join("notes.txt")).unwrap();
    let rig = Rig::on(folder, |config| config.discard = true);
    rig.recovered().await;
    assert_eq!(rig.disk.stats().records, 0, "given up, as the operator said");
}

#[tokio::test]
async fn a_second_daemon_is_told_who_has_the_folder() {
    let rig = four().await;
    match refused(&rig.config) {
        DiskError::InUse { pid, .. } => assert_eq!(pid, std::process::id()),
        other => panic!("{other}"),
    }
    rig.fetch(chunk(0)).await.unwrap();
    // One that waits gets it when the first has let go.
    let config = rig.config.clone();
    let folder = Arc::clone(&rig.folder);
    let waits = tokio::task::spawn_blocking(move || Disk::open(&config, Duration::from_secs(60)).map(drop));
    drop(rig);
    waits.await.unwrap().unwrap();
    drop(folder);
}

#[test]
fn a_missing_or_full_folder_is_an_error_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let missing = config(&dir.path().join("nowhere"));
    assert!(refused(&missing).to_string().contains("make the folder first"));
    let huge = DiskConfig { bytes: 1 << 52, segment_bytes: 1 << 50, ..config(dir.path()) };
    let refusal = refused(&huge).to_string();
    assert!(
        refusal.contains("take the room of") && refusal.contains(&dir.path().display().to_string()),
        "{refusal}"
    );
}

#[tokio::test]
async fn another_size_keeps_what_it_can_and_other_segments_begin_anew() {
    let rig = four().await;
    let folder = Arc::clone(&rig.folder);
    drop(rig);
    let rig = Rig::on(Arc::clone(&folder), |config| config.bytes -= 2 * SEGMENT_BYTES);
    rig.recovered().await;
    rig.fetch(chunk(3)).await.unwrap();
    assert_eq!(rig.disk.stats().capacity_bytes, 4 * SEGMENT_BYTES);
    assert!(!rig.segment(4).exists());
    drop(rig);
    let rig = Rig::on(folder, |config| config.segment_bytes = 64 << 10);
    rig.recovered().await;
    assert_eq!(rig.disk.stats().records, 0);
    assert_eq!(rig.keep(chunk(0)).await, Kept::Yes);
}
