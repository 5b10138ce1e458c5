//! Precedence, checks, and that nothing is said twice.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

fn load(args: &[&str]) -> Result<Config, ConfigError> {
    Config::load(std::iter::once("tenderd").chain(args.iter().copied()).map(OsString::from))
}

fn toml(text: &str) -> Result<Config, ConfigError> {
    Config::from_toml(Path::new("/etc/tenderd.toml"), text)
}

#[test]
fn nothing_given_is_the_defaults() {
    let config = load(&[]).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.listen, [Listen::Unix("/run/tender/tenderd.sock".into())]);
    assert_eq!(config.engine.arena.place, Path::new("/dev/shm/tender-default.arena"));
    assert_eq!((config.engine.arena.bytes, config.socket_mode, config.admin), (1 << 30, 0o600, None));
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenderd.toml");
    std::fs::write(&file, "name = \"filed\"\n[arena]\nsize = \"2GiB\"\n[lease]\nmax = \"90s\"\n").unwrap();
    let config = load(&["--config", file.to_str().unwrap(), "--arena-size", "3GiB"]).unwrap();
    assert_eq!(config.engine.arena.bytes, 3 << 30);
    assert_eq!(config.name, "filed");
    assert_eq!(config.engine.arena.place, Path::new("/dev/shm/tender-filed.arena"));
    assert_eq!(config.engine.max_lease, Duration::from_secs(90));
    assert_eq!(config.engine.default_lease, Config::default().engine.default_lease);
}

#[test]
fn flags_add_up_to_a_whole_configuration() {
    let config = load(&[
        "--listen",
        "unix:/tmp/a.sock",
        "--listen",
        "tcp:127.0.0.1:0",
        "--listen",
        "tcp://[::1]:7070",
        "--allow-plaintext-tcp",
        "--socket-mode",
        "0660",
        "--admin",
        "127.0.0.1:0",
        "--exit-when-unused",
        "1m",
        "--arena-prefault",
        "false",
        "--max-inflight",
        "256MiB",
        "--max-frame",
        "64KiB",
        "--log-format",
        "json",
        "--log-level",
        "info,h2=warn",
    ])
    .unwrap();
    let listen: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["unix:/tmp/a.sock", "tcp://127.0.0.1:0", "tcp://[::1]:7070"]);
    assert_eq!((config.socket_mode, config.max_frame_bytes), (0o660, 64 << 10));
    assert_eq!(config.exit_when_unused, Some(Duration::from_secs(60)));
    assert_eq!(config.engine.max_inflight_bytes, 256 << 20);
    assert_eq!(config.engine.max_session_inflight_bytes, 128 << 20, "a share of what was chosen");
    assert!(!config.engine.arena.prefault);
    assert_eq!(config.log_format, LogFormat::Json);
}

#[test]
fn an_error_in_the_file_names_the_file_the_line_and_the_key() {
    let cases = [
        ("name = \"a\"\n[arena]\nbytess = 1\n", "line 3", "bytess"),
        ("[arena]\nsize = \"many\"\n", "line 2", "size"),
        ("[lease]\n\ndefault = \"10 parsecs\"\n", "line 3", "default"),
        ("listen = [\"http://x\"]\n", "line 1", "unix:PATH"),
        ("socket_mode = \"999\"\n", "line 1", "octal"),
        ("[limits]\nmax_sessions = -1\n", "line 2", "max_sessions"),
        ("[arena\n", "line 1", "arena"),
        ("[secrets]\n", "line 1", "secrets"),
    ];
    for (text, line, key) in cases {
        let error = toml(text).unwrap_err().to_string();
        for part in ["/etc/tenderd.toml", line, key] {
            assert!(error.contains(part), "'{part}' is not in: {error}");
        }
    }
    let missing = load(&["--config", "/nonexistent/tenderd.toml"]).unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/tenderd.toml"), "{missing}");
}

