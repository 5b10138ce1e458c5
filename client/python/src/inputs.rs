//! A request's inputs beyond its tokens, from Python's plain tuples into the checked types.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tender_client::hash::{MediaSpan, NamedInput, RequestInputs, Uncacheable};

/// Kind and content. Kinds: `adapter` and `prompt_embeds` (32-byte digests), `salt` (its text in UTF-8); any
/// other kind stands for itself.
pub(crate) type Named = (String, Vec<u8>);
/// Digest, first placeholder token, placeholder tokens.
pub(crate) type Media = (Vec<u8>, u64, u64);

pub(crate) fn parse(named: Vec<Named>, media: Vec<Media>) -> PyResult<Result<RequestInputs, Uncacheable>> {
    let named = named.into_iter().map(parse_named).collect::<PyResult<_>>()?;
    let span = |(digest, start_token, tokens)| MediaSpan { start_token, tokens, digest };
    Ok(RequestInputs::new(named, media.into_iter().map(span).collect()))
}

fn parse_named((kind, content): Named) -> PyResult<NamedInput> {
    let digest = |content: Vec<u8>| {
        <[u8; 32]>::try_from(content).map_err(|other| {
            PyValueError::new_err(format!("{kind} content of {} bytes, not 32", other.len()))
        })
    };
    Ok(match kind.as_str() {
        "adapter" => NamedInput::Adapter { content: digest(content)? },
        "prompt_embeds" => NamedInput::PromptEmbeds { content: digest(content)? },
        "salt" => NamedInput::Salt(String::from_utf8(content)?),
        _ => NamedInput::Other { kind, content },
    })
}
