//! A headless browser that loads one page and tells what became of it.

use std::process::{Command, Stdio};

/// What a page was after its scripts had run.
#[derive(Debug)]
pub struct Loaded {
    /// The document as it stood then.
    pub dom: String,
    /// What it, or the browser about it, wrote to the console.
    pub console: Vec<String>,
}

/// Loads a page. It needs Debian's `chromium`, which `make setup` installs.
pub fn load(url: &str) -> Loaded {
    let profile = tempfile::tempdir().expect("a folder for the browser's profile");
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-sync",
        ])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"])
        .args(["--enable-logging=stderr", "--timeout=60000", "--virtual-time-budget=3000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(["--dump-dom", url])
        .stdin(Stdio::null())
        .output()
        .expect("chromium starts; `make setup` installs it");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    Loaded {
        dom: String::from_utf8_lossy(&output.stdout).into_owned(),
        console: said.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect(),
    }
}

impl Loaded {
    /// The number behind a figure of the page.
    pub fn value(&self, id: &str) -> Option<u64> {
        let at = self.dom.find(&format!("id=\"{id}\""))?;
        let (_, rest) = self.dom[at..].split_once("data-value=\"")?;
        rest.split('"').next()?.parse().ok()
    }
}
