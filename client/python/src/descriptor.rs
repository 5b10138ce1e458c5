//! The namespace descriptor, from Python's values into the checked type and onto the wire between an engine's own
//! processes.

use prost::Message;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tender_proto::limits::KEY_CHAIN_VERSION;
use tender_proto::{Descriptor, Reason, Refusal, v1};

use crate::error::refused;

/// What decides which bytes are right, as the engine's Python code finds it.
#[derive(FromPyObject)]
pub(crate) struct Identity {
    model: String,
    weights: String,
    kv_dtype: String,
    quantisation: String,
    page_format: String,
    layout_fingerprint: [u8; 32],
    tensor_parallel: u32,
    tokens_per_block: u32,
    blocks_per_chunk: u32,
    part_block_bytes: Vec<u64>,
}

/// Checks an identity with one full-attention group and returns (descriptor, namespace digest in hexadecimal).
/// The descriptor's bytes are for `Worker` and `Scheduler.set_descriptor`.
#[pyfunction]
pub(crate) fn describe(py: Python<'_>, identity: Identity) -> PyResult<(Bound<'_, PyBytes>, String)> {
    let message = v1::NamespaceDescriptor {
        model: identity.model,
        weights: identity.weights,
        kv_dtype: identity.kv_dtype,
        quantisation: identity.quantisation,
        groups: vec![v1::GroupDescriptor {
            kind: v1::GroupKind::FullAttention.into(),
            tokens_per_block: identity.tokens_per_block,
            blocks_per_chunk: identity.blocks_per_chunk,
            window_tokens: 0,
            part_block_bytes: identity.part_block_bytes,
        }],
        page_format: identity.page_format,
        layout_fingerprint: identity.layout_fingerprint.to_vec().into(),
        ranks: Some(v1::RankGeometry {
            tensor_parallel: identity.tensor_parallel,
            pipeline_parallel: 1,
            context_parallel: 1,
        }),
        key_chain_version: KEY_CHAIN_VERSION,
    };
    let descriptor = Descriptor::parse(&message).map_err(|no| refused(&no))?;
    Ok((PyBytes::new(py, &message.encode_to_vec()), descriptor.digest().to_hex()))
}

/// Reads what [`describe`] made.
pub(crate) fn parse(bytes: &[u8]) -> PyResult<Descriptor> {
    let message = v1::NamespaceDescriptor::decode(bytes).map_err(|error| {
        refused(&Refusal::new(
            Reason::Malformed,
            format!("a descriptor that cannot be read ({error})"),
            "run the same version of tender_kv in all of the engine's processes",
        ))
    })?;
    Descriptor::parse(&message).map_err(|no| refused(&no))
}
