//! Nothing of before a reset comes after it, whatever is under way in the tiers; and a reset ends.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn field_21_a_fetch_under_way_at_a_reset_brings_nothing_after_it() {
    let rig = Rig::with(&[TierKind::Peers], |config| config.fetches = 1);
    rig.tier().hold(&[chunk(1), chunk(2)]);
    rig.tier().stop();
    // One is under way, one waits for its turn.
    rig.comes(&[chunk(1), chunk(2)]).await;
    eventually("one is under way", || rig.tier().under_way.load(Ordering::Acquire) == 1).await;
    rig.bench.engine.reset(ResetScope::One(a()));
    rig.stack.forget(ResetScope::One(a())).await.unwrap();
    assert_eq!((rig.tier().under_way.load(Ordering::Acquire), rig.under_way()), (0, 0));
    assert!(rig.tier().has_heard(&Heard::Reset(a())));
    rig.tier().go(1 << 10);
    assert_eq!(rig.seek(&[chunk(1), chunk(2)]).await, [Sought::Absent(None); 2]);
    assert!(!rig.is_ready(1) && !rig.is_ready(2));
    // What is there after the reset comes again.
    rig.tier().hold(&[chunk(1)]);
    rig.comes(&[chunk(1)]).await;
    eventually("it is there", || rig.is_ready(1)).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_21_a_reset_fails_when_a_tier_cannot_forget_or_nobody_knows_the_namespace() {
    let rig = Rig::new(&[TierKind::Disk, TierKind::Shared]);
    *rig.tiers[1].resets_fail.lock() = Some("the store does not answer".into());
    let no = rig.stack.forget(ResetScope::All).await.unwrap_err();
    assert!(no.to_string().contains("the store does not answer"), "{no}");
    assert!(no.to_string().contains("shared"), "{no}");
    *rig.tiers[1].resets_fail.lock() = None;
    rig.stack.forget(ResetScope::All).await.unwrap();
    assert!([a(), b()].iter().all(|&ns| rig.tiers[1].has_heard(&Heard::Reset(ns))));
    let unknown = crate::engine::tests::descriptor("unknown").digest();
    assert_eq!(
        rig.stack.forget(ResetScope::One(unknown)).await.unwrap_err().reason,
        Reason::UnknownNamespace
    );
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_of_everything_asks_tiers_for_what_no_engine_has_registered_and_fails_with_them() {
    let rig = Rig::new(&[TierKind::Disk, TierKind::Shared]);
    rig.stack.forget(ResetScope::One(a())).await.unwrap();
    assert!(rig.tiers.iter().all(|tier| !tier.has_heard(&Heard::ResetOthers)));
    rig.stack.forget(ResetScope::All).await.unwrap();
    for tier in &rig.tiers {
        let heard = tier.heard.lock().clone();
        let at = |what: &Heard| heard.iter().rposition(|heard| heard == what);
        assert!(
            at(&Heard::ResetOthers) < at(&Heard::Reset(b())),
            "those that are known come after it: {heard:?}"
        );
    }
    *rig.tiers[0].resets_fail.lock() = Some("the disk is full".into());
    let no = rig.stack.forget(ResetScope::All).await.unwrap_err();
    assert!(no.to_string().contains("the disk is full"), "{no}");
    rig.end().await;
}

/// What it asks for is nobody's yet when the reset begins.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_registered_during_a_reset_of_everything_gets_nothing_old() {
    let rig = Arc::new(Rig::new(&[TierKind::Disk]));
    rig.tier().hold(&[chunk(1)]);
    rig.tier().resets_hang.store(true, Ordering::Release);
    let resetting = Arc::clone(&rig);
    let reset = tokio::spawn(async move { resetting.stack.forget(ResetScope::All).await });
    eventually("the reset is under way", || rig.tier().has_heard(&Heard::ResetOthers)).await;
    let late = crate::engine::tests::descriptor("late");
    rig.bench.engine.register(rig.session, late.clone(), late.digest(), None).unwrap();
    rig.stack.seek(late.digest(), &[chunk(1)], Instant::now() + PATIENCE).await;
    rig.idle().await;
    assert_eq!(rig.tier().fetches(), []);
    reset.abort();
    _ = reset.await;
    Arc::into_inner(rig).unwrap().end().await;
}

