//! CUDA's driver, loaded when it is first asked for.
//!
//! The device's primary context is retained, the one that the engine's framework uses, and never made anybody's
//! current one for longer than a call: it is pushed before and popped after. Threads of ours may run while the engine
//! records a graph, which forbids calls that could wait; the mode is relaxed for the call, since none of ours does.
//!
//! The bindings panic where a library or a function is missing, so both are looked for first.
#![allow(unsafe_code, reason = "calls of the driver's C interface")]

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use parking_lot::RwLock;
use tender_kernels::cuda::abi::KERNELS;

use super::{About, Access, Driver, Fault, Home, Image, Kernel, Shape, StreamState};

/// Oldest driver that has all that is used here: CUDA 12.0.
pub(in super::super) const OLDEST_DRIVER: i32 = 12_000;

/// Everything that is called below; `the_list_of_functions_is_complete` compares it with this file.
const FUNCTIONS: [&str; 36] = [
    "cuCtxGetStreamPriorityRange",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuPointerGetAttribute",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

/// Why there is no device to copy with.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(in super::super) enum NoDriver {
    #[error("this machine has no CUDA driver (libcuda.so.1 was not found)")]
    Missing,
    #[error("the CUDA driver lacks {0}; driver 525 (CUDA 12.0) or a newer one is needed")]
    Lacks(&'static str),
    #[error("the CUDA driver is for CUDA {0}; driver 525 (CUDA 12.0) or a newer one is needed")]
    TooOld(String),
    #[error("there is no CUDA device {index}; this process sees {count}")]
    NoDevice { index: u32, count: i32 },
    #[error("CUDA device {index} has no unified addresses, which copies by address need")]
    NoUnifiedAddresses { index: u32 },
    #[error("the CUDA driver does not start: {0}")]
    Refused(#[from] Fault),
}

/// One device.
pub(in super::super) struct Cuda {
    about: About,
    device: sys::CUdevice,
    context: Pointer<sys::CUctx_st>,
    priority: c_int,
    functions: RwLock<Vec<Pointer<sys::CUfunc_st>>>,
}

/// An opaque pointer of the driver's.
struct Pointer<T>(*mut T);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Pointer<T> {}

// SAFETY: the driver's handles may be used by any thread; they are never followed here.
unsafe impl<T> Send for Pointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Pointer<T> {}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({}, {})", self.about.index, self.about.name)
    }
}

/// A call's answer. Numbers that these bindings do not know are answers too, so it is looked at as a number only.
fn check(call: &'static str, answer: sys::CUresult) -> Result<(), Fault> {
    let code = answer as i32;
    let name = name_of(code);
    match code {
        0 => Ok(()),
        2 => Err(Fault::OutOfMemory { call }),
        4 | 46 | 201 | 214 | 220 | 700 | 702 | 709 | 710 | 714..=719 | 999 => {
            Err(Fault::Lost { call, name, code })
        }
        _ => Err(Fault::Refused { call, name, code }),
    }
}

fn name_of(code: i32) -> &'static str {
    match code {
        1 => "invalid value",
        3 => "not initialised",
        4 => "the driver is shutting down",
        46 => "the device is unavailable",
        100 => "no device",
        101 => "no such device",
        200 => "the kernels' image is not for this device",
        201 => "the context is invalid",
        209 => "no code in the kernels' image is for this device",
        214 => "an uncorrectable memory error",
        218 => "the kernels' PTX is invalid",
        220 => "an uncorrectable NVLink error",
        222 => "the kernels' PTX is of a newer version than the driver",
        400 => "invalid handle",
        700 => "an illegal address",
        702 => "a kernel took too long",
        709 => "the context was destroyed",
        710 => "an assertion on the device",
        712 => "the memory is registered already",
        713 => "the memory is not registered",
        715 => "an illegal instruction",
        716 => "a misaligned address",
        719 => "a kernel failed",
        800 => "not permitted",
        801 => "not supported",
        900 | 901 | 906 => "not while a graph is being recorded",
        _ => "an error",
    }
}

/// The context is current for as long as this lives, and waiting calls of ours are none.
struct Entered {
    mode: sys::CUstreamCaptureMode,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        // SAFETY: both undo what `enter` did on this thread.
        unsafe {
            sys::cuThreadExchangeStreamCaptureMode(&mut self.mode);
            sys::cuCtxPopCurrent_v2(&mut context);
        }
    }
}

