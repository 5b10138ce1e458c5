//! Bad input: a typed refusal with words a person can act on, nothing stored, nobody else disturbed, and a
//! counter.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::sync::Arc;

use bytes::Bytes;
use tender_client::layout::{LayerDesc, prove};
use tender_client::{ClientError, TransportChoice, WorkerSide};
use tender_daemon::engine::Audit;
use tender_proto::limits::{MAX_BATCH_CHUNKS, PROTOCOL_VERSION};
use tender_proto::{Coverage, Descriptor, GroupIndex, PartIndex, Reason, v1};
use tender_tests::attach::{Attachment, attach, attach_blocking, commit_item};
use tender_tests::daemon::{Daemon, Setup, http_get};
use tender_tests::mixed::{Mixed, full, scheduled, sliding, tokens};
use tender_tests::oracle::groups::TensorShape;
use tender_tests::oracle::memory::Memory;
use tender_tests::oracle::place::Arrangement;
use tender_tests::oracle::truth::Truth;
use tender_tests::raw::{Ask, RawSession, digest, get_item, item, raw_digest, reason, refused};
use tender_tests::{conserve, fixture, pattern};

const BLOCK_BYTES: u64 = 1000;
const PART_BYTES: usize = 4000;
const STAGING_BYTES: u64 = 1 << 20;

/// A daemon, the client that misbehaves, and one that must not notice.
struct Scene {
    daemon: Daemon,
    descriptor: Descriptor,
    session: RawSession,
    shared: Attachment,
    bystander: RawSession,
    // A lease and a reservation of the bystander, held all the time.
    lease: u64,
    reservation: u64,
    before: Audit,
}

impl Scene {
    async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    async fn with(setup: Setup) -> Self {
        let daemon = Daemon::start(setup).await;
        let descriptor = fixture::small("bad input", BLOCK_BYTES);
        let full = fixture::full(&descriptor);
        let bystander = daemon.client().await.open_registered(&descriptor).await;
        bystander.must_store(&descriptor, fixture::chunk(100), fixture::PART, full).await;
        let found = bystander.lookup(descriptor.digest(), &[fixture::chunk(100)], Ask::LEASE).await.unwrap();
        let lease = found.lease.unwrap().id;
        let ask = item(fixture::chunk(101), fixture::PART, full, PART_BYTES);
        let reservation = bystander.reserve_one(descriptor.digest(), ask).await.unwrap();
        let session = daemon.client().await.open_registered(&descriptor).await;
        let shared = attach(daemon.socket(), &session, STAGING_BYTES).await;
        let before = conserve::audit(daemon.engine());
        Self { daemon, descriptor, session, shared, bystander, lease, reservation, before }
    }

    fn full(&self) -> Coverage {
        fixture::full(&self.descriptor)
    }
    /// The good reservation that each bad one differs from by one thing.
    fn good(&self) -> v1::ReserveItem {
        item(fixture::chunk(1), fixture::PART, self.full(), PART_BYTES)
    }
    async fn reserve(&self, ask: v1::ReserveItem) -> v1::ReserveOutcome {
        self.session.reserve(self.descriptor.digest(), vec![ask]).await.unwrap()[0]
    }
    async fn reserved(&self) -> u64 {
        self.session.reserve_one(self.descriptor.digest(), self.good()).await.unwrap()
    }

