//! One step of a script.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use bytes::Bytes;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};
use tender_daemon::fuzzing::attend;
use tender_proto::limits::PROTOCOL_VERSION;
use tender_proto::shm::{FdReply, FdRequest, Mapping, recv_with_fds};
use tender_proto::{ContentDigest, NamespaceDigest, SessionId, v1};
use tokio::net::UnixStream;

use super::script::{Call, Chunk, Committed, Damage, Item, Sent, Step};
use super::wire::damaged;
use super::world::{Lease, Reservation, World};
use crate::fuzz::small::{self, BLOCK_BYTES, BLOCKS, content, descriptor};
use crate::wire::framed;

const METHODS: &[&str] = &[
    "Store/Session",
    "Store/Register",
    "Store/Lookup",
    "Store/Release",
    "Store/Reserve",
    "Store/Commit",
    "Store/Abort",
    "Store/Put",
    "Store/Get",
    "Admin/Ping",
    "Admin/Stats",
    "Admin/Reset",
    "Store/Nothing",
];

fn namespace(model: u8) -> Bytes {
    Bytes::copy_from_slice(descriptor(model).digest().as_bytes())
}

impl World {
    pub(super) async fn play(&mut self, step: &Step) {
        let damage = step.damage.as_ref();
        match &step.call {
            Call::Open { version, pid } => {
                let protocol_version = if *version > 250 { u32::from(*version) } else { PROTOCOL_VERSION };
                let message = v1::SessionRequest { client_name: "fuzz".into(), pid: *pid, protocol_version };
                self.open(&damaged(framed(&message), damage)).await;
            }
            Call::Close(n) => {
                if !self.sessions.is_empty() {
                    let at = usize::from(*n) % self.sessions.len();
                    self.sessions.remove(at);
                }
            }
            Call::Register { session, model, claim, pin } => {
                self.register(*session, *model, if *claim > 250 { *claim } else { *model }, *pin, damage)
                    .await;
            }
            Call::Lookup { session, model, chunks, lease, locate, lease_ms } => {
                let message = v1::LookupRequest {
                    session_id: self.session(*session),
                    namespace: namespace(*model),
                    chunks: chunks.iter().map(|chunk| chunk_id(chunk).to_message()).collect(),
                    lease: *lease,
                    lease_ms: u64::from(*lease_ms),
                    locate: *locate,
                    fetch: *lease,
                    ..v1::LookupRequest::default()
                };
                self.lookup(&message, damage).await;
            }
            Call::Release { session, leases } => {
                let lease_ids: Vec<_> = leases.iter().map(|&n| self.lease(n).id).collect();
                // Readers may doubt what is good, and what was never leased.
                let doubted = leases.iter().zip(&lease_ids).filter(|(n, _)| **n % 4 == 3);
                let suspects = doubted
                    .map(|(&n, &lease_id)| v1::Suspect { lease_id, chunk_index: u32::from(n / 4) })
                    .collect();
                let message = v1::ReleaseRequest { session_id: self.session(*session), lease_ids, suspects };
                self.call::<v1::ReleaseResponse>("Store/Release", &message, damage).await;
            }
            Call::Reserve { session, model, items, epoch } => {
                self.reserve(*session, *model, items, *epoch, damage).await;
            }
            Call::Commit { session, items } => self.commit(*session, items, damage).await,
            Call::Abort { session, reservations } => {
                let reservation_ids = reservations.iter().map(|&n| self.reservation(n).id).collect();
                let message = v1::AbortRequest { session_id: self.session(*session), reservation_ids };
                self.call::<v1::AbortResponse>("Store/Abort", &message, damage).await;
            }
            Call::Put { session, parts } => self.put(*session, parts, damage).await,
            Call::Get { session, lease, items } => self.get(*session, *lease, items, damage).await,
            Call::Reset { model, all } => {
                let all = *all > 200;
                let message =
                    v1::ResetRequest { namespace: if all { Bytes::new() } else { namespace(*model) }, all };
                self.call::<v1::ResetResponse>("Admin/Reset", &message, damage).await;
            }
            Call::Ask(true) => {
                _ = self.call::<v1::StatsResponse>("Admin/Stats", &v1::StatsRequest {}, damage).await
            }
            Call::Ask(false) => {
                _ = self.call::<v1::PingResponse>("Admin/Ping", &v1::PingRequest {}, damage).await
            }
            Call::Store { session, model, chunks, coverage } => {
                self.store(*session, *model, chunks, *coverage, damage).await;
            }
            Call::Attach { session, bytes, change } => {
                self.attach(*session, u64::from(*bytes), *change).await
            }
            Call::Pass { ms } => {
                self.clock.advance(Duration::from_millis(u64::from(*ms)));
                self.engine.sweep();
            }
            Call::Scrub { bytes } => {
                self.engine.scrub(u64::from(*bytes));
                assert_eq!(self.engine.stats().quarantined_chunks, 0, "nothing changed in memory");
            }
            Call::Raw { method, body } => self.raw(METHODS[usize::from(*method) % METHODS.len()], body).await,
        }
    }

