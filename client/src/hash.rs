//! Keys of chunks (rule 9): a BLAKE3 chain over token ids that starts from the request's named inputs and mixes
//! in media digests where they lie.
//!
//! Nothing local to a process takes part: no addresses, no seeds, no hash of the engine's. The encoding is
//! held still by golden vectors in the tests; a change of it needs a new
//! [`KEY_CHAIN_VERSION`](tender_proto::limits::KEY_CHAIN_VERSION) and new context strings.

use tender_proto::ChainHash;
use tender_proto::mutant::{Mutant, active};

/// Domain of the chain's start. The version at its end is the chain's.
const ROOT_CONTEXT: &str = "tender 2026-11 chunk chain root v1";
/// Domain of every further link.
const LINK_CONTEXT: &str = "tender 2026-11 chunk chain link v1";

/// Shortest media digest that is taken for a name: 128 bits. Shorter ones meet by chance, and can be made to.
pub const MIN_MEDIA_DIGEST_BYTES: usize = 16;

/// Why a request has no keys: what cannot be named by content is neither stored nor looked up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Uncacheable {
    /// A media span came without a digest, or with one too short to name it.
    #[error(
        "the media at token {start_token} has a digest of {digest_bytes} bytes; at least 16 are needed to name it"
    )]
    ShortMediaDigest {
        /// Where the span starts.
        start_token: u64,
        /// What was given.
        digest_bytes: usize,
    },
    /// A media span without tokens, or one that ends past the last token number there is.
    #[error("the media at token {start_token} spans {tokens} tokens, which no request can hold")]
    BadMediaSpan {
        /// Where the span starts.
        start_token: u64,
        /// Its length as given.
        tokens: u64,
    },
    /// An input of no kind.
    #[error("an input has no kind; inputs of different kinds must not be taken for one another")]
    NamelessKind,
    /// The engine has an input that decides bytes and that nothing names by content.
    #[error("{what} cannot be named by its content")]
    Unnamed {
        /// The input, in the engine's words.
        what: String,
    },
}

/// One input of a request, beyond its tokens, that decides which bytes are right.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NamedInput {
    /// Weights added to the model's, named by a digest of them, never by their path or number.
    Adapter {
        /// Digest of the adapter's weights.
        content: [u8; 32],
    },
    /// Keeps tenants apart. An empty salt is not the same as none.
    Salt(String),
    /// Embeddings given instead of tokens.
    PromptEmbeds {
        /// Digest of the embeddings.
        content: [u8; 32],
    },
    /// Anything else an engine has.
    Other {
        /// What it is; never empty.
        kind: String,
        /// What names it.
        content: Vec<u8>,
    },
}

impl NamedInput {
    /// Tag, kind and content. The tag keeps a caller's text in one field from equalling another field.
    fn parts(&self) -> (u8, &str, &[u8]) {
        match self {
            Self::Adapter { content } => (1, "", content),
            Self::Salt(salt) => (2, "", salt.as_bytes()),
            Self::PromptEmbeds { content } => (3, "", content),
            Self::Other { kind, content } => (4, kind, content),
        }
    }
}

/// A run of placeholder tokens that stand for an image, a sound or a video.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MediaSpan {
    /// First token of the span.
    pub start_token: u64,
    /// Tokens of the span.
    pub tokens: u64,
    /// Digest of the media and of how it was prepared, at full width.
    pub digest: Vec<u8>,
}

/// Everything besides tokens that goes into a request's keys, checked.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RequestInputs {
    /// Sorted: engines list these in no meaningful order, and two orders must not make two keys.
    named: Vec<NamedInput>,
    /// Sorted by position, for the same reason.
    media: Vec<MediaSpan>,
}

impl RequestInputs {
    /// Refuses whatever is not named by content.
    pub fn new(mut named: Vec<NamedInput>, mut media: Vec<MediaSpan>) -> Result<Self, Uncacheable> {
        for input in &named {
            if matches!(input, NamedInput::Other { kind, .. } if kind.is_empty()) {
                return Err(Uncacheable::NamelessKind);
            }
        }
        for &MediaSpan { start_token, tokens, ref digest } in &media {
            if digest.len() < MIN_MEDIA_DIGEST_BYTES {
                return Err(Uncacheable::ShortMediaDigest { start_token, digest_bytes: digest.len() });
            }
            if tokens == 0 || start_token.checked_add(tokens).is_none() {
                return Err(Uncacheable::BadMediaSpan { start_token, tokens });
            }
        }
        named.sort();
        media.sort();
        Ok(Self { named, media })
    }
    /// The named inputs, sorted.
    pub fn named(&self) -> &[NamedInput] {
        &self.named
    }
    /// The media spans by position.
    pub fn media(&self) -> &[MediaSpan] {
        &self.media
    }

