//! The slow truth that the gate is held against: every byte by itself. For tests and fuzz targets.

use std::collections::HashMap;

use tender_proto::GroupIndex;

use super::LayerDesc;

/// The address of every content byte of one block's page, in the order of the packed bytes.
pub fn page_places(layer: &LayerDesc, block: u32) -> Vec<u64> {
    let mut axes = layer.axes.clone();
    axes.sort_by_key(|axis| std::cmp::Reverse(axis.stride_bytes));
    let mut places = vec![layer.address + u64::from(block) * layer.block_stride_bytes];
    for axis in axes.iter().filter(|axis| axis.count > 1) {
        let steps = 0..u64::from(axis.count);
        places =
            places.iter().flat_map(|at| steps.clone().map(move |i| at + i * axis.stride_bytes)).collect();
    }
    places.iter().flat_map(|&at| at..at + layer.cell_bytes).collect()
}

/// What is wrong with small layers, found byte by byte; nothing of the gate's arithmetic is used.
pub fn wrong_with(layers: &[LayerDesc], pool_blocks: u32) -> Option<String> {
    let mut owners: HashMap<u64, Vec<(GroupIndex, u32)>> = HashMap::new();
    for layer in layers {
        let buffer = layer.buffer.address()..layer.buffer.address() + layer.buffer.bytes();
        for block in 0..pool_blocks {
            let places = page_places(layer, block);
            if places.len() as u64 + layer.padding_bytes != layer.page_bytes {
                return Some(format!("{} has another size", layer.name));
            }
            for place in places {
                if !buffer.contains(&place) {
                    return Some(format!("{place:#x} of {} lies outside", layer.name));
                }
                let owners = owners.entry(place).or_default();
                if owners.iter().any(|&(group, other)| group == layer.group || other != block) {
                    return Some(format!("{place:#x} of {} has another owner", layer.name));
                }
                owners.push((layer.group, block));
            }
        }
    }
    None
}

/// Whether each scale of a small layer lies in its own cell, at one place in all of them.
pub fn scales_are_right(layer: &LayerDesc, pool_blocks: u32) -> bool {
    let Some(scales) = &layer.scales else { return true };
    let stride = |name| scales.axes.iter().find(|axis| axis.name == name).map_or(0, |axis| axis.stride_bytes);
    // Pairs of a cell's and its scale's address.
    let mut pairs: Vec<(u64, u64)> = (0..u64::from(pool_blocks))
        .map(|block| {
            let cell = layer.address + block * layer.block_stride_bytes;
            (cell, scales.address + block * scales.block_stride_bytes)
        })
        .collect();
    for axis in &layer.axes {
        let steps = 0..u64::from(axis.count);
        let step = |&(cell, scale): &(u64, u64)| {
            steps.clone().map(move |i| (cell + i * axis.stride_bytes, scale + i * stride(axis.name)))
        };
        pairs = pairs.iter().flat_map(step).collect();
    }
    let inside = |&(cell, scale): &(u64, u64)| {
        scale >= cell
            && scale + scales.bytes <= cell + layer.cell_bytes
            && scale - cell == pairs[0].1 - pairs[0].0
    };
    pairs[0].1 >= pairs[0].0 && pairs.iter().all(inside)
}
