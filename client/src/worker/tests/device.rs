//! A whole worker over the model of a device: the same bytes as over host memory, whatever the device does.

use super::*;
use crate::copy::cuda::driver::fake::{FakeDriver, Trouble};
use crate::copy::cuda::tests::carrier;

struct DeviceRig {
    daemon: FakeDaemon,
    worker: WorkerSide,
    engine: Engine,
    driver: Arc<FakeDriver>,
    stream: EngineStream,
}

impl DeviceRig {
    fn start(transport: TransportChoice, seed: u64, trouble: Trouble, load_deadline: Duration) -> Self {
        let daemon = FakeDaemon::start();
        let mut engine = Engine::new(Shape::SMALL, 1);
        let driver = Arc::new(FakeDriver::new(seed, trouble));
        for buffer in &mut engine.buffers {
            driver.adopt(buffer.as_mut_ptr() as u64, buffer.len() as u64);
        }
        let stream = EngineStream(driver.engine_stream());
        let mut config = ClientConfig::new(daemon.address.clone());
        config.transport = transport;
        config.load_deadline = load_deadline;
        config.staging_bytes = bytesize::ByteSize::mib(4);
        let layout = engine.layout();
        let carrier = Arc::new(carrier(&driver, &layout, config.load_threads));
        let worker =
            WorkerSide::with_carrier(config, Arc::new(engine.descriptor()), layout, carrier).unwrap();
        assert!(worker.wait_until_up(Duration::from_secs(20)));
        Self { daemon, worker, engine, driver, stream }
    }

    fn store(&self, first: u32) {
        let job = StoreJob { chunk: chunk(0, 0), coverage: coverage(15), blocks: blocks(first) };
        let plan = StepPlan { stores_after: vec![job], ..StepPlan::default() };
        self.worker.end_step_on(&plan.encode(), self.stream);
    }

    fn begin_load(&self, first: u32) {
        let items = vec![LoadItem { chunk: chunk(0, 0), needed: coverage(15), blocks: blocks(first) }];
        let loads = vec![LoadJob { request: "r".into(), items, whole: false, trace: Default::default() }];
        self.worker.begin_step_on(&StepPlan { loads, ..StepPlan::default() }.encode(), self.stream);
    }

    fn wait_for_load(&self) -> LoadDone {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(done) = self.worker.poll().pop() {
                return done;
            }
            assert!(Instant::now() < deadline, "the load was never reported");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(mut self, expected: &Engine) {
        self.worker.shutdown();
        self.driver.run_dry();
        assert_eq!(self.driver.violations(), [""; 0]);
        assert!(self.engine.buffers == expected.buffers, "the engine's memory differs");
        self.engine.buffers.clear();
    }
}

#[test]
fn what_a_device_stored_comes_back_bit_for_bit() {
    for (transport, seed) in BOTH.into_iter().flat_map(|transport| (0..4).map(move |seed| (transport, seed)))
    {
        let trouble = Trouble { no_register: seed % 2 == 1, ..Trouble::default() };
        let rig = DeviceRig::start(transport, seed, trouble, Duration::from_secs(20));
        rig.store(1);
        assert!(rig.worker.flush(Duration::from_secs(20)));
        assert_eq!(rig.worker.counters().stored_parts, 1, "{:?}", rig.worker.counters());
        rig.begin_load(21);
        assert_eq!(rig.wait_for_load().failed_blocks, [0; 0], "{:?}", rig.worker.counters());
        let (mut expected, before) = (Engine::new(Shape::SMALL, 1), Engine::new(Shape::SMALL, 1));
        (0..4).for_each(|i| expected.expect_copied(&before, 0, 1 + i, 21 + i));
        rig.end(&expected);
    }
}

#[test]
fn a_lost_device_switches_the_worker_off_and_the_engine_goes_on() {
    let rig = DeviceRig::start(TransportChoice::Shm, 1, Trouble::default(), Duration::from_secs(20));
    rig.store(1);
    assert!(rig.worker.flush(Duration::from_secs(20)));
    rig.driver.set_trouble(Trouble { lost_after: 1, ..Trouble::default() });
    rig.store(5);
    rig.begin_load(21);
    assert_eq!(rig.wait_for_load().failed_blocks, blocks(21));
    assert!(rig.worker.flush(Duration::from_secs(20)));
    rig.store(5);
    rig.begin_load(25);
    assert_eq!(rig.wait_for_load().failed_blocks, blocks(25), "every load is reported, also from now on");
    let counters = rig.worker.counters();
    assert_eq!((counters.stored_parts, counters.panics), (1, 0), "{counters:?}");
    assert!(rig.worker.fuse.is_blown());
    let expected = Engine::new(Shape::SMALL, 1);
    rig.end(&expected);
}

#[test]
fn a_load_that_is_too_late_is_reported_when_no_copy_can_land_any_more() {
    let rig = DeviceRig::start(TransportChoice::Shm, 2, Trouble::default(), Duration::from_millis(200));
    rig.store(1);
    assert!(rig.worker.flush(Duration::from_secs(20)));
    // Two seconds and more of a machine's time, far past the deadline.
    rig.driver.freeze(50_000);
    rig.begin_load(21);
    let done = rig.wait_for_load();
    let expected = Engine { buffers: rig.engine.buffers.clone(), shape: Shape::SMALL, groups: 1 };
    if !done.failed_blocks.is_empty() {
        assert_eq!(done.failed_blocks, blocks(21));
    }
    rig.driver.run_dry();
    assert!(rig.engine.buffers == expected.buffers, "a copy landed after the report");
    assert!(rig.daemon.state.lookups.load(std::sync::atomic::Ordering::Relaxed) > 0);
    rig.end(&expected);
}
