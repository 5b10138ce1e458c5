//! An engine, a daemon and a worker of one seed.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use parking_lot::Mutex;
use tender_proto::Coverage;
use tender_proto::shm::Mapping;

use super::NoCompiler;
use crate::config::DigestBy;
use crate::copy::carrier::{Carrier, Fence, Loading, Pack, Packed};
use crate::copy::cuda::driver::Driver;
use crate::copy::cuda::driver::fake::{Dice, FakeDriver, Trouble};
use crate::copy::cuda::settings::{Settings, WhenFull};
use crate::copy::cuda::{CudaCarrier, start};
use crate::copy::tests::{GROUP, Memory, PART, POOL, Shape, coverage};
use crate::copy::{EngineStream, Target};
use crate::counters::Skip;
use crate::transport::staging::Staging;

const ARENA_BYTES: u64 = 64 << 10;
const STAGING_BYTES: u64 = 256 << 10;
/// The arena's share of one load.
const LEASE_BYTES: u64 = 8 << 10;

/// Rings so small that everything wraps, fills and is cut.
pub(super) fn small_settings(dice: &mut Dice) -> Settings {
    Settings {
        ring_bytes: 2048 + dice.roll(8) * 1024,
        load_ring_bytes: 2048 + dice.roll(4) * 512,
        bounce_bytes: 1024 + dice.roll(4) * 256,
        piece_bytes: 100 + dice.roll(900),
        pin_bytes: 4096 << dice.roll(3),
        word_bytes: 4096,
        when_full: if dice.one_in(2) { WhenFull::Skip } else { WhenFull::Wait(Duration::from_micros(300)) },
        store_bytes_per_second: if dice.one_in(4) { 50 << 20 } else { 0 },
        load_bytes_per_second: if dice.one_in(4) { 50 << 20 } else { 0 },
        side_percent: 25,
        register: !dice.one_in(4),
        step_by_step: true,
        digest: if dice.one_in(2) { DigestBy::Device } else { DigestBy::Host },
        kernel_cache: Some("/proc/tender-has-no-cache".into()),
    }
}

/// A store on its way, and the bytes that it must bring.
pub(super) struct Storing {
    packed: Packed,
    expected: Vec<u8>,
}

/// A load between its plan and its report.
struct Load {
    blocks: Vec<u32>,
    stored: Coverage,
    needed: Coverage,
    /// Its share of the arena, leased to it.
    lease: u64,
    bytes: Vec<u8>,
    after: Fence,
    loading: Option<Box<dyn Loading>>,
    given: usize,
    good: bool,
}

/// Everything of one seed.
pub(super) struct World {
    pub(super) driver: Arc<FakeDriver>,
    pub(super) carrier: CudaCarrier,
    pub(super) dice: Dice,
    pub(super) stream: EngineStream,
    memory: Memory,
    /// What the engine's memory holds when all work that it has begun is done; loads are in when they are reported.
    truth: Vec<u8>,
    staging: Arc<Staging>,
    arena: Arc<Mapping>,
    daemons_arena: Mapping,
    leased: Vec<bool>,
    storing: Vec<Storing>,
    loads: Vec<Load>,
    /// Blocks that belong to a load until it is reported.
    loading_blocks: Vec<u32>,
    /// What the engine read that was not what it had written.
    pub(super) misread: Arc<Mutex<Vec<String>>>,
    pub(super) stored: usize,
    pub(super) loaded: usize,
    /// Nothing goes wrong in this life.
    pub(super) must_succeed: bool,
}

impl World {
    /// `None`: the device refused already while the worker started.
    pub(super) fn new(seed: u64, trouble: Trouble) -> Option<Self> {
        let mut dice = Dice::new(seed ^ 0x5EED);
        let shape = Shape {
            layers: 1 + dice.roll(3),
            interleaved: dice.one_in(2),
            heads: 1 + dice.roll(3) as u32,
            tokens: 1 + dice.roll(4) as u32,
            cell: 1 + dice.roll(24),
            padding: dice.roll(9),
        };
        let memory = Memory::new(shape, |at| (at % 251) as u8);
        let driver = Arc::new(FakeDriver::new(seed, trouble));
        driver.adopt(memory.bytes.as_ptr().expose_provenance() as u64, memory.bytes.len() as u64);
        let stream = EngineStream(driver.engine_stream());
        let settings = small_settings(&mut dice);
        let over = Arc::clone(&driver) as Arc<dyn Driver>;
        let carrier = start::over(over, &memory.layout, settings, 2, &NoCompiler).ok()?;
        let file = |bytes: u64| {
            let file = File::from(memfd_create(c"test", MFdFlags::MFD_CLOEXEC).unwrap());
            file.set_len(bytes).unwrap();
            file
        };
        let arena = file(ARENA_BYTES);
        Some(Self {
            carrier,
            stream,
            truth: memory.bytes.clone(),
            memory,
            staging: Staging::new(Mapping::read_write(&file(STAGING_BYTES)).unwrap()),
            arena: Arc::new(Mapping::read_only(&arena).unwrap()),
            daemons_arena: Mapping::read_write(&arena).unwrap(),
            leased: vec![false; (ARENA_BYTES / LEASE_BYTES) as usize],
            storing: Vec::new(),
            loads: Vec::new(),
            loading_blocks: Vec::new(),
            misread: Arc::default(),
            stored: 0,
            loaded: 0,
            must_succeed: trouble.refuse_one_in == 0 && trouble.lost_after == 0,
            driver,
            dice,
        })
    }

