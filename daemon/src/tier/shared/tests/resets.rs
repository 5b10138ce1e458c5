//! A reset is final: for the daemon that made it at once, for others when they fetch, and within a second when they find.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_from_before_a_reset_is_found_or_fetched_by_any_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Node::at(&files(dir.path())), Node::at(&files(dir.path())));
    let descriptor = descriptor(&[&[64]]);
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    assert_eq!(one.keep(&of_one, chunk(0, 1), full()).await, Kept::Yes);
    assert!(two.find(&of_two, chunk(0, 1)).await.is_some());
    let before = two.tier.generations.last(descriptor.digest());
    one.tier.reset(&of_one).await.unwrap();
    assert_eq!(one.find(&of_one, chunk(0, 1)).await, None, "at once where it was made");
    assert_eq!(two.tier.generations.last(descriptor.digest()), before, "the other one has not asked again");
    assert_eq!(two.fetch(&of_two, chunk(0, 1)).await, Err(FetchError::Gone), "a fetch always asks");
    two.assert_absent(&of_two, chunk(0, 1));
    assert_eq!(two.find(&of_two, chunk(0, 1)).await, None, "and a find knows it then");

    // Another one that only finds knows it a second later.
    assert_eq!(one.offer(&of_one, chunk(0, 1)).await, Kept::Yes, "kept again, in the new generation");
    let three = Node::at(&files(dir.path()));
    let of_three = three.namespace(&descriptor);
    assert!(three.find(&of_three, chunk(0, 1)).await.is_some());
    two.tier.reset(&of_two).await.unwrap();
    tokio::time::sleep(generation::MAX_AGE + Duration::from_millis(50)).await;
    assert_eq!(three.find(&of_three, chunk(0, 1)).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keep_that_is_under_way_during_a_reset_is_found_by_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (Node::at(&files(dir.path())), Node::at(&files(dir.path())));
    let descriptor = descriptor(&[&[64]]);
    let (of_one, of_two) = (one.namespace(&descriptor), two.namespace(&descriptor));
    assert_eq!(one.keep(&of_one, chunk(0, 1), full()).await, Kept::Yes);
    one.store(&of_one, chunk(0, 2), full());
    two.tier.reset(&of_two).await.unwrap();
    // It saw the generation less than a second ago, so it still writes to that one.
    let old = one.tier.generations.last(descriptor.digest());
    one.offer(&of_one, chunk(0, 2)).await;
    let still_old = one.tier.generations.last(descriptor.digest()) == old;
    assert_eq!(two.find(&of_two, chunk(0, 2)).await.is_some(), !still_old);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_resets_at_once_lose_neither() {
    let dir = tempfile::tempdir().unwrap();
    let nodes: Vec<_> = (0..4).map(|_| Node::at(&files(dir.path()))).collect();
    let descriptor = descriptor(&[&[64]]);
    let namespaces: Vec<_> = nodes.iter().map(|node| node.namespace(&descriptor)).collect();
    for n in 0..10 {
        assert_eq!(nodes[0].keep(&namespaces[0], chunk(0, n), full()).await, Kept::Yes);
        let resets = nodes.iter().zip(&namespaces).map(|(node, namespace)| node.tier.reset(namespace));
        assert!(futures_util::future::join_all(resets).await.iter().all(Result::is_ok));
        let reader = Node::at(&files(dir.path()));
        let namespace = reader.namespace(&descriptor);
        assert_eq!(reader.find(&namespace, chunk(0, n)).await, None);
        assert_eq!(reader.fetch(&namespace, chunk(0, n)).await, Err(FetchError::Gone));
        // A daemon whose last answer is older than the others' resets asks again.
        nodes[0]
            .tier
            .generations
            .fresh(&nodes[0].tier.store, descriptor.digest(), &folder(&namespace))
            .await
            .unwrap();
    }
}

fn folder(namespace: &TierNamespace) -> String {
    layout::folder(namespace.digest, &namespace.descriptor)
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_generations_are_deleted_and_the_current_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::at(&files(dir.path()));
    let namespace = node.namespace(&descriptor(&[&[64]]));
    assert_eq!(node.keep(&namespace, chunk(0, 1), full()).await, Kept::Yes);
    let root = dir.path().join(folder(&namespace));
    let old = root.join(node.tier.generations.last(namespace.digest).unwrap().to_string());
    assert!(old.is_dir() && root.join("descriptor.json").is_file());
    let readable = std::fs::read_to_string(root.join("descriptor.json")).unwrap();
    assert!(readable.contains("\"model\": \"org/small model\""), "{readable}");
    node.tier.reset(&namespace).await.unwrap();
    assert_eq!(node.offer(&namespace, chunk(0, 1)).await, Kept::Yes);
    let until = soon();
    while old.exists() {
        assert!(Instant::now() < until, "the ended generation is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(node.find(&namespace, chunk(0, 1)).await.is_some());
    let fresh = Node::at(&files(dir.path()));
    let of_fresh = fresh.namespace(&namespace.descriptor);
    fresh.fetch(&of_fresh, chunk(0, 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_who_deletes_the_namespaces_folder_costs_misses_only() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::at(&files(dir.path()));
    let namespace = node.namespace(&descriptor(&[&[64]]));
    assert_eq!(node.keep(&namespace, chunk(0, 1), full()).await, Kept::Yes);
    std::fs::remove_dir_all(dir.path().join(folder(&namespace))).unwrap();
    let fresh = Node::at(&files(dir.path()));
    let of_fresh = fresh.namespace(&namespace.descriptor);
    assert_eq!(fresh.find(&of_fresh, chunk(0, 1)).await, None);
    assert_eq!(fresh.fetch(&of_fresh, chunk(0, 1)).await, Err(FetchError::Gone));
    assert_eq!(fresh.keep(&of_fresh, chunk(0, 1), full()).await, Kept::Yes);
    assert!(fresh.find(&of_fresh, chunk(0, 1)).await.is_some());
}
