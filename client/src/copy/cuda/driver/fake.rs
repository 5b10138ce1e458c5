//! A model of a device for tests: streams are queues, and a seeded stepper decides which of them goes on next, and how
//! far: a copy or a kernel may be interrupted after any of its bytes.
//!
//! Nothing runs by itself. Steps happen before every call of the driver and whenever somebody pauses, so every
//! interleaving that streams and events allow can come up. Memory is the test's own; every access is checked against
//! what is allocated, pinned and registered at that moment, and what is wrong is noted in [`FakeDriver::violations`].
//! Calls fail as the test says; a lost device answers nothing but errors while its copies may still land.
#![allow(unsafe_code, reason = "the model copies between addresses, as a device does")]

mod kernels;
mod memory;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::memory::Memory;
use super::{About, Access, Driver, Fault, Home, Image, Kernel, Shape, StreamState};

/// A small generator of numbers; the same seed gives the same run.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
    /// 0 to one less than `sides`, which is not 0.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.next() % sides
    }
    pub(crate) fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trouble {
    /// One call in so many is refused; 0: none.
    pub(crate) refuse_one_in: u64,
    /// After so many calls the device is lost; 0: never.
    pub(crate) lost_after: u64,
    /// Registering host memory is refused.
    pub(crate) no_register: bool,
    /// Device memory there is.
    pub(crate) device_bytes: u64,
    /// One pause in so many freezes a stream for a while; 0: none.
    pub(crate) freeze_one_in: u64,
}

/// A device with streams that somebody steps.
pub(crate) struct FakeDriver {
    about: About,
    world: Mutex<World>,
}

impl fmt::Debug for FakeDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeDriver")
    }
}

#[derive(Debug)]
struct World {
    dice: Dice,
    trouble: Trouble,
    now: Instant,
    calls: u64,
    lost: bool,
    loaded: bool,
    memory: Memory,
    streams: HashMap<u64, Queue>,
    /// Of each event: how often it was recorded, and up to which of these it happened.
    events: HashMap<u64, (u64, u64)>,
    next_handle: u64,
    violations: Vec<String>,
}

#[derive(Debug, Default)]
struct Queue {
    work: VecDeque<Work>,
    capturing: bool,
    foreign: bool,
    /// Pauses that it does nothing for.
    frozen: u64,
    /// It goes on once in so many chances.
    slowness: u64,
}

enum Work {
    Copy { to: u64, from: u64, bytes: u64, done: u64, to_host: bool },
    Kernel { kernel: Kernel, arguments: Vec<u64>, done: u64 },
    Record { event: u64, number: u64 },
    Wait { event: u64, number: u64 },
    Engine(Box<dyn FnOnce() + Send>),
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Copy { .. } => "Copy",
            Self::Kernel { .. } => "Kernel",
            Self::Record { .. } => "Record",
            Self::Wait { .. } => "Wait",
            Self::Engine(_) => "Engine",
        })
    }
}

impl FakeDriver {
    pub(crate) fn new(seed: u64, trouble: Trouble) -> Self {
        let device_bytes = if trouble.device_bytes > 0 { trouble.device_bytes } else { 1 << 30 };
        let about = About {
            name: "a model of a device".into(),
            index: 0,
            major: 9,
            minor: 0,
            driver_version: 12_080,
            multiprocessors: 4,
            total_bytes: device_bytes,
            registers: true,
            registers_read_only: true,
        };
        let world = World {
            dice: Dice::new(seed),
            trouble,
            now: Instant::now(),
            calls: 0,
            lost: false,
            loaded: false,
            memory: Memory::new(device_bytes),
            streams: HashMap::new(),
            events: HashMap::new(),
            next_handle: 100,
            violations: Vec::new(),
        };
        Self { about, world: Mutex::new(world) }
    }

    /// The same, described otherwise.
    pub(crate) fn described(mut self, change: impl FnOnce(&mut About)) -> Self {
        change(&mut self.about);
        self
    }

    /// Memory that the engine has on this device.
    pub(crate) fn adopt(&self, address: u64, bytes: u64) {
        self.world.lock().memory.adopt(address, bytes);
    }

    /// A stream of the engine's.
    pub(crate) fn engine_stream(&self) -> u64 {
        self.world.lock().new_stream()
    }

