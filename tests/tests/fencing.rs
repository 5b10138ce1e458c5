//! Late and repeated messages: each is answered with its reason and changes nothing. One table, driven with raw messages;
//! docs/reliability.md has it in words.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::fmt::Write as _;
use std::time::Duration;

use tender_daemon::engine::{Engine, Eviction};
use tender_proto::{Descriptor, Reason, v1};
use tender_tests::attach::{attach, attach_blocking, commit_item};
use tender_tests::daemon::{Daemon, SLOT_BLOCK_BYTES, Setup};
use tender_tests::raw::{Ask, RawClient, RawSession, collect, get_item, item, raw_digest, refusal, refused};
use tender_tests::{conserve, fixture, pattern};

const STAGING_BYTES: u64 = 1 << 20;
/// Chunks of the scene, by what is done to them.
const LEASED: u64 = 1;
const RESERVED: u64 = 2;

/// What is sent, with the handles that the scene gave out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    /// Room for the reserved chunk, gathered in the epoch of then.
    Reserve,
    Commit,
    Put,
    Abort,
    Get,
    Release,
    /// Of the leased chunk, with a lease.
    Lookup,
    Register,
    /// Descriptors of arena and staging.
    Attach,
}

/// What the sender is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    /// The call, or its one item.
    Refused(Reason),
    /// The lease had ended, or is not this session's.
    Expired,
    /// Nothing need be sent.
    Already(v1::ChunkState),
    Missed(Reason),
    /// What was promised, once more.
    Same,
}

/// What happened between the handles and the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Situation {
    SessionEnded,
    /// An empty arena, the old session's id.
    Restarted,
    /// The same, from a session of the new daemon.
    RestartedNewSession,
    TakenOver,
    TakenOverNewSession,
    /// A successor had the arena and died: the same process serves again.
    TakenBack,
    Reset,
    Expired,
    Evicted,
    /// The message was answered before.
    Repeated,
    AnotherSession,
    NotRegistered,
    Draining,
}

use Message as M;
use Situation as S;
use Told::{Already, Expired, Missed, Refused, Same};

/// All messages of a session that is not there.
const GONE: &[(Message, Told)] = &[
    (M::Reserve, Refused(Reason::UnknownSession)),
    (M::Commit, Refused(Reason::UnknownSession)),
    (M::Put, Refused(Reason::UnknownSession)),
    (M::Abort, Refused(Reason::UnknownSession)),
    (M::Get, Refused(Reason::UnknownSession)),
    (M::Release, Refused(Reason::UnknownSession)),
    (M::Lookup, Refused(Reason::UnknownSession)),
    (M::Register, Refused(Reason::UnknownSession)),
    (M::Attach, Refused(Reason::UnknownSession)),
];

/// The table. What is left out does what it says, as if there had been nothing before.
const TABLE: &[(Situation, &[(Message, Told)])] = &[
    (S::SessionEnded, GONE),
    (S::Restarted, GONE),
    (S::TakenOver, GONE),
    (S::TakenBack, GONE),
    (
        S::RestartedNewSession,
        &[
            (M::Reserve, Refused(Reason::NamespaceReset)),
            (M::Commit, Refused(Reason::UnknownReservation)),
            (M::Put, Refused(Reason::UnknownReservation)),
            (M::Abort, Refused(Reason::UnknownReservation)),
            (M::Get, Refused(Reason::UnknownLease)),
            (M::Release, Expired),
            (M::Lookup, Missed(Reason::NeverStored)),
            (M::Register, Same),
        ],
    ),
    (
        S::TakenOverNewSession,
        &[
            (M::Commit, Refused(Reason::UnknownReservation)),
            (M::Put, Refused(Reason::UnknownReservation)),
            (M::Abort, Refused(Reason::UnknownReservation)),
            (M::Get, Refused(Reason::UnknownLease)),
            (M::Release, Expired),
            (M::Register, Same),
        ],
    ),
    (
        S::Reset,
        &[
            (M::Reserve, Refused(Reason::NamespaceReset)),
            (M::Commit, Refused(Reason::NamespaceReset)),
            (M::Put, Refused(Reason::NamespaceReset)),
            (M::Abort, Refused(Reason::NamespaceReset)),
            // What was leased before stays readable for whoever holds the lease.
            (M::Get, Same),
            (M::Lookup, Missed(Reason::NeverStored)),
            (M::Register, Same),
            (M::Attach, Same),
        ],
    ),
    (
        S::Expired,
        &[
            (M::Commit, Refused(Reason::ReservationExpired)),
            (M::Put, Refused(Reason::ReservationExpired)),
            (M::Abort, Refused(Reason::ReservationExpired)),
            (M::Get, Refused(Reason::LeaseExpired)),
            (M::Release, Expired),
            (M::Register, Same),
            (M::Attach, Same),
        ],
    ),
    (
        S::Evicted,
        &[
            (M::Get, Refused(Reason::UnknownLease)),
            (M::Release, Expired),
            (M::Lookup, Missed(Reason::Evicted)),
        ],
    ),
    (
        S::Repeated,
        &[
            (M::Reserve, Already(v1::ChunkState::Ready)),
            (M::Commit, Refused(Reason::UnknownReservation)),
            (M::Put, Refused(Reason::UnknownReservation)),
            (M::Abort, Refused(Reason::UnknownReservation)),
            (M::Get, Refused(Reason::UnknownLease)),
            (M::Release, Expired),
            (M::Register, Same),
            (M::Attach, Same),
        ],
    ),
    (
        S::AnotherSession,
        &[
            (M::Reserve, Already(v1::ChunkState::Pending)),
            (M::Commit, Refused(Reason::NotOwner)),
            (M::Put, Refused(Reason::NotOwner)),
            (M::Abort, Refused(Reason::NotOwner)),
            (M::Get, Refused(Reason::UnknownLease)),
            (M::Release, Expired),
        ],
    ),
    (
        S::NotRegistered,
        &[
            (M::Reserve, Refused(Reason::UnknownNamespace)),
            (M::Commit, Refused(Reason::NotOwner)),
            (M::Put, Refused(Reason::NotOwner)),
            (M::Abort, Refused(Reason::NotOwner)),
            (M::Get, Refused(Reason::UnknownLease)),
            (M::Release, Expired),
            (M::Lookup, Refused(Reason::UnknownNamespace)),
        ],
    ),
    (S::Draining, &[(M::Reserve, Refused(Reason::Draining))]),
];

