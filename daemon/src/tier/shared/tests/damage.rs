//! Objects that are not what their name says: a miss, counted by kind, and taken out if they are ours and broken.

use std::fs;
use std::path::PathBuf;

use super::*;

/// A store of files with one kept chunk of two parts.
struct Kept1 {
    _dir: TempDir,
    object: PathBuf,
    uri: String,
    descriptor: Descriptor,
}

async fn kept() -> Kept1 {
    let dir = tempfile::tempdir().unwrap();
    let (uri, descriptor) = (files(dir.path()), descriptor(&[&[5000, 3 << 20]]));
    let writer = Node::at(&uri);
    let namespace = writer.namespace(&descriptor);
    assert_eq!(writer.keep(&namespace, chunk(0, 1), full()).await, Kept::Yes);
    let folder = layout::folder(namespace.digest, &descriptor);
    let generation = writer.tier.ties.asked.last(namespace.digest).unwrap();
    let object = dir.path().join(layout::chunk(&folder, generation, chunk(0, 1)));
    assert!(object.is_file(), "{}", object.display());
    Kept1 { _dir: dir, object, uri, descriptor }
}

/// A fresh daemon meets the object after this change: a miss of this kind, nothing READY, and the object deleted or not.
async fn damage(kind: &str, deleted: bool, change: impl FnOnce(&mut Vec<u8>)) {
    let kept = kept().await;
    let mut bytes = fs::read(&kept.object).unwrap();
    change(&mut bytes);
    fs::write(&kept.object, bytes).unwrap();
    let reader = Node::at(&kept.uri);
    let namespace = reader.namespace(&kept.descriptor);
    assert!(reader.find(&namespace, chunk(0, 1)).await.is_some(), "{kind}: it looks fine from outside");
    assert_eq!(reader.fetch(&namespace, chunk(0, 1)).await, Err(FetchError::Corrupt), "{kind}");
    reader.assert_absent(&namespace, chunk(0, 1));
    assert_eq!(reader.damaged(kind), 1, "{kind}: {:?}", reader.counts().damaged);
    assert_eq!(reader.find(&namespace, chunk(0, 1)).await, None, "{kind}: it is remembered");
    assert_eq!(reader.fetch(&namespace, chunk(0, 1)).await, Err(FetchError::Gone), "{kind}");
    if !deleted {
        assert!(kept.object.is_file(), "{kind}: somebody else may need it");
        return;
    }
    let until = soon();
    while kept.object.exists() {
        assert!(Instant::now() < until, "{kind}: it is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Who has the right bytes brings it back, for everybody.
    assert_eq!(reader.keep(&namespace, chunk(0, 1), full()).await, Kept::Yes, "{kind}");
    assert!(reader.find(&namespace, chunk(0, 1)).await.is_some(), "{kind}");
    let other = Node::at(&kept.uri);
    let namespace = other.namespace(&kept.descriptor);
    other.fetch(&namespace, chunk(0, 1)).await.unwrap();
    other.assert_ready(&namespace, chunk(0, 1), full());
    reader.engine.audit().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_object_is_a_miss() {
    for left in [0, 5, 100, 200, 230, 20_000] {
        damage("truncated", true, |bytes| bytes.truncate(left)).await;
    }
    damage("truncated", true, |bytes| _ = bytes.pop()).await;
    damage("truncated", true, |bytes| bytes.push(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_another_format_version_is_a_miss_and_stays() {
    damage("version", false, |bytes| bytes[8] = 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_elses_object_is_a_miss_and_stays() {
    damage("foreign", false, |bytes| bytes[..8].copy_from_slice(b"<?xml ve")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_anywhere_is_a_miss() {
    for at in [12, 20, 60, 65, 72, 100, 150, 200] {
        damage("header", true, |bytes| bytes[at] ^= 4).await;
    }
    for at in [230, 5_000, 12_000, 5 << 20] {
        damage("digest", true, |bytes| bytes[at] ^= 1).await;
    }
    damage("digest", true, |bytes| *bytes.last_mut().unwrap() ^= 0x80).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_under_another_name_is_a_miss() {
    let kept = kept().await;
    let digits = chunk(0, 2).hash.to_hex();
    let renamed = kept.object.with_file_name(digits);
    fs::copy(&kept.object, &renamed).unwrap();
    let reader = Node::at(&kept.uri);
    let namespace = reader.namespace(&kept.descriptor);
    assert_eq!(reader.fetch(&namespace, chunk(0, 2)).await, Err(FetchError::Corrupt));
    assert_eq!(reader.damaged("renamed"), 1);
    reader.assert_absent(&namespace, chunk(0, 2));
    reader.fetch(&namespace, chunk(0, 1)).await.unwrap();
    reader.assert_ready(&namespace, chunk(0, 1), full());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_whose_sizes_the_namespace_does_not_have_is_a_miss() {
    let kept = kept().await;
    let reader = Node::at(&kept.uri);
    let namespace = reader.namespace(&kept.descriptor);
    let bytes = fs::read(&kept.object).unwrap();
    let generation = kept.object.parent().unwrap().parent().unwrap().file_name().unwrap();
    let generation: Generation = generation.to_str().unwrap().parse().unwrap();
    let name = object::Name { namespace: namespace.digest, generation, chunk: chunk(0, 1) };
    let mut header = object::Header::decode(&bytes, bytes.len() as u64, name, &kept.descriptor).unwrap();
    // As many bytes, divided otherwise.
    (header.parts[0].0, header.parts[1].0) = (header.parts[0].0 + 1, header.parts[1].0 - 1);
    let mut forged = header.encode().unwrap();
    forged.extend_from_slice(&bytes[forged.len()..]);
    fs::write(&kept.object, forged).unwrap();
    assert_eq!(reader.fetch(&namespace, chunk(0, 1)).await, Err(FetchError::Corrupt));
    assert_eq!(reader.damaged("shape"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_goes_between_find_and_fetch_is_a_miss() {
    let kept = kept().await;
    let reader = Node::at(&kept.uri);
    let namespace = reader.namespace(&kept.descriptor);
    assert!(reader.find(&namespace, chunk(0, 1)).await.is_some());
    fs::remove_file(&kept.object).unwrap();
    assert_eq!(reader.fetch(&namespace, chunk(0, 1)).await, Err(FetchError::Gone));
    assert_eq!(reader.find(&namespace, chunk(0, 1)).await, None, "it has forgotten it");
    assert_eq!((reader.counts().gone, reader.counts().errors), (1, 0));
}

#[test]
fn any_bytes_at_all_are_refused_and_never_a_panic() {
    let descriptor = descriptor(&[&[64, 64]]);
    let name =
        object::Name { namespace: descriptor.digest(), generation: Generation::of(0), chunk: chunk(0, 1) };
    let parts = vec![(128, ContentDigest::of(b"a")), (128, ContentDigest::of(b"b"))];
    let header = object::Header { name, coverage: full(), parts };
    let good = header.encode().unwrap();
    let size = header.object_bytes();
    assert_eq!(object::Header::decode(&good, size, name, &descriptor), Ok(header));
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            assert!(object::Header::decode(&bad, size, name, &descriptor).is_err(), "byte {at}, bit {bit}");
        }
        assert!(object::Header::decode(&good[..at], size, name, &descriptor).is_err(), "cut at {at}");
    }
}
