//! `tender verify`, `tender reset`, `tender drain`: what an operator tells a daemon to do.

use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tender_proto::{Reason, Refusal};

use super::{Done, Target, ago, json, pick};
use crate::admin::{self, ResetScope, Verified};
use crate::error::ClientError;

/// Reading and hashing takes the time it takes; between two words of it there is at most this.
const VERIFY_LEAST: Duration = Duration::from_secs(60);
/// How often a daemon that ends is looked at.
const DRAIN_TICK: Duration = Duration::from_millis(100);
/// Beyond its grace time, a daemon closes its connections and its arena.
const DRAIN_MARGIN: Duration = Duration::from_secs(30);

/// One namespace or all.
#[derive(Debug, clap::Args)]
struct Scope {
    /// Its name, or the first digits of its digest.
    #[arg(value_name = "NAMESPACE", conflicts_with = "all")]
    namespace: Option<String>,
    /// Every namespace.
    #[arg(long)]
    all: bool,
}

impl Scope {
    /// What is meant, and its name for a person.
    fn resolve(&self, target: &Target) -> Result<Option<(ResetScope, String)>, ClientError> {
        let Some(name) = &self.namespace else {
            return Ok(self.all.then(|| (ResetScope::All, "every namespace".to_owned())));
        };
        let all = pick::all(target)?;
        let ns = pick::one(&all, name)?;
        let label = format!("{} ({}, {} chunks)", pick::label(ns), ns.descriptor.model, ns.ready_chunks);
        Ok(Some((ResetScope::Namespace(ns.digest), label)))
    }
}

/// Has stored bytes verified.
#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    #[command(flatten)]
    scope: Scope,
    /// As JSON: {"good_chunks", "bad_chunks", "read_bytes", "total_bytes", "bad": [...], "done"}.
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(super) fn run(&self, target: &Target) -> Result<Done, ClientError> {
        let scope = self.scope.resolve(target)?.map_or(ResetScope::All, |(scope, _)| scope);
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}")
        {
            bar.set_style(style);
        }
        let limit = target.timeout.max(VERIFY_LEAST);
        let begun = Instant::now();
        let seen = admin::verify(&target.address, &target.credentials()?, scope, limit, |seen| {
            bar.set_length(seen.total_bytes);
            bar.set_position(seen.read_bytes);
        });
        bar.finish_and_clear();
        let seen = seen?;
        let well = seen.bad_chunks == 0;
        let text = if self.json { json(&seen)? } else { verified(&seen, begun.elapsed()) };
        Ok(Done { text, well })
    }
}

fn verified(seen: &Verified, took: Duration) -> String {
    let mut out = format!(
        "{} chunks are good, {} were bad: {} read in {:.1} s\n",
        seen.good_chunks,
        seen.bad_chunks,
        ByteSize(seen.read_bytes),
        took.as_secs_f64()
    );
    for bad in &seen.bad {
        _ = writeln!(out, "bad: namespace {} group {} key {}", bad.namespace, bad.group, bad.key);
    }
    if seen.bad_chunks > 0 {
        out.push_str(
            "Bad chunks are taken out and will be computed anew. Bytes that change in memory mean a failing machine: check \
             its memory.\n",
        );
    }
    out
}

/// Makes the daemon forget.
#[derive(Debug, clap::Args)]
pub(super) struct Reset {
    #[command(flatten)]
    scope: Scope,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
    /// As JSON: {"chunks", "fenced_reservations", "may_remain_elsewhere"}.
    #[arg(long)]
    json: bool,
}

impl Reset {
    pub(super) fn run(&self, target: &Target) -> Result<String, ClientError> {
        let Some((scope, label)) = self.scope.resolve(target)? else {
            return Err(no("a reset of nothing", "name a namespace of `tender ls`, or say --all").into());
        };
        if !self.yes {
            let terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
            confirm(&label, terminal, &mut std::io::stdin().lock(), &mut std::io::stderr())?;
        }
        let dropped = admin::reset(&target.address, &target.credentials()?, scope, target.timeout)?;
        if self.json {
            return json(&dropped);
        }
        let fenced = dropped.fenced_reservations;
        let mut text =
            format!("Forgotten: {label}; {} chunks, and {fenced} stores under way\n", dropped.chunks);
        if dropped.may_remain_elsewhere {
            text += "Other daemons keep what they hold of namespaces that this one does not know: reset them too\n";
        }
        Ok(text)
    }
}