    /// The refusals of each of these reasons have grown by this many; nothing is stored or held that was not
    /// before; and whoever else is there can finish what it began.
    async fn settle(self, counted: &[(Reason, u64)]) {
        for &(reason, at_least) in counted {
            let count = self.session.client.refused(reason).await;
            assert!(count >= at_least, "{reason}: counted {count}, refused {at_least}");
        }
        let (_, metrics) = http_get(self.daemon.admin(), "/metrics").await.unwrap();
        for (reason, _) in counted {
            let line = format!("reason=\"{}\"", reason.label());
            let shown = metrics.lines().any(|l| l.starts_with("tender_refusals") && l.contains(&line));
            assert!(shown, "{reason} is not among the metrics");
        }
        let before = self.before;
        conserve::until(self.daemon.engine(), "all is as before", |now| {
            (now.used_bytes, now.reservations, now.writers, now.pins)
                == (before.used_bytes, before.reservations, before.writers, before.pins)
                && now.ready_chunks == before.ready_chunks
        })
        .await;
        let chunk = fixture::chunk(101);
        let bytes = pattern::blob(&self.descriptor, chunk, fixture::PART, self.full());
        let frames = self.bystander.frames(self.reservation, self.full(), &bytes, bytes.len().div_ceil(3));
        assert!(self.bystander.put(frames).await.unwrap()[0].stored, "the bystander was disturbed");
        assert_eq!(self.bystander.release(&[self.lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
        let (_, read) = self.bystander.read(self.descriptor.digest(), chunk, fixture::PART).await.unwrap();
        pattern::assert_same(&read, &bytes, "the bystander's chunk");
        // The misbehaving session itself goes on too.
        self.session.must_store(&self.descriptor, fixture::chunk(1), fixture::PART, self.full()).await;
        conserve::quiet(self.daemon.engine()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_that_are_wrong_or_missing() {
    let scene = Scene::new().await;
    for bytes in [0, 1, 3999, 4001, 8000, u64::MAX] {
        let answer = scene.reserve(v1::ReserveItem { bytes, ..scene.good() }).await;
        assert_eq!(refused(answer.refused), Some(Reason::WrongSize), "{bytes} bytes");
    }
    // The commit repeats what was reserved, or is refused.
    let bytes = pattern::blob(&scene.descriptor, fixture::chunk(1), fixture::PART, scene.full());
    scene.shared.stage(0, &bytes);
    for wrong in [0, 3999, 4001, u64::MAX] {
        let good = commit_item(scene.reserved().await, 0, scene.full(), &bytes);
        let answer = scene.session.commit(vec![v1::CommitItem { bytes: wrong, ..good }]).await.unwrap();
        assert_eq!(refused(answer[0].refused), Some(Reason::WrongSize), "{wrong} bytes");
        assert!(!answer[0].stored && !answer[0].chunk_ready);
        drop(scene.session.abort(&[good_id(&answer)]).await);
    }
    // Fewer frames and more frames than were reserved.
    let short = scene.session.frames(scene.reserved().await, scene.full(), &bytes[..3000], 1000);
    let answer = scene.session.put(short).await.unwrap();
    assert_eq!(refused(answer[0].refused), Some(Reason::WrongSize));
    let long = scene.session.frames(scene.reserved().await, scene.full(), &[&bytes[..], &[1]].concat(), 1000);
    assert_eq!(put_reason(&scene, long).await, Reason::WrongSize);
    scene.settle(&[(Reason::WrongSize, 12)]).await;
}

fn good_id(answer: &[v1::StoreOutcome]) -> u64 {
    answer[0].reservation_id
}

/// The reason of a put, whether it is told as an outcome or as the end of the call.
async fn put_reason(scene: &Scene, frames: Vec<v1::PutFrame>) -> Reason {
    match scene.session.put(frames).await {
        Ok(outcomes) => {
            assert!(outcomes.iter().all(|outcome| !outcome.stored), "{outcomes:?}");
            refused(outcomes[0].refused).expect("a reason")
        }
        Err(status) => tender_tests::raw::refusal(&status).reason,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn coverage_that_is_empty_outside_the_chunk_or_does_not_fit() {
    let scene = Scene::new().await;
    for (coverage, bytes) in [(0, 4000), (0, 0), (0b1_0000, 1000), (u64::MAX, 64_000)] {
        let answer = scene.reserve(v1::ReserveItem { coverage, bytes, ..scene.good() }).await;
        assert_eq!(refused(answer.refused), Some(Reason::BadCoverage), "coverage {coverage:#b}");
    }
    // Three blocks claimed, four blocks' bytes: a size that does not fit the coverage.
    let answer = scene.reserve(v1::ReserveItem { coverage: 0b0111, ..scene.good() }).await;
    assert_eq!(refused(answer.refused), Some(Reason::WrongSize));
    // A commit that claims other blocks than were reserved.
    let bytes = pattern::blob(&scene.descriptor, fixture::chunk(1), fixture::PART, scene.full());
    scene.shared.stage(0, &bytes);
    let good = commit_item(scene.reserved().await, 0, scene.full(), &bytes);
    let answer = scene.session.commit(vec![v1::CommitItem { coverage: 0b0111, ..good }]).await.unwrap();
    assert_eq!(refused(answer[0].refused), Some(Reason::BadCoverage));
    drop(scene.session.abort(&[good_id(&answer)]).await);
    let mut frames = scene.session.frames(scene.reserved().await, scene.full(), &bytes, 2000);
    frames[1].coverage = 0b0111;
    assert_eq!(put_reason(&scene, frames).await, Reason::BadCoverage);
    scene.settle(&[(Reason::BadCoverage, 6), (Reason::WrongSize, 1)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_or_group_out_of_range() {
    let scene = Scene::new().await;
    for part in [1, 7, u32::from(u16::MAX), 1 << 16, u32::MAX] {
        let answer = scene.reserve(v1::ReserveItem { part, ..scene.good() }).await;
        assert_eq!(refused(answer.refused), Some(Reason::PartOutOfRange), "part {part}");
    }
    for group in [1, 255, 1 << 16, u32::MAX] {
        let chunk = v1::ChunkId { group, ..fixture::chunk(1).to_message() };
        let ask = v1::ReserveItem { chunk: Some(chunk.clone()), ..scene.good() };
        assert_eq!(batch_reason(&scene, ask).await, Reason::GroupOutOfRange, "group {group}");
        let namespace = raw_digest(scene.descriptor.digest());
        match scene.session.lookup_raw(namespace, vec![chunk], Ask::LOOK).await {
            Ok(answer) => assert_eq!(refused(answer.chunks[0].reason), Some(Reason::GroupOutOfRange)),
            Err(status) => {
                assert_eq!(tender_tests::raw::refusal(&status).reason, Reason::GroupOutOfRange);
            }
        }
    }
    let found =
        scene.session.lookup(scene.descriptor.digest(), &[fixture::chunk(100)], Ask::LEASE).await.unwrap();
    let lease = found.lease.unwrap().id;
    for (item, expected) in [
        (get_item(0, PartIndex(1)), Reason::PartOutOfRange),
        (v1::GetItem { chunk_index: 0, part: u32::MAX }, Reason::PartOutOfRange),
        (get_item(1, fixture::PART), Reason::Malformed),
    ] {
        let found = match scene.session.get(lease, vec![item]).await {
            Err(status) => tender_tests::raw::refusal(&status).reason,
            Ok(stream) => match tender_tests::raw::collect(stream, 1).await {
                Err(status) => tender_tests::raw::refusal(&status).reason,
                Ok(parts) => *parts[0].as_ref().expect_err("no such part"),
            },
        };
        assert_eq!(found, expected);
    }
    assert_eq!(scene.session.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    scene.settle(&[(Reason::PartOutOfRange, 5), (Reason::GroupOutOfRange, 4)]).await;
}

/// The reason of a reservation, as an outcome or for the whole call.
async fn batch_reason(scene: &Scene, ask: v1::ReserveItem) -> Reason {
    match scene.session.reserve(scene.descriptor.digest(), vec![ask]).await {
        Ok(outcomes) => refused(outcomes[0].refused).expect("a reason"),
        Err(status) => tender_tests::raw::refusal(&status).reason,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_namespace_and_a_namespace_of_another_session() {
    let scene = Scene::new().await;
    let unknown = fixture::small("nobody registered this", BLOCK_BYTES).digest();
    let session = &scene.session;
    assert_eq!(
        reason(session.lookup(unknown, &[fixture::chunk(1)], Ask::LOOK).await),
        Reason::UnknownNamespace
    );
    assert_eq!(reason(session.reserve(unknown, vec![scene.good()]).await), Reason::UnknownNamespace);
    let answer = session.client.reset(unknown).await.unwrap();
    assert_eq!((answer.dropped_chunks, answer.fenced_reservations), (0, 0));
    // One item that is refused does not take the others with it.
    let other = item(fixture::chunk(2), fixture::PART, scene.full(), 1);
    let outcomes = session.reserve(scene.descriptor.digest(), vec![other, scene.good()]).await.unwrap();
    assert_eq!(refused(outcomes[0].refused), Some(Reason::WrongSize));
    session.abort(&[outcomes[1].reservation_id]).await.unwrap();
    scene.settle(&[(Reason::UnknownNamespace, 2)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_are_malformed_unknown_or_somebody_elses() {
    let mut scene = Scene::new().await;
    let namespace = scene.descriptor.digest();
    let own = scene.session.id.clone();
    for (id, expected) in [
        (Bytes::new(), Reason::Malformed),
        (Bytes::from_static(&[1; 15]), Reason::Malformed),
        (Bytes::from_static(&[1; 17]), Reason::Malformed),
        (Bytes::from_static(&[1; 16]), Reason::UnknownSession),
    ] {
        scene.session.id = id;
        let session = &scene.session;
        assert_eq!(reason(session.register(&scene.descriptor).await), expected);
        assert_eq!(reason(session.lookup(namespace, &[fixture::chunk(1)], Ask::LOOK).await), expected);
        assert_eq!(reason(session.reserve(namespace, vec![scene.good()]).await), expected);
        assert_eq!(reason(session.release(&[1]).await), expected);
        assert_eq!(reason(session.commit(vec![]).await), expected);
        assert_eq!(reason(session.abort(&[1]).await), expected);
    }
    scene.session.id = own;
    // Somebody else's lease is not live for us, and stays theirs.
    assert_eq!(scene.session.release(&[scene.lease]).await.unwrap(), [v1::LeaseOutcome::Expired]);
    let short = v1::ChunkId { group: 0, hash: Bytes::from_static(&[1; 31]) };
    let answer = scene.session.lookup_raw(raw_digest(namespace), vec![short], Ask::LOOK).await;
    assert_eq!(reason(answer), Reason::Malformed);
    let answer = scene.session.lookup_raw(Bytes::from_static(&[1; 8]), vec![], Ask::LOOK).await;
    assert_eq!(reason(answer), Reason::Malformed);
    assert_eq!(
        batch_reason(&scene, v1::ReserveItem { chunk: None, ..scene.good() }).await,
        Reason::Malformed
    );
    scene.settle(&[(Reason::Malformed, 21), (Reason::UnknownSession, 6)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_another_sessions_reservation() {
    let scene = Scene::new().await;
    let bytes = pattern::blob_by(&scene.descriptor, fixture::chunk(101), fixture::PART, scene.full(), 9);
    scene.shared.stage(0, &bytes);
    let foreign = commit_item(scene.reservation, 0, scene.full(), &bytes);
    let answer = scene.session.commit(vec![foreign]).await.unwrap();
    assert_eq!(refused(answer[0].refused), Some(Reason::NotOwner));
    let frames = scene.session.frames(scene.reservation, scene.full(), &bytes, 4000);
    assert_eq!(put_reason(&scene, frames).await, Reason::NotOwner);
    // An abort of it changes nothing either: settle() lets the owner finish.
    drop(scene.session.abort(&[scene.reservation]).await);
    for id in [0, u64::MAX] {
        let answer = scene.session.commit(vec![commit_item(id, 0, scene.full(), &bytes)]).await.unwrap();
        assert_eq!(refused(answer[0].refused), Some(Reason::UnknownReservation));
    }
    scene.settle(&[(Reason::NotOwner, 2), (Reason::UnknownReservation, 2)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_that_does_not_match() {
    let scene = Scene::new().await;
    let bytes = pattern::blob(&scene.descriptor, fixture::chunk(1), fixture::PART, scene.full());
    let mut flipped = bytes.clone();
    flipped[2047] ^= 1;
    scene.shared.stage(0, &flipped);
    let good = commit_item(scene.reserved().await, 0, scene.full(), &bytes);
    let answer = scene.session.commit(vec![good]).await.unwrap();
    assert_eq!(refused(answer[0].refused), Some(Reason::BadDigest));
    let mut frames = scene.session.frames(scene.reserved().await, scene.full(), &flipped, 1000);
    frames[3].digest = digest(&bytes);
    assert_eq!(put_reason(&scene, frames).await, Reason::BadDigest);
    let mut frames = scene.session.frames(scene.reserved().await, scene.full(), &bytes, 1000);
    frames[3].digest = Bytes::from_static(&[0; 31]);
    assert_eq!(put_reason(&scene, frames).await, Reason::Malformed);
    let states = scene.session.states(scene.descriptor.digest(), &[fixture::chunk(1)]).await;
    assert_eq!(states, [v1::ChunkState::Miss]);
    scene.settle(&[(Reason::BadDigest, 2)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_past_the_limit_out_of_order_or_without_a_session() {
    let scene = Scene::with(Setup { max_frame_bytes: 2000, ..Setup::default() }).await;
    assert_eq!(scene.session.opened.max_frame_bytes, 2000, "a client is told");
    let bytes = pattern::blob(&scene.descriptor, fixture::chunk(1), fixture::PART, scene.full());
    let frames = scene.session.frames(scene.reserved().await, scene.full(), &bytes, 2001);
    assert_eq!(put_reason(&scene, frames).await, Reason::FrameTooLarge);
    let sound = |reservation| scene.session.frames(reservation, scene.full(), &bytes, 1000);
    type Damage = fn(&mut Vec<v1::PutFrame>);
    let damages: [(&str, Damage); 5] = [
        ("a gap", |frames| drop(frames.remove(1))),
        ("a repeated frame", |frames| frames.insert(1, frames[0].clone())),
        ("an offset past the end", |frames| frames[1].offset_bytes = u64::MAX),
        ("no session", |frames| frames[0].session_id = Bytes::new()),
        ("another reservation in the middle", |frames| frames[2].reservation_id += 1000),
    ];
    for (what, damage) in damages {
        let reservation = scene.reserved().await;
        let mut frames = sound(reservation);
        damage(&mut frames);
        let found = put_reason(&scene, frames).await;
        let allowed = [Reason::Malformed, Reason::WrongSize, Reason::UnknownReservation];
        assert!(allowed.contains(&found), "{what}: {found}");
        drop(scene.session.abort(&[reservation]).await);
    }
    // No frame at all is no part at all.
    if let Ok(outcomes) = scene.session.put(vec![]).await {
        assert!(outcomes.is_empty());
    }
    scene.settle(&[(Reason::FrameTooLarge, 1)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn staging_ranges_outside_the_region_and_without_a_region() {
    let scene = Scene::new().await;
    let bytes = vec![7; 4000];
    for offset in [STAGING_BYTES - 3999, STAGING_BYTES, u64::MAX, u64::MAX - 3999] {
        let good = commit_item(scene.reserved().await, offset, scene.full(), &bytes);
        let answer = scene.session.commit(vec![good]).await.unwrap();
        assert_eq!(refused(answer[0].refused), Some(Reason::StagingRange), "offset {offset}");
        drop(scene.session.abort(&[good_id(&answer)]).await);
    }
    let answer = scene.bystander.commit(vec![commit_item(scene.reservation, 0, scene.full(), &bytes)]).await;
    let answer = answer.unwrap();
    assert_eq!(refused(answer[0].refused), Some(Reason::StagingRange), "no region");
    // Too large a region, a second one, and one for a session that is not there.
    let (socket, id) = (scene.daemon.socket().to_owned(), scene.bystander.session_id());
    let other = tender_proto::SessionId::from_random([9; 16]);
    let asked = tokio::task::spawn_blocking(move || {
        let huge = attach_blocking(&socket, id, u64::MAX).unwrap();
        let unknown = attach_blocking(&socket, other, 4096).unwrap();
        (huge.map(|_| ()), unknown.map(|_| ()))
    });
    let (huge, unknown) = asked.await.unwrap();
    assert!(matches!(huge, Err(Reason::TooLarge | Reason::TooMany | Reason::NoSpace)), "{huge:?}");
    assert_eq!(unknown, Err(Reason::UnknownSession));
    conserve::audit(scene.daemon.engine());
    // The bystander's reservation ended with its own bad commit or not; it makes sure it has one.
    let mut scene = scene;
    drop(scene.bystander.abort(&[scene.reservation]).await);
    let ask = item(fixture::chunk(101), fixture::PART, scene.full(), 4000);
    scene.reservation = scene.bystander.reserve_one(scene.descriptor.digest(), ask).await.unwrap();
    scene.settle(&[(Reason::StagingRange, 5)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_and_versions_past_the_limit() {
    let scene = Scene::new().await;
    let chunks = vec![fixture::chunk(1).to_message(); MAX_BATCH_CHUNKS + 1];
    let namespace = raw_digest(scene.descriptor.digest());
    assert_eq!(reason(scene.session.lookup_raw(namespace, chunks, Ask::LOOK).await), Reason::TooLarge);
    for version in [0, PROTOCOL_VERSION + 1] {
        let request = v1::SessionRequest { client_name: "old".into(), pid: 1, protocol_version: version };
        let answer = scene.session.client.open_with(request).await.map(|s| s.id);
        assert_eq!(reason(answer), Reason::VersionMismatch);
    }
    scene.settle(&[(Reason::VersionMismatch, 2)]).await;
}

/// A descriptor of groups that cannot be is refused at the daemon's door, in words that name what is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn groups_that_cannot_be_are_refused_by_what_is_wrong_with_them() {
    let scene = Scene::new().await;
    type Damage = fn(&mut v1::GroupDescriptor);
    let damages: [(&str, Damage); 9] = [
        ("a recurrent group with chunks of 2 blocks", |group| {
            (group.kind, group.blocks_per_chunk) = (v1::GroupKind::Recurrent.into(), 2);
        }),
        ("a FullAttention group with window", |group| group.window_tokens = 128),
        ("a Recurrent group with window", |group| {
            (group.kind, group.window_tokens, group.blocks_per_chunk) =
                (v1::GroupKind::Recurrent.into(), 128, 1);
        }),
        ("a SlidingWindow group with window None", |group| group.kind = v1::GroupKind::SlidingWindow.into()),
        ("a ChunkedLocal group with window None", |group| group.kind = v1::GroupKind::ChunkedLocal.into()),
        ("a group that looks 4294967295 tokens ahead", |group| group.lookahead_tokens = u32::MAX),
        ("a group of 0 tokens per block", |group| group.tokens_per_block = 0),
        ("a group of 0 parts", |group| group.part_block_bytes.clear()),
        ("a block of 0 bytes", |group| group.part_block_bytes[0] = 0),
    ];
    let count = damages.len() as u64;
    let namespaces = scene.daemon.engine().stats().namespaces.len();
    for (words, damage) in damages {
        let mut message = scene.descriptor.to_message();
        damage(&mut message.groups[0]);
        let digest = raw_digest(scene.descriptor.digest());
        let refused = scene.session.register_raw(Some(message), digest, "").await.unwrap_err();
        let refusal = tender_tests::raw::refusal(&refused);
        assert_eq!(refusal.reason, Reason::Malformed, "{words}");
        assert!(refusal.subject.contains(words), "{words}: {refusal:?}");
    }
    // A sound group under another descriptor's digest is no better.
    let mut message = scene.descriptor.to_message();
    message.groups[0].lookahead_tokens = 1;
    let digest = raw_digest(scene.descriptor.digest());
    let refused = scene.session.register_raw(Some(message), digest, "").await;
    assert_eq!(reason(refused), Reason::NamespaceConflict);
    assert_eq!(scene.daemon.engine().stats().namespaces.len(), namespaces);
    scene.settle(&[(Reason::Malformed, count), (Reason::NamespaceConflict, 1)]).await;
}

/// Memory of two groups of two layers each, apart from each other, 8 blocks.
fn two_groups() -> (Memory, Vec<LayerDesc>) {
    let shape =
        |name: &str| TensorShape { name: name.into(), heads: Some(2), slots: Some(4), cell_bytes: 16 };
    let shapes = [vec![shape("full.0"), shape("full.1")], vec![shape("window.0"), shape("window.1")]];
    let apart = Arrangement::Apart { orders: vec![0, 3], padding: 0, scales: false };
    let memory = Memory::new(&shapes, vec![0, 0], &apart, 8);
    let layers = memory.describe();
    (memory, layers)
}

/// What a user reads about a description that cannot be believed: the layer's name, and both byte ranges where two
/// things collide.
#[test]
fn a_description_that_cannot_be_believed_is_refused_by_name_and_ranges() {
    let (_memory, good) = two_groups();
    assert!(prove(good.clone(), 8).is_ok());
    type Damage = fn(&mut Vec<LayerDesc>);
    let damages: [(&str, &str, usize, Damage); 9] = [
        ("layers over each other", "'full.1'", 4, |layers| layers[1].address = layers[0].address + 16),
        ("a block over the next", "'full.0'", 4, |layers| layers[0].block_stride_bytes -= 16),
        ("past the buffer", "'full.1'", 4, |layers| layers[1].address += 16),
        ("a gap in the page", "'full.0'", 4, |layers| layers[0].page_bytes += 16),
        ("more than the page", "'full.0'", 4, |layers| layers[0].padding_bytes += 16),
        ("a name twice", "'full.0'", 0, |layers| layers[1].name = "full.0".into()),
        ("an unknown group", "'window.1'", 0, |layers| layers[3].group = GroupIndex(7)),
        ("fewer blocks than the pool", "'window.0'", 0, |layers| layers[2].blocks = 7),
        ("groups over each other", "'", 4, |layers| {
            // Group 1 takes group 0's memory with another stride: block 1 of one is block 3 of the other.
            let (address, buffer) = (layers[0].address, layers[0].buffer);
            for (number, layer) in (0..).zip(&mut layers[2..]) {
                layer.buffer = buffer;
                layer.address = address + number * 8 * 128;
                layer.block_stride_bytes = 128;
            }
            let half = layers[0].axes[0].count / 2;
            layers[2].axes[0].count = half;
            layers[2].block_stride_bytes = 64;
            (layers[2].page_bytes, layers[2].padding_bytes) = (64, 0);
        }),
    ];
    for (what, name, numbers, damage) in damages {
        let mut layers = good.clone();
        damage(&mut layers);
        let text = prove(layers, 8).expect_err(what).to_string();
        assert!(text.starts_with("the layout of layer '") && text.contains(name), "{what}: {text}");
        assert!(text.matches("0x").count() >= numbers, "{what}: {text}");
    }
}

/// Sizes that disagree between a layout and the namespace are told when a worker starts.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_other_sizes_than_the_namespace_does_not_start() {
    let daemon = Daemon::start(Setup::default()).await;
    let config = daemon.client_config(TransportChoice::Auto);
    let refused = tokio::task::spawn_blocking(move || {
        let (memory, layers) = two_groups();
        let layout = prove(layers, 8).unwrap();
        let group = |bytes| fixture::group(4, 2, &[bytes]);
        let descriptor = fixture::descriptor("other sizes", vec![group(256), group(255)]);
        let refused = WorkerSide::new(config, Arc::new(descriptor), Arc::new(layout)).unwrap_err();
        drop(memory);
        refused
    })
    .await
    .unwrap();
    let ClientError::Refused(refusal) = &refused else { panic!("{refused:?}") };
    assert_eq!(refusal.reason, Reason::WrongSize);
    assert!(["group 1", "255", "256"].iter().all(|word| refused.to_string().contains(word)), "{refused}");
}

/// Block ids outside the pool, the null block, and block lists of another chunk's length: no byte moves, in either
/// direction, and the step goes on.
#[tokio::test(flavor = "multi_thread")]
async fn plans_that_name_blocks_wrongly_move_nothing() {
    let daemon = Daemon::start(Setup::default()).await;
    let config = daemon.client_config(TransportChoice::Auto);
    tokio::task::spawn_blocking(move || {
        let engine = Mixed::new(&config, "bad blocks", &[full(16, 2), sliding(16, 2, 100)], 1);
        let mut truth = Truth::new(1, &(0..80).collect::<Vec<_>>(), &[]);
        let all = tokens(&mut truth, 66);
        type Damage = fn(&mut Vec<u32>, &mut Coverage);
        let damages: [(&str, Damage); 4] = [
            ("past the pool", |blocks, _| blocks[1] = 64),
            ("the last id there is", |blocks, _| blocks[0] = u32::MAX),
            ("the null block", |blocks, _| blocks[1] = 0),
            ("a list of another chunk", |blocks, coverage| {
                blocks.push(9);
                *coverage = Coverage::full(tender_proto::BlocksPerChunk::new(3).unwrap());
            }),
        ];
        let worker = &engine.ranks[0].worker;
        let table = vec![(1..=5).collect(), (11..=15).collect()];
        for (what, damage) in &damages {
            engine.arrive(what, 66);
            let mut plan = engine.plan(vec![scheduled(what, 0, 66, all.clone(), &table)]);
            assert_eq!(plan.stores_after.len(), 4, "{what}");
            for job in &mut plan.stores_after {
                damage(&mut job.blocks, &mut job.coverage);
            }
            engine.carry_out(&plan, || engine.pass(&mut truth, &table, 0..66));
            engine.flush();
            assert_eq!(worker.counters().stored_parts, 0, "{what}: {:?}", worker.counters());
            engine.finish(what, 66, 0, &Vec::new(), true);
            // The planner believes that it stored them, until a lookup says otherwise.
            assert_eq!(engine.would_hit("asked", &all), 0, "{what}");
        }
        // All of them here, before a copy; none is left for the daemon to refuse.
        let skipped = [("bad_blocks".to_owned(), 4 * damages.len() as u64)];
        assert_eq!(worker.counters().stores_skipped, skipped.into(), "{:?}", worker.counters());
        engine.store("good", &mut truth, 66, &table, &[]);
        for (what, damage) in &damages {
            engine.arrive(what, 66);
            assert_eq!(engine.look(what, &all, 0), 64, "{what}");
            let mut plan = engine.take(what, &vec![vec![21, 22, 23, 24], vec![31, 32, 33, 34]], 64);
            for item in &mut plan.loads[0].items {
                damage(&mut item.blocks, &mut item.needed);
            }
            engine.poison_all();
            engine.carry_out(&plan, || ());
            assert!(engine.await_load(what).remove(0).failed, "{what}");
            for group in 0..2 {
                assert!(engine.untouched(group, &(0..64).collect::<Vec<_>>()), "{what}: bytes moved");
            }
            engine.finish(what, 66, 0, &Vec::new(), true);
        }
        assert_eq!(worker.counters().panics, 0);
    })
    .await
    .unwrap();
    conserve::quiet(daemon.engine()).await;
}
