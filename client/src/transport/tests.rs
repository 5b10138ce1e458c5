//! One suite over both transports, against a daemon that keeps the contract or breaks it on demand.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tender_proto::{
    BlocksPerChunk, ChainHash, ChunkId, ContentDigest, Coverage, Descriptor, Group, GroupIndex, GroupKind,
    NamespaceDigest, PartIndex, RankGeometry, Reason,
};

use super::calls::{ChunkAnswer, LookupAsk, ReserveAnswer, ReserveAsk};
use super::{ReadAsk, ReadItem, StagedPart, TransportKind};
use crate::client::{Client, Pace, Purpose};
use crate::config::{ClientConfig, TransportChoice};
use crate::fake::{FakeDaemon, Trick};
use crate::lease::HeldLease;
use crate::session::Session;

const BOTH: [TransportChoice; 2] = [TransportChoice::Shm, TransportChoice::Grpc];
const PART: PartIndex = PartIndex(0);

/// What reached the sink of each item, and how the item ended.
type Read = (Vec<Option<Vec<u8>>>, Vec<Result<(), Reason>>);

struct Rig {
    daemon: FakeDaemon,
    client: Client,
    descriptor: Arc<Descriptor>,
    namespace: NamespaceDigest,
    session: Arc<Session>,
}

impl Rig {
    fn start(transport: TransportChoice, block_bytes: u64, blocks_per_chunk: u32) -> Self {
        let daemon = FakeDaemon::start();
        let mut config = ClientConfig::new(daemon.address.clone());
        config.transport = transport;
        config.verify_shm_reads = true;
        config.staging_bytes = bytesize::ByteSize::mib(4);
        let group = Group::new(
            GroupKind::FullAttention,
            NonZeroU32::new(16).unwrap(),
            BlocksPerChunk::new(blocks_per_chunk).unwrap(),
            None,
            vec![block_bytes],
        );
        let descriptor = Arc::new(Descriptor {
            model: "m".into(),
            weights: "w".into(),
            kv_dtype: "float32".into(),
            quantisation: "none".into(),
            groups: vec![group.unwrap()],
            page_format: "HNC".into(),
            layout_fingerprint: [1; 32],
            ranks: RankGeometry::SINGLE,
            key_chain_version: 1,
            domain: String::new(),
        });
        let client = Client::new(config, Purpose::Data).unwrap();
        let namespace = client.register(Arc::clone(&descriptor));
        assert!(client.wait_until_up(Duration::from_secs(20)));
        let session = client.session(namespace).unwrap();
        let expected =
            if transport == TransportChoice::Shm { TransportKind::Shm } else { TransportKind::Grpc };
        assert_eq!(session.transport.as_ref().unwrap().kind(), expected);
        assert_eq!(client.counters().transport, expected.name());
        Self { daemon, client, descriptor, namespace, session }
    }

    fn coverage(&self, bits: u64) -> Coverage {
        let blocks = self.descriptor.groups[0].blocks_per_chunk;
        Coverage::new(bits & Coverage::full(blocks).bits(), blocks).unwrap()
    }

    fn store(&self, parts: &[(ChunkId, Coverage, Vec<u8>)]) -> Vec<Result<bool, Reason>> {
        let transport = self.session.transport.as_ref().unwrap();
        let asks: Vec<_> = parts
            .iter()
            .map(|(chunk, coverage, bytes)| ReserveAsk {
                chunk: *chunk,
                part: PART,
                coverage: *coverage,
                bytes: bytes.len() as u64,
            })
            .collect();
        let reserve = self.session.calls.reserve(self.namespace, 0, &asks);
        let (answers, _) = self.client.ask_blocking(&self.session, soon(), Pace::Quick, reserve).unwrap();
        let staged = parts.iter().zip(answers).map(|((_, coverage, bytes), answer)| {
            let ReserveAnswer::Reserved(reservation) = answer else { panic!("{answer:?}") };
            let mut slot = transport.staging().take(bytes.len() as u64).unwrap();
            slot.fill().copy_from_slice(bytes);
            StagedPart { reservation, coverage: *coverage, digest: ContentDigest::of(bytes), slot }
        });
        let outcomes = transport.store(&self.client, &self.session, staged.collect(), soon());
        outcomes.into_iter().map(|outcome| outcome.map(|stored| stored.chunk_ready)).collect()
    }

