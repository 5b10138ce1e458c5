//! Every span and attribute. An attribute never holds a token, a credential or a prompt; digests are cut to
//! [`short`].

use std::fmt;

/// A client's scheduler asks how much of a request's prompt there is.
pub const LOOKUP: &str = "tender.lookup";
/// A client's worker loads what one request was promised.
pub const LOAD: &str = "tender.load";
/// A client's worker stores a batch of chunks, of whatever requests.
pub const STORE: &str = "tender.store";
/// A daemon brings one chunk from a tier into its arena, for the first who asked for it.
pub const TIER_FETCH: &str = "tenderd.tier_fetch";
/// A daemon asks another one for a chunk.
pub const PEER_FETCH: &str = "tenderd.peer_fetch";

/// The engine's id of the request.
pub const REQUEST: &str = "tender.request_id";
/// The namespace, short.
pub const NAMESPACE: &str = "tender.namespace";
/// The chunk, short.
pub const CHUNK: &str = "tender.chunk";
/// How many chunks it is about.
pub const CHUNKS: &str = "tender.chunks";
/// Those of them that were READY.
pub const READY: &str = "tender.ready_chunks";
/// Payload.
pub const BYTES: &str = "tender.bytes";
/// The tier that was asked.
pub const TIER: &str = "tender.tier";
/// Another daemon's address.
pub const PEER: &str = "server.address";

/// The span of a daemon's answer to a call; `None` for calls that are not traced.
#[must_use]
pub fn call(name: &str) -> Option<&'static str> {
    Some(match name {
        "lookup" => "tenderd.lookup",
        "reserve" => "tenderd.reserve",
        "commit" => "tenderd.commit",
        "put" => "tenderd.put",
        "get" => "tenderd.get",
        "fetch" => "tenderd.fetch",
        _ => return None,
    })
}

/// A number of things as an attribute.
#[must_use]
pub fn count(things: usize) -> i64 {
    i64::try_from(things).unwrap_or(i64::MAX)
}

/// The first hexadecimal digits of a digest: enough to find it in a log.
#[must_use]
pub fn short(digest: &[u8]) -> String {
    struct Hex<'a>(&'a [u8]);
    impl fmt::Display for Hex<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        }
    }
    Hex(&digest[..digest.len().min(6)]).to_string()
}
