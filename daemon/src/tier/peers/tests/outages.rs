//! A directory that is slow, away or empty: nobody waits beyond a deadline, and it knows everything again afterwards.

use super::*;

fn impatient(redis: &Redis) -> Setup {
    Setup { timeout: Duration::from_millis(300), ttl: Duration::from_secs(600), ..Setup::on(redis.uri()) }
}

/// Asks with a deadline and holds it to that.
async fn finds_within(node: &Node, within: Duration) -> bool {
    let begin = Instant::now();
    let found = node.tier.find(&node.namespace(), &[chunk(1)], begin + within).await;
    assert!(begin.elapsed() < within + Duration::from_secs(5), "{:?}", begin.elapsed());
    found[0].is_some()
}

/// The directory answers nobody while `broken`; afterwards what was stored meanwhile is found.
async fn goes_on_without(redis: &mut Redis, broken: impl Fn(&mut Redis), whole: impl Fn(&mut Redis)) {
    let setup = impatient(redis);
    let (one, two) = (Node::start(&setup).await, Node::start(&setup).await);
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    broken(redis);
    eventually("its breaker is open", async || {
        assert!(!finds_within(&two, Duration::from_millis(200)).await);
        !two.tier.directory.is_up()
    })
    .await;
    let before = two.counter(|peers| &peers.unanswered);
    assert!(!finds_within(&two, PATIENCE).await, "at once, whatever the deadline");
    assert!(two.counter(|peers| &peers.unanswered) - before <= 1);
    // One node's service goes on.
    one.store(chunk(2)).await;
    assert!(one.holds(chunk(2)));
    assert!(one.tier.reset(&one.namespace(), None).await.is_err(), "nobody could be told");
    assert!(one.holds(chunk(1)), "a reset that failed has done nothing");
    whole(redis);
    two.has_found(chunk(2)).await;
    two.has_found(chunk(1)).await;
    assert_eq!(two.fetch(chunk(2)).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_paused() {
    goes_on_without(&mut Redis::start(), |redis| redis.pause(), |redis| redis.go_on()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_killed_and_comes_back_empty() {
    goes_on_without(&mut Redis::start(), Redis::kill, Redis::restart).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_was_flushed_knows_everything_again_with_the_next_round() {
    let redis = Redis::start();
    let setup = Setup { ttl: Duration::from_secs(6), ..Setup::on(redis.uri()) };
    let (one, two) = (Node::start(&setup).await, Node::start(&setup).await);
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    redis.command(&["FLUSHALL"]);
    two.has_found(chunk(1)).await;
    eventually("its address too", async || two.fetch(chunk(1)).await == Ok(()) || two.holds(chunk(1))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn words_are_said_again_before_they_expire() {
    let redis = Redis::start();
    let setup = Setup { ttl: Duration::from_secs(6), ..Setup::on(redis.uri()) };
    let (one, two) = (Node::start(&setup).await, Node::start(&setup).await);
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    let until = Instant::now() + 2 * setup.ttl;
    while Instant::now() < until {
        assert!(two.finds(chunk(1)).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_starts_without_its_directory_and_finds_it_later() {
    let mut redis = Redis::start();
    let setup = impatient(&redis);
    redis.kill();
    let one = Node::start(&setup).await;
    one.store(chunk(1)).await;
    assert!(!one.finds(chunk(2)).await);
    redis.restart();
    let two = Node::start(&setup).await;
    two.has_found(chunk(1)).await;
    assert_eq!(two.fetch(chunk(1)).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_in_a_hurry_do_not_open_the_breaker_of_a_directory_that_is_only_slow() {
    let redis = Redis::start();
    let setup = Setup { timeout: PATIENCE, ..Setup::on(redis.uri()) };
    let (one, two) = (Node::start(&setup).await, Node::start(&setup).await);
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    redis.pause();
    for _ in 0..5 {
        assert!(!finds_within(&two, Duration::from_millis(20)).await);
        assert!(two.tier.directory.is_up());
    }
    assert_eq!(two.counter(|peers| &peers.unanswered), 5);
    redis.go_on();
    assert!(two.finds(chunk(1)).await);
    assert!(two.tier.directory.is_up());
}
