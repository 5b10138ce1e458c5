//! What was stored comes back bit for bit, whichever way it went in and whichever way it comes out.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_proto::{BlocksPerChunk, ChunkId, Coverage, Descriptor, PartIndex, v1};
use tender_tests::attach::{Attachment, attach};
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::raw::{Ask, RawSession, collect, get_item};
use tender_tests::{conserve, fixture, pattern};

const STAGING_BYTES: u64 = 4 << 20;

/// One client with both ways open.
struct Party {
    session: RawSession,
    shared: Attachment,
}

impl Party {
    async fn new(daemon: &Daemon, descriptor: &Descriptor) -> Self {
        let session = daemon.client().await.open_registered(descriptor).await;
        let shared = attach(daemon.socket(), &session, STAGING_BYTES).await;
        Self { session, shared }
    }
    async fn remote(daemon: &Daemon, descriptor: &Descriptor) -> RawSession {
        daemon.tcp_client().await.open_registered(descriptor).await
    }
}

fn random_coverage(rng: &mut StdRng, blocks: BlocksPerChunk) -> Coverage {
    let full = Coverage::full(blocks);
    match rng.random_range(0..3) {
        0 => full,
        1 => Coverage::empty(blocks).with(blocks.get() - 1),
        _ => Coverage::new(rng.random::<u64>() & full.bits(), blocks)
            .unwrap()
            .with(rng.random_range(0..blocks.get())),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ways_are_bit_exact_for_random_geometry() {
    let daemon = Daemon::start(Setup::default()).await;
    for seed in 0..40u64 {
        let mut rng = StdRng::seed_from_u64(seed);
        let parts: Vec<u64> = (0..rng.random_range(1..=3)).map(|_| rng.random_range(1..=9000)).collect();
        let blocks = rng.random_range(1..=64);
        let group = fixture::group(rng.random_range(1..=64), blocks, &parts);
        let descriptor = fixture::descriptor(&format!("seed {seed}"), vec![group]);
        let namespace = descriptor.digest();
        let writer = Party::new(&daemon, &descriptor).await;
        let far_writer = Party::remote(&daemon, &descriptor).await;
        let coverage = random_coverage(&mut rng, descriptor.groups[0].blocks_per_chunk);
        let chunk = fixture::chunk(seed);
        for part in (0..u16::try_from(parts.len()).unwrap()).map(PartIndex) {
            let states = far_writer.states(namespace, &[chunk]).await;
            assert_ne!(states, [v1::ChunkState::Ready], "ready before the last part, seed {seed}");
            let bytes = pattern::blob(&descriptor, chunk, part, coverage);
            let outcome = if rng.random() {
                writer.shared.store(&writer.session, namespace, chunk, part, coverage, &bytes).await
            } else {
                far_writer.store(namespace, chunk, part, coverage, &bytes).await
            };
            assert!(outcome.unwrap().stored, "seed {seed}");
        }
        check_everywhere(&daemon, &descriptor, chunk, coverage, seed).await;
    }
    assert_eq!(conserve::deserted(daemon.engine()).await.ready_chunks, 40);
}

async fn check_everywhere(
    daemon: &Daemon,
    descriptor: &Descriptor,
    chunk: ChunkId,
    coverage: Coverage,
    seed: u64,
) {
    let namespace = descriptor.digest();
    let near = Party::new(daemon, descriptor).await;
    let far = Party::remote(daemon, descriptor).await;
    let parts = u16::try_from(descriptor.groups[0].parts()).unwrap();
    for part in (0..parts).map(PartIndex) {
        let expected = pattern::blob(descriptor, chunk, part, coverage);
        for (way, read) in [
            ("shared memory", near.shared.read(&near.session, namespace, chunk, part).await),
            ("unix stream", near.session.read(namespace, chunk, part).await),
            ("tcp stream", far.read(namespace, chunk, part).await),
        ] {
            let (bits, bytes) = read.unwrap();
            assert_eq!(bits, coverage.bits(), "{way}, seed {seed}");
            pattern::assert_same(&bytes, &expected, &format!("{way}, seed {seed}, part {part}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_parts_come_in_the_order_asked_for() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::descriptor("order", vec![fixture::group(16, 4, &[1000, 3000])]);
    let namespace = descriptor.digest();
    let session = daemon.tcp_client().await.open_registered(&descriptor).await;
    let full = fixture::full(&descriptor);
    let chunks: Vec<_> = (0..20).map(fixture::chunk).collect();
    for &chunk in &chunks {
        session.must_store(&descriptor, chunk, PartIndex(0), full).await;
        assert!(session.must_store(&descriptor, chunk, PartIndex(1), full).await.chunk_ready);
    }
    let found = session.lookup(namespace, &chunks, Ask::LEASE).await.unwrap();
    let lease = found.lease.unwrap().id;
    let mut rng = StdRng::seed_from_u64(1);
    let wanted: Vec<(u32, PartIndex)> =
        (0..60).map(|_| (rng.random_range(0..20), PartIndex(rng.random_range(0..2)))).collect();
    let items = wanted.iter().map(|&(index, part)| get_item(index, part)).collect();
    let parts = collect(session.get(lease, items).await.unwrap(), wanted.len()).await.unwrap();
    for (&(index, part), read) in wanted.iter().zip(parts) {
        let expected = pattern::blob(&descriptor, chunks[index as usize], part, full);
        pattern::assert_same(&read.unwrap().bytes, &expected, "an item of a long Get");
    }
    assert_eq!(session.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wider_coverage_replaces_a_narrower_one_and_never_the_other_way() {
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("wider", 500);
    let namespace = descriptor.digest();
    let session = daemon.client().await.open_registered(&descriptor).await;
    let chunk = fixture::chunk(1);
    let full = fixture::full(&descriptor);
    let half = Coverage::new(0b0011, full.blocks()).unwrap();
    session.must_store(&descriptor, chunk, fixture::PART, half).await;
    session.must_store(&descriptor, chunk, fixture::PART, full).await;
    let refused = session.store(namespace, chunk, fixture::PART, half, &[0; 1000]).await.unwrap_err();
    assert_eq!(refused.already(), v1::ChunkState::Ready);
    let (bits, bytes) = session.read(namespace, chunk, fixture::PART).await.unwrap();
    assert_eq!(bits, full.bits());
    pattern::assert_same(
        &bytes,
        &pattern::blob(&descriptor, chunk, fixture::PART, full),
        "the wider version",
    );
    let audit = conserve::quiet(daemon.engine()).await;
    assert_eq!(audit.used_bytes, 4096, "the narrower version's memory came back");
}
