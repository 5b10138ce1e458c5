//! How the engine's KV tensors lie in memory (rule 5): described (`desc`), proved ([`prove()`]), and named by a
//! digest that goes into the namespace (`fingerprint`).
//!
//! There is one gate for all layouts: per-layer tensors, layers interleaved in one buffer, padding, keys and
//! values apart or together. What it lets through can be copied without a further look at an address.

mod apart;
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

pub use desc::{Axis, BufferDesc, LayerDesc, ScaleDesc};
pub use parts::{GroupShard, LocalPart, Writer};
pub use prove::{ProvedLayout, prove};
pub use refusal::{BlockBytes, ByteRange, LayoutFault, LayoutRefusal};