#[test]
fn values_that_cannot_work_are_refused_with_their_flag() {
    let cases: &[(&[&str], &str)] = &[
        (&["--name", "a/b"], "--name"),
        (&["--name", ""], "--name"),
        (&["--listen", "unix:relative.sock"], "--listen"),
        (&["--listen", "unix:/a", "--listen", "unix:/a"], "--listen"),
        (&["--arena-path", "arena"], "--arena-path"),
        (&["--lease-default", "2m"], "--lease-default"),
        (&["--lease-default", "0s"], "--lease-default"),
        (&["--reservation-time", "0s"], "--reservation-time"),
        (&["--max-inflight", "0"], "--max-inflight"),
        (&["--max-session-inflight", "2GiB"], "--max-session-inflight"),
        (&["--max-part", "5GiB"], "--max-part"),
        (&["--max-staging", "8GiB"], "--max-staging"),
        (&["--max-batch-chunks", "200000"], "--max-batch-chunks"),
        (&["--max-frame", "2MiB"], "--max-frame"),
        (&["--max-sessions", "0"], "--max-sessions"),
        (&["--worker-threads", "0"], "--worker-threads"),
        (&["--shared-uri", "gs://bucket"], "--shared-uri"),
        (&["--shared-uri", "fs:///nonexistent/tender"], "--shared-uri"),
        (&["--shared-uri", "memory://", "--shared-credentials", "/nonexistent/c"], "--shared-credentials"),
        (&["--shared-max-requests", "0"], "--shared-max-requests"),
        (&["--shared-max-uploads", "0"], "--shared-max-uploads"),
        (&["--log-level", "a=b=c"], "--log-level"),
        (&["--listen", "tcp://127.0.0.1:1"], "--allow-plaintext-tcp"),
        (&["--listen", "tcp://127.0.0.1:1", "--allow-plaintext-tcp", "false"], "--allow-plaintext-tcp"),
        (&["--listen", "tls://127.0.0.1:1"], "--tls-cert"),
        (&["--tls-cert", "/c.pem"], "--tls-key"),
        (&["--tls-key", "/k.pem"], "--tls-cert"),
        (&["--tls-client-ca", "/ca.pem"], "--tls-cert"),
        (&["--tls-cert", "/c.pem", "--tls-key", "/k.pem"], "--tls-client-ca"),
        (
            &["--tls-cert", "/c.pem", "--tls-key", "/k.pem", "--tls-client-auth", "optional"],
            "--tls-client-ca",
        ),
    ];
    for (args, flag) in cases {
        match load(args) {
            Err(error @ ConfigError::Unusable { .. }) => {
                assert!(error.to_string().contains(flag), "{args:?}: {error}")
            }
            other => panic!("{args:?}: {other:?}"),
        }
    }
    for args in [&["--arena-size", "lots"][..], &["--listen", "ftp://x"], &["--arena-siz", "1"], &["stray"]] {
        assert!(matches!(load(args), Err(ConfigError::Flags(_))), "{args:?}");
    }
}

#[test]
fn tls_asks_for_certificates_unless_told_otherwise() {
    let files = ["--tls-cert", "/c.pem", "--tls-key", "/k.pem", "--listen", "tls://127.0.0.1:0"];
    let tls = |more: &[&str]| load(&[&files[..], more].concat()).unwrap().tls.unwrap();
    assert_eq!(tls(&["--tls-client-ca", "/ca.pem"]).client_auth, ClientAuth::Required);
    assert_eq!(
        tls(&["--tls-client-ca", "/ca.pem", "--tls-client-auth", "optional"]).client_auth,
        ClientAuth::Optional
    );
    assert_eq!(tls(&["--tls-client-auth", "none"]).client_ca, None);
    assert_eq!(Config::default().tls, None);
}

#[test]
fn a_socket_path_leaves_room_for_the_descriptor_socket() {
    let longest = format!("unix:/{}", "a".repeat(103));
    assert!(load(&["--listen", &longest]).is_ok());
    assert!(load(&["--listen", &format!("{longest}a")]).is_err());
}

