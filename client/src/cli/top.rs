//! `tender top`: what a daemon does right now.
//!
//! A frame is text, made from two looks at the daemon; the terminal's part is small. Where the output is no terminal, one
//! frame is printed.

use std::fmt::Write as _;
use std::io::{IsTerminal, Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use crossterm::terminal::{self, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute};
use serde::Serialize;

use super::stat::{percent, plain, short, size, text};
use super::{Target, ago, json, sentence};
use crate::admin::{self, DaemonStats, Facts, NamespaceStats};
use crate::error::ClientError;

const BAR_WIDTH: u64 = 40;
/// In raw mode it is a key like others.
const CONTROL_C: u8 = 3;
/// A terminal that does not say how large it is.
const USUAL_SIZE: (u16, u16) = (100, 30);

/// Shows a live view.
#[derive(Debug, clap::Args)]
pub(super) struct Top {
    /// Time between two looks.
    #[arg(long, short, default_value = "1s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// One look, as JSON: {"stats", "facts"}.
    #[arg(long)]
    json: bool,
}

/// One look.
#[derive(Clone, Debug, Serialize)]
struct Look {
    stats: DaemonStats,
    facts: Facts,
    #[serde(skip)]
    at: Option<Instant>,
}

impl Top {
    pub(super) fn run(&self, target: &Target) -> Result<String, ClientError> {
        if self.json {
            return json(&look(target)?);
        }
        if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
            return Ok(frame(&target.address.to_string(), &look(target)?, None));
        }
        // Before the screen is taken: whoever has no daemon reads why.
        let first = look(target)?;
        let shown = Screen::take().and_then(|mut screen| self.watch(target, first, &mut screen));
        shown.map_err(|source| ClientError::Start { what: "the terminal", source })?;
        Ok(String::new())
    }

    fn watch(&self, target: &Target, first: Look, screen: &mut Screen) -> std::io::Result<()> {
        let (address, keys) = (target.address.to_string(), keys()?);
        let mut last = None;
        let mut current = Ok(first);
        loop {
            match &current {
                Ok(look) => screen.draw(&frame(&address, look, last.as_ref()))?,
                Err(why) => screen.draw(&format!("{why}\n\nStill asking; q quits.\n"))?,
            }
            if quits(&keys, self.interval.max(Duration::from_millis(100))) {
                return Ok(());
            }
            last = current.ok();
            current = look(target).map_err(|no| sentence(&no));
        }
    }
}

fn look(target: &Target) -> Result<Look, ClientError> {
    let credentials = target.credentials()?;
    let facts = admin::inspect(&target.address, &credentials, target.timeout)?;
    let stats = admin::stats(&target.address, &credentials, target.timeout)?;
    Ok(Look { stats, facts, at: Some(Instant::now()) })
}

