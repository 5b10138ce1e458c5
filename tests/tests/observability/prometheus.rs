//! A real Prometheus that scrapes one daemon.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tender_tests::daemon::http_get;

/// Generous: a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Killed when dropped.
pub(crate) struct Prometheus {
    address: SocketAddr,
    process: Child,
    // Removed last.
    _dir: TempDir,
}

impl Prometheus {
    pub(crate) fn start(rules: &Path, scraped: &SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rules = fs::canonicalize(rules).unwrap();
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\n\
             scrape_configs: [{{job_name: tenderd, static_configs: [{{targets: ['{scraped}']}}]}}]\n",
            rules.display()
        );
        fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        // Free a moment ago; should somebody take it meanwhile, Prometheus ends and the test says so.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(["--log.level=warn"])
            .stdin(Stdio::null())
            .spawn()
            .expect("prometheus is there: run scripts/setup.sh");
        Self { address, process, _dir: dir }
    }

    /// Waits until the metric has such a value.
    pub(crate) async fn until(&self, query: &str, enough: impl Fn(f64) -> bool) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(&format!("/api/v1/query?query={query}")).await;
            let value = answer["data"]["result"][0]["value"][1].as_str().and_then(|value| value.parse().ok());
            if value.is_some_and(&enough) {
                return;
            }
            assert!(
                Instant::now() < give_up,
                "{query} is {answer}; targets: {}",
                self.ask("/api/v1/targets").await
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// All names of metrics that it has.
    pub(crate) async fn names(&self) -> BTreeSet<String> {
        let answer = self.ask("/api/v1/label/__name__/values").await;
        let names = answer["data"].as_array().into_iter().flatten();
        names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
    }

    /// Null while it does not answer.
    async fn ask(&self, path: &str) -> Value {
        let answer = http_get(&self.address, path).await;
        let body = answer.map(|(_, body)| body).unwrap_or_default();
        // Longer answers come in pieces; the pieces' lengths stand between them.
        let json: String =
            body.lines().filter(|line| !line.chars().all(|c| c.is_ascii_hexdigit() || c == '\r')).collect();
        serde_json::from_str(&json).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
