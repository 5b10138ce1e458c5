//! One target of `tender_tests::fuzz` under libFuzzer: the one that `TENDER_FUZZ_TARGET` names.
#![no_main]

use std::sync::LazyLock;

use tender_tests::fuzz::{self, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TENDER_FUZZ_TARGET").unwrap_or_default();
    fuzz::target(&name).unwrap_or_else(|| panic!("TENDER_FUZZ_TARGET={name:?} is no target"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
