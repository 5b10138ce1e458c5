//! A GPU through its driver, or whatever calls itself one.
//!
//! This module is one of the few where unsafe code lives: device memory is handed out before it is written, and kernels
//! are launched with addresses for arguments.
#![allow(unsafe_code, reason = "launches kernels, and measures with memory that nobody reads")]

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute, CUevent_flags};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, LaunchConfig,
    PinnedHostSlice, PushKernelArg,
};
use cudarc::nvrtc::{CompileOptions, Ptx, compile_ptx_with_opts};
use tender_kernels::cuda::{self, Launch, abi};

use super::{Area, Device, Outcome, POISON};

/// A product of matrices, to be busy with. Arguments: a, b, their product, their rows.
pub const PRODUCT: &str = "tender_product";
const PRODUCT_SOURCE: &str = include_str!("../../../kernels/cuda/product.cu");
const PRODUCT_PTX: &str = include_str!("../../../kernels/cuda/product.ptx");

/// One device, its stream and our kernels on it.
#[derive(Debug)]
pub struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    kernels: HashMap<&'static str, CudaFunction>,
    /// The device's name.
    pub name: String,
    /// Where the kernels' code comes from.
    pub code: String,
    sms: u32,
}

impl Gpu {
    /// The first device. Says in one sentence what is missing if there is none.
    pub fn open() -> Outcome<Self> {
        // SAFETY: loads a library that is meant to be loaded, and drops it.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err("no CUDA driver on this machine: libcuda.so.1 was not found".into());
        }
        let context =
            CudaContext::new(0).map_err(|error| format!("the CUDA driver offers no device: {error}"))?;
        // SAFETY: everything here runs on one stream, or waits for it.
        unsafe { context.disable_event_tracking() };
        let (major, minor) = context.compute_capability()?;
        let architecture = format!("compute_{major}{minor}");
        let (module, code) = load(&context, &architecture, cuda::SOURCE, cuda::PTX)?;
        let kernels = abi::KERNELS.map(|name| Ok((name, module.load_function(name)?)));
        let mut kernels = kernels.into_iter().collect::<Outcome<HashMap<_, _>>>()?;
        let (module, _) = load(&context, &architecture, PRODUCT_SOURCE, PRODUCT_PTX)?;
        kernels.insert(PRODUCT, module.load_function(PRODUCT)?);
        let sms = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let stream = context.new_stream()?;
        Ok(Self { name: context.name()?, sms: u32::try_from(sms)?, context, stream, kernels, code })
    }

    /// Whether figures of this device mean nothing.
    pub fn is_fake(&self) -> bool {
        self.name.starts_with("fake")
    }

    /// Memory for measurements; its content does not matter.
    pub fn bytes(&self, bytes: usize) -> Outcome<CudaSlice<u8>> {
        // SAFETY: any bytes are valid ones, and none are read before they are written or for what they say.
        Ok(unsafe { self.stream.alloc(bytes) }?)
    }
    /// Pinned memory of the host that the CPU can read at its usual speed.
    pub fn pinned(&self, bytes: usize) -> Outcome<PinnedHostSlice<u8>> {
        // SAFETY: as above.
        Ok(unsafe { self.context.alloc_pinned_with_flags(bytes, 0) }?)
    }
    /// Where memory lies.
    pub fn address(&self, memory: &CudaSlice<u8>) -> u64 {
        memory.device_ptr(&self.stream).0
    }
    /// Another stream, which nothing waits for by itself; of the lowest priority, as a client's transfers.
    pub fn other_stream(&self) -> Outcome<Arc<CudaStream>> {
        Ok(self.context.new_stream_with_priority(0)?)
    }
    /// The stream that everything else runs on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Milliseconds that the device takes for `work`, the median of several runs after a first that does not count.
    pub fn milliseconds(&self, runs: usize, mut work: impl FnMut() -> Outcome<()>) -> Outcome<f32> {
        let event = || self.context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let mut all = Vec::with_capacity(runs);
        work()?;
        for _ in 0..runs {
            let (from, to) = (event()?, event()?);
            from.record(&self.stream)?;
            work()?;
            to.record(&self.stream)?;
            to.synchronize()?;
            all.push(from.elapsed_ms(&to)?);
        }
        all.sort_by(f32::total_cmp);
        Ok(all[runs / 2])
    }

    /// Queues a kernel.
    pub fn enqueue(&self, launch: &Launch, arguments: &[u64]) -> Outcome<()> {
        self.enqueue_on(&self.stream, launch, arguments)
    }
    /// Queues a kernel on a stream of [`Gpu::other_stream`].
    pub fn enqueue_on(&self, stream: &Arc<CudaStream>, launch: &Launch, arguments: &[u64]) -> Outcome<()> {
        let kernel = self.kernels.get(launch.kernel).ok_or_else(|| format!("no kernel {}", launch.kernel))?;
        let mut builder = stream.launch_builder(kernel);
        for argument in arguments {
            builder.arg(argument);
        }
        let config = LaunchConfig {
            grid_dim: (launch.grid, 1, 1),
            block_dim: (launch.block, 1, 1),
            shared_mem_bytes: launch.shared_bytes,
        };
        // SAFETY: name, arguments and numbers come from the same table; the memory that they name lives until the
        // stream was waited for.
        unsafe { builder.launch(config) }?;
        Ok(())
    }
}

