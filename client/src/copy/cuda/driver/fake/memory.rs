//! Memory of the model: what is where, and whether a copy may use it.

use std::collections::BTreeMap;

use super::Access;

/// What fresh and freed memory holds.
const POISON: u8 = 0xDB;

#[derive(Debug)]
pub(super) struct Memory {
    device_bytes: u64,
    /// Start, and bytes.
    device: BTreeMap<u64, u64>,
    pinned: BTreeMap<u64, u64>,
    registered: BTreeMap<u64, (u64, Access)>,
    adopted_bytes: u64,
    /// What was allocated here is never given back, so that a late copy meets poison and no stranger.
    buffers: Vec<Vec<u8>>,
    violations: Vec<String>,
}

impl Memory {
    pub(super) fn new(device_bytes: u64) -> Self {
        Self {
            device_bytes,
            device: BTreeMap::new(),
            pinned: BTreeMap::new(),
            registered: BTreeMap::new(),
            adopted_bytes: 0,
            buffers: Vec::new(),
            violations: Vec::new(),
        }
    }
    pub(super) fn violations(&self) -> &[String] {
        &self.violations
    }
    pub(super) fn in_use(&self) -> (u64, u64, usize) {
        let device = self.device.values().sum::<u64>() - self.adopted_bytes;
        (device, self.pinned.values().sum(), self.registered.len())
    }
    pub(super) fn free_bytes(&self) -> u64 {
        self.device_bytes.saturating_sub(self.device.values().sum::<u64>() - self.adopted_bytes)
    }
    pub(super) fn adopt(&mut self, address: u64, bytes: u64) {
        self.device.insert(address, bytes);
        self.adopted_bytes += bytes;
    }
    fn alloc(&mut self, bytes: u64) -> u64 {
        // As aligned as a device's.
        let mut buffer = vec![POISON; usize::try_from(bytes).expect("a test's size") + 256];
        let address = (buffer.as_mut_ptr().expose_provenance() as u64).next_multiple_of(256);
        self.buffers.push(buffer);
        address
    }
    pub(super) fn alloc_device(&mut self, bytes: u64) -> Option<u64> {
        if bytes > self.free_bytes() {
            return None;
        }
        let address = self.alloc(bytes);
        self.device.insert(address, bytes);
        Some(address)
    }
    pub(super) fn alloc_pinned(&mut self, bytes: u64) -> u64 {
        let address = self.alloc(bytes);
        self.pinned.insert(address, bytes);
        address
    }
    /// Poisons it, and says how much it was.
    pub(super) fn free(&mut self, address: u64) -> u64 {
        let Some(bytes) = self.device.remove(&address).or_else(|| self.pinned.remove(&address)) else {
            self.violations.push("memory freed that was not allocated".into());
            return 0;
        };
        // SAFETY: it is a buffer of ours, which lives as long as the model.
        unsafe { std::ptr::write_bytes(at(address), POISON, usize::try_from(bytes).unwrap_or(0)) };
        bytes
    }
    pub(super) fn register(&mut self, address: u64, bytes: u64, access: Access) {
        let meets =
            |(&start, &(len, _)): (&u64, &(u64, Access))| start < address + bytes && start + len > address;
        if self.registered.iter().any(meets) {
            self.violations.push("memory registered twice".into());
        }
        self.registered.insert(address, (bytes, access));
    }
    pub(super) fn unregister(&mut self, address: u64) -> u64 {
        match self.registered.remove(&address) {
            Some((bytes, _)) => bytes,
            None => {
                self.violations.push("a registration ended that there is not".into());
                0
            }
        }
    }
    pub(super) fn is_on_device(&self, address: u64) -> bool {
        holds(&self.device, address, 1)
    }
    /// A copy over the link.
    pub(super) fn transfer(&mut self, to: u64, from: u64, bytes: u64, to_host: bool) {
        let (device, host) = if to_host { (from, to) } else { (to, from) };
        if !holds(&self.device, device, bytes) {
            self.violations.push(format!("a copy of {bytes} bytes outside of the device's memory"));
        }
        let registered = self.registered.range(..=host).next_back();
        let registered = registered.filter(|&(&start, &(len, _))| host + bytes <= start + len);
        match registered {
            Some((_, (_, Access::ReadOnly))) if to_host => {
                self.violations.push("a copy into memory that was registered for reading".into());
            }
            Some(_) => {}
            None if holds(&self.pinned, host, bytes) => {}
            None => {
                self.violations.push(format!("a copy of {bytes} bytes of host memory that is not pinned"));
                return;
            }
        }
        self.move_bytes(to, from, bytes);
    }
    /// A kernel's own copy.
    pub(super) fn on_device(&mut self, to: u64, from: u64, bytes: u64) {
        if !(holds(&self.device, to, bytes) && holds(&self.device, from, bytes)) {
            self.violations.push(format!("a kernel's copy of {bytes} bytes outside of the device's memory"));
            return;
        }
        self.move_bytes(to, from, bytes);
    }
    fn move_bytes(&self, to: u64, from: u64, bytes: u64) {
        let len = usize::try_from(bytes).expect("a test's size");
        // SAFETY: both ranges are memory of this test, which outlives the model's steps; `copy` bears overlaps.
        unsafe { std::ptr::copy(at(from).cast_const(), at(to), len) };
    }
    /// Words of a table, as a kernel reads them.
    pub(super) fn words(&mut self, address: u64, count: u64) -> Vec<u64> {
        if !holds(&self.device, address, 8 * count) {
            self.violations.push("a kernel's table outside of the device's memory".into());
            return vec![0; usize::try_from(count).unwrap_or(0)];
        }
        let words = std::ptr::with_exposed_provenance::<u64>(usize::try_from(address).unwrap_or(0));
        // SAFETY: it is a buffer of this test, and aligned.
        (0..usize::try_from(count).unwrap_or(0)).map(|i| unsafe { words.add(i).read_unaligned() }).collect()
    }
    pub(super) fn bytes(&mut self, address: u64, len: u64) -> Vec<u8> {
        if !holds(&self.device, address, len) {
            self.violations.push("a kernel reads outside of the device's memory".into());
            return Vec::new();
        }
        let len = usize::try_from(len).unwrap_or(0);
        // SAFETY: it is a buffer of this test.
        unsafe { std::slice::from_raw_parts(at(address).cast_const(), len) }.to_vec()
    }
    pub(super) fn put(&mut self, address: u64, bytes: &[u8]) {
        if !holds(&self.device, address, bytes.len() as u64) {
            self.violations.push("a kernel writes outside of the device's memory".into());
            return;
        }
        // SAFETY: it is a buffer of this test.
        unsafe { std::ptr::copy(bytes.as_ptr(), at(address), bytes.len()) };
    }
}

fn at(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

fn holds(ranges: &BTreeMap<u64, u64>, address: u64, bytes: u64) -> bool {
    ranges.range(..=address).next_back().is_some_and(|(&start, &len)| address + bytes <= start + len)
}