#[test]
fn a_directory_needs_an_address_that_others_can_reach() {
    let given = ["--directory", "redis://localhost", "--allow-plaintext-tcp"];
    let with = |more: &[&str]| load(&[&given, more].concat());
    assert!(with(&[]).is_err(), "a Unix socket is nothing for another host");
    assert!(with(&["--listen", "tcp://0.0.0.0:7070"]).is_err());
    assert!(with(&["--listen", "tcp://[::]:7070"]).is_err());
    assert!(with(&["--listen", "tcp://10.0.0.1:0"]).unwrap().peers.unwrap().advertise.is_none());
    let peers = with(&["--listen", "tcp://0.0.0.0:7070", "--advertise", "tcp://node-7:7070"]).unwrap().peers;
    assert_eq!(peers.unwrap().reached_at(&[]).as_deref(), Some("tcp://node-7:7070"));
    let peers = with(&["--listen", "tcp://0.0.0.0:7070", "--advertise", "tls://node-7:7070"]).unwrap().peers;
    assert_eq!(peers.unwrap().reached_at(&[]).as_deref(), Some("tls://node-7:7070"));
    for bad in ["tcp://0.0.0.0:7070", "tcp://node-7:0", "unix:/run/x.sock"] {
        assert!(with(&["--advertise", bad]).is_err(), "{bad}");
    }
    assert!(load(&["--advertise", "tcp://node-7:7070"]).is_err(), "nobody would read it");
    assert!(load(&[]).unwrap().peers.is_none());
}

#[test]
fn what_cannot_be_a_directory_is_refused_by_line() {
    let text = "[directory]\nuri = \"http://localhost\"\n";
    let error = toml(text).unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("redis://"), "{error}");
    let reachable = "listen = [\"tcp://10.0.0.1:1\"]\nallow_plaintext_tcp = true\n[directory]\nuri = \"redis://u:secret@localhost\"\n";
    for (more, good) in [
        ("", true),
        ("ttl = \"1s\"", false),
        ("ttl = \"3500ms\"", false),
        ("timeout = \"0s\"", false),
        ("prefix = \"a b\"", false),
        ("prefix = \"{a}\"", false),
        ("publish_rate = 0", false),
    ] {
        let outcome = toml(&format!("{reachable}{more}\n"));
        assert_eq!(outcome.is_ok(), good, "{more}: {outcome:?}");
        assert!(!format!("{outcome:?}").contains("secret"));
    }
}

#[test]
fn every_setting_says_its_default_and_has_a_variable() {
    for arg in command()
        .get_arguments()
        .filter(|arg| !["help", "version", "config"].contains(&arg.get_id().as_str()))
    {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let long = arg.get_long().unwrap();
        assert!(help.contains("[default: "), "--{long} does not say its default: {help}");
        let variable = format!("TENDERD_{}", long.replace('-', "_").to_uppercase());
        assert_eq!(arg.get_env().unwrap(), variable.as_str(), "--{long}");
    }
}

#[test]
fn examples_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.extension().unwrap(), "toml", "{}", path.display());
        let text = std::fs::read_to_string(&path).unwrap();
        Config::from_toml(&path, &text).unwrap_or_else(|error| panic!("{error}"));
        names.insert(path.file_stem().unwrap().to_string_lossy().into_owned());
    }
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["node", "sidecar", "tls"]);
}

proptest::proptest! {
    #[test]
    fn whatever_is_written_in_a_file_never_panics(text in "[a-z_\\[\\]=\" 0-9\n.:/-]{0,200}") {
        let _ = toml(&text);
    }
}

#[test]
fn a_secret_in_the_shared_stores_uri_is_refused_and_not_repeated() {
    let uri = "redis://user:hunter2@127.0.0.1/0";
    let error = load(&["--shared-uri", uri]).unwrap_err().to_string();
    assert!(error.contains("--shared-uri") && !error.contains("hunter2"), "{error}");
    let error = toml(&format!("[shared]\nuri = \"{uri}\"\n")).unwrap_err().to_string();
    assert!(error.contains("--shared-uri") && !error.contains("hunter2"), "{error}");
    let good = load(&["--shared-uri", "s3://kv/a?region=eu-1", "--shared-max-uploads", "2"])
        .unwrap()
        .shared
        .unwrap();
    assert_eq!((good.uri.to_string().as_str(), good.max_uploads), ("s3://kv/a?region=eu-1", 2));
}

