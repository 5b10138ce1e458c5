//! A private daemon for the measurements.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
    dir: PathBuf,
    pub(super) local: Address,
    pub(super) remote: Address,
}

impl Daemon {
    /// With these flags beside its own.
    pub(super) fn start(
        program: Option<&Path>,
        arena_bytes: u64,
        settings: &[String],
    ) -> Result<Self, ClientError> {
        let program = program.map_or_else(beside_us, PathBuf::from);
        let dir = std::env::temp_dir().join(format!("tender-bench-{}", std::process::id()));
        let socket = dir.join("tenderd.sock");
        let local = Address::Unix(socket.clone());
        let remote: Address = format!("tcp://127.0.0.1:{}", free_port()?).parse()?;
        let child = Command::new(&program)
            .args(["--listen", &local.to_string(), "--listen", &remote.to_string(), "--allow-plaintext-tcp"])
            .args(["--name", &format!("bench-{}", std::process::id())])
            .args(["--arena-size", &arena_bytes.to_string(), "--arena-keep", "false", "--log-level", "warn"])
            .args(settings)
            .stdin(Stdio::null())
            .spawn()
            .map_err(|source| {
                tracing::debug!(program = %program.display(), %source, "spawn");
                failed("tenderd", format!("{} ({source}); name it with --tenderd", program.display()))
            })?;
        let mut daemon = Self { child, dir, local, remote };
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
            _ = std::fs::remove_file(format!("/dev/shm/tender-bench-{}.arena{beside}", std::process::id()));
        }
        _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The program of the same build, or whatever the PATH has.
fn beside_us() -> PathBuf {
    let sibling = std::env::current_exe().ok().map(|exe| exe.with_file_name("tenderd"));
    sibling.filter(|path| path.is_file()).unwrap_or_else(|| "tenderd".into())
}

fn free_port() -> Result<u16, ClientError> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(port.map_err(|error| failed("a port", error))?.port())
}
