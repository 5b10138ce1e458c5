//! The kernels' text, and what was compiled from it beforehand.

/// The whole of the CUDA source: one translation unit that includes nothing.
pub const SOURCE: &str = concat!(
    include_str!("../../cuda/abi.cuh"),
    include_str!("../../cuda/copy.cu"),
    include_str!("../../cuda/blake3.cu"),
);

/// PTX of [`SOURCE`] for [`PTX_ARCH`], made by `scripts/kernels.py --write`: for machines that have a driver and no NVRTC. Its
/// first line names the source's digest.
pub const PTX: &str = include_str!("../../cuda/prebuilt.ptx");

/// What [`PTX`] was compiled for; the driver makes it into code for this architecture and all later ones.
pub const PTX_ARCH: &str = "compute_80";

/// Options for NVRTC, beside the architecture.
pub const NVRTC_OPTIONS: [&str; 1] = ["--std=c++17"];

/// BLAKE3 of [`SOURCE`], in hexadecimal: the name of whatever was compiled from it.
pub fn source_digest() -> String {
    blake3::hash(SOURCE.as_bytes()).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::abi::KERNELS;

    #[test]
    fn the_prebuilt_ptx_is_of_this_source() {
        let first = PTX.lines().next().unwrap();
        assert_eq!(
            first,
            format!("// source {}", source_digest()),
            "run scripts/kernels.py --write and commit what it makes"
        );
        // The oldest version that knows this target, for the sake of old drivers.
        assert!(PTX.contains(".version 7.0") && PTX.contains(".target sm_80"));
        for kernel in KERNELS {
            assert!(PTX.contains(&format!(".entry {kernel}(")), "{kernel}");
        }
    }
}
