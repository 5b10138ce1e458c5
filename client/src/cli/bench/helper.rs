//! The other processes of a measurement: this program once more, under a command that people do not see.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::{failed, peer, storers};
use crate::config::Address;
use crate::error::ClientError;

/// Started by `tender bench`, not by people.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Peer {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, clap::Subcommand)]
enum Role {
    /// The other end of a bare stream.
    Bare {
        #[arg(long)]
        bytes: usize,
        #[arg(long)]
        certificates: Option<PathBuf>,
    },
    /// Clients that store without end.
    Store {
        #[arg(long)]
        daemon: Address,
        #[arg(long)]
        clients: usize,
    },
}

impl Peer {
    pub(in crate::cli) fn run(&self) -> Result<String, ClientError> {
        match &self.role {
            Role::Bare { bytes, certificates } => peer::serve(*bytes, certificates.as_deref())?,
            Role::Store { daemon, clients } => storers::serve(daemon, *clients)?,
        }
        Ok(String::new())
    }
}

/// A process that has said its first line. Ended with this.
pub(super) struct Helper {
    child: Child,
    line: String,
}

impl Helper {
    /// Starts one. It may end when its standard input does, which is when we do.
    pub(super) fn start(arguments: &[OsString]) -> Result<Self, ClientError> {
        let error = |error| failed("another process", error);
        let child = Command::new(std::env::current_exe().map_err(error)?)
            .arg("bench-peer")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(error)?;
        let mut helper = Self { child, line: String::new() };
        if let Some(stdout) = helper.child.stdout.take() {
            BufReader::new(stdout).read_line(&mut helper.line).map_err(error)?;
        }
        Ok(helper)
    }

    /// What it said, without the line's end.
    pub(super) fn line(&self) -> &str {
        self.line.trim_end()
    }
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
