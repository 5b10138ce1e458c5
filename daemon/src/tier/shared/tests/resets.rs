//! A reset is final: for the daemon that made it at once, for others when they fetch, and within a second when they find.
//! Nothing that is older than it gets into the store, or out of it, whoever has not heard of it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::tier::generations::now_ms;

fn folder(namespace: &TierNamespace) -> String {
    layout::folder(namespace.digest, &namespace.descriptor)
}

/// What the store says now, whatever this daemon asked a moment ago.
async fn ask(node: &Node, descriptor: &Descriptor) {
    let namespace = node.now(descriptor);
    node.tier.ties.asked.fresh(&node.tier.store, namespace.digest, &folder(&namespace)).await.unwrap();
}

/// Stores and keeps a chunk, in the epoch that follows what the daemon hears on the way.
async fn keep_at_last(node: &Node, descriptor: &Descriptor, chunk: ChunkId) {
    let until = soon();
    loop {
        ask(node, descriptor).await;
        let namespace = node.now(descriptor);
        if !node.house.has(&namespace, chunk) {
            node.store(&namespace, chunk, full());
        }
        if node.offer(&namespace, chunk).await == Kept::Yes {
            return;
        }
        assert!(Instant::now() < until, "{chunk} is never kept");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_from_before_a_reset_is_found_or_fetched_by_any_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Node::at(&files(dir.path())), Node::at(&files(dir.path())));
    let descriptor = descriptor(&[&[64]]);
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    assert_eq!(one.keep(&of_one, chunk(0, 1), full()).await, Kept::Yes);
    assert!(two.find(&of_two, chunk(0, 1)).await.is_some());
    let before = two.tier.ties.asked.last(descriptor.digest());
    one.tier.reset(&of_one, None).await.unwrap();
    assert_eq!(one.find(&one.now(&descriptor), chunk(0, 1)).await, None, "at once where it was made");
    assert_eq!(two.tier.ties.asked.last(descriptor.digest()), before, "the other one has not asked again");
    assert_eq!(two.fetch(&of_two, chunk(0, 1)).await, Err(FetchError::Gone), "a fetch always asks");
    two.assert_absent(&of_two, chunk(0, 1));
    assert_eq!(two.find(&two.now(&descriptor), chunk(0, 1)).await, None, "and a find knows it then");

    // Another one that only finds knows it a second later.
    let of_one = one.now(&descriptor);
    assert_eq!(one.keep(&of_one, chunk(0, 1), full()).await, Kept::Yes, "kept again, in the new generation");
    let three = Node::at(&files(dir.path()));
    three.namespace(&descriptor);
    // It has come after a reset: what it had before it heard of that counts for nothing.
    three.find(&three.now(&descriptor), chunk(0, 1)).await;
    assert!(three.find(&three.now(&descriptor), chunk(0, 1)).await.is_some());
    two.tier.reset(&two.now(&descriptor), None).await.unwrap();
    tokio::time::sleep(generation::MAX_AGE + Duration::from_millis(50)).await;
    assert_eq!(three.find(&three.now(&descriptor), chunk(0, 1)).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_daemon_has_that_did_not_hear_of_a_reset_is_not_kept_in_the_new_generation() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Node::at(&files(dir.path())), Node::at(&files(dir.path())));
    let descriptor = descriptor(&[&[64]]);
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    two.store(&of_two, chunk(0, 1), full());
    two.store(&of_two, chunk(0, 2), full());
    assert_eq!(two.offer(&of_two, chunk(0, 1)).await, Kept::Yes);
    let gathered = of_two.epoch;
    one.tier.reset(&of_one, None).await.unwrap();
    let open = two.house.read(&of_two, chunk(0, 2)).unwrap();
    ask(&two, &descriptor).await;
    assert_eq!(two.tier.keep(&of_two, chunk(0, 2), &open).await, Kept::Unwanted);
    drop(open);
    two.assert_absent(&of_two, chunk(0, 1));
    two.assert_absent(&of_two, chunk(0, 2));
    let of_two = two.now(&descriptor);
    assert_ne!(of_two.epoch, gathered, "stores that were gathered before are refused");
    let of_one = one.now(&descriptor);
    for n in [1, 2] {
        assert_eq!(one.find(&of_one, chunk(0, n)).await, None);
        assert_eq!(one.fetch(&of_one, chunk(0, n)).await, Err(FetchError::Gone));
    }
    // What is stored from now on is kept and found.
    assert_eq!(two.keep(&of_two, chunk(0, 3), full()).await, Kept::Yes);
    one.fetch(&of_one, chunk(0, 3)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_or_keep_of_an_epoch_that_is_over_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Node::at(&files(dir.path())), Node::at(&files(dir.path())));
    let descriptor = descriptor(&[&[64]]);
    let (before, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    one.tier.reset(&before, None).await.unwrap();
    two.fetch(&of_two, chunk(0, 1)).await.unwrap_err();
    let of_two = two.now(&descriptor);
    assert_eq!(two.keep(&of_two, chunk(0, 1), full()).await, Kept::Yes);
    assert_eq!(one.find(&before, chunk(0, 1)).await, None);
    assert_eq!(one.fetch(&before, chunk(0, 1)).await, Err(FetchError::Gone));
    let now = one.now(&descriptor);
    one.store(&now, chunk(0, 2), full());
    let open = one.house.read(&now, chunk(0, 2)).unwrap();
    assert_eq!(one.tier.keep(&before, chunk(0, 2), &open).await, Kept::Unwanted);
    drop(open);
    one.fetch(&now, chunk(0, 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_was_down_during_a_reset_forgets_and_one_that_knew_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let uri = files(dir.path());
    let open = |generations| SharedTier::open(&config(&uri), generations).unwrap();
    let (one, two) = (Node::at(&uri), Node::at(&uri));
    let descriptor = descriptor(&[&[64]]);
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    assert_eq!(two.keep(&of_two, chunk(0, 1), full()).await, Kept::Yes);
    let left = two.vanish();
    one.tier.reset(&of_one, None).await.unwrap();

    let two = Node::on(left, open);
    let of_two = two.now(&descriptor);
    assert!(two.house.has(&of_two, chunk(0, 1)), "it is served again until the store is asked");
    assert_eq!(two.offer(&of_two, chunk(0, 1)).await, Kept::Unwanted);
    two.assert_absent(&two.now(&descriptor), chunk(0, 1));
    assert_eq!(one.find(&one.now(&descriptor), chunk(0, 1)).await, None);

    let of_two = two.now(&descriptor);
    two.store(&of_two, chunk(0, 2), full());
    let two = Node::on(two.vanish(), open);
    assert_eq!(two.now(&descriptor).epoch, of_two.epoch);
    assert_eq!(two.offer(&of_two, chunk(0, 2)).await, Kept::Yes);
    two.assert_ready(&of_two, chunk(0, 2), full());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_here_before_the_first_contact_is_kept_only_if_nobody_ever_reset_the_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let descriptor = descriptor(&[&[64]]);
    let (one, two) = (Node::at(&files(dir.path())), Node::at(&files(dir.path())));
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    two.store(&of_two, chunk(0, 1), full());
    assert_eq!(one.keep(&of_one, chunk(0, 2), full()).await, Kept::Yes);
    assert_eq!(two.offer(&of_two, chunk(0, 1)).await, Kept::Yes);
    assert_eq!(two.now(&descriptor).epoch, of_two.epoch);

    one.tier.reset(&of_one, None).await.unwrap();
    let three = Node::at(&files(dir.path()));
    let of_three = three.namespace(&descriptor);
    three.store(&of_three, chunk(0, 3), full());
    assert_eq!(three.offer(&of_three, chunk(0, 3)).await, Kept::Unwanted);
    three.assert_absent(&three.now(&descriptor), chunk(0, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keep_that_is_under_way_during_a_reset_is_found_by_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Node::at(&files(dir.path())), Node::at(&files(dir.path())));
    let descriptor = descriptor(&[&[64]]);
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    assert_eq!(one.keep(&of_one, chunk(0, 1), full()).await, Kept::Yes);
    one.store(&of_one, chunk(0, 2), full());
    let open = one.house.read(&of_one, chunk(0, 2)).unwrap();
    two.tier.reset(&of_two, None).await.unwrap();
    // If it saw the generation less than a second ago, it still writes to that one; else it hears of the reset.
    one.tier.keep(&of_one, chunk(0, 2), &open).await;
    assert_eq!(two.find(&two.now(&descriptor), chunk(0, 2)).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_resets_at_once_lose_neither() {
    let dir = tempfile::tempdir().unwrap();
    let nodes: Vec<_> = (0..4).map(|_| Node::at(&files(dir.path()))).collect();
    let descriptor = descriptor(&[&[64]]);
    nodes.iter().for_each(|node| _ = node.namespace(&descriptor));
    for n in 0..10 {
        keep_at_last(&nodes[0], &descriptor, chunk(0, n)).await;
        let now: Vec<_> = nodes.iter().map(|node| node.now(&descriptor)).collect();
        for (node, namespace) in nodes.iter().zip(&now).skip(1) {
            node.store(namespace, chunk(0, 1000 + n), full());
        }
        let resets = nodes.iter().zip(&now).map(|(node, namespace)| node.tier.reset(namespace, None));
        assert!(futures_util::future::join_all(resets).await.iter().all(Result::is_ok));
        for node in &nodes {
            node.assert_absent(&node.now(&descriptor), chunk(0, 1000 + n));
        }
        let reader = Node::at(&files(dir.path()));
        reader.namespace(&descriptor);
        for _ in 0..2 {
            let namespace = reader.now(&descriptor);
            assert_eq!(reader.find(&namespace, chunk(0, n)).await, None);
            assert_eq!(reader.fetch(&namespace, chunk(0, n)).await, Err(FetchError::Gone));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_is_overtaken_by_an_older_number_is_written_again_by_who_knows_it() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Node::at(&files(dir.path())), Node::at(&files(dir.path())));
    let descriptor = descriptor(&[&[64]]);
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    one.tier.reset(&of_one, None).await.unwrap();
    let number = one.generations.highest(descriptor.digest());
    // As a daemon writes that chose its number earlier and was slow.
    two.tier
        .ties
        .asked
        .begin(&two.tier.store, descriptor.digest(), &folder(&of_two), number - 1, true)
        .await
        .unwrap();
    two.find(&of_two, chunk(0, 1)).await;
    let of_two = two.now(&descriptor);
    assert_eq!(two.keep(&of_two, chunk(0, 1), full()).await, Kept::Yes);
    let of_one = one.now(&descriptor);
    assert_eq!(one.fetch(&of_one, chunk(0, 1)).await, Err(FetchError::Gone), "it may be of before the reset");
    assert_eq!(one.now(&descriptor).epoch, of_one.epoch, "nothing is forgotten for that");
    assert_eq!(two.fetch(&of_two, chunk(0, 1)).await, Err(FetchError::Gone));
    two.assert_absent(&two.now(&descriptor), chunk(0, 1));
    assert_eq!(two.generations.highest(descriptor.digest()), number);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_was_heard_of_elsewhere_holds_for_a_store_that_has_not() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Node::at(&files(dir.path())), Node::at(&files(dir.path())));
    let descriptor = descriptor(&[&[64]]);
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    assert_eq!(one.keep(&of_one, chunk(0, 1), full()).await, Kept::Yes);
    assert!(two.find(&of_two, chunk(0, 1)).await.is_some());
    // From the directory.
    two.generations.learn(descriptor.digest(), now_ms()).await;
    let of_two = two.now(&descriptor);
    assert_eq!(two.find(&of_two, chunk(0, 1)).await, None);
    assert_eq!(two.fetch(&of_two, chunk(0, 1)).await, Err(FetchError::Gone));
    assert_eq!(one.fetch(&of_one, chunk(0, 1)).await, Err(FetchError::Gone), "it is told through the store");
    one.assert_absent(&one.now(&descriptor), chunk(0, 1));
    // A reset that has raised the number in the directory goes on with that one here.
    let raised = now_ms() + 5000;
    let of_one = one.now(&descriptor);
    assert_eq!(one.tier.reset(&of_one, Some(raised)).await, Ok(Some(raised)));
    assert!(one.tier.reset(&of_one, Some(raised)).await.unwrap().unwrap() > raised, "not twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_questions_that_hear_of_one_reset_begin_one_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Node::at(&files(dir.path())), Node::at(&files(dir.path())));
    let descriptor = descriptor(&[&[64]]);
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    one.tier.reset(&of_one, None).await.unwrap();
    let asking = (0..50).map(|n| two.find(&of_two, chunk(0, n)));
    futures_util::future::join_all(asking).await;
    assert_eq!(two.now(&descriptor).epoch, of_two.epoch + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_an_error_while_the_store_cannot_be_written_or_this_daemon_cannot_forget() {
    let dir = tempfile::tempdir().unwrap();
    let store = tempfile::tempdir().unwrap();
    let descriptor = descriptor(&[&[64]]);
    let engine = Node::at(&files(store.path()));
    let namespace = engine.namespace(&descriptor);
    let fails = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&fails);
    let forget = Arc::new(move |_| match failing.load(Ordering::Relaxed) {
        true => Err("the disk is full".to_owned()),
        false => Ok(()),
    });
    let file = Some(dir.path().join("generations"));
    let generations = Arc::new(Generations::new(Arc::clone(&engine.house), forget, file));
    let tier = SharedTier::open(&config(&files(store.path())), Arc::clone(&generations)).unwrap();
    assert_eq!(engine.keep(&namespace, chunk(0, 1), full()).await, Kept::Yes);
    assert!(tier.reset(&namespace, None).await.is_err());
    let open = engine.house.read(&namespace, chunk(0, 1)).unwrap();
    assert_eq!(tier.keep(&namespace, chunk(0, 1), &open).await, Kept::Unwanted, "while it has not forgotten");
    fails.store(false, Ordering::Relaxed);
    tier.reset(&namespace, None).await.unwrap();
    // A file where the folder should be.
    drop(open);
    let store = tempfile::tempdir().unwrap();
    std::fs::create_dir(store.path().join("v1")).unwrap();
    std::fs::write(store.path().join(folder(&namespace).trim_end_matches('/')), b"").unwrap();
    let tier = SharedTier::open(&config(&files(store.path())), generations).unwrap();
    assert!(tier.reset(&namespace, None).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_of_everything_reaches_namespaces_that_no_engine_uses_here() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Node::at(&files(dir.path())), Node::at(&files(dir.path())));
    everything_is_forgotten(&one, &two).await;
}

/// As Redis cannot through OpenDAL.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_of_everything_reaches_them_too_where_the_store_cannot_list() {
    let operator = opendal::Operator::new(opendal::services::Memory::default()).unwrap();
    let node = || {
        Node::new(|generations| {
            SharedTier::over(Store::unlisted(&operator, 64), "memory".into(), 4, generations)
        })
    };
    let (one, two) = (node(), node());
    // Also what was reset by a daemon whose clock is ahead.
    let other = two.namespace(&descriptor(&[&[77]]));
    two.generations.learn(other.digest, now_ms() + (1 << 30)).await;
    everything_is_forgotten(&one, &two).await;
    everything_is_forgotten(&one, &two).await;
}

async fn everything_is_forgotten(one: &Node, two: &Node) {
    let (known, other) = (descriptor(&[&[64]]), descriptor(&[&[77]]));
    one.namespace(&known);
    two.namespace(&other);
    keep_at_last(two, &other, chunk(0, 1)).await;
    assert!(two.find(&two.now(&other), chunk(0, 1)).await.is_some());
    let named = [one.now(&known)];
    one.tier.reset_others(&named).await.unwrap();
    one.tier.reset(&named[0], None).await.unwrap();
    let before = two.now(&other);
    assert_eq!(two.fetch(&before, chunk(0, 1)).await, Err(FetchError::Gone));
    two.assert_absent(&before, chunk(0, 1));
    assert_eq!(two.find(&two.now(&other), chunk(0, 1)).await, None);
    let of_one = one.namespace(&other);
    assert_eq!(one.find(&of_one, chunk(0, 1)).await, None);
    assert_eq!(one.fetch(&one.now(&other), chunk(0, 1)).await, Err(FetchError::Gone));
    // And all goes on.
    keep_at_last(two, &other, chunk(0, 2)).await;
    one.fetch(&one.now(&other), chunk(0, 2)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_generations_are_deleted_and_the_current_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::at(&files(dir.path()));
    let descriptor = descriptor(&[&[64]]);
    let namespace = node.namespace(&descriptor);
    assert_eq!(node.keep(&namespace, chunk(0, 1), full()).await, Kept::Yes);
    let root = dir.path().join(folder(&namespace));
    let old = root.join(node.tier.ties.asked.last(namespace.digest).unwrap().to_string());
    assert!(old.is_dir() && root.join("descriptor.json").is_file());
    let readable = std::fs::read_to_string(root.join("descriptor.json")).unwrap();
    assert!(readable.contains("\"model\": \"org/small model\""), "{readable}");
    node.tier.reset(&namespace, None).await.unwrap();
    let namespace = node.now(&descriptor);
    assert_eq!(node.keep(&namespace, chunk(0, 1), full()).await, Kept::Yes);
    let until = soon();
    while old.exists() {
        assert!(Instant::now() < until, "the ended generation is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(node.find(&namespace, chunk(0, 1)).await.is_some());
    let fresh = Node::at(&files(dir.path()));
    let of_fresh = fresh.namespace(&descriptor);
    // Its first contact, after a reset: it begins anew.
    assert_eq!(fresh.fetch(&of_fresh, chunk(0, 1)).await, Err(FetchError::Gone));
    fresh.fetch(&fresh.now(&descriptor), chunk(0, 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_who_deletes_the_namespaces_folder_costs_misses_only() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::at(&files(dir.path()));
    let descriptor = descriptor(&[&[64]]);
    node.namespace(&descriptor);
    node.tier.reset(&node.now(&descriptor), None).await.unwrap();
    let namespace = node.now(&descriptor);
    assert_eq!(node.keep(&namespace, chunk(0, 1), full()).await, Kept::Yes);
    std::fs::remove_dir_all(dir.path().join(folder(&namespace))).unwrap();
    let fresh = Node::at(&files(dir.path()));
    let of_fresh = fresh.namespace(&descriptor);
    assert_eq!(fresh.find(&of_fresh, chunk(0, 1)).await, None);
    assert_eq!(fresh.fetch(&of_fresh, chunk(0, 1)).await, Err(FetchError::Gone));
    assert_eq!(fresh.keep(&of_fresh, chunk(0, 1), full()).await, Kept::Yes);
    assert!(fresh.find(&of_fresh, chunk(0, 1)).await.is_some());
    // Who knew the number has it written again and loses nothing.
    assert_eq!(node.fetch(&namespace, chunk(0, 2)).await, Err(FetchError::Gone));
    node.assert_ready(&namespace, chunk(0, 1), full());
    assert_eq!(node.offer(&namespace, chunk(0, 1)).await, Kept::Yes);
}
