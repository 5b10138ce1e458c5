//! `gpu-check` from beginning to end over the fake driver, and what it says where something is missing.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tender_tests::kernels::host::{Build, fake_driver};

fn run(libraries: &Path, environment: &[(&str, &str)]) -> (Output, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_tender-gpu-check"))
        .env("LD_LIBRARY_PATH", libraries)
        .envs(environment.iter().copied())
        .output()
        .expect("gpu-check");
    let text = [&done.stdout, &done.stderr].map(|out| String::from_utf8_lossy(out).into_owned()).concat();
    (done, text)
}

fn over_the_fake(environment: &[(&str, &str)]) -> (Output, String) {
    run(&fake_driver(Build::Plain).expect("the fake driver"), environment)
}

#[test]
fn the_whole_check_runs_over_the_fake_driver() {
    let (done, text) = over_the_fake(&[]);
    assert!(done.status.success(), "{text}");
    for wanted in [
        "all layouts in one launch",
        "gather",
        "scatter",
        "BLAKE3",
        "load end to end, shm",
        "matrix product beside loads",
        "fake, no measure",
    ] {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(!text.contains("WRONG") && !text.contains("reached"), "{text}");
}

#[test]
fn a_kernel_that_does_nothing_fails_the_check() {
    for kernel in ["tender_gather", "tender_scatter_small", "tender_blake3_roots"] {
        let (done, text) = over_the_fake(&[("TENDER_FAKE_CUDA_SKIP", kernel)]);
        assert_eq!(done.status.code(), Some(1), "{kernel}: {text}");
        assert!(text.contains("WRONG"), "{kernel}: {text}");
    }
}

#[test]
fn a_machine_without_a_device_is_told_so_in_one_sentence() {
    let (done, text) = over_the_fake(&[("TENDER_FAKE_CUDA_DEVICES", "0")]);
    assert_eq!((done.status.code(), text.lines().count()), (Some(2), 1), "{text}");
    assert!(text.contains("offers no device"), "{text}");
}

#[test]
fn a_machine_without_a_driver_is_told_so_in_one_sentence() {
    // Libraries that cannot be loaded hide those that the machine may have.
    let none = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1", "libnvcuda.so", "libnvcuda.so.1"] {
        fs::write(none.path().join(name), "no library").unwrap();
    }
    let (done, text) = run(none.path(), &[]);
    assert_eq!((done.status.code(), text.lines().count()), (Some(2), 1), "{text}");
    assert!(text.contains("no CUDA driver on this machine"), "{text}");
}

#[test]
fn a_lost_device_and_too_little_memory_end_the_check_with_a_reason() {
    for (failure, reason) in
        [("cuLaunchKernel=719@3", "LAUNCH_FAILED"), ("cuMemAlloc_v2=2@40", "OUT_OF_MEMORY")]
    {
        let (done, text) = over_the_fake(&[("TENDER_FAKE_CUDA_FAIL", failure)]);
        assert_eq!(done.status.code(), Some(1), "{text}");
        assert!(text.contains(reason), "{text}");
    }
}
