//! A client in a process of its own, for tests that kill it: it gets itself into the state it was asked for, prints
//! `ready` and stays until it is killed. With `keys` it prints the key vectors of field report 38 and ends. With `hostile`
//! it is a daemon that does not keep the contract, and prints its port.

use std::io::{Read, Write};
use std::path::PathBuf;

use tender_proto::ChunkId;
use tender_tests::attach::attach;
use tender_tests::hostile::{Hostile, Manner};
use tender_tests::raw::{Ask, RawClient, Target, item};
use tender_tests::{fixture, keys, pattern};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("usage: keys | SOCKET MODEL BLOCK_BYTES fill|lease");
    let first = next();
    if first == "keys" {
        keys::vectors().iter().for_each(|(_, key)| println!("{key}"));
        return;
    }
    if first == "hostile" {
        let mut number = || next().parse().expect("a number");
        let (part_bytes, coverage_bits) = (number(), number());
        let manner = Manner::named(&next()).expect("a manner");
        let hostile = Hostile::start(manner, part_bytes, coverage_bits).await.expect("a port");
        println!("{}", hostile.address().port());
        return until_left_alone().await;
    }
    let (socket, model, block_bytes, what) = (PathBuf::from(first), next(), next(), next());
    let descriptor = fixture::small(&model, block_bytes.parse().expect("bytes"));
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let client = RawClient::connect(&Target::Unix(socket.clone())).await.expect("a daemon");
    let session = client.open_registered(&descriptor).await;
    let bytes = |chunk: ChunkId| pattern::blob(&descriptor, chunk, fixture::PART, full);
    let size = bytes(fixture::chunk(0)).len();
    // Whatever is held is held until the process dies.
    let mut held: Vec<Box<dyn std::any::Any>> = Vec::new();
    match what.as_str() {
        // Three reservations: one untouched, one staged, one half sent.
        "fill" => {
            let shared = attach(&socket, &session, size as u64).await;
            let items = (0..3).map(|n| item(fixture::chunk(n), fixture::PART, full, size)).collect();
            let outcomes = session.reserve(namespace, items).await.expect("an answer");
            assert!(outcomes.iter().all(|outcome| outcome.reservation_id != 0), "{outcomes:?}");
            shared.stage(0, &bytes(fixture::chunk(1))[..size / 2]);
            let frames =
                session.frames(outcomes[2].reservation_id, full, &bytes(fixture::chunk(2)), size / 4);
            let half = tokio_stream::StreamExt::chain(
                tokio_stream::iter(frames.into_iter().take(2)),
                tokio_stream::pending(),
            );
            let mut store = client.store.clone();
            held.push(Box::new(tokio::spawn(async move { store.put(half).await })));
            held.push(Box::new(shared));
        }
        "lease" => {
            let chunks: Vec<_> = (0..4).map(fixture::chunk).collect();
            let found =
                session.lookup(namespace, &chunks, Ask::LEASE.for_ms(60_000)).await.expect("a lookup");
            assert!(found.lease.is_some(), "nothing to lease");
        }
        other => panic!("unknown task {other}"),
    }
    println!("ready");
    until_left_alone().await;
    drop((held, session));
}

/// Until killed, or until the test is gone and closes our input.
async fn until_left_alone() {
    std::io::stdout().flush().expect("a reader");
    let waiting = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    drop(waiting.await);
}
