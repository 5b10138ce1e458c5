//! The CUDA kernels' own sources, compiled for the host, against the CPU truth and the `blake3` crate.

use std::process::Command;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_kernels::cuda::{Batch, Direction, MapIndex, Packed, SegmentTable};
use tender_kernels::{Move, PageMap, Segment};
use tender_tests::kernels::host::{Build, HostKernels, address_sanitizer, fake_driver};
use tender_tests::kernels::{Device, copies, hashes, table, upload_words};

/// Set in the process that runs the checks of this file with the sanitized build.
const SANITIZED: &str = "TENDER_TEST_SANITIZED_KERNELS";

fn kernels() -> HostKernels {
    let build = if std::env::var_os(SANITIZED).is_some() { Build::Sanitized } else { Build::Plain };
    HostKernels::load(build).expect("the host build")
}

/// Runs tests of this file with the sanitized build; its output and whether it passed.
fn sanitized(arguments: &[&str]) -> (String, bool) {
    fake_driver(Build::Sanitized).expect("the sanitized build");
    let done = Command::new(std::env::current_exe().expect("this program"))
        .args(arguments)
        .args(["--exact", "--nocapture"])
        .env(SANITIZED, "1")
        .env("LD_PRELOAD", address_sanitizer().expect("a compiler"))
        // The test's own runtime keeps memory to the end.
        .env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=0")
        .output()
        .expect("this program");
    let text = [done.stdout, done.stderr].map(|out| String::from_utf8_lossy(&out).into_owned()).concat();
    (text, done.status.success())
}

#[test]
fn the_sanitizers_find_nothing() {
    let (said, passed) = sanitized(&[
        "every_layout_is_gathered_and_scattered_as_the_truth_says",
        "one_launch_moves_all_layouts",
        "digests_are_those_of_blake3_at_every_edge",
        "digests_are_those_of_blake3_at_any_length",
    ]);
    assert!(passed && said.contains("4 passed"), "{said}");
}

#[test]
fn the_sanitizers_would_see_one_byte_too_many() {
    let (said, passed) = sanitized(&["one_byte_too_many", "--ignored"]);
    assert!(!passed && said.contains("AddressSanitizer: heap-buffer-overflow"), "{said}");
}

#[test]
#[ignore = "wrong on purpose: the sanitizers must end it"]
fn one_byte_too_many() {
    let kernels = kernels();
    let map = PageMap::new(vec![Segment::new(0, 100, &[], 100).unwrap()]).unwrap();
    let table = SegmentTable::new([&map]).unwrap();
    let (pages, packed) = (kernels.area(99, 0).unwrap(), kernels.area(100, 0).unwrap());
    let map = PageMap::new(vec![Segment::new(pages.address, 100, &[], 100).unwrap()]).unwrap();
    let words = upload_words(&kernels, SegmentTable::new([&map]).unwrap().words()).unwrap();
    let mut batch = Batch::new(&table, Direction::Gather);
    let at = Packed { address: packed.address, offset_bytes: 0, bytes: 100 };
    batch.push(MapIndex(0), &[Move { block: 0, slot: 0 }], at).unwrap();
    copies::run(&kernels, &batch, &words).unwrap();
}

#[test]
fn every_layout_is_gathered_and_scattered_as_the_truth_says() {
    let kernels = kernels();
    for case in table::cases() {
        for seed in 0..6 {
            let moved = copies::check(&kernels, &[&case], seed)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(moved > 0);
        }
    }
}

#[test]
fn one_launch_moves_all_layouts() {
    let (kernels, cases) = (kernels(), table::cases());
    for seed in 0..3 {
        copies::check(&kernels, &cases.iter().collect::<Vec<_>>(), seed).unwrap();
    }
}

#[test]
fn digests_are_those_of_blake3_at_every_edge() {
    hashes::check(&kernels(), &hashes::edge_lengths(), 1).unwrap();
}

#[test]
fn digests_are_those_of_blake3_at_any_length() {
    let mut rng = StdRng::seed_from_u64(7);
    let mut lengths: Vec<usize> = (0..40).map(|_| rng.random_range(0..8192)).collect();
    lengths.extend((0..6).map(|_| rng.random_range(0..1 << 20)));
    lengths.push(3 << 20 | 5);
    hashes::check(&kernels(), &lengths, 2).unwrap();
}
