//! A reset on one daemon is one on all. docs/directory.md has the table of races; each row has a test here.

use super::*;
use crate::tier::generations::Learned;
use crate::tier::peers::entry::Holder;

async fn two_that_share(setup: &Setup) -> (Node, Node) {
    let (one, two) = (Node::start(setup).await, Node::start(setup).await);
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    two.fetch(chunk(1)).await.unwrap();
    let open = two.house.read(&two.namespace(), chunk(1)).unwrap();
    two.tier.keep(&two.namespace(), chunk(1), &open).await;
    drop(open);
    one.has_found(chunk(1)).await;
    (one, two)
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_reset_nothing_of_before_is_found_and_others_forget_it() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two) = two_that_share(&setup).await;
    one.tier.reset(&one.namespace(), None).await.unwrap();
    // At once, and on both.
    assert!(!one.holds(chunk(1)));
    assert!(!two.finds(chunk(1)).await && !one.finds(chunk(1)).await);
    eventually("the other one forgets", async || !two.holds(chunk(1))).await;
    // And then the namespace goes on as before.
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    assert_eq!(two.fetch(chunk(1)).await, Ok(()));
    assert_eq!(one.tier.generations.current(a()), two.tier.generations.current(a()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_only_stores_learns_of_a_reset_with_what_it_publishes() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two) = two_that_share(&setup).await;
    one.tier.reset(&one.namespace(), None).await.unwrap();
    two.store(chunk(2)).await;
    eventually("it learns and forgets", async || !two.holds(chunk(1)) && !two.holds(chunk(2))).await;
    assert!(!one.finds(chunk(2)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publish_that_waited_while_the_reset_came_is_not_found_after_it() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two) = two_that_share(&setup).await;
    let before = two.namespace();
    one.tier.reset(&one.namespace(), None).await.unwrap();
    eventually("it learns", async || {
        two.finds(chunk(1)).await;
        two.namespace().epoch != before.epoch
    })
    .await;
    // Taken out of the engine before, said after.
    let entry = honest_entry(chunk(1));
    let late =
        super::super::publisher::Op::Publish { namespace: a(), epoch: before.epoch, chunk: chunk(1), entry };
    assert!(two.tier.outbox.put(late));
    two.store(chunk(2)).await;
    one.has_found(chunk(2)).await;
    assert!(!one.finds(chunk(1)).await, "what came after it in the same queue is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_find_or_fetch_in_an_epoch_that_is_over_brings_nothing() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two) = two_that_share(&setup).await;
    let before = two.namespace();
    one.tier.reset(&one.namespace(), None).await.unwrap();
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    assert_eq!(two.tier.find(&before, &[chunk(1)], soon()).await, [None]);
    let fetched = two.tier.fetch(&before, chunk(1), &two.house, soon()).await;
    assert_eq!(fetched, Err(FetchError::Gone));
    assert!(!two.holds(chunk(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_that_was_found_before_a_reset_is_not_fetched_after_it() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two) = (Node::start(&setup).await, Node::start(&setup).await);
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    let generation = 1_790_000_000_000;
    assert_eq!(two.tier.generations.learn(a(), generation).await, Learned::Higher);
    assert_eq!(two.fetch(chunk(1)).await, Err(FetchError::Gone), "the holder has not heard of it yet");
    assert!(!two.holds(chunk(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_was_down_during_a_reset_forgets_when_it_comes_back() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two) = two_that_share(&setup).await;
    let dir = two.vanish();
    one.tier.reset(&one.namespace(), None).await.unwrap();
    let again = Node::start_in(&setup, dir).await;
    eventually("it forgets", async || !again.holds(chunk(1))).await;
    assert!(!one.finds(chunk(1)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_comes_back_after_a_reset_that_it_knew_keeps_what_it_has() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two) = two_that_share(&setup).await;
    two.tier.reset(&two.namespace(), None).await.unwrap();
    two.store(chunk(2)).await;
    let (epoch, dir) = (two.namespace().epoch, two.vanish());
    let again = Node::start_in(&setup, dir).await;
    one.has_found(chunk(2)).await;
    assert!(again.holds(chunk(2)));
    assert_eq!(again.namespace().epoch, epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_that_the_directory_lost_is_restored_and_nothing_is_forgotten_for_it() {
    let redis = Redis::start();
    let setup = Setup { ttl: Duration::from_secs(6), ..Setup::on(redis.uri()) };
    let (one, two) = two_that_share(&setup).await;
    one.tier.reset(&one.namespace(), None).await.unwrap();
    let generation = one.tier.generations.highest(a());
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    redis.command(&["FLUSHALL"]);
    two.has_found(chunk(1)).await;
    assert!(one.holds(chunk(1)));
    assert_eq!(one.tier.directory.generation(a(), soon()).await.unwrap(), generation);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_after_a_flush_is_one_for_those_who_knew_the_lost_generation() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, two) = two_that_share(&setup).await;
    one.tier.reset(&one.namespace(), None).await.unwrap();
    one.store(chunk(1)).await;
    two.has_found(chunk(1)).await;
    redis.command(&["FLUSHALL"]);
    // A daemon that knows nothing of the generation.
    let three = Node::start(&setup).await;
    three.tier.reset(&three.namespace(), None).await.unwrap();
    assert!(!three.finds(chunk(1)).await);
    eventually("the one who has it hears of it", async || {
        one.finds(chunk(9)).await;
        !one.holds(chunk(1))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_of_an_old_generation_stands_under_another_key() {
    let redis = Redis::start();
    let setup = Setup::on(redis.uri());
    let (one, _two) = two_that_share(&setup).await;
    one.tier.reset(&one.namespace(), None).await.unwrap();
    let generation = one.tier.generations.highest(a());
    let late = directory_of(&setup);
    late.announce(&one.address, soon()).await.unwrap();
    late.apply(&[Change::Publish(listed(0, chunk(7)), honest_entry(chunk(7)))], soon()).await.unwrap();
    let found = one.tier.directory.find(a(), generation, &[chunk(7)], soon()).await.unwrap();
    assert_eq!(found.holders, [Vec::<Holder>::new()]);
    assert!(!one.finds(chunk(7)).await);
}
