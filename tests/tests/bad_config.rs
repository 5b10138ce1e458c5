//! What an operator can get wrong: the descriptor, the arena's size, the configuration. The daemon says what and
//! leaves nothing behind.

use bytes::Bytes;
use tender_proto::{Descriptor, Reason, v1};
use tender_tests::daemon::{ChildDaemon, Daemon, Setup};
use tender_tests::raw::{raw_digest, reason, refusal};
use tender_tests::{conserve, fixture};

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_name_that_re_registers_with_other_geometry() {
    let daemon = Daemon::start(Setup::default()).await;
    let base = fixture::small("pinned", 1000);
    let session = daemon.client().await.open_registered(&base).await;
    session.register_as(&base, "production").await.unwrap();
    session.register_as(&base, "production").await.unwrap();
    let wider = fixture::descriptor("pinned", vec![fixture::group(32, 4, &[1000])]);
    let status = session.register_as(&wider, "production").await.unwrap_err();
    let refusal = refusal(&status);
    assert_eq!(refusal.reason, Reason::NamespaceConflict);
    assert!(refusal.to_string().contains("production"), "the sentence names what is bound: {refusal}");
    assert_eq!(session.client.refused(Reason::NamespaceConflict).await, 1);
    // The name still stands for what it stood for, and what was stored is there.
    session.must_store(&base, fixture::chunk(1), fixture::PART, fixture::full(&base)).await;
    let stats = session.client.stats().await.unwrap();
    let named: Vec<_> = stats.namespaces.iter().filter(|n| n.pinned_name == "production").collect();
    assert_eq!(named.len(), 1);
    assert_eq!(named[0].namespace, raw_digest(base.digest()));
    conserve::quiet(daemon.engine()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_descriptor_that_is_incomplete_or_encodes_to_another_digest() {
    let daemon = Daemon::start(Setup::default()).await;
    let base = fixture::small("complete", 1000);
    let session = daemon.client().await.open("test").await.unwrap();
    type Damage = fn(&mut v1::NamespaceDescriptor);
    let damages: [(&str, Damage); 9] = [
        ("model", |d| d.model.clear()),
        ("weights", |d| d.weights.clear()),
        ("kv_dtype", |d| d.kv_dtype.clear()),
        ("quantisation", |d| d.quantisation.clear()),
        ("groups", |d| d.groups.clear()),
        ("kind", |d| d.groups[0].kind = 99),
        ("tokens per block", |d| d.groups[0].tokens_per_block = 0),
        ("ranks", |d| d.ranks = None),
        ("fingerprint", |d| d.layout_fingerprint = Bytes::from_static(&[1; 31])),
    ];
    for (what, damage) in damages {
        let mut message = base.to_message();
        damage(&mut message);
        let status = session.register_raw(Some(message), raw_digest(base.digest()), "").await.unwrap_err();
        let refusal = refusal(&status);
        assert_eq!(refusal.reason, Reason::Malformed, "{what}");
        assert!(refusal.subject.contains(what) || refusal.advice.contains(what), "{what}: {refusal}");
    }
    assert_eq!(reason(session.register_raw(None, raw_digest(base.digest()), "").await), Reason::Malformed);
    let other = fixture::small("other", 1000).digest();
    let answer = session.register_raw(Some(base.to_message()), raw_digest(other), "").await;
    let found = reason(answer);
    assert!(matches!(found, Reason::VersionMismatch | Reason::NamespaceConflict), "{found}");
    assert!(session.client.refused(Reason::Malformed).await >= 10);
    assert!(session.client.stats().await.unwrap().namespaces.is_empty(), "nothing was registered");
    session.register(&base).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn more_namespaces_than_allowed() {
    let daemon = Daemon::start(Setup { max_namespaces: 3, ..Setup::default() }).await;
    let session = daemon.client().await.open("test").await.unwrap();
    let known: Vec<Descriptor> = (0..3).map(|n| fixture::small(&format!("model {n}"), 100)).collect();
    for descriptor in &known {
        session.register(descriptor).await.unwrap();
    }
    assert_eq!(reason(session.register(&fixture::small("one more", 100)).await), Reason::TooMany);
    session.register(&known[0]).await.expect("known ones still register");
}

#[test]
fn an_arena_larger_than_its_filesystem_is_refused_and_leaves_no_file() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let arena = dir.path().join("arena");
    let output = ChildDaemon::run_to_end(dir.path(), &arena, 1 << 42, "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // More than the chunks: a page of header, 256 pages of descriptors, and 128 bytes for every record there can be.
    let needed = (1u64 << 42) + 257 * 4096 + ((1 << 24) + 256) * 128;
    assert!(text.contains(&format!("needs {needed} bytes")), "the needed size: {text}");
    assert!(text.contains("available"), "what there is: {text}");
    assert!(!arena.exists(), "a file was left behind");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".sock")), "{left:?}");
}

#[test]
fn a_daemon_with_probes_that_cannot_start_ends() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = "admin = \"127.0.0.1:0\"\n";
    let output = ChildDaemon::run_to_end(dir.path(), &dir.path().join("arena"), 1 << 42, file);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_on_one_arena_names_the_first() {
    let first = ChildDaemon::start(Setup::default()).await;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (elsewhere, arena) = (dir.path().to_owned(), first.dir().join("arena"));
    let second =
        tokio::task::spawn_blocking(move || ChildDaemon::run_to_end(&elsewhere, &arena, 64 << 20, ""));
    let output = second.await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains(&format!("process {}", first.pid())), "the first's pid: {text}");
    // The first has not noticed.
    let base = fixture::small("two", 1000);
    let session = first.client().await.open_registered(&base).await;
    session.must_store(&base, fixture::chunk(1), fixture::PART, fixture::full(&base)).await;
    assert!(session.read(base.digest(), fixture::chunk(1), fixture::PART).await.is_some());
}

#[test]
fn a_configuration_key_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for (file, expected) in [
        ("[arena]\nsise = \"1 MiB\"\n", "sise"),
        ("[limits]\nmax_staging = \"many\"\n", "max_staging"),
        ("[lease]\ndefault = \"10 parsecs\"\n", "10 parsecs"),
        ("[unfinished\n", "line 1"),
    ] {
        let output = ChildDaemon::run_to_end(dir.path(), &dir.path().join("arena"), 1 << 20, file);
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(expected), "{expected} is not named in: {text}");
        assert!(!text.contains("panicked"), "{text}");
        assert!(!dir.path().join("arena").exists());
    }
}
