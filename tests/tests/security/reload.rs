//! Certificates and policies that change under a daemon that runs.

use tender_proto::Reason;
use tender_tests::fixture;

use crate::certs::Authority;
use crate::{NAME, Secure, Wish, connect, eventually, reason, write};

const ONE: &str = "[[tenant]]\nname = \"a\"\nidentities = [\"dns:a.test\"]\nallow = [\"read\", \"write\"]\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_shown_to_new_connections_and_a_bad_one_is_not() {
    let daemon = Secure::start(Wish::default()).await;
    let before = daemon.client("engine.test").await;
    // Clients are still those of the first authority; the daemon's own certificate comes from another one.
    let (next, shown) = (Authority::new(), daemon.issue("engine.test"));
    let (issued, port) = (next.issue(&[NAME]), daemon.tls_port());
    // A half of a pair is refused.
    write(&daemon.path("cert.pem"), &issued.cert);
    let refused = "tender_reloads_total{what=\"certificate\",outcome=\"refused\"}";
    eventually("a refusal", async || daemon.metric(refused).await >= 1).await;
    daemon.connect(Some(&shown)).await.unwrap().ping().await.expect("the old pair is in force");
    write(&daemon.path("key.pem"), &issued.key);
    eventually("the new certificate", async || match connect(&port, &next.pem(), NAME, Some(&shown)).await {
        Ok(client) => client.ping().await.is_ok(),
        Err(_) => false,
    })
    .await;
    before.ping().await.expect("connections stay");
    before.open("before").await.unwrap();
    daemon.connect(Some(&shown)).await.expect_err("the old certificate is no longer shown");
    assert!(daemon.metric("tender_reloads_total{what=\"certificate\",outcome=\"used\"}").await >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_policy_is_in_force_at_once_and_a_bad_one_changes_nothing() {
    let daemon = Secure::start(Wish::policy(ONE)).await;
    let descriptor = fixture::small("m", 4096);
    let a = daemon.client("a.test").await.open_registered(&descriptor).await;
    let b = daemon.client("b.test").await;
    assert_eq!(reason(b.open("b").await), Reason::NotAllowed);
    let policy = daemon.path("policy.toml");
    write(
        &policy,
        &format!("{ONE}[[tenant]]\nname = \"b\"\nidentities = [\"dns:b.test\"]\nallow = [\"fly\"]\n"),
    );
    let refused = "tender_reloads_total{what=\"policy\",outcome=\"refused\"}";
    eventually("a refusal", async || daemon.metric(refused).await >= 1).await;
    a.register(&descriptor).await.expect("the old one is in force");
    assert_eq!(reason(b.open("b").await), Reason::NotAllowed);
    write(
        &policy,
        &format!("{ONE}[[tenant]]\nname = \"b\"\nidentities = [\"dns:b.test\"]\nallow = [\"read\"]\n"),
    );
    eventually("the new policy", async || b.open("b").await.is_ok()).await;
    a.register(&descriptor).await.expect("sessions stay");
    // Who is taken out can do nothing more, session or not.
    write(&policy, "[[tenant]]\nname = \"b\"\nidentities = [\"dns:b.test\"]\nallow = [\"read\"]\n");
    eventually("the end of a tenant", async || a.register(&descriptor).await.is_err()).await;
    assert_eq!(reason(a.register(&descriptor).await), Reason::NotAllowed);
    // Whose domain is another one has to open a new session.
    let session = b.open_registered(&descriptor).await;
    write(
        &policy,
        "[[tenant]]\nname = \"b\"\nidentities = [\"dns:b.test\"]\nshare = \"s\"\nallow = [\"read\"]\n",
    );
    eventually("another domain", async || session.register(&descriptor).await.is_err()).await;
    assert_eq!(reason(session.register(&descriptor).await), Reason::UnknownSession);
}
