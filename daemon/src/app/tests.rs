//! Take-overs of a daemon whose disk hangs or has gone.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::config::DiskConfig;
use crate::takeover::{TakeOverError, take};

fn config(dir: &Path) -> Config {
    let folder = dir.join("disk");
    std::fs::create_dir_all(&folder).unwrap();
    let mut config = Config {
        listen: vec![Listen::Unix(dir.join("tenderd.sock"))],
        admin: None,
        drain_grace: Duration::from_millis(100),
        disk: Some(DiskConfig {
            path: folder,
            bytes: 32 << 20,
            segment_bytes: 1 << 20,
            write_bytes_per_second: 1 << 30,
            reads: 2,
            discard: false,
        }),
        ..Config::default()
    };
    config.engine.arena.place = dir.join("arena");
    config.engine.arena.bytes = 16 << 20;
    config.engine.max_inflight_bytes = 8 << 20;
    config.engine.max_session_inflight_bytes = 8 << 20;
    config
}

async fn started(config: &Config) -> RunningApp {
    let app = RunningApp::start(config.clone()).await.unwrap();
    app.phase().wait_for(|phase| phase.is_ready()).await.unwrap();
    app
}

fn kept(outcome: HandedOver) -> RunningApp {
    match outcome {
        HandedOver::Kept(app) => *app,
        HandedOver::Given => panic!("nobody serves"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_is_refused_while_a_read_of_the_disk_hangs_and_the_daemon_serves_on() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let app = started(&config).await;
    let engine = Arc::clone(app.engine());
    let session = engine.open_session("before", 1).unwrap();
    let hangs = engine.reading().expect("nobody takes over yet");
    let taking = spawn_take(config.clone());
    let coming = app.successor().await;
    let app = kept(app.hand_over(coming).await.unwrap());
    match taking.await.unwrap() {
        Err(AppError::TakeOver(TakeOverError::Refused { why, .. })) => assert!(why.contains("disk"), "{why}"),
        other => panic!("{:?}", other.map(|_| "taken")),
    }
    assert!(app.phase().borrow().is_ready() && app.tiers.stack.is_some());
    engine.open_session("after", 1).unwrap();
    assert!(engine.check_owner(session, &crate::session::Owner::in_process()).is_ok(), "it lives on");
    drop(hangs);
    assert!(engine.reading().is_some(), "files are read into the arena again");
    app.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_take_over_in_vain_a_disk_that_is_gone_does_not_end_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let app = started(&config).await;
    let taking = spawn_take(config.clone());
    let coming = app.successor().await;
    let handing = tokio::spawn(app.hand_over(coming));
    let taken = taking.await.unwrap().unwrap().expect("somebody runs there");
    std::fs::rename(dir.path().join("disk"), dir.path().join("unplugged")).unwrap();
    drop(taken);
    let app = kept(handing.await.unwrap().unwrap());
    app.phase().wait_for(|phase| phase.is_ready()).await.unwrap();
    assert!(app.tiers.stack.is_none());
    app.engine().open_session("served", 1).unwrap();
    app.shutdown().await;
}

fn spawn_take(config: Config) -> tokio::task::JoinHandle<Result<Option<crate::takeover::Taken>, AppError>> {
    tokio::spawn(async move { take(&config).await })
}
