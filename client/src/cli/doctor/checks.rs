//! The checks.

use std::path::Path;

use bytesize::ByteSize;
use tender_proto::limits::{DAEMON_OVERHEAD_BYTES, PROTOCOL_VERSION};

use super::host::{Host, Limit, Socket};
use super::{Finding, Level, Seen};
use crate::admin::{Directory, Facts, Pong, Tier};

const DAY_S: u64 = 24 * 3600;
/// Whoever renews certificates by hand needs this long.
const EXPIRES_SOON_S: u64 = 14 * DAY_S;
/// More than a slow answer: certificates and the directory's times begin to be wrong.
const CLOCK_APART_S: u64 = 5;
/// What is above it is how control groups of version 1 say that there is no limit.
const NO_LIMIT_BYTES: u64 = 1 << 60;
/// Beyond it pinning a usual staging region works.
const MEMLOCK_LEAST_BYTES: u64 = 1 << 30;

pub(super) fn all(seen: &Seen) -> Vec<Finding> {
    let mut found = vec![reach(&seen.pong)];
    if let Some(path) = &seen.socket {
        found.push(socket(path, seen.host.socket(path)));
    }
    if let Ok(pong) = &seen.pong {
        found.push(versions(pong, env!("CARGO_PKG_VERSION")));
    }
    match (&seen.facts, &seen.pong) {
        (Ok(facts), _) => of_daemon(seen, facts, &mut found),
        (Err(why), Ok(_)) => found.push(Finding::new(
            "facts",
            Level::Warn,
            format!("the daemon does not tell its facts: {why}"),
            "ask as an operator: as root or the daemon's own user on its host, or as a tenant with admin rights",
        )),
        (Err(_), Err(_)) => {
            found.push(place_to_be(&seen.host, &seen.arena_dir, seen.arena_bytes));
            found.push(memory_to_be(&seen.host, seen.arena_bytes));
        }
    }
    if let Some(path) = &seen.certificate {
        found.push(own_certificate(&seen.host, path, seen.now_unix_s));
    }
    found.push(huge_pages(&seen.host));
    found.push(memlock(&seen.host));
    found
}

fn of_daemon(seen: &Seen, facts: &Facts, found: &mut Vec<Finding>) {
    found.push(place(facts));
    found.push(memory(facts));
    found.push(clock(facts, seen.now_unix_s));
    if facts.certificate_expires_unix_s > 0 {
        found.push(certificate("the daemon's", facts.certificate_expires_unix_s, seen.now_unix_s));
    }
    found.push(listeners(facts));
    found.extend(facts.directory.as_ref().map(directory));
    found.extend(facts.tiers.iter().map(tier));
    found.push(stored_bytes(facts));
}

fn reach(pong: &Result<Pong, String>) -> Finding {
    match pong {
        Ok(pong) if pong.ready => {
            Finding::ok("daemon", format!("ready, up {}", super::super::ago(pong.uptime_ms)))
        }
        Ok(_) => Finding::new(
            "daemon",
            Level::Warn,
            "it answers and is not ready: it starts or drains",
            "wait; its log says how far it is",
        ),
        Err(why) => Finding::new(
            "daemon",
            Level::Fail,
            why.clone(),
            "start tenderd, or name its address with --address or TENDER_ADDRESS",
        ),
    }
}

fn versions(pong: &Pong, ours: &str) -> Finding {
    if !pong.compatible {
        return Finding::new(
            "versions",
            Level::Fail,
            format!(
                "the daemon speaks contract version {}, this side {PROTOCOL_VERSION}",
                pong.protocol_version
            ),
            "install the same release of tenderd and tender-kv",
        );
    }
    if pong.daemon_version != ours {
        return Finding::new(
            "versions",
            Level::Note,
            format!("tenderd {}, this side {ours}; they understand each other", pong.daemon_version),
            "bring both to the same release when convenient",
        );
    }
    Finding::ok("versions", format!("{ours} on both sides"))
}

fn socket(path: &Path, found: Socket) -> Finding {
    let shown = path.display();
    match found {
        Socket::Missing => Finding::new(
            "socket",
            Level::Fail,
            format!("{shown} is not there"),
            "start tenderd with --listen unix:PATH, and mount its folder into this container",
        ),
        Socket::Other => Finding::new(
            "socket",
            Level::Fail,
            format!("{shown} is no socket"),
            "remove it, or name another path: tenderd does not overwrite files",
        ),
        Socket::There { mode, usable: false } => Finding::new(
            "socket",
            Level::Fail,
            format!("{shown} ({mode:03o}) is not for this user"),
            "run as the daemon's user, or start tenderd with --socket-mode 660 and a common group",
        ),
        Socket::There { mode, .. } if mode & 0o002 != 0 => Finding::new(
            "socket",
            Level::Warn,
            format!("{shown} ({mode:03o}) is open to every user of this host"),
            "start tenderd with --socket-mode 660, or give it a policy",
        ),
        Socket::There { mode, .. } => Finding::ok("socket", format!("{shown} ({mode:03o})")),
    }
}

