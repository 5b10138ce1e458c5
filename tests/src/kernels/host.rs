//! The kernels' own sources as host code, and memory that is known by address.
//!
//! This module is one of the few where unsafe code lives: it calls the host build, and lets the CPU truth copy in
//! memory of the tests' own.
#![allow(unsafe_code, reason = "calls foreign code, and copies through the addresses of layouts")]

use std::alloc;
use std::ffi::{CString, c_char, c_int, c_uint};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::Library;
use tender_client::layout::BufferDesc;
use tender_kernels::cuda::Launch;
use tender_kernels::{Move, PageMap, reference};

use super::{Area, Device, Outcome, POISON};

/// How the host build is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Build {
    /// Optimised.
    Plain,
    /// With AddressSanitizer and UndefinedBehaviorSanitizer; a process that loads it must preload
    /// [`address_sanitizer`].
    Sanitized,
}

impl Build {
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["-O2"],
            Self::Sanitized => &["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
        }
    }
}

const SOURCES: [&str; 8] = [
    "cuda/abi.cuh",
    "cuda/copy.cu",
    "cuda/blake3.cu",
    "cuda/product.cu",
    "host/shim.h",
    "host/launch.h",
    "host/launch.cpp",
    "host/fake_cuda.cpp",
];
const OPTIONS: [&str; 8] = [
    "-std=c++20",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
    "-fPIC",
    "-shared",
    "-fno-strict-aliasing",
    "-pthread",
];
/// What programs look for.
const LIBRARY: &str = "libcuda.so.1";

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".into())
}

/// A folder with `libcuda.so.1`: a driver without a GPU, which runs the kernels' sources on the CPU. Put it into
/// `LD_LIBRARY_PATH` of a program that uses CUDA. Compiled once for each state of the sources.
pub fn fake_driver(build: Build) -> Outcome<PathBuf> {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels");
    let mut hasher = blake3::Hasher::new();
    for source in SOURCES {
        hasher.update(&fs::read(kernels.join(source))?);
    }
    for option in OPTIONS.iter().chain(build.options()).copied().chain([compiler().as_str()]) {
        hasher.update(option.as_bytes());
    }
    let digest = &hasher.finalize().to_hex()[..16];
    let outputs = std::env::current_exe()?.parent().ok_or("a program without a folder")?.join("fake-cuda");
    let folder = outputs.join(digest);
    fs::create_dir_all(&folder)?;
    // Tests are processes that may all come at once.
    let lock = File::create(outputs.join("lock"))?;
    lock.lock()?;
    let library = folder.join(LIBRARY);
    if !library.exists() {
        let unfinished = folder.join("unfinished");
        let mut command = Command::new(compiler());
        command.args(OPTIONS).args(build.options()).arg("-o").arg(&unfinished);
        let sources = SOURCES.iter().filter(|source| source.ends_with(".cpp"));
        command.args(sources.map(|source| kernels.join(source))).arg("-ldl");
        let done = command
            .output()
            .map_err(|error| format!("{}: {error}; a C++20 compiler is needed", compiler()))?;
        if !done.status.success() {
            return Err(format!("{command:?}\n{}", String::from_utf8_lossy(&done.stderr)).into());
        }
        fs::rename(&unfinished, &library)?;
    }
    Ok(folder)
}

/// The library that must be preloaded into processes that load the sanitized build.
pub fn address_sanitizer() -> Outcome<PathBuf> {
    let found = Command::new(compiler()).arg("-print-file-name=libasan.so").output()?;
    Ok(PathBuf::from(String::from_utf8(found.stdout)?.trim()))
}

type LaunchFn = unsafe extern "C" fn(*const c_char, c_uint, c_uint, *const u64) -> c_int;

/// The kernels as functions of this process.
#[derive(Debug)]
pub struct HostKernels {
    library: Library,
}

