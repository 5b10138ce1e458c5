//! Garbage on every socket, whole and half valid. Nobody else notices, nothing is kept.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut};
use prost::Message;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use tender_proto::shm::{FdReply, FdRequest};
use tender_proto::v1;
use tender_tests::attach::{FdSocket, attach};
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::raw::{RawSession, Target};
use tender_tests::{conserve, fixture, pattern};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Somebody who uses the daemon all the while.
async fn bystander(daemon: &Daemon) -> (RawSession, tender_proto::Descriptor) {
    let descriptor = fixture::small("bystander", 700);
    (daemon.client().await.open_registered(&descriptor).await, descriptor)
}

async fn still_served(session: &RawSession, descriptor: &tender_proto::Descriptor, n: u64) {
    let full = fixture::full(descriptor);
    session.must_store(descriptor, fixture::chunk(n), fixture::PART, full).await;
    let (_, bytes) = session.read(descriptor.digest(), fixture::chunk(n), fixture::PART).await.unwrap();
    pattern::assert_same(
        &bytes,
        &pattern::blob(descriptor, fixture::chunk(n), fixture::PART, full),
        "bystander",
    );
}

fn noise(rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..3000)];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Random bytes, bare or behind a beginning that a server takes seriously.
fn message(rng: &mut StdRng) -> Vec<u8> {
    let head: &[u8] = match rng.random_range(0..4) {
        0 => b"",
        1 => PREFACE,
        // The preface, empty SETTINGS, and a DATA frame that claims 16 MiB on a stream nobody opened.
        2 => &[PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat(),
        _ => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    };
    [head, &noise(rng)].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn random_and_half_valid_bytes_on_the_grpc_sockets() {
    let daemon = Daemon::start(Setup::default()).await;
    let (session, descriptor) = bystander(&daemon).await;
    let Target::Tcp(tcp) = daemon.tcp() else { panic!("no port") };
    for round in 0..10 {
        let (socket, tcp) = (daemon.socket().to_owned(), tcp.clone());
        let shouting = tokio::task::spawn_blocking(move || {
            let mut rng = StdRng::seed_from_u64(round);
            let mut open: Vec<Box<dyn Write + Send>> = Vec::new();
            for _ in 0..20 {
                open.push(Box::new(UnixStream::connect(&socket).unwrap()));
                open.push(Box::new(std::net::TcpStream::connect(&tcp).unwrap()));
            }
            for stream in &mut open {
                // The daemon may hang up before all is said.
                drop(stream.write_all(&message(&mut rng)));
            }
        });
        still_served(&session, &descriptor, round).await;
        shouting.await.unwrap();
    }
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!((audit.sessions, audit.ready_chunks), (1, 10));
}

/// Valid gRPC calls whose message is not what the method takes.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_the_wrong_kind() {
    let daemon = Daemon::start(Setup::default()).await;
    let (session, descriptor) = bystander(&daemon).await;
    let mut rng = StdRng::seed_from_u64(7);
    for round in 0..200 {
        // The same bytes are read as whichever message the method takes; unknown and damaged fields abound.
        let good = v1::LookupRequest {
            session_id: session.id.clone(),
            namespace: tender_tests::raw::raw_digest(descriptor.digest()),
            chunks: vec![fixture::chunk(1).to_message()],
            ..Default::default()
        };
        let mut bytes = good.encode_to_vec();
        for _ in 0..rng.random_range(1..6) {
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        let mut store = session.client.store.clone();
        let answer = match round % 4 {
            0 => v1::LookupRequest::decode(&bytes[..]).map(|m| (Some(m), None, None)),
            1 => v1::ReserveRequest::decode(&bytes[..]).map(|m| (None, Some(m), None)),
            _ => v1::CommitRequest::decode(&bytes[..]).map(|m| (None, None, Some(m))),
        };
        // What does not even decode cannot be sent by this client; the byte tests above send such.
        let Ok(request) = answer else { continue };
        let status = match request {
            (Some(m), _, _) => store.lookup(m).await.err(),
            (_, Some(m), _) => store.reserve(m).await.err(),
            (_, _, Some(m)) => store.commit(m).await.err(),
            _ => None,
        };
        if let Some(status) = status {
            tender_tests::raw::refusal(&status);
        }
    }
    still_served(&session, &descriptor, 500).await;
    conserve::audit(daemon.engine());
    let (engine, id) = (daemon.engine(), session.session_id());
    drop(session);
    conserve::deserted(engine).await;
    assert!(engine.release(id, &[]).is_err(), "the session is gone");
}

/// A gRPC call whose message is these bytes, whatever the method takes.
#[derive(Clone, Copy, Default)]
struct AsTheyAre;

impl Codec for AsTheyAre {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        *self
    }
    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for AsTheyAre {
    type Item = Vec<u8>;
    type Error = Status;
    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&item);
        Ok(())
    }
}

