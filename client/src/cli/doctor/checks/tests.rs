//! Every finding, from what leads to it.

use std::fs;

use super::*;

const NOW_S: u64 = 1_800_000_000;

fn pong() -> Pong {
    Pong {
        daemon_version: "1.2.3".into(),
        protocol_version: PROTOCOL_VERSION,
        compatible: true,
        boot_id: "00".into(),
        uptime_ms: 1000,
        ready: true,
    }
}

fn facts() -> Facts {
    Facts {
        unix_ms: NOW_S * 1000,
        listen: vec!["unix:/t".into(), "tcp://127.0.0.1:7".into()],
        arena_place: "/dev/shm/tender".into(),
        arena_file_bytes: 1 << 30,
        place_bytes: 4 << 30,
        place_free_bytes: 3 << 30,
        ..Facts::default()
    }
}

/// The level; whatever is not well says what to do.
#[track_caller]
fn level(finding: &Finding) -> Level {
    assert!(!finding.text.is_empty(), "{finding:?}");
    if finding.level >= Level::Warn {
        assert!(finding.remedy.len() > 10, "{finding:?}");
    }
    finding.level
}

fn put(root: &Path, path: &str, text: &str) {
    let place = root.join(path);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::write(place, text).unwrap();
}

#[test]
fn a_daemon_that_is_silent_fails_and_one_that_is_not_ready_is_told() {
    assert_eq!(level(&reach(&Ok(pong()))), Level::Ok);
    assert_eq!(level(&reach(&Ok(Pong { ready: false, ..pong() }))), Level::Warn);
    assert_eq!(level(&reach(&Err("no answer".into()))), Level::Fail);
}

#[test]
fn versions_are_compared() {
    assert_eq!(level(&versions(&pong(), "1.2.3")), Level::Ok);
    assert_eq!(level(&versions(&pong(), "1.2.4")), Level::Note);
    assert_eq!(level(&versions(&Pong { compatible: false, ..pong() }, "1.2.3")), Level::Fail);
}

#[test]
fn a_socket_must_be_there_and_for_this_user_and_not_for_everybody() {
    let path = Path::new("/run/t.sock");
    assert_eq!(level(&socket(path, Socket::Missing)), Level::Fail);
    assert_eq!(level(&socket(path, Socket::Other)), Level::Fail);
    assert_eq!(level(&socket(path, Socket::There { mode: 0o600, usable: false })), Level::Fail);
    assert_eq!(level(&socket(path, Socket::There { mode: 0o666, usable: true })), Level::Warn);
    assert_eq!(level(&socket(path, Socket::There { mode: 0o660, usable: true })), Level::Ok);
}

#[test]
fn the_arena_is_held_against_its_filesystem() {
    assert_eq!(level(&place(&facts())), Level::Ok);
    assert_eq!(level(&place(&Facts { place_bytes: 0, ..facts() })), Level::Note);
    assert_eq!(level(&place(&Facts { place_bytes: 1 << 20, ..facts() })), Level::Fail);
    assert_eq!(level(&place(&Facts { place_free_bytes: 0, ..facts() })), Level::Warn);
}

#[test]
fn without_a_daemon_the_place_for_its_arena_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::at(dir.path());
    fs::create_dir_all(dir.path().join("dev/shm")).unwrap();
    assert_eq!(level(&place_to_be(&host, Path::new("/dev/shm"), 1)), Level::Ok);
    let too_small = place_to_be(&host, Path::new("/dev/shm"), u64::MAX);
    assert_eq!(level(&too_small), Level::Fail);
    assert!(too_small.remedy.contains("sizeLimit"), "{too_small:?}");
    assert_eq!(level(&place_to_be(&host, Path::new("/nowhere"), 1)), Level::Fail);
}

#[test]
fn a_memory_limit_must_leave_room_for_staging() {
    let limited = |available, used| Facts {
        cgroup_limit_file: "/sys/fs/cgroup/memory.max".into(),
        cgroup_available_bytes: available,
        staging_bytes: used,
        max_staging_bytes: 1 << 30,
        ..facts()
    };
    assert_eq!(level(&memory(&facts())), Level::Ok);
    assert_eq!(level(&memory(&limited(1 << 30, 0))), Level::Ok);
    assert_eq!(level(&memory(&limited(1 << 20, 0))), Level::Warn);
    assert_eq!(level(&memory(&limited(0, 1 << 30))), Level::Ok);
    let unlimited = memory(&limited(9_223_372_036_854_771_712, 0));
    assert!(unlimited.text.contains("no limit"), "{unlimited:?}");
}

#[test]
fn without_a_daemon_the_limit_must_allow_its_arena() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::at(dir.path());
    assert_eq!(level(&memory_to_be(&host, 1 << 30)), Level::Ok);
    put(dir.path(), "proc/self/cgroup", "0::/\n");
    put(dir.path(), "sys/fs/cgroup/memory.max", "1048576\n");
    assert_eq!(level(&memory_to_be(&host, 1 << 30)), Level::Fail);
    assert_eq!(level(&memory_to_be(&host, 1 << 10)), Level::Ok);
}

#[test]
fn clocks_that_are_apart_are_told() {
    assert_eq!(level(&clock(&facts(), NOW_S + CLOCK_APART_S)), Level::Ok);
    assert_eq!(level(&clock(&facts(), NOW_S + CLOCK_APART_S + 1)), Level::Warn);
    assert_eq!(level(&clock(&facts(), NOW_S - 60)), Level::Warn);
}

