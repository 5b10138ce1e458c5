//! Rules and dashboard against what a daemon says of itself: every name, every label and every reason in them is one that a real
//! Prometheus scraped from a real daemon with all tiers, or one that the rules record.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

mod prometheus;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tender_daemon::config::{ClientAuth, Config, TlsConfig};
use tender_proto::{ChunkId, Descriptor, Reason};
use tender_tests::daemon::{Daemon, Setup, http_get};
use tender_tests::raw::RawSession;
use tender_tests::redis::Redis;
use tender_tests::{fixture, pattern};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use prometheus::Prometheus;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/observability")
}

/// Metrics of Prometheus itself.
const OF_PROMETHEUS: &[&str] = &["up", "ALERTS"];

/// Runs promtool, which must agree.
fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool").args(arguments).current_dir(folder()).output();
    let output = output.expect("promtool is there: run scripts/setup.sh");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn rules_are_valid_and_each_fires_when_it_should() {
    promtool(&["check", "rules", "rules.yaml"]);
    promtool(&["test", "rules", "rules_test.yaml"]);
}

/// Rules, as name and expression.
fn rules() -> (BTreeMap<String, String>, BTreeMap<String, Value>) {
    let rules: Value =
        serde_saphyr::from_str(&fs::read_to_string(folder().join("rules.yaml")).unwrap()).unwrap();
    let all = rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    let (mut records, mut alerts) = (BTreeMap::new(), BTreeMap::new());
    for rule in all {
        if let Some(name) = rule["record"].as_str() {
            records.insert(name.to_owned(), rule["expr"].as_str().unwrap().to_owned());
        } else {
            alerts.insert(rule["alert"].as_str().unwrap().to_owned(), rule.clone());
        }
    }
    (records, alerts)
}

#[test]
fn every_alert_is_tried_and_has_its_line_in_the_runbook() {
    let tried = fs::read_to_string(folder().join("rules_test.yaml")).unwrap();
    let runbook = fs::read_to_string(folder().join("../../docs/runbook.md")).unwrap();
    let (_, alerts) = rules();
    for (name, alert) in &alerts {
        assert!(tried.contains(&format!("alertname=\"{name}\"")), "rules_test.yaml does not try {name}");
        assert!(runbook.contains(&format!("### {name}\n")), "docs/runbook.md says nothing of {name}");
        let leads = alert["annotations"]["runbook"].as_str().unwrap_or_default();
        assert_eq!(leads, format!("docs/runbook.md#{}", name.to_lowercase()));
        assert!(
            alert["annotations"]["summary"].as_str().unwrap().contains("$labels.instance"),
            "{name}: which daemon?"
        );
        assert!(["page", "ticket"].contains(&alert["labels"]["severity"].as_str().unwrap()), "{name}");
    }
    for line in runbook.lines().filter_map(|line| line.strip_prefix("### Tender")) {
        assert!(
            alerts.contains_key(&format!("Tender{line}")),
            "docs/runbook.md has Tender{line}, and no rule does"
        );
    }
}

/// Every expression of rules and dashboard, with where it stands.
fn expressions() -> Vec<(String, String)> {
    let (records, alerts) = rules();
    let mut all: Vec<(String, String)> = records.into_iter().collect();
    all.extend(alerts.into_iter().map(|(name, alert)| (name, alert["expr"].as_str().unwrap().to_owned())));
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(folder().join("dashboard.json")).unwrap()).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().into_iter().flatten() {
            all.push((format!("panel {title}"), target["expr"].as_str().unwrap().to_owned()));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"].as_str().and_then(|query| query.strip_prefix("label_values("))
        {
            all.push(("a variable".into(), query.rsplit_once(',').unwrap().0.into()));
        }
    }
    all
}