    fn base(&self) -> usize {
        self.memory.bytes.as_ptr().expose_provenance()
    }

    fn free_block(&mut self) -> Option<u32> {
        let free: Vec<u32> = (1..POOL).filter(|block| !self.loading_blocks.contains(block)).collect();
        (!free.is_empty()).then(|| free[self.dice.roll(free.len() as u64) as usize])
    }

    fn some_blocks(&mut self) -> Vec<u32> {
        let mut blocks: Vec<u32> = (0..4).filter_map(|_| self.free_block()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    /// A forward pass: it reads some blocks and writes others, when its turn on the stream comes.
    pub(super) fn pass(&mut self) {
        let (reads, writes) = (self.some_blocks(), self.some_blocks());
        self.read(&reads);
        self.write(&writes);
    }

    fn read(&mut self, blocks: &[u32]) {
        for &block in blocks {
            let places = self.memory.places(block);
            let expected: Vec<u8> = places.iter().map(|&at| self.truth[at]).collect();
            let (base, misread) = (self.base(), Arc::clone(&self.misread));
            self.driver.engine_work(self.stream.0, move || {
                let byte = |at: &usize| {
                    // SAFETY: the engine's memory outlives the model's steps.
                    unsafe { std::ptr::with_exposed_provenance::<u8>(base + at).read() }
                };
                if !places.iter().map(byte).eq(expected.iter().copied()) {
                    misread.lock().push(format!("block {block} is not what it was when the pass was begun"));
                }
            });
        }
    }

    fn write(&mut self, blocks: &[u32]) {
        for &block in blocks {
            let fresh: Vec<(usize, u8)> =
                self.memory.places(block).into_iter().map(|at| (at, self.dice.next() as u8)).collect();
            fresh.iter().for_each(|&(at, byte)| self.truth[at] = byte);
            let base = self.base();
            self.driver.engine_work(self.stream.0, move || {
                for (at, byte) in fresh {
                    // SAFETY: the engine's memory outlives the model's steps.
                    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(base + at).write(byte) };
                }
            });
        }
    }

    fn chunk(&mut self) -> Option<(Vec<u32>, Coverage)> {
        let mut blocks: Vec<u32> = (0..4).filter_map(|_| self.free_block()).collect();
        if blocks.len() < 4 {
            return None;
        }
        let mut bits = 1 + self.dice.roll(15);
        for i in 0..4 {
            if blocks[..i].contains(&blocks[i]) {
                // A block is in a chunk once; the null block is never covered.
                blocks[i] = 0;
                bits &= !(1 << i);
            }
        }
        (bits > 0).then(|| (blocks, coverage(bits)))
    }

    fn block_bytes(&self) -> u64 {
        self.memory.layout.block_bytes(GROUP, PART).unwrap()
    }

    fn content(&self, blocks: &[u32], of: Coverage, from: &[u8]) -> Vec<u8> {
        of.iter().flat_map(|i| self.memory.places(blocks[i as usize])).map(|at| from[at]).collect()
    }

    /// The end of a step: some chunks are stored, and nobody waits for it.
    pub(super) fn store(&mut self) {
        let jobs: Vec<_> = (0..=self.dice.roll(3)).filter_map(|_| self.chunk()).collect();
        let mut fresh = Vec::new();
        let mut gathering = self.carrier.gather(self.stream);
        for (blocks, covered) in &jobs {
            let bytes = self.memory.layout.block_bytes(GROUP, PART).unwrap() * u64::from(covered.count());
            let Ok(slot) = self.staging.take(bytes) else { continue };
            let pack = Pack { group: GROUP, part: PART, blocks, coverage: *covered };
            if let Ok(packed) = gathering.add(pack, slot) {
                fresh.push((packed, blocks, *covered));
            }
        }
        gathering.finish();
        for (packed, blocks, covered) in fresh {
            let expected = self.content(blocks, covered, &self.truth);
            assert_eq!(packed.len(), expected.len());
            self.storing.push(Storing { packed, expected });
        }
        if self.dice.one_in(2) {
            // The next pass is begun at once, over the very blocks.
            let again: Vec<u32> =
                jobs.into_iter().flat_map(|(blocks, _)| blocks).filter(|&b| b > 0).collect();
            self.write(&again);
        }
    }

    /// One chunk of two blocks, on any stream; says why not.
    pub(super) fn store_on(&mut self, stream: EngineStream) -> Result<(), Skip> {
        let (blocks, covered) = ([1, 2, 0, 0], coverage(0b11));
        let slot = self.staging.take(2 * self.block_bytes())?;
        let mut gathering = self.carrier.gather(stream);
        let packed =
            gathering.add(Pack { group: GROUP, part: PART, blocks: &blocks, coverage: covered }, slot);
        gathering.finish();
        let expected = self.content(&blocks, covered, &self.truth);
        self.storing.push(Storing { packed: packed?, expected });
        Ok(())
    }

    /// The last one, as a saver waits for it.
    pub(super) fn wait_for_store(&mut self, patience: Duration) -> Result<(), Skip> {
        let Storing { packed, .. } = self.storing.pop().unwrap();
        packed.wait(self.driver.now() + patience).map(|_| ())
    }

    pub(super) fn staging_taken(&self) -> u64 {
        self.staging.taken_bytes()
    }

    /// A saver waits for a store, or gives it up.
    pub(super) fn save(&mut self, patience: Duration) {
        if self.storing.is_empty() {
            return;
        }
        let at = self.dice.roll(self.storing.len() as u64) as usize;
        let Storing { packed, expected } = self.storing.swap_remove(at);
        if self.dice.one_in(8) {
            return;
        }
        let waited = packed.wait(self.driver.now() + patience);
        if self.must_succeed && patience > Duration::from_secs(1) {
            // Room for tables may be short too, and then a launch is left out.
            let excused = matches!(waited, Ok(_) | Err(Skip::RingFull));
            assert!(excused, "a store that nothing stands in the way of: {waited:?}");
        }
        if let Ok(filled) = waited {
            assert!(
                filled.slot.as_ref() == expected,
                "a store brought other bytes than the pass had written"
            );
            if let Some(digest) = filled.digest {
                assert_eq!(digest, tender_proto::ContentDigest::of(&expected));
            }
            self.stored += 1;
        }
    }

    /// A load is planned: its blocks were free, though earlier work may still use them.
    pub(super) fn plan_load(&mut self) {
        let Some(lease) = self.leased.iter().position(|leased| !leased) else { return };
        if self.loads.len() > 3 {
            return;
        }
        let Some((blocks, stored)) = self.chunk() else { return };
        let bits = stored.bits() & self.dice.next();
        let needed = coverage(if bits == 0 { stored.bits() } else { bits });
        let bytes: Vec<u8> =
            (0..self.block_bytes() * u64::from(stored.count())).map(|_| self.dice.next() as u8).collect();
        if bytes.len() as u64 > LEASE_BYTES {
            return;
        }
        self.leased[lease] = true;
        let lease = lease as u64 * LEASE_BYTES;
        self.daemons_arena.copy_in(lease, &bytes).unwrap();
        self.loading_blocks.extend(needed.iter().map(|i| blocks[i as usize]));
        let after = self.carrier.fence(self.stream);
        let loading = None;
        self.loads.push(Load { blocks, stored, needed, lease, bytes, after, loading, given: 0, good: true });
    }

    /// A load goes on: it begins, gives a piece, or ends.
    pub(super) fn go_on_loading(&mut self) {
        if self.loads.is_empty() {
            return;
        }
        let at = self.dice.roll(self.loads.len() as u64) as usize;
        let abort = self.dice.one_in(12);
        let load = &mut self.loads[at];
        if load.loading.is_none() {
            let arena = (!self.dice.one_in(3)).then_some(&self.arena);
            match self.carrier.load(&load.after, arena) {
                Ok(loading) => load.loading = Some(loading),
                Err(_) if self.carrier.lost().is_some() || !load.good => load.good = false,
                // All lanes are taken, or the fence could not be had.
                Err(_) => load.good = self.dice.one_in(2),
            }
            if load.good {
                return;
            }
        }
        let over = load.given == load.bytes.len();
        if load.good && !over && !abort {
            self.give_a_piece(at);
        } else {
            self.end_load(at, abort);
        }
    }

    fn give_a_piece(&mut self, at: usize) {
        let load = &mut self.loads[at];
        let left = load.bytes.len() - load.given;
        let len = 1 + self.dice.roll(left as u64) as usize;
        let to = Target {
            group: GROUP,
            part: PART,
            blocks: &load.blocks,
            stored: load.stored,
            needed: load.needed,
        };
        let loading = load.loading.as_mut().unwrap();
        let given = load.given as u64;
        let done = if self.dice.one_in(2) {
            // SAFETY: the lease is held until the load is over, and the mapping lives.
            let piece = unsafe { self.arena.slice(load.lease + given, len) }.unwrap();
            loading.scatter(&to, given, piece, true)
        } else {
            let mut piece = load.bytes[load.given..load.given + len].to_vec();
            let done = loading.scatter(&to, given, &piece, false);
            piece.fill(0xEE);
            done
        };
        load.good &= done.is_ok();
        load.given += len;
    }

    fn end_load(&mut self, at: usize, abort: bool) {
        let Load { blocks, needed, stored, lease, bytes, loading, given, good, .. } =
            self.loads.swap_remove(at);
        let whole = good && given == bytes.len();
        let late = Instant::now() - Duration::from_secs(3600);
        let deadline = if self.dice.one_in(8) { late } else { self.driver.now() + Duration::from_secs(3600) };
        let finished = match loading {
            Some(loading) if abort && self.dice.one_in(2) => {
                drop(loading);
                false
            }
            Some(loading) => loading.finish(deadline).is_ok(),
            None => false,
        };
        // The lease ends, and the daemon has other plans for the bytes.
        self.daemons_arena.copy_in(lease, &vec![0xEE; bytes.len()]).unwrap();
        self.leased[(lease / LEASE_BYTES) as usize] = false;
        let given_blocks: Vec<u32> = needed.iter().map(|i| blocks[i as usize]).collect();
        self.loading_blocks.retain(|block| !given_blocks.contains(block));
        if !(whole && finished) {
            // They are given to somebody else, who writes them first.
            self.write(&given_blocks);
            return;
        }
        self.loaded += 1;
        for i in needed.iter() {
            let packed = stored.rank(i).unwrap() as usize * self.block_bytes() as usize;
            for (place, at) in self.memory.places(blocks[i as usize]).into_iter().zip(packed..) {
                self.truth[place] = bytes[at];
            }
        }
        let there: Vec<u8> = given_blocks
            .iter()
            .flat_map(|&block| self.memory.places(block))
            .map(|at| {
                // SAFETY: the engine's memory lives, and the load is over.
                unsafe { std::ptr::with_exposed_provenance::<u8>(self.base() + at).read() }
            })
            .collect();
        let expected = self.content(&blocks, needed, &self.truth);
        assert!(there == expected, "a load was reported whose bytes are not there");
    }

    /// One of all that can happen.
    pub(super) fn something(&mut self) {
        match self.dice.roll(12) {
            0 | 1 => self.pass(),
            2 | 3 => self.store(),
            4 => self.save(Duration::from_micros(500)),
            5 => self.plan_load(),
            6..=9 => self.go_on_loading(),
            10 => _ = self.carrier.pins.register_some(),
            _ => self.driver.pause(Duration::from_micros(50)),
        }
    }

    /// Ends everything, and looks at all that must be true then. Some lives end in a hurry: nobody waits for the stores.
    pub(super) fn end(mut self) -> (usize, usize) {
        while !self.loads.is_empty() {
            self.go_on_loading();
        }
        if self.dice.one_in(3) {
            self.storing.clear();
        }
        while !self.storing.is_empty() {
            self.save(Duration::from_secs(5));
        }
        self.carrier.end();
        self.carrier.close();
        let lost = self.carrier.lost();
        let Self { driver, carrier, memory, truth, staging, misread, stored, loaded, .. } = self;
        // Whatever it still holds on the device must be out of use.
        drop(carrier);
        driver.run_dry();
        assert_eq!(driver.violations(), [""; 0]);
        if !driver.is_lost() {
            assert_eq!(*misread.lock(), [""; 0]);
            assert!(now(&memory) == truth, "the engine's memory is not what its passes and loads made it");
        }
        if lost.is_none() {
            assert_eq!(staging.taken_bytes(), 0, "all slots are free");
            assert_eq!(driver.in_use(), (0, 0, 0), "nothing is left on the device");
        }
        (stored, loaded)
    }
}

/// What was written by addresses, which the compiler need not know of.
fn now(memory: &Memory) -> Vec<u8> {
    let base = std::hint::black_box(memory.bytes.as_ptr().expose_provenance());
    // SAFETY: the engine's memory lives, and nothing is on its way.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(base), memory.bytes.len()) }
        .to_vec()
}
