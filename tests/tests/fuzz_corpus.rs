//! Every input that the fuzz targets keep is replayed: what was found once cannot come back, and the targets themselves
//! stay able to run.

use std::fs;
use std::path::Path;

use tender_tests::fuzz;

/// Runs all files of the target's folder, in the order of their names.
fn replay(name: &str) {
    let run = fuzz::target(name).unwrap_or_else(|| panic!("no target {name}"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let Ok(read) = fs::read_dir(&folder) else { panic!("{} cannot be read", folder.display()) };
    let mut inputs: Vec<_> = read.flatten().map(|entry| entry.path()).collect();
    inputs.sort();
    assert!(inputs.len() >= 10, "{name} has lost its corpus");
    for input in inputs {
        // Shown when the test fails.
        println!("{}", input.display());
        let Ok(bytes) = fs::read(&input) else { panic!("it cannot be read") };
        run(&bytes);
    }
}

macro_rules! corpus {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn every_target_is_replayed() {
            let known: Vec<_> = fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(known, [$(stringify!($name)),*]);
        }
    };
}

corpus!(answer, arena, calls, config, descriptor, keys, layout, packets, plan);
