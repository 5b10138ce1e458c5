//! The daemon's calls as a client sees them, over real sockets.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

mod common;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use tender_proto::limits::MAX_MESSAGE_BYTES;
use tender_proto::shm::{FdReply, FdRequest, Mapping, fd_socket_path, recv_with_fds, send_with_fds};
use tender_proto::v1::session_event::Event;
use tender_proto::{Reason, SessionId, v1};
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_put_over_one_socket_is_got_over_the_other() {
    let daemon = Daemon::start(|_| ()).await;
    let local = daemon.session().await;
    let remote = Session::open(tcp(&daemon.tcp()).await, &descriptor()).await;
    assert!(local.opened.shm_offered && !remote.opened.shm_offered);
    local.store_chunk(1).await;
    remote.store_chunk(2).await;
    for session in [&local, &remote] {
        let found = session.lookup(&[1, 2, 3], 0, false).await;
        assert_eq!(found.chunks[2].state(), v1::ChunkState::Miss);
        let lease = found.lease.unwrap().id;
        let mut stream = session.get(lease, &[(1, 0), (2, 0), (0, 0)]).await;
        let (mut parts, mut failed) = ([Vec::new(), Vec::new()], 0);
        while let Some(frame) = stream.message().await.unwrap() {
            match frame.item {
                1 => failed = frame.failure,
                item => parts[usize::from(item == 2)].extend_from_slice(&frame.payload),
            }
        }
        assert_eq!(parts, [content(2), content(1)], "in the order asked for, a miss between");
        assert_ne!(failed, 0);
        assert_eq!(session.release(lease).await, v1::LeaseOutcome::Live);
    }
    daemon.until("nothing is read any more", |audit| audit.readers == 0 && audit.pins == 0).await;
}

