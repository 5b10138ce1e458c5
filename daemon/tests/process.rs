//! The program itself: exit codes, what it says, signals, and what it leaves behind.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::io::{BufRead, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PATIENCE: Duration = Duration::from_secs(30);

fn tenderd(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenderd"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TENDERD_")) {
        command.env_remove(name);
    }
    command.arg("--listen").arg(format!("unix:{}", dir.join("t.sock").display()));
    command.arg("--arena-path").arg(dir.join("arena")).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs one that is not to come up.
fn refused(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Starts one and returns its start line.
fn start(command: &mut Command) -> (Child, String) {
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line =
        lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("tenderd serves"))).unwrap().unwrap();
    // Somebody must go on reading, or its log would fill the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    (child, line)
}

fn signalled(child: &mut Child, signal: Signal) -> ExitStatus {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > give_up {
            child.kill().unwrap();
            panic!("it did not end after {signal}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn left(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn wrong_flags_variables_and_files_end_with_64_and_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let (code, text) = refused(&mut tenderd(dir.path(), &["--arena-siz", "1GiB"]));
    assert!(code == Some(64) && text.contains("--arena-size"), "{code:?} {text}");
    let (code, text) = refused(tenderd(dir.path(), &[]).env("TENDERD_LEASE_MAX", "soon"));
    assert!(code == Some(64) && text.contains("lease-max") && text.contains("30s"), "{code:?} {text}");
    let file = dir.path().join("tenderd.toml");
    std::fs::write(&file, "[arena]\nsize = \"1 MiB\"\ncolour = 1\n").unwrap();
    let (code, text) = refused(&mut tenderd(dir.path(), &["--config", file.to_str().unwrap()]));
    assert!(code == Some(64) && text.contains("tenderd.toml") && text.contains("line 3"), "{code:?} {text}");
    assert!(text.contains("colour") && !text.contains("panicked"), "{text}");
    assert_eq!(left(dir.path()), ["tenderd.toml"]);
}

#[test]
fn an_arena_that_does_not_fit_ends_with_1_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (code, text) = refused(&mut tenderd(dir.path(), &["--arena-size", "4TiB"]));
    assert!(code == Some(1) && text.contains("available"), "{code:?} {text}");
    assert!(left(dir.path()).is_empty(), "{:?}", left(dir.path()));
}

#[test]
fn a_signal_drains_and_ends_with_0_and_leaves_the_arena_only_if_it_is_to_be_kept() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let dir = tempfile::tempdir().unwrap();
        let settings = [
            "--arena-size",
            "16MiB",
            "--arena-keep",
            "false",
            "--listen",
            "tcp:127.0.0.1:0",
            "--allow-plaintext-tcp",
        ];
        let (mut child, line) = start(&mut tenderd(dir.path(), &settings));
        let socket = dir.path().join("t.sock");
        for part in
            [&format!("unix:{}", socket.display()), "tcp://127.0.0.1:", "16.0 MiB", &child.id().to_string()]
        {
            assert!(line.contains(part), "'{part}' is not in the start line: {line}");
        }
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(signalled(&mut child, signal).code(), Some(0));
        assert!(left(dir.path()).is_empty(), "{:?}", left(dir.path()));
        // A daemon that serves nobody but its own engine goes with all it had.
        for (settings, kept) in [(&["--exit-when-unused", "1h"][..], false), (&[], true)] {
            let settings = [&["--arena-size", "16MiB"], settings].concat();
            let (mut child, _) = start(&mut tenderd(dir.path(), &settings));
            assert_eq!(signalled(&mut child, signal).code(), Some(0));
            assert_eq!(left(dir.path()) == ["arena"], kept, "{:?}", left(dir.path()));
        }
    }
}

#[test]
fn a_variable_wins_over_the_file_and_a_flag_over_the_variable() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenderd.toml");
    std::fs::write(&file, "[arena]\nsize = \"8MiB\"\n").unwrap();
    let arguments = ["--config", file.to_str().unwrap()];
    let with_variable = |args: &[&str]| {
        let args = [&arguments[..], args].concat();
        let (mut child, line) = start(tenderd(dir.path(), &args).env("TENDERD_ARENA_SIZE", "16MiB"));
        signalled(&mut child, Signal::SIGTERM);
        line
    };
    let line = with_variable(&[]);
    assert!(line.contains("16.0 MiB"), "{line}");
    let line = with_variable(&["--arena-size", "32MiB"]);
    assert!(line.contains("32.0 MiB"), "{line}");
}

#[test]
fn a_dead_daemons_socket_is_replaced_and_a_living_ones_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("t.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let (mut child, _) = start(&mut tenderd(dir.path(), &["--arena-size", "16MiB"]));
    let other = dir.path().join("other");
    let mut second = tenderd(dir.path(), &["--arena-size", "16MiB", "--name", "second"]);
    let (code, text) = refused(second.arg("--arena-path").arg(&other));
    assert!(code == Some(64) || code == Some(1), "{code:?} {text}");
    assert!(UnixStream::connect(&socket).is_ok(), "the first still serves");
    assert_eq!(signalled(&mut child, Signal::SIGTERM).code(), Some(0));
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.sock"), "precious").unwrap();
    let (code, text) = refused(&mut tenderd(dir.path(), &["--arena-size", "16MiB"]));
    assert!(code == Some(1) && text.contains("t.sock"), "{code:?} {text}");
    assert_eq!(std::fs::read_to_string(dir.path().join("t.sock")).unwrap(), "precious");
}