    /// The stream records a graph from now on, or does not any more.
    pub(crate) fn set_capturing(&self, stream: u64, capturing: bool) {
        if let Some(queue) = self.world.lock().streams.get_mut(&stream) {
            queue.capturing = capturing;
        }
    }

    /// The stream is of another context.
    pub(crate) fn set_foreign(&self, stream: u64) {
        if let Some(queue) = self.world.lock().streams.get_mut(&stream) {
            queue.foreign = true;
        }
    }

    /// Nothing happens on any stream for so many pauses.
    pub(crate) fn freeze(&self, pauses: u64) {
        self.world.lock().streams.values_mut().for_each(|queue| queue.frozen = pauses);
    }

    /// Work of the engine's own.
    pub(crate) fn engine_work(&self, stream: u64, work: impl FnOnce() + Send + 'static) {
        let mut world = self.world.lock();
        world.some_steps();
        world.push(stream, Work::Engine(Box::new(work)));
    }

    /// From now on this goes wrong.
    pub(crate) fn set_trouble(&self, trouble: Trouble) {
        self.world.lock().trouble = trouble;
    }

    /// Whether it answers nothing but errors.
    pub(crate) fn is_lost(&self) -> bool {
        self.world.lock().lost
    }

    /// Does everything that was begun.
    pub(crate) fn run_dry(&self) {
        let mut world = self.world.lock();
        world.streams.values_mut().for_each(|queue| (queue.frozen, queue.slowness) = (0, 1));
        while world.step() {}
        let stuck = world.streams.values().any(|queue| !queue.work.is_empty());
        assert!(!stuck, "a stream waits for an event that is never recorded");
    }

    /// What was done that a device would have punished with wrong bytes or an end.
    pub(crate) fn violations(&self) -> Vec<String> {
        let world = self.world.lock();
        [&world.violations[..], world.memory.violations()].concat()
    }

    /// Device and pinned memory that is allocated, and registered ranges.
    pub(crate) fn in_use(&self) -> (u64, u64, usize) {
        self.world.lock().memory.in_use()
    }

    /// One call: time passes, things happen, and it may fail.
    fn call(&self, call: &'static str) -> Result<parking_lot::MutexGuard<'_, World>, Fault> {
        let mut world = self.world.lock();
        world.now += Duration::from_micros(1);
        world.calls += 1;
        world.some_steps();
        let Trouble { refuse_one_in, lost_after, .. } = world.trouble;
        world.lost |= lost_after > 0 && world.calls >= lost_after;
        if world.lost {
            return Err(Fault::Lost { call, name: "an illegal address", code: 700 });
        }
        if refuse_one_in > 0 && world.dice.one_in(refuse_one_in) {
            return Err(Fault::Refused { call, name: "as the test wants it", code: 1 });
        }
        Ok(world)
    }
}

impl World {
    fn new_handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }
    fn new_stream(&mut self) -> u64 {
        let slowness = 1 + self.dice.roll(4) * self.dice.roll(8);
        let handle = self.new_handle();
        self.streams.insert(handle, Queue { slowness, ..Queue::default() });
        handle
    }
    fn push(&mut self, stream: u64, work: Work) {
        match self.streams.get_mut(&stream) {
            Some(queue) => queue.work.push_back(work),
            None => self.violations.push(format!("{work:?} on a stream that there is not")),
        }
    }

    fn some_steps(&mut self) {
        for _ in 0..self.dice.roll(4) * self.dice.roll(3) {
            self.step();
        }
    }

    fn can_go(&self, queue: &Queue) -> bool {
        match queue.work.front() {
            None => false,
            Some(Work::Wait { event, number }) => {
                self.events.get(event).is_none_or(|(_, happened)| happened >= number)
            }
            Some(_) => queue.frozen == 0,
        }
    }

