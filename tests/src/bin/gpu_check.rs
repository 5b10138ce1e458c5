//! Checks the GPU path on the machine at hand and prints a table: `scripts/gpu-check.sh` builds and runs it.
//!
//! Exits with 0 if everything was right, 1 if something was wrong, and 2 if there is no device to check.

use std::process::ExitCode;

use tender_tests::kernels::gpu::Gpu;
use tender_tests::kernels::report::Report;
use tender_tests::kernels::{Outcome, copies, end_to_end, hashes, overlap, speed, table};

/// A part of the check: what it is about, and what it does.
type Section = (&'static str, fn(&Gpu, &mut Report) -> Outcome<()>);

const SECTIONS: [Section; 5] = [
    ("Copies", check_copies),
    ("Digests", check_digests),
    ("End to end", end_to_end_caches),
    ("Rates", measure_rates),
    ("Beside a matrix product", overlap::measure),
];

/// Layouts that are named before the rest is given up: a lost device fails them all.
const MOST_WRONG: u32 = 5;

fn main() -> ExitCode {
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    println!("device: {}\nkernels: {}", gpu.name, gpu.code);
    let mut report = Report::new(gpu.is_fake());
    for (name, section) in SECTIONS {
        println!("\n=== {name}");
        if let Err(error) = section(&gpu, &mut report) {
            println!("{error}");
            report.checked(name, "", Err(format!("not finished: {error}").into()));
        }
    }
    println!("\n=== Table\n{report}");
    match report.wrong() {
        0 => ExitCode::SUCCESS,
        wrong => {
            eprintln!("error: {wrong} checks failed");
            ExitCode::FAILURE
        }
    }
}

fn check_copies(gpu: &Gpu, report: &mut Report) -> Outcome<()> {
    let cases = table::cases();
    let seeds: u64 = if gpu.is_fake() { 1 } else { 8 };
    for case in &cases {
        if report.wrong() >= MOST_WRONG {
            return Err("too much is wrong to go on".into());
        }
        let outcome = (0..seeds).try_for_each(|seed| copies::check(gpu, &[case], seed).map(drop));
        if outcome.is_err() {
            report.checked("gather and scatter", &case.name, outcome);
        }
    }
    let all: Vec<_> = cases.iter().collect();
    let together = (0..seeds).try_for_each(|seed| copies::check(gpu, &all, seed).map(drop));
    println!("{} layouts x {seeds} seeds, each by itself and all in one launch", cases.len());
    if report.wrong() == 0 {
        report.checked("gather and scatter", &format!("{} layouts", cases.len()), Ok(()));
    }
    report.checked("all layouts in one launch", &format!("{} layouts", cases.len()), together);
    Ok(())
}

fn check_digests(gpu: &Gpu, report: &mut Report) -> Outcome<()> {
    let lengths = hashes::edge_lengths();
    println!("{} lengths from {} to {} bytes", lengths.len(), lengths[0], lengths[lengths.len() - 1]);
    report.checked("digests", &format!("{} lengths", lengths.len()), hashes::check(gpu, &lengths, 3));
    Ok(())
}

fn end_to_end_caches(gpu: &Gpu, report: &mut Report) -> Outcome<()> {
    // On a device, enough for rates; the fake shows that everything fits together.
    let bytes = if gpu.is_fake() { 1 } else { 1 << 30 };
    println!("through a tenderd of its own, over shared memory and over the network path");
    end_to_end::check(gpu, bytes, report)
}

fn measure_rates(gpu: &Gpu, report: &mut Report) -> Outcome<()> {
    let moved = if gpu.is_fake() { 1 << 20 } else { 1 << 28 };
    println!("{} MiB at a time", moved >> 20);
    speed::measure(gpu, moved, report)
}