/// Metrics that an expression names, each with the labels and values it asks for.
fn named(expression: &str) -> Vec<(String, Vec<(String, String)>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    for (at, _) in expression.match_indices("tender") {
        if expression[..at]
            .chars()
            .next_back()
            .is_some_and(|before| is_name(before) || before == '.' || before == '"')
        {
            continue;
        }
        let name: String = expression[at..].chars().take_while(|&c| is_name(c)).collect();
        if !name.starts_with("tender_") && !name.starts_with("tender:") {
            continue;
        }
        let rest = &expression[at + name.len()..];
        let labels =
            rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(labels, _)| labels);
        let pairs = labels.split(',').filter_map(|pair| {
            let (label, value) = pair.split_once('=')?;
            Some((label.trim().to_owned(), value.trim_matches(['~', '"']).to_owned()))
        });
        found.push((name, pairs.collect()));
    }
    found
}

#[test]
fn names_are_found_in_expressions() {
    let found = named(
        r#"sum(rate(tender_a_total{reason="x",job=~"$job"}[5m])) / tender:b:ratio > up{job=~".*tender.*"}"#,
    );
    assert_eq!(found[0].0, "tender_a_total");
    assert_eq!(found[0].1[0], ("reason".into(), "x".into()));
    assert_eq!(found[1], ("tender:b:ratio".into(), vec![]));
    assert_eq!(found.len(), 2);
}

/// A daemon with everything that can be shown, and what it needs.
struct Everything {
    daemon: Daemon,
    _redis: Redis,
    _dir: TempDir,
}

const POLICY: &str =
    "[[tenant]]\nname = \"tests\"\nidentities = [\"uid:*\"]\nallow = [\"read\", \"write\", \"admin\"]\n";

