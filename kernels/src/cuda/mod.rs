//! The CUDA kernels, and what the host hands to them.
//!
//! Nothing here calls CUDA: this module has the sources, tables of 64-bit words for the kernels to read, and the
//! numbers of a launch. Whoever has a driver uploads and launches them. docs/gpu.md says how the kernels work.
//!
//! * [`SegmentTable`]: the page maps of a layout, encoded once and kept on the device.
//! * [`Batch`]: the copies of one launch: any number of page maps, blocks and packed destinations.
//! * [`Messages`]: byte ranges to be hashed by one launch.
//! * [`method()`], [`stretches()`]: which maps are better copied without a kernel, and the copies that do it.

pub mod abi;
mod batch;
mod messages;
mod segments;
mod source;
mod variants;

pub use batch::{Batch, Direction, Packed};
pub use messages::Messages;
pub use segments::{MapIndex, SegmentTable};
pub use source::{NVRTC_OPTIONS, PTX, PTX_ARCH, SOURCE, source_digest};
pub use variants::{Launch, Limits, Method, Stretch, method, stretches};