/// What was given out before.
#[derive(Debug)]
struct Handles {
    reservation: u64,
    lease: u64,
    epoch: u64,
}

struct Scene {
    daemon: Daemon,
    descriptor: Descriptor,
    /// Whoever sends; its id may be one of before.
    sender: RawSession,
    handles: Handles,
    /// Sessions that must live on, unused.
    _held: Vec<RawSession>,
}

impl Scene {
    async fn of(situation: Situation) -> Self {
        let reservation =
            if situation == S::Expired { Duration::from_millis(300) } else { Setup::default().reservation };
        // What was leased goes as soon as it may.
        let setup = Setup { reservation, eviction: Eviction::Lru, ..Setup::slots(4) };
        let daemon = Daemon::start(setup).await;
        let descriptor = fixture::small("fencing", SLOT_BLOCK_BYTES);
        let full = fixture::full(&descriptor);
        let session = daemon.client().await.open_registered(&descriptor).await;
        drop(attach(daemon.socket(), &session, STAGING_BYTES).await);
        session.must_store(&descriptor, fixture::chunk(LEASED), fixture::PART, full).await;
        let lease_ms = if situation == S::Expired { 300 } else { 60_000 };
        let ask = Ask::LEASE.for_ms(lease_ms);
        let found = session.lookup(descriptor.digest(), &[fixture::chunk(LEASED)], ask).await.unwrap();
        let size = usize::try_from(4 * SLOT_BLOCK_BYTES).unwrap();
        let wish = item(fixture::chunk(RESERVED), fixture::PART, full, size);
        let reservation = session.reserve_one(descriptor.digest(), wish).await.unwrap();
        let epoch = session.epoch(&descriptor).await;
        let handles = Handles { reservation, lease: found.lease.unwrap().id, epoch };
        Self { daemon, descriptor, sender: session, handles, _held: Vec::new() }.after(situation).await
    }

    async fn after(mut self, situation: Situation) -> Self {
        match situation {
            S::SessionEnded => {
                let old = self.sender.id.clone();
                self = self.speak_anew(true).await;
                self._held.clear();
                conserve::until(self.daemon.engine(), "the session has ended", |a| a.sessions == 1).await;
                self.sender.id = old;
                self
            }
            S::Restarted | S::RestartedNewSession => {
                self.daemon = self.daemon.restart().await;
                self.in_another_life(situation == S::RestartedNewSession).await
            }
            S::TakenOver | S::TakenOverNewSession => {
                self.daemon = self.daemon.take_over().await;
                self.in_another_life(situation == S::TakenOverNewSession).await
            }
            S::TakenBack => {
                let arena = self.daemon.socket().with_file_name("arena");
                let bytes = Setup::slots(4).arena_bytes;
                let dying = tokio::task::spawn_blocking(move || {
                    let next = tender_tests::successor::RawSuccessor::connect(&arena).unwrap();
                    next.get_ready(bytes);
                    next.take(Vec::new());
                    next.drained();
                    drop(next.go());
                });
                let successor = self.daemon.app().successor().await;
                self.daemon = self.daemon.hand_over(successor).await.expect("it serves again");
                dying.await.unwrap();
                self.in_another_life(false).await
            }
            S::Reset => {
                self.sender.client.reset(self.descriptor.digest()).await.unwrap();
                self
            }
            S::Expired => {
                let over = |a: &tender_daemon::engine::Audit| a.leases == 0 && a.reservations == 0;
                conserve::until(self.daemon.engine(), "both have ended", over).await;
                self
            }
            S::Evicted => {
                self.abort_and_release().await;
                for n in 10..14 {
                    let full = fixture::full(&self.descriptor);
                    self.sender.must_store(&self.descriptor, fixture::chunk(n), fixture::PART, full).await;
                }
                self
            }
            S::Repeated => {
                let outcomes = self.sender.put(self.frames()).await.unwrap();
                assert!(outcomes[0].stored, "{outcomes:?}");
                assert_eq!(
                    self.sender.release(&[self.handles.lease]).await.unwrap(),
                    [v1::LeaseOutcome::Live]
                );
                self
            }
            S::AnotherSession => self.speak_anew(true).await,
            S::NotRegistered => self.speak_anew(false).await,
            S::Draining => {
                self.daemon.engine().begin_drain();
                self
            }
        }
    }