impl Decoder for AsTheyAre {
    type Item = Vec<u8>;
    type Error = Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).into()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_do_not_decode() {
    let daemon = Daemon::start(Setup::default()).await;
    let (session, descriptor) = bystander(&daemon).await;
    let Target::Tcp(tcp) = daemon.tcp() else { panic!("no port") };
    let channel = Endpoint::from_shared(format!("http://{tcp}")).unwrap().connect().await.unwrap();
    let mut rng = StdRng::seed_from_u64(11);
    let methods =
        ["Session", "Register", "Lookup", "Release", "Reserve", "Commit", "Abort", "Put", "Get", "Nonsense"];
    for (round, method) in methods.iter().cycle().take(200).enumerate() {
        let mut caller = tonic::client::Grpc::new(channel.clone());
        caller.ready().await.unwrap();
        let path = PathAndQuery::try_from(format!("/tender.v1.Store/{method}")).unwrap();
        // An open field of 2^28 bytes in front of noise never decodes.
        let bytes = [&[0x0a, 0xff, 0xff, 0xff, 0x7f][..], &noise(&mut rng)].concat();
        let call = caller.server_streaming(Request::new(bytes), path, AsTheyAre);
        let answer = tokio::time::timeout(Duration::from_secs(10), async {
            match call.await {
                Ok(mut answer) => answer.get_mut().message().await.map(|_| ()),
                Err(status) => Err(status),
            }
        });
        let status = answer.await.expect("an answer").expect_err("garbage is refused");
        assert_ne!(status.code(), Code::Unknown, "round {round}, {method}: {status:?}");
    }
    still_served(&session, &descriptor, 0).await;
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!((audit.sessions, audit.ready_chunks), (1, 1));
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn random_packets_and_foreign_descriptors_on_the_descriptor_socket() {
    let daemon = Daemon::start(Setup::default()).await;
    let (session, descriptor) = bystander(&daemon).await;
    still_served(&session, &descriptor, 0).await;
    let before = open_descriptors();
    let (socket, id) = (daemon.socket().to_owned(), session.session_id());
    let shouting = tokio::task::spawn_blocking(move || {
        let mut rng = StdRng::seed_from_u64(3);
        let good = FdRequest { session: id, staging_bytes: 4096 }.encode();
        for round in 0..100 {
            let line = FdSocket::connect(&socket).unwrap();
            let mut packet = good.to_vec();
            match round % 5 {
                0 => packet = noise(&mut rng)[..].to_vec(),
                1 => packet.truncate(rng.random_range(1..32)),
                2 => packet.push(0),
                3 => packet[rng.random_range(0..24)] ^= 0x40,
                // Right, but with a descriptor that the daemon must close.
                _ => {
                    let file: OwnedFd = tempfile::tempfile().unwrap().into();
                    drop(line.send_with_fd(&good[..31], &file));
                    continue;
                }
            }
            if line.send(&packet).is_err() {
                continue;
            }
            // A typed no or a closed line, never descriptors and never silence.
            let (reply, fds) = line.receive().unwrap_or_default();
            assert!(fds.is_empty(), "round {round}: descriptors for garbage");
            assert!(
                reply.is_empty() || matches!(FdReply::decode(&reply), Some(FdReply::Refused(_))),
                "round {round}: {reply:02x?}"
            );
        }
    });
    shouting.await.unwrap();
    let shared = attach(daemon.socket(), &session, 8192).await;
    assert_eq!(shared.staging_bytes, 8192, "the next honest client is served");
    drop(shared);
    still_served(&session, &descriptor, 1).await;
    let give_up = Instant::now() + Duration::from_secs(10);
    // In-process: the daemon's descriptors are ours. The staging region's own may stay with the session.
    while open_descriptors() > before + 4 {
        assert!(Instant::now() < give_up, "{} descriptors, {before} before", open_descriptors());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    conserve::audit(daemon.engine());
}

/// Connected and silent: others are served as if it were not there.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_block_nobody() {
    let daemon = Daemon::start(Setup::default()).await;
    let silent: Vec<_> = (0..64).map(|_| UnixStream::connect(daemon.socket()).unwrap()).collect();
    let lines: Vec<_> = (0..32).map(|_| FdSocket::connect(daemon.socket()).unwrap()).collect();
    let (session, descriptor) = bystander(&daemon).await;
    still_served(&session, &descriptor, 0).await;
    let shared = attach(daemon.socket(), &session, 4096).await;
    drop((shared, silent, lines));
}
