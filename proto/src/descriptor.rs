//! Everything, beyond the tokens, that decides which bytes are right (rule 9), and its digest.

use std::num::NonZeroU32;

use prost::Message;

use crate::coverage::{BlocksPerChunk, Coverage};
use crate::ids::{GroupIndex, PartIndex};
use crate::key::{ChunkId, NamespaceDigest};
use crate::limits::{MAX_GROUPS, MAX_LOOKAHEAD_TOKENS, MAX_NAME_BYTES, MAX_PART_BYTES, MAX_PARTS};
use crate::reason::{Reason, Refusal};
use crate::v1;

/// What the layers of a group do with the past.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GroupKind {
    /// Every query sees all tokens before it.
    FullAttention,
    /// A query sees the last `window_tokens`.
    SlidingWindow,
    /// A query sees its own `window_tokens`-sized piece of the sequence.
    ChunkedLocal,
    /// One state per boundary.
    Recurrent,
    /// Full attention over a compressed latent, the same on every rank.
    MlaLatent,
}

impl GroupKind {
    fn parse(raw: i32) -> Result<Self, Refusal> {
        match v1::GroupKind::try_from(raw) {
            Ok(v1::GroupKind::FullAttention) => Ok(Self::FullAttention),
            Ok(v1::GroupKind::SlidingWindow) => Ok(Self::SlidingWindow),
            Ok(v1::GroupKind::ChunkedLocal) => Ok(Self::ChunkedLocal),
            Ok(v1::GroupKind::Recurrent) => Ok(Self::Recurrent),
            Ok(v1::GroupKind::MlaLatent) => Ok(Self::MlaLatent),
            Ok(v1::GroupKind::Unspecified) | Err(_) => {
                Err(malformed(format!("group kind {raw}"), "name one of the kinds of store.proto"))
            }
        }
    }
    fn to_wire(self) -> v1::GroupKind {
        match self {
            Self::FullAttention => v1::GroupKind::FullAttention,
            Self::SlidingWindow => v1::GroupKind::SlidingWindow,
            Self::ChunkedLocal => v1::GroupKind::ChunkedLocal,
            Self::Recurrent => v1::GroupKind::Recurrent,
            Self::MlaLatent => v1::GroupKind::MlaLatent,
        }
    }
}

/// Layers that share one block table, and the sizes of their blocks, chunks and parts (rule 2). The three
/// sizes are separate numbers and convert only through the methods here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// What its layers do with the past.
    pub kind: GroupKind,
    /// Token slots of one block.
    pub tokens_per_block: NonZeroU32,
    /// Blocks of one chunk.
    pub blocks_per_chunk: BlocksPerChunk,
    /// Tokens a query sees; `None` where all are seen.
    pub window_tokens: Option<NonZeroU32>,
    /// Tokens after a slot that decide its bytes too: 0 for the model's own layers, 1 or more for draft layers, which
    /// compute a slot from the tokens behind it as well. Keys cover them (rule 9).
    pub lookahead_tokens: u32,
    part_block_bytes: Vec<u64>,
}

impl Group {
    /// Checks the sizes: at least one part, no empty block, no part above [`MAX_PART_BYTES`], a window exactly where
    /// the kind has one, and one block per chunk where a block is a state.
    pub fn new(
        kind: GroupKind,
        tokens_per_block: NonZeroU32,
        blocks_per_chunk: BlocksPerChunk,
        window_tokens: Option<NonZeroU32>,
        part_block_bytes: Vec<u64>,
    ) -> Result<Self, Refusal> {
        if part_block_bytes.is_empty() || part_block_bytes.len() > MAX_PARTS {
            return Err(malformed(
                format!("a group of {} parts", part_block_bytes.len()),
                "give the block size of every part, 1 to 1024 of them",
            ));
        }
        let largest = MAX_PART_BYTES / u64::from(blocks_per_chunk.get());
        if let Some(bad) = part_block_bytes.iter().find(|&&b| b == 0 || b > largest) {
            return Err(malformed(
                format!("a block of {bad} bytes in chunks of {} blocks", blocks_per_chunk.get()),
                "a part of a chunk has 1 byte to 4 GiB; use fewer blocks per chunk",
            ));
        }
        let windowed = matches!(kind, GroupKind::SlidingWindow | GroupKind::ChunkedLocal);
        if windowed != window_tokens.is_some() {
            return Err(malformed(
                format!("a {kind:?} group with window {window_tokens:?}"),
                "give window tokens for sliding-window and chunked-local groups, and only for them",
            ));
        }
        if kind == GroupKind::Recurrent && blocks_per_chunk.get() != 1 {
            return Err(malformed(
                format!("a recurrent group with chunks of {} blocks", blocks_per_chunk.get()),
                "a state serves its own boundary only: give recurrent groups 1 block per chunk",
            ));
        }
        Ok(Self {
            kind,
            tokens_per_block,
            blocks_per_chunk,
            window_tokens,
            lookahead_tokens: 0,
            part_block_bytes,
        })
    }

