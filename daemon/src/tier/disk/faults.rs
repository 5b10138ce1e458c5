//! A disk that is sick.

use std::sync::Arc;

use nix::libc::{EIO, ENOSPC};

use super::tests::{Rig, chunk};
use super::*;
use crate::fault::{Fault, Faults};

#[tokio::test]
async fn a_write_that_fails_keeps_nothing_and_the_next_one_works() {
    let faults = Faults::begin();
    let rig = Rig::new();
    assert_eq!(rig.keep(chunk(0)).await, Kept::Yes);
    for (fault, errno) in
        [(Fault::DiskWrite, EIO), (Fault::DiskWriteShort, ENOSPC), (Fault::DiskWriteShort, EIO)]
    {
        faults.next(fault, 1, errno);
        assert_eq!(rig.keep(chunk(1)).await, Kept::Failed, "{fault:?}");
        assert_eq!(rig.find(chunk(1)).await, None);
    }
    assert_eq!(faults.happened(Fault::DiskWriteShort), 2);
    assert_eq!(rig.keep(chunk(1)).await, Kept::Yes);
    assert_eq!((rig.disk.stats().write_errors, rig.disk.stats().sick), (3, 0));
    let rig = rig.reopen().await;
    assert_eq!(rig.disk.stats().recovered_records, 2);
    rig.fetch(chunk(0)).await.unwrap();
    rig.fetch(chunk(1)).await.unwrap();
}

#[tokio::test]
async fn a_disk_that_fails_each_time_is_left_alone_and_slows_nobody() {
    let faults = Faults::begin();
    let rig = Rig::new();
    for n in 0..8 {
        assert_eq!(rig.keep(chunk(n)).await, Kept::Yes);
    }
    faults.always(Fault::DiskRead, EIO);
    for n in 0..5 {
        assert!(matches!(rig.fetch(chunk(n)).await, Err(FetchError::Unavailable(_))));
    }
    let asked = faults.happened(Fault::DiskRead);
    let stats = rig.disk.stats();
    assert_eq!((stats.read_errors, stats.sick), (5, 1));
    assert_eq!(rig.find(chunk(7)).await, None, "nobody is sent there");
    assert!(matches!(rig.fetch(chunk(7)).await, Err(FetchError::Unavailable(_))));
    assert_eq!(rig.keep(chunk(9)).await, Kept::Failed);
    assert_eq!(faults.happened(Fault::DiskRead), asked, "nor is it asked");
}

#[tokio::test]
async fn failing_writes_do_not_eat_what_was_kept() {
    let faults = Faults::begin();
    let rig = Rig::new();
    for n in 0..20 {
        assert_eq!(rig.keep(chunk(n)).await, Kept::Yes);
    }
    let before = rig.disk.stats().records;
    faults.always(Fault::DiskWrite, EIO);
    for n in 20..40 {
        assert_eq!(rig.keep(chunk(n)).await, Kept::Failed);
    }
    assert!(rig.disk.stats().records >= before - 6, "one segment at most");
    assert_eq!(rig.disk.stats().sick, 1);
}

#[tokio::test]
async fn a_reset_that_cannot_be_written_down_says_so() {
    let faults = Faults::begin();
    let rig = Rig::new();
    rig.keep(chunk(0)).await;
    faults.next(Fault::DiskNamespaces, 1, ENOSPC);
    assert!(rig.disk.reset(&rig.namespace(), None).await.is_err());
    assert_eq!(rig.find(chunk(0)).await, None, "this daemon forgets in any case");
    rig.disk.reset(&rig.namespace(), None).await.unwrap();
    let rig = rig.reopen().await;
    assert_eq!(rig.find(chunk(0)).await, None);
}

#[tokio::test]
async fn a_namespace_that_cannot_be_written_down_keeps_nothing() {
    let faults = Faults::begin();
    let rig = Rig::new();
    faults.next(Fault::DiskNamespaces, 1, EIO);
    assert_eq!(rig.keep(chunk(0)).await, Kept::Failed);
    assert_eq!(rig.keep(chunk(0)).await, Kept::Yes);
    rig.reopen().await.fetch(chunk(0)).await.unwrap();
}

#[tokio::test]
async fn a_sync_that_fails_is_counted_and_work_goes_on() {
    let faults = Faults::begin();
    let rig = Rig::new();
    rig.keep(chunk(0)).await;
    faults.next(Fault::DiskSync, 1, EIO);
    rig.disk.drain(super::tests::soon()).await;
    assert_eq!((faults.happened(Fault::DiskSync), rig.disk.stats().write_errors), (1, 1));
    assert_eq!(rig.keep(chunk(1)).await, Kept::Yes);
    let _folder = Arc::clone(&rig.folder);
}
