//! The name of a layout's byte order: equal names mean that one engine's packed blocks are right for the other.

use std::fmt::Write as _;

use super::desc::LayerDesc;
use super::parts::HEAD_AXIS;
use super::prove::ProvedLayout;

/// Domain of the digest; the version at its end changes with what goes into it.
const CONTEXT: &str = "tender 2026-11 layout fingerprint v1";

/// Different page formats that a format's text lists; the fingerprint has all of them anyway.
const LISTED_FORMATS: usize = 8;

impl ProvedLayout {
    /// Digest over what decides the order of packed bytes: of each layer in order its group, its name, its axes in
    /// physical order with their counts, its cell, and the place of a scale in it. All of it is about one part of
    /// the chunks, so that ranks of different sizes agree. Addresses, the pool's size and padding are left out:
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
            field(self.format(layer).as_bytes());
        }
        digest.finalize().into()
    }

    /// The byte order of one part's page in words, such as `K2.H8.N16.128B` or `H8.N16.68B with 4B scales at 64`: axes
    /// with their counts, outermost first, then the contiguous bytes. Where layers differ, the different formats in
    /// order of appearance.
    pub fn page_format(&self) -> String {
        let mut formats: Vec<String> = Vec::new();
        for layer in self.layers() {
            let format = self.format(layer);
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

    fn format(&self, layer: &LayerDesc) -> String {
        let share = self.share(layer);
        let mut text = String::new();
        // Writing to a string cannot fail.
        for axis in &layer.axes {
            let count = if axis.name == HEAD_AXIS { axis.count / share } else { axis.count };
            if count > 1 {
                let _ = write!(text, "{}{count}.", axis.name);
            }
        }
        let _ = write!(text, "{}B", layer.cell_bytes);
        if let Some(scales) = &layer.scales {
            let _ = write!(text, " with {}B scales at {}", scales.bytes, scales.address - layer.address);
        }
        text
    }
}
