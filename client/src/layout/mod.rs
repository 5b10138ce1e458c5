//! How the engine's KV tensors lie in memory (rule 5): described (`desc`), proved ([`prove()`]), and named by a
//! digest that goes into the namespace (`fingerprint`).
//!
//! There is one gate for all layouts: per-layer tensors, layers interleaved in one buffer, groups over each other,
//! padding, keys and values apart or together, scales in the cells. What it lets through can be copied without a further
//! look at an address. In the order of the proof:
//!
//! * `footprint`: a layer for itself; its axes nest (`grid`), it lies in its buffer, and its page adds up.
//! * `apart`: no two pages of a group share a byte. `overlay`: no two block ids do, whatever their groups.
//! * `scales`: the engine's own view of inline scales keeps each in its cell.
//! * `parts`: what one rank holds, cut into the parts of a chunk.

mod apart;
#[cfg(any(test, feature = "fuzzing"))]
pub mod dense;
mod desc;
mod fingerprint;
mod footprint;
mod grid;
mod overlay;
mod parts;
mod prove;
mod refusal;
mod scales;

#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "fuzzing"))]
pub mod truth;

pub use desc::{Axis, BufferDesc, LayerDesc, ScaleDesc};
pub use parts::{GroupShard, LocalPart, Writer};
pub use prove::{Proved, ProvedLayout, prove, prove_either};
pub use refusal::{BlockBytes, ByteRange, LayoutFault, LayoutRefusal};