/// Each of these tiers alone would take half the time, and one after the other more than all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_ends_in_bounded_time_whatever_tiers_and_namespaces_there_are() {
    let rig = Rig::new(&[TierKind::Disk, TierKind::Peers, TierKind::Shared]);
    rig.tiers.iter().for_each(|tier| tier.resets_hang.store(true, Ordering::Release));
    let no = rig.stack.forget(ResetScope::All).await.unwrap_err();
    assert!(no.to_string().contains("not done in 10 s") && no.to_string().contains("reset it again"), "{no}");
    // And then the tiers are asked again.
    rig.tiers[1].hold(&[chunk(1)]);
    rig.comes(&[chunk(1)]).await;
    rig.idle().await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_a_reset_that_waits_for_a_tier() {
    let rig = Arc::new(Rig::new(&[TierKind::Shared]));
    rig.tier().resets_hang.store(true, Ordering::Release);
    let resetting = Arc::clone(&rig);
    let reset = tokio::spawn(async move { resetting.stack.forget(ResetScope::One(a())).await });
    eventually("the reset is under way", || rig.tier().has_heard(&Heard::Reset(a()))).await;
    rig.stack.stop(Instant::now() + PATIENCE).await;
    assert_eq!(reset.await.unwrap().unwrap_err().reason, Reason::Draining);
    assert!(rig.tier().has_heard(&Heard::Close));
    Arc::into_inner(rig).unwrap().end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_21_a_chunk_that_is_being_kept_at_a_reset_is_let_go_of_first() {
    let rig = Rig::new(&[TierKind::Disk]);
    rig.tier().stop();
    rig.bench.put(rig.session, 1);
    eventually("it is being kept", || rig.tier().kept() == [chunk(1)]).await;
    rig.bench.engine.reset(ResetScope::One(a()));
    rig.stack.forget(ResetScope::One(a())).await.unwrap();
    rig.tier().go(1 << 10);
    rig.bench.put(rig.session, 2);
    eventually("what is new is kept", || rig.tier().kept.lock().contains_key(&chunk(2))).await;
    assert!(!rig.tier().kept.lock().contains_key(&chunk(1)));
    rig.end().await;
}

/// The engine has begun a new epoch and the tiers still hold what was stored in the old one.
#[tokio::test(flavor = "multi_thread")]
async fn field_21_what_is_asked_for_before_the_tiers_have_forgotten_does_not_come_after_the_reset() {
    let rig = Rig::with(&[TierKind::Peers, TierKind::Shared], |config| config.fetches = 2);
    rig.tier().hold(&[chunk(1)]);
    rig.tier().stop();
    rig.comes(&[chunk(1)]).await;
    rig.bench.engine.reset(ResetScope::One(a()));
    rig.tiers[1].stop();
    rig.tiers[1].hold(&[chunk_of(1, 2)]);
    rig.comes(&[chunk_of(1, 2)]).await;
    eventually("it is under way", || rig.tiers[1].under_way.load(Ordering::Acquire) == 1).await;
    rig.stack.forget(ResetScope::One(a())).await.unwrap();
    eventually("neither goes on", || rig.under_way() == 0).await;
    rig.tiers.iter().for_each(|tier| tier.go(1 << 10));
    for one in [chunk(1), chunk_of(1, 2)] {
        let found = rig.bench.engine.lookup(rig.session, a(), &[one], LeaseAsk::None).unwrap();
        assert!(matches!(found.chunks[0], crate::engine::ChunkAnswer::Miss(_)), "{found:?}");
    }
    // What is stored after it comes as ever.
    rig.tiers[1].hold(&[chunk_of(1, 3)]);
    rig.comes(&[chunk_of(1, 3)]).await;
    rig.idle().await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_of_one_namespace_leaves_the_fetches_of_another() {
    let rig = Rig::new(&[TierKind::Peers]);
    rig.tier().hold(&[chunk(1)]);
    rig.tier().stop();
    rig.comes(&[chunk(1)]).await;
    rig.bench.engine.reset(ResetScope::One(b()));
    rig.stack.forget(ResetScope::One(b())).await.unwrap();
    rig.tier().go(1 << 10);
    eventually("it is there", || rig.is_ready(1)).await;
    rig.end().await;
}
