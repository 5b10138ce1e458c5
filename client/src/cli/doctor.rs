//! `tender doctor`: what is wrong, and what to do about it.
//!
//! Each check is a small function over what was seen ([`host`] reads this machine below a root that tests choose), so every
//! finding has a test.

mod checks;
mod host;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytesize::ByteSize;
use serde::Serialize;

use super::{Done, Target, json, sentence};
use crate::admin::{self, Facts, Pong};
use crate::error::ClientError;
use host::Host;

/// Checks the daemon, its host and what it depends on.
#[derive(Debug, clap::Args)]
pub(super) struct Doctor {
    /// Where no daemon answers: the size of the arena that is to fit.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    arena_size: ByteSize,
    /// And the folder that it is to lie in.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    arena_dir: PathBuf,
    /// As JSON: {"findings": [{"check", "level", "text", "remedy"}], "failed"}.
    #[arg(long)]
    json: bool,
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// It works, and not well, or not for long.
    Warn,
    /// It does not work.
    Fail,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    text: String,
    /// Empty where nothing is to be done.
    remedy: String,
}

impl Finding {
    fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, text: text.into(), remedy: String::new() }
    }
    fn new(check: &'static str, level: Level, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, level, text: text.into(), remedy: remedy.into() }
    }
}

/// What the checks look at.
#[derive(Debug)]
struct Seen {
    host: Host,
    /// Of a `unix:` address.
    socket: Option<PathBuf>,
    pong: Result<Pong, String>,
    /// `Err`: why the daemon did not tell, where it answers.
    facts: Result<Facts, String>,
    now_unix_s: u64,
    /// This side's certificate, if one is shown.
    certificate: Option<PathBuf>,
    arena_bytes: u64,
    arena_dir: PathBuf,
}

#[derive(Serialize)]
struct Report {
    findings: Vec<Finding>,
    failed: bool,
}

impl Doctor {
    pub(super) fn run(&self, target: &Target) -> Result<Done, ClientError> {
        let credentials = target.credentials()?;
        let pong = admin::ping(&target.address, &credentials, target.timeout).map_err(|no| sentence(&no));
        let facts = match &pong {
            Ok(_) => {
                admin::inspect(&target.address, &credentials, target.timeout).map_err(|no| sentence(&no))
            }
            Err(why) => Err(why.clone()),
        };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seen = Seen {
            host: Host::at(Path::new("/")),
            socket: match &target.address {
                crate::Address::Unix(path) => Some(path.clone()),
                crate::Address::Tcp { .. } | crate::Address::Tls { .. } => None,
            },
            pong,
            facts,
            now_unix_s: since_1970.as_secs(),
            certificate: target.tls_cert.clone(),
            arena_bytes: self.arena_size.as_u64(),
            arena_dir: self.arena_dir.clone(),
        };
        let findings = checks::all(&seen);
        let failed = findings.iter().any(|finding| finding.level == Level::Fail);
        let text = if self.json { json(&Report { findings, failed })? } else { render(&findings) };
        Ok(Done { text, well: !failed })
    }
}

fn render(findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings {
        let mark = match finding.level {
            Level::Ok => "ok  ",
            Level::Note => "note",
            Level::Warn => "WARN",
            Level::Fail => "FAIL",
        };
        _ = writeln!(out, "{mark}  {:<12} {}", finding.check, finding.text);
        if !finding.remedy.is_empty() {
            _ = writeln!(out, "{:19}-> {}", "", finding.remedy);
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    _ = writeln!(out, "\n{} failed, {} to look at", count(Level::Fail), count(Level::Warn));
    out
}