impl HostKernels {
    /// Builds and loads them.
    pub fn load(build: Build) -> Outcome<Self> {
        let path = fake_driver(build)?.join(LIBRARY);
        // SAFETY: our own library, whose initialisers only fill tables.
        Ok(Self { library: unsafe { Library::new(path) }? })
    }
}

impl Device for HostKernels {
    fn sms(&self) -> u32 {
        // Small, so that teams take several tiles in turn.
        1
    }
    fn area(&self, bytes: usize, past: usize) -> Outcome<Area> {
        let mut memory = Memory::new(past + bytes);
        memory.bytes().fill(POISON);
        let address = memory.bytes()[past..].as_mut_ptr().expose_provenance() as u64;
        Ok(Area { address, bytes, past, keep: Box::new(memory) })
    }
    fn write(&self, area: &mut Area, bytes: &[u8]) -> Outcome<()> {
        let past = area.past;
        memory_of(area)?.bytes()[past..past + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn read(&self, area: &Area) -> Outcome<Vec<u8>> {
        let memory = area.keep.downcast_ref::<Memory>().ok_or("another device's memory")?;
        Ok(memory.snapshot()[area.past..].to_vec())
    }
    fn launch(&self, launch: &Launch, arguments: &[u64]) -> Outcome<()> {
        let name = CString::new(launch.kernel)?;
        // SAFETY: the library's function has this type; it reads as many arguments as the kernel of this name has,
        // which the caller took from the same table. Kernels touch the memory that the tables name: areas that live.
        let code = unsafe {
            let run = self.library.get::<LaunchFn>(b"tender_host_launch")?;
            run(name.as_ptr(), launch.grid, launch.block, arguments.as_ptr())
        };
        if code == 0 { Ok(()) } else { Err(format!("no kernel {}", launch.kernel).into()) }
    }
}

fn memory_of(area: &mut Area) -> Outcome<&mut Memory> {
    area.keep.downcast_mut::<Memory>().ok_or_else(|| "another device's memory".into())
}

/// Memory that ends where its last byte does, so that a sanitizer sees an access behind it.
#[derive(Debug)]
struct Memory {
    start: *mut u8,
    layout: alloc::Layout,
}

impl Memory {
    fn new(bytes: usize) -> Self {
        let layout = alloc::Layout::from_size_align(bytes.max(1), 256).expect("small");
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        assert!(!start.is_null(), "{bytes} bytes of memory");
        Self { start, layout }
    }
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this size and zeroed; exclusive as `self` is, while no kernel runs.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }
    fn snapshot(&self) -> Vec<u8> {
        // SAFETY: as above; kernels have ended when their launch returns.
        unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) }.to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { alloc::dealloc(self.start, self.layout) };
    }
}

/// Names memory by address; a layout over it is only proved, or copied through while the memory lives.
pub(super) fn buffer(address: u64, bytes: u64) -> BufferDesc {
    // SAFETY: the checks copy only through layouts over their own areas and mirrors.
    unsafe { BufferDesc::new(address, bytes) }
}

/// An engine's memory on the host, where the CPU truth works.
#[derive(Debug)]
pub struct Mirror(Vec<u8>);

impl Mirror {
    /// Memory with these contents.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
    /// Where it lies.
    pub fn address(&mut self) -> u64 {
        self.0.as_mut_ptr().expose_provenance() as u64
    }
    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
    /// The truth of a gather; the map was proved over this memory.
    pub fn gather(&mut self, map: &PageMap, moves: &[Move], packed: &mut [u8]) {
        self.address();
        // SAFETY: the map was proved over this memory and the moves name blocks of its pool; `packed` is elsewhere.
        unsafe { reference::gather(map, moves, packed) }.expect("room for every slot");
    }
    /// The truth of a scatter; the map was proved over this memory.
    pub fn scatter(&mut self, map: &PageMap, moves: &[Move], packed: &[u8]) {
        self.address();
        // SAFETY: as above.
        unsafe { reference::scatter(map, moves, packed) }.expect("bytes for every slot");
    }
}