/// Whoever cannot be asked must have said so.
fn confirm(
    label: &str,
    terminal: bool,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> Result<(), Refusal> {
    let subject = format!("the reset of {label}");
    if !terminal {
        return Err(no(subject, "there is no terminal to ask at: say --yes"));
    }
    _ = write!(output, "Forget everything stored in {label}? Engines compute it anew. [y/N] ");
    _ = output.flush();
    let mut answer = String::new();
    _ = input.read_line(&mut answer);
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(no(subject, "nothing was done; answer y to do it")),
    }
}

/// Stops the daemon in order.
#[derive(Debug, clap::Args)]
pub(super) struct Drain {
    /// Return when it has ended, not before.
    #[arg(long)]
    wait: bool,
    /// As JSON: {"grace_ms", "ended"}.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Drained {
    grace_ms: u64,
    ended: bool,
}

impl Drain {
    pub(super) fn run(&self, target: &Target) -> Result<String, ClientError> {
        let credentials = target.credentials()?;
        let boot = admin::ping(&target.address, &credentials, target.timeout)?.boot_id;
        let grace = admin::drain(&target.address, &credentials, target.timeout)?;
        let give_up = Instant::now() + grace + DRAIN_MARGIN;
        // Another daemon may be there at once.
        let runs = || {
            let pong = admin::ping(&target.address, &credentials, target.timeout);
            pong.is_ok_and(|pong| pong.boot_id == boot)
        };
        let mut ended = false;
        while self.wait && !ended {
            if Instant::now() > give_up {
                return Err(no("the end of the daemon", "it still answers; see its log").into());
            }
            std::thread::sleep(DRAIN_TICK);
            ended = !runs();
        }
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        if self.json {
            return json(&Drained { grace_ms, ended });
        }
        Ok(match ended {
            true => "The daemon has ended.\n".to_owned(),
            false => {
                format!("The daemon drains: nothing new begins, what runs has {}.\n", ago(grace_ms))
            }
        })
    }
}

fn no(subject: impl Into<String>, advice: &str) -> Refusal {
    Refusal::new(Reason::Malformed, subject, advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::BadChunk;

    fn asked(terminal: bool, answer: &str) -> (Result<(), Refusal>, String) {
        let mut said = Vec::new();
        let done = confirm("every namespace", terminal, &mut answer.as_bytes(), &mut said);
        (done, String::from_utf8(said).unwrap())
    }

    #[test]
    fn a_reset_is_done_only_after_a_yes() {
        assert!(asked(true, "y\n").0.is_ok() && asked(true, "YES\n").0.is_ok());
        for other in ["\n", "n\n", "yesterday\n", ""] {
            assert!(asked(true, other).0.is_err(), "{other:?}");
        }
        assert!(asked(true, "y\n").1.contains("every namespace"));
    }

    #[test]
    fn without_a_terminal_nobody_is_asked() {
        let (done, said) = asked(false, "y\n");
        assert!(done.unwrap_err().to_string().contains("--yes") && said.is_empty());
    }

    #[test]
    fn bad_chunks_are_named() {
        let bad = BadChunk { namespace: "ab".into(), group: 1, key: "cd".into() };
        let seen = Verified { good_chunks: 3, bad_chunks: 1, bad: vec![bad], ..Verified::default() };
        let text = verified(&seen, Duration::from_millis(1500));
        assert!(text.starts_with("3 chunks are good, 1 were bad") && text.contains("1.5 s"), "{text}");
        assert!(text.contains("namespace ab group 1 key cd") && text.contains("memory"), "{text}");
    }
}