impl Cuda {
    /// Finds the driver and the device that the process sees as number `index`.
    pub(in super::super) fn open(index: u32) -> Result<Self, NoDriver> {
        // SAFETY: it only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(NoDriver::Missing);
        }
        // SAFETY: the library is there; a symbol is looked up by its name and not called.
        let has = |name: &str| unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_ok() };
        if let Some(missing) = FUNCTIONS.into_iter().find(|name| !has(name)) {
            return Err(NoDriver::Lacks(missing));
        }
        let (mut version, mut count, mut device, mut context) = (0, 0, 0, ptr::null_mut());
        // SAFETY: all out-pointers are to locals of the right types.
        unsafe {
            check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
            if version < OLDEST_DRIVER {
                return Err(NoDriver::TooOld(super::cuda_version(version)));
            }
            match check("cuInit", sys::cuInit(0)) {
                Err(Fault::Refused { code: 100, .. }) => return Err(NoDriver::NoDevice { index, count }),
                other => other?,
            }
            check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
            let ordinal = i32::try_from(index).ok().filter(|&ordinal| ordinal < count);
            let ordinal = ordinal.ok_or(NoDriver::NoDevice { index, count })?;
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal))?;
            let about = about(index, device, version)?;
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            let mut cuda =
                Self { about, device, context: Pointer(context), priority: 0, functions: RwLock::default() };
            let (mut least, mut greatest) = (0, 0);
            {
                let _in = cuda.enter()?;
                check(
                    "cuCtxGetStreamPriorityRange",
                    sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest),
                )?;
            }
            cuda.priority = least;
            Ok(cuda)
        }
    }

    fn enter(&self) -> Result<Entered, Fault> {
        // SAFETY: the context is retained.
        check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.context.0) })?;
        let mut entered = Entered { mode: sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED };
        // SAFETY: the out-pointer is to a local; the mode that was is put back.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut entered.mode) };
        Ok(entered)
    }
}