#[test]
fn a_disk_tier_needs_a_folder_a_size_and_segments_that_fit() {
    let read = |text: &str| Config::from_toml(Path::new("tenderd.toml"), text);
    assert_eq!(read("").unwrap().disk, None);
    let good = read("[disk]\npath = '/d'\nsize = '2GiB'\nwrite_rate = '1MiB'").unwrap().disk.unwrap();
    assert_eq!((good.segments(), good.write_bytes_per_second, good.segment_bytes), (7, 1 << 20, 256 << 20));
    for (text, flag) in [
        ("size = '2GiB'", "disk-size"),
        ("path = '/d'", "disk-path"),
        ("path = 'd'\nsize = '2GiB'", "disk-path"),
        ("path = '/d'\nsize = '1GiB'", "disk-size"),
        ("path = '/d'\nsize = '1PiB'\nsegment_size = '1MiB'", "disk-size"),
        ("path = '/d'\nsize = '2GiB'\nsegment_size = '1000000'", "disk-segment-size"),
        ("path = '/d'\nsize = '2GiB'\nsegment_size = '2000001'", "disk-segment-size"),
        ("path = '/d'\nsize = '2GiB'\nwrite_rate = '0'", "disk-write-rate"),
        ("path = '/d'\nsize = '2GiB'\nreads = 0", "disk-reads"),
    ] {
        let error = read(&format!("[disk]\n{text}")).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--{flag} ")), "{text}: {error}");
    }
}

#[test]
fn a_changed_file_gives_what_may_change_and_names_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenderd.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("[arena]\nsize = \"1GiB\"\n[limits]\nmax_sessions = 7\n");
    let config = load(&["--config", file.to_str().unwrap(), "--lease-default", "5s"]).unwrap();
    let reread = |source: &Source| source.reread().map(Option::unwrap);
    assert_eq!(reread(&config.source).unwrap().changes, [], "nothing has changed");

    write(
        "[arena]\nsize = \"2GiB\"\n[lease]\ndefault = \"7s\"\nmax = \"20s\"\n[limits]\nmax_sessions = 9\n[log]\nlevel = \"debug\"\n",
    );
    let first = reread(&config.source).unwrap();
    let told: Vec<_> = first.changes.iter().map(|c| (&*c.key, &*c.old, &*c.new, c.used)).collect();
    let expected = [
        ("arena.size", "1.0 GiB", "2.0 GiB", false),
        ("lease.max", "default", "20s", true),
        ("limits.max_sessions", "7", "9", true),
        ("log.level", "default", "debug", true),
    ];
    assert_eq!(told, expected, "a flag hides what the file says of the lease's default");
    let (engine, old) = (&first.config.engine, &config.engine);
    assert_eq!((engine.max_sessions, engine.max_lease), (9, Duration::from_secs(20)));
    assert_eq!((&engine.arena, engine.default_lease), (&old.arena, Duration::from_secs(5)));
    assert_eq!(engine.max_inflight_bytes, old.max_inflight_bytes, "a share of the arena that is there");
    assert_eq!(first.config.log_level, "debug");

    let again = reread(&first.config.source).unwrap().changes;
    assert_eq!(
        again.iter().map(|c| &*c.key).collect::<Vec<_>>(),
        ["arena.size"],
        "told each time until it is used"
    );

    for (wrong, key) in
        [("[limits]\nmax_sessions = 0\n", "max-sessions"), ("[limits]\nmax_session = 1\n", "max_session")]
    {
        write(wrong);
        let error = first.config.source.reread().unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
    assert!(load(&[]).unwrap().source.reread().unwrap().is_none(), "without a file there is none to read");
}

#[test]
fn what_is_used_must_fit_what_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenderd.toml");
    std::fs::write(&file, "").unwrap();
    let config = load(&["--config", file.to_str().unwrap()]).unwrap();
    // Right for the arena of the next start, and too much for the one that is there.
    let larger = "[arena]\nsize = \"8GiB\"\n[limits]\nmax_session_inflight = \"2GiB\"\n";
    std::fs::write(&file, larger).unwrap();
    let error = config.source.reread().unwrap_err().to_string();
    assert!(error.contains("--max-session-inflight"), "{error}");
}