/// The disk is a pipe whose other end this test holds and never writes to.
#[test]
fn a_daemon_whose_disk_hangs_ends_when_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("disk");
    std::fs::create_dir(&folder).unwrap();
    let list = folder.join("namespaces");
    nix::unistd::mkfifo(&list, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let settings = ["--arena-size", "16MiB", "--disk-size", "64MiB", "--disk-segment-size", "1MiB"];
    let mut command = tenderd(dir.path(), &settings);
    let mut child = command.arg("--disk-path").arg(&folder).stderr(Stdio::null()).spawn().unwrap();
    // Opens as soon as the daemon does.
    let hangs = std::fs::OpenOptions::new().write(true).open(&list).unwrap();
    assert_eq!(signalled(&mut child, Signal::SIGTERM).code(), Some(0));
    drop(hangs);
}

#[test]
fn an_unused_daemon_ends_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--arena-size", "16MiB", "--exit-when-unused", "300ms"];
    let output = tenderd(dir.path(), &args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(left(dir.path()).is_empty(), "{:?}", left(dir.path()));
}

/// The lines of a daemon's log, as they come.
struct Log(std::sync::mpsc::Receiver<String>);

impl Log {
    fn of(child: &mut Child) -> Self {
        let (lines, log) = std::sync::mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line)))
        });
        Self(log)
    }
    /// The next line with these words.
    fn until(&self, words: &str) -> String {
        loop {
            let line = self.0.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("never: {words}"));
            if line.contains(words) {
                return line;
            }
        }
    }
}

fn hang_up(child: &Child) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGHUP).unwrap();
}

#[test]
fn sighup_uses_what_may_change_names_what_may_not_and_refuses_a_wrong_file_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenderd.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("[arena]\nsize = \"16MiB\"\n");
    let admin = ["--admin", "127.0.0.1:0", "--log-format", "json", "--config", file.to_str().unwrap()];
    let mut child = tenderd(dir.path(), &admin).spawn().unwrap();
    let log = Log::of(&mut child);
    let served: serde_json::Value = serde_json::from_str(&log.until("tenderd serves")).unwrap();
    let admin = served["admin"].as_str().unwrap().to_owned();

    write("[arena]\nsize = \"32MiB\"\n[limits]\nmax_sessions = 1\n[log]\nlevel = \"debug\"\n");
    hang_up(&child);
    let line = log.until("needs a restart");
    assert!(line.contains("arena.size") && line.contains("16.0 MiB") && line.contains("32.0 MiB"), "{line}");
    let line = log.until("limits.max_sessions");
    assert!(line.contains("\"old\":\"default\"") && line.contains("\"new\":\"1\""), "{line}");
    log.until("log.level");
    log.until("was read again");

    write("[limits]\nmax_sessions = 0\nsize = 3\n");
    hang_up(&child);
    let line = log.until("nothing of it is used");
    assert!(line.contains("tenderd.toml") && line.contains("line 3"), "{line}");

    // Only the level of the file lets this line through.
    write("[arena]\nsize = \"16MiB\"\n[log]\nlevel = \"error\"\n");
    hang_up(&child);
    let counted = |what: &str| {
        let give_up = Instant::now() + PATIENCE;
        while !metrics(&admin).contains(what) {
            assert!(Instant::now() < give_up, "never: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    counted("tender_reloads_total{what=\"configuration\",outcome=\"used\"} 2");
    counted("tender_reloads_total{what=\"configuration\",outcome=\"refused\"} 1");
    let at_error = log.0.try_iter().filter(|line| line.contains("was read again")).count();
    assert_eq!(at_error, 0, "the level was error by then");
    signalled(&mut child, Signal::SIGTERM);
}

fn metrics(admin: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(admin).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_line_of_text_begins_with_its_time_and_level_and_one_of_json_is_an_object() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, line) = start(&mut tenderd(dir.path(), &["--arena-size", "16MiB"]));
    let mut words = line.split_whitespace();
    let time = words.next().unwrap();
    assert!(time.len() == "2026-01-31T23:59:59.123Z".len() && time.ends_with('Z'), "{line}");
    assert_eq!(
        (words.next(), words.next(), words.next()),
        (Some("INFO"), Some("tenderd"), Some("serves")),
        "{line}"
    );
    signalled(&mut child, Signal::SIGTERM);
    let (mut child, line) =
        start(&mut tenderd(dir.path(), &["--arena-size", "16MiB", "--log-format", "json"]));
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((line["level"].as_str(), line["message"].as_str()), (Some("INFO"), Some("tenderd serves")));
    signalled(&mut child, Signal::SIGTERM);
}