/// One file is certificate and authority.
fn certificates(dir: &Path) -> TlsConfig {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["tender.example".into()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let (cert, key_file) = (dir.join("cert.pem"), dir.join("key.pem"));
    fs::write(&cert, certificate.pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    TlsConfig { client_ca: Some(cert.clone()), cert, key: key_file, client_auth: ClientAuth::Required }
}

impl Everything {
    async fn start() -> Self {
        let (redis, dir) = (Redis::start(), tempfile::tempdir().unwrap());
        let (disk, shared, policy) =
            (dir.path().join("disk"), dir.path().join("shared"), dir.path().join("policy.toml"));
        fs::create_dir(&disk).unwrap();
        fs::create_dir(&shared).unwrap();
        fs::write(&policy, POLICY).unwrap();
        let told = [
            "tenderd".to_owned(),
            format!("--directory={}", redis.uri()),
            "--listen=tcp://127.0.0.1:1".to_owned(),
            "--allow-plaintext-tcp".to_owned(),
            format!("--disk-path={}", disk.display()),
            "--disk-size=64MiB".to_owned(),
            "--disk-segment-size=4MiB".to_owned(),
            format!("--shared-uri=fs://{}", shared.display()),
            "--shared-min-hits=0".to_owned(),
            format!("--policy={}", policy.display()),
        ];
        let config = Config::load(told.iter().map(OsString::from)).unwrap();
        let tls = certificates(dir.path());
        let daemon = Daemon::start_with(Setup::slots(4), |own| {
            (own.peers, own.disk, own.shared) = (config.peers, config.disk, config.shared);
            (own.stack, own.policy) = (config.stack, config.policy);
            own.tls = Some(tls);
        })
        .await;
        let all = Self { daemon, _redis: redis, _dir: dir };
        all.use_it().await;
        // A changed policy is read again.
        fs::write(&policy, format!("{POLICY}# changed\n")).unwrap();
        all
    }

    /// Stores one chunk. While tiers copy what is in the arena, there may be no room for a moment.
    async fn store(&self, session: &RawSession, descriptor: &Descriptor, chunk: ChunkId) {
        let give_up = Instant::now() + Duration::from_secs(60);
        let coverage = fixture::full(descriptor);
        let bytes = pattern::blob(descriptor, chunk, fixture::PART, coverage);
        loop {
            let outcome = session.store(descriptor.digest(), chunk, fixture::PART, coverage, &bytes).await;
            if outcome.as_ref().is_ok_and(|outcome| outcome.stored) {
                return;
            }
            assert!(Instant::now() < give_up, "no room: {outcome:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Something of every kind: hits, misses, evictions, refusals by the domain and by the policy.
    async fn use_it(&self) {
        let descriptor = fixture::small("observed", tender_tests::daemon::SLOT_BLOCK_BYTES);
        let session = self.daemon.client().await.open_registered(&descriptor).await;
        let (namespace, coverage) = (descriptor.digest(), fixture::full(&descriptor));
        for n in 0..12 {
            self.store(&session, &descriptor, fixture::chunk(n)).await;
        }
        assert!(session.read(namespace, fixture::chunk(11), fixture::PART).await.is_some());
        session.states(namespace, &[fixture::chunk(77)]).await;
        let wrong = session.store(namespace, fixture::chunk(78), fixture::PART, coverage, b"too short").await;
        assert!(!wrong.is_ok_and(|outcome| outcome.stored), "nine bytes are no chunk");
        // Not a word of HTTP/2.
        let mut silent = UnixStream::connect(self.daemon.socket()).await.unwrap();
        silent.write_all(b"GET / HTTP/1.1\r\nHost: tenderd\r\n\r\n").await.unwrap();
        _ = silent.read_to_end(&mut Vec::new()).await;
        let stranger = self.daemon.tcp_client().await;
        assert!(stranger.stats().await.is_err(), "the policy knows nobody on TCP");
    }
}

/// Names, and of each its labels with the values seen, of the exposition's text.
fn exposed(text: &str) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let mut all: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let name = line.split(['{', ' ']).next().unwrap().to_owned();
        let labels = all.entry(name).or_default();
        let inside =
            line.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(inside, _)| inside);
        for (label, value) in inside.split("\",").filter_map(|pair| pair.split_once("=\"")) {
            labels.entry(label.to_owned()).or_default().insert(value.trim_end_matches('"').to_owned());
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_reads_a_daemon_and_everything_in_rules_and_dashboard_is_there() {
    let everything = Everything::start().await;
    let admin = *everything.daemon.admin();
    let prometheus = Prometheus::start(&folder().join("rules.yaml"), &admin);
    // The last of what the daemon is made to do.
    prometheus.until("tender_reloads_total", |value| value >= 1.0).await;
    // Failures of tiers and damage have no rows until there are some: their labels are tried by rules_test.yaml.
    let only_in_trouble = ["tender_tier_failed_fetches_total"];
    let scraped = prometheus.names().await;
    let (_, text) = http_get(&admin, "/metrics").await.unwrap();
    let exposed = exposed(&text);
    let (records, _) = rules();
    let reasons: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.label()).collect();
    for (place, expression) in expressions() {
        let names = named(&expression);
        assert!(
            !names.is_empty() || OF_PROMETHEUS.iter().any(|name| expression.contains(name)),
            "{place}: {expression}"
        );
        for (name, labels) in names {
            if records.contains_key(&name) || only_in_trouble.contains(&name.as_str()) {
                continue;
            }
            let known =
                exposed.get(&name).unwrap_or_else(|| panic!("{place}: the daemon has no {name}\n{text}"));
            assert!(scraped.contains(&name), "{place}: Prometheus has not read {name}");
            for (label, value) in
                labels.iter().filter(|(label, _)| !["job", "instance", "le"].contains(&label.as_str()))
            {
                let values =
                    known.get(label).unwrap_or_else(|| panic!("{place}: {name} has no label {label}"));
                let all_fine = value.split('|').all(|value| match label.as_str() {
                    "reason" => reasons.contains(value),
                    // Only those that were called are seen.
                    "call" => values.contains(value) || value == "lookup",
                    // A refused reload, as it is written in metrics.rs; a good one is what the test makes.
                    "outcome" if name == "tender_reloads_total" => value == "refused",
                    _ => values.contains(value),
                });
                assert!(all_fine, "{place}: {name} has {label} {values:?}, never {value}");
            }
        }
    }
    // Rules are evaluated over what was scraped.
    prometheus.until("tender:arena_used:ratio", |value| value > 0.0 && value <= 1.0).await;
}
