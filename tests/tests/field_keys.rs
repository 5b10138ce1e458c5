//! Field reports on key identity: 1, 3, 5 and 38. Two requests share a key only if the same bytes are right for
//! both; in every process.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::process::Command;

use tender_client::hash::{KeyChain, MediaSpan, NamedInput, RequestInputs};
use tender_proto::{
    BlocksPerChunk, ChainHash, ChunkId, Descriptor, Group, GroupIndex, GroupKind, Reason, v1,
};
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::raw::{Ask, raw_digest, refusal, refused};
use tender_tests::{conserve, fixture, keys, pattern};

const PEER: &str = env!("CARGO_BIN_EXE_tender-test-peer");

fn chunks_of(hashes: &[ChainHash]) -> Vec<ChunkId> {
    hashes.iter().map(|&hash| ChunkId { group: GroupIndex(0), hash }).collect()
}

fn chain(tokens: &[u32], named: Vec<NamedInput>, media: Vec<MediaSpan>) -> Vec<ChunkId> {
    let inputs = RequestInputs::new(named, media).expect("inputs with content names");
    let mut chain = KeyChain::new(16, 0, &inputs);
    chain.extend(tokens);
    chunks_of(chain.hashes())
}

/// 16 tokens a chunk, as all these cases have it.
fn namespace_of_16(model: &str) -> Descriptor {
    fixture::descriptor(model, vec![fixture::group(4, 4, &[64])])
}

#[tokio::test(flavor = "multi_thread")]
async fn field_01_adapter_and_tenant_are_part_of_every_key() {
    let tokens: Vec<u32> = (0..64).collect();
    let adapter = |name: &str| NamedInput::Adapter { content: *blake3::hash(name.as_bytes()).as_bytes() };
    let salt = |text: &str| NamedInput::Salt(text.into());
    let other = |kind: &str, text: &str| NamedInput::Other { kind: kind.into(), content: text.into() };
    let contexts: Vec<(&str, Vec<NamedInput>)> = vec![
        ("base", vec![]),
        ("adapter A", vec![adapter("A")]),
        ("adapter B", vec![adapter("B")]),
        ("salt t1", vec![salt("t1")]),
        ("salt t2", vec![salt("t2")]),
        ("A and t1", vec![adapter("A"), salt("t1")]),
        ("framing 1", vec![other("adapter", "a"), salt("b|c")]),
        ("framing 2", vec![other("adapter", "a|b"), salt("c")]),
        ("kind adapter, A", vec![other("adapter", "A")]),
        ("salt A", vec![salt("A")]),
        ("empty salt", vec![salt("")]),
        ("salt that equals adapter A's digest", vec![NamedInput::Salt(hex(&adapter("A")))]),
    ];
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = namespace_of_16("field 01");
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let mut seen = HashMap::new();
    for (writer, (name, named)) in (0u16..).zip(&contexts) {
        // Separate clients, distinct bytes.
        let session = daemon.client().await.open_registered(&descriptor).await;
        let keys = chain(&tokens, named.clone(), vec![]);
        assert_eq!(keys.len(), 4);
        for key in keys {
            assert_eq!(seen.insert(key, *name), None, "{name} shares a key with another context");
            let bytes = pattern::blob_by(&descriptor, key, fixture::PART, full, writer);
            assert!(session.store(namespace, key, fixture::PART, full, &bytes).await.unwrap().stored);
        }
    }
    let reader = daemon.client().await.open_registered(&descriptor).await;
    for (writer, (name, named)) in (0u16..).zip(&contexts) {
        let keys = chain(&tokens, named.clone(), vec![]);
        // Leased, read and released under the very same identity.
        let found = reader.lookup(namespace, &keys, Ask::LEASE).await.unwrap();
        assert!(found.chunks.iter().all(|chunk| chunk.state() == v1::ChunkState::Ready), "{name}");
        for key in keys {
            let (_, bytes) = reader.read(namespace, key, fixture::PART).await.unwrap();
            let expected = pattern::blob_by(&descriptor, key, fixture::PART, full, writer);
            pattern::assert_same(&bytes, &expected, name);
        }
        assert_eq!(reader.release(&[found.lease.unwrap().id]).await.unwrap(), [v1::LeaseOutcome::Live]);
    }
    conserve::quiet(daemon.engine()).await;
}

