//! The backend over the model of a device: an engine that never waits for us, a daemon that takes its bytes back as
//! soon as it may, and streams that go on in any order that they are allowed to.
#![allow(unsafe_code, reason = "the test plays the engine, whose work is done on addresses")]
#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

mod engine;
#[cfg(feature = "mutants")]
mod mutants;
mod order;
mod refusals;

use std::sync::Arc;

use super::compile::Compiler;
use super::driver::Driver;
use super::driver::fake::{Dice, FakeDriver};
use super::{CudaCarrier, start};
use crate::layout::ProvedLayout;

/// A compiler that is not there.
struct NoCompiler;

impl Compiler for NoCompiler {
    fn compile(&self, _architecture: u32) -> Result<Vec<u8>, String> {
        Err("there is no compiler in this test".into())
    }
}

/// Copies over a model that is ready, with small rings.
pub(crate) fn carrier(
    driver: &Arc<FakeDriver>,
    layout: &Arc<ProvedLayout>,
    load_threads: usize,
) -> CudaCarrier {
    let mut settings = engine::small_settings(&mut Dice::new(1));
    // A chunk of these tests has 4 KiB.
    (settings.ring_bytes, settings.store_bytes_per_second, settings.load_bytes_per_second) = (64 << 10, 0, 0);
    (settings.register, settings.step_by_step) = (true, false);
    let over = Arc::clone(driver) as Arc<dyn Driver>;
    start::over(over, layout, settings, load_threads, &NoCompiler).unwrap()
}