    /// The same group for draft layers, which see `tokens` beyond a slot. More than [`MAX_LOOKAHEAD_TOKENS`] is
    /// refused.
    pub fn with_lookahead(self, tokens: u32) -> Result<Self, Refusal> {
        if tokens > MAX_LOOKAHEAD_TOKENS {
            return Err(malformed(
                format!("a group that looks {tokens} tokens ahead"),
                "give the number of draft modules, 0 for the model's own layers",
            ));
        }
        Ok(Self { lookahead_tokens: tokens, ..self })
    }

    /// Tokens of one chunk.
    pub fn tokens_per_chunk(&self) -> u64 {
        u64::from(self.tokens_per_block.get()) * u64::from(self.blocks_per_chunk.get())
    }
    /// Parts a chunk needs before it is ready.
    pub fn parts(&self) -> usize {
        self.part_block_bytes.len()
    }
    /// Bytes of one block in part `part`; `None` when there is no such part.
    pub fn block_bytes(&self, part: PartIndex) -> Option<u64> {
        self.part_block_bytes.get(usize::from(part.0)).copied()
    }
    /// Bytes of a whole chunk, all parts together.
    pub fn chunk_bytes(&self) -> u64 {
        let block: u64 = self.part_block_bytes.iter().fold(0, |sum, &part| sum.saturating_add(part));
        block.saturating_mul(u64::from(self.blocks_per_chunk.get()))
    }
    /// Bytes of part `part` of a chunk with this coverage; a part that does not exist is refused.
    pub fn part_bytes(&self, part: PartIndex, coverage: Coverage) -> Result<u64, Refusal> {
        let block = self.block_bytes(part).ok_or_else(|| {
            Refusal::new(
                Reason::PartOutOfRange,
                format!("part {part} of a chunk of {} parts", self.parts()),
                "use the index of a rank that the descriptor has",
            )
        })?;
        Ok(block * u64::from(coverage.count()))
    }

    fn parse(raw: &v1::GroupDescriptor) -> Result<Self, Refusal> {
        let tokens_per_block = NonZeroU32::new(raw.tokens_per_block)
            .ok_or_else(|| malformed("a group of 0 tokens per block".into(), "give at least 1"))?;
        Self::new(
            GroupKind::parse(raw.kind)?,
            tokens_per_block,
            BlocksPerChunk::new(raw.blocks_per_chunk)?,
            NonZeroU32::new(raw.window_tokens),
            raw.part_block_bytes.clone(),
        )?
        .with_lookahead(raw.lookahead_tokens)
    }
    fn to_message(&self) -> v1::GroupDescriptor {
        v1::GroupDescriptor {
            kind: self.kind.to_wire().into(),
            tokens_per_block: self.tokens_per_block.get(),
            blocks_per_chunk: self.blocks_per_chunk.get(),
            window_tokens: self.window_tokens.map_or(0, NonZeroU32::get),
            part_block_bytes: self.part_block_bytes.clone(),
            lookahead_tokens: self.lookahead_tokens,
        }
    }
}

/// How the engine's ranks split the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankGeometry {
    /// Ranks that share each layer.
    pub tensor_parallel: NonZeroU32,
    /// Ranks that hold different layers.
    pub pipeline_parallel: NonZeroU32,
    /// Ranks that hold different tokens.
    pub context_parallel: NonZeroU32,
}

impl RankGeometry {
    /// One rank holds everything.
    pub const SINGLE: Self = Self {
        tensor_parallel: NonZeroU32::MIN,
        pipeline_parallel: NonZeroU32::MIN,
        context_parallel: NonZeroU32::MIN,
    };

    fn parse(raw: Option<&v1::RankGeometry>) -> Result<Self, Refusal> {
        let raw = raw.ok_or_else(|| malformed("a descriptor without ranks".into(), "send the ranks"))?;
        let count = |n: u32| {
            NonZeroU32::new(n)
                .ok_or_else(|| malformed("a rank count of 0".into(), "every count is at least 1"))
        };
        Ok(Self {
            tensor_parallel: count(raw.tensor_parallel)?,
            pipeline_parallel: count(raw.pipeline_parallel)?,
            context_parallel: count(raw.context_parallel)?,
        })
    }
}

