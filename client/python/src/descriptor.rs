//! The namespace descriptor, from Python's values into the checked type and onto the wire between an engine's own
//! processes.

use std::num::NonZeroU32;

use prost::Message;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tender_client::plan::ChunkSize;
use tender_proto::limits::KEY_CHAIN_VERSION;
use tender_proto::{BlocksPerChunk, Descriptor, GroupKind, v1};

use crate::error::{ConfigError, refused};

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
    groups: Vec<GroupIdentity>,
}

/// One layer group of it. Windows and lookaheads that there are not are 0.
#[derive(FromPyObject)]
struct GroupIdentity {
    kind: String,
    tokens_per_block: u32,
    blocks_per_chunk: u32,
    window_tokens: u32,
    lookahead_tokens: u32,
    part_block_bytes: Vec<u64>,
}

/// Checks an identity and returns (descriptor, namespace digest in hexadecimal). The descriptor's bytes are for
/// `Worker` and `Scheduler.set_descriptor`.
#[pyfunction]
pub(crate) fn describe(py: Python<'_>, identity: Identity) -> PyResult<(Bound<'_, PyBytes>, String)> {
    let message = v1::NamespaceDescriptor {
        model: identity.model,
        weights: identity.weights,
        kv_dtype: identity.kv_dtype,
        quantisation: identity.quantisation,
        groups: identity.groups.into_iter().map(GroupIdentity::describe).collect::<PyResult<_>>()?,
        page_format: identity.page_format,
        layout_fingerprint: identity.layout_fingerprint.to_vec().into(),
        ranks: Some(v1::RankGeometry {
            tensor_parallel: identity.tensor_parallel,
            pipeline_parallel: 1,
            context_parallel: 1,
        }),
        key_chain_version: KEY_CHAIN_VERSION,
        domain: String::new(),
    };
    let descriptor = Descriptor::parse(&message).map_err(|no| refused(&no))?;
    Ok((PyBytes::new(py, &message.encode_to_vec()), descriptor.digest().to_hex()))
}

/// Blocks of a chunk for each group, given as (kind, tokens of a block): what the user chose in tokens or in blocks, or
/// else what fits the group. Raises ConfigError for a choice that does not fit.
#[pyfunction]
#[pyo3(signature = (groups, *, tokens=None, blocks=None))]
pub(crate) fn chunk_blocks(
    groups: Vec<(String, u32)>,
    tokens: Option<NonZeroU32>,
    blocks: Option<NonZeroU32>,
) -> PyResult<Vec<u32>> {
    let size = match (tokens, blocks) {
        (None, None) => ChunkSize::Auto,
        (Some(tokens), None) => ChunkSize::Tokens(tokens),
        (None, Some(blocks)) => ChunkSize::Blocks(blocks),
        (Some(_), Some(_)) => {
            return Err(ConfigError::new_err("a chunk is chosen in tokens or in blocks, not in both"));
        }
    };
    let known = |(kind, tokens_per_block): (String, u32)| {
        let tokens_per_block = NonZeroU32::new(tokens_per_block)
            .ok_or_else(|| ConfigError::new_err(format!("a {kind} group with blocks of no tokens")))?;
        Ok((group_kind(&kind)?.0, tokens_per_block))
    };
    let groups = groups.into_iter().map(known).collect::<PyResult<Vec<_>>>()?;
    let chosen = size.blocks_per_chunk(&groups).map_err(|no| ConfigError::new_err(no.to_string()))?;
    Ok(chosen.into_iter().map(BlocksPerChunk::get).collect())
}

impl GroupIdentity {
    fn describe(self) -> PyResult<v1::GroupDescriptor> {
        Ok(v1::GroupDescriptor {
            kind: group_kind(&self.kind)?.1.into(),
            tokens_per_block: self.tokens_per_block,
            blocks_per_chunk: self.blocks_per_chunk,
            window_tokens: self.window_tokens,
            part_block_bytes: self.part_block_bytes,
            lookahead_tokens: self.lookahead_tokens,
        })
    }
}

/// Python's names of the kinds.
const KINDS: [(&str, GroupKind, v1::GroupKind); 5] = [
    ("full_attention", GroupKind::FullAttention, v1::GroupKind::FullAttention),
    ("sliding_window", GroupKind::SlidingWindow, v1::GroupKind::SlidingWindow),
    ("chunked_local", GroupKind::ChunkedLocal, v1::GroupKind::ChunkedLocal),
    ("recurrent", GroupKind::Recurrent, v1::GroupKind::Recurrent),
    ("mla_latent", GroupKind::MlaLatent, v1::GroupKind::MlaLatent),
];

fn group_kind(name: &str) -> PyResult<(GroupKind, v1::GroupKind)> {
    let found = KINDS.iter().find(|(known, ..)| *known == name);
    let no_such = || PyValueError::new_err(format!("there is no group kind '{name}'"));
    found.map(|&(_, kind, wire)| (kind, wire)).ok_or_else(no_such)
}

/// Reads what [`describe`] made.
pub(crate) fn parse(bytes: &[u8]) -> PyResult<Descriptor> {
    Descriptor::decode(bytes).map_err(|no| refused(&no))
}
