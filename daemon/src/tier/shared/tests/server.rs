//! Programs that a test starts and ends: the real stores.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

/// Ends when it is dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    child: Child,
    _dir: TempDir,
}

impl Server {
    /// Debian's redis-server, which keeps nothing on disk.
    pub(super) fn redis(password: Option<&str>) -> Self {
        let start = |port: u16, dir: &TempDir| {
            let mut command = Command::new("redis-server");
            command.args([
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--port",
                &port.to_string(),
            ]);
            command.arg("--dir").arg(dir.path());
            if let Some(password) = password {
                command.args(["--requirepass", password]);
            }
            command
        };
        Self::start("redis-server is missing: run scripts/setup.sh, or apt-get install redis-server", start)
    }

    /// moto's S3; after `free_calls` unsigned or unknown callers are refused.
    pub(super) fn s3(free_calls: Option<u32>) -> Self {
        let start = |port: u16, dir: &TempDir| {
            let mut command = Command::new(python());
            command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()]);
            command.current_dir(dir.path());
            if let Some(calls) = free_calls {
                command.env("INITIAL_NO_AUTH_ACTION_COUNT", calls.to_string());
            }
            command
        };
        Self::start(
            "moto is missing: run scripts/setup.sh, or pip install 'moto[s3,server]' into .venv",
            start,
        )
    }

    fn start(missing: &str, command: impl Fn(u16, &TempDir) -> Command) -> Self {
        // Between the choice of a port and its use, another program may take it: then once more.
        for _ in 0..5 {
            let dir = tempfile::tempdir().unwrap();
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mut command = command(address.port(), &dir);
            let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let mut server = Self { address, child: spawned.expect(missing), _dir: dir };
            if server.answers() {
                return server;
            }
        }
        panic!("the server ended before it answered. {missing}");
    }

    fn answers(&mut self) -> bool {
        let until = soon();
        while self.child.try_wait().unwrap().is_none() {
            if TcpStream::connect(self.address).is_ok() {
                return true;
            }
            assert!(Instant::now() < until, "{} does not answer", self.address);
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    pub(super) fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }
    pub(super) fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }
    pub(super) fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Makes a bucket of an S3 API.
    pub(super) fn make_bucket(&self, name: &str) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let authorization = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, \
                             SignedHeaders=host, Signature=0";
        write!(
            stream,
            "PUT /{name} HTTP/1.1\r\nHost: {}\r\nAuthorization: {authorization}\r\nContent-Length: 0\r\n\
             Connection: close\r\n\r\n",
            self.address
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn python() -> PathBuf {
    let chosen = std::env::var_os("TENDER_TEST_PYTHON").map(PathBuf::from);
    chosen.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.venv/bin/python")))
}