fn place(facts: &Facts) -> Finding {
    let Facts { arena_place, arena_file_bytes, place_bytes, place_free_bytes, .. } = facts;
    let (file, whole, free) =
        (ByteSize(*arena_file_bytes), ByteSize(*place_bytes), ByteSize(*place_free_bytes));
    if *place_bytes == 0 {
        return Finding::new(
            "arena",
            Level::Note,
            format!("{file} in {arena_place}; the size of its filesystem is not known"),
            "",
        );
    }
    if arena_file_bytes > place_bytes {
        return Finding::new(
            "arena",
            Level::Fail,
            format!("{arena_place} has {file}, its filesystem {whole}: it was made smaller since"),
            "make the filesystem larger (a memory volume's sizeLimit, docker --shm-size) and restart",
        );
    }
    if *place_free_bytes == 0 {
        return Finding::new(
            "arena",
            Level::Warn,
            format!("{arena_place} has {file}; the rest of {whole} is full"),
            "the arena is safe, its bytes are reserved; make room for others who use this filesystem",
        );
    }
    Finding::ok("arena", format!("{file} reserved in {arena_place}; {free} of {whole} are free"))
}

/// For a daemon that does not run.
fn place_to_be(host: &Host, dir: &Path, arena_bytes: u64) -> Finding {
    let (shown, wanted) = (dir.display(), ByteSize(arena_bytes));
    match host.filesystem(dir) {
        None => Finding::new(
            "arena",
            Level::Fail,
            format!("{shown} is not there"),
            "mount a memory filesystem there, or name another place with --arena-path",
        ),
        Some((whole, free)) if free < arena_bytes => Finding::new(
            "arena",
            Level::Fail,
            format!("{shown} has {} of {} free: no arena of {wanted}", ByteSize(free), ByteSize(whole)),
            "make it larger (a memory volume's sizeLimit, docker --shm-size) or the arena smaller (--arena-size)",
        ),
        Some((whole, free)) => Finding::ok(
            "arena",
            format!("{shown} has {} of {} free: room for {wanted}", ByteSize(free), ByteSize(whole)),
        ),
    }
}

fn memory(facts: &Facts) -> Finding {
    if facts.cgroup_limit_file.is_empty() || facts.cgroup_available_bytes >= NO_LIMIT_BYTES {
        return Finding::ok("memory", "no limit on the daemon's control group");
    }
    let growth = facts.max_staging_bytes.saturating_sub(facts.staging_bytes);
    let left = ByteSize(facts.cgroup_available_bytes);
    if facts.cgroup_available_bytes < growth {
        return Finding::new(
            "memory",
            Level::Warn,
            format!(
                "{} leaves {left}; staging regions may still take {}",
                facts.cgroup_limit_file,
                ByteSize(growth)
            ),
            format!(
                "raise the container's memory limit (arena + staging + {}, see docs/sizing.md), or lower --max-total-staging",
                ByteSize(DAEMON_OVERHEAD_BYTES)
            ),
        );
    }
    Finding::ok("memory", format!("{} leaves {left}", facts.cgroup_limit_file))
}

fn memory_to_be(host: &Host, arena_bytes: u64) -> Finding {
    match host.memory_limit() {
        Some((limit, file)) if limit < arena_bytes => Finding::new(
            "memory",
            Level::Fail,
            format!(
                "{} allows {}, less than the arena of {}",
                file.display(),
                ByteSize(limit),
                ByteSize(arena_bytes)
            ),
            "raise the memory limit: a memory volume counts against whoever touches it first",
        ),
        Some((limit, file)) => {
            Finding::ok("memory", format!("{} allows {}", file.display(), ByteSize(limit)))
        }
        None => Finding::ok("memory", "no limit on this control group"),
    }
}

fn clock(facts: &Facts, now_unix_s: u64) -> Finding {
    let apart = (facts.unix_ms / 1000).abs_diff(now_unix_s);
    if apart > CLOCK_APART_S {
        return Finding::new(
            "clock",
            Level::Warn,
            format!("the daemon's clock and this one are {apart} s apart"),
            "let both hosts keep their time (chrony, systemd-timesyncd): certificates depend on it",
        );
    }
    Finding::ok("clock", "the same on both sides")
}

fn certificate(whose: &str, expires_unix_s: u64, now_unix_s: u64) -> Finding {
    let remedy = "renew it; tenderd and clients read the files again without a restart";
    let days = expires_unix_s.abs_diff(now_unix_s) / DAY_S;
    if expires_unix_s <= now_unix_s {
        return Finding::new(
            "certificate",
            Level::Fail,
            format!("{whose} certificate has expired {days} days ago"),
            remedy,
        );
    }
    if expires_unix_s - now_unix_s < EXPIRES_SOON_S {
        return Finding::new(
            "certificate",
            Level::Warn,
            format!("{whose} certificate expires in {days} days"),
            remedy,
        );
    }
    Finding::ok("certificate", format!("{whose} certificate is good for {days} days"))
}

