//! TLS: who cannot get in, and that who can gets the same bytes as everywhere else.

use tender_client::TransportChoice;
use tender_tests::model::ModelEngine;
use tender_tests::raw::{RawClient, Target};

use crate::certs::{Authority, Validity};
use crate::{ClientAuth, NAME, PATIENCE, Secure, Wish, connect, eventually};

/// With TLS 1.3 a client's connection stands before the daemon has looked at its certificate: the first call fails.
async fn must_fail(who: &str, connected: Result<RawClient, tonic::transport::Error>) {
    if let Ok(client) = connected {
        let answer =
            tokio::time::timeout(PATIENCE, client.ping()).await.unwrap_or_else(|_| panic!("{who} waits"));
        answer.expect_err(who);
        client.open(who).await.expect_err(who);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_good_certificate_of_a_known_authority_gets_in() {
    let daemon = Secure::start(Wish::default()).await;
    let good = daemon.issue("engine.test");
    daemon.connect(Some(&good)).await.unwrap().open("good").await.unwrap();

    let stranger = Authority::new();
    must_fail(
        "a certificate of another authority",
        daemon.connect(Some(&stranger.issue(&["engine.test"]))).await,
    )
    .await;
    let expired = daemon.authority.issue_valid(&["engine.test"], Validity::Past);
    must_fail("an expired certificate", daemon.connect(Some(&expired)).await).await;
    must_fail("no certificate", daemon.connect(None).await).await;
    let (port, ca) = (daemon.tls_port(), daemon.authority.pem());
    connect(&port, &stranger.pem(), NAME, Some(&good)).await.expect_err("a daemon of an unknown authority");
    connect(&port, &ca, "other.test", Some(&good)).await.expect_err("a daemon of another name");
    must_fail("a plain client at the TLS port", RawClient::connect(&Target::Tcp(port)).await).await;
    must_fail("a TLS client at the plain port", connect(&daemon.tcp_port(), &ca, NAME, Some(&good)).await)
        .await;
    let failed = "tender_failed_tls_handshakes_total";
    eventually("a count of each", async || daemon.metric(failed).await >= 5).await;
    daemon.connect(Some(&good)).await.unwrap().open("still good").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_client_certificates_the_daemon_still_shows_its_own() {
    let daemon = Secure::start(Wish { client_auth: ClientAuth::None, ..Wish::default() }).await;
    daemon.connect(None).await.unwrap().open("nobody in particular").await.unwrap();
    connect(&daemon.tls_port(), &Authority::new().pem(), NAME, None).await.expect_err("an unknown authority");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_serves_at_the_same_tls_port() {
    let daemon = Secure::start(Wish::default()).await;
    let (port, shown) = (daemon.tls_port(), daemon.issue("engine.test"));
    let daemon = daemon.take_over().await;
    assert_eq!(daemon.tls_port(), port);
    daemon.connect(Some(&shown)).await.unwrap().open("after").await.unwrap();
    must_fail("no certificate", daemon.connect(None).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_read_over_tls_bit_for_bit_what_others_stored() {
    let daemon = Secure::start(Wish::default()).await;
    let config = daemon.client_config(Some(&daemon.issue("engine.test")));
    assert_eq!(config.transport, TransportChoice::Auto);
    let work = move || {
        let prompt: Vec<u32> = (0..400).collect();
        let (writer, reader) = (ModelEngine::new(config.clone(), "tls"), ModelEngine::new(config, "tls"));
        writer.wait_until_up();
        reader.wait_until_up();
        writer.run("writer", &prompt);
        writer.flush();
        // Attention checks every slot of what was loaded.
        let run = reader.run("reader", &prompt);
        assert!(run.loaded_tokens > 0 && run.failed_tokens == 0, "{run:?}");
        assert_eq!(reader.counters().1.transport, "grpc");
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_not_let_in_computes_everything_itself() {
    let daemon = Secure::start(Wish::default()).await;
    let config = daemon.client_config(Some(&Authority::new().issue(&["engine.test"])));
    let work = move || {
        let engine = ModelEngine::new(config, "tls");
        let run = engine.run("outside", &(0..400).collect::<Vec<u32>>());
        assert_eq!((run.loaded_tokens, run.failed_tokens), (0, 0));
        assert_ne!(engine.counters().1.session, "up");
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}
