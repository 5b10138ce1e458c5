//! An engine's tensors, from Python's plain tuples through the layout gate.
#![allow(unsafe_code, reason = "the caller vouches for the addresses of its tensors here")]

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tender_client::layout::{self, Axis, BufferDesc, GroupShard, LayerDesc, ProvedLayout, ScaleDesc, Writer};
use tender_proto::GroupIndex;

use crate::error::layout_error;

/// Name, steps, bytes from one step to the next.
type AxisTuple = (char, u32, u64);

/// One layer as Python describes it; the fields are those of `LayerDesc`.
#[derive(FromPyObject)]
struct Layer {
    name: String,
    group: u16,
    address: u64,
    buffer_address: u64,
    buffer_bytes: u64,
    blocks: u32,
    block_stride_bytes: u64,
    axes: Vec<AxisTuple>,
    cell_bytes: u64,
    page_bytes: u64,
    padding_bytes: u64,
    scales: Option<Scales>,
}

/// Its scales; the fields are those of `ScaleDesc`.
#[derive(FromPyObject)]
struct Scales {
    address: u64,
    block_stride_bytes: u64,
    axes: Vec<AxisTuple>,
    bytes: u64,
}

/// Which parts of a group's chunks this rank holds; the fields are those of `GroupShard` and its `Writer`.
#[derive(FromPyObject)]
struct Shard {
    parts: u16,
    first: u16,
    count: u16,
    replica: u32,
    replicas: u32,
}

/// A layout that passed the gate, and the tensors it is about.
#[pyclass(frozen, module = "tender_kv._native")]
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) proved: Arc<ProvedLayout>,
    parts_of_all_ranks: Vec<u16>,
    /// The engine's tensors: as long as they are held, the addresses are good.
    pub(crate) owner: Py<PyAny>,
}

#[pymethods]
impl Layout {
    /// Proves the description of `layers`, objects with the fields of `LayerDesc`, and that the rank's `shards`, one
    /// per group, can be cut from them. `owner` holds the tensors whose addresses they name, and is kept. Raises
    /// LayoutError with the names of the layers at fault.
    #[new]
    fn new(layers: Vec<Layer>, pool_blocks: u32, shards: Vec<Shard>, owner: Py<PyAny>) -> PyResult<Self> {
        let layers = layers.into_iter().map(Layer::describe).collect::<PyResult<_>>()?;
        let shards: Vec<GroupShard> = shards.into_iter().map(Shard::describe).collect();
        let proved = layout::prove(layers, pool_blocks).and_then(|proved| proved.shard(&shards));
        let proved = proved.map_err(|no| layout_error(&no))?;
        let parts_of_all_ranks = shards.iter().map(|shard| shard.parts).collect();
        Ok(Self { proved: Arc::new(proved), parts_of_all_ranks, owner })
    }

    /// Bytes of one block in each part of a group, the parts of other ranks included: all are cut alike.
    fn part_block_bytes(&self, group: u16) -> PyResult<Vec<u64>> {
        let no_group = || PyValueError::new_err(format!("the layout has no group {group}"));
        let part = self.proved.parts(GroupIndex(group)).first().ok_or_else(no_group)?;
        let parts = self.parts_of_all_ranks.get(usize::from(group)).copied().unwrap_or(1);
        Ok(vec![part.block_bytes(); usize::from(parts)])
    }

    /// Byte order inside a page.
    #[getter]
    fn page_format(&self) -> String {
        self.proved.page_format()
    }

    /// Digest over what decides the order and meaning of stored bytes.
    #[getter]
    fn fingerprint(&self) -> [u8; 32] {
        self.proved.fingerprint()
    }
}

impl Shard {
    fn describe(self) -> GroupShard {
        let Self { parts, first, count, replica, replicas } = self;
        GroupShard { parts, first, count, writer: Writer { replica, replicas } }
    }
}

impl Layer {
    fn describe(self) -> PyResult<LayerDesc> {
        if self.address.checked_add(self.buffer_bytes).is_none() {
            return Err(PyValueError::new_err(format!("layer {} lies past the end of memory", self.name)));
        }
        // SAFETY: the caller names memory of tensors that it hands over as `owner`, which `Layout` keeps, and the
        // worker made of it keeps in turn. Blocks are the engine's promise: it gives a block to a gather or a load
        // by naming it in a plan, and leaves it alone until that is over.
        let buffer = unsafe { BufferDesc::new(self.buffer_address, self.buffer_bytes) };
        Ok(LayerDesc {
            name: self.name,
            group: GroupIndex(self.group),
            address: self.address,
            buffer,
            blocks: self.blocks,
            block_stride_bytes: self.block_stride_bytes,
            axes: axes(self.axes),
            cell_bytes: self.cell_bytes,
            page_bytes: self.page_bytes,
            padding_bytes: self.padding_bytes,
            scales: self.scales.map(|scales| ScaleDesc {
                address: scales.address,
                block_stride_bytes: scales.block_stride_bytes,
                axes: axes(scales.axes),
                bytes: scales.bytes,
            }),
        })
    }
}

fn axes(tuples: Vec<AxisTuple>) -> Vec<Axis> {
    tuples.into_iter().map(|(name, count, stride_bytes)| Axis { name, count, stride_bytes }).collect()
}
