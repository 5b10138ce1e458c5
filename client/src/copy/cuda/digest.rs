//! Who hashes what is stored: measured once, when the worker starts.
#![allow(unsafe_code, reason = "begins kernels; all memory is kept until they are done")]

use std::cell::Cell;
use std::time::{Duration, Instant};

use tender_kernels::cuda::Messages;
use tender_proto::ContentDigest;

use super::driver::{DeviceMemory, Event, Fault, PinnedMemory, Stream};
use super::flight::keep_for_good;
use super::gpu::{Gpu, as_bytes};
use super::ring::ALIGN_BYTES;

/// Hashed by both, as parts of a common size.
const PARTS: u64 = 16;
const PART_BYTES: u64 = 1 << 20;
/// A device below this many times the rate of one host thread is left to the engine: several threads of ours hash.
const WORTH_IT: f64 = 4.0;
/// A device that takes longer than this for the sample is not worth waiting for.
const PATIENCE: Duration = Duration::from_millis(200);

/// Hashes a sample on both sides, and says which one is chosen.
pub(super) fn device_is_faster(gpu: &Gpu, ring: &DeviceMemory) -> bool {
    let part_bytes = PART_BYTES.min(ring.bytes() / PARTS / ALIGN_BYTES * ALIGN_BYTES);
    let sample = vec![7u8; usize::try_from(part_bytes).unwrap_or(0)];
    let started = Instant::now();
    for _ in 0..PARTS {
        std::hint::black_box(ContentDigest::of(std::hint::black_box(&sample)));
    }
    let host = started.elapsed();
    let device = match on_device(gpu, ring, part_bytes) {
        Ok(time) => time,
        Err(fault) => {
            tracing::warn!(%fault, "digests on the device cannot be measured; the host computes them");
            return false;
        }
    };
    let ratio = host.as_secs_f64() / device.as_secs_f64().max(1e-9);
    let chosen = ratio >= WORTH_IT;
    tracing::info!(
        bytes = PARTS * part_bytes,
        ?host,
        ?device,
        chosen = if chosen { "device" } else { "host" },
        "digests were measured on one thread of the host and on the device"
    );
    chosen
}

/// The second of two rounds: the first one pays for what is made on first use.
fn on_device(gpu: &Gpu, ring: &DeviceMemory, part_bytes: u64) -> Result<Duration, Fault> {
    let mut messages = Messages::new();
    (0..PARTS).for_each(|part| messages.push(ring.address() + part * part_bytes, part_bytes));
    let table = as_bytes(messages.words());
    let digests_at = (table.len() as u64).next_multiple_of(ALIGN_BYTES);
    let scratch_at = (digests_at + messages.digest_bytes()).next_multiple_of(ALIGN_BYTES);
    let there = DeviceMemory::new(&gpu.driver, scratch_at + messages.scratch_bytes())?;
    let here = PinnedMemory::new(&gpu.driver, table.len() as u64)?;
    let stream = Stream::new(&gpu.driver)?;
    let hung = Cell::new(false);
    let round = || {
        let started = gpu.driver.now();
        // SAFETY: all memory is kept below until the stream is known to be done, or for good.
        let begun = unsafe {
            here.write(0, &table);
            let addresses = (there.address(), there.address() + scratch_at, there.address() + digests_at);
            let (groups, roots) = (
                messages.groups(gpu.beside(), addresses.0, addresses.1, addresses.2),
                messages.roots(gpu.beside(), addresses.0, addresses.1, addresses.2),
            );
            let uploaded =
                gpu.driver.to_device(stream.handle(), addresses.0, here.address(), table.len() as u64);
            uploaded.and_then(|()| gpu.launch(stream.handle(), groups.0, &groups.1)).and_then(
                |()| match roots {
                    Some(roots) => gpu.launch(stream.handle(), roots.0, &roots.1),
                    None => Ok(()),
                },
            )
        };
        let event = Event::record(&gpu.driver, stream.handle()).ok();
        while !gpu.is_done(event.as_ref(), stream.handle())? {
            if gpu.driver.now() > started + 10 * PATIENCE {
                hung.set(true);
                return Err(Fault::Refused {
                    call: "a sample of digests",
                    name: "the device does not finish it",
                    code: 0,
                });
            }
            gpu.driver.pause(Duration::from_micros(10));
        }
        begun.map(|()| gpu.driver.now() - started)
    };
    let measured = match round() {
        Ok(first) if first > PATIENCE => Ok(first),
        Ok(_) => round(),
        Err(fault) => Err(fault),
    };
    if hung.get() || gpu.lost().is_some() {
        // Nobody knows whether the kernels still run; they read what lies in the ring, whatever it is.
        keep_for_good((there, here, stream));
    }
    measured
}
