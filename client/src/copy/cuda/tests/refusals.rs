//! What cannot be used is refused, or done without, in a sentence; the engine's memory stays as it is.

use std::sync::Arc;
use std::time::Duration;

use super::NoCompiler;
use super::engine::{World, small_settings};
use crate::copy::EngineStream;
use crate::copy::carrier::Carrier;
use crate::copy::cuda::driver::fake::{Dice, FakeDriver, Trouble};
use crate::copy::cuda::driver::real::NoDriver;
use crate::copy::cuda::driver::{Driver, Fault};
use crate::copy::cuda::{CudaCarrier, start};
use crate::copy::tests::{Memory, Shape};
use crate::counters::Skip;

const SHAPE: Shape = Shape { layers: 2, interleaved: false, heads: 2, tokens: 4, cell: 8, padding: 0 };

fn begin(
    memory: &Memory,
    driver: FakeDriver,
    ring_bytes: u64,
) -> Result<(Arc<FakeDriver>, CudaCarrier), String> {
    let driver = Arc::new(driver);
    let mut settings = small_settings(&mut Dice::new(1));
    settings.ring_bytes = ring_bytes;
    let over = Arc::clone(&driver) as Arc<dyn Driver>;
    start::over(over, &memory.layout, settings, 1, &NoCompiler)
        .map(|carrier| (driver, carrier))
        .map_err(|no| no.to_string())
}

fn adopted(memory: &Memory, trouble: Trouble) -> FakeDriver {
    let driver = FakeDriver::new(1, trouble);
    driver.adopt(memory.bytes.as_ptr().expose_provenance() as u64, memory.bytes.len() as u64);
    driver
}

#[test]
fn a_tensor_that_is_not_on_the_device_is_refused_by_its_layers_name() {
    let memory = Memory::new(SHAPE, |_| 0);
    let refused = begin(&memory, FakeDriver::new(1, Trouble::default()), 4096).unwrap_err();
    assert!(refused.contains("layer 0") && refused.contains("device 0 was named"), "{refused}");
}

#[test]
fn a_device_with_little_memory_gets_a_smaller_ring() {
    let memory = Memory::new(SHAPE, |_| 0);
    let little = Trouble { device_bytes: 24 << 20, ..Trouble::default() };
    let (driver, carrier) = begin(&memory, adopted(&memory, little), 256 << 20).unwrap();
    let (on_device, ..) = driver.in_use();
    assert!(((8 << 20)..(24 << 20)).contains(&on_device), "{on_device}");
    drop(carrier);
    assert_eq!(driver.in_use(), (0, 0, 0));
}

#[test]
fn a_device_without_memory_for_any_ring_is_refused_with_the_settings_to_change() {
    let memory = Memory::new(SHAPE, |_| 0);
    let none = Trouble { device_bytes: 64 << 10, ..Trouble::default() };
    let driver = adopted(&memory, none);
    let refused = begin(&memory, driver, 256 << 20).unwrap_err();
    assert!(refused.contains("not enough memory") && refused.contains("device.ring_bytes"), "{refused}");
}

#[test]
fn a_device_that_fails_at_the_start_is_refused_and_nothing_stays_on_it() {
    let memory = Memory::new(SHAPE, |_| 0);
    for calls in 1..60 {
        let driver = Arc::new(adopted(&memory, Trouble { lost_after: calls, ..Trouble::default() }));
        let over = Arc::clone(&driver) as Arc<dyn Driver>;
        let begun = start::over(over, &memory.layout, small_settings(&mut Dice::new(1)), 1, &NoCompiler);
        if let Err(no) = begun {
            assert!(
                no.to_string().contains("cannot be used by this process")
                    || no.to_string().contains("kernels"),
                "{no}"
            );
        }
        driver.run_dry();
        assert_eq!(driver.violations(), [""; 0]);
    }
}

#[test]
fn a_stream_of_another_context_stores_and_loads_nothing() {
    let mut world = World::new(3, Trouble::default()).unwrap();
    let foreign = world.driver.engine_stream();
    world.driver.set_foreign(foreign);
    for stream in [EngineStream(foreign), EngineStream(12_345)] {
        assert_eq!(world.store_on(stream), Err(Skip::Device));
        let after = world.carrier.fence(stream);
        assert!(world.carrier.load(&after, None).is_err());
    }
    // The right one goes on working.
    assert_eq!(world.store_on(world.stream), Ok(()));
    world.save(Duration::from_secs(5));
    world.end();
}

#[test]
fn nothing_is_put_into_a_graph_that_is_being_recorded() {
    let mut world = World::new(4, Trouble::default()).unwrap();
    world.driver.set_capturing(world.stream.0, true);
    assert_eq!(world.store_on(world.stream), Err(Skip::Capturing));
    let after = world.carrier.fence(world.stream);
    assert!(world.carrier.load(&after, None).is_err());
    world.driver.set_capturing(world.stream.0, false);
    assert_eq!(world.store_on(world.stream), Ok(()));
    world.end();
}

#[test]
fn a_device_that_stands_still_is_waited_for_until_the_deadline_and_its_slot_stays_taken() {
    let mut world = World::new(5, Trouble::default()).unwrap();
    world.driver.freeze(1_000_000);
    assert_eq!(world.store_on(world.stream), Ok(()));
    assert_eq!(world.wait_for_store(Duration::from_millis(5)), Err(Skip::Late));
    assert!(world.staging_taken() > 0, "a copy may still land in it");
    world.driver.freeze(0);
    world.end();
}

#[test]
fn a_device_that_never_finishes_does_not_keep_the_client_from_ending() {
    let mut world = World::new(6, Trouble::default()).unwrap();
    world.must_succeed = false;
    world.driver.freeze(100_000_000);
    assert_eq!(world.store_on(world.stream), Ok(()));
    world.carrier.end();
    world.carrier.close();
    assert_eq!(world.carrier.lost().unwrap(), "the device does not finish its copies");
    assert!(world.staging_taken() > 0, "a copy may still land in it");
    world.driver.freeze(0);
    world.end();
}

#[test]
fn every_reason_without_a_device_is_a_sentence_with_its_cause() {
    let fault = Fault::Refused { call: "cuInit", name: "no device", code: 100 };
    let sentences = [
        (NoDriver::Missing, "libcuda.so.1"),
        (NoDriver::TooOld("11.8".into()), "CUDA 11.8; driver 525"),
        (NoDriver::Lacks("cuMemHostRegister_v2"), "lacks cuMemHostRegister_v2"),
        (NoDriver::NoDevice { index: 7, count: 2 }, "no CUDA device 7; this process sees 2"),
        (NoDriver::NoUnifiedAddresses { index: 0 }, "unified addresses"),
        (NoDriver::Refused(fault), "cuInit: no device (100)"),
    ];
    for (no, says) in sentences {
        assert!(no.to_string().contains(says), "{no}");
    }
}