fn own_certificate(host: &Host, path: &Path, now_unix_s: u64) -> Finding {
    let fail = |why: String| {
        Finding::new("certificate", Level::Fail, why, "name a PEM file of a certificate with --tls-cert")
    };
    let bytes = match host.file(path) {
        Ok(bytes) => bytes,
        Err(error) => return fail(format!("{} cannot be read: {error}", path.display())),
    };
    let expires = x509_parser::pem::parse_x509_pem(&bytes).ok().and_then(|(_, pem)| {
        let certificate = pem.parse_x509().ok()?;
        u64::try_from(certificate.validity().not_after.timestamp()).ok()
    });
    match expires {
        Some(expires) => certificate("this side's", expires, now_unix_s),
        None => fail(format!("{} is no certificate", path.display())),
    }
}

fn listeners(facts: &Facts) -> Finding {
    let listed = facts.listen.join(" ");
    let in_the_clear = facts.listen.iter().any(|at| at.starts_with("tcp://") && !is_loopback(at));
    if in_the_clear {
        return Finding::new(
            "listeners",
            Level::Warn,
            format!("{listed}: whoever is in the network can read and store"),
            "listen at tls:// with certificates (docs/security.md), or keep the port to this pod",
        );
    }
    let policy = if facts.has_policy { "with a policy" } else { "without a policy" };
    Finding::ok("listeners", format!("{listed}, {policy}"))
}

fn is_loopback(address: &str) -> bool {
    ["tcp://127.", "tcp://[::1]", "tcp://localhost:"].iter().any(|own| address.starts_with(own))
}

fn directory(directory: &Directory) -> Finding {
    let Directory { uri, reachable, advertised } = directory;
    if *reachable {
        return Finding::ok("directory", format!("{uri}; others reach this daemon at {advertised}"));
    }
    Finding::new(
        "directory",
        Level::Fail,
        format!("{uri} does not answer: daemons do not find each other's chunks"),
        "start it, or correct --directory; engines go on with what this daemon holds itself",
    )
}

fn tier(tier: &Tier) -> Finding {
    let Tier { kind, asked_chunks, found_chunks, late_finds, kept_chunks, failed_keeps, .. } = tier;
    let text = format!("{kind}: had {found_chunks} of {asked_chunks} chunks asked for, keeps {kept_chunks}");
    if *failed_keeps > 0 {
        let remedy = match kind.as_str() {
            "disk" => "look at the disk: the daemon's log names its errors",
            "shared" => "look at the store and its credentials: the daemon's log names its errors",
            _ => "look at the directory: the daemon's log names its errors",
        };
        return Finding::new(
            "tier",
            Level::Warn,
            format!("{text}; {failed_keeps} could not be kept"),
            remedy,
        );
    }
    if *late_finds > 0 {
        return Finding::new(
            "tier",
            Level::Note,
            format!("{text}; {late_finds} questions were not answered in time"),
            "if it grows: give lookups more time (--tier-lookup-time), or find out why the tier is slow",
        );
    }
    Finding::ok("tier", text)
}

fn stored_bytes(facts: &Facts) -> Finding {
    if facts.quarantined_chunks > 0 {
        return Finding::new(
            "stored bytes",
            Level::Warn,
            format!("{} chunks had changed in memory and were taken out", facts.quarantined_chunks),
            "check this machine's memory (rasdaemon, memtest); `tender verify --all` reads everything now",
        );
    }
    Finding::ok(
        "stored bytes",
        format!("{} verified since the start, none had changed", ByteSize(facts.scrubbed_bytes)),
    )
}

fn huge_pages(host: &Host) -> Finding {
    match host.huge_shared_pages().as_deref() {
        Some("deny") => Finding::new(
            "huge pages",
            Level::Note,
            "shared memory uses 4 KiB pages: shmem_enabled is deny",
            "any other word in /sys/kernel/mm/transparent_hugepage/shmem_enabled lets tenderd make huge ones",
        ),
        // The kernel makes none by itself, and those that a program asks for it makes all the same.
        Some("never") => Finding::ok("huge pages", "for shared memory: never, which leaves them to tenderd"),
        Some(word) => Finding::ok("huge pages", format!("for shared memory: {word}")),
        None => Finding::new(
            "huge pages",
            Level::Note,
            "the kernel does not say whether shared memory may use them",
            "",
        ),
    }
}

fn memlock(host: &Host) -> Finding {
    match host.memlock() {
        Some(Limit::Unlimited) => Finding::ok("memlock", "unlimited"),
        Some(Limit::Bytes(bytes)) if bytes < MEMLOCK_LEAST_BYTES => Finding::new(
            "memlock",
            Level::Note,
            format!("this user may lock {}", ByteSize(bytes)),
            "tenderd locks nothing; where an engine cannot pin its staging region, raise it (ulimit -l, LimitMEMLOCK=)",
        ),
        Some(Limit::Bytes(bytes)) => Finding::ok("memlock", ByteSize(bytes).to_string()),
        None => Finding::new("memlock", Level::Note, "the kernel does not say how much may be locked", ""),
    }
}

#[cfg(test)]
mod tests;
