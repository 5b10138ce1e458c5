//! The kernels for the device that is there.
//!
//! In this order: machine code from the cache on disk; compiled now by NVRTC, and put into the cache; the PTX that was
//! compiled when this crate was made, which the driver compiles itself. The cache is named by the source's digest and
//! the architecture, its files carry a digest of what they hold, and they appear by a rename: whatever is damaged or
//! half-written counts as absent.

mod nvrtc;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tender_kernels::cuda;
use tender_proto::{Reason, Refusal};

pub(super) use self::nvrtc::NvrtcCompiler;
use super::driver::{Driver, Fault, Image};

/// Makes machine code of the kernels' source.
pub(super) trait Compiler {
    /// For this compute capability, times ten. An error is one sentence.
    fn compile(&self, architecture: u32) -> Result<Vec<u8>, String>;
}

/// Where the kernels came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kernels {
    /// Machine code that was found in the cache.
    Cached,
    /// Compiled now.
    Compiled,
    /// The PTX of this crate.
    Prebuilt,
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cached => "found in the cache",
            Self::Compiled => "compiled by NVRTC",
            Self::Prebuilt => "prebuilt",
        })
    }
}

impl Kernels {
    /// Brings the kernels onto the device by the best way there is.
    pub(super) fn load(
        driver: &dyn Driver,
        compiler: &dyn Compiler,
        cache: Option<&Path>,
    ) -> Result<Self, Refusal> {
        let about = driver.about();
        let architecture = about.major * 10 + about.minor;
        if architecture < 80 {
            return Err(Refusal::new(
                Reason::Unsupported,
                format!(
                    "CUDA device {} ({}), of compute capability {}.{}",
                    about.index, about.name, about.major, about.minor
                ),
                "the kernels need 8.0 (A100) or newer; the engine runs on without Tender",
            ));
        }
        let cache =
            cache.map(Path::to_owned).or_else(default_cache).map(|folder| Cache::new(&folder, architecture));
        if let Some(code) = cache.as_ref().and_then(Cache::read)
            && take(driver, Image::Cubin(&code), "from the cache")
        {
            return Ok(Self::Cached);
        }
        match compiler.compile(architecture) {
            Ok(code) => {
                if take(driver, Image::Cubin(&code), "that NVRTC compiled") {
                    if let Some(Err(error)) = cache.map(|cache| cache.write(&code)) {
                        tracing::info!(%error, "compiled kernels are not kept for the next start");
                    }
                    return Ok(Self::Compiled);
                }
            }
            Err(why) => tracing::info!(why, "the kernels are not compiled here; using the prebuilt ones"),
        }
        driver.load(Image::Ptx(cuda::PTX)).map(|()| Self::Prebuilt).map_err(|fault| {
            Refusal::new(
                Reason::Unsupported,
                format!("the kernels on CUDA device {} (driver for CUDA {}): {fault}", about.index, about.cuda()),
                "install NVRTC 12 (libnvrtc.so.12), or a driver for CUDA 12.9 or newer; the engine runs on without Tender",
            )
        })
    }
}

fn take(driver: &dyn Driver, image: Image<'_>, which: &'static str) -> bool {
    let taken: Result<(), Fault> = driver.load(image);
    taken.inspect_err(|fault| tracing::warn!(%fault, which, "the driver does not take the kernels")).is_ok()
}

/// `$XDG_CACHE_HOME/tender`, or `~/.cache/tender`.
fn default_cache() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    base.map(|base| base.join("tender"))
}

/// One file of the cache: a digest, and the machine code.
#[derive(Debug)]
struct Cache {
    folder: PathBuf,
    name: String,
}

const DIGEST_BYTES: usize = 32;

impl Cache {
    fn new(folder: &Path, architecture: u32) -> Self {
        let name = format!("kernels-{}-sm_{architecture}.bin", cuda::source_digest());
        Self { folder: folder.to_owned(), name }
    }

    fn read(&self) -> Option<Vec<u8>> {
        let bytes = fs::read(self.folder.join(&self.name)).ok()?;
        let (digest, code) = bytes.split_at_checked(DIGEST_BYTES)?;
        if !code.is_empty() && blake3::hash(code).as_bytes() == digest {
            return Some(code.to_vec());
        }
        tracing::warn!(file = %self.folder.join(&self.name).display(), "compiled kernels are damaged; compiling them again");
        None
    }

    fn write(&self, code: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        // A name of its own: several workers may do this at once.
        let unique = format!("{}.{}.{:x}", self.name, std::process::id(), rand::random::<u64>());
        let draft = self.folder.join(unique);
        let bytes = [blake3::hash(code).as_bytes(), code].concat();
        let written =
            fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, self.folder.join(&self.name)));
        written.inspect_err(|_| {
            // What cannot be written cannot be removed either, perhaps.
            _ = fs::remove_file(&draft);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver::fake::{FakeDriver, Trouble};
    use super::*;

    struct Fixed(Result<Vec<u8>, String>, std::cell::Cell<u32>);

    impl Compiler for Fixed {
        fn compile(&self, architecture: u32) -> Result<Vec<u8>, String> {
            assert_eq!(architecture, 90);
            self.1.set(self.1.get() + 1);
            self.0.clone()
        }
    }

    fn compiles() -> Fixed {
        Fixed(Ok(b"machine code".to_vec()), std::cell::Cell::new(0))
    }

    #[test]
    fn what_was_compiled_is_found_again_and_what_is_damaged_is_compiled_again() {
        let folder = tempfile::tempdir().unwrap();
        let (driver, cache) = (FakeDriver::new(1, Trouble::default()), folder.path().join("new"));
        let compiler = compiles();
        let load = || Kernels::load(&driver, &compiler, Some(&cache)).unwrap();
        assert_eq!((load(), load(), compiler.1.get()), (Kernels::Compiled, Kernels::Cached, 1));
        let file = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read(&file).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[..7], &[], &[&whole[..40], b"x"].concat()] {
            fs::write(&file, damaged).unwrap();
            assert_eq!(load(), Kernels::Compiled);
            assert_eq!(fs::read(&file).unwrap(), whole);
        }
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 1, "no drafts are left");
    }

    #[test]
    fn without_a_compiler_or_a_cache_the_prebuilt_kernels_are_used() {
        let driver = FakeDriver::new(1, Trouble::default());
        let none = Fixed(Err("there is no NVRTC".into()), std::cell::Cell::new(0));
        let nowhere = Path::new("/proc/tender-cannot-be-made");
        assert_eq!(Kernels::load(&driver, &none, Some(nowhere)).unwrap(), Kernels::Prebuilt);
        // A folder that cannot be written costs the cache only.
        assert_eq!(Kernels::load(&driver, &compiles(), Some(nowhere)).unwrap(), Kernels::Compiled);
    }

    #[test]
    fn a_device_that_is_too_old_is_refused_by_name() {
        let old =
            FakeDriver::new(1, Trouble::default()).described(|about| (about.major, about.minor) = (7, 5));
        let refused = Kernels::load(&old, &compiles(), None).unwrap_err();
        assert!(refused.to_string().contains("compute capability 7.5"), "{refused}");
    }

    #[test]
    fn a_driver_that_takes_no_kernels_is_refused_with_what_would_help() {
        let driver = FakeDriver::new(1, Trouble { refuse_one_in: 1, ..Trouble::default() });
        let folder = tempfile::tempdir().unwrap();
        let refused = Kernels::load(&driver, &compiles(), Some(folder.path())).unwrap_err();
        assert!(refused.to_string().contains("NVRTC"), "{refused}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "what does not load is not kept");
    }
}
