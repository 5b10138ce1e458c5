//! Namespace descriptors: as bytes, and two of them side by side, since two that differ must never share a name.

use std::num::NonZeroU32;

use arbitrary::{Arbitrary, Unstructured};
use prost::Message;
use tender_proto::limits::{MAX_GROUPS, MAX_NAME_BYTES, MAX_PART_BYTES, MAX_PARTS};
use tender_proto::{Coverage, Descriptor, GroupIndex, PartIndex, Reason, v1};

/// A descriptor's message, most of the time a valid one.
#[derive(Arbitrary, Debug)]
pub(super) struct Draft {
    strings: [Text; 5],
    groups: Vec<Group>,
    fingerprint: u8,
    fingerprint_bytes: u8,
    ranks: Option<[u8; 3]>,
    key_chain_version: u32,
    domain: Option<Text>,
}

#[derive(Arbitrary, Debug)]
enum Text {
    Short(u8),
    Given(String),
    Long(u16),
}

#[derive(Arbitrary, Debug)]
struct Group {
    kind: i8,
    tokens_per_block: u32,
    blocks_per_chunk: u8,
    window_tokens: Option<u32>,
    part_block_bytes: Vec<u64>,
    equal_parts: Option<(u16, u32)>,
    lookahead_tokens: u8,
}

/// The first byte chooses: bytes as they come, or one or two drawn messages.
pub fn run(data: &[u8]) {
    let Some((&way, rest)) = data.split_first() else { return };
    let draw = &mut Unstructured::new(rest);
    let drawn = |draw: &mut Unstructured<'_>| Draft::arbitrary(draw).ok().map(message);
    match way % 3 {
        0 => _ = read(rest),
        1 => {
            let Some(message) = drawn(draw) else { return };
            let parsed = Descriptor::parse(&message);
            let read = read(&message.encode_to_vec());
            assert_eq!(parsed.ok(), read, "a message and its bytes are the same");
        }
        _ => {
            let (Some(first), Some(second)) = (drawn(draw), drawn(draw)) else { return };
            let (Ok(first), Ok(second)) = (Descriptor::parse(&first), Descriptor::parse(&second)) else {
                return;
            };
            assert_eq!(first == second, first.digest() == second.digest(), "{first:?} {second:?}");
            assert_eq!(first == second, first.encode() == second.encode());
        }
    }
}

/// Reads a descriptor and holds it to what everybody relies on.
fn read(raw: &[u8]) -> Option<Descriptor> {
    let descriptor = match Descriptor::decode(raw) {
        Ok(descriptor) => descriptor,
        Err(refusal) => {
            assert!(!refusal.to_string().is_empty());
            return None;
        }
    };
    assert_eq!(descriptor.check(), Ok(()));
    let again = Descriptor::decode(&descriptor.encode());
    assert_eq!(again.as_ref(), Ok(&descriptor));
    assert_eq!(again.map(|again| again.digest()), Ok(descriptor.digest()));
    assert!((1..=MAX_GROUPS).contains(&descriptor.groups.len()));
    assert!((1..=MAX_NAME_BYTES).contains(&descriptor.model.len()));
    for (index, group) in (0..).zip(&descriptor.groups) {
        assert_eq!(descriptor.group(GroupIndex(index)), Ok(group));
        let full = Coverage::full(group.blocks_per_chunk);
        let tokens = u64::from(group.tokens_per_block.get()) * u64::from(group.blocks_per_chunk.get());
        assert_eq!(group.tokens_per_chunk(), tokens);
        assert!((1..=MAX_PARTS).contains(&group.parts()));
        for part in (0..group.parts()).filter_map(|part| u16::try_from(part).ok()).map(PartIndex) {
            let whole = group.part_bytes(part, full);
            assert!(whole.is_ok_and(|bytes| (1..=MAX_PART_BYTES).contains(&bytes)), "{group:?}");
            assert_eq!(group.part_bytes(part, Coverage::empty(group.blocks_per_chunk)), Ok(0));
        }
        let past = PartIndex(u16::try_from(group.parts()).unwrap_or(u16::MAX));
        assert_eq!(group.part_bytes(past, full).map_err(|no| no.reason), Err(Reason::PartOutOfRange));
        assert!(group.window_tokens.is_none_or(|tokens| tokens >= NonZeroU32::MIN));
    }
    let past = GroupIndex(u16::try_from(descriptor.groups.len()).unwrap_or(u16::MAX));
    assert_eq!(descriptor.group(past).map_err(|no| no.reason), Err(Reason::GroupOutOfRange));
    Some(descriptor)
}

/// The message that was drawn.
pub(super) fn message(draft: Draft) -> v1::NamespaceDescriptor {
    let [model, weights, kv_dtype, quantisation, page_format] = draft.strings.map(text);
    v1::NamespaceDescriptor {
        model,
        weights,
        kv_dtype,
        quantisation,
        groups: draft.groups.into_iter().map(group).collect(),
        page_format,
        layout_fingerprint: vec![draft.fingerprint; fingerprint_bytes(draft.fingerprint_bytes)].into(),
        ranks: draft.ranks.map(|[tp, pp, cp]| v1::RankGeometry {
            tensor_parallel: tp.into(),
            pipeline_parallel: pp.into(),
            context_parallel: cp.into(),
        }),
        key_chain_version: draft.key_chain_version,
        domain: draft.domain.map(text).unwrap_or_default(),
    }
}

/// Mostly the right one.
fn fingerprint_bytes(drawn: u8) -> usize {
    if drawn >= 240 { usize::from(drawn - 220) } else { 32 }
}

fn text(text: Text) -> String {
    match text {
        Text::Short(n) => n.to_string(),
        Text::Given(text) => text,
        Text::Long(n) => "n".repeat(usize::from(n)),
    }
}

fn group(group: Group) -> v1::GroupDescriptor {
    let mut parts = group.part_block_bytes;
    if let Some((count, bytes)) = group.equal_parts {
        parts.extend(std::iter::repeat_n(u64::from(bytes), usize::from(count % 1100)));
    }
    v1::GroupDescriptor {
        kind: group.kind.into(),
        tokens_per_block: group.tokens_per_block,
        blocks_per_chunk: group.blocks_per_chunk.into(),
        window_tokens: group.window_tokens.unwrap_or(0),
        part_block_bytes: parts,
        lookahead_tokens: group.lookahead_tokens.into(),
    }
}