    /// Another session speaks; the one before lives on.
    async fn speak_anew(mut self, registered: bool) -> Self {
        let fresh = self.daemon.client().await.open("other").await.unwrap();
        if registered {
            fresh.register(&self.descriptor).await.unwrap();
        }
        self._held.push(std::mem::replace(&mut self.sender, fresh));
        self
    }

    /// The daemon of before is gone: the sender speaks to the next one, with its old id or in a session of its own.
    async fn in_another_life(mut self, own_session: bool) -> Self {
        let old = self.sender.id.clone();
        self = self.speak_anew(true).await;
        if !own_session {
            self.sender.id = old;
        }
        self
    }

    async fn abort_and_release(&self) {
        let Handles { reservation, lease, .. } = self.handles;
        assert_eq!(self.sender.abort(&[reservation]).await.unwrap(), [None]);
        assert_eq!(self.sender.release(&[lease]).await.unwrap(), [v1::LeaseOutcome::Live]);
    }

    fn bytes(&self) -> Vec<u8> {
        let full = fixture::full(&self.descriptor);
        pattern::blob(&self.descriptor, fixture::chunk(RESERVED), fixture::PART, full)
    }
    fn frames(&self) -> Vec<v1::PutFrame> {
        let (bytes, full) = (self.bytes(), fixture::full(&self.descriptor));
        self.sender.frames(self.handles.reservation, full, &bytes, bytes.len() / 3)
    }

    async fn send(&self, message: Message) -> Told {
        let (sender, handles) = (&self.sender, &self.handles);
        let namespace = self.descriptor.digest();
        let full = fixture::full(&self.descriptor);
        match message {
            M::Reserve => {
                let wish = item(fixture::chunk(RESERVED), fixture::PART, full, self.bytes().len());
                let request = v1::ReserveRequest {
                    session_id: sender.id.clone(),
                    namespace: raw_digest(namespace),
                    items: vec![wish],
                    epoch: handles.epoch,
                };
                match sender.client.store.clone().reserve(request).await {
                    Err(no) => whole(&no),
                    Ok(answer) => {
                        let outcome = answer.into_inner().outcomes[0];
                        assert_eq!(outcome.reservation_id, 0, "it was let in");
                        refused(outcome.refused).map_or_else(|| Already(outcome.already()), Refused)
                    }
                }
            }
            M::Commit => {
                let asks = vec![commit_item(handles.reservation, 0, full, &self.bytes())];
                sender.commit(asks).await.map_or_else(|no| whole(&no), |outcomes| stored(outcomes[0]))
            }
            M::Put => {
                sender.put(self.frames()).await.map_or_else(|no| whole(&no), |outcomes| stored(outcomes[0]))
            }
            M::Abort => sender.abort(&[handles.reservation]).await.map_or_else(
                |no| whole(&no),
                |refused| Refused(refused[0].expect("there is nothing to give back")),
            ),
            M::Get => match sender.get(handles.lease, vec![get_item(0, fixture::PART)]).await {
                Err(no) => whole(&no),
                Ok(stream) => match collect(stream, 1).await {
                    Err(no) => whole(&no),
                    Ok(mut parts) => parts.remove(0).map_or_else(Refused, |_| Same),
                },
            },
            M::Release => match sender.release(&[handles.lease]).await {
                Err(no) => whole(&no),
                Ok(outcomes) => {
                    assert_eq!(outcomes, [v1::LeaseOutcome::Expired], "it counted as good");
                    Expired
                }
            },
            M::Lookup => match sender.lookup(namespace, &[fixture::chunk(LEASED)], Ask::LEASE).await {
                Err(no) => whole(&no),
                Ok(found) => {
                    assert!(found.lease.is_none(), "something was leased: {found:?}");
                    Missed(refused(found.chunks[0].reason).expect("a reason"))
                }
            },
            M::Register => sender.register(&self.descriptor).await.map_or_else(|no| whole(&no), |_| Same),
            M::Attach => {
                let (socket, id) = (self.daemon.socket().to_owned(), sender.session_id());
                let attach = move || attach_blocking(&socket, id, STAGING_BYTES).unwrap();
                tokio::task::spawn_blocking(attach).await.unwrap().map_or_else(Refused, |_| Same)
            }
        }
    }

