//! The client processes: started, stopped for a while, killed, and listened to.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use super::journal::Event;
use super::tally::Tally;
use super::truth::Truth;

/// A client that does not stop within this hangs: its calls end much sooner.
const PATIENCE: Duration = Duration::from_secs(40);

/// What all clients say, together.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) truth: Truth,
    pub(super) tally: Tally,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Member {
    arguments: Vec<String>,
    process: Child,
    commands: ChildStdin,
    listening: JoinHandle<()>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    paused: bool,
    doing: String,
}

impl Member {
    /// Starts this program with other arguments.
    pub(super) fn start(
        program: &std::path::Path,
        arguments: Vec<String>,
        heard: &Arc<Mutex<Heard>>,
    ) -> Self {
        let mut process = Command::new(program)
            .args(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a client runs");
        let commands = process.stdin.take().expect("piped");
        let output = process.stdout.take().expect("piped");
        let state = Arc::new(Mutex::new(State::default()));
        let listening = tokio::spawn(listen(output, Arc::clone(&state), Arc::clone(heard)));
        Self { arguments, process, commands, listening, state }
    }

    /// Tells it to stop; [`Member::paused`] waits.
    pub(super) async fn pause(&mut self) {
        self.command("pause").await;
    }
    /// Waits until it holds nothing.
    pub(super) async fn paused(&mut self) {
        let give_up = Instant::now() + PATIENCE;
        while !self.state.lock().expect("no panic while it is held").paused {
            self.check_alive();
            assert!(Instant::now() < give_up, "a client hangs: {:?}", self.state);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    /// Lets it go on.
    pub(super) async fn go_on(&mut self) {
        self.state.lock().expect("no panic while it is held").paused = false;
        self.command("go").await;
    }
    /// A client that ended by itself has found something.
    pub(super) fn check_alive(&mut self) {
        if let Some(status) = self.process.try_wait().expect("our own child") {
            let doing = self.doing();
            panic!("a client ended with {status} while {doing}; it says why above: {:?}", self.arguments);
        }
    }

    /// SIGKILL; everything that it said is heard afterwards. Tells what it was doing.
    pub(super) async fn kill(mut self) -> String {
        self.check_alive();
        self.process.kill().await.expect("our own child");
        self.listening.await.expect("listening does not panic");
        self.state.lock().expect("no panic while it is held").doing.clone()
    }
    /// What it was told when it was started.
    pub(super) fn arguments(&self) -> &[String] {
        &self.arguments
    }

    fn doing(&self) -> String {
        self.state.lock().expect("no panic while it is held").doing.clone()
    }
    async fn command(&mut self, word: &str) {
        if self.commands.write_all(format!("{word}\n").as_bytes()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.check_alive();
        }
    }
}

async fn listen(output: ChildStdout, state: Arc<Mutex<State>>, heard: Arc<Mutex<Heard>>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        // A client that is killed in the middle of a line has not said it.
        let Some(event) = Event::parse(&line) else { continue };
        match event {
            Event::At(what) => state.lock().expect("no panic while it is held").doing = what,
            Event::Paused => state.lock().expect("no panic while it is held").paused = true,
            Event::Counts(counts) => {
                let mut heard = heard.lock().expect("no panic while it is held");
                counts.iter().for_each(|(what, more)| heard.tally.add(what, *more));
            }
            told => heard.lock().expect("no panic while it is held").truth.hear(&told),
        }
    }
}
