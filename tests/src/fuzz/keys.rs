//! The small checked types: digests, ids, coverage, reasons, addresses.

use arbitrary::{Arbitrary, Unstructured};
use prost::Message;
use tender_client::Address;
use tender_client::hash::{KeyChain, RequestInputs};
use tender_proto::{
    BlocksPerChunk, ChunkId, ContentDigest, Coverage, LeaseId, NamespaceDigest, Reason, Refusal, SessionId,
    v1,
};
use tonic::{Code, Status};

#[derive(Arbitrary, Debug)]
enum Draft<'a> {
    Digest(&'a [u8]),
    Hex(&'a str),
    Chunk(&'a [u8]),
    Id(&'a [u8], u64),
    Coverage { bits: u64, other: u64, blocks: u32, index: u32 },
    Status { code: i32, message: &'a str, details: &'a [u8] },
    Reason { reason: i32, subject: &'a str, advice: &'a str },
    Address(&'a str),
    Chain { tokens_per_chunk: u8, lookahead: u8, cuts: Vec<u8>, tokens: Vec<u32> },
}

/// One value of each kind must mean the same to everybody, or be refused.
pub fn run(data: &[u8]) {
    let Ok(draft) = Draft::arbitrary_take_rest(Unstructured::new(data)) else { return };
    match draft {
        Draft::Digest(bytes) => {
            let parsed = NamespaceDigest::parse(bytes);
            assert_eq!(parsed.is_ok(), bytes.len() == 32);
            let hex = parsed.map(|digest| NamespaceDigest::parse_hex(&digest.to_hex()).unwrap_or(digest));
            assert!(hex.is_err() || hex.is_ok_and(|digest| digest.as_bytes() == bytes));
        }
        Draft::Hex(text) => {
            let parsed = ContentDigest::parse_hex(text);
            let good = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
            assert_eq!(parsed.is_ok(), good, "{text:?}");
            assert!(
                parsed.is_err() || parsed.is_ok_and(|digest| digest.to_hex() == text.to_ascii_lowercase())
            );
        }
        Draft::Chunk(raw) => {
            let Ok(message) = v1::ChunkId::decode(raw) else { return };
            if let Ok(chunk) = ChunkId::parse(&message) {
                assert_eq!(chunk.to_message(), message);
            }
        }
        Draft::Id(bytes, number) => {
            assert_eq!(SessionId::parse(bytes).is_ok(), bytes.len() == 16);
            assert_eq!(LeaseId::new(number).map(LeaseId::get), (number != 0).then_some(number));
        }
        Draft::Coverage { bits, other, blocks, index } => coverage(bits, other, blocks, index),
        Draft::Status { code, message, details } => {
            let status = Status::with_details(Code::from_i32(code), message, details.to_vec().into());
            let refusal = Refusal::from_status(&status);
            assert_eq!(Refusal::from_status(&refusal.to_status()), refusal, "it is passed on as it came");
        }
        Draft::Reason { reason, subject, advice } => {
            let Some(reason) = Reason::from_wire(reason) else { return };
            let refusal = Refusal::new(reason, subject, advice);
            assert_eq!(Refusal::from_status(&refusal.to_status()), refusal);
        }
        Draft::Address(text) => {
            let Ok(address) = text.parse::<Address>() else { return };
            assert_eq!(address.to_string().parse::<Address>().as_ref().ok(), Some(&address), "{text:?}");
        }
        Draft::Chain { tokens_per_chunk, lookahead, cuts, tokens } => {
            chain(u64::from(tokens_per_chunk.max(1)), u32::from(lookahead % 8), &cuts, &tokens);
        }
    }
}

/// Against a plain list of booleans.
fn coverage(bits: u64, other: u64, blocks: u32, index: u32) {
    // Small numbers often, any number now and then.
    let blocks = if blocks.is_multiple_of(8) { blocks } else { blocks % 66 };
    let Ok(count) = BlocksPerChunk::new(blocks) else {
        assert!(blocks == 0 || blocks > 64);
        return;
    };
    let list = |bits: u64| (0..64).map(|i| bits >> i & 1 == 1).collect::<Vec<_>>();
    let (truth, others) = (list(bits), list(other));
    let inside = |list: &[bool]| !list.iter().skip(blocks as usize).any(|&set| set);
    let covered = Coverage::new(bits, count);
    assert_eq!(covered.is_ok(), inside(&truth));
    let Ok(covered) = covered else { return };
    assert_eq!(covered.count() as usize, truth.iter().filter(|&&set| set).count());
    let has = index < blocks && truth[index as usize % 64];
    assert_eq!(covered.has(index), has);
    let before = || truth[..index as usize].iter().filter(|&&set| set).count();
    assert_eq!(covered.rank(index).map(|rank| rank as usize), has.then(before));
    assert_eq!(covered.with(index).has(index), index < blocks);
    assert!(covered.iter().all(|i| truth[i as usize]) && covered.iter().count() == covered.count() as usize);
    assert_eq!(covered.is_full(), truth.iter().take(blocks as usize).all(|&set| set));
    let Ok(needed) = Coverage::new(other, count) else { return };
    assert_eq!(covered.contains(needed), truth.iter().zip(&others).all(|(have, need)| *have || !need));
}

/// However a request's tokens are told, its keys are the same, and one token more changes no key before it.
fn chain(tokens_per_chunk: u64, lookahead: u32, cuts: &[u8], tokens: &[u32]) {
    let Ok(inputs) = RequestInputs::new(Vec::new(), Vec::new()) else { return };
    let mut at_once = KeyChain::new(tokens_per_chunk, lookahead, &inputs);
    at_once.extend(tokens);
    let mut in_pieces = KeyChain::new(tokens_per_chunk, lookahead, &inputs);
    let mut rest = tokens;
    for &cut in cuts {
        let (now, later) = rest.split_at(usize::from(cut).min(rest.len()));
        in_pieces.extend(now);
        assert_eq!(in_pieces.hashes(), &at_once.hashes()[..in_pieces.hashes().len()]);
        rest = later;
    }
    in_pieces.extend(rest);
    assert_eq!(in_pieces.hashes(), at_once.hashes());
    let known = (tokens.len() as u64).saturating_sub(lookahead.into()) / tokens_per_chunk;
    assert_eq!(at_once.hashes().len() as u64, known, "{tokens_per_chunk} {lookahead}");
}