    /// Everything but how often something was asked and refused.
    fn state(&self) -> String {
        let (engine, mut state) = (self.daemon.engine(), String::new());
        let stats = engine.stats();
        write!(state, "{:?}", conserve::audit(engine)).unwrap();
        let held =
            [stats.staging_bytes, stats.reservations, stats.expired_leases, stats.expired_reservations];
        write!(state, " {held:?}").unwrap();
        for n in stats.namespaces {
            let kept = [n.ready_chunks, n.ready_bytes, n.pending_chunks, n.stored_bytes, n.evicted_chunks];
            write!(state, " {} {kept:?}", n.digest).unwrap();
        }
        state
    }
}

fn whole(status: &tonic::Status) -> Told {
    Refused(refusal(status).reason)
}

fn stored(outcome: v1::StoreOutcome) -> Told {
    assert!(!outcome.stored, "it was stored");
    Refused(refused(outcome.refused).expect("a reason"))
}

fn refusals(engine: &Engine, reason: Reason) -> u64 {
    engine.stats().refusals.iter().find(|(known, _)| *known == reason).map_or(0, |(_, count)| *count)
}

#[tokio::test(flavor = "multi_thread")]
async fn late_and_repeated_messages_are_told_why_and_change_nothing() {
    let mut wrong = Vec::new();
    for &(situation, rows) in TABLE {
        let scene = Scene::of(situation).await;
        // Calls of the setting-up are over for their caller a moment before the daemon has let go of them.
        conserve::until(scene.daemon.engine(), "calls are over", |a| a.readers + a.writers == 0).await;
        for &(message, expected) in rows {
            for time in ["late", "repeated"] {
                let before = scene.state();
                let counted = |told| match told {
                    Refused(reason) => refusals(scene.daemon.engine(), reason),
                    Expired | Already(_) | Missed(_) | Same => 0,
                };
                let count = counted(expected);
                let told = scene.send(message).await;
                conserve::until(scene.daemon.engine(), "calls are over", |a| a.readers + a.writers == 0)
                    .await;
                let after = scene.state();
                if told != expected {
                    wrong.push(format!(
                        "{situation:?}, {message:?} ({time}): told {told:?}, not {expected:?}"
                    ));
                } else if matches!(told, Refused(_)) && counted(told) <= count {
                    wrong.push(format!("{situation:?}, {message:?} ({time}): not counted"));
                }
                if before != after {
                    wrong.push(format!("{situation:?}, {message:?} ({time}) changed\n{before}\nto\n{after}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Handles of one start are none of another: neither their numbers nor the ids of sessions and starts come twice.
#[tokio::test(flavor = "multi_thread")]
async fn no_id_comes_twice_over_restarts_and_take_overs() {
    let mut daemon = Daemon::start(Setup::slots(4)).await;
    let descriptor = fixture::small("ids", SLOT_BLOCK_BYTES);
    let full = fixture::full(&descriptor);
    let (mut numbers, mut ids) = (Vec::new(), Vec::new());
    for life in 0..6 {
        let client: RawClient = daemon.client().await;
        let session = client.open_registered(&descriptor).await;
        ids.push(session.id.clone());
        ids.push(session.opened.boot_id.clone());
        session.must_store(&descriptor, fixture::chunk(1), fixture::PART, full).await;
        for _ in 0..20 {
            let ask = Ask::LEASE;
            let found = session.lookup(descriptor.digest(), &[fixture::chunk(1)], ask).await.unwrap();
            let lease = found.lease.unwrap().id;
            let size = usize::try_from(4 * SLOT_BLOCK_BYTES).unwrap();
            let wish = item(fixture::chunk(2), fixture::PART, full, size);
            let reservation = session.reserve_one(descriptor.digest(), wish).await.unwrap();
            numbers.extend([("lease", lease), ("reservation", reservation)]);
            session.abort(&[reservation]).await.unwrap();
            session.release(&[lease]).await.unwrap();
        }
        session.client.reset(descriptor.digest()).await.unwrap();
        drop(session);
        daemon = if life % 2 == 0 { daemon.take_over().await } else { daemon.restart().await };
    }
    let (count, mut distinct) = (numbers.len(), numbers.clone());
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), count, "a number came twice");
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "an id came twice");
}
