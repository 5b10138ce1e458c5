//! Names by content: adapters, weights and embeddings enter keys and namespaces as digests of what they are.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Files up to this size are read whole.
const WHOLE_FILE_BYTES: u64 = 64 << 20;
/// Larger weights files are sampled: one piece of this size ...
const SAMPLE_BYTES: usize = 64 << 10;
/// ... at the start of every stride, and the last piece. A changed tensor of a stride or more is always seen;
/// 140 GB of weights cost 0.6 GB of reading.
const SAMPLE_STRIDE_BYTES: usize = 16 << 20;

/// A digest over fields, each framed by its tag and its length, so that two different lists of fields never feed
/// the same bytes.
#[pyclass(frozen, module = "tender_kv._native")]
#[derive(Debug)]
pub(crate) struct Fingerprint(std::sync::Mutex<blake3::Hasher>);

#[pymethods]
impl Fingerprint {
    /// `purpose` keeps digests of different things apart.
    #[new]
    fn new(purpose: &str) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("tender 2026-11 python fingerprint v1");
        frame(&mut hasher, purpose.as_bytes());
        Self(hasher.into())
    }

    /// Adds bytes under a tag.
    fn field(&self, py: Python<'_>, tag: &str, value: &[u8]) {
        py.detach(|| {
            self.with(|hasher| {
                frame(hasher, tag.as_bytes());
                frame(hasher, value);
            });
        });
    }

    /// Adds a file's whole content under a tag.
    fn file(&self, py: Python<'_>, tag: &str, path: PathBuf) -> PyResult<()> {
        let digest = py.detach(|| whole(&File::open(path)?))?;
        self.field(py, tag, digest.as_bytes());
        Ok(())
    }

    /// Adds a file's size and its whole content up to 64 MiB, samples of it above.
    fn weights_file(&self, py: Python<'_>, tag: &str, path: PathBuf) -> PyResult<()> {
        let digest = py.detach(|| {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            if bytes <= WHOLE_FILE_BYTES { whole(&file) } else { sampled(&file, bytes) }
        })?;
        self.field(py, tag, digest.as_bytes());
        Ok(())
    }

    /// The 32 bytes of the digest over all fields so far.
    fn digest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.with(|hasher| hasher.finalize()).as_bytes())
    }
}

impl Fingerprint {
    fn with<T>(&self, use_it: impl FnOnce(&mut blake3::Hasher) -> T) -> T {
        // Hashing does not panic, so a poisoned hasher is as good as any.
        use_it(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

fn frame(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn whole(mut file: &File) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finalize()),
            read => hasher.update(&piece[..read]),
        };
    }
}

fn sampled(file: &File, bytes: u64) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new_derive_key("tender 2026-11 sampled file v1");
    hasher.update(&bytes.to_le_bytes());
    let mut piece = vec![0; SAMPLE_BYTES];
    let last = bytes - SAMPLE_BYTES as u64;
    for at in (0..last).step_by(SAMPLE_STRIDE_BYTES).chain([last]) {
        file.read_exact_at(&mut piece, at)?;
        hasher.update(&piece);
    }
    Ok(hasher.finalize())
}