    async fn raw(&mut self, method: &str, body: &[u8]) {
        match method {
            "Store/Session" => self.open(body).await,
            // Whatever it is, it is not an answer of another kind.
            _ => _ = self.send::<v1::AbortResponse>(method, body).await,
        }
    }

    async fn register(&mut self, session: u8, model: u8, claimed: u8, pin: u8, damage: Option<&Damage>) {
        let message = v1::RegisterRequest {
            session_id: self.session(session),
            descriptor: Some(descriptor(model).to_message()),
            namespace: namespace(claimed),
            pinned_name: if pin > 200 { format!("name {}", pin % 2) } else { String::new() },
        };
        let (answers, _) = self.call::<v1::RegisterResponse>("Store/Register", &message, damage).await;
        if damage.is_none() {
            assert!(answers.iter().all(|answer| answer.namespace == namespace(model)));
        }
    }

    async fn lookup(&mut self, message: &v1::LookupRequest, damage: Option<&Damage>) {
        let (answers, _) = self.call::<v1::LookupResponse>("Store/Lookup", message, damage).await;
        let Some(answer) = answers.into_iter().next() else { return };
        let chunks = message.chunks.iter().filter_map(|raw| tender_proto::ChunkId::parse(raw).ok()).collect();
        if damage.is_none() {
            assert_eq!(answer.chunks.len(), message.chunks.len());
        }
        let places = answer.chunks.iter().flat_map(|status| &status.parts);
        let digests: Vec<_> = places.map(|part| ContentDigest::parse(&part.digest)).collect();
        assert!(digests.iter().all(|digest| digest.as_ref().is_ok_and(|digest| self.sent.contains(digest))));
        if let Some(lease) = answer.lease {
            self.leases.push(Lease { id: lease.id, chunks });
        }
    }

    async fn reserve(&mut self, session: u8, model: u8, items: &[Item], epoch: u8, damage: Option<&Damage>) {
        let wanted: Vec<Reservation> = items.iter().map(wanted).collect();
        let message = v1::ReserveRequest {
            session_id: self.session(session),
            namespace: namespace(model),
            items: wanted.iter().map(item).collect(),
            epoch: u64::from(epoch.saturating_sub(240)),
        };
        let (answers, _) = self.call::<v1::ReserveResponse>("Store/Reserve", &message, damage).await;
        let outcomes = answers.iter().flat_map(|answer| &answer.outcomes);
        for (outcome, wanted) in outcomes.zip(wanted).filter(|(outcome, _)| outcome.reservation_id != 0) {
            self.reservations.push(Reservation { id: outcome.reservation_id, ..wanted });
        }
    }

