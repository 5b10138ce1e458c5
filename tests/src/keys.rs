//! The key vectors of field report 38, so that several processes can compute them and compare.

use tender_client::hash::{KeyChain, MediaSpan, NamedInput, RequestInputs};
use tender_proto::{ChainHash, ChunkId, GroupIndex};

/// The last key of tokens 0 to 63 without other inputs, 16 tokens a chunk. It may change only together with
/// `KEY_CHAIN_VERSION`.
pub const GOLDEN_TOKENS_0_TO_63: &str = "d41ff71e4f32253fcdafe65dbf0a52572d6733e904ff001e208f511de76ea013";
/// The same with the salt `t1`.
pub const GOLDEN_SALT_T1: &str = "651e19e0dedc9b0461827af0fd6ccabff9e3c028b1a40f4868823c220c249d72";

/// Name and hexadecimal last key of every vector.
pub fn vectors() -> Vec<(&'static str, String)> {
    hashes().into_iter().map(|(name, hash)| (name, hash.to_hex())).collect()
}

/// One vector's key as a chunk of group 0.
pub fn chunk(name: &str) -> ChunkId {
    let found = hashes().into_iter().find(|(other, _)| *other == name);
    ChunkId { group: GroupIndex(0), hash: found.expect("a vector of that name").1 }
}

/// Keys of all whole chunks of these tokens without other inputs.
pub fn chunks_of(tokens: &[u32], tokens_per_chunk: u64) -> Vec<ChunkId> {
    let mut chain = KeyChain::new(tokens_per_chunk, 0, &RequestInputs::default());
    chain.extend(tokens);
    chain.hashes().iter().map(|&hash| ChunkId { group: GroupIndex(0), hash }).collect()
}

fn hashes() -> Vec<(&'static str, ChainHash)> {
    let low: Vec<u32> = (0..64).collect();
    let high: Vec<u32> = (0..64).map(|n| u32::MAX - n).collect();
    let salt = |text: &str| vec![NamedInput::Salt(text.into())];
    let media = vec![MediaSpan { start_token: 24, tokens: 16, digest: vec![0xab; 32] }];
    [
        ("tokens 0..63", &low, vec![], vec![]),
        ("ids above 2^31", &high, vec![], vec![]),
        ("empty salt", &low, salt(""), vec![]),
        ("salt t1", &low, salt("t1"), vec![]),
        ("media", &low, vec![], media.clone()),
        ("salt t1 and media", &low, salt("t1"), media),
    ]
    .into_iter()
    .map(|(name, tokens, named, media)| {
        let inputs = RequestInputs::new(named, media).expect("inputs with content names");
        let mut chain = KeyChain::new(16, 0, &inputs);
        chain.extend(tokens);
        (name, *chain.hashes().last().expect("four chunks"))
    })
    .collect()
}
