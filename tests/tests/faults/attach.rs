//! The hand-over of memory to local clients, and the doors: no memory, no descriptors, a client that is gone.

use std::time::{Duration, Instant};

use tender_daemon::fault::{Fault, Faults};
use tender_proto::{Reason, SessionId};
use tender_tests::attach::{Attachment, attach, attach_blocking};
use tender_tests::daemon::{Daemon, Setup};
use tender_tests::raw::RawClient;
use tender_tests::{conserve, fixture, pattern};

use super::{BLOCK_BYTES, EIO, EMFILE, ENOMEM, ENOSPC};

const STAGING_BYTES: u64 = 1 << 20;

async fn asked(daemon: &Daemon, session: SessionId) -> std::io::Result<Result<Attachment, Reason>> {
    let socket = daemon.socket().to_owned();
    let ask = move || attach_blocking(&socket, session, STAGING_BYTES);
    tokio::task::spawn_blocking(ask).await.unwrap()
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The daemon closes its end of a connection a moment after the client went away.
async fn no_more_open_files_than(before: usize) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while open_files() > before && Instant::now() < give_up {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(open_files() <= before, "{} open files, {before} before", open_files());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_memory_or_descriptors_a_session_is_told_so_and_goes_on_over_the_network() {
    let faults = Faults::begin();
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("attach", BLOCK_BYTES);
    let session = daemon.client().await.open_registered(&descriptor).await;
    let before = open_files();
    for (n, (fault, errno, reason)) in (1..).zip([
        (Fault::StagingCreate, EMFILE, Reason::TooMany),
        (Fault::StagingCreate, ENOMEM, Reason::NoSpace),
        (Fault::StagingReserve, ENOSPC, Reason::NoSpace),
        (Fault::StagingReserve, EIO, Reason::Internal),
        (Fault::StagingMap, ENOMEM, Reason::NoSpace),
    ]) {
        faults.always(fault, errno);
        let answer = asked(&daemon, session.session_id()).await.unwrap();
        assert_eq!(answer.map(drop), Err(reason), "{fault:?} {errno}");
        assert!(faults.happened(fault) > 0, "{fault:?}");
        faults.never(fault);
        assert_eq!(daemon.engine().stats().staging_bytes, 0, "{fault:?}");
        assert!(session.client.refused(reason).await > 0);
        session.must_store(&descriptor, fixture::chunk(n), fixture::PART, fixture::full(&descriptor)).await;
    }
    no_more_open_files_than(before).await;
    let attached = attach(daemon.socket(), &session, STAGING_BYTES).await;
    let found = attached.read(&session, descriptor.digest(), fixture::chunk(1), fixture::PART).await;
    let right = pattern::blob(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor));
    assert!(found.unwrap().1 == right);
    drop((attached, session));
    conserve::deserted(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_that_do_not_arrive_are_asked_for_again_and_nothing_is_made_twice() {
    let faults = Faults::begin();
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("attach", BLOCK_BYTES);
    let session = daemon.client().await.open_registered(&descriptor).await;
    let before = open_files();
    faults.always(Fault::ArenaDescriptor, EMFILE);
    let answer = asked(&daemon, session.session_id()).await.unwrap();
    assert_eq!(answer.map(drop), Err(Reason::TooMany));
    faults.never(Fault::ArenaDescriptor);
    faults.always(Fault::SendDescriptors, nix::libc::EPIPE);
    for _ in 0..3 {
        asked(&daemon, session.session_id()).await.expect_err("the end of the stream");
    }
    assert_eq!(faults.happened(Fault::SendDescriptors), 3);
    faults.never(Fault::SendDescriptors);
    // The region is the session's since the first time; it has one descriptor.
    assert_eq!(daemon.engine().stats().staging_bytes, STAGING_BYTES);
    drop(attach(daemon.socket(), &session, STAGING_BYTES).await);
    assert_eq!(daemon.engine().stats().staging_bytes, STAGING_BYTES);
    drop(session);
    conserve::deserted(daemon.engine()).await;
    let give_up = Instant::now() + Duration::from_secs(10);
    while open_files() >= before {
        assert!(Instant::now() < give_up, "{} open files, {before} before", open_files());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_accepted_may_come_again_and_who_is_in_stays_in() {
    let faults = Faults::begin();
    let daemon = Daemon::start(Setup::default()).await;
    let descriptor = fixture::small("door", BLOCK_BYTES);
    let session = daemon.client().await.open_registered(&descriptor).await;
    faults.always(Fault::Accept, EMFILE);
    for target in [daemon.unix(), daemon.tcp()] {
        // Connecting is the kernel's work; a call shows whether the daemon took the connection.
        let gone = match RawClient::connect(&target).await {
            Ok(client) => client.ping().await.is_err(),
            Err(_) => true,
        };
        assert!(gone);
    }
    asked(&daemon, session.session_id()).await.expect_err("turned away");
    assert!(faults.happened(Fault::Accept) >= 3);
    faults.never(Fault::Accept);
    session.must_store(&descriptor, fixture::chunk(1), fixture::PART, fixture::full(&descriptor)).await;
    assert!(daemon.client().await.ping().await.is_ok() && daemon.tcp_client().await.ping().await.is_ok());
    drop(attach(daemon.socket(), &session, STAGING_BYTES).await);
    drop(session);
    conserve::deserted(daemon.engine()).await;
}
