//! A private daemon for the measurements.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::certificates::Certificates;
use super::failed;
use crate::admin;
use crate::config::Address;
use crate::credentials::Credentials;
use crate::error::ClientError;

/// Touching every page of the arena may take this long.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Stopped, and its files removed, when this is dropped.
pub(super) struct Daemon {
    child: Child,
    pub(super) local: Address,
    pub(super) remote: Address,
    pub(super) secure: Address,
    pub(super) certificates: Certificates,
    _dir: PrivateFolder,
}

impl Daemon {
    /// With these flags beside its own.
    pub(super) fn start(
        program: Option<&Path>,
        arena_bytes: u64,
        settings: &[String],
    ) -> Result<Self, ClientError> {
        let program = program.map_or_else(|| beside_us("tenderd"), PathBuf::from);
        let dir = PrivateFolder::make("daemon")?;
        let local = Address::Unix(dir.path().join("tenderd.sock"));
        let remote: Address = format!("tcp://127.0.0.1:{}", free_port()?).parse()?;
        let secure: Address = format!("tls://127.0.0.1:{}", free_port()?).parse()?;
        let certificates = Certificates::make(dir.path())?;
        let listen = [&local, &remote, &secure].map(ToString::to_string);
        let child = Command::new(&program)
            .args(listen.iter().flat_map(|address| ["--listen", address]))
            .arg("--allow-plaintext-tcp")
            .arg("--tls-cert")
            .arg(certificates.certificate())
            .arg("--tls-key")
            .arg(certificates.key())
            .args(["--tls-client-auth", "none"])
            .args(["--name", &name()])
            .args(["--arena-size", &arena_bytes.to_string(), "--arena-keep", "false", "--log-level", "warn"])
            .args(settings)
            .stdin(Stdio::null())
            .spawn()
            .map_err(|source| {
                tracing::debug!(program = %program.display(), %source, "spawn");
                failed("tenderd", format!("{} ({source}); name it with --tenderd", program.display()))
            })?;
        let mut daemon = Self { child, local, remote, secure, certificates, _dir: dir };
        daemon.wait()?;
        Ok(daemon)
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    fn wait(&mut self) -> Result<(), ClientError> {
        let start = Instant::now();
        while !admin::ping(&self.local, &Credentials::default(), Duration::from_secs(1))
            .is_ok_and(|pong| pong.ready)
        {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(failed("tenderd", format!("it ended with {status}; its message is above")));
            }
            if start.elapsed() > READY_WITHIN {
                return Err(failed("tenderd", "it is not ready after two minutes"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A private daemon has nothing to drain.
        _ = self.child.kill();
        _ = self.child.wait();
        // Killed, it leaves the socket where a successor would ask, too.
        for beside in ["", ".takeover"] {
            _ = std::fs::remove_file(format!("/dev/shm/tender-{}.arena{beside}", name()));
        }
    }
}

/// One daemon of this process runs at a time.
fn name() -> String {
    format!("bench-{}", std::process::id())
}

/// A folder of this process that nobody else can look into, removed when this is dropped.
pub(super) struct PrivateFolder(PathBuf);

impl PrivateFolder {
    pub(super) fn make(what: &str) -> Result<Self, ClientError> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("tender-bench-{}-{what}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| failed("a folder", format!("{}: {error}", path.display())))?;
        Ok(Self(path))
    }
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The program of the same build, or whatever the PATH has.
pub(super) fn beside_us(name: &str) -> PathBuf {
    let sibling = std::env::current_exe().ok().map(|exe| exe.with_file_name(name));
    sibling.filter(|path| path.is_file()).unwrap_or_else(|| name.into())
}

/// A port that nobody has now.
pub(super) fn free_port() -> Result<u16, ClientError> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(port.map_err(|error| failed("a port", error))?.port())
}