    fn root(&self, tokens_per_chunk: u64) -> ChainHash {
        let mut root = Framed(blake3::Hasher::new_derive_key(ROOT_CONTEXT));
        root.number(tokens_per_chunk);
        root.number(if active(Mutant::NamedInputsLeftOut) { 0 } else { self.named.len() as u64 });
        for input in self.named.iter().filter(|_| !active(Mutant::NamedInputsLeftOut)) {
            let (tag, kind, content) = input.parts();
            root.number(u64::from(tag));
            root.bytes(kind.as_bytes());
            root.bytes(content);
        }
        root.0.finalize().into()
    }
}

/// The keys of one request's chunks, as far as its tokens are known.
///
/// Draft layers compute a slot from tokens behind it as well. For their groups the chain runs `lookahead_tokens` ahead:
/// a chunk's hash covers so many tokens behind its last one, and is known only once they are (rule 9).
#[derive(Clone, Debug)]
pub struct KeyChain {
    tokens_per_chunk: u64,
    lookahead_tokens: u64,
    media: Vec<MediaSpan>,
    /// The last link, or the root.
    tip: ChainHash,
    hashes: Vec<ChainHash>,
    /// Tokens after the last whole chunk.
    open_chunk: Vec<u32>,
}

impl KeyChain {
    /// A chain without tokens. Chunks of 0 tokens do not exist, so 0 counts as 1.
    pub fn new(tokens_per_chunk: u64, lookahead_tokens: u32, inputs: &RequestInputs) -> Self {
        let tokens_per_chunk = tokens_per_chunk.max(1);
        Self {
            tokens_per_chunk,
            lookahead_tokens: u64::from(lookahead_tokens),
            media: if active(Mutant::MediaLeftOut) { Vec::new() } else { inputs.media.clone() },
            tip: inputs.root(tokens_per_chunk),
            hashes: Vec::new(),
            open_chunk: Vec::new(),
        }
    }
    /// Adds the tokens that follow the ones so far.
    pub fn extend(&mut self, mut tokens: &[u32]) {
        while !tokens.is_empty() {
            let missing = self.link_end() - self.tokens();
            let taken = usize::try_from(missing).map_or(tokens.len(), |m| m.min(tokens.len()));
            let (head, rest) = tokens.split_at(taken);
            self.open_chunk.extend_from_slice(head);
            tokens = rest;
            if self.tokens() == self.link_end() {
                self.close_chunk();
            }
        }
    }
    /// One hash per whole chunk.
    pub fn hashes(&self) -> &[ChainHash] {
        &self.hashes
    }
    /// Tokens so far, those of the open chunk included.
    pub fn tokens(&self) -> u64 {
        self.link_start() + self.open_chunk.len() as u64
    }

    /// First token of the link under way. The first link takes the lookahead in addition to its chunk.
    fn link_start(&self) -> u64 {
        match self.hashes.len() as u64 {
            0 => 0,
            links => links * self.tokens_per_chunk + self.lookahead_tokens,
        }
    }

    fn link_end(&self) -> u64 {
        (self.hashes.len() as u64 + 1) * self.tokens_per_chunk + self.lookahead_tokens
    }

    fn close_chunk(&mut self) {
        let (start, end) = (self.link_start(), self.link_end());
        let begun = self.media.partition_point(|span| span.start_token < end);
        let inside = || self.media[..begun].iter().filter(|span| span.start_token + span.tokens > start);
        let mut link = Framed(blake3::Hasher::new_derive_key(LINK_CONTEXT));
        link.0.update(self.tip.as_bytes());
        link.number(inside().count() as u64);
        for span in inside() {
            link.bytes(&span.digest);
            link.number(span.tokens);
            // Where the chunk cuts the span, and where the span begins in the chunk: one of them is 0.
            link.number(start.saturating_sub(span.start_token));
            link.number(span.start_token.saturating_sub(start));
        }
        let words: Vec<u8> = self.open_chunk.iter().flat_map(|token| token.to_le_bytes()).collect();
        link.bytes(&words);
        self.tip = link.0.finalize().into();
        self.hashes.push(self.tip);
        self.open_chunk.clear();
    }
}

/// Feeds length-framed fields into a digest, so that no two inputs encode alike.
struct Framed(blake3::Hasher);

impl Framed {
    fn number(&mut self, value: u64) {
        self.0.update(&value.to_le_bytes());
    }
    fn bytes(&mut self, value: &[u8]) {
        self.number(value.len() as u64);
        self.0.update(value);
    }
}

#[cfg(test)]
mod tests;
