//! The name of a layout's byte order: equal names mean that one engine's packed blocks are right for the other.

use std::fmt::Write as _;

use super::desc::{Axis, LayerDesc};
use super::prove::ProvedLayout;

/// Domain of the digest; the version at its end changes with what goes into it.
const CONTEXT: &str = "tender 2026-11 layout fingerprint v1";

/// Different page formats that a format's text lists; the fingerprint has all of them anyway.
const LISTED_FORMATS: usize = 8;

impl ProvedLayout {
    /// Digest over what decides the order of packed bytes: of each layer in order its group, its name, its axes in
    /// physical order with their counts, and its cell. Addresses, the pool's size and padding are left out:
    /// they move bytes in memory, not in a chunk. So is an axis of one step.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut digest = blake3::Hasher::new_derive_key(CONTEXT);
        let mut field = |bytes: &[u8]| {
            digest.update(&(bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        for layer in self.layers() {
            field(&layer.group.0.to_le_bytes());
            field(layer.name.as_bytes());
            field(format(layer).as_bytes());
        }
        digest.finalize().into()
    }

    /// The byte order of a page in words, such as `K2.H8.N16.128B`: axes with their counts, outermost first, then
    /// the contiguous bytes. Where layers differ, the different formats in order of appearance.
    pub fn page_format(&self) -> String {
        let mut formats: Vec<String> = Vec::new();
        for layer in self.layers() {
            let format = format(layer);
            if !formats.contains(&format) {
                formats.push(format);
            }
        }
        let more = formats.len().saturating_sub(LISTED_FORMATS);
        formats.truncate(LISTED_FORMATS);
        let mut text = formats.join(" + ");
        if more > 0 {
            // Writing to a string cannot fail.
            let _ = write!(text, " + {more} more");
        }
        text
    }
}

fn format(layer: &LayerDesc) -> String {
    let axis = |axis: &Axis| format!("{}{}.", axis.name, axis.count);
    let axes: String = layer.axes.iter().filter(|axis| axis.count > 1).map(axis).collect();
    format!("{axes}{}B", layer.cell_bytes)
}
