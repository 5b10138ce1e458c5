//! An engine's tensors, from Python's plain tuples through the layout gate.
#![allow(unsafe_code, reason = "the caller vouches for the addresses of its tensors here")]

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tender_client::layout::{self, Axis, BufferDesc, LayerDesc, ProvedLayout};
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
}

/// A layout that passed the gate, and the tensors it is about.
#[pyclass(frozen, module = "tender_kv._native")]
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) proved: Arc<ProvedLayout>,
    /// The engine's tensors: as long as they are held, the addresses are good.
    pub(crate) owner: Py<PyAny>,
}

#[pymethods]
impl Layout {
    /// Proves the description of `layers`, objects with the fields of `LayerDesc`. `owner` holds the tensors whose
    /// addresses they name, and is kept. Raises LayoutError with the names of the layers at fault.
    #[new]
    fn new(layers: Vec<Layer>, pool_blocks: u32, owner: Py<PyAny>) -> PyResult<Self> {
        let layers = layers.into_iter().map(Layer::describe).collect::<PyResult<_>>()?;
        let proved = layout::prove(layers, pool_blocks).map_err(|no| layout_error(&no))?;
        Ok(Self { proved: Arc::new(proved), owner })
    }

    /// Bytes of one block of a group, all its layers.
    fn block_bytes(&self, group: u16) -> PyResult<u64> {
        let bytes = self.proved.block_bytes(GroupIndex(group));
        bytes.ok_or_else(|| PyValueError::new_err(format!("the layout has no group {group}")))
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
            axes: self
                .axes
                .into_iter()
                .map(|(name, count, stride_bytes)| Axis { name, count, stride_bytes })
                .collect(),
            cell_bytes: self.cell_bytes,
        })
    }
}
