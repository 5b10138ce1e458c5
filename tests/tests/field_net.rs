//! Field reports on gRPC and the network: 34. Any size yields correct data or a clean refusal of that call.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use tender_client::TransportChoice;
use tender_proto::limits::{FRAME_PAYLOAD_BYTES, MAX_MESSAGE_BYTES};
use tender_proto::{Descriptor, Reason, v1};
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::model::{ModelEngine, Shape};
use tender_tests::raw::{Ask, RawClient, get_item, refused};
use tender_tests::{conserve, fixture, pattern};

const MIB: u64 = 1 << 20;
const ARENA_BYTES: u64 = 320 * MIB;

/// One block a chunk, so that any size can be had.
fn of_size(bytes: u64) -> Descriptor {
    fixture::descriptor(&format!("field 34, {bytes} bytes"), vec![fixture::group(16, 1, &[bytes])])
}

async fn there_and_back(client: &RawClient, bytes: u64, frame_bytes: usize) {
    let descriptor = of_size(bytes);
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let session = client.open_registered(&descriptor).await;
    let blob = pattern::blob(&descriptor, fixture::chunk(1), fixture::PART, full);
    let ask = tender_tests::raw::item(fixture::chunk(1), fixture::PART, full, blob.len());
    let reservation = session.reserve_one(namespace, ask).await.unwrap();
    let outcome = session.put(session.frames(reservation, full, &blob, frame_bytes)).await.unwrap()[0];
    assert!(outcome.stored, "{bytes} bytes: {outcome:?}");
    let (_, read) = session.read(namespace, fixture::chunk(1), fixture::PART).await.unwrap();
    pattern::assert_same(&read, &blob, &format!("{bytes} bytes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn field_34_every_size_around_the_message_limits_works_both_ways() {
    let daemon = Daemon::start(Setup { arena_bytes: ARENA_BYTES, ..Setup::default() }).await;
    let sizes = [4 * MIB - 1024, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 16 * MIB, 64 * MIB];
    for client in [daemon.tcp_client().await, daemon.client().await] {
        for bytes in sizes {
            there_and_back(&client, bytes, FRAME_PAYLOAD_BYTES).await;
            // Once per size is enough for the largest.
            client.reset(of_size(bytes).digest()).await.unwrap();
        }
    }
    conserve::deserted(daemon.engine()).await;
}

/// The daemon's limit is lowered and the client is as always: it frames to what it is told.
#[tokio::test(flavor = "multi_thread")]
async fn field_34_a_lowered_frame_limit_holds_both_ways() {
    const LIMIT: usize = 100_000;
    let daemon = Daemon::start(Setup { max_frame_bytes: LIMIT, ..Setup::default() }).await;
    let client = daemon.tcp_client().await;
    there_and_back(&client, 3 * MIB + 5, LIMIT).await;
    let descriptor = of_size(3 * MIB + 5);
    let session = client.open_registered(&descriptor).await;
    assert_eq!(session.opened.max_frame_bytes, LIMIT as u64);
    let found = session.lookup(descriptor.digest(), &[fixture::chunk(1)], Ask::LEASE).await.unwrap();
    let lease = found.lease.unwrap().id;
    let mut stream = session.get(lease, vec![get_item(0, fixture::PART)]).await.unwrap();
    while let Some(frame) = stream.message().await.unwrap() {
        assert!(frame.payload.len() <= LIMIT, "a frame of {} bytes", frame.payload.len());
    }
    // The real client too, in both directions.
    let config = daemon.client_config(TransportChoice::Grpc);
    let loaded = tokio::task::spawn_blocking(move || {
        let engine =
            ModelEngine::with_shape(config, "field 34", Shape { cell_bytes: 8 << 10, ..Shape::default() });
        engine.wait_until_up();
        let prompt: Vec<u32> = (0..64).collect();
        engine.run("store", &prompt);
        engine.flush();
        engine.run("load", &prompt).loaded_tokens
    });
    assert_eq!(loaded.await.unwrap(), 60, "seven chunks and one block of the eighth");
    drop((session, client, stream));
    conserve::deserted(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_34_every_size_around_one_frame_works_both_ways() {
    let daemon = Daemon::start(Setup::default()).await;
    let client = daemon.tcp_client().await;
    let frame = FRAME_PAYLOAD_BYTES as u64;
    for bytes in [1, frame - 1, frame, frame + 1, 2 * frame, 2 * frame + 1] {
        there_and_back(&client, bytes, FRAME_PAYLOAD_BYTES).await;
    }
    conserve::deserted(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_34_a_lookup_of_a_hundred_thousand_keys_is_answered() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("field 34 keys", 100);
    let session = daemon.tcp_client().await.open_registered(&descriptor).await;
    session.must_store(&descriptor, fixture::chunk(77_777), fixture::PART, fixture::full(&descriptor)).await;
    let chunks: Vec<_> = (0..100_000).map(fixture::chunk).collect();
    let found = session.lookup(descriptor.digest(), &chunks, Ask::LOCATE).await.unwrap();
    assert_eq!(found.chunks.len(), chunks.len());
    let ready: Vec<_> = (0..)
        .zip(&found.chunks)
        .filter(|(_, c)| c.state() == v1::ChunkState::Ready)
        .map(|(n, _)| n)
        .collect();
    assert_eq!(ready, [77_777]);
    let lease = found.lease.unwrap().id;
    let stream = session.get(lease, vec![get_item(77_777, fixture::PART)]).await.unwrap();
    assert!(tender_tests::raw::collect(stream, 1).await.unwrap()[0].is_ok());
    assert_eq!(session.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    // Leased in full it still fits one message.
    let stored: Vec<_> = (0..1000).map(fixture::chunk).collect();
    for &chunk in &stored {
        session.must_store(&descriptor, chunk, fixture::PART, fixture::full(&descriptor)).await;
    }
    let found = session.lookup(descriptor.digest(), &stored, Ask::LOCATE).await.unwrap();
    assert!(found.chunks.iter().all(|chunk| chunk.parts.len() == 1));
    session.release(&[found.lease.unwrap().id]).await.unwrap();
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_34_a_message_that_is_too_large_fails_that_call_only() {
    let setup = Setup { arena_bytes: ARENA_BYTES, ..Setup::default() };
    let daemon = Daemon::start(setup).await;
    let client = daemon.tcp_client().await;
    let descriptor = of_size(4 * MIB);
    let namespace = descriptor.digest();
    let full = fixture::full(&descriptor);
    let session = client.open_registered(&descriptor).await;
    // The daemon's limit is one frame; the client is told what to frame to.
    assert_eq!(session.opened.max_frame_bytes, FRAME_PAYLOAD_BYTES as u64);
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
    // A long read on the same connection goes on while other calls fail.
    let found = session.lookup(namespace, &[fixture::chunk(1)], Ask::LEASE).await.unwrap();
    let lease = found.lease.unwrap().id;
    let stream = session.get(lease, vec![get_item(0, fixture::PART)]).await.unwrap();

    let blob = pattern::blob(&descriptor, fixture::chunk(2), fixture::PART, full);
    for frame_bytes in [FRAME_PAYLOAD_BYTES + 1, blob.len()] {
        let ask = tender_tests::raw::item(fixture::chunk(2), fixture::PART, full, blob.len());
        let reservation = session.reserve_one(namespace, ask).await.unwrap();
        let reason = match session.put(session.frames(reservation, full, &blob, frame_bytes)).await {
            Ok(outcomes) => refused(outcomes[0].refused).expect("not stored"),
            Err(status) => tender_proto::Refusal::from_status(&status).reason,
        };
        let clean = matches!(reason, Reason::FrameTooLarge | Reason::TooLarge);
        assert!(clean, "frames of {frame_bytes}: {reason}");
        drop(session.abort(&[reservation]).await);
    }
    // A single message above the limit of all messages, on a call that has no frames.
    let chunks = vec![fixture::chunk(1).to_message(); MAX_MESSAGE_BYTES / 30];
    let namespace_bytes = tender_tests::raw::raw_digest(namespace);
    let status = session.lookup_raw(namespace_bytes, chunks, Ask::LOOK).await.unwrap_err();
    let reason = tender_proto::Refusal::from_status(&status).reason;
    assert!(matches!(reason, Reason::TooLarge | Reason::TooMany), "{status:?}");

    let parts = tender_tests::raw::collect(stream, 1).await.unwrap();
    let expected = pattern::blob(&descriptor, fixture::chunk(1), fixture::PART, full);
    pattern::assert_same(&parts[0].as_ref().unwrap().bytes, &expected, "the stream beside the failures");
    assert_eq!(session.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    // It is a miss, and can still be stored the right way.
    assert_eq!(session.states(namespace, &[fixture::chunk(2)]).await, [v1::ChunkState::Miss]);
    there_and_back(&client, 4 * MIB - 1, 64 << 10).await;
    conserve::quiet(daemon.engine()).await;
}

/// The reverse: the client's limit is lower than what the daemon would send.
#[tokio::test(flavor = "multi_thread")]
async fn field_34_a_client_with_a_lower_limit_fails_that_call_only() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = of_size(4 * MIB);
    let session = daemon.tcp_client().await.open_registered(&descriptor).await;
    let full = fixture::full(&descriptor);
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
    let found = session.lookup(descriptor.digest(), &[fixture::chunk(1)], Ask::LEASE).await.unwrap();
    let lease = found.lease.unwrap().id;
    let mut narrow = session.client.store.clone().max_decoding_message_size(64 << 10);
    let request = v1::GetRequest {
        session_id: session.id.clone(),
        lease_id: lease,
        items: vec![get_item(0, fixture::PART)],
    };
    let mut stream = narrow.get(request).await.unwrap().into_inner();
    let status = stream.message().await.unwrap_err();
    assert_eq!(tender_proto::Refusal::from_status(&status).reason, Reason::TooLarge, "{status:?}");
    drop(stream);
    // The session, its lease and the connection are as before.
    let stream = session.get(lease, vec![get_item(0, fixture::PART)]).await.unwrap();
    assert!(tender_tests::raw::collect(stream, 1).await.unwrap()[0].is_ok());
    assert_eq!(session.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    conserve::quiet(daemon.engine()).await;
}