/// A checked namespace descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// Model name or path as the user gave it.
    pub model: String,
    /// Weights revision or content fingerprint.
    pub weights: String,
    /// Element type of the cache.
    pub kv_dtype: String,
    /// Scale mode and its parameters, `"none"` where there are no scales.
    pub quantisation: String,
    /// Group `i` of every key is `groups[i]`.
    pub groups: Vec<Group>,
    /// Byte order inside a page.
    pub page_format: String,
    /// Digest over the layout of every layer's page.
    pub layout_fingerprint: [u8; 32],
    /// How the ranks split the model.
    pub ranks: RankGeometry,
    /// Version of the chunk hash chain.
    pub key_chain_version: u32,
    /// Which tenants share what is stored; empty for all, and always empty in what a client sends. See
    /// [`Descriptor::in_domain`].
    pub domain: String,
}

impl Descriptor {
    /// Checks a message. Whatever is missing or unknown is refused: it could decide which bytes are right.
    pub fn parse(raw: &v1::NamespaceDescriptor) -> Result<Self, Refusal> {
        let descriptor = Self {
            model: raw.model.clone(),
            weights: raw.weights.clone(),
            kv_dtype: raw.kv_dtype.clone(),
            quantisation: raw.quantisation.clone(),
            groups: raw.groups.iter().map(Group::parse).collect::<Result<_, _>>()?,
            page_format: raw.page_format.clone(),
            layout_fingerprint: raw.layout_fingerprint.as_ref().try_into().map_err(|_| {
                malformed(
                    format!("a layout fingerprint of {} bytes", raw.layout_fingerprint.len()),
                    "send the 32 bytes of its digest",
                )
            })?,
            ranks: RankGeometry::parse(raw.ranks.as_ref())?,
            key_chain_version: raw.key_chain_version,
            domain: raw.domain.clone(),
        };
        descriptor.check()?;
        Ok(descriptor)
    }