    /// Lets one stream go on a little. False: none can.
    fn step(&mut self) -> bool {
        let mut ready: Vec<u64> =
            self.streams.iter().filter(|(_, queue)| self.can_go(queue)).map(|(&handle, _)| handle).collect();
        // A hash map's order is not the seed's.
        ready.sort_unstable();
        if ready.is_empty() {
            return false;
        }
        let at = usize::try_from(self.dice.roll(ready.len() as u64)).unwrap_or(0);
        let handle = ready[at];
        let slowness = self.streams[&handle].slowness;
        if slowness > 1 && !self.dice.one_in(slowness) {
            return true;
        }
        let Some(mut work) = self.streams.get_mut(&handle).and_then(|queue| queue.work.pop_front()) else {
            return true;
        };
        let over = match &mut work {
            Work::Wait { .. } => true,
            Work::Record { event, number } => {
                if let Some((_, happened)) = self.events.get_mut(event) {
                    *happened = (*happened).max(*number);
                }
                true
            }
            Work::Copy { to, from, bytes, done, to_host } => {
                let piece = self.dice.roll(2 * *bytes).clamp(1, *bytes - *done);
                self.memory.transfer(*to + *done, *from + *done, piece, *to_host);
                *done += piece;
                *done == *bytes
            }
            Work::Kernel { kernel, arguments, done } => {
                let runs = kernels::runs(*kernel, arguments, &mut self.memory);
                let most = runs.len() as u64 - (*done).min(runs.len() as u64);
                let some = if most > 0 { 1 + self.dice.roll(most) } else { 0 };
                for run in runs
                    .iter()
                    .skip(usize::try_from(*done).unwrap_or(0))
                    .take(usize::try_from(some).unwrap_or(0))
                {
                    run.go(&mut self.memory);
                }
                *done += some;
                *done >= runs.len() as u64
            }
            Work::Engine(_) => true,
        };
        if let (Work::Engine(engine), true) = (&mut work, over) {
            std::mem::replace(engine, Box::new(|| ()))();
        }
        if !over && let Some(queue) = self.streams.get_mut(&handle) {
            queue.work.push_front(work);
        }
        true
    }

    /// Whether anything on its way uses the range.
    fn busy(&self, address: u64, bytes: u64) -> bool {
        let meets = |at: u64, len: u64| at < address + bytes && at + len > address;
        self.streams.values().flat_map(|queue| &queue.work).any(|work| match work {
            Work::Copy { to, from, bytes, .. } => meets(*to, *bytes) || meets(*from, *bytes),
            Work::Kernel { arguments, .. } => arguments.iter().take(2).any(|&at| meets(at, 1)),
            _ => false,
        })
    }
}