    async fn commit(&mut self, session: u8, items: &[Committed], damage: Option<&Damage>) {
        let mut message = v1::CommitRequest { session_id: self.session(session), items: Vec::new() };
        for Committed { reservation, offset, wrong } in items {
            let part = self.reservation(*reservation);
            let content = content(part.chunk, part.part, part.coverage, part.bytes);
            let count = self.sessions.len().max(1);
            if let Some(Some(staging)) =
                self.sessions.get(usize::from(session) % count).map(|session| &session.staging)
            {
                // Outside the region it is refused, here and there.
                _ = staging.copy_in(u64::from(*offset), &content);
            }
            let mut digest = self.digest_of(&content);
            spoil(&mut digest, *wrong);
            message.items.push(v1::CommitItem {
                reservation_id: part.id,
                staging_offset_bytes: u64::from(*offset),
                bytes: part.bytes + u64::from(*wrong == 249),
                coverage: part.coverage ^ u64::from(*wrong == 248),
                digest,
            });
        }
        self.call::<v1::CommitResponse>("Store/Commit", &message, damage).await;
    }

    async fn put(&mut self, session: u8, parts: &[Sent], damage: Option<&Damage>) {
        let mut stream = Vec::new();
        for (n, Sent { reservation, frame, wrong }) in parts.iter().enumerate() {
            let part = self.reservation(*reservation);
            let session_id = if n == 0 { self.session(session) } else { Bytes::new() };
            stream.extend(self.frames(part, usize::from(*frame), *wrong, session_id));
        }
        let request: Vec<u8> = stream.iter().flat_map(framed).collect();
        self.send::<v1::PutResponse>("Store/Put", &damaged(request, damage)).await;
    }

    fn frames(&mut self, part: Reservation, frame: usize, wrong: u8, session_id: Bytes) -> Vec<v1::PutFrame> {
        let content = content(part.chunk, part.part, part.coverage, part.bytes);
        let step = frame.max(1).max(content.len() / 16);
        let piece = |(n, piece): (usize, &[u8])| v1::PutFrame {
            reservation_id: part.id,
            offset_bytes: (n * step) as u64,
            payload: piece.to_vec().into(),
            ..v1::PutFrame::default()
        };
        let mut frames: Vec<_> = content.chunks(step).enumerate().map(piece).collect();
        if let Some(last) = frames.last_mut() {
            last.digest = self.digest_of(&content);
            last.coverage = part.coverage ^ u64::from(wrong == 248);
            spoil(&mut last.digest, wrong);
        }
        if wrong == 249 {
            frames.pop();
        }
        if let Some(first) = frames.first_mut() {
            first.session_id = session_id;
        }
        frames
    }

    /// Everything that a good client does to store chunks over the network.
    async fn store(
        &mut self,
        session: u8,
        model: u8,
        chunks: &[Chunk],
        coverage: u8,
        damage: Option<&Damage>,
    ) {
        let parts =
            chunks.iter().take(4).flat_map(|&chunk| (0..=chunk.group % 2).map(move |part| (chunk, part)));
        let items: Vec<Item> =
            parts.map(|(chunk, part)| Item { chunk, part, coverage, more_bytes: 0 }).collect();
        self.register(session, model, model, 0, None).await;
        let before = self.reservations.len();
        self.reserve(session, model, &items, 0, None).await;
        let given = self.reservations.len() - before;
        let sent = (0..given).filter_map(|n| u8::try_from(n).ok());
        let sent: Vec<Sent> = sent.map(|reservation| Sent { reservation, frame: 4096, wrong: 0 }).collect();
        self.put(session, &sent, damage).await;
    }

    async fn get(&mut self, session: u8, lease: u8, items: &[(u8, u8)], damage: Option<&Damage>) {
        let Lease { id, chunks } = self.lease(lease);
        let message = v1::GetRequest {
            session_id: self.session(session),
            lease_id: id,
            items: items
                .iter()
                .map(|&(n, part)| v1::GetItem {
                    chunk_index: u32::from(n) % (u32::try_from(chunks.len()).unwrap_or(0) + 1),
                    part: u32::from(part % 3),
                })
                .collect(),
        };
        let (frames, refusal) = self.call::<v1::GetFrame>("Store/Get", &message, damage).await;
        let mut rest = &frames[..];
        while let Some(first) = rest.first() {
            let count = rest.iter().take_while(|frame| frame.item == first.item).count();
            let (part, others) = rest.split_at(count);
            rest = others;
            if first.failure != 0 {
                assert_eq!(part.len(), 1, "a part that failed has one frame");
                continue;
            }
            let mut bytes = Vec::new();
            for frame in part {
                assert_eq!(frame.offset_bytes, bytes.len() as u64);
                bytes.extend_from_slice(&frame.payload);
            }
            let digest = ContentDigest::of(&bytes);
            let cut = refusal.is_some() && rest.is_empty();
            assert!(cut || bytes.len() as u64 == first.part_bytes);
            assert!(cut || first.digest == digest.as_bytes()[..], "a part with another digest was served");
            assert!(cut || self.sent.contains(&digest), "a part was served that nobody stored");
        }
    }

