//! What one tenant may take of what all use together, and what a local user may do by its uid.

use tender_proto::Reason;
use tender_proto::v1::ChunkState::Ready;
use tender_tests::attach::{attach, attach_blocking, commit_item};
use tender_tests::fixture::{self, PART};
use tender_tests::pattern;
use tender_tests::raw::{RawSession, item, refused};

use crate::{Secure, Wish, eventually, reason};

const BLOCK_BYTES: u64 = 16 << 10;
const CHUNK_BYTES: usize = 64 << 10;

fn policy(quota: &str) -> String {
    format!(
        "[[tenant]]\nname = \"a\"\nidentities = [\"dns:a.test\"]\nallow = [\"read\", \"write\"]\nquota = {{ {quota} }}\n\
         [[tenant]]\nname = \"b\"\nidentities = [\"dns:b.test\"]\nallow = [\"read\", \"write\"]\n"
    )
}

fn over_quota(tenant: &str) -> String {
    format!("tender_access_refusals_total{{tenant=\"{tenant}\",reason=\"over_quota\"}}")
}

/// As many as the daemon lets this tenant open, at most so many.
async fn open_up_to(daemon: &Secure, name: &str, most: usize) -> Vec<RawSession> {
    let client = daemon.client(name).await;
    let mut open = Vec::new();
    while open.len() < most {
        match client.open("one more").await {
            Ok(session) => open.push(session),
            Err(no) => {
                assert_eq!(reason::<()>(Err(no)), Reason::OverQuota);
                break;
            }
        }
    }
    open
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_as_many_sessions_as_its_quota_and_others_have_theirs() {
    let daemon = Secure::start(Wish::policy(&policy("sessions = 2"))).await;
    let mut a = open_up_to(&daemon, "a.test", 10).await;
    assert_eq!(a.len(), 2);
    assert_eq!(daemon.metric(&over_quota("a")).await, 1);
    assert_eq!(open_up_to(&daemon, "b.test", 10).await.len(), 10);
    a.pop();
    eventually("a place for one more", async || open_up_to(&daemon, "a.test", 1).await.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_without_a_quota_has_half_of_the_sessions_at_most() {
    let mut wish = Wish::policy(&policy("chunks = 100"));
    wish.max_sessions = Some(6);
    let daemon = Secure::start(wish).await;
    let a = open_up_to(&daemon, "a.test", 10).await;
    assert_eq!(a.len(), 3);
    assert_eq!(open_up_to(&daemon, "b.test", 10).await.len(), 3);
    assert_eq!((daemon.metric(&over_quota("a")).await, daemon.metric(&over_quota("b")).await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_as_many_bytes_in_flight_as_its_quota_and_others_have_theirs() {
    let daemon = Secure::start(Wish::policy(&policy(&format!("inflight_bytes = {}", 2 * CHUNK_BYTES)))).await;
    let model = fixture::small("m", BLOCK_BYTES);
    let (a, b) = (
        daemon.client("a.test").await.open_registered(&model).await,
        daemon.client("b.test").await.open_registered(&model).await,
    );
    // Another session of the tenant has no share of its own.
    let a_too = daemon.client("a.test").await.open_registered(&model).await;
    let ask = |n| item(fixture::chunk(n), PART, fixture::full(&model), CHUNK_BYTES);
    let first = a.reserve_one(model.digest(), ask(1)).await.unwrap();
    a_too.reserve_one(model.digest(), ask(2)).await.unwrap();
    for session in [&a, &a_too] {
        let no = session.reserve_one(model.digest(), ask(3)).await.unwrap_err();
        assert_eq!(refused(no.refused), Some(Reason::OverQuota));
    }
    assert_eq!(daemon.metric(&over_quota("a")).await, 2);
    for n in 1..=8 {
        b.reserve_one(model.digest(), ask(n)).await.unwrap();
    }
    a.abort(&[first]).await.unwrap();
    a.must_store(&model, fixture::chunk(3), PART, fixture::full(&model)).await;
    a.must_store(&model, fixture::chunk(4), PART, fixture::full(&model)).await;
    daemon.app.engine().audit().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_of_which_no_chunk_fits_its_share_is_refused_when_it_is_registered() {
    let daemon = Secure::start(Wish::policy(&policy(&format!("inflight_bytes = {}", CHUNK_BYTES - 1)))).await;
    let model = fixture::small("m", BLOCK_BYTES);
    let a = daemon.client("a.test").await.open("a").await.unwrap();
    assert_eq!(reason(a.register(&model).await), Reason::TooLarge);
    // The other tenant has no such share.
    daemon.client("b.test").await.open_registered(&model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_arena_full_of_anothers_chunks_is_not_where_a_tenant_at_its_quota_makes_room() {
    let mut wish = Wish::policy(&policy("chunks = 1"));
    wish.arena_bytes = 8 * CHUNK_BYTES as u64;
    let daemon = Secure::start(wish).await;
    let model = fixture::small("m", BLOCK_BYTES);
    let b = daemon.client("b.test").await.open_registered(&model).await;
    let a = daemon.client("a.test").await.open_registered(&model).await;
    let full = fixture::full(&model);
    for n in 0..7 {
        b.must_store(&model, fixture::chunk(n), PART, full).await;
    }
    a.must_store(&model, fixture::chunk(0), PART, full).await;
    a.must_store(&model, fixture::chunk(1), PART, full).await;
    let all: Vec<_> = (0..7).map(fixture::chunk).collect();
    assert_eq!(b.states(model.digest(), &all).await, [Ready; 7]);
}

/// Who runs the tests.
fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_uid_is_an_identity_and_its_tenant_says_whether_it_gets_shared_memory() {
    let tenant = |uid: &str, more: &str| {
        format!(
            "[[tenant]]\nname = \"local\"\nidentities = [\"uid:{uid}\"]\nallow = [\"read\", \"write\"]\n{more}"
        )
    };
    let own = own_uid().to_string();
    let model = fixture::small("m", BLOCK_BYTES);
    // Of the tenant, with the arena in its memory: stored through staging, read where it lies.
    for uid in [own.as_str(), "*"] {
        let quota = format!("shared_memory = true\nquota = {{ staging_bytes = {} }}\n", 2 * CHUNK_BYTES);
        let daemon = Secure::start(Wish::policy(&tenant(uid, &quota))).await;
        let session = daemon.local().await.open_registered(&model).await;
        assert!(session.opened.shm_offered);
        let socket = daemon.path("tenderd.sock");
        let memory = attach(&socket, &session, CHUNK_BYTES as u64).await;
        let full = fixture::full(&model);
        let blob = pattern::blob(&model, fixture::chunk(1), PART, full);
        let ask = item(fixture::chunk(1), PART, full, blob.len());
        let reservation = session.reserve_one(model.digest(), ask).await.unwrap();
        memory.stage(0, &blob);
        let stored = session.commit(vec![commit_item(reservation, 0, full, &blob)]).await.unwrap();
        assert!(stored[0].stored, "{stored:?}");
        let (_, read) = session.read(model.digest(), fixture::chunk(1), PART).await.unwrap();
        pattern::assert_same(&read, &blob, "through shared memory");
        // Another session's region does not fit the quota beside this one.
        let second = daemon.local().await.open("second").await.unwrap();
        let id = second.session_id();
        let one_more = tokio::task::spawn_blocking(move || {
            attach_blocking(&socket, id, 2 * CHUNK_BYTES as u64).unwrap().err()
        });
        assert_eq!(one_more.await.unwrap(), Some(Reason::OverQuota));
        assert_eq!(daemon.metric(&over_quota("local")).await, 1);
    }
    // Of the tenant, without: the socket's stream only.
    let daemon = Secure::start(Wish::policy(&tenant(&own, ""))).await;
    let session = daemon.local().await.open_registered(&model).await;
    assert!(!session.opened.shm_offered);
    let (socket, id) = (daemon.path("tenderd.sock"), session.session_id());
    let attached = tokio::task::spawn_blocking(move || attach_blocking(&socket, id, 0).unwrap().err());
    assert_eq!(attached.await.unwrap(), Some(Reason::NotAllowed));
    session.must_store(&model, fixture::chunk(1), PART, fixture::full(&model)).await;
    // Of no tenant: the daemon's own user asks what operators ask, and nothing else.
    let daemon = Secure::start(Wish::policy(&tenant("4294967294", ""))).await;
    let local = daemon.local().await;
    local.stats().await.unwrap();
    assert_eq!(reason(local.open("nobody").await), Reason::NotAllowed);
}
