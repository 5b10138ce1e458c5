//! Random work against a model, on the folder and on copies of it as a kill would leave them.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::FileExt;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const CHUNKS: u32 = 48;

/// The folder as it is now, for another daemon.
fn image(rig: &Rig) -> Arc<TempDir> {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(rig.folder.path()).unwrap() {
        let entry = entry.unwrap();
        // A file that was just renamed was not there when the power went.
        _ = fs::copy(entry.path(), copy.path().join(entry.file_name()));
    }
    Arc::new(copy)
}

fn drawn(random: &mut StdRng) -> ChunkId {
    chunk_of(random.random_range(0..3), random.random_range(0..CHUNKS))
}

/// Everything that is found was stored since the last reset, and what comes is right byte for byte.
async fn check(rig: &Rig, stored: &HashSet<ChunkId>, harmed: bool) -> usize {
    let mut found = 0;
    for group in 0..3 {
        for n in 0..CHUNKS {
            let chunk = chunk_of(group, n);
            if rig.find(chunk).await.is_none() {
                continue;
            }
            assert!(stored.contains(&chunk), "{chunk} came back");
            match rig.fetch(chunk).await {
                Ok(()) => found += 1,
                Err(FetchError::Corrupt | FetchError::Gone) if harmed => {}
                Err(error) => panic!("{chunk}: {error}"),
            }
        }
    }
    found
}

async fn run(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut rig = Rig::new();
    let mut stored = HashSet::new();
    for step in 0..160 {
        match random.random_range(0..100) {
            0..60 => {
                let chunk = drawn(&mut random);
                assert_eq!(rig.keep(chunk).await, Kept::Yes, "seed {seed} step {step}");
                stored.insert(chunk);
                rig.fetch(chunk).await.unwrap();
            }
            60..90 => {
                let chunk = drawn(&mut random);
                match rig.fetch(chunk).await {
                    Ok(()) => assert!(stored.contains(&chunk), "seed {seed} step {step}: {chunk} came back"),
                    Err(error) => assert_eq!(error, FetchError::Gone, "seed {seed} step {step}"),
                }
            }
            90..92 => {
                rig.disk.reset(&rig.namespace(), None).await.unwrap();
                stored.clear();
            }
            92..95 => {
                let before = check(&rig, &stored, false).await;
                rig = rig.reopen().await;
                let after = check(&rig, &stored, false).await;
                assert!(after >= before, "seed {seed} step {step}: {after} of {before} after a restart");
            }
            95..98 => {
                let before = check(&rig, &stored, false).await;
                let killed = Rig::on(image(&rig), |_| ());
                killed.recovered().await;
                assert!(
                    check(&killed, &stored, false).await >= before,
                    "seed {seed} step {step}: lost in a kill"
                );
            }
            _ => {
                let copy = image(&rig);
                harm(copy.path(), &mut random);
                let harmed = Rig::on(copy, |_| ());
                harmed.recovered().await;
                check(&harmed, &stored, true).await;
            }
        }
    }
}

/// Flips bits, cuts a segment, and zeroes a range, as a power cut or a bad disk may.
fn harm(folder: &Path, random: &mut StdRng) {
    for _ in 0..random.random_range(1..6) {
        let path = folder.join(folder::segment_name(random.random_range(0..6)));
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let len = file.metadata().unwrap().len().max(1);
        let at = random.random_range(0..len);
        match random.random_range(0..3) {
            0 => file.write_all_at(&[random.random()], at).unwrap(),
            1 => file.set_len(at).unwrap(),
            _ => file.write_all_at(&vec![0; random.random_range(1..30_000)], at).unwrap(),
        }
    }
}

#[tokio::test]
async fn the_tier_is_a_map_that_may_forget_and_never_lies() {
    for seed in 0..8 {
        run(seed).await;
    }
}

/// Images of a folder that is being written, and reset, at that moment: what is found there is right and of now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_the_middle_of_writes_loses_and_never_lies() {
    let rig = Arc::new(Rig::new());
    let mut stored = HashSet::new();
    for round in 0..12u32 {
        let chunks: Vec<_> = (0..8u16).map(|n| chunk_of(n % 3, round * 4 + u32::from(n))).collect();
        let open: Vec<_> = chunks.iter().map(|&chunk| (chunk, rig.store(chunk, FULL))).collect();
        let writer = {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move {
                for (chunk, open) in &open {
                    rig.disk.keep(&rig.namespace(), *chunk, open).await;
                }
            })
        };
        stored.extend(chunks);
        let copy = image(&rig);
        let killed = Rig::on(copy, |_| ());
        killed.recovered().await;
        for &chunk in &stored {
            if killed.find(chunk).await.is_some() {
                match killed.fetch(chunk).await {
                    Ok(()) | Err(FetchError::Corrupt) => {}
                    Err(error) => panic!("round {round} {chunk}: {error}"),
                }
            }
        }
        for n in 0..200 {
            let chunk = chunk(n);
            assert!(
                stored.contains(&chunk) || killed.find(chunk).await.is_none(),
                "round {round}: {chunk} came back"
            );
        }
        writer.await.unwrap();
        rig.empty_arena();
        if round % 4 == 3 {
            rig.disk.reset(&rig.namespace(), None).await.unwrap();
            stored.clear();
        }
    }
}
