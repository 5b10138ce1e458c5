//! The tool `tender`: what an operator asks a daemon. It lives in the library so that the Python wheel can
//! carry it too.
//!
//! Exit codes: 0 it worked, 1 the daemon could not be reached or said no, or what was checked is not well, 64 the command
//! line is wrong.

mod act;
mod bench;
mod differ;
mod doctor;
mod events;
mod explain;
mod keys;
mod ls;
mod pick;
mod ping;
mod shell;
mod stat;
mod top;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use tender_proto::Reason;

use crate::config::{Address, DEFAULT_ADDRESS};
use crate::credentials::{Credentials, TlsConfig};
use crate::error::ClientError;

/// As `sysexits.h` has it: the command was used incorrectly.
const EXIT_USAGE: u8 = 64;

/// Asks a Tender daemon how it is and what it holds, why it misses, and tells it what to do.
#[derive(Debug, Parser)]
#[command(name = "tender", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

/// Which daemon, and how long to wait for it.
#[derive(Debug, Args)]
struct Target {
    /// Where the daemon listens: unix:/path, tls://host:port or tcp://host:port.
    #[arg(long, global = true, env = "TENDER_ADDRESS", default_value = DEFAULT_ADDRESS)]
    address: Address,
    /// How long to wait for its answer.
    #[arg(long, global = true, default_value = "2s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// For tls://: PEM file of the authority that signed the daemon's certificate.
    #[arg(long, global = true, env = "TENDER_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// For tls://: PEM file of the certificate to show. Needs --tls-key.
    #[arg(long, global = true, env = "TENDER_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// For tls://: PEM file of its private key. Needs --tls-cert.
    #[arg(long, global = true, env = "TENDER_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// For tls://: the name in the daemon's certificate, where it is not the address's host.
    #[arg(long, global = true, env = "TENDER_TLS_SERVER_NAME", value_name = "NAME")]
    tls_server_name: Option<String>,
    /// File with a bearer token to show, over tls:// and unix: only.
    #[arg(long, global = true, env = "TENDER_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Target {
    fn credentials(&self) -> Result<Credentials, ClientError> {
        let tls = TlsConfig {
            ca: self.tls_ca.clone(),
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            server_name: self.tls_server_name.clone(),
        };
        tls.check()?;
        Ok(Credentials { tls, token_file: self.token_file.clone() })
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows whether the daemon answers, its version and whether it is ready.
    Ping(ping::Ping),
    /// Shows what the daemon holds and how it is used.
    Stat(stat::Stat),
    /// Shows a live view until `q` is pressed; once where the output is no terminal.
    Top(top::Top),
    /// Lists namespaces, or says what one is, or why two of them do not share.
    Ls(ls::Ls),
    /// Says for each chunk of a request whether it is there, and if not, why.
    Explain(explain::Explain),
    /// Prints what the daemon stores and loses, as it happens.
    Events(events::Events),
    /// Has stored bytes read again and compared with their digests. Exits with 1 if some had changed.
    Verify(act::Verify),
    /// Makes the daemon forget what it holds.
    Reset(act::Reset),
    /// Stops the daemon in order, as SIGTERM does.
    Drain(act::Drain),
    /// Checks the daemon, its host and what it depends on. Exits with 1 if something is wrong.
    Doctor(doctor::Doctor),
    /// Prints the completion script of a shell.
    Completions(shell::Completions),
    /// Prints the manual page.
    Man(shell::Man),
    /// Measures what a daemon does on this machine, against what the machine can do.
    Bench(bench::Bench),
    /// Replays a recorded load: what arenas of different sizes would have served.
    Replay(bench::Replay),
    #[command(hide = true)]
    BenchPeer(bench::Peer),
}

/// What a command prints, and whether all is well.
#[derive(Debug)]
struct Done {
    text: String,
    well: bool,
}

impl Done {
    fn well(text: String) -> Self {
        Self { text, well: true }
    }
}

/// Runs the tool with these arguments, the first being its own name.
pub fn run<I, T>(args: I) -> ExitCode
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let answer = match &cli.command {
        Command::Ping(command) => command.run(&cli.target).map(Done::well),
        Command::Stat(command) => command.run(&cli.target).map(Done::well),
        Command::Top(command) => command.run(&cli.target).map(Done::well),
        Command::Ls(command) => command.run(&cli.target).map(Done::well),
        Command::Explain(command) => command.run(&cli.target).map(Done::well),
        Command::Events(command) => command.run(&cli.target).map(Done::well),
        Command::Verify(command) => command.run(&cli.target),
        Command::Reset(command) => command.run(&cli.target).map(Done::well),
        Command::Drain(command) => command.run(&cli.target).map(Done::well),
        Command::Doctor(command) => command.run(&cli.target),
        Command::Completions(command) => Ok(Done::well(command.run(Cli::command()))),
        Command::Man(command) => command.run(Cli::command()).map(Done::well),
        Command::Bench(command) => command.run(&cli.target),
        Command::Replay(command) => command.run(&cli.target).map(Done::well),
        Command::BenchPeer(command) => command.run().map(Done::well),
    };
    match answer {
        Ok(done) => {
            // A reader that went away, as `head` does, is no failure of ours.
            _ = std::io::stdout().write_all(done.text.as_bytes());
            if !done.well {
                return ExitCode::FAILURE;
            }
        }
        Err(error) => {
            _ = writeln!(std::io::stderr(), "tender: {}", sentence(&error));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn usage(error: &clap::Error) -> ExitCode {
    _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_USAGE),
    }
}

/// "Refused" is the wrong word for silence.
fn sentence(error: &ClientError) -> String {
    match error {
        ClientError::Refused(no) if matches!(no.reason, Reason::Unreachable | Reason::Deadline) => {
            format!("no answer from {}: {}", no.subject, no.advice)
        }
        other => other.to_string(),
    }
}

/// An answer as JSON, with a line end.
fn json(answer: &impl serde::Serialize) -> Result<String, ClientError> {
    let text = serde_json::to_string_pretty(answer)
        .map_err(|error| ClientError::Start { what: "the JSON output", source: error.into() })?;
    Ok(text + "\n")
}

/// A time as a person says it: the two largest units.
fn ago(ms: u64) -> String {
    let text = humantime::format_duration(Duration::from_secs(ms / 1000)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_address_stands_before_or_after_the_command() {
        for args in
            [["tender", "--address", "tcp://h:1", "ping"], ["tender", "stat", "--address", "tcp://h:1"]]
        {
            let cli = Cli::try_parse_from(args).unwrap();
            assert_eq!(cli.target.address, "tcp://h:1".parse().unwrap());
        }
    }

    #[test]
    fn a_wrong_command_line_exits_with_64() {
        let code = |args: &[&str]| format!("{:?}", run(args));
        let usage = format!("{:?}", ExitCode::from(EXIT_USAGE));
        assert_eq!(code(&["tender"]), usage);
        assert_eq!(code(&["tender", "nonsense"]), usage);
        assert_eq!(code(&["tender", "ping", "--address", "nowhere"]), usage);
        assert_eq!(code(&["tender", "--version"]), format!("{:?}", ExitCode::SUCCESS));
    }

    #[test]
    fn an_unreachable_daemon_exits_with_1() {
        let code = run(["tender", "ping", "--address", "unix:/nonexistent/tender.sock"]);
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
    }

    #[test]
    fn times_are_short() {
        assert_eq!(ago(0), "0s");
        assert_eq!(ago(59_999), "59s");
        assert_eq!(ago(3_723_000), "1h 2m");
    }
}
