//! Several hosts on this machine, as network namespaces: `tests/hosts.sh` makes them, and this takes them down again.
//! They share the file system, so that a test outside reaches a daemon on any of them through its Unix socket.

use std::path::PathBuf;
use std::process::Command;

/// Followed by the process id of the test.
const PREFIX: &str = "tender-hosts";

/// Some hosts behind one bridge, numbered from 1.
#[derive(Debug)]
pub struct Hosts {
    name: String,
    count: usize,
}

impl Hosts {
    /// Makes them, and takes down what killed tests have left. One set for each process.
    pub fn up(count: usize) -> Self {
        let hosts = Self { name: format!("{PREFIX}{}", std::process::id()), count };
        hosts.script(&["sweep", PREFIX]);
        hosts.script(&["up", &hosts.name, &count.to_string()]);
        hosts
    }

    /// Its address on their network.
    pub fn address(&self, host: usize) -> String {
        assert!((1..=self.count).contains(&host), "there is no host {host}");
        format!("10.77.0.{host}")
    }

    /// The same program with the same arguments and environment, on that host.
    pub fn on(&self, host: usize, program: &Command) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.place(host)])
            .arg(program.get_program())
            .args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Nothing that others send arrives there, and nobody hears it; nobody is told.
    pub fn black_hole(&self, host: usize) {
        self.script(&["black-hole", &self.name, &host.to_string()]);
    }
    /// Its own network is gone, and it knows.
    pub fn cut(&self, host: usize) {
        self.script(&["cut", &self.name, &host.to_string()]);
    }
    /// What it sends leaves at this rate, in the words of `tc`.
    pub fn throttle(&self, host: usize, rate: &str) {
        self.script(&["throttle", &self.name, &host.to_string(), rate]);
    }
    /// As at first.
    pub fn heal(&self, host: usize) {
        self.script(&["heal", &self.name, &host.to_string()]);
    }

    fn place(&self, host: usize) -> String {
        self.address(host);
        format!("{}-{host}", self.name)
    }

    fn script(&self, arguments: &[&str]) {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("hosts.sh");
        let output = Command::new(script).args(arguments).output().expect("tests/hosts.sh runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tests/hosts.sh {}: {said}", arguments.join(" "));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.script(&["down", &self.name]);
    }
}
