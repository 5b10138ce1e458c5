//! On a real Redis.

use super::relay::{Relay, Then};
use super::server::Server;
use super::*;

fn uri(server: &Server) -> String {
    format!("redis://{}/0?prefix=kv", server.address)
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_carries_chunks_of_every_size_between_daemons() {
    let server = Server::redis(None);
    two_daemons_share_chunks_of_every_size(&uri(&server)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_redis_costs_no_more_than_the_deadline_and_is_found_again() {
    let server = Server::redis(None);
    let node = Node::at(&uri(&server));
    let namespace = node.namespace(&descriptor(&[&[64]]));
    assert_eq!(node.keep(&namespace, chunk(0, 1), full()).await, Kept::Yes);
    server.pause();
    let short = Duration::from_millis(200);
    // Long enough that the generation is asked for again.
    tokio::time::sleep(generation::MAX_AGE + Duration::from_millis(50)).await;
    for _ in 0..3 {
        assert!(!node.tier.is_left_alone());
        let begin = Instant::now();
        assert_eq!(node.tier.find(&namespace, &[chunk(0, 1)], begin + short).await, [None]);
        assert!(begin.elapsed() < short + Duration::from_secs(5), "{:?}", begin.elapsed());
    }
    assert_eq!(node.counts().late, 3);
    let until = soon();
    while !node.tier.is_left_alone() {
        assert!(Instant::now() < until, "nobody waited, and yet three in a row had no answer");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        node.tier.find(&namespace, &[chunk(0, 1)], soon()).await,
        [None],
        "nobody asks it, so nobody waits"
    );
    assert!(matches!(node.fetch(&namespace, chunk(0, 2)).await, Err(FetchError::Unavailable(_))));
    assert_eq!(node.offer(&namespace, chunk(0, 1)).await, Kept::Failed);
    assert_eq!(node.counts().skipped, 3);
    server.resume();
    let until = soon();
    while node.find(&namespace, chunk(0, 1)).await.is_none() {
        assert!(Instant::now() < until, "it is not found again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_in_a_hurry_do_not_open_the_breaker_of_a_slow_store_and_the_next_finds_what_they_asked_for() {
    let server = Server::redis(None);
    let writer = Node::at(&uri(&server));
    let namespace = writer.namespace(&descriptor(&[&[64]]));
    assert_eq!(writer.keep(&namespace, chunk(0, 1), full()).await, Kept::Yes);
    let relay = Relay::to(server.address, Then::Stall).await;
    relay.slow_down(Duration::from_millis(100));
    let reader = Node::at(&format!("redis://{}/0?prefix=kv", relay.address));
    let of_reader = reader.namespace(&namespace.descriptor);
    let hurried = async || {
        let deadline = Instant::now() + Duration::from_millis(20);
        reader.tier.find(&of_reader, &[chunk(0, 1)], deadline).await.remove(0)
    };
    assert_eq!(tokio::join!(hurried(), hurried(), hurried()), (None, None, None));
    assert_eq!(reader.counts().late, 3);
    let until = soon();
    while hurried().await.is_none() {
        assert!(!reader.tier.is_left_alone());
        assert!(Instant::now() < until, "nobody went on: {:?}", reader.counts());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!reader.tier.is_left_alone());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_redis_is_a_miss_and_a_flushed_one_is_cold() {
    let mut server = Server::redis(None);
    let node = Node::at(&uri(&server));
    let namespace = node.namespace(&descriptor(&[&[64]]));
    assert_eq!(node.keep(&namespace, chunk(0, 1), full()).await, Kept::Yes);
    let flushed = tokio::process::Command::new("redis-cli")
        .args(["-p", &server.address.port().to_string(), "flushall"])
        .output()
        .await
        .expect("redis-cli is missing: run scripts/setup.sh, or apt-get install redis-server");
    assert!(flushed.status.success());
    let cold = Node::at(&uri(&server));
    let of_cold = cold.namespace(&namespace.descriptor);
    assert_eq!(cold.find(&of_cold, chunk(0, 1)).await, None, "its generation went with it");
    assert_eq!(node.fetch(&namespace, chunk(0, 2)).await, Err(FetchError::Gone));
    assert_eq!(node.offer(&namespace, chunk(0, 1)).await, Kept::Yes, "and whoever has it brings it back");
    assert_eq!(cold.fetch(&of_cold, chunk(0, 1)).await, Ok(()));
    server.end();
    let error = cold.fetch(&of_cold, chunk(0, 3)).await.unwrap_err();
    assert!(matches!(error, FetchError::Unavailable(_)), "{error:?}");
    cold.assert_ready(&of_cold, chunk(0, 1), full());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_comes_from_a_file_and_a_wrong_one_is_an_error_that_does_not_show_it() {
    let server = Server::redis(Some("right-horse"));
    let dir = tempfile::tempdir().unwrap();
    let node = |password: &str| {
        let file = dir.path().join(password);
        std::fs::write(&file, format!("password = \"{password}\"\n")).unwrap();
        let config = SharedConfig { credentials: Some(file), ..config(&uri(&server)) };
        Node::new(|generations| SharedTier::open(&config, generations).unwrap())
    };
    let (right, wrong) = (node("right-horse"), node("wrong-horse"));
    let descriptor = descriptor(&[&[64]]);
    let (of_right, of_wrong) = (right.namespace(&descriptor), wrong.namespace(&descriptor));
    assert_eq!(right.keep(&of_right, chunk(0, 1), full()).await, Kept::Yes);
    let error = wrong.fetch(&of_wrong, chunk(0, 1)).await.unwrap_err();
    assert!(matches!(error, FetchError::Unavailable(_)), "{error:?}");
    assert_eq!(wrong.keep(&of_wrong, chunk(0, 2), full()).await, Kept::Failed);
    assert!(!format!("{error} {:?} {:?}", wrong.tier, right.tier).contains("horse"));
}
