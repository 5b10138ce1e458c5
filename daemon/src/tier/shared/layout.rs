//! The names of objects, so that an operator can list and delete a namespace with the store's own tools.
//!
//! ```text
//! v1/<model>-<namespace digest>/descriptor.json         what the namespace is, for people
//! v1/<model>-<namespace digest>/generation              which of the following folders counts
//! v1/generation                                         where namespaces cannot be listed: what each must be at least
//! v1/<model>-<namespace digest>/<generation>/<group>/<chain hash>
//! ```
//!
//! The first step is the version of this layout and of the objects: daemons that write another one do not meet.

use tender_proto::{ChunkId, Descriptor, NamespaceDigest};

use super::generation::Generation;

/// Of layout and object; both change together.
pub(super) const FORMAT_VERSION: u32 = 1;

/// Readable, but short enough for every store's longest name.
const MODEL_BYTES: usize = 40;

/// The folder of a namespace, with a slash at its end.
pub(super) fn folder(digest: NamespaceDigest, descriptor: &Descriptor) -> String {
    format!("v{FORMAT_VERSION}/{}-{}/", safe(&descriptor.model), digest.to_hex())
}

/// The folder of all namespaces, with a slash at its end.
pub(super) fn all() -> String {
    format!("v{FORMAT_VERSION}/")
}

/// The namespace whose folder has this name.
pub(super) fn namespace_of(name: &str) -> Option<NamespaceDigest> {
    NamespaceDigest::parse_hex(name.rsplit_once('-')?.1).ok()
}

/// Below which no generation counts, of any namespace.
pub(super) fn least_generation() -> String {
    format!("v{FORMAT_VERSION}/generation")
}

/// Which generation counts.
pub(super) fn generation(folder: &str) -> String {
    format!("{folder}generation")
}

/// What the namespace is.
pub(super) fn descriptor(folder: &str) -> String {
    format!("{folder}descriptor.json")
}

/// All chunks of a generation, with a slash at the end.
pub(super) fn generation_folder(folder: &str, generation: Generation) -> String {
    format!("{folder}{generation}/")
}

/// One chunk.
pub(super) fn chunk(folder: &str, generation: Generation, chunk: ChunkId) -> String {
    format!("{folder}{generation}/{}/{}", chunk.group, chunk.hash.to_hex())
}

/// Letters that every store, shell and URL takes as they are.
fn safe(model: &str) -> String {
    let last = model.rsplit('/').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' };
    let name: String = last.chars().map(plain).take(MODEL_BYTES).collect();
    match name.trim_start_matches('.') {
        "" => "model".into(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::safe;

    #[test]
    fn a_models_name_is_safe_in_any_store_and_shell() {
        assert_eq!(safe("meta-llama/Llama-3.1-8B"), "Llama-3.1-8B");
        assert_eq!(safe("a b;rm -rf $HOME"), "a-b-rm--rf--HOME");
        assert_eq!((safe("../.."), safe(""), safe("x/")), ("model".into(), "model".into(), "model".into()));
        assert_eq!(safe(&"\u{e9}".repeat(99)).len(), super::MODEL_BYTES);
    }
}