#[test]
fn a_certificate_is_good_ends_soon_or_has_ended() {
    assert_eq!(level(&certificate("its", NOW_S + 90 * DAY_S, NOW_S)), Level::Ok);
    assert_eq!(level(&certificate("its", NOW_S + 13 * DAY_S, NOW_S)), Level::Warn);
    let over = certificate("its", NOW_S - 3 * DAY_S, NOW_S);
    assert_eq!((level(&over), over.text.contains("3 days ago")), (Level::Fail, true));
}

#[test]
fn this_sides_certificate_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::at(dir.path());
    assert_eq!(level(&own_certificate(&host, Path::new("/cert.pem"), NOW_S)), Level::Fail);
    put(dir.path(), "cert.pem", "nonsense");
    assert_eq!(level(&own_certificate(&host, Path::new("/cert.pem"), NOW_S)), Level::Fail);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["engine".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2040, 1, 1);
    put(dir.path(), "cert.pem", &params.self_signed(&key).unwrap().pem());
    let found = own_certificate(&host, Path::new("/cert.pem"), NOW_S);
    assert_eq!(level(&found), Level::Ok, "{found:?}");
    assert_eq!(level(&own_certificate(&host, Path::new("/cert.pem"), 3_000_000_000)), Level::Fail);
}

#[test]
fn a_port_in_the_clear_is_told() {
    assert_eq!(level(&listeners(&facts())), Level::Ok);
    let open = Facts { listen: vec!["tcp://0.0.0.0:7".into()], ..facts() };
    assert_eq!(level(&listeners(&open)), Level::Warn);
    let tls = Facts { listen: vec!["tls://0.0.0.0:7".into()], ..facts() };
    assert_eq!(level(&listeners(&tls)), Level::Ok);
}

#[test]
fn a_directory_that_is_away_fails() {
    let up = Directory { uri: "redis://d".into(), reachable: true, advertised: "tls://h:1".into() };
    assert_eq!(level(&directory(&up)), Level::Ok);
    assert_eq!(level(&directory(&Directory { reachable: false, ..up })), Level::Fail);
}

#[test]
fn tiers_that_are_late_or_keep_nothing_are_told() {
    for kind in ["disk", "peers", "shared"] {
        let one = Tier { kind: kind.into(), ..Tier::default() };
        assert_eq!(level(&tier(&one)), Level::Ok);
        assert_eq!(level(&tier(&Tier { late_finds: 1, ..one.clone() })), Level::Note);
        assert_eq!(level(&tier(&Tier { failed_keeps: 1, ..one })), Level::Warn);
    }
}

#[test]
fn bytes_that_changed_are_told() {
    assert_eq!(level(&stored_bytes(&facts())), Level::Ok);
    assert_eq!(level(&stored_bytes(&Facts { quarantined_chunks: 2, ..facts() })), Level::Warn);
}

#[test]
fn huge_pages_and_locked_memory_are_noted() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::at(dir.path());
    assert_eq!((level(&huge_pages(&host)), level(&memlock(&host))), (Level::Note, Level::Note));
    let file = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    put(dir.path(), file, "always [advise] never\n");
    put(dir.path(), "proc/self/limits", "Max locked memory         unlimited unlimited bytes\n");
    assert_eq!((level(&huge_pages(&host)), level(&memlock(&host))), (Level::Ok, Level::Ok));
    // A program that asks for huge pages gets them all the same.
    put(dir.path(), file, "always advise [never] deny\n");
    assert_eq!(level(&huge_pages(&host)), Level::Ok);
    put(dir.path(), file, "always advise never [deny]\n");
    put(dir.path(), "proc/self/limits", "Max locked memory         8388608 unlimited bytes\n");
    assert_eq!((level(&huge_pages(&host)), level(&memlock(&host))), (Level::Note, Level::Note));
    put(dir.path(), "proc/self/limits", "Max locked memory         8589934592 unlimited bytes\n");
    assert_eq!(level(&memlock(&host)), Level::Ok);
}

fn seen(dir: &Path, pong: Result<Pong, String>, facts: Result<Facts, String>) -> Seen {
    Seen {
        host: Host::at(dir),
        socket: Some("/run/t.sock".into()),
        pong,
        facts,
        now_unix_s: NOW_S,
        certificate: None,
        arena_bytes: 1,
        arena_dir: "/".into(),
    }
}

#[test]
fn whoever_is_no_operator_is_told_so_and_the_rest_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let found = all(&seen(dir.path(), Ok(pong()), Err("not allowed".into())));
    let names: Vec<_> = found.iter().map(|finding| finding.check).collect();
    assert_eq!(names, ["daemon", "socket", "versions", "facts", "huge pages", "memlock"]);
    assert_eq!(level(&found[3]), Level::Warn);
}

#[test]
fn without_a_daemon_its_host_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let found = all(&seen(dir.path(), Err("silence".into()), Err("silence".into())));
    let names: Vec<_> = found.iter().map(|finding| finding.check).collect();
    assert_eq!(names, ["daemon", "socket", "arena", "memory", "huge pages", "memlock"]);
}

#[test]
fn everything_that_a_daemon_tells_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let told = Facts {
        certificate_expires_unix_s: NOW_S + 90 * DAY_S,
        directory: Some(Directory { reachable: true, ..Directory::default() }),
        tiers: vec![Tier::default()],
        ..facts()
    };
    let found = all(&seen(dir.path(), Ok(pong()), Ok(told)));
    let names: Vec<_> = found.iter().map(|finding| finding.check).collect();
    let wanted =
        ["arena", "memory", "clock", "certificate", "listeners", "directory", "tier", "stored bytes"];
    assert_eq!(names[3..11], wanted);
}
