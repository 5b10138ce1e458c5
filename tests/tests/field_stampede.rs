//! Many at once: writers and readers of one key (field report 39), and readers of one connection that are not equally
//! fast (part of field report 33's kind).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tender_proto::v1::ChunkState;
use tender_proto::{ChunkId, Descriptor, PartIndex};
use tender_tests::daemon::{Daemon, SLOT_BLOCK_BYTES, Setup};
use tender_tests::raw::{Ask, RawClient, RawSession, collect, get_item, item};
use tender_tests::{conserve, fixture, pattern};
use tokio::task::JoinSet;

const WRITERS: usize = 16;
const KEYS: u64 = 8;
const ROUNDS: u64 = 200;

/// What one writer did with its keys.
#[derive(Default)]
struct Tally {
    stored: usize,
    /// Told that there is no need to before a byte was sent.
    spared: usize,
}

async fn write_all(session: &RawSession, descriptor: &Descriptor, chunks: &[ChunkId]) -> Tally {
    let full = fixture::full(descriptor);
    let mut tally = Tally::default();
    let missing: Vec<_> = session
        .states(descriptor.digest(), chunks)
        .await
        .into_iter()
        .zip(chunks)
        .filter_map(|(state, chunk)| (state == ChunkState::Miss).then_some(*chunk))
        .collect();
    tally.spared += chunks.len() - missing.len();
    let part = |chunk| pattern::blob(descriptor, chunk, fixture::PART, full);
    let items = missing.iter().map(|&chunk| item(chunk, fixture::PART, full, part(chunk).len())).collect();
    let outcomes = session.reserve(descriptor.digest(), items).await.expect("an answer");
    for (outcome, &chunk) in outcomes.iter().zip(&missing) {
        if outcome.reservation_id == 0 {
            assert_ne!(outcome.already(), ChunkState::Unspecified, "there is room for all: {outcome:?}");
            tally.spared += 1;
            continue;
        }
        let frames = session.frames(outcome.reservation_id, full, &part(chunk), 1 << 20);
        let stored = session.put(frames).await.expect("an answer");
        assert!(stored[0].stored && stored[0].chunk_ready, "{stored:?}");
        tally.stored += 1;
    }
    tally
}

#[tokio::test(flavor = "multi_thread")]
async fn field_39_of_many_writers_of_a_key_one_stores_it_and_the_others_are_spared() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = Arc::new(fixture::small("field 39", 256));
    let mut sessions = Vec::new();
    for _ in 0..WRITERS {
        sessions.push(Arc::new(daemon.client().await.open_registered(&descriptor).await));
    }
    for round in 0..ROUNDS {
        let chunks: Vec<_> = (0..KEYS).map(|key| fixture::chunk(round * KEYS + key)).collect();
        let mut writers = JoinSet::new();
        for session in &sessions {
            let (session, descriptor, chunks) =
                (Arc::clone(session), Arc::clone(&descriptor), chunks.clone());
            writers.spawn(async move { write_all(&session, &descriptor, &chunks).await });
        }
        let tallies = writers.join_all().await;
        let (stored, spared) =
            tallies.iter().fold((0, 0), |(stored, spared), t| (stored + t.stored, spared + t.spared));
        assert_eq!(stored, chunks.len(), "one copy of each key in round {round}");
        assert_eq!(stored + spared, WRITERS * chunks.len());
        // A duplicate that begins after READY is spared too.
        let late = write_all(&sessions[0], &descriptor, &chunks).await;
        assert_eq!((late.stored, late.spared), (0, chunks.len()));
    }
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!((audit.ready_chunks, audit.inflight_bytes), (ROUNDS * KEYS, 0));
    let full = fixture::full(&descriptor);
    for n in (0..ROUNDS * KEYS).step_by(97) {
        let (_, bytes) =
            sessions[1].read(descriptor.digest(), fixture::chunk(n), fixture::PART).await.expect("a hit");
        let expected = pattern::blob(&descriptor, fixture::chunk(n), fixture::PART, full);
        pattern::assert_same(&bytes, &expected, "what one of many wrote");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn field_39_parts_of_two_producers_make_one_chunk() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor =
        fixture::descriptor("field 39 parts", vec![fixture::group(16, 4, &[SLOT_BLOCK_BYTES; 4])]);
    let full = fixture::full(&descriptor);
    let producers = [
        daemon.client().await.open_registered(&descriptor).await,
        daemon.client().await.open_registered(&descriptor).await,
    ];
    for (round, order) in [[0, 1, 2, 3], [3, 0, 2, 1], [1, 3, 0, 2]].into_iter().enumerate() {
        let chunk = fixture::chunk(round as u64);
        for (turn, part) in order.into_iter().enumerate() {
            let stored = producers[turn % 2].must_store(&descriptor, chunk, PartIndex(part), full).await;
            assert_eq!(stored.chunk_ready, turn == 3, "READY with the last part, not before");
            // The other one comes too late with the same part.
            let other = &producers[(turn + 1) % 2];
            let bytes = pattern::blob(&descriptor, chunk, PartIndex(part), full);
            let again = item(chunk, PartIndex(part), full, bytes.len());
            let told = other.reserve_one(descriptor.digest(), again).await.expect_err("no need to");
            let state = if turn == 3 { ChunkState::Ready } else { ChunkState::Pending };
            assert_eq!(told.already(), state);
        }
    }
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!((audit.ready_chunks, audit.inflight_bytes), (3, 0));
}

/// Small windows for each stream, so that one that is not read stops; a large one for the connection.
async fn shared_connection(daemon: &Daemon) -> RawClient {
    RawClient::connect_with(&daemon.tcp(), 64 << 10, 8 << 20).await.expect("a connection")
}

#[tokio::test(flavor = "multi_thread")]
async fn field_33_a_slow_reader_does_not_hold_up_a_fast_one_on_its_connection() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("field 33", 256 << 10);
    let full = fixture::full(&descriptor);
    let client = shared_connection(&daemon).await;
    let session = client.open_registered(&descriptor).await;
    let chunks: Vec<_> = (0..4).map(fixture::chunk).collect();
    for &chunk in &chunks {
        session.must_store(&descriptor, chunk, fixture::PART, full).await;
    }
    let found = session.lookup(descriptor.digest(), &chunks, Ask::LEASE).await.unwrap();
    let lease = found.lease.unwrap().id;
    let wanted = (0..4).map(|index| get_item(index, fixture::PART)).collect();
    // Nobody reads this one while the other one reads everything many times.
    let slow = session.get(lease, wanted).await.unwrap();
    let begin = Instant::now();
    let mut longest = Duration::ZERO;
    for round in 0..20 {
        let asked = Instant::now();
        let chunk = chunks[round % chunks.len()];
        let (_, bytes) = session.read(descriptor.digest(), chunk, fixture::PART).await.expect("it is READY");
        let expected = pattern::blob(&descriptor, chunk, fixture::PART, full);
        pattern::assert_same(&bytes, &expected, "what a fast reader got");
        longest = longest.max(asked.elapsed());
    }
    println!(
        "20 reads of 1 MiB beside a reader that stands still: {:?}, longest {longest:?}",
        begin.elapsed()
    );
    // The one that stood still misses nothing while its lease holds.
    let parts = collect(slow, chunks.len()).await.expect("frames");
    for (part, &chunk) in parts.into_iter().zip(&chunks) {
        let expected = pattern::blob(&descriptor, chunk, fixture::PART, full);
        pattern::assert_same(&part.expect("a part").bytes, &expected, "what a slow reader got");
    }
    session.release(&[lease]).await.unwrap();
    conserve::quiet(daemon.engine()).await;
}
