//! From what an operator has in hand (tokens of a prompt, or keys) to chunks, by the client's own code.

use std::path::Path;

use tender_proto::{ChainHash, ChunkId, Descriptor, GroupIndex, Reason, Refusal};

use crate::hash::{KeyChain, NamedInput, RequestInputs};

/// A chunk of a request, and the tokens that it holds where they are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) chunk: ChunkId,
    /// First token and the one behind the last.
    pub(super) tokens: Option<(u64, u64)>,
}

/// `GROUP:KEY`, or a key of group 0: 64 hexadecimal digits.
pub(super) fn parse_key(text: &str) -> Option<ChunkId> {
    let (group, key) = text.split_once(':').unwrap_or(("0", text));
    let group = GroupIndex(group.parse().ok()?);
    Some(ChunkId { group, hash: ChainHash::parse_hex(key).ok()? })
}

/// Token ids in a file: JSON (a list, or an object with `tokens`, `token_ids` or `prompt_token_ids`), or numbers with
/// spaces, commas or line ends between them. `-` is standard input.
pub(super) fn read_tokens(path: &Path) -> Result<Vec<u32>, Refusal> {
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    let subject = || format!("the token file {}", path.display());
    let text =
        text.map_err(|error| bad(format!("{} ({error})", subject()), "name a file that can be read"))?;
    parse_tokens(&text).ok_or_else(|| {
        bad(subject(), "write token ids: a JSON list, or numbers with spaces or line ends between them")
    })
}

fn parse_tokens(text: &str) -> Option<Vec<u32>> {
    let tokens = match text.trim_start().chars().next()? {
        '[' => serde_json::from_str(text).ok()?,
        '{' => {
            let object: serde_json::Value = serde_json::from_str(text).ok()?;
            let names = ["tokens", "token_ids", "prompt_token_ids"];
            let list = names.iter().find_map(|name| object.get(name))?;
            serde_json::from_value(list.clone()).ok()?
        }
        _ => {
            let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
            words.map(str::parse).collect::<Result<Vec<u32>, _>>().ok()?
        }
    };
    (!tokens.is_empty()).then_some(tokens)
}

/// What goes into the keys beside the tokens.
pub(super) fn inputs(salt: Option<&str>, adapter: Option<&str>) -> Result<RequestInputs, Refusal> {
    let mut named = Vec::new();
    if let Some(salt) = salt {
        named.push(NamedInput::Salt(salt.to_owned()));
    }
    if let Some(adapter) = adapter {
        let mut content = [0; 32];
        hex::decode_to_slice(adapter, &mut content).map_err(|_| {
            bad(
                format!("the adapter '{}'", adapter.escape_debug()),
                "give the 64 digits of its weights' digest",
            )
        })?;
        named.push(NamedInput::Adapter { content });
    }
    RequestInputs::new(named, Vec::new()).map_err(|why| bad(why.to_string(), "such a request is not cached"))
}

/// The chunks of these tokens in a namespace, group after group.
pub(super) fn places(descriptor: &Descriptor, tokens: &[u32], inputs: &RequestInputs) -> Vec<Place> {
    let mut all = Vec::new();
    for (number, group) in (0..).zip(&descriptor.groups) {
        let size = group.tokens_per_chunk();
        let mut chain = KeyChain::new(size, group.lookahead_tokens, inputs);
        chain.extend(tokens);
        all.extend((0..).zip(chain.hashes()).map(|(n, &hash)| Place {
            chunk: ChunkId { group: GroupIndex(number), hash },
            tokens: Some((n * size, (n + 1) * size)),
        }));
    }
    all
}

/// Whether the same tokens have other keys in the other one: then nobody finds anything by looking for the same key.
pub(super) fn keys_differ(one: &Descriptor, other: &Descriptor) -> bool {
    let sizes = |of: &Descriptor| -> Vec<_> {
        of.groups.iter().map(|group| (group.tokens_per_chunk(), group.lookahead_tokens)).collect()
    };
    sizes(one) != sizes(other)
}

fn bad(subject: String, advice: &str) -> Refusal {
    Refusal::new(Reason::Malformed, subject, advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::differ::tests::descriptor;

    #[test]
    fn tokens_come_as_json_or_as_words() {
        let three = Some(vec![1, 2, 3]);
        for text in [
            "[1, 2, 3]",
            "1 2 3",
            "1,2,3\n",
            " 1\n2\n3",
            "{\"prompt_token_ids\": [1,2,3]}",
            "{\"tokens\":[1,2,3]}",
        ] {
            assert_eq!(parse_tokens(text), three, "{text}");
        }
        for text in ["", "one", "[1, -2]", "{\"text\": \"hi\"}", "[]", "4294967296"] {
            assert_eq!(parse_tokens(text), None, "{text}");
        }
    }

    #[test]
    fn keys_of_tokens_are_those_of_the_client() {
        let (descriptor, inputs) = (descriptor(), RequestInputs::default());
        let tokens: Vec<u32> = (0..150).collect();
        let places = places(&descriptor, &tokens, &inputs);
        let mut chain = KeyChain::new(64, 0, &inputs);
        chain.extend(&tokens);
        let hashes: Vec<_> = places.iter().map(|place| place.chunk.hash).collect();
        assert_eq!(hashes, chain.hashes());
        assert_eq!(places[1].tokens, Some((64, 128)));
        let salted = super::inputs(Some("t1"), None).unwrap();
        assert_ne!(super::places(&descriptor, &tokens, &salted)[0], places[0]);
    }

    #[test]
    fn a_key_names_its_group_or_means_the_first() {
        let digits = "ab".repeat(32);
        assert_eq!(parse_key(&digits).unwrap().group, GroupIndex(0));
        assert_eq!(parse_key(&format!("3:{digits}")).unwrap().group, GroupIndex(3));
        for bad in ["", "ab", "x:ab", "chatcmpl-12"] {
            assert_eq!(parse_key(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_adapter_is_named_by_its_digest() {
        assert!(inputs(None, Some(&"0f".repeat(32))).is_ok());
        assert!(inputs(None, Some("my-lora")).is_err());
    }
}