/// Keys as they are pressed; in raw mode they come without a line end. The thread ends with the process.
fn keys() -> std::io::Result<Receiver<u8>> {
    let (sender, keys) = mpsc::channel();
    let read = move || {
        for key in std::io::stdin().lock().bytes() {
            if key.is_err() || key.is_ok_and(|key| sender.send(key).is_err()) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("tender-keys".into()).spawn(read)?;
    Ok(keys)
}

/// Waits for a key that ends it.
fn quits(keys: &Receiver<u8>, wait: Duration) -> bool {
    let until = Instant::now() + wait;
    loop {
        match keys.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(b'q' | b'Q' | CONTROL_C) | Err(RecvTimeoutError::Disconnected) => return true,
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => return false,
        }
    }
}

/// The terminal while it is ours. It comes back as it was when this is dropped.
struct Screen {
    out: std::io::Stdout,
}

impl Screen {
    fn take() -> std::io::Result<Self> {
        terminal::enable_raw_mode()?;
        let mut screen = Self { out: std::io::stdout() };
        execute!(screen.out, EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    fn draw(&mut self, frame: &str) -> std::io::Result<()> {
        let (columns, rows) = terminal::size().unwrap_or(USUAL_SIZE);
        let mut all = String::from("\x1b[H");
        for line in frame.lines().take(usize::from(rows)) {
            let cut: String = line.chars().take(usize::from(columns)).collect();
            // What was there before goes; in raw mode a new line does not begin at the left.
            _ = write!(all, "{cut}\x1b[K\r\n");
        }
        // No new line behind the last: it would scroll a full screen.
        all.truncate(all.len() - 2);
        all.push_str("\x1b[J");
        self.out.write_all(all.as_bytes())?;
        self.out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        _ = execute!(self.out, cursor::Show, LeaveAlternateScreen);
        _ = terminal::disable_raw_mode();
    }
}

fn frame(address: &str, now: &Look, before: Option<&Look>) -> String {
    let Look { stats, facts, .. } = now;
    let mut out = format!(
        "tenderd {} at {address}   up {}   {} sessions, {} leases   q quits\n\n",
        facts.daemon_version,
        ago(stats.uptime_ms),
        stats.sessions,
        stats.leases
    );
    _ = writeln!(
        out,
        "arena    {} {} of {} ({}), largest free {}",
        bar(stats.arena_used_bytes, stats.arena_bytes),
        size(stats.arena_used_bytes),
        size(stats.arena_bytes),
        percent(stats.arena_used_bytes, stats.arena_bytes),
        size(stats.arena_largest_free_bytes)
    );
    _ = writeln!(out, "staging  {} of {}", size(facts.staging_bytes), size(facts.max_staging_bytes));
    let seconds = before.and_then(|before| Some((now.at? - before.at?).as_secs_f64()));
    let (hits, lookups) = counts(stats);
    let (hits_before, lookups_before) = before.map_or((0, 0), |before| counts(&before.stats));
    let since = if before.is_some() { "now" } else { "since the start" };
    _ = writeln!(
        out,
        "hits     {} {since}, {} since the start ({} of {} chunks)",
        percent(hits.saturating_sub(hits_before), lookups.saturating_sub(lookups_before)),
        percent(hits, lookups),
        hits,
        lookups
    );
    let rate = |now: u64, before: u64| match seconds {
        Some(seconds) if seconds > 0.0 => per_second(now.saturating_sub(before), seconds),
        _ => "-".into(),
    };
    let (sent, received) =
        before.map_or((0, 0), |before| (before.facts.sent_bytes, before.facts.received_bytes));
    _ = writeln!(
        out,
        "loads    {} ({} since the start)\nstores   {} ({} since the start)",
        rate(facts.sent_bytes, sent),
        size(facts.sent_bytes),
        rate(facts.received_bytes, received),
        size(facts.received_bytes)
    );
    if !stats.namespaces.is_empty() {
        _ = writeln!(out, "\n{}", namespaces(&stats.namespaces));
    }
    tenants(&mut out, facts);
    tiers(&mut out, facts);
    peers(&mut out, facts);
    let refused: Vec<_> = stats.refusals.iter().filter(|count| count.count > 0).collect();
    if !refused.is_empty() {
        let list: Vec<_> = refused.iter().map(|count| format!("{} {}", count.reason, count.count)).collect();
        _ = writeln!(out, "\nrefusals {}", list.join(", "));
    }
    out
}

fn counts(stats: &DaemonStats) -> (u64, u64) {
    let sum = |of: fn(&NamespaceStats) -> u64| stats.namespaces.iter().map(of).sum();
    (sum(|ns| ns.hits), sum(|ns| ns.lookups))
}

fn bar(part: u64, whole: u64) -> String {
    let full = part.saturating_mul(BAR_WIDTH).checked_div(whole).unwrap_or(0).min(BAR_WIDTH);
    (0..BAR_WIDTH).map(|at| if at < full { '#' } else { '.' }).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a rounded figure for people")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rounded figure for people")]
fn per_second(bytes: u64, seconds: f64) -> String {
    format!("{}/s", ByteSize((bytes as f64 / seconds) as u64))
}

fn namespaces(all: &[NamespaceStats]) -> String {
    let mut table = plain();
    table.set_header(["NAMESPACE", "MODEL", "DTYPE", "CHUNKS", "SIZE", "HIT RATE", "EVICTED"]);
    for ns in all {
        let name = if ns.pinned_name.is_empty() { short(&ns.namespace) } else { ns.pinned_name.clone() };
        table.add_row([
            name,
            ns.model.clone(),
            ns.kv_dtype.clone(),
            ns.ready_chunks.to_string(),
            size(ns.ready_bytes),
            percent(ns.hits, ns.lookups),
            ns.evicted_chunks.to_string(),
        ]);
    }
    text(&mut table)
}

fn tenants(out: &mut String, facts: &Facts) {
    if facts.tenants.is_empty() {
        return;
    }
    let mut table = plain();
    table.set_header(["TENANT", "DOMAIN", "CHUNKS", "SIZE", "QUOTA", "REFUSALS"]);
    for tenant in &facts.tenants {
        let quota = if tenant.max_bytes == 0 { "-".into() } else { size(tenant.max_bytes) };
        table.add_row([
            tenant.name.clone(),
            tenant.domain.clone(),
            tenant.ready_chunks.to_string(),
            size(tenant.ready_bytes),
            quota,
            tenant.refusals.to_string(),
        ]);
    }
    _ = writeln!(out, "\n{}", text(&mut table));
}

fn tiers(out: &mut String, facts: &Facts) {
    if let Some(directory) = &facts.directory {
        let state = if directory.reachable { "answers" } else { "DOES NOT ANSWER" };
        _ = writeln!(out, "\ndirectory {} {state}, this daemon is {}", directory.uri, directory.advertised);
    }
    if facts.tiers.is_empty() {
        return;
    }
    let mut table = plain();
    table.set_header(["TIER", "ASKED", "HAD", "LATE", "KEPT", "SIZE", "FAILED"]);
    for tier in &facts.tiers {
        table.add_row([
            tier.kind.clone(),
            tier.asked_chunks.to_string(),
            percent(tier.found_chunks, tier.asked_chunks),
            tier.late_finds.to_string(),
            tier.kept_chunks.to_string(),
            size(tier.kept_bytes),
            tier.failed_keeps.to_string(),
        ]);
    }
    _ = writeln!(out, "\n{}", text(&mut table));
}

fn peers(out: &mut String, facts: &Facts) {
    if facts.peers.is_empty() {
        return;
    }
    let mut table = plain();
    table.set_header(["PEER", "STATE", "SENDS"]);
    for peer in &facts.peers {
        let sends = match peer.bytes_per_second {
            0 => "-".to_owned(),
            bytes => format!("{}/s", size(bytes)),
        };
        let state = if peer.left_alone { "LEFT ALONE" } else { "asked" };
        table.add_row([peer.address.clone(), state.to_owned(), sends]);
    }
    _ = writeln!(out, "\n{}", text(&mut table));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{Directory, Peer, ReasonCount, Tenant, Tier};

    fn look(used_bytes: u64, sent_bytes: u64, at: Instant) -> Look {
        let stats = DaemonStats {
            arena_bytes: 1 << 30,
            arena_used_bytes: used_bytes,
            arena_largest_free_bytes: 1 << 20,
            arena_place: "/dev/shm/tender".into(),
            sessions: 2,
            leases: 1,
            pins: 1,
            reservations: 0,
            inflight_bytes: 0,
            uptime_ms: 65_000,
            namespaces: Vec::new(),
            refusals: vec![ReasonCount { reason: "no_space".into(), count: 3 }],
        };
        Look { stats, facts: Facts { sent_bytes, ..Facts::default() }, at: Some(at) }
    }

    #[test]
    fn q_and_control_c_end_it_and_other_keys_do_not() {
        let (sender, keys) = mpsc::channel();
        for (pressed, ends) in [(&b"xy\x1b[A"[..], false), (b"xq", true), (b"\x03", true)] {
            pressed.iter().for_each(|&key| sender.send(key).unwrap());
            assert_eq!(quits(&keys, Duration::ZERO), ends, "{pressed:?}");
        }
        drop(sender);
        assert!(quits(&keys, Duration::from_secs(60)), "nobody can press anything any more");
    }

    #[test]
    fn rates_are_what_came_between_two_looks() {
        let now = Instant::now();
        let (before, after) = (look(0, 1 << 20, now), look(1 << 29, 21 << 20, now + Duration::from_secs(2)));
        let text = frame("unix:/t", &after, Some(&before));
        assert!(text.contains("loads    10.0 MiB/s (21.0 MiB since the start)"), "{text}");
        assert!(text.contains(&format!("{}{}", "#".repeat(20), ".".repeat(20))), "{text}");
        assert!(text.contains("no_space 3") && text.contains("up 1m 5s"), "{text}");
        assert!(frame("unix:/t", &after, None).contains("loads    - ("), "one look has no rate");
    }

    #[test]
    fn tenants_tiers_and_the_directory_are_shown_where_there_are_any() {
        let mut one = look(0, 0, Instant::now());
        let bare = frame("unix:/t", &one, None);
        assert!(!bare.contains("TENANT") && !bare.contains("TIER") && !bare.contains("directory"), "{bare}");
        one.facts.tenants = vec![Tenant { name: "blue".into(), max_bytes: 1 << 30, ..Tenant::default() }];
        one.facts.tiers =
            vec![Tier { kind: "disk".into(), asked_chunks: 4, found_chunks: 3, ..Tier::default() }];
        one.facts.directory = Some(Directory { uri: "redis://d".into(), ..Directory::default() });
        one.facts.peers = vec![
            Peer { address: "tls://two:9471".into(), bytes_per_second: 3 << 20, ..Peer::default() },
            Peer { address: "tls://three:9471".into(), left_alone: true, ..Peer::default() },
        ];
        let text = frame("unix:/t", &one, None);
        assert!(text.contains("tls://two:9471") && text.contains("3.0 MiB/s"), "{text}");
        assert!(text.contains("LEFT ALONE"), "{text}");
        assert!(text.contains("blue") && text.contains("1.0 GiB") && text.contains("75.0%"), "{text}");
        assert!(text.contains("redis://d DOES NOT ANSWER"), "{text}");
    }
}
