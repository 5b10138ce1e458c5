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

/// Its superblock is a pipe that nobody writes: opening it takes until somebody does.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_does_not_wait_for_ever_for_a_disk_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path()).disk.unwrap();
    let pipe = config.path.join("superblock");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let opened = tiers::open_in_time(&config, Duration::from_millis(50)).await.unwrap();
    let said = opened.map(drop).unwrap_err().to_string();
    assert!(said.contains("come to no end") && said.contains(&config.path.display().to_string()), "{said}");
    std::fs::write(&pipe, b"let it go").unwrap();
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

#[tokio::test(flavor = "multi_thread")]
async fn after_a_take_over_in_vain_what_was_reloaded_before_is_still_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenderd.toml");
    let write = |sessions: usize| {
        let text = format!(
            "listen = [\"unix:{0}/tenderd.sock\"]\n[arena]\npath = \"{0}/arena\"\nsize = \"16MiB\"\n[limits]\nmax_sessions = {sessions}\nmax_inflight = \"8MiB\"\nmax_session_inflight = \"8MiB\"\n",
            dir.path().display()
        );
        std::fs::write(&file, text).unwrap();
    };
    write(2);
    let config = Config::load(["tenderd".into(), "--config".into(), file.clone().into()]).unwrap();
    let app = started(&config).await;
    write(1);
    let reread = config.source.reread().unwrap().unwrap();
    app.engine().set_limits(crate::engine::Limits::from(&reread.config.engine));
    *app.in_force.lock() = reread.config;
    let taking = spawn_take(config.clone());
    let coming = app.successor().await;
    let handing = tokio::spawn(app.hand_over(coming));
    drop(taking.await.unwrap().unwrap().expect("somebody runs there"));
    let app = kept(handing.await.unwrap().unwrap());
    app.phase().wait_for(|phase| phase.is_ready()).await.unwrap();
    let _one = app.engine().open_session("one", 1).unwrap();
    assert!(app.engine().open_session("two", 1).is_err(), "the limit of before the reload is back");
    app.shutdown().await;
}

fn spawn_take(config: Config) -> tokio::task::JoinHandle<Result<Option<crate::takeover::Taken>, AppError>> {
    tokio::spawn(async move { take(&config).await })
}