impl Driver for FakeDriver {
    fn about(&self) -> &About {
        &self.about
    }
    fn free_bytes(&self) -> Result<u64, Fault> {
        Ok(self.call("free_bytes")?.memory.free_bytes())
    }
    fn alloc_device(&self, bytes: u64) -> Result<u64, Fault> {
        let mut world = self.call("alloc_device")?;
        world.memory.alloc_device(bytes).ok_or(Fault::OutOfMemory { call: "alloc_device" })
    }
    fn alloc_pinned(&self, bytes: u64) -> Result<u64, Fault> {
        Ok(self.call("alloc_pinned")?.memory.alloc_pinned(bytes))
    }
    unsafe fn free_device(&self, address: u64) {
        let mut world = self.world.lock();
        let bytes = world.memory.free(address);
        if world.busy(address, bytes) {
            world.violations.push("device memory freed while it is in use".into());
        }
    }
    unsafe fn free_pinned(&self, address: u64) {
        // SAFETY: the same in this model.
        unsafe { self.free_device(address) }
    }
    fn register(&self, address: u64, bytes: u64, access: Access) -> Result<(), Fault> {
        let mut world = self.call("register")?;
        if world.trouble.no_register {
            return Err(Fault::Refused { call: "register", name: "not permitted", code: 800 });
        }
        world.memory.register(address, bytes, access);
        Ok(())
    }
    unsafe fn unregister(&self, address: u64) -> Result<(), Fault> {
        let mut world = self.world.lock();
        let bytes = world.memory.unregister(address);
        if world.busy(address, bytes) {
            world.violations.push("a registration ended while a copy uses the memory".into());
        }
        Ok(())
    }
    fn home(&self, address: u64) -> Result<Home, Fault> {
        let world = self.call("home")?;
        Ok(if world.memory.is_on_device(address) { Home::Here } else { Home::NotOnADevice })
    }
    fn new_stream(&self) -> Result<u64, Fault> {
        Ok(self.call("new_stream")?.new_stream())
    }
    fn drop_stream(&self, _stream: u64) {}
    fn stream_state(&self, stream: u64) -> Result<StreamState, Fault> {
        let world = self.call("stream_state")?;
        Ok(match world.streams.get(&stream) {
            Some(queue) if queue.foreign => StreamState::Foreign,
            Some(queue) if queue.capturing => StreamState::Capturing,
            Some(_) => StreamState::Ready,
            None => StreamState::Foreign,
        })
    }
    fn new_event(&self) -> Result<u64, Fault> {
        let mut world = self.call("new_event")?;
        let handle = world.new_handle();
        world.events.insert(handle, (0, 0));
        Ok(handle)
    }
    fn drop_event(&self, _event: u64) {}
    fn record(&self, event: u64, stream: u64) -> Result<(), Fault> {
        let mut world = self.call("record")?;
        let Some((recorded, _)) = world.events.get_mut(&event) else {
            return Err(Fault::Refused { call: "record", name: "no such event", code: 400 });
        };
        *recorded += 1;
        let number = *recorded;
        world.push(stream, Work::Record { event, number });
        Ok(())
    }
    fn wait(&self, stream: u64, event: u64) -> Result<(), Fault> {
        let mut world = self.call("wait")?;
        let number = world.events.get(&event).map_or(0, |(recorded, _)| *recorded);
        world.push(stream, Work::Wait { event, number });
        Ok(())
    }
    fn is_idle(&self, stream: u64) -> Result<bool, Fault> {
        let mut world = self.world.lock();
        world.some_steps();
        if world.lost {
            return Err(Fault::Lost { call: "is_idle", name: "an illegal address", code: 700 });
        }
        Ok(world.streams.get(&stream).is_none_or(|queue| queue.work.is_empty()))
    }
    fn is_done(&self, event: u64) -> Result<bool, Fault> {
        // What this answers is never refused by a device that works.
        let mut world = self.world.lock();
        world.now += Duration::from_micros(1);
        world.some_steps();
        if world.lost {
            return Err(Fault::Lost { call: "is_done", name: "an illegal address", code: 700 });
        }
        Ok(world.events.get(&event).is_some_and(|(recorded, happened)| happened >= recorded))
    }
    unsafe fn to_device(&self, stream: u64, to: u64, from: u64, bytes: u64) -> Result<(), Fault> {
        let mut world = self.call("to_device")?;
        world.push(stream, Work::Copy { to, from, bytes, done: 0, to_host: false });
        Ok(())
    }
    unsafe fn to_host(&self, stream: u64, to: u64, from: u64, bytes: u64) -> Result<(), Fault> {
        let mut world = self.call("to_host")?;
        world.push(stream, Work::Copy { to, from, bytes, done: 0, to_host: true });
        Ok(())
    }
    fn load(&self, _image: Image<'_>) -> Result<(), Fault> {
        self.call("load")?.loaded = true;
        Ok(())
    }
    unsafe fn launch(
        &self,
        stream: u64,
        kernel: Kernel,
        _shape: Shape,
        arguments: &[u64],
    ) -> Result<(), Fault> {
        let mut world = self.call("launch")?;
        if !world.loaded {
            world.violations.push("a launch before the kernels were loaded".into());
        }
        world.push(stream, Work::Kernel { kernel, arguments: arguments.to_vec(), done: 0 });
        Ok(())
    }
    fn now(&self) -> Instant {
        self.world.lock().now
    }
    fn pause(&self, time: Duration) {
        let mut world = self.world.lock();
        world.now += time.max(Duration::from_micros(1));
        let freeze = world.trouble.freeze_one_in;
        if freeze > 0 && world.dice.one_in(freeze) {
            let pauses = world.dice.roll(200);
            let place = world.dice.next();
            let mut handles: Vec<u64> = world.streams.keys().copied().collect();
            handles.sort_unstable();
            let at = usize::try_from(place % handles.len().max(1) as u64).unwrap_or(0);
            if let Some(queue) = handles.get(at).and_then(|handle| world.streams.get_mut(handle)) {
                queue.frozen = pauses;
            }
        }
        world.streams.values_mut().for_each(|queue| queue.frozen = queue.frozen.saturating_sub(1));
        for _ in 0..1 + world.dice.roll(6) {
            world.step();
        }
    }
}