/// The kernels compiled for this device, or, without NVRTC or where it fails, from the PTX that was made beforehand.
fn load(
    context: &Arc<CudaContext>,
    architecture: &str,
    source: &str,
    prebuilt: &str,
) -> Outcome<(Arc<CudaModule>, String)> {
    // SAFETY: loads a library that is meant to be loaded, and drops it.
    let why = if unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        let options = cuda::NVRTC_OPTIONS.map(String::from).to_vec();
        let options = [options, vec![format!("--gpu-architecture={architecture}")]].concat();
        match compile_ptx_with_opts(source, CompileOptions { options, ..CompileOptions::default() }) {
            Ok(ptx) => match context.load_module(ptx) {
                Ok(module) => return Ok((module, format!("compiled by NVRTC for {architecture}"))),
                Err(error) => format!("the driver refuses what NVRTC made: {error}"),
            },
            Err(error) => format!("NVRTC: {error}"),
        }
    } else {
        "NVRTC was not found".into()
    };
    let module = context.load_module(Ptx::from_src(prebuilt))?;
    Ok((module, format!("prebuilt PTX for {} ({why})", cuda::PTX_ARCH)))
}

impl Device for Gpu {
    fn sms(&self) -> u32 {
        self.sms
    }
    fn area(&self, bytes: usize, past: usize) -> Outcome<Area> {
        // The driver gives out multiples of 256; at least one byte.
        let memory = self.stream.clone_htod(&vec![POISON; (past + bytes).max(1)])?;
        let address = self.address(&memory) + past as u64;
        Ok(Area { address, bytes, past, keep: Box::new(memory) })
    }
    fn write(&self, area: &mut Area, bytes: &[u8]) -> Outcome<()> {
        let past = area.past;
        let memory = area.keep.downcast_mut::<CudaSlice<u8>>().ok_or("another device's memory")?;
        if !bytes.is_empty() {
            self.stream.memcpy_htod(bytes, &mut memory.slice_mut(past..past + bytes.len()))?;
        }
        Ok(())
    }
    fn read(&self, area: &Area) -> Outcome<Vec<u8>> {
        let memory = area.keep.downcast_ref::<CudaSlice<u8>>().ok_or("another device's memory")?;
        let mut all = self.stream.clone_dtoh(memory)?;
        self.stream.synchronize()?;
        Ok(all.split_off(area.past.min(all.len() - area.bytes)))
    }
    fn launch(&self, launch: &Launch, arguments: &[u64]) -> Outcome<()> {
        self.enqueue(launch, arguments)?;
        Ok(self.stream.synchronize()?)
    }
}

/// Copies for comparison.
impl Gpu {
    /// Queues a copy inside of the device.
    pub fn copy_inside(&self, from: &CudaSlice<u8>, to: &mut CudaSlice<u8>) -> Outcome<()> {
        Ok(self.stream.memcpy_dtod(from, to)?)
    }
    /// Queues a copy from the host.
    pub fn copy_in(&self, from: &PinnedHostSlice<u8>, to: &mut CudaSlice<u8>) -> Outcome<()> {
        Ok(self.stream.memcpy_htod(from, to)?)
    }
    /// Queues a copy to the host.
    pub fn copy_out(&self, from: &CudaSlice<u8>, to: &mut PinnedHostSlice<u8>) -> Outcome<()> {
        let _ = to.as_ptr()?;
        Ok(self.stream.memcpy_dtoh(from, to)?)
    }
    /// Where pinned memory lies, as kernels see it.
    pub fn mapped(&self, memory: &mut PinnedHostSlice<u8>) -> Outcome<u64> {
        Ok(memory.as_mut_ptr()?.expose_provenance() as u64)
    }
    /// Where memory that a kernel writes lies.
    pub fn address_mut(&self, memory: &mut CudaSlice<u8>) -> u64 {
        memory.device_ptr_mut(&self.stream).0
    }
}
