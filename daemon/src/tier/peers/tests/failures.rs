//! Peers that are gone, slow, dead or lying: a miss within the deadline, and verified bytes only.

use std::sync::atomic::Ordering;

use super::fake::{FakePeer, Manner, SHORT};
use super::*;
use crate::engine::tests::chunk_of;

async fn fetch_within(node: &Node, chunk: ChunkId, within: Duration) -> Result<(), FetchError> {
    node.tier.fetch(&node.namespace(), chunk, &node.house, Instant::now() + within).await
}

fn is_clean(node: &Node) {
    let stats = node.engine.stats();
    assert_eq!((stats.reservations, stats.inflight_bytes, stats.leases), (0, 0, 0));
}

async fn is_forgotten(fake: &FakePeer, node: &Node, chunk: ChunkId) {
    let other = &node.tier.directory;
    eventually("its word is taken out", async || {
        other.find(a(), 0, &[chunk], soon()).await.unwrap().holders[0]
            .iter()
            .all(|h| h.daemon != fake.directory.me())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_word_costs_one_fetch_and_is_taken_out() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two) = (Node::start(&setup).await, Node::start(&setup).await);
    one.store(chunk(1)).await;
    one.store(chunk(2)).await;
    two.has_found(chunk(1)).await;
    two.has_found(chunk(2)).await;
    // It goes, and nobody is told.
    one.engine.reset(ResetScope::One(a()));
    assert_eq!(two.fetch(chunk(1)).await, Err(FetchError::Gone));
    eventually("the stale word is gone", async || !two.finds(chunk(1)).await).await;
    assert_eq!(two.counter(|peers| &peers.gone), 1);
    // The peer itself did nothing wrong.
    one.store(chunk(3)).await;
    two.has_found(chunk(3)).await;
    assert_eq!(two.fetch(chunk(3)).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_of_every_kind_are_kept_from_everybody_and_open_the_breaker() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let kinds = [Manner::FlippedByte, Manner::OtherBytes, Manner::WrongSize, Manner::TooLong, Manner::Gap];
    for (n, manner) in (0..).zip(kinds) {
        let chunk = chunk(n);
        let node = Node::start(&setup).await;
        let fake = FakePeer::start(&setup, manner, chunk).await;
        node.has_found(chunk).await;
        assert_eq!(node.fetch(chunk).await, Err(FetchError::Corrupt), "{manner:?}");
        assert!(!node.holds(chunk), "{manner:?}");
        assert_eq!(node.counter(|peers| &peers.wrong), 1);
        is_clean(&node);
        is_forgotten(&fake, &node, chunk).await;
        // Even if it says so again: it is not believed for a while.
        fake.directory
            .apply(&[Change::Publish(listed(0, chunk), honest_entry(chunk))], soon())
            .await
            .unwrap();
        assert!(!node.finds(chunk).await, "{manner:?}");
        assert_eq!(fake.asked(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_second_part_leaves_no_pending_chunk_and_no_reservation() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let chunk = chunk_of(1, 1);
    let node = Node::start(&setup).await;
    let _fake = FakePeer::start(&setup, Manner::FlippedSecondPart, chunk).await;
    node.has_found(chunk).await;
    assert_eq!(node.fetch(chunk).await, Err(FetchError::Corrupt));
    is_clean(&node);
    let audit = node.engine.audit().unwrap();
    assert_eq!((audit.pending_chunks, audit.reservations, audit.writers), (0, 0, 0));
    node.store(chunk).await;
    assert!(node.holds(chunk), "whoever has it stores it at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_with_another_version_is_stale_and_no_liar() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let node = Node::start(&setup).await;
    let fake = FakePeer::start(&setup, Manner::LessCoverage, chunk(1)).await;
    node.has_found(chunk(1)).await;
    assert_eq!(node.fetch(chunk(1)).await, Err(FetchError::Gone));
    assert_eq!((node.counter(|peers| &peers.stale), node.counter(|peers| &peers.wrong)), (1, 0));
    is_forgotten(&fake, &node, chunk(1)).await;
    is_clean(&node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_answer_costs_no_more_than_the_deadline_and_is_left_alone() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    for (n, manner) in (0..).zip([Manner::BlackHole, Manner::Stalls]) {
        let chunk = chunk(n);
        let node = Node::start(&setup).await;
        let fake = FakePeer::start(&setup, manner, chunk).await;
        node.has_found(chunk).await;
        let begin = Instant::now();
        assert_eq!(fetch_within(&node, chunk, SHORT).await, Err(FetchError::Deadline), "{manner:?}");
        assert!(begin.elapsed() >= SHORT && begin.elapsed() < PATIENCE);
        is_clean(&node);
        assert_eq!(node.counter(|peers| &peers.slow), 1);
        is_forgotten(&fake, &node, chunk).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_killed_in_the_middle_is_followed_by_another() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    for (n, manner) in (0..).zip([Manner::Cut, Manner::Stalls, Manner::FlippedByte, Manner::OtherBytes]) {
        let chunk = chunk(n);
        let node = Node::start(&setup).await;
        let bad = FakePeer::start(&setup, manner, chunk).await;
        let good = FakePeer::start(&setup, Manner::Honest, chunk).await;
        eventually("both are found", async || {
            node.tier.directory.find(a(), 0, &[chunk], soon()).await.unwrap().holders[0].len() == 2
        })
        .await;
        // Whom chance asks first is not ours to say: until it was the bad one.
        let give_up = soon();
        while bad.asked() == 0 {
            assert!(Instant::now() < give_up);
            node.engine.reset(ResetScope::One(a()));
            assert!(node.finds(chunk).await);
            let within = Duration::from_secs(10);
            assert_eq!(fetch_within(&node, chunk, within).await, Ok(()), "{manner:?}");
            assert!(node.holds(chunk));
        }
        assert!(good.asked() > 0);
        is_clean(&node);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_nobody_waits_for_leaves_nothing_behind() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let node = Node::start(&setup).await;
    let fake = FakePeer::start(&setup, Manner::Stalls, chunk(1)).await;
    node.has_found(chunk(1)).await;
    let fetching = fetch_within(&node, chunk(1), PATIENCE);
    let asked = eventually("the peer is asked", async || fake.asked() > 0);
    tokio::select! {
        outcome = fetching => panic!("{outcome:?}"),
        () = asked => {}
    }
    is_clean(&node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_was_killed_is_skipped_and_its_words_expire() {
    let redis = Redis::start();
    let setup = Setup { ttl: Duration::from_secs(3), ..Setup::on(redis.uri()) };
    let (one, two) = (Node::start(&setup).await, Node::start(&setup).await);
    one.store(chunk(1)).await;
    one.store(chunk(2)).await;
    two.has_found(chunk(1)).await;
    two.has_found(chunk(2)).await;
    drop(one.vanish());
    assert!(two.fetch(chunk(1)).await.is_err());
    // Nobody asks for the other chunk, and it goes all the same.
    eventually("it expires", async || redis.command(&["KEYS", "test:c:*"]).is_empty()).await;
    assert!(!two.finds(chunk(2)).await);
    let alive = async || two.tier.directory.others_alive(10, soon()).await.unwrap();
    eventually("it is no longer listed", async || alive().await.is_empty()).await;
    is_clean(&two);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_another_generation_finds_nothing_here() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two) = (Node::start(&setup).await, Node::start(&setup).await);
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    assert!(one.tier.serving(a(), 0).is_some());
    assert!(one.tier.serving(a(), 1).is_none());
    assert!(one.tier.serving(crate::engine::tests::b(), 1).is_none());
    let mut client = one.tier.pool.peer(&one.address).client().unwrap();
    let request = tender_proto::v1::FetchRequest {
        namespace: a().as_bytes().to_vec().into(),
        generation: 1,
        chunks: vec![chunk(1).to_message()],
    };
    let mut frames = client.fetch(request).await.unwrap().into_inner();
    let frame = frames.message().await.unwrap().unwrap();
    assert_eq!(frame.failure, i32::from(Reason::NeverStored.to_wire()));
    assert!(frame.payload.is_empty());
    assert!(frames.message().await.unwrap().is_none());
    assert_eq!(one.metrics.peers.served_chunks.load(Ordering::Relaxed), 0);
}