/// The descriptors of a session, as a local client gets them.
fn hand_over(daemon: &Daemon, packet: &[u8]) -> (Option<FdReply>, Vec<File>) {
    let line = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(line.as_raw_fd(), &UnixAddr::new(&fd_socket_path(&daemon.socket)).unwrap()).unwrap();
    send_with_fds(line.as_fd(), packet, &[]).unwrap();
    let (reply, fds) = recv_with_fds(line.as_fd()).unwrap();
    (FdReply::decode(&reply), fds.into_iter().map(File::from).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_client_commits_from_staging_and_reads_the_arena() {
    let daemon = Daemon::start(|_| ()).await;
    let session = daemon.session().await;
    let id = SessionId::parse(&session.id).unwrap();
    let request = FdRequest { session: id, staging_bytes: 2 << 20 }.encode();
    let (reply, fds) = tokio::task::block_in_place(|| hand_over(&daemon, &request));
    let [arena, staging] = &fds[..] else { panic!("{reply:?}") };
    assert!(matches!(reply, Some(FdReply::Granted { staging_bytes: 0x20_0000, .. })), "{reply:?}");
    assert!(Mapping::read_write(arena).is_err(), "the arena is for reading");
    Mapping::read_write(staging).unwrap().copy_in(4096, &content(7)).unwrap();
    let reservation = session.reserved(7).await;
    let good = v1::CommitItem {
        reservation_id: reservation,
        staging_offset_bytes: 4096,
        bytes: 4 * BLOCK_BYTES,
        coverage: FULL,
        digest: digest(&content(7)),
    };
    let unread = session.reserved(8).await;
    let bad = v1::CommitItem { reservation_id: unread, digest: Bytes::from_static(b"short"), ..good.clone() };
    let request = v1::CommitRequest { session_id: session.id.clone(), items: vec![bad, good] };
    let outcomes = session.store.clone().commit(request).await.unwrap().into_inner().outcomes;
    assert_eq!((outcomes[0].reservation_id, outcomes[0].refused()), (unread, v1::Reason::Malformed));
    assert!(outcomes[1].stored && outcomes[1].chunk_ready, "one bad item does not touch the other");
    let found = session.lookup(&[7, 8], 0, true).await;
    assert_eq!(found.chunks[1].state(), v1::ChunkState::Miss, "an unreadable commit ends its reservation");
    let mut seen = vec![0; content(7).len()];
    Mapping::read_only(arena).unwrap().copy_out(found.chunks[0].parts[0].offset_bytes, &mut seen).unwrap();
    assert!(seen == content(7));
    let metrics = daemon.http("/metrics").await.1;
    assert!(metrics.contains("tender_received_bytes_total{path=\"shm\"} 1048576"), "{metrics}");
    assert!(metrics.contains("tender_sent_bytes_total{path=\"shm\"} 1048576"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_either_socket_disturbs_nobody() {
    let daemon = Daemon::start(|_| ()).await;
    let session = daemon.session().await;
    let garbage = || {
        use std::io::Write;
        let mut line = std::os::unix::net::UnixStream::connect(&daemon.socket).unwrap();
        drop(line.write_all(&[0xa5; 5000]));
        let stranger = FdRequest { session: SessionId::from_random([9; 16]), staging_bytes: 4096 };
        let refused = |reply| match reply {
            Some(FdReply::Refused(reason)) => reason,
            other => panic!("{other:?}"),
        };
        (refused(hand_over(&daemon, b"junk").0), refused(hand_over(&daemon, &stranger.encode()).0))
    };
    let answers = tokio::task::block_in_place(garbage);
    assert_eq!(answers, (Reason::Malformed, Reason::UnknownSession));
    session.store_chunk(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_goes_away_gives_back_what_it_held() {
    let daemon = Daemon::start(|_| ()).await;
    let (staying, leaving) = (daemon.session().await, daemon.session().await);
    staying.store_chunk(1).await;
    assert!(leaving.lookup(&[1], 60_000, false).await.lease.is_some());
    assert_ne!(leaving.reserved(2).await, 0);
    drop(leaving);
    daemon
        .until("leases and reservations are gone", |a| a.sessions == 1 && a.leases + a.reservations == 0)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_item_is_refused_alone() {
    let daemon = Daemon::start(|_| ()).await;
    let session = daemon.session().await;
    let chunk_of = |group, hash: &'static [u8]| Some(v1::ChunkId { group, hash: Bytes::from_static(hash) });
    let items = vec![
        v1::ReserveItem { chunk: None, ..item(1) },
        v1::ReserveItem { chunk: chunk_of(0, &[1; 31]), ..item(1) },
        v1::ReserveItem { part: u32::MAX, ..item(1) },
        v1::ReserveItem { chunk: chunk_of(u32::MAX, &[1; 32]), ..item(1) },
        item(1),
    ];
    let outcomes = session.reserve(items).await;
    let reasons: Vec<_> = outcomes.iter().map(v1::ReserveOutcome::refused).collect();
    use v1::Reason as R;
    assert_eq!(reasons, [R::Malformed, R::Malformed, R::PartOutOfRange, R::GroupOutOfRange, R::Unspecified]);
    assert_ne!(outcomes[4].reservation_id, 0);
    assert_eq!(daemon.refused(Reason::Malformed), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_breaks_does_not_break_the_next() {
    let daemon = Daemon::start(|config| config.max_frame_bytes = 200 << 10).await;
    let session = daemon.session().await;
    assert_eq!(session.opened.max_frame_bytes, 200 << 10);
    let mut frames = Vec::new();
    // A frame above the limit, a gap, a bad digest, an end that never comes, and one that is right.
    frames.extend(session.frames(session.reserved(1).await, &content(1), 250 << 10));
    let mut gap = session.frames(session.reserved(2).await, &content(2), 150 << 10);
    gap.remove(1);
    frames.extend(gap);
    let mut flipped = session.frames(session.reserved(3).await, &content(3), 150 << 10);
    flipped[0].payload = Bytes::from(vec![0; 150 << 10]);
    frames.extend(flipped);
    frames.push(session.frame(session.reserved(4).await, 0, &content(4)[..1000]));
    frames.extend(session.frames(session.reserved(5).await, &content(5), 150 << 10));
    let outcomes = session.put(frames).await.unwrap();
    let reasons: Vec<_> = outcomes.iter().map(v1::StoreOutcome::refused).collect();
    use v1::Reason as R;
    assert_eq!(reasons, [R::FrameTooLarge, R::Malformed, R::BadDigest, R::WrongSize, R::Unspecified]);
    assert!(outcomes[4].chunk_ready);
    daemon
        .until("nothing of the broken ones is left", |a| {
            a.writers + a.reservations == 0 && a.ready_chunks == 1
        })
        .await;
    let foreign = daemon.session().await;
    let outcomes =
        foreign.put(foreign.frames(session.reserved(6).await, &content(6), 150 << 10)).await.unwrap();
    assert_eq!(outcomes[0].refused(), R::NotOwner);
}

/// Field report 34: too large is a clean, typed error of that call; whatever else runs goes on.
#[tokio::test(flavor = "multi_thread")]
async fn case_34_a_message_above_the_limit_fails_alone() {
    let daemon = Daemon::start(|_| ()).await;
    let mut session = daemon.session().await;
    session.store_chunk(1).await;
    let reservation = session.reserved(2).await;
    let huge = session.frame(reservation, 0, &vec![0; MAX_MESSAGE_BYTES + 1]);
    let status = session.put(vec![huge]).await.unwrap_err();
    assert_eq!(refusal(&status).reason, Reason::TooLarge);
    let request =
        v1::AbortRequest { session_id: session.id.clone(), reservation_ids: vec![1; MAX_MESSAGE_BYTES] };
    let status = session.store.abort(request).await.unwrap_err();
    assert_eq!(refusal(&status).reason, Reason::TooLarge);
    assert!(daemon.refused(Reason::TooLarge) >= 2);
    assert!(session.lookup(&[1], 0, false).await.lease.is_some(), "the connection lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_that_does_not_exist_is_a_typed_refusal() {
    let daemon = Daemon::start(|_| ()).await;
    let mut grpc = tonic::client::Grpc::new(unix(&daemon.socket).await);
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<v1::PingRequest, v1::PingResponse>::default();
    let path = http::uri::PathAndQuery::from_static("/tender.v1.Store/Frobnicate");
    let status = grpc.unary(tonic::Request::new(v1::PingRequest {}), path, codec).await.unwrap_err();
    assert_eq!((status.code(), refusal(&status).reason), (Code::Unimplemented, Reason::Unsupported));
}

/// Field report 11: a reader that stops reading holds nothing beyond its lease, and is told.
#[tokio::test(flavor = "multi_thread")]
async fn case_11_a_stalled_reader_is_cut_at_its_lease() {
    // Frames and windows far smaller than a part, so that the stall is inside one.
    let daemon = Daemon::start(|config| config.max_frame_bytes = 64 << 10).await;
    let other = daemon.session().await;
    let reservation = other.reserved(1).await;
    other.put(other.frames(reservation, &content(1), 64 << 10)).await.unwrap();
    let slow = Session::open(unix_with(&daemon.socket, 64 << 10).await, &descriptor()).await;
    let lease = slow.lookup(&[1], 2000, false).await.lease.unwrap().id;
    let mut stream = slow.get(lease, &[(0, 0)]).await;
    daemon.until("it reads", |audit| audit.readers == 1).await;
    daemon.until("nothing is pinned", |audit| audit.readers == 0 && audit.pins == 0).await;
    let status = loop {
        match stream.message().await {
            Ok(Some(frame)) => {
                assert_eq!(frame.failure, 0, "a part that was begun is ended by the stream's end")
            }
            Ok(None) => panic!("a stream that was cut ended well"),
            Err(status) => break status,
        }
    };
    assert_eq!(refusal(&status).reason, Reason::LeaseExpired);
    assert_eq!(slow.release(lease).await, v1::LeaseOutcome::Expired);
}

/// A writer that stops sending holds nothing beyond its reservation, and hears the outcomes it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_writer_is_let_go_at_its_deadline() {
    let daemon = Daemon::start(|config| config.engine.reservation = Duration::from_millis(500)).await;
    let session = daemon.session().await;
    let reservation = session.reserved(1).await;
    let first = session.frame(reservation, 0, &content(1)[..1000]);
    let stalled = tokio_stream::StreamExt::chain(tokio_stream::iter([first]), tokio_stream::pending());
    let outcomes = session.store.clone().put(stalled).await.unwrap().into_inner().outcomes;
    assert_eq!(outcomes[0].refused(), v1::Reason::ReservationExpired);
    daemon.until("its memory is back", |audit| audit.used_bytes == 0 && audit.writers == 0).await;
}

/// Field report 24: calls dropped at any time leave nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn case_24_dropped_calls_leave_nothing_behind() {
    let daemon = Daemon::start(|_| ()).await;
    let session = daemon.session().await;
    for round in 0..60u8 {
        let work = async {
            let reservation = session.reserved(round).await;
            if reservation != 0 {
                drop(session.put(session.frames(reservation, &content(round), 64 << 10)).await);
            }
            if let Some(lease) = session.lookup(&[round, round.saturating_sub(1)], 0, false).await.lease {
                let mut stream = session.get(lease.id, &[(0, 0), (1, 0)]).await;
                while let Ok(Some(_)) = stream.message().await {}
                session.release(lease.id).await;
            }
        };
        drop(tokio::time::timeout(Duration::from_micros(u64::from(round) * 300), work).await);
    }
    daemon.until("no call holds anything", |audit| audit.writers + audit.readers == 0).await;
    drop(session);
    daemon
        .until("no session holds anything", |a| {
            a.sessions + a.leases + a.pins + a.reservations + a.pending_chunks + a.inflight_bytes == 0
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_port_recounts_what_is_held() {
    let daemon = Daemon::start(|_| ()).await;
    let session = daemon.session().await;
    session.store_chunk(1).await;
    session.reserved(2).await;
    session.lookup(&[1], 60_000, false).await;
    let (status, text) = daemon.http("/audit").await;
    assert_eq!(status, 200, "{text}");
    for line in ["sessions 1", "leases 1", "pins 1", "reservations 1", "ready_chunks 1", "pending_chunks 1"] {
        assert!(text.lines().any(|there| there == line), "no '{line}' in {text}");
    }
}

/// Field report 32: probes are answered while bulk work runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_32_probes_answer_under_sixteen_bulk_streams() {
    let daemon = Daemon::start(|_| ()).await;
    let session = daemon.session().await;
    session.store_chunk(1).await;
    let lease = session.lookup(&[1], 60_000, false).await.lease.unwrap().id;
    let mut streams = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let items = [(0, 0); 8];
        let mut stream = session.get(lease, &items).await;
        streams.spawn(async move {
            let mut bytes = 0;
            while let Some(frame) = stream.message().await.unwrap() {
                bytes += frame.payload.len();
            }
            bytes
        });
    }
    for path in ["/live", "/ready", "/metrics"] {
        let answer = tokio::time::timeout(Duration::from_secs(5), daemon.http(path)).await.unwrap();
        assert_eq!(answer.0, 200, "{path}");
    }
    assert_eq!(streams.join_all().await, [8 << 20; 16]);
    assert_eq!(daemon.http("/nothing").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_warns_lets_finish_and_leaves_no_file() {
    let daemon = Daemon::start(|config| config.drain_grace = Duration::from_secs(10)).await;
    let mut session = daemon.session().await;
    session.store_chunk(1).await;
    let lease = session.lookup(&[1], 60_000, false).await.lease.unwrap().id;
    let (socket, admin) = (daemon.socket.clone(), daemon.app.admin_address().unwrap());
    let Daemon { app, dir, .. } = daemon;
    let stopping = tokio::spawn(app.shutdown());
    assert!(
        matches!(session.events.message().await.unwrap().unwrap().event, Some(Event::Draining(d)) if d.grace_ms == 10_000)
    );
    let another = v1::SessionRequest { protocol_version: 1, ..v1::SessionRequest::default() };
    let refused = session.store.session(another).await.unwrap_err();
    assert_eq!(refusal(&refused).reason, Reason::Draining);
    assert!(tokio::net::TcpStream::connect(admin).await.is_ok(), "probes are answered while draining");
    // What was promised is still delivered; then nothing holds the drain up.
    let mut stream = session.get(lease, &[(0, 0)]).await;
    while stream.message().await.unwrap().is_some() {}
    assert_eq!(session.release(lease).await, v1::LeaseOutcome::Live);
    assert!(session.events.message().await.unwrap().is_none(), "the session ends");
    stopping.await.unwrap();
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(!socket.exists() && !left.iter().any(|name| name.to_string_lossy().contains("sock")), "{left:?}");
}
