//! What one daemon has, others find and fetch, whatever kind of store the directory is in.

use super::redis::{Cluster, Sentinel};
use super::*;
use crate::engine::tests::chunk_of;

/// Publishes on one daemon, fetches on the other, withdraws.
async fn shares(setup: &Setup) {
    let (one, two) = (Node::start(setup).await, Node::start(setup).await);
    let chunks: Vec<_> = (0..6).map(|n| chunk_of(0, n)).chain((6..12).map(|n| chunk_of(1, n))).collect();
    assert!(!one.finds(chunks[0]).await);
    for &chunk in &chunks {
        one.store(chunk).await;
    }
    for &chunk in &chunks {
        two.has_found(chunk).await;
    }
    assert!(!one.finds(chunks[0]).await, "its own word is no news");
    // One question for all of them, and one that nobody has.
    let all: Vec<_> = chunks.iter().copied().chain([chunk(99)]).collect();
    let found = two.tier.find(&two.namespace(), &all, soon()).await;
    assert!(found[..chunks.len()].iter().all(Option::is_some) && found[chunks.len()].is_none(), "{found:?}");
    assert_eq!(found[11].unwrap().bytes, 2 * SLOT_BYTES);
    for &chunk in &chunks {
        assert_eq!(two.fetch(chunk).await, Ok(()), "{chunk}");
        assert!(two.holds(chunk));
        assert_eq!(two.fetch(chunk).await, Err(FetchError::NotNeeded));
    }
    assert_eq!(two.counter(|peers| &peers.fetched), chunks.len() as u64);
    one.tier.withdraw(a(), &chunks[..3]).await;
    eventually("what was withdrawn is not found", async || !two.finds(chunks[2]).await).await;
    assert!(two.finds(chunks[3]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn through_one_server() {
    let redis = Redis::start();
    shares(&Setup::on(redis.uri())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn through_a_cluster() {
    let cluster = Cluster::start();
    shares(&Setup::on(cluster.uri())).await;
    let keys: Vec<usize> =
        cluster.nodes.iter().map(|node| node.command(&["DBSIZE"]).parse().unwrap()).collect();
    assert!(keys.iter().all(|&keys| keys > 0), "entries spread over all servers: {keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn through_sentinels_and_on_after_a_failover() {
    let mut sentinel = Sentinel::start();
    let setup = Setup::on(sentinel.uri());
    let (one, two) = (Node::start(&setup).await, Node::start(&setup).await);
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    tokio::task::block_in_place(|| sentinel.fail_over());
    one.store(chunk(2)).await;
    // The store may have come while nobody took it: then the round says it again.
    two.has_found(chunk(2)).await;
    assert_eq!(two.fetch(chunk(2)).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lay_in_the_arena_before_the_start_is_published_too() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let one = Node::start(&setup).await;
    one.store_silently(chunk(1));
    let dir = one.vanish();
    let again = Node::start_in(&setup, dir).await;
    assert!(again.holds(chunk(1)));
    let two = Node::start(&setup).await;
    two.has_found(chunk(1)).await;
    assert_eq!(two.fetch(chunk(1)).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_is_read_has_a_holder_more() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two, three) = (Node::start(&setup).await, Node::start(&setup).await, Node::start(&setup).await);
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    two.fetch(chunk(1)).await.unwrap();
    let open = two.house.read(&two.namespace(), chunk(1)).unwrap();
    two.tier.keep(&two.namespace(), chunk(1), &open).await;
    let directory = directory_of(&setup);
    eventually("both are named", async || {
        directory.find(a(), 0, &[chunk(1)], soon()).await.unwrap().holders[0].len() == 2
    })
    .await;
    // The first holder goes, and nobody notices.
    drop(one);
    three.has_found(chunk(1)).await;
    assert_eq!(three.fetch(chunk(1)).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_daemons_that_want_the_same_prefix_get_it_once_each() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let holder = Node::start(&setup).await;
    let chunks: Vec<_> = (0..20).map(chunk).collect();
    for &chunk in &chunks {
        holder.store(chunk).await;
    }
    let mut nodes = Vec::new();
    for _ in 0..10 {
        let node = Node::start(&setup).await;
        for &chunk in &chunks {
            node.has_found(chunk).await;
        }
        nodes.push(node);
    }
    let fetches = nodes.iter().flat_map(|node| chunks.iter().map(move |&chunk| node.fetch(chunk)));
    for outcome in futures_util::future::join_all(fetches).await {
        assert_eq!(outcome, Ok(()));
    }
    for node in &nodes {
        assert!(chunks.iter().all(|&chunk| node.holds(chunk)));
        assert_eq!(node.counter(|peers| &peers.fetched), 20);
    }
    assert_eq!(holder.counter(|peers| &peers.served_chunks), 200);
    assert_eq!(holder.engine.stats().leases, 0, "what was lent came back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_drains_offers_what_only_it_has_and_is_found_no_more() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two, three) = (Node::start(&setup).await, Node::start(&setup).await, Node::start(&setup).await);
    for n in 0..10 {
        one.store(chunk(n)).await;
    }
    for n in 0..10 {
        two.has_found(chunk(n)).await;
    }
    two.fetch(chunk(0)).await.unwrap();
    let open = two.house.read(&two.namespace(), chunk(0)).unwrap();
    two.tier.keep(&two.namespace(), chunk(0), &open).await;
    drop(open);
    three.has_found(chunk(0)).await;
    let directory = directory_of(&setup);
    eventually("the reader is named", async || {
        directory.find(a(), 0, &[chunk(0)], soon()).await.unwrap().holders[0].len() == 2
    })
    .await;
    // The namespace is new to one of the takers until somebody asks.
    one.engine.begin_drain();
    one.tier.drain(soon()).await;
    for n in 0..10 {
        assert!(two.holds(chunk(n)) || three.holds(chunk(n)), "chunk {n}");
    }
    assert!(!three.holds(chunk(0)), "somebody else had it");
    let taken = [&two, &three].map(|node| node.counter(|peers| &peers.offers_taken));
    assert_eq!(taken.iter().sum::<u64>(), 9);
    let alive = directory.others_alive(10, soon()).await.unwrap();
    assert_eq!(alive.len(), 2, "and it does not come back");
    for n in 1..10 {
        let holders = directory.find(a(), 0, &[chunk(n)], soon()).await.unwrap().holders;
        assert!(holders[0].iter().all(|holder| alive.contains(&holder.daemon)), "chunk {n}: {holders:?}");
    }
}
