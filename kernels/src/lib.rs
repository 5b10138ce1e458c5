//! Gather and scatter of paged KV blocks.
//!
//! * [`page_map`]: where the bytes of a group's blocks lie, in the compact form that kernels read.
//! * [`mod@reference`]: gather and scatter on host memory. It is the copy backend of engines on the CPU, and the
//!   truth that every other kernel must match bit for bit.
//! * [`cuda`]: the CUDA kernels' sources, and the tables that they read. Needs no CUDA.

pub mod cuda;
pub mod page_map;
pub mod reference;

pub use page_map::{Dim, MapError, Move, PageMap, Segment};