fn hex(input: &NamedInput) -> String {
    let NamedInput::Adapter { content } = input else { panic!("an adapter") };
    content.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn field_03_two_images_never_share_a_key() {
    let mut tokens: Vec<u32> = (0..80).collect();
    tokens[24..56].fill(32_000);
    let span = |start_token: u64, tokens: u64, digest: [u8; 32]| MediaSpan {
        start_token,
        tokens,
        digest: digest.into(),
    };
    let image = |seed: u8| *blake3::hash(&[seed]).as_bytes();
    // Agree in the last 16 and in the last 64 bits.
    let with_tail = |tail: usize| {
        let mut digest = image(2);
        digest[32 - tail..].copy_from_slice(&image(1)[32 - tail..]);
        digest
    };
    let of = |media: Vec<MediaSpan>| chain(&tokens, vec![], media);
    let base = of(vec![span(24, 32, image(1))]);
    let variants = [
        ("last 16 bits equal", of(vec![span(24, 32, with_tail(2))])),
        ("last 64 bits equal", of(vec![span(24, 32, with_tail(8))])),
        ("shifted by one token", of(vec![span(25, 32, image(1))])),
    ];
    for (name, other) in &variants {
        assert_eq!(base[0], other[0], "{name}: chunk 0 lies before the image and is shared");
        for i in 1..5 {
            assert_ne!(base[i], other[i], "{name}: chunk {i}; chunk 4 differs through chaining");
        }
    }
    // Two images in one span's place, swapped; and one that a chunk's edge cuts (24..56 over chunks 1 to 3).
    let pair = of(vec![span(24, 16, image(1)), span(40, 16, image(2))]);
    let swapped = of(vec![span(24, 16, image(2)), span(40, 16, image(1))]);
    assert!(pair[1..].iter().zip(&swapped[1..]).all(|(a, b)| a != b));
    // The offset inside the span counts: the same placeholders further inside the image are another key.
    let all_placeholders = vec![32_000u32; 48];
    let long = chain(&all_placeholders, vec![], vec![span(0, 48, image(1))]);
    assert_eq!(long.iter().collect::<HashSet<_>>().len(), 3);
    // No digest, or 16 bits of one: no key at all, so neither a store nor a hit.
    for digest in [vec![], vec![1, 2]] {
        let nameless = MediaSpan { start_token: 24, tokens: 32, digest };
        assert!(RequestInputs::new(vec![], vec![nameless]).is_err());
    }

    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = namespace_of_16("field 03");
    let session = daemon.client().await.open_registered(&descriptor).await;
    for &key in &base {
        session.must_store(&descriptor, key, fixture::PART, fixture::full(&descriptor)).await;
    }
    for (name, other) in variants {
        let ready: Vec<_> = session
            .states(descriptor.digest(), &other)
            .await
            .iter()
            .map(|s| *s == v1::ChunkState::Ready)
            .collect();
        assert_eq!(ready, [true, false, false, false, false], "{name}");
    }
}

/// A group like the base's of another kind.
fn kind(kind: GroupKind, window_tokens: u32, blocks_per_chunk: u32) -> Group {
    let (tokens, blocks) = (NonZeroU32::new(16).unwrap(), BlocksPerChunk::new(blocks_per_chunk).unwrap());
    Group::new(kind, tokens, blocks, NonZeroU32::new(window_tokens), vec![500]).unwrap()
}

/// What differs in one field from the base of case 5.
fn variants(base: &Descriptor) -> Vec<(&'static str, Descriptor)> {
    let change = |what: fn(&mut Descriptor)| {
        let mut other = base.clone();
        what(&mut other);
        other
    };
    let regroup = |group: Group| Descriptor { groups: vec![group], ..base.clone() };
    vec![
        ("fp16, the same size", change(|d| d.kv_dtype = "float16".into())),
        ("e4m3", change(|d| d.kv_dtype = "float8_e4m3".into())),
        ("e5m2", change(|d| d.kv_dtype = "float8_e5m2".into())),
        ("tokens first", change(|d| d.page_format = "NHC".into())),
        ("packed across layers", change(|d| d.layout_fingerprint = [8; 32])),
        ("weights revision b", change(|d| d.weights = "rev-b".into())),
        ("static scales", change(|d| d.quantisation = "static".into())),
        ("calibrated scales", change(|d| d.quantisation = "calibrated".into())),
        ("another model", change(|d| d.model.push('x'))),
        ("another chain version", change(|d| d.key_chain_version += 1)),
        ("2 blocks of 32 tokens", regroup(fixture::group(32, 2, &[1000]))),
        ("another chunk length", regroup(fixture::group(16, 8, &[500]))),
        ("a block in two parts", regroup(fixture::group(16, 4, &[250, 250]))),
        ("latents", regroup(kind(GroupKind::MlaLatent, 0, 4))),
        ("states", regroup(kind(GroupKind::Recurrent, 0, 1))),
        ("a window", regroup(kind(GroupKind::SlidingWindow, 128, 4))),
        ("another window", regroup(kind(GroupKind::SlidingWindow, 129, 4))),
        ("pieces", regroup(kind(GroupKind::ChunkedLocal, 128, 4))),
        ("layers that look ahead", regroup(fixture::group(16, 4, &[500]).with_lookahead(1).unwrap())),
        ("one more group", change(|d| d.groups.push(d.groups[0].clone()))),
        ("two ranks", change(|d| d.ranks.tensor_parallel = NonZeroU32::new(2).unwrap())),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn field_05_format_layout_and_weights_are_part_of_the_namespace() {
    let daemon = Daemon::start(Setup::default()).await;
    let base = fixture::descriptor("field 05", vec![fixture::group(16, 4, &[500])]);
    let writer = daemon.client().await.open_registered(&base).await;
    writer.register_as(&base, "shared").await.unwrap();
    let chunks: Vec<_> = (0..3).map(fixture::chunk).collect();
    for &chunk in &chunks {
        writer.must_store(&base, chunk, fixture::PART, fixture::full(&base)).await;
    }
    for (name, variant) in variants(&base) {
        let reader = daemon.client().await.open_registered(&variant).await;
        let found = reader.lookup(variant.digest(), &chunks, Ask::LEASE).await.unwrap();
        assert!(found.lease.is_none(), "{name}");
        for chunk in found.chunks {
            assert_eq!(chunk.state(), v1::ChunkState::Miss, "{name}");
            assert_eq!(refused(chunk.reason), Some(Reason::NeverStored), "{name}");
        }
        // Under the base's name it is refused, and the refusal says which name.
        let refusal = refusal(&reader.register_as(&variant, "shared").await.unwrap_err());
        assert_eq!(refusal.reason, Reason::NamespaceConflict, "{name}");
        assert!(refusal.to_string().contains("shared"), "{name}: {refusal}");
    }
    // A field that cannot be determined: no offload (see also bad_config.rs).
    let unknown = Descriptor { weights: String::new(), ..base.clone() };
    assert!(writer.register(&unknown).await.is_err());
    // An operator sees why they do not share: every descriptor is shown in full.
    let stats = writer.client.stats().await.unwrap();
    assert_eq!(stats.namespaces.len(), 1 + variants(&base).len());
    assert!(stats.namespaces.iter().all(|n| Descriptor::parse(n.descriptor.as_ref().unwrap()).is_ok()));
    // The blob's fingerprint is its namespace: the store has no other way to reach a blob than by it.
    let (_, bytes) = writer.read(base.digest(), chunks[0], fixture::PART).await.unwrap();
    pattern::assert_same(
        &bytes,
        &pattern::blob(&base, chunks[0], fixture::PART, fixture::full(&base)),
        "base",
    );
}

/// The vectors of the case: ids above 2^31, absent and empty extras, salt, media digest.
#[tokio::test(flavor = "multi_thread")]
async fn field_38_keys_are_the_same_in_every_process() {
    let here = keys::vectors();
    // Two processes that were started at different times, in different environments.
    for environment in [("PYTHONHASHSEED", "0"), ("RUST_MIN_STACK", "4194304")] {
        let output = Command::new(PEER).arg("keys").env(environment.0, environment.1).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let there = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            there.lines().collect::<Vec<_>>(),
            here.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>()
        );
    }
    let distinct: HashSet<_> = here.iter().map(|(_, key)| key).collect();
    assert_eq!(distinct.len(), here.len(), "every vector has its own key");
    // Golden: these may change only together with KEY_CHAIN_VERSION.
    for (name, key) in &here {
        assert!(key.len() == 64, "{name}: at least 128 bits");
    }
    let golden = |name: &str| here.iter().find(|(n, _)| *n == name).map(|(_, key)| key.as_str()).unwrap();
    assert_eq!(golden("tokens 0..63"), keys::GOLDEN_TOKENS_0_TO_63);
    assert_eq!(golden("salt t1"), keys::GOLDEN_SALT_T1);

    // Through the RPC: what one process stores, another finds.
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = namespace_of_16("field 38");
    let session = daemon.client().await.open_registered(&descriptor).await;
    let key = keys::chunk("tokens 0..63");
    session.must_store(&descriptor, key, fixture::PART, fixture::full(&descriptor)).await;
    let mut peer = daemon.client().await.open("another process").await.unwrap();
    peer.register(&descriptor).await.unwrap();
    peer.id = peer.id.clone();
    assert_eq!(peer.states(descriptor.digest(), &[key]).await, [v1::ChunkState::Ready]);
    // Another hash version is another namespace: a visible miss, never a wrong hit.
    let next = Descriptor { key_chain_version: descriptor.key_chain_version + 1, ..descriptor.clone() };
    let upgraded = daemon.client().await.open_registered(&next).await;
    assert_eq!(upgraded.states(next.digest(), &[key]).await, [v1::ChunkState::Miss]);
    let stats = upgraded.client.stats().await.unwrap();
    let theirs = stats.namespaces.iter().find(|n| n.namespace == raw_digest(next.digest())).unwrap();
    assert_eq!((theirs.lookups, theirs.hits, theirs.misses[0].count), (1, 0, 1));
}