    /// Reads parts that were stored with these coverages.
    fn read(&self, wanted: &[(ChunkId, Coverage)], deadline: Instant) -> Result<Read, Reason> {
        let transport = self.session.transport.as_ref().unwrap();
        let chunks: Vec<_> = wanted.iter().map(|(chunk, _)| *chunk).collect();
        let ask = LookupAsk { lease: Duration::from_secs(10), locate: transport.locates(), fetch: false };
        let lookup = self.session.calls.lookup(&self.descriptor, self.namespace, &chunks, ask);
        let answer = self.client.ask_blocking(&self.session, deadline, Pace::Quick, lookup)?;
        let Some(grant) = answer.lease else { return Err(Reason::NeverStored) };
        let lease = HeldLease::new(&self.client, &self.session, grant);
        let items: Vec<_> = wanted
            .iter()
            .zip(&answer.chunks)
            .enumerate()
            .map(|(i, ((_, coverage), answer))| {
                let ChunkAnswer::Ready { places, .. } = answer else { panic!("{answer:?}") };
                ReadItem {
                    chunk_index: u32::try_from(i).unwrap(),
                    part: PART,
                    coverage: *coverage,
                    bytes: self.descriptor.groups[0].part_bytes(PART, *coverage).unwrap(),
                    place: places.first().copied(),
                }
            })
            .collect();
        let ask = ReadAsk { lease: lease.id(), items, deadline };
        let mut seen = vec![Vec::new(); ask.items.len()];
        let mut sink = |i: usize, offset_bytes, piece: &[u8]| {
            assert_eq!(offset_bytes, seen[i].len() as u64, "in order and without gaps");
            seen[i].extend_from_slice(piece);
            assert!(seen[i].len() as u64 <= ask.items[i].bytes, "never more than the part has");
            Ok(())
        };
        let results = transport.read(&self.client, &self.session, &ask, &mut sink);
        // Only what is said to be good may be looked at.
        let seen = seen.into_iter().zip(&results).map(|(bytes, good)| good.ok().map(|()| bytes)).collect();
        if lease.release(deadline, &[])? { Ok((seen, results)) } else { Err(Reason::LeaseExpired) }
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn chunk(n: usize) -> ChunkId {
    ChunkId { group: GroupIndex(0), hash: ChainHash::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes()) }
}

fn bytes_of(n: usize, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn what_is_stored_is_read_bit_for_bit(
        block_bytes in 1u64..70_000,
        blocks_per_chunk in 1u32..=8,
        bits in proptest::collection::vec(1u64.., 1..8),
    ) {
        for transport in BOTH {
            let rig = Rig::start(transport, block_bytes, blocks_per_chunk);
            let parts: Vec<_> = bits
                .iter()
                .enumerate()
                .map(|(n, &bits)| {
                    // At least one block: a store of none is no store.
                    let coverage = rig.coverage(bits).with(0);
                    (chunk(n), coverage, bytes_of(n, block_bytes * u64::from(coverage.count())))
                })
                .collect();
            for result in rig.store(&parts) {
                prop_assert_eq!(result, Ok(true));
            }
            prop_assert_eq!(rig.daemon.stored(), parts.len());
            let wanted: Vec<_> = parts.iter().map(|(chunk, coverage, _)| (*chunk, *coverage)).collect();
            let (seen, results) = rig.read(&wanted, soon()).unwrap();
            prop_assert!(results.iter().all(Result::is_ok));
            for ((_, _, bytes), seen) in parts.iter().zip(&seen) {
                prop_assert_eq!(Some(bytes), seen.as_ref());
            }
            prop_assert_eq!(rig.daemon.leases(), 0);
            let staging = rig.session.transport.as_ref().unwrap().staging();
            wait_for(|| staging.taken_bytes() == 0);
        }
    }
}

fn wait_for(mut done: impl FnMut() -> bool) {
    let deadline = soon();
    while !done() {
        assert!(Instant::now() < deadline, "it never came");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn one_part(rig: &Rig) -> Vec<(ChunkId, Coverage)> {
    let full = rig.coverage(u64::MAX);
    assert_eq!(rig.store(&[(chunk(1), full, bytes_of(1, 20_000))]), [Ok(true)]);
    vec![(chunk(1), full)]
}

#[test]
fn nothing_of_a_lying_daemon_counts() {
    for transport in BOTH {
        let over_network = transport == TransportChoice::Grpc;
        for trick in
            [Trick::OtherLength, Trick::OtherBytes, Trick::OutOfRange, Trick::NothingButOk, Trick::CutAt(60)]
        {
            if trick == Trick::CutAt(60) && !over_network {
                continue;
            }
            let rig = Rig::start(transport, 5_000, 4);
            let wanted = one_part(&rig);
            rig.daemon.play(trick);
            let (seen, results) = rig.read(&wanted, soon()).unwrap();
            assert_eq!(seen, [None], "{transport:?} {trick:?}");
            assert!(results[0].is_err(), "{transport:?} {trick:?}");
            // The next read is as good as ever.
            rig.daemon.play(Trick::None);
            let (seen, results) = rig.read(&wanted, soon()).unwrap();
            assert_eq!((seen, results), (vec![Some(bytes_of(1, 20_000))], vec![Ok(())]));
        }
    }
}

#[test]
fn answers_that_break_the_contract_are_refused_whole() {
    for trick in [Trick::FewerAnswers, Trick::WildCoverage] {
        let rig = Rig::start(TransportChoice::Grpc, 5_000, 4);
        let wanted = one_part(&rig);
        rig.daemon.play(trick);
        let reason = rig.read(&wanted, soon()).unwrap_err();
        assert!(matches!(reason, Reason::Internal | Reason::BadCoverage), "{trick:?}: {reason}");
    }
}

#[test]
fn a_stalled_daemon_costs_no_more_than_the_deadline() {
    for transport in BOTH {
        let rig = Rig::start(transport, 5_000, 4);
        let wanted = one_part(&rig);
        rig.daemon.play(Trick::Stall);
        let start = Instant::now();
        let late = rig.read(&wanted, start + Duration::from_millis(100));
        assert_eq!(late.unwrap_err(), Reason::Deadline);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn an_unanswered_commit_keeps_its_slot_until_the_session_ends() {
    let rig = Rig::start(TransportChoice::Shm, 5_000, 4);
    let transport = Arc::clone(rig.session.transport.as_ref().unwrap());
    let ask = ReserveAsk { chunk: chunk(1), part: PART, coverage: rig.coverage(1), bytes: 5_000 };
    let reserve = rig.session.calls.reserve(rig.namespace, 0, std::slice::from_ref(&ask));
    let (answers, _) = rig.client.ask_blocking(&rig.session, soon(), Pace::Quick, reserve).unwrap();
    let ReserveAnswer::Reserved(reservation) = answers[0] else { panic!() };
    let slot = transport.staging().take(5_000).unwrap();
    let digest = ContentDigest::of(slot.as_ref());
    let staged = StagedPart { reservation, coverage: ask.coverage, digest, slot };
    rig.daemon.play(Trick::Stall);
    let soon = Instant::now() + Duration::from_millis(50);
    let outcomes = transport.store(&rig.client, &rig.session, vec![staged], soon);
    assert!(matches!(outcomes[..], [Err(Reason::Deadline)]));
    assert_eq!(transport.staging().taken_bytes(), 8192);
}

#[test]
fn a_lost_session_fails_what_is_under_way_and_comes_back() {
    for transport in BOTH {
        let rig = Rig::start(transport, 5_000, 4);
        let wanted = one_part(&rig);
        rig.daemon.play(Trick::Stall);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| rig.read(&wanted, start + Duration::from_secs(60)).unwrap_err());
            wait_for(|| rig.daemon.state.lookups.load(std::sync::atomic::Ordering::Relaxed) > 0);
            rig.daemon.end_sessions();
            assert_eq!(reading.join().unwrap(), Reason::Unreachable);
        });
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(rig.session.has_ended());
        rig.daemon.play(Trick::None);
        assert!(rig.client.wait_until_up(Duration::from_secs(20)));
        let again = rig.client.session(rig.namespace).unwrap();
        assert!(!Arc::ptr_eq(&again, &rig.session));
        assert!(rig.client.counters().sessions >= 2);
    }
}

#[test]
fn a_daemon_of_another_version_is_not_asked_again_and_again() {
    let daemon = FakeDaemon::start();
    daemon.play(Trick::OtherVersion);
    let client = Client::new(ClientConfig::new(daemon.address.clone()), Purpose::Lookups).unwrap();
    wait_for(|| client.counters().session == "refused");
    assert_eq!(client.refusal().unwrap().reason, Reason::VersionMismatch);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(client.counters().session, "refused");
}

#[test]
fn a_client_without_a_daemon_answers_at_once() {
    let client =
        Client::new(ClientConfig::new("unix:/nonexistent/t.sock".parse().unwrap()), Purpose::Data).unwrap();
    let start = Instant::now();
    assert_eq!(client.session(NamespaceDigest::from_bytes([0; 32])).unwrap_err(), Reason::Unreachable);
    assert_eq!(client.counters().transport, "none");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(!client.wait_until_up(Duration::from_millis(50)));
}