    async fn attach(&mut self, session: u8, bytes: u64, change: Option<(u8, u8)>) {
        let Ok(id) = SessionId::parse(&self.session(session)) else { return };
        let mut packet = FdRequest { session: id, staging_bytes: bytes % (80 << 10) }.encode().to_vec();
        if let Some((at, with)) = change {
            packet[usize::from(at) % FdRequest::LEN] ^= with;
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let Ok((ours, theirs)) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags) else {
            return;
        };
        let Ok(client) = UnixStream::from_std(StdStream::from(theirs)) else { return };
        if send(ours.as_raw_fd(), &packet, MsgFlags::MSG_NOSIGNAL).is_err() {
            return;
        }
        attend(client, std::sync::Arc::clone(&self.engine)).await;
        let Ok((reply, mut fds)) = recv_with_fds(ours.as_fd()) else { panic!("no answer to a packet") };
        match FdReply::decode(&reply) {
            Some(FdReply::Granted { arena_bytes, staging_bytes }) => {
                assert_eq!(fds.len(), 1 + usize::from(staging_bytes > 0));
                let arena = Mapping::read_only(&File::from(fds.remove(0)));
                assert!(arena.is_ok_and(|arena| arena.len() as u64 == arena_bytes));
                let staging = fds.pop().and_then(|fd| Mapping::read_write(&File::from(fd)).ok());
                assert_eq!(staging.as_ref().map_or(0, |staging| staging.len() as u64), staging_bytes);
                let count = self.sessions.len().max(1);
                if let Some(session) = self.sessions.get_mut(usize::from(session) % count)
                    && staging.is_some()
                {
                    session.staging = staging;
                }
            }
            Some(FdReply::Refused(_)) => assert!(fds.is_empty()),
            None => panic!("an answer that is none"),
        }
    }

    fn digest_of(&mut self, content: &[u8]) -> Bytes {
        let digest = ContentDigest::of(content);
        self.sent.insert(digest);
        Bytes::copy_from_slice(digest.as_bytes())
    }
}

/// A digest of something else, or none, where `wrong` is above `from`.
/// One in five is wrong, now and then too short as well.
fn spoil(digest: &mut Bytes, wrong: u8) {
    if wrong > 252 {
        *digest = Bytes::from_static(&[1; 31]);
    } else if wrong > 200 {
        *digest = Bytes::copy_from_slice(NamespaceDigest::from_bytes([wrong; 32]).as_bytes());
    }
}

fn chunk_id(chunk: &Chunk) -> tender_proto::ChunkId {
    small::chunk(chunk.group, chunk.n)
}

fn wanted(item: &Item) -> Reservation {
    let coverage =
        if item.coverage > 240 { u64::from(item.coverage) } else { u64::from(item.coverage) % (1 << BLOCKS) };
    let more = if item.more_bytes > 100 { u64::from(item.more_bytes.unsigned_abs()) } else { 0 };
    Reservation {
        id: 0,
        chunk: chunk_id(&item.chunk),
        part: tender_proto::PartIndex(u16::from(item.part % 3)),
        coverage,
        bytes: BLOCK_BYTES * u64::from(coverage.count_ones()) + more,
    }
}

fn item(wanted: &Reservation) -> v1::ReserveItem {
    v1::ReserveItem {
        chunk: Some(wanted.chunk.to_message()),
        part: u32::from(wanted.part.0),
        coverage: wanted.coverage,
        bytes: wanted.bytes,
    }
}
