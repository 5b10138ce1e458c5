//! NVRTC, CUDA's compiler as a library.
#![allow(unsafe_code, reason = "calls of NVRTC's C interface")]

use std::ffi::{CString, c_char};
use std::ptr;

use cudarc::nvrtc::sys;
use tender_kernels::cuda;

use super::Compiler;

/// Everything that is called below.
const FUNCTIONS: [&str; 8] = [
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcVersion",
];

/// NVRTC, if this machine has it.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct NvrtcCompiler;

impl Compiler for NvrtcCompiler {
    fn compile(&self, architecture: u32) -> Result<Vec<u8>, String> {
        // SAFETY: it only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Err("NVRTC (libnvrtc.so.12) is not on this machine".into());
        }
        // SAFETY: the library is there; a symbol is looked up by its name and not called.
        let has = |name: &str| unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_ok() };
        if let Some(missing) = FUNCTIONS.into_iter().find(|name| !has(name)) {
            return Err(format!("NVRTC lacks {missing}; it is older than CUDA 11.1"));
        }
        let program = Program::new()?;
        program.compile(architecture).map_err(|code| {
            let (mut major, mut minor) = (0, 0);
            // SAFETY: both out-pointers are to locals.
            unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
            let log = program.log();
            format!("NVRTC {major}.{minor} does not compile for sm_{architecture} ({code}) {log}")
        })?;
        program.cubin()
    }
}

struct Program(sys::nvrtcProgram);

impl Program {
    fn new() -> Result<Self, String> {
        let source = CString::new(cuda::SOURCE).map_err(|_| "the source has a zero byte".to_owned())?;
        let mut program = ptr::null_mut();
        // SAFETY: zero-terminated text that NVRTC copies; there are no headers.
        let answer = unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                source.as_ptr(),
                c"tender.cu".as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        check(answer).map_err(|code| format!("NVRTC does not start ({code})"))?;
        Ok(Self(program))
    }

    fn compile(&self, architecture: u32) -> Result<(), i32> {
        let options = cuda::NVRTC_OPTIONS.map(str::to_owned).into_iter();
        let options = options.chain([format!("--gpu-architecture=sm_{architecture}")]);
        let options: Vec<CString> = options.filter_map(|option| CString::new(option).ok()).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = i32::try_from(pointers.len()).unwrap_or(0);
        // SAFETY: the program lives; the options are zero-terminated and outlive the call.
        check(unsafe { sys::nvrtcCompileProgram(self.0, count, pointers.as_ptr()) })
    }

    fn cubin(&self) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        let failed = |code| format!("NVRTC has no machine code ({code})");
        // SAFETY: the program was compiled; the out-pointer is to a local.
        check(unsafe { sys::nvrtcGetCUBINSize(self.0, &mut bytes) }).map_err(failed)?;
        let mut code = vec![0u8; bytes];
        // SAFETY: the buffer has the size that NVRTC asked for.
        check(unsafe { sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast()) }).map_err(failed)?;
        Ok(code)
    }

    /// What the compiler said, on one line.
    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: the program lives; the out-pointer is to a local.
        if check(unsafe { sys::nvrtcGetProgramLogSize(self.0, &mut bytes) }).is_err() {
            return String::new();
        }
        let mut text = vec![0u8; bytes];
        // SAFETY: the buffer has the size that NVRTC asked for.
        _ = check(unsafe { sys::nvrtcGetProgramLog(self.0, text.as_mut_ptr().cast()) });
        let text = String::from_utf8_lossy(&text);
        text.trim_end_matches('\0').lines().next().unwrap_or_default().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created once, and nothing uses it any more.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// A number that these bindings do not know is an answer too.
fn check(answer: sys::nvrtcResult) -> Result<(), i32> {
    match answer as i32 {
        0 => Ok(()),
        code => Err(code),
    }
}
