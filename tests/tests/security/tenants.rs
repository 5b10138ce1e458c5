//! Tenants: kept apart, and told nothing about each other.

use std::time::{Duration, Instant};

use tender_client::{Client, Purpose};
use tender_proto::v1::ChunkState;
use tender_proto::{Descriptor, Reason, Refusal, v1};
use tender_tests::fixture::{self, PART};
use tender_tests::raw::{Ask, RawSession, item};
use tonic::Status;

use crate::{ClientAuth, PATIENCE, Secure, Wish, reason};

const TWO: &str = r#"
[[tenant]]
name = "a"
identities = ["spiffe://test/a", "dns:a.test"]
allow = ["read", "write"]
[[tenant]]
name = "b"
identities = ["spiffe://test/b"]
allow = ["read", "write"]
"#;

fn small(model: &str) -> Descriptor {
    fixture::small(model, 4096)
}

async fn must_store(session: &RawSession, descriptor: &Descriptor, n: u64) {
    session.must_store(descriptor, fixture::chunk(n), PART, fixture::full(descriptor)).await;
}

async fn state(session: &RawSession, descriptor: &Descriptor, n: u64) -> ChunkState {
    session.states(descriptor.digest(), &[fixture::chunk(n)]).await[0]
}

/// Everything of a refusal that a caller can see.
fn seen<T: std::fmt::Debug>(answer: Result<T, Status>) -> (tonic::Code, String, Vec<u8>) {
    let status = answer.expect_err("it must be refused");
    (status.code(), status.message().to_owned(), status.details().to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_with_equal_namespaces_and_keys_do_not_see_each_other() {
    let daemon = Secure::start(Wish::policy(TWO)).await;
    let descriptor = small("same");
    let a = daemon.client("spiffe://test/a").await.open_registered(&descriptor).await;
    let b = daemon.client("spiffe://test/b").await.open_registered(&descriptor).await;
    must_store(&a, &descriptor, 1).await;
    assert_eq!(state(&a, &descriptor, 1).await, ChunkState::Ready);
    assert_eq!(state(&b, &descriptor, 1).await, ChunkState::Miss);
    // Nor can b tell from a reservation that the key is there: it gets one, and stores its own.
    must_store(&b, &descriptor, 1).await;
    assert_eq!(state(&b, &descriptor, 1).await, ChunkState::Ready);
    // Another name of the same tenant sees what the tenant has.
    let a_too = daemon.client("a.test").await.open_registered(&descriptor).await;
    assert_eq!(state(&a_too, &descriptor, 1).await, ChunkState::Ready);
    // A pinned name belongs to one tenant too.
    a.register_as(&descriptor, "production").await.unwrap();
    b.register(&small("other")).await.unwrap();
    b.register_as(&small("other"), "production").await.unwrap();
    // A reset reaches one's own only.
    let reset = daemon.client("spiffe://test/b").await.reset(descriptor.digest()).await.unwrap();
    assert_eq!(reset.dropped_chunks, 1);
    assert_eq!(state(&a, &descriptor, 1).await, ChunkState::Ready);
    assert_eq!(state(&b, &descriptor, 1).await, ChunkState::Miss);
    daemon.app.engine().audit().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_that_share_see_what_they_have_stored() {
    let policy = TWO.replace("allow", "share = \"both\"\nallow");
    let daemon = Secure::start(Wish::policy(&policy)).await;
    let descriptor = small("shared");
    let a = daemon.client("spiffe://test/a").await.open_registered(&descriptor).await;
    let b = daemon.client("spiffe://test/b").await.open_registered(&descriptor).await;
    must_store(&a, &descriptor, 1).await;
    assert_eq!(state(&b, &descriptor, 1).await, ChunkState::Ready);
    assert!(b.read(descriptor.digest(), fixture::chunk(1), PART).await.is_some());
}

const LIMITED: &str = r#"
[[tenant]]
name = "a"
identities = ["spiffe://test/a"]
allow = ["read", "write"]
[[tenant]]
name = "b"
identities = ["spiffe://test/b"]
namespaces = [{ model = "open-*", allow = ["read"] }]
share = "a-too"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn unknown_foreign_and_forbidden_namespaces_are_refused_with_the_same_words() {
    let daemon = Secure::start(Wish::policy(LIMITED)).await;
    let a = daemon.client("spiffe://test/a").await.open("a").await.unwrap();
    a.register(&small("secret-1")).await.unwrap();
    must_store(&a, &small("secret-1"), 1).await;
    let b = daemon.client("spiffe://test/b").await.open("b").await.unwrap();

    // Registering: one that exists, and one that does not.
    let there = seen(b.register(&small("secret-1")).await);
    assert_eq!(there, seen(b.register(&small("secret-2")).await));
    assert_eq!(
        Refusal::from_status(&b.register(&small("secret-1")).await.unwrap_err()).reason,
        Reason::NotAllowed
    );
    // Asking without registering: the only difference is the digest that was asked for.
    let mut words = Vec::new();
    for model in ["secret-1", "secret-2", "open-1"] {
        let digest = small(model).digest();
        let (code, message, details) = seen(b.lookup(digest, &[fixture::chunk(1)], Ask::LOOK).await);
        let details = String::from_utf8_lossy(&details).replace(&digest.to_string(), "DIGEST");
        words.push((code, message.replace(&digest.to_string(), "DIGEST"), details));
    }
    words.dedup();
    assert_eq!(words.len(), 1, "{words:?}");
    // Resetting: no word about whether there was anything.
    let b_client = daemon.client("spiffe://test/b").await;
    let there = b_client.reset(small("secret-1").digest()).await.unwrap();
    assert_eq!(there, b_client.reset(small("secret-2").digest()).await.unwrap());
    assert_eq!(state(&a, &small("secret-1"), 1).await, ChunkState::Ready);
    // A client does not choose its domain.
    let foreign = small("secret-1").in_domain("a");
    assert_eq!(reason(b.register(&foreign).await), Reason::NotAllowed);
    assert_eq!(reason(a.register(&foreign).await), Reason::NotAllowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_read_may_not_write_and_no_tenant_makes_admin_calls() {
    let daemon = Secure::start(Wish::policy(LIMITED)).await;
    let descriptor = small("open-1");
    let client = daemon.client("spiffe://test/b").await;
    let b = client.open_registered(&descriptor).await;
    assert_eq!(state(&b, &descriptor, 1).await, ChunkState::Miss);
    let full = fixture::full(&descriptor);
    let items = vec![item(fixture::chunk(1), PART, full, 4 * 4096)];
    assert_eq!(reason(b.reserve(descriptor.digest(), items).await), Reason::NotAllowed);
    client.ping().await.expect("anybody may ask whether it is there");
    assert_eq!(reason(client.stats().await), Reason::NotAllowed);
    let everything = v1::ResetRequest { namespace: bytes::Bytes::new(), all: true };
    assert_eq!(reason(client.admin.clone().reset(everything.clone()).await), Reason::NotAllowed);
    // The daemon's own user may, on its host; but its engine is nobody's.
    let local = daemon.local().await;
    assert!(local.stats().await.unwrap().refusals.iter().any(|count| count.count >= 3));
    local.admin.clone().reset(everything).await.unwrap();
    assert_eq!(reason(local.open("an engine of no tenant").await), Reason::NotAllowed);
    let stranger = daemon.client("spiffe://test/c").await;
    assert_eq!(reason(stranger.open("stranger").await), Reason::NotAllowed);
    let counted = "tender_access_refusals_total{tenant=\"b\",reason=\"not_allowed\"}";
    assert_eq!(daemon.metric(counted).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_policy_the_network_makes_no_admin_calls_but_resets_what_it_uses() {
    let daemon = Secure::start(Wish::default()).await;
    let client = daemon.client("engine.test").await;
    let session = client.open_registered(&small("m")).await;
    must_store(&session, &small("m"), 1).await;
    assert_eq!(reason(client.stats().await), Reason::NotAllowed);
    let everything = v1::ResetRequest { namespace: bytes::Bytes::new(), all: true };
    assert_eq!(reason(client.admin.clone().reset(everything).await), Reason::NotAllowed);
    assert_eq!(client.reset(small("m").digest()).await.unwrap().dropped_chunks, 1);
    daemon.local().await.stats().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_good_for_the_identity_that_opened_it_only() {
    let daemon = Secure::start(Wish::policy(TWO)).await;
    let descriptor = small("mine");
    let a = daemon.client("spiffe://test/a").await.open_registered(&descriptor).await;
    must_store(&a, &descriptor, 1).await;
    let lease = a.lookup(descriptor.digest(), &[fixture::chunk(1)], Ask::LEASE).await.unwrap().lease.unwrap();
    // The same identity on another connection goes on.
    let mut same = daemon.client("spiffe://test/a").await.open("same").await.unwrap();
    same.id = a.id.clone();
    assert_eq!(state(&same, &descriptor, 1).await, ChunkState::Ready);
    // Somebody else with the id, and another name of the same tenant: it does not exist for them.
    for thief in ["spiffe://test/b", "a.test"] {
        let mut thief = daemon.client(thief).await.open("thief").await.unwrap();
        thief.id = a.id.clone();
        let stolen = seen(thief.lookup(descriptor.digest(), &[fixture::chunk(1)], Ask::LOOK).await);
        let full = fixture::full(&descriptor);
        let items = vec![item(fixture::chunk(2), PART, full, 4 * 4096)];
        assert_eq!(reason(thief.reserve(descriptor.digest(), items).await), Reason::UnknownSession);
        assert_eq!(reason(thief.register(&descriptor).await), Reason::UnknownSession);
        assert_eq!(reason(thief.release(&[lease.id]).await), Reason::UnknownSession);
        assert_eq!(reason(thief.abort(&[1]).await), Reason::UnknownSession);
        assert_eq!(reason(thief.commit(Vec::new()).await), Reason::UnknownSession);
        assert_eq!(reason(thief.get(lease.id, Vec::new()).await), Reason::UnknownSession);
        let frames = thief.frames(1, full, &[0; 100], 100);
        assert_eq!(reason(thief.put(frames).await), Reason::UnknownSession);
        assert_eq!(stolen.0, tonic::Code::FailedPrecondition);
    }
    assert_eq!(a.release(&[lease.id]).await.unwrap(), [v1::LeaseOutcome::Live], "nothing happened to it");
    // Replayed after its end, it is unknown to its owner as well, in the same words as a stranger's guess.
    let id = a.id.clone();
    drop(a);
    let mut replay = daemon.client("spiffe://test/a").await.open("replay").await.unwrap();
    replay.id = id.clone();
    crate::eventually("the end of the session", async || {
        replay.lookup(descriptor.digest(), &[], Ask::LOOK).await.is_err()
    })
    .await;
    let own = seen(replay.lookup(descriptor.digest(), &[], Ask::LOOK).await);
    let mut guess = daemon.client("spiffe://test/b").await.open("guess").await.unwrap();
    guess.id = id;
    assert_eq!(own, seen(guess.lookup(descriptor.digest(), &[], Ask::LOOK).await));
}

/// Waits for the daemon's no; true if it was a yes.
fn refused(client: &Client) -> bool {
    let give_up = Instant::now() + PATIENCE;
    while client.refusal().is_none() && client.counters().session != "up" {
        assert!(Instant::now() < give_up, "neither yes nor no: {:?}", client.counters());
        std::thread::sleep(Duration::from_millis(10));
    }
    client.refusal().is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bearer_token_is_an_identity_and_a_wrong_one_is_none() {
    let digest = blake3::hash(b"sesame-opens").to_hex();
    let policy = format!(
        "[[tenant]]\nname = \"a\"\nidentities = [\"token-blake3:{digest}\"]\nallow = [\"read\", \"write\"]\n"
    );
    let wish = Wish { client_auth: ClientAuth::Optional, ..Wish::policy(&policy) };
    let daemon = Secure::start(wish).await;
    let shown = |token: &'static str| {
        let file = daemon.path(&format!("token-{}", token.len()));
        std::fs::write(&file, token).unwrap();
        let mut config = daemon.client_config(None);
        config.token_file = Some(file);
        tokio::task::spawn_blocking(move || {
            let client = Client::new(config, Purpose::Data).unwrap();
            client.register(std::sync::Arc::new(small("m")));
            let up = if token == "sesame-opens" { client.wait_until_up(PATIENCE) } else { refused(&client) };
            (up, client.refusal().map(|no| no.reason), client.counters().breaker)
        })
    };
    let (up, why, _) = shown("sesame-opens").await.unwrap();
    assert!(up && why.is_none(), "{why:?}");
    let (up, why, breaker) = shown("guess").await.unwrap();
    assert_eq!((up, why), (false, Some(Reason::NotAllowed)));
    assert_eq!(breaker, "closed", "a daemon that says no answers");
}
