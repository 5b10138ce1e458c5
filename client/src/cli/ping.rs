//! `tender ping`.

use std::fmt::Write;
use std::time::Instant;

use super::{Target, ago, json};
use crate::admin::{self, Pong};
use crate::config::Address;
use crate::error::ClientError;

/// Shows whether the daemon answers.
#[derive(Debug, clap::Args)]
pub(super) struct Ping {
    /// As JSON, for programs.
    #[arg(long)]
    json: bool,
    /// Fail unless it is ready: with 1 also while it starts or drains. For probes of containers.
    #[arg(long)]
    ready: bool,
}

impl Ping {
    pub(super) fn run(&self, target: &Target) -> Result<String, ClientError> {
        let start = Instant::now();
        let pong = admin::ping(&target.address, &target.credentials()?, target.timeout)?;
        self.judge(&target.address, &pong)?;
        if self.json {
            return json(&pong);
        }
        Ok(render(&target.address.to_string(), &pong, start.elapsed().as_secs_f64() * 1e3))
    }

    /// Whether the answer is good enough for who asked.
    fn judge(&self, address: &Address, pong: &Pong) -> Result<(), ClientError> {
        if self.ready && !pong.ready {
            return Err(ClientError::NotReady { address: address.to_string() });
        }
        Ok(())
    }
}

fn render(address: &str, pong: &Pong, took_ms: f64) -> String {
    let state = if pong.ready { "ready" } else { "not ready (starting or draining)" };
    let mut out = format!(
        "tenderd {} at {address}: {state}, up {}, answered in {took_ms:.1} ms\n",
        pong.daemon_version,
        ago(pong.uptime_ms)
    );
    if !pong.compatible {
        _ = writeln!(
            out,
            "It speaks contract version {}, this tool {}: use the same release of both.",
            pong.protocol_version,
            tender_proto::limits::PROTOCOL_VERSION
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Pong {
        Pong {
            daemon_version: "0.1.0".into(),
            protocol_version: 1,
            compatible: true,
            boot_id: "00".into(),
            uptime_ms: 65_000,
            ready: true,
        }
    }

    #[test]
    fn a_daemon_that_is_not_ready_fails_whoever_asked_for_one_that_is() {
        let address: Address = "unix:/t".parse().unwrap();
        let (ready, draining) = (sample(), Pong { ready: false, ..sample() });
        let (any, only_ready) = (Ping { json: false, ready: false }, Ping { json: false, ready: true });
        assert!(any.judge(&address, &draining).is_ok() && only_ready.judge(&address, &ready).is_ok());
        let no = only_ready.judge(&address, &draining).unwrap_err().to_string();
        assert!(no.contains("unix:/t") && no.contains("not ready"), "{no}");
    }

    #[test]
    fn one_line_says_it_all() {
        let mut pong = sample();
        assert_eq!(
            render("unix:/t", &pong, 0.42),
            "tenderd 0.1.0 at unix:/t: ready, up 1m 5s, answered in 0.4 ms\n"
        );
        (pong.compatible, pong.ready, pong.protocol_version) = (false, false, 9);
        let text = render("unix:/t", &pong, 0.42);
        assert!(text.contains("not ready") && text.contains("version 9"), "{text}");
    }
}
