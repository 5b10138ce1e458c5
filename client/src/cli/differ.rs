//! What differs between two namespaces, and why that keeps engines from sharing.

use serde::Serialize;
use tender_proto::{Descriptor, Group, PartIndex};

/// One field that differs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Difference {
    /// As the descriptor calls it.
    pub(super) field: String,
    pub(super) left: String,
    pub(super) right: String,
    /// What that means.
    pub(super) why: &'static str,
}

/// In the order of the descriptor.
pub(super) fn differences(left: &Descriptor, right: &Descriptor) -> Vec<Difference> {
    let mut all: Vec<_> = fields(left)
        .into_iter()
        .zip(fields(right))
        .filter(|(l, r)| l.1 != r.1)
        .map(|((field, left, why), (_, right, _))| Difference { field: field.into(), left, right, why })
        .collect();
    if left.groups.len() != right.groups.len() {
        let count = |of: &Descriptor| of.groups.len().to_string();
        let (left, right) = (count(left), count(right));
        let why = "the models, or the ways their layers are grouped, differ";
        all.push(Difference { field: "groups".into(), left, right, why });
        return all;
    }
    for (number, (l, r)) in left.groups.iter().zip(&right.groups).enumerate() {
        for ((field, left, why), (_, right, _)) in group_fields(l).into_iter().zip(group_fields(r)) {
            if left != right {
                all.push(Difference { field: format!("groups[{number}].{field}"), left, right, why });
            }
        }
    }
    all
}

type Field = (&'static str, String, &'static str);

pub(super) fn fields(of: &Descriptor) -> Vec<Field> {
    let ranks = of.ranks;
    vec![
        (
            "model",
            of.model.clone(),
            "names and paths are compared byte for byte: serve both under the same one",
        ),
        ("weights", of.weights.clone(), "other weights make other bytes: use the same revision"),
        (
            "kv_dtype",
            of.kv_dtype.clone(),
            "the cache has another element type: use the same --kv-cache-dtype",
        ),
        ("quantisation", of.quantisation.clone(), "the cache is scaled in another way"),
        (
            "page_format",
            of.page_format.clone(),
            "other attention backends order a page's bytes in other ways",
        ),
        (
            "layout_fingerprint",
            hex::encode(&of.layout_fingerprint[..6]),
            "pages are laid out in another way: another attention backend, version or head geometry",
        ),
        ("tensor_parallel", ranks.tensor_parallel.to_string(), "a chunk has other parts: use as many ranks"),
        (
            "pipeline_parallel",
            ranks.pipeline_parallel.to_string(),
            "a chunk has other parts: use as many ranks",
        ),
        (
            "context_parallel",
            ranks.context_parallel.to_string(),
            "a chunk has other parts: use as many ranks",
        ),
        (
            "key_chain_version",
            of.key_chain_version.to_string(),
            "the clients make keys in different ways: use the same release of both",
        ),
        ("domain", of.domain.clone(), "the policy keeps their tenants apart"),
    ]
}

pub(super) fn group_fields(of: &Group) -> Vec<Field> {
    let parts = (0..of.parts()).filter_map(|part| of.block_bytes(PartIndex(u16::try_from(part).ok()?)));
    let parts: Vec<_> = parts.map(|bytes| bytes.to_string()).collect();
    vec![
        ("kind", kind(of).to_owned(), "the layers see the past in another way"),
        ("tokens_per_block", of.tokens_per_block.to_string(), "use the same --block-size"),
        (
            "blocks_per_chunk",
            of.blocks_per_chunk.get().to_string(),
            "use the same chunk size in both connectors",
        ),
        (
            "window_tokens",
            of.window_tokens.map_or("all".to_owned(), |window| window.to_string()),
            "the layers see another window",
        ),
        (
            "part_block_bytes",
            parts.join(","),
            "a block has another size: other heads, ranks or element types",
        ),
        (
            "lookahead_tokens",
            of.lookahead_tokens.to_string(),
            "one of them speculates with draft layers, or with another number of them",
        ),
    ]
}