    /// Reads what [`encode`](Self::encode) made; what is no message, or no valid one, is refused.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let message = v1::NamespaceDescriptor::decode(bytes).map_err(|error| {
            malformed(
                format!("a descriptor that cannot be read ({error})"),
                "read and write it with the same version",
            )
        })?;
        Self::parse(&message)
    }

    /// Its message as bytes, for places that keep or pass on descriptors.
    pub fn encode(&self) -> Vec<u8> {
        self.to_message().encode_to_vec()
    }

    /// The checks that every descriptor passes, whether it came in a message or was made here.
    pub fn check(&self) -> Result<(), Refusal> {
        for (name, text) in self.strings() {
            if text.is_empty() || text.len() > MAX_NAME_BYTES {
                return Err(malformed(
                    format!("a descriptor whose {name} has {} bytes", text.len()),
                    "every string has 1 to 4096 bytes: what cannot be determined must not be cached",
                ));
            }
        }
        let mut all = self.strings().into_iter().chain([("domain", self.domain.as_str())]);
        if let Some((name, _)) = all.find(|(_, text)| text.chars().any(char::is_control)) {
            return Err(malformed(
                format!("a descriptor whose {name} has control characters"),
                "names are shown on terminals and in logs: use printable characters",
            ));
        }
        if self.domain.len() > MAX_NAME_BYTES {
            return Err(malformed(
                format!("a descriptor whose domain has {} bytes", self.domain.len()),
                "a domain has at most 4096 bytes",
            ));
        }
        if self.groups.is_empty() || self.groups.len() > MAX_GROUPS {
            return Err(malformed(
                format!("a descriptor of {} groups", self.groups.len()),
                "describe 1 to 256 groups",
            ));
        }
        Ok(())
    }

    /// As it goes into a message.
    pub fn to_message(&self) -> v1::NamespaceDescriptor {
        v1::NamespaceDescriptor {
            model: self.model.clone(),
            weights: self.weights.clone(),
            kv_dtype: self.kv_dtype.clone(),
            quantisation: self.quantisation.clone(),
            groups: self.groups.iter().map(Group::to_message).collect(),
            page_format: self.page_format.clone(),
            layout_fingerprint: self.layout_fingerprint.to_vec().into(),
            ranks: Some(v1::RankGeometry {
                tensor_parallel: self.ranks.tensor_parallel.get(),
                pipeline_parallel: self.ranks.pipeline_parallel.get(),
                context_parallel: self.ranks.context_parallel.get(),
            }),
            key_chain_version: self.key_chain_version,
            domain: self.domain.clone(),
        }
    }

    /// The same bytes, kept apart for those who share `domain`: another namespace with another digest. The empty one is
    /// the namespace as a client names it.
    pub fn in_domain(self, domain: &str) -> Self {
        Self { domain: domain.to_owned(), ..self }
    }

    /// The group of a chunk; an index past the descriptor's groups is refused.
    pub fn group(&self, index: GroupIndex) -> Result<&Group, Refusal> {
        self.groups.get(usize::from(index.0)).ok_or_else(|| {
            Refusal::new(
                Reason::GroupOutOfRange,
                format!("group {index} of a namespace of {} groups", self.groups.len()),
                "use an index into the descriptor's groups",
            )
        })
    }
    /// The group that a chunk belongs to.
    pub fn group_of(&self, chunk: ChunkId) -> Result<&Group, Refusal> {
        self.group(chunk.group)
    }

    /// The namespace's name: BLAKE3 over every field, each with its tag and its length in front, so that no
    /// two descriptors have the same encoding.
    pub fn digest(&self) -> NamespaceDigest {
        let mut encoder = Encoder(blake3::Hasher::new_derive_key("tender 2026-11 namespace descriptor v1"));
        for (tag, text) in self.strings() {
            encoder.field(tag, text.as_bytes());
        }
        encoder.field("layout", &self.layout_fingerprint);
        encoder.number("chain", u64::from(self.key_chain_version));
        encoder.number("tp", u64::from(self.ranks.tensor_parallel.get()));
        encoder.number("pp", u64::from(self.ranks.pipeline_parallel.get()));
        encoder.number("cp", u64::from(self.ranks.context_parallel.get()));
        encoder.number("groups", self.groups.len() as u64);
        for group in &self.groups {
            encoder.number("kind", u64::from(group.kind.to_wire() as u32));
            encoder.number("tokens_per_block", u64::from(group.tokens_per_block.get()));
            encoder.number("blocks_per_chunk", u64::from(group.blocks_per_chunk.get()));
            encoder.number("window", group.window_tokens.map_or(0, |w| u64::from(w.get())));
            encoder.number("lookahead", u64::from(group.lookahead_tokens));
            encoder.number("parts", group.part_block_bytes.len() as u64);
            for &bytes in &group.part_block_bytes {
                encoder.number("block_bytes", bytes);
            }
        }
        // Absent, it must not change the digests of daemons without a policy.
        if !self.domain.is_empty() {
            encoder.field("domain", self.domain.as_bytes());
        }
        encoder.0.finalize().into()
    }

    fn strings(&self) -> [(&'static str, &str); 5] {
        [
            ("model", &self.model),
            ("weights", &self.weights),
            ("kv_dtype", &self.kv_dtype),
            ("quantisation", &self.quantisation),
            ("page_format", &self.page_format),
        ]
    }
}

/// Feeds framed fields into a digest: tag length, tag, value length, value.
struct Encoder(blake3::Hasher);

impl Encoder {
    fn field(&mut self, tag: &str, value: &[u8]) {
        for piece in [tag.as_bytes(), value] {
            self.0.update(&(piece.len() as u64).to_le_bytes());
            self.0.update(piece);
        }
    }
    fn number(&mut self, tag: &str, value: u64) {
        self.field(tag, &value.to_le_bytes());
    }
}

