//! On a real S3 API: moto, a server that has nothing in common with the library it answers.

use super::relay::{Relay, Then};
use super::server::Server;
use super::*;

const KEY: &str = "access_key_id = \"test\"\nsecret_access_key = \"hunter2\"\n";

fn node(endpoint: std::net::SocketAddr, bucket: &str) -> Node {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("credentials.toml");
    std::fs::write(&file, KEY).unwrap();
    let uri = format!("s3://{bucket}/kv?endpoint=http://{endpoint}&region=us-east-1");
    let config = SharedConfig { credentials: Some(file), ..config(&uri) };
    Node::new(|generations| SharedTier::open(&config, generations).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_carries_chunks_of_every_size_between_daemons_and_deletes_ended_generations() {
    let server = Server::s3(None);
    server.make_bucket("chunks");
    let big = 8 << 20;
    let descriptor = descriptor(&[&[1], &[5, 4096], &[big, big - 1]]);
    let (one, two) = (node(server.address, "chunks"), node(server.address, "chunks"));
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    for group in 0..3 {
        assert_eq!(one.keep(&of_one, chunk(group, 1), full()).await, Kept::Yes, "group {group}");
        assert_eq!(one.offer(&of_one, chunk(group, 1)).await, Kept::Yes);
        // Its own memory says nothing: the store does.
        assert!(two.find(&of_two, chunk(group, 1)).await.is_some());
        two.fetch(&of_two, chunk(group, 1)).await.unwrap();
        two.assert_ready(&of_two, chunk(group, 1), full());
        assert_eq!(two.offer(&of_two, chunk(group, 1)).await, Kept::Yes);
    }
    assert_eq!((one.counts().kept_chunks, two.counts().kept_chunks, two.counts().kept_before), (3, 0, 3));
    let old = layout::generation_folder(
        &layout::folder(of_one.digest, &descriptor),
        one.tier.ties.asked.last(of_one.digest).unwrap(),
    );
    one.tier.reset(&of_one, None).await.unwrap();
    assert_eq!(two.fetch(&of_two, chunk(0, 1)).await, Err(FetchError::Gone));
    let until = soon();
    while !one.tier.store.folders(&old).await.unwrap().is_empty() {
        assert!(Instant::now() < until, "the ended generation is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_a_miss_and_keeps_fail_until_it_is_left_alone() {
    let server = Server::s3(None);
    let node = node(server.address, "nowhere");
    let namespace = node.namespace(&descriptor(&[&[64]]));
    assert_eq!(node.find(&namespace, chunk(0, 1)).await, None);
    node.store(&namespace, chunk(0, 1), full());
    for _ in 0..3 {
        assert_eq!(node.offer(&namespace, chunk(0, 1)).await, Kept::Failed);
    }
    assert!(node.tier.is_left_alone());
    assert!(node.tier.reset(&namespace, None).await.unwrap_err().contains("bucket"));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_an_error_that_does_not_show_them() {
    // The bucket is made with the one free call.
    let server = Server::s3(Some(1));
    server.make_bucket("chunks");
    let node = node(server.address, "chunks");
    let namespace = node.namespace(&descriptor(&[&[64]]));
    let error = node.fetch(&namespace, chunk(0, 1)).await.unwrap_err();
    let FetchError::Unavailable(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("credentials"), "{text}");
    assert_eq!(node.keep(&namespace, chunk(0, 1), full()).await, Kept::Failed);
    let reset = node.tier.reset(&namespace, None).await.unwrap_err();
    assert!(reset.contains("credentials"), "{reset}");
    assert!(!format!("{error:?} {reset} {:?}", node.tier).contains("hunter2"));
}

/// A store that ends or falls silent in the middle of a transfer.
async fn interrupted(then: Then) {
    let server = Server::s3(None);
    server.make_bucket("chunks");
    let relay = Relay::to(server.address, then).await;
    let descriptor = descriptor(&[&[6 << 20]]);
    let (one, two) = (node(server.address, "chunks"), node(relay.address, "chunks"));
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    for n in 0..2 {
        assert_eq!(one.keep(&of_one, chunk(0, n), full()).await, Kept::Yes);
        assert!(two.find(&of_two, chunk(0, n)).await.is_some());
    }
    relay.leave(6 << 20);
    let (begin, time) = (Instant::now(), Duration::from_secs(4));
    let error = two.tier.fetch(&of_two, chunk(0, 1), &two.house, begin + time).await.unwrap_err();
    assert!(matches!(error, FetchError::Deadline | FetchError::Unavailable(_)), "{error:?}");
    assert!(begin.elapsed() < time + PATIENCE / 4, "{:?}", begin.elapsed());
    two.assert_absent(&of_two, chunk(0, 1));
    relay.leave(u64::MAX);
    let until = soon();
    while let Err(error) = two.fetch(&of_two, chunk(0, 1)).await {
        assert!(Instant::now() < until, "{error:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    two.assert_ready(&of_two, chunk(0, 1), full());
    two.engine.audit().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_is_cut_leaves_nothing_and_works_later() {
    interrupted(Then::Cut).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_stalls_ends_by_its_deadline_and_works_later() {
    interrupted(Then::Stall).await;
}