pub(super) fn kind(of: &Group) -> &'static str {
    use tender_proto::GroupKind as Kind;
    match of.kind {
        Kind::FullAttention => "full",
        Kind::SlidingWindow => "window",
        Kind::ChunkedLocal => "local",
        Kind::Recurrent => "recurrent",
        Kind::MlaLatent => "mla",
    }
}

/// In one line.
pub(super) fn short_list(differences: &[Difference]) -> String {
    let one = |d: &Difference| format!("{} ({} / {})", d.field, shown(&d.left), shown(&d.right));
    differences.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Nothing is hard to see.
pub(super) fn shown(value: &str) -> &str {
    if value.is_empty() { "none" } else { value }
}

#[cfg(test)]
pub(super) mod tests {
    use std::num::NonZeroU32;

    use tender_proto::{BlocksPerChunk, GroupKind, RankGeometry};

    use super::*;

    pub(in crate::cli) fn descriptor() -> Descriptor {
        let group = Group::new(
            GroupKind::FullAttention,
            NonZeroU32::new(16).unwrap(),
            BlocksPerChunk::new(4).unwrap(),
            None,
            vec![4096],
        );
        Descriptor {
            model: "tiny-llama".into(),
            weights: "rev-a".into(),
            kv_dtype: "bfloat16".into(),
            quantisation: "none".into(),
            groups: vec![group.unwrap()],
            page_format: "HNC".into(),
            layout_fingerprint: [7; 32],
            ranks: RankGeometry::SINGLE,
            key_chain_version: 1,
            domain: String::new(),
        }
    }

    #[test]
    fn each_field_that_differs_is_named_with_both_values() {
        let (one, mut other) = (descriptor(), descriptor());
        assert_eq!(differences(&one, &other), []);
        other.kv_dtype = "fp8".into();
        other.domain = "blue".into();
        other.layout_fingerprint = [8; 32];
        other.ranks.tensor_parallel = NonZeroU32::new(2).unwrap();
        other.groups[0].lookahead_tokens = 1;
        let found = differences(&one, &other);
        let names: Vec<_> = found.iter().map(|d| d.field.as_str()).collect();
        let wanted =
            ["kv_dtype", "layout_fingerprint", "tensor_parallel", "domain", "groups[0].lookahead_tokens"];
        assert_eq!(names, wanted);
        assert!(short_list(&found).contains("kv_dtype (bfloat16 / fp8)"));
        assert!(short_list(&found).contains("domain (none / blue)"));
    }

    #[test]
    fn another_number_of_groups_is_one_difference() {
        let (one, mut other) = (descriptor(), descriptor());
        other.groups.push(other.groups[0].clone());
        assert_eq!(short_list(&differences(&one, &other)), "groups (1 / 2)");
    }

    /// A field that is forgotten here would leave an operator without the answer.
    #[test]
    fn whatever_changes_the_digest_is_a_difference() {
        let one = descriptor();
        let changes: [fn(&mut Descriptor); 11] = [
            |d| d.model = "x".into(),
            |d| d.weights = "x".into(),
            |d| d.kv_dtype = "x".into(),
            |d| d.quantisation = "x".into(),
            |d| d.page_format = "x".into(),
            |d| d.ranks.pipeline_parallel = NonZeroU32::new(3).unwrap(),
            |d| d.ranks.context_parallel = NonZeroU32::new(3).unwrap(),
            |d| d.key_chain_version = 9,
            |d| d.groups[0].tokens_per_block = NonZeroU32::new(32).unwrap(),
            |d| d.groups[0].blocks_per_chunk = BlocksPerChunk::new(8).unwrap(),
            |d| d.groups[0].kind = GroupKind::MlaLatent,
        ];
        for change in changes {
            let mut other = one.clone();
            change(&mut other);
            assert_ne!(one.digest(), other.digest());
            assert_eq!(differences(&one, &other).len(), 1, "{other:?}");
        }
    }
}
