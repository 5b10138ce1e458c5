//! `tender ls`.

use std::fmt::Write;

use comfy_table::CellAlignment;
use serde::Serialize;

use super::differ::{self, Difference, differences, shown};
use super::stat::{plain, short, size, text};
use super::{Target, json, pick};
use crate::admin::NamespaceInfo;
use crate::error::ClientError;

/// Lists namespaces.
#[derive(Debug, clap::Args)]
pub(super) struct Ls {
    /// One: all of its descriptor. Two: what differs between them. Each by its name or the first digits of its digest.
    #[arg(value_name = "NAMESPACE", num_args = 0..=2)]
    names: Vec<String>,
    /// As JSON, for programs: {"namespaces": [...]}, or {"left", "right", "same", "differences": [...]} for two.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct List {
    namespaces: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    namespace: String,
    pinned_name: String,
    ready_chunks: u64,
    ready_bytes: u64,
    descriptor: serde_json::Map<String, serde_json::Value>,
}

#[derive(Serialize)]
struct Compared {
    left: String,
    right: String,
    same: bool,
    differences: Vec<Difference>,
}

impl Ls {
    pub(super) fn run(&self, target: &Target) -> Result<String, ClientError> {
        let all = pick::all(target)?;
        let named = |name: &String| pick::one(&all, name);
        let chosen = self.names.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        match chosen[..] {
            [left, right] => {
                let found = differences(&left.descriptor, &right.descriptor);
                if !self.json {
                    return Ok(compare(left, right, &found));
                }
                let (left, right) = (left.digest.to_hex(), right.digest.to_hex());
                json(&Compared { left, right, same: found.is_empty(), differences: found })
            }
            [only] if !self.json => Ok(describe(only)),
            [only] => json(&List { namespaces: vec![listed(only)] }),
            _ if self.json => json(&List { namespaces: all.iter().map(listed).collect() }),
            _ => Ok(list(&all)),
        }
    }
}

fn listed(ns: &NamespaceInfo) -> Listed {
    let mut descriptor = serde_json::Map::new();
    for (field, value, _) in differ::fields(&ns.descriptor) {
        let value =
            if field == "layout_fingerprint" { hex::encode(ns.descriptor.layout_fingerprint) } else { value };
        descriptor.insert(field.into(), value.into());
    }
    let group = |group| {
        let fields = differ::group_fields(group).into_iter();
        serde_json::Value::Object(fields.map(|(field, value, _)| (field.to_owned(), value.into())).collect())
    };
    descriptor.insert("groups".into(), ns.descriptor.groups.iter().map(group).collect());
    Listed {
        namespace: ns.digest.to_hex(),
        pinned_name: ns.pinned_name.clone(),
        ready_chunks: ns.ready_chunks,
        ready_bytes: ns.ready_bytes,
        descriptor,
    }
}

fn list(all: &[NamespaceInfo]) -> String {
    if all.is_empty() {
        return "No namespaces: no engine has registered yet.\n".into();
    }
    let mut table = plain();
    table.set_header([
        "NAMESPACE",
        "NAME",
        "MODEL",
        "WEIGHTS",
        "DTYPE",
        "SCALES",
        "PAGE",
        "RANKS",
        "GROUPS",
        "DOMAIN",
        "CHUNKS",
        "SIZE",
    ]);
    for ns in all {
        let d = &ns.descriptor;
        let ranks = [d.ranks.tensor_parallel, d.ranks.pipeline_parallel, d.ranks.context_parallel];
        table.add_row([
            short(&ns.digest.to_hex()),
            shown(&ns.pinned_name).to_owned(),
            d.model.clone(),
            short(&d.weights),
            d.kv_dtype.clone(),
            d.quantisation.clone(),
            d.page_format.clone(),
            ranks.map(|n| n.to_string()).join("x"),
            groups(ns),
            shown(&d.domain).to_owned(),
            ns.ready_chunks.to_string(),
            size(ns.ready_bytes),
        ]);
    }
    for at in 10..12 {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text(&mut table) + "\n"
}

/// Kind, and tokens of a block times blocks of a chunk.
fn groups(ns: &NamespaceInfo) -> String {
    let one = |group: &tender_proto::Group| {
        format!("{} {}x{}", differ::kind(group), group.tokens_per_block, group.blocks_per_chunk.get())
    };
    ns.descriptor.groups.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn describe(ns: &NamespaceInfo) -> String {
    let mut table = plain();
    table.add_row(["namespace", &ns.digest.to_hex()]);
    table.add_row(["name", shown(&ns.pinned_name)]);
    table.add_row(["stored", &format!("{} chunks, {}", ns.ready_chunks, size(ns.ready_bytes))]);
    for (field, value, _) in differ::fields(&ns.descriptor) {
        table.add_row([field, shown(&value)]);
    }
    for (number, group) in ns.descriptor.groups.iter().enumerate() {
        for (field, value, _) in differ::group_fields(group) {
            table.add_row([&format!("groups[{number}].{field}"), shown(&value)]);
        }
    }
    text(&mut table) + "\n"
}

fn compare(left: &NamespaceInfo, right: &NamespaceInfo, found: &[Difference]) -> String {
    let (one, other) = (pick::label(left), pick::label(right));
    if found.is_empty() {
        return format!("{one} and {other} are the same namespace: these engines share.\n");
    }
    let mut out = format!("The engines of {one} and {other} do not share, because these differ:\n\n");
    let mut table = plain();
    table.set_header(["FIELD", &one, &other, "WHAT IT MEANS"]);
    for d in found {
        table.add_row([d.field.as_str(), shown(&d.left), shown(&d.right), d.why]);
    }
    _ = writeln!(out, "{}", text(&mut table));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::pick::tests::info;

    #[test]
    fn a_namespace_is_one_row_with_its_descriptor() {
        let text = list(&[info("abc", "prod"), info("def", "")]);
        assert!(
            text.contains("abc000000000") && text.contains("prod") && text.contains("full 16x4"),
            "{text}"
        );
        assert!(text.contains("1x1x1") && text.lines().count() == 3, "{text}");
        assert!(list(&[]).contains("no engine has registered"));
    }

    #[test]
    fn two_namespaces_are_told_apart_in_words() {
        let (one, mut other) = (info("abc", ""), info("def", "blue"));
        assert!(compare(&one, &one, &[]).contains("the same namespace"));
        other.descriptor.kv_dtype = "fp8".into();
        let text = compare(&one, &other, &differences(&one.descriptor, &other.descriptor));
        assert!(text.contains("do not share, because") && text.contains("--kv-cache-dtype"), "{text}");
        assert!(text.contains("bfloat16") && text.contains("fp8") && text.contains("blue"), "{text}");
    }

    #[test]
    fn json_has_every_field_of_the_descriptor() {
        let listed = serde_json::to_value(listed(&info("abc", ""))).unwrap();
        assert_eq!(listed["descriptor"]["model"], "tiny-llama");
        assert_eq!(listed["descriptor"]["groups"][0]["tokens_per_block"], "16");
        assert_eq!(listed["descriptor"]["layout_fingerprint"].as_str().unwrap().len(), 64);
    }
}
