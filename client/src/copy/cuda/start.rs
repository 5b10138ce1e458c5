//! From a layout on a device to copies: everything that can be wrong is found here, before the first step.

use std::sync::Arc;

use tender_proto::{GroupIndex, Reason, Refusal};

use super::CudaCarrier;
use super::compile::{Kernels, NvrtcCompiler};
use super::digest;
use super::driver::real::{Cuda, NoDriver};
use super::driver::{DeviceMemory, Driver, Fault, Home};
use super::gpu::Gpu;
use super::load::LoadLanes;
use super::pins::Pins;
use super::settings::Settings;
use super::store::StoreLane;
use crate::config::{ClientConfig, DigestBy};
use crate::layout::ProvedLayout;

/// A ring below this would find no room for most chunks.
const LEAST_RING_BYTES: u64 = 8 << 20;
/// Left to the engine of what is free on the device.
const LEFT_ALONE_PERCENT: u64 = 50;

/// Copies over CUDA device `index`, on which all of the layout lies.
pub(crate) fn start(
    index: u32,
    layout: &Arc<ProvedLayout>,
    config: &ClientConfig,
) -> Result<CudaCarrier, Refusal> {
    let driver = Cuda::open(index).map_err(|no| {
        let advice = match no {
            NoDriver::NoDevice { .. } => "check CUDA_VISIBLE_DEVICES",
            _ => "the engine runs on without Tender",
        };
        Refusal::new(Reason::Unsupported, no.to_string(), advice)
    })?;
    let settings = Settings::new(&config.device);
    over(Arc::new(driver), layout, settings, config.load_threads, &NvrtcCompiler)
}

/// The same over any driver.
pub(super) fn over(
    driver: Arc<dyn Driver>,
    layout: &Arc<ProvedLayout>,
    settings: Settings,
    load_threads: usize,
    compiler: &dyn super::compile::Compiler,
) -> Result<CudaCarrier, Refusal> {
    all_on_this_device(&*driver, layout)?;
    let about = driver.about().clone();
    let kernels = Kernels::load(&*driver, compiler, settings.kernel_cache.as_deref())?;
    let refuse = |fault: Fault| {
        let advice = match fault {
            Fault::OutOfMemory { .. } => {
                "leave the device more memory, or choose smaller device.ring_bytes and device.load_ring_bytes"
            }
            _ => "the engine runs on without Tender",
        };
        Refusal::new(Reason::NoSpace, format!("CUDA device {}: {fault}", about.index), advice)
    };
    let wanted = settings.ring_bytes;
    let gpu = Arc::new(Gpu::new(Arc::clone(&driver), Arc::clone(layout), settings).map_err(refuse)?);
    let pins = Arc::new(Pins::new(Arc::clone(&gpu)));
    let loads = Arc::new(LoadLanes::new(Arc::clone(&gpu), load_threads).map_err(refuse)?);
    let ring = ring(&driver, layout, wanted).map_err(refuse)?;
    let ring_bytes = ring.bytes();
    if ring_bytes < wanted {
        tracing::warn!(
            wanted,
            got = ring_bytes,
            device = about.index,
            "the device has too little free memory for device.ring_bytes; stores that find the smaller ring full are skipped"
        );
    }
    if gpu.settings.digest == DigestBy::Auto {
        gpu.let_it_hash(digest::device_is_faster(&gpu, &ring));
    }
    let stores = Arc::new(StoreLane::new(Arc::clone(&gpu), Arc::clone(&pins), ring).map_err(refuse)?);
    tracing::info!(
        device = about.index, name = about.name, cuda = about.cuda(),
        compute_capability = format!("{}.{}", about.major, about.minor), %kernels, ring_bytes,
        digests = if gpu.hashes() { "device" } else { "host" },
        in_place = about.registers && about.registers_read_only && gpu.settings.register,
        "copies are made by CUDA"
    );
    Ok(CudaCarrier { gpu, pins, stores, loads })
}

/// Where the driver finds another home for a layer than was said, copies would go wrong.
fn all_on_this_device(driver: &dyn Driver, layout: &ProvedLayout) -> Result<(), Refusal> {
    let index = driver.about().index;
    for layer in layout.layers() {
        let elsewhere = match driver.home(layer.buffer.address()) {
            Ok(Home::Here) => continue,
            Ok(Home::Device(other)) => format!("lies on CUDA device {other}"),
            Ok(Home::NotOnADevice) => {
                "lies in memory that the CUDA driver does not know as a device's".into()
            }
            Err(fault) => format!("cannot be found by the CUDA driver: {fault}"),
        };
        return Err(Refusal::new(
            Reason::Unsupported,
            format!("layer {} {elsewhere}, and device {index} was named", layer.name),
            "one worker copies from and to one device; the engine runs on without Tender",
        ));
    }
    Ok(())
}

/// The ring between the engine's stream and staging: as large as wanted, or half of it and so on.
fn ring(driver: &Arc<dyn Driver>, layout: &ProvedLayout, wanted: u64) -> Result<DeviceMemory, Fault> {
    let groups = (0..layout.groups()).filter_map(|group| u16::try_from(group).ok()).map(GroupIndex);
    let block_bytes = groups.flat_map(|group| layout.parts(group)).map(|part| part.block_bytes());
    let least = block_bytes.max().unwrap_or(0).max(LEAST_RING_BYTES.min(wanted));
    let spare = driver.free_bytes()? / 100 * LEFT_ALONE_PERCENT;
    let mut bytes = wanted.min(spare.max(least));
    loop {
        match DeviceMemory::new(driver, bytes) {
            Err(Fault::OutOfMemory { .. }) if bytes / 2 >= least => bytes /= 2,
            other => return other,
        }
    }
}