fn malformed(subject: String, advice: &str) -> Refusal {
    Refusal::new(Reason::Malformed, subject, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn sample() -> Descriptor {
        Descriptor {
            model: "tiny-llama".into(),
            weights: "rev-a".into(),
            kv_dtype: "bfloat16".into(),
            quantisation: "none".into(),
            groups: vec![
                Group::new(
                    GroupKind::FullAttention,
                    NonZeroU32::new(16).unwrap(),
                    BlocksPerChunk::new(4).unwrap(),
                    None,
                    vec![4096],
                )
                .unwrap(),
            ],
            page_format: "HNC".into(),
            layout_fingerprint: [7; 32],
            ranks: RankGeometry::SINGLE,
            key_chain_version: 1,
            domain: String::new(),
        }
    }

    #[test]
    fn golden_digest() {
        // A change here makes every stored chunk unreachable: it must be meant.
        assert_eq!(
            sample().digest().to_hex(),
            "893c065200bf22bff6ac23333d50629424428daa3b4a07253606924684c63298"
        );
    }

    #[test]
    fn what_a_terminal_would_obey_is_refused() {
        for field in 0..3 {
            let mut descriptor = sample();
            let text = [&mut descriptor.model, &mut descriptor.weights, &mut descriptor.domain];
            text.into_iter().nth(field).unwrap().push_str("\u{1b}[2J");
            assert_eq!(descriptor.check().unwrap_err().reason, Reason::Malformed, "field {field}");
        }
    }

    #[test]
    fn a_message_and_back_is_the_same_descriptor() {
        assert_eq!(Descriptor::parse(&sample().to_message()).unwrap(), sample());
        let kept_apart = sample().in_domain("tenant");
        assert_eq!(Descriptor::decode(&kept_apart.encode()).unwrap(), kept_apart);
        assert_eq!(kept_apart.in_domain(""), sample());
        assert_eq!(Descriptor::decode(&sample().encode()).unwrap(), sample());
        assert_eq!(Descriptor::decode(&[0xff; 9]).unwrap_err().reason, Reason::Malformed);
    }

    #[test]
    fn every_field_changes_the_digest() {
        type Change = fn(&mut Descriptor);
        let changes: &[Change] = &[
            |d| d.model = "other".into(),
            |d| d.weights = "rev-b".into(),
            |d| d.kv_dtype = "float16".into(),
            |d| d.quantisation = "fp8 e4m3 per-tensor".into(),
            |d| d.page_format = "NHC".into(),
            |d| d.layout_fingerprint[31] ^= 1,
            |d| d.ranks.tensor_parallel = NonZeroU32::new(2).unwrap(),
            |d| d.ranks.pipeline_parallel = NonZeroU32::new(2).unwrap(),
            |d| d.ranks.context_parallel = NonZeroU32::new(2).unwrap(),
            |d| d.key_chain_version = 2,
            |d| d.domain = "tenant".into(),
            |d| d.domain = "tenant-b".into(),
            |d| d.groups.push(d.groups[0].clone()),
            |d| d.groups[0].kind = GroupKind::MlaLatent,
            |d| d.groups[0].tokens_per_block = NonZeroU32::new(32).unwrap(),
            |d| d.groups[0].blocks_per_chunk = BlocksPerChunk::new(2).unwrap(),
            |d| d.groups[0].part_block_bytes[0] = 8192,
            |d| d.groups[0].lookahead_tokens = 1,
            |d| d.groups[0].part_block_bytes.push(4096),
        ];
        let mut digests: Vec<_> = changes
            .iter()
            .map(|change| {
                let mut changed = sample();
                change(&mut changed);
                changed.digest()
            })
            .chain([sample().digest()])
            .collect();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), changes.len() + 1);
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        let (mut a, mut b) = (sample(), sample());
        (a.model, a.weights) = ("ab".into(), "c".into());
        (b.model, b.weights) = ("a".into(), "bc".into());
        assert_ne!(a.digest(), b.digest());
    }

    #[test]
    fn what_cannot_be_determined_is_refused() {
        type Change = fn(&mut v1::NamespaceDescriptor);
        let changes: &[Change] = &[
            |m| m.weights.clear(),
            |m| m.groups.clear(),
            |m| m.ranks = None,
            |m| m.layout_fingerprint = vec![0; 31].into(),
            |m| m.groups[0].tokens_per_block = 0,
            |m| m.groups[0].blocks_per_chunk = 65,
            |m| m.groups[0].part_block_bytes.clear(),
            |m| m.groups[0].part_block_bytes[0] = 0,
            |m| m.groups[0].part_block_bytes[0] = u64::MAX,
            |m| m.groups[0].window_tokens = 128,
            |m| m.groups[0].lookahead_tokens = u32::MAX,
            |m| m.groups[0].kind = v1::GroupKind::Recurrent.into(),
            |m| m.groups[0].kind = 99,
        ];
        for (i, change) in changes.iter().enumerate() {
            let mut message = sample().to_message();
            change(&mut message);
            assert_eq!(Descriptor::parse(&message).unwrap_err().reason, Reason::Malformed, "change {i}");
        }
    }

    #[test]
    fn a_part_has_the_size_of_its_covered_blocks() {
        let group = &sample().groups[0];
        let two = Coverage::new(0b1010, group.blocks_per_chunk).unwrap();
        assert_eq!(group.part_bytes(PartIndex(0), two).unwrap(), 8192);
        assert_eq!(group.part_bytes(PartIndex(1), two).unwrap_err().reason, Reason::PartOutOfRange);
    }
}
