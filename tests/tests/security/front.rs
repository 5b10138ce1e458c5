//! The front door: how many connections there may be, who is refused before anything is read of it, and what a tenant
//! hears of another one.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tender_proto::v1::session_event::Event;
use tender_proto::{Reason, Refusal};
use tender_tests::fixture;
use tender_tests::raw::{RawClient, RawSession, Target, refusal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tonic::Status;

use crate::{PATIENCE, Secure, Wish, eventually};

const TWO: &str = "[[tenant]]\nname = \"a\"\nidentities = [\"dns:a.test\"]\nallow = [\"read\", \"write\"]\n\
                   [[tenant]]\nname = \"b\"\nidentities = [\"dns:b.test\"]\nallow = [\"read\", \"write\"]\n";

fn turned_away(door: &str, reason: &str) -> String {
    format!("tender_refused_connections_total{{door=\"{door}\",reason=\"{reason}\"}}")
}

/// Waits until the daemon closes the connection.
async fn is_closed(mut stream: impl AsyncRead + Unpin) {
    let mut seen = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut seen)).await;
    // It may also be reset.
    drop(closed.expect("the daemon closes it"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_connects_and_says_nothing_is_closed() {
    let daemon = Secure::start(Wish::default()).await;
    let plain = TcpStream::connect(daemon.tcp_port()).await.unwrap();
    let mut half = TcpStream::connect(daemon.tcp_port()).await.unwrap();
    half.write_all(b"PRI * HTTP").await.unwrap();
    let tls = TcpStream::connect(daemon.tls_port()).await.unwrap();
    let local = UnixStream::connect(daemon.path("tenderd.sock")).await.unwrap();
    tokio::join!(is_closed(plain), is_closed(half), is_closed(tls), is_closed(local));
    assert_eq!(daemon.metric(&turned_away("network", "silent")).await, 3);
    assert_eq!(daemon.metric(&turned_away("local", "silent")).await, 1);
    eventually("places that are free again", async || {
        daemon.metric("tender_connections{door=\"network\"}").await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_something_else_is_closed_at_once() {
    let daemon = Secure::start(Wish::default()).await;
    let mut other = TcpStream::connect(daemon.tcp_port()).await.unwrap();
    other.write_all(b"GET / HTTP/1.1\r\nHost: tenderd\r\n\r\n").await.unwrap();
    is_closed(other).await;
    let counted = turned_away("network", "not_http2");
    eventually("its count", async || daemon.metric(&counted).await == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_who_take_all_places_of_the_network_leave_the_unix_sockets_theirs() {
    let wish = Wish { connections: Some((3, 3)), ..Wish::default() };
    let daemon = Secure::start(wish).await;
    let network = Target::Tcp(daemon.tcp_port());
    let mut inside = Vec::new();
    for _ in 0..3 {
        let client = RawClient::connect(&network).await.unwrap();
        client.ping().await.unwrap();
        inside.push(client);
    }
    is_closed(TcpStream::connect(daemon.tcp_port()).await.unwrap()).await;
    is_closed(TcpStream::connect(daemon.tls_port()).await.unwrap()).await;
    assert_eq!(daemon.metric(&turned_away("network", "full")).await, 2);
    daemon.local().await.open("an engine of this host").await.unwrap();
    for client in &inside {
        client.ping().await.expect("those inside stay");
    }
    inside.pop();
    eventually("a free place", async || match RawClient::connect(&network).await {
        Ok(client) => client.ping().await.is_ok(),
        Err(_) => false,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_host_has_its_part_of_the_places() {
    let daemon = Secure::start(Wish { connections: Some((100, 2)), ..Wish::default() }).await;
    let network = Target::Tcp(daemon.tcp_port());
    let one = RawClient::connect(&network).await.unwrap();
    let two = RawClient::connect(&network).await.unwrap();
    one.ping().await.unwrap();
    two.ping().await.unwrap();
    is_closed(TcpStream::connect(daemon.tcp_port()).await.unwrap()).await;
    assert_eq!(daemon.metric(&turned_away("network", "full_of_peer")).await, 1);
    // All engines of a host may be one user.
    let mut local = Vec::new();
    for _ in 0..5 {
        local.push(daemon.local().await);
    }
    for client in &local {
        client.ping().await.unwrap();
    }
}

/// A call whose message is announced with this length, and of which no byte more ever comes. What the daemon says.
async fn announce<S>(stream: S, call: &str, announced_bytes: Option<u32>) -> Status
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let (held, more) = tokio::sync::mpsc::unbounded_channel::<Result<Frame<Bytes>, Infallible>>();
    if let Some(bytes) = announced_bytes {
        let prefix = [&[0][..], &bytes.to_be_bytes()].concat();
        held.send(Ok(Frame::data(prefix.into()))).unwrap();
    }
    let body = StreamBody::new(tokio_stream::wrappers::UnboundedReceiverStream::new(more));
    let request = Request::post(format!("http://tenderd/tender.v1.{call}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap();
    let answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await;
    let answer: Response<Incoming> = answer.expect("an answer before the message").unwrap();
    drop(held);
    connection.abort();
    Status::from_header_map(answer.headers()).expect("a status without a body")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_refused_before_its_message_is_read() {
    let daemon = Secure::start(Wish::policy(TWO)).await;
    for call in ["Store/Lookup", "Store/Reserve", "Store/Register", "Admin/Reset"] {
        let stream = TcpStream::connect(daemon.tcp_port()).await.unwrap();
        let status = announce(stream, call, Some(1 << 10)).await;
        assert_eq!(refusal(&status).reason, Reason::NotAllowed, "{call}");
    }
    let counted = "tender_access_refusals_total{tenant=\"-\",reason=\"not_allowed\"}";
    assert_eq!(daemon.metric(counted).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_call_with_a_large_message_is_refused_by_its_length() {
    let daemon = Secure::start(Wish::default()).await;
    for (call, bytes) in [
        ("Store/Session", 1 << 20),
        ("Admin/Ping", 1 << 20),
        ("Admin/Reset", 1 << 20),
        ("Store/Put", 8 << 20),
        ("Store/Register", 8 << 20),
    ] {
        let stream = UnixStream::connect(daemon.path("tenderd.sock")).await.unwrap();
        let status = announce(stream, call, Some(bytes)).await;
        assert_eq!(Refusal::from_status(&status).reason, Reason::TooLarge, "{call}: {status:?}");
    }
}

/// The next events of a session but its heartbeats, until one more heartbeat has come.
async fn hears_of_a_reset(session: &mut RawSession) -> bool {
    // One may have been on its way before.
    for _ in 0..2 {
        let event = tokio::time::timeout(PATIENCE, session.events.message()).await.expect("a heartbeat");
        match event.unwrap().and_then(|event| event.event) {
            Some(Event::Heartbeat(_)) => {}
            Some(Event::Reset(_)) => return true,
            other => panic!("{other:?}"),
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_hears_nothing_of_the_resets_of_another() {
    let daemon = Secure::start(Wish::policy(TWO)).await;
    let model = fixture::small("same", 4096);
    let mut a = daemon.client("a.test").await.open_registered(&model).await;
    let client = daemon.client("b.test").await;
    let mut b = client.open_registered(&model).await;
    let mut other = client.open_registered(&fixture::small("other", 4096)).await;
    client.reset(model.digest()).await.unwrap();
    let (a_hears, b_hears, other_hears) =
        tokio::join!(hears_of_a_reset(&mut a), hears_of_a_reset(&mut b), hears_of_a_reset(&mut other));
    assert!(b_hears, "its own namespace");
    assert!(!a_hears, "another tenant's");
    assert!(!other_hears, "one that it has not registered");
    // A reset of everything is everybody's.
    daemon
        .local()
        .await
        .admin
        .clone()
        .reset(tender_proto::v1::ResetRequest { namespace: Bytes::new(), all: true })
        .await
        .unwrap();
    let (a_hears, other_hears) = tokio::join!(hears_of_a_reset(&mut a), hears_of_a_reset(&mut other));
    assert!(a_hears && other_hears);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_policy_nobody_names_a_domain() {
    let daemon = Secure::start(Wish::default()).await;
    let session = daemon.client("engine.test").await.open("a guess").await.unwrap();
    let inside = fixture::small("m", 4096).in_domain("a");
    assert_eq!(crate::reason(session.register(&inside).await), Reason::NotAllowed);
    // Also not an operator.
    let local = daemon.local().await.open("local").await.unwrap();
    assert_eq!(crate::reason(local.register(&inside).await), Reason::NotAllowed);
}