/// # Safety
/// The driver is initialised and has the device.
unsafe fn about(index: u32, device: sys::CUdevice, driver_version: i32) -> Result<About, NoDriver> {
    use sys::CUdevice_attribute as Attribute;
    let ask = |attribute| {
        let mut value = 0;
        // SAFETY: the out-pointer is to a local.
        let answer = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
        // An attribute that the driver does not know is one that the device does not have.
        check("cuDeviceGetAttribute", answer).map_or(0, |()| u32::try_from(value).unwrap_or(0))
    };
    if ask(Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) == 0 {
        return Err(NoDriver::NoUnifiedAddresses { index });
    }
    let (mut name, mut total_bytes) = ([0u8; 128], 0usize);
    // SAFETY: the buffer has the length that is given and stays zero-terminated; the out-pointer is to a local.
    unsafe {
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr().cast(), 127, device))?;
        check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut total_bytes, device))?;
    }
    let name = String::from_utf8_lossy(name.split(|&byte| byte == 0).next().unwrap_or_default());
    Ok(About {
        name: name.into_owned(),
        index,
        major: ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        minor: ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        driver_version,
        multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        total_bytes: total_bytes as u64,
        registers: ask(Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) != 0,
        registers_read_only: ask(Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0,
    })
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: it was retained once.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

fn stream(handle: u64) -> sys::CUstream {
    ptr::with_exposed_provenance_mut(size(handle))
}
fn event(handle: u64) -> sys::CUevent {
    ptr::with_exposed_provenance_mut(size(handle))
}
fn host(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(size(address))
}
fn number<T>(handle: *mut T) -> u64 {
    handle.expose_provenance() as u64
}

#[expect(clippy::cast_possible_truncation, reason = "the kernels' crate compiles for 64 bits only")]
const fn size(bytes: u64) -> usize {
    bytes as usize
}

/// "Not ready" is no fault.
fn ready(answer: Result<(), Fault>) -> Result<bool, Fault> {
    match answer {
        Ok(()) => Ok(true),
        Err(Fault::Refused { code: 600, .. }) => Ok(false),
        Err(fault) => Err(fault),
    }
}

// Every out-pointer below is to a local of the type that the function writes; every handle came from the driver.
impl Driver for Cuda {
    fn about(&self) -> &About {
        &self.about
    }

    fn free_bytes(&self) -> Result<u64, Fault> {
        let _in = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: see above.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free as u64)
    }

    fn alloc_device(&self, bytes: u64) -> Result<u64, Fault> {
        let _in = self.enter()?;
        let mut address = 0;
        // SAFETY: see above.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, size(bytes)) })?;
        Ok(address)
    }

    fn alloc_pinned(&self, bytes: u64) -> Result<u64, Fault> {
        let _in = self.enter()?;
        let mut address = ptr::null_mut();
        // Not write-combined: the host reads it.
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: see above.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut address, size(bytes), flags) })?;
        Ok(number(address))
    }

    unsafe fn free_device(&self, address: u64) {
        if let Ok(_in) = self.enter() {
            // SAFETY: passed on.
            unsafe { sys::cuMemFree_v2(address) };
        }
    }

    unsafe fn free_pinned(&self, address: u64) {
        if let Ok(_in) = self.enter() {
            // SAFETY: passed on.
            unsafe { sys::cuMemFreeHost(host(address)) };
        }
    }

    fn register(&self, address: u64, bytes: u64, access: Access) -> Result<(), Fault> {
        let _in = self.enter()?;
        let flags = match access {
            Access::ReadWrite => sys::CU_MEMHOSTREGISTER_PORTABLE,
            Access::ReadOnly => sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_READ_ONLY,
        };
        // SAFETY: the driver checks the range; registering changes no byte.
        check("cuMemHostRegister", unsafe { sys::cuMemHostRegister_v2(host(address), size(bytes), flags) })
    }

    unsafe fn unregister(&self, address: u64) -> Result<(), Fault> {
        let _in = self.enter()?;
        // SAFETY: passed on.
        check("cuMemHostUnregister", unsafe { sys::cuMemHostUnregister(host(address)) })
    }

    fn home(&self, address: u64) -> Result<Home, Fault> {
        use sys::CUpointer_attribute as Attribute;
        let _in = self.enter()?;
        let ask = |attribute| {
            let mut value: c_int = 0;
            // SAFETY: these attributes are of the size of an int; an address is looked up, never followed.
            let answer = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), attribute, address) };
            check("cuPointerGetAttribute", answer).map(|()| value)
        };
        match ask(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            // 2: memory of a device.
            Ok(2) => {
                let index = u32::try_from(ask(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?).unwrap_or(0);
                Ok(if index == self.about.index { Home::Here } else { Home::Device(index) })
            }
            Ok(_) | Err(Fault::Refused { code: 1, .. }) => Ok(Home::NotOnADevice),
            Err(fault) => Err(fault),
        }
    }

    fn new_stream(&self) -> Result<u64, Fault> {
        let _in = self.enter()?;
        let mut handle = ptr::null_mut();
        // Not ordered with the legacy stream: only by our own events.
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: see above.
        let answer = unsafe { sys::cuStreamCreateWithPriority(&mut handle, flags, self.priority) };
        check("cuStreamCreateWithPriority", answer)?;
        Ok(number(handle))
    }

    fn drop_stream(&self, handle: u64) {
        if let Ok(_in) = self.enter() {
            // SAFETY: see above; its owner names it no more.
            unsafe { sys::cuStreamDestroy_v2(stream(handle)) };
        }
    }

    fn stream_state(&self, handle: u64) -> Result<StreamState, Fault> {
        let _in = self.enter()?;
        // 0, 1 and 2 are the default streams of whatever context is current, which is ours.
        if handle > 2 {
            let mut context = ptr::null_mut();
            // SAFETY: see above.
            let answer = unsafe { sys::cuStreamGetCtx(stream(handle), &mut context) };
            match check("cuStreamGetCtx", answer) {
                Ok(()) if context == self.context.0 => {}
                Ok(()) | Err(Fault::Refused { .. }) => return Ok(StreamState::Foreign),
                Err(fault) => return Err(fault),
            }
        }
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: see above.
        let answer = unsafe { sys::cuStreamIsCapturing(stream(handle), &mut status) };
        match check("cuStreamIsCapturing", answer) {
            Ok(()) if status as u32 == 0 => Ok(StreamState::Ready),
            // Another stream records, and would be disturbed by work on the legacy one.
            Ok(()) | Err(Fault::Refused { code: 906, .. }) => Ok(StreamState::Capturing),
            Err(fault) => Err(fault),
        }
    }

    fn new_event(&self) -> Result<u64, Fault> {
        let _in = self.enter()?;
        let mut handle = ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: see above.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags) })?;
        Ok(number(handle))
    }

    fn drop_event(&self, handle: u64) {
        if let Ok(_in) = self.enter() {
            // SAFETY: see above; its owner names it no more.
            unsafe { sys::cuEventDestroy_v2(event(handle)) };
        }
    }

    fn record(&self, of: u64, on: u64) -> Result<(), Fault> {
        let _in = self.enter()?;
        // SAFETY: see above.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event(of), stream(on)) })
    }

    fn wait(&self, on: u64, of: u64) -> Result<(), Fault> {
        let _in = self.enter()?;
        // SAFETY: see above.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream(on), event(of), 0) })
    }

    fn is_idle(&self, on: u64) -> Result<bool, Fault> {
        let _in = self.enter()?;
        // SAFETY: see above.
        ready(check("cuStreamQuery", unsafe { sys::cuStreamQuery(stream(on)) }))
    }

    fn is_done(&self, of: u64) -> Result<bool, Fault> {
        let _in = self.enter()?;
        // SAFETY: see above.
        ready(check("cuEventQuery", unsafe { sys::cuEventQuery(event(of)) }))
    }

    unsafe fn to_device(&self, on: u64, to: u64, from: u64, bytes: u64) -> Result<(), Fault> {
        let _in = self.enter()?;
        // SAFETY: passed on.
        let answer = unsafe { sys::cuMemcpyHtoDAsync_v2(to, host(from), size(bytes), stream(on)) };
        check("cuMemcpyHtoDAsync", answer)
    }

    unsafe fn to_host(&self, on: u64, to: u64, from: u64, bytes: u64) -> Result<(), Fault> {
        let _in = self.enter()?;
        // SAFETY: passed on.
        let answer = unsafe { sys::cuMemcpyDtoHAsync_v2(host(to), from, size(bytes), stream(on)) };
        check("cuMemcpyDtoHAsync", answer)
    }

    fn load(&self, image: Image<'_>) -> Result<(), Fault> {
        let invalid = Fault::Refused { call: "cuModuleLoadData", name: name_of(218), code: 218 };
        let text;
        let start: *const c_void = match image {
            // It ends by its own header.
            Image::Cubin(code) => code.as_ptr().cast(),
            Image::Ptx(ptx) => {
                text = CString::new(ptx).map_err(|_| invalid)?;
                text.as_ptr().cast()
            }
        };
        let _in = self.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: a whole image, or zero-terminated text; the driver copies it.
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, start) })?;
        let mut functions = Vec::new();
        for name in KERNELS {
            let name = CString::new(name).map_err(|_| invalid)?;
            let mut function = ptr::null_mut();
            // SAFETY: see above; modules are never unloaded, so their functions stay.
            let answer = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
            check("cuModuleGetFunction", answer)?;
            functions.push(Pointer(function));
        }
        *self.functions.write() = functions;
        Ok(())
    }

    unsafe fn launch(&self, on: u64, kernel: Kernel, shape: Shape, arguments: &[u64]) -> Result<(), Fault> {
        let function = self.functions.read().get(kernel.0).copied();
        let unloaded = Fault::Refused { call: "cuLaunchKernel", name: "no kernels are loaded", code: 0 };
        let function = function.ok_or(unloaded)?;
        let _in = self.enter()?;
        let mut pointers: Vec<*mut c_void> =
            arguments.iter().map(|argument| (&raw const *argument).cast_mut().cast()).collect();
        let Shape { grid, block, shared_bytes } = shape;
        // SAFETY: the arguments are read during the call, each as the 64 bits that it is; the rest is passed on.
        let answer = unsafe {
            sys::cuLaunchKernel(
                function.0,
                grid,
                1,
                1,
                block,
                1,
                1,
                shared_bytes,
                stream(on),
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", answer)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_functions_is_complete() {
        let source = include_str!("real.rs");
        let mut called: Vec<&str> = source
            .split("sys::")
            .skip(1)
            .filter_map(|rest| rest.split('(').next().filter(|name| name.starts_with("cu")))
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
            .filter(|name| name.starts_with("cu") && name.as_bytes()[2].is_ascii_uppercase())
            .filter(|name| *name != "culib")
            .collect();
        called.sort_unstable();
        called.dedup();
        assert_eq!(called, FUNCTIONS);
    }

    #[test]
    fn a_machine_without_a_driver_is_told_so() {
        // SAFETY: it only tries to load the library.
        if unsafe { sys::is_culib_present() } {
            return;
        }
        assert_eq!(Cuda::open(0).unwrap_err(), NoDriver::Missing);
    }

    #[test]
    fn broken_devices_are_told_from_refused_calls() {
        // SAFETY: both are numbers of this type.
        let answers = unsafe { [719, 1].map(|code: u32| std::mem::transmute::<u32, sys::CUresult>(code)) };
        let faults = answers.map(|answer| check("f", answer).unwrap_err());
        assert!(matches!(faults[0], Fault::Lost { code: 719, .. }));
        assert_eq!(faults[1].to_string(), "f: invalid value (1)");
        assert_eq!(
            check("f", sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            Err(Fault::OutOfMemory { call: "f" })
        );
    }
}
