//! One arena and its crew, round after round.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::Settings;
use super::child::{Dies, Victim};
use super::client::Orders;
use super::crew::{Heard, Member};
use super::space::Space;
use super::tally::Tally;
use super::truth::{Judge, Truth};
use crate::daemon::Setup;
use crate::proxy::{Mode, Proxy};
use crate::raw::{RawClient, Target};

/// Engines on the real client; each has two sessions.
const ENGINES: usize = 2;
/// Clients of the raw contract: both ways for bytes, directly and through the relay.
const CLIENTS: usize = 4;

/// The leg.
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) victim: Victim,
    pub(super) space: Space,
    pub(super) heard: Arc<Mutex<Heard>>,
    pub(super) rng: StdRng,
    /// Nothing is ever evicted.
    roomy: bool,
    arena_bytes: u64,
    /// Evictions of this boot that earlier checks have accounted for.
    accounted: Vec<u64>,
    name: String,
    chunks: u64,
    program: PathBuf,
    proxy: Proxy,
    clients: Vec<Member>,
    engines: Vec<Member>,
}

/// How a round ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Kill,
    KillWhileStopped,
    KillInDrain,
    KillInReset,
    Terminate,
    HandOver(Dies),
    GoOn,
}

impl End {
    fn draw(rng: &mut StdRng) -> Self {
        match rng.random_range(0..100) {
            0..40 => Self::Kill,
            40..50 => Self::KillWhileStopped,
            50..60 => Self::KillInDrain,
            60..70 => Self::KillInReset,
            70..77 => Self::Terminate,
            77..82 => Self::HandOver(Dies::Nobody),
            82..87 => Self::HandOver(Dies::Old),
            87..92 => Self::HandOver(Dies::New),
            _ => Self::GoOn,
        }
    }
    /// Somebody serves afterwards, without a start by hand.
    fn goes_on(self) -> bool {
        matches!(self, Self::HandOver(_) | Self::GoOn)
    }
}

impl Leg {
    pub(super) async fn start(settings: &Settings, number: u64, tally: Tally) -> Self {
        let roomy = number.is_multiple_of(2);
        let setup = Setup {
            arena_bytes: if roomy { 32 << 20 } else { 4 << 20 },
            default_lease: Duration::from_millis(500),
            max_lease: Duration::from_secs(30),
            reservation: Duration::from_millis(400),
            ..Setup::default()
        };
        let (name, chunks) = (format!("torture {number}"), if roomy { 40 } else { 240 });
        let space = Space::new(&name, chunks);
        let victim = Victim::start(setup).await;
        let proxy = Proxy::start(Target::Unix(victim.socket())).await.expect("a relay");
        let truth = Truth::new(space.namespaces.len());
        let heard = Arc::new(Mutex::new(Heard { truth, tally }));
        let mut leg = Self {
            accounted: vec![0; space.namespaces.len()],
            victim,
            space,
            heard,
            rng: StdRng::seed_from_u64(settings.seed.wrapping_mul(1000).wrapping_add(number)),
            roomy,
            arena_bytes: setup.arena_bytes,
            name,
            chunks,
            program: settings.program.clone(),
            proxy,
            clients: Vec::new(),
            engines: Vec::new(),
        };
        leg.count(if roomy { "arenas with room for everything" } else { "arenas under pressure" });
        leg.check(Judge::All).await;
        for index in 0..CLIENTS {
            let client = leg.client(index);
            leg.clients.push(client);
        }
        for index in 0..ENGINES {
            let way = if index == 0 { "shm" } else { "grpc" };
            let socket = leg.victim.socket().display().to_string();
            let arguments = vec![
                "engine".into(),
                leg.rng.random::<u32>().to_string(),
                socket,
                way.into(),
                leg.name.clone(),
            ];
            leg.engines.push(Member::start(&leg.program, arguments, &leg.heard));
        }
        leg
    }

    fn client(&mut self, index: usize) -> Member {
        let orders = Orders {
            seed: self.rng.random(),
            socket: self.victim.socket(),
            relay: (index >= 2).then(|| self.proxy.port()),
            shared: index.is_multiple_of(2),
            space: (self.name.clone(), self.chunks),
        };
        let mut arguments = vec!["client".to_owned()];
        arguments.extend(orders.to_arguments());
        Member::start(&self.program, arguments, &self.heard)
    }

    /// What was counted so far, in earlier legs too.
    pub(super) fn tally(&self) -> Tally {
        self.lock().tally.clone()
    }
    /// The end of it.
    pub(super) async fn end(mut self) -> Tally {
        for member in self.clients.iter_mut().chain(&mut self.engines) {
            member.check_alive();
        }
        self.tally()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().expect("no panic while it is held")
    }
    pub(super) fn count(&self, what: &str) {
        self.add(what, 1);
    }
    pub(super) fn add(&self, what: &str, more: u64) {
        self.lock().tally.add(what, more);
    }
    /// Sessions that may stay open while everybody is at rest.
    pub(super) fn resting_sessions(&self) -> u64 {
        2 * self.engines.len() as u64
    }
    async fn sleep(&mut self, from_ms: u64, to_ms: u64) {
        let time = Duration::from_micros(self.rng.random_range(from_ms * 1000..=to_ms * 1000));
        tokio::time::sleep(time).await;
    }

    /// Work, disturbances, an end, and a check. Everybody works before and rests after it.
    pub(super) async fn round(&mut self) {
        for _ in 0..self.rng.random_range(0..4) {
            self.sleep(50, 300).await;
            self.disturb().await;
        }
        self.sleep(50, 500).await;
        // At rest before the end, evictions can be counted to the last one.
        let quiet = self.rng.random_range(0..100) < 30;
        let mut evicted = None;
        if quiet {
            self.rest().await;
            evicted = Some(self.evictions().await);
        }
        let mut end = End::draw(&mut self.rng);
        if matches!(end, End::HandOver(_)) && !self.roomy && !quiet {
            // The next daemon knows when chunks were written, not when they were used: it evicts in another order.
            end = End::Kill;
        }
        self.end_with(end).await;
        if !quiet {
            self.rest().await;
        }
        if !end.goes_on() {
            self.kill_while_starting().await;
            self.victim.until_ready().await;
            self.count("restarts on the same arena");
        } else if end == End::GoOn && evicted.is_none() {
            evicted = Some(self.evictions().await);
        }
        let counts: Option<Vec<u64>> = evicted
            .as_ref()
            .map(|all| all.iter().zip(&self.accounted).map(|(now, then)| now - then).collect());
        match counts {
            _ if self.roomy => self.check(Judge::All).await,
            Some(counts) => self.check(Judge::Evicted(&counts)).await,
            None => self.check(Judge::Recent(self.arena_bytes / 6)).await,
        }
        self.accounted = self.evictions().await;
        for member in self.clients.iter_mut().chain(&mut self.engines) {
            member.go_on().await;
        }
    }

    /// Everybody stops and holds nothing.
    async fn rest(&mut self) {
        for member in self.clients.iter_mut().chain(&mut self.engines) {
            member.pause().await;
        }
        for member in self.clients.iter_mut().chain(&mut self.engines) {
            member.paused().await;
        }
    }

    async fn disturb(&mut self) {
        match self.rng.random_range(0..100) {
            0..35 => self.kill_client().await,
            35..55 => {
                let long = self.rng.random_range(0..30);
                let (name, from_ms, to_ms) = match long {
                    0 => ("daemon stopped for longer than any call waits", 3200, 4500),
                    1..8 => ("daemon stopped for longer than leases and reservations last", 500, 1200),
                    _ => ("daemon stopped for a moment", 5, 120),
                };
                self.victim.stop();
                self.sleep(from_ms, to_ms).await;
                self.victim.go_on();
                self.count(name);
            }
            55..70 => {
                self.proxy.cut();
                self.count("connections cut");
            }
            70..78 => {
                let bytes = self.rng.random_range(0..60_000);
                self.proxy.cut_after(bytes);
                self.sleep(10, 60).await;
                self.proxy.heal();
                self.count("connections cut inside an answer");
            }
            78..85 => {
                self.proxy.set(Mode::BlackHole);
                self.sleep(20, 200).await;
                self.proxy.set(Mode::Pass);
                self.proxy.cut();
                self.count("connections that swallowed everything");
            }
            _ => {
                let namespace = self.rng.random_range(0..self.space.namespaces.len());
                let answered = self.ask_for_reset(namespace).await.await.expect("no panic");
                assert!(answered, "a reset of a daemon that lives is answered");
                self.lock().truth.reset(namespace, true);
                self.count("resets");
            }
        }
    }

    async fn kill_client(&mut self) {
        let index = self.rng.random_range(0..self.clients.len());
        let successor = self.client(index);
        let victim = std::mem::replace(&mut self.clients[index], successor);
        let way = if victim.arguments().iter().any(|word| word == "shm") { "shm" } else { "grpc" };
        let doing = victim.kill().await;
        self.count(&format!("client killed ({way}) while {doing}"));
    }

    /// Asks for a reset beside everything else; the task tells whether it was answered.
    async fn ask_for_reset(&self, namespace: usize) -> tokio::task::JoinHandle<bool> {
        let digest = self.space.namespaces[namespace].digest();
        let connected = RawClient::connect(&Target::Unix(self.victim.socket())).await;
        tokio::spawn(async move {
            match connected {
                Ok(client) => client.reset(digest).await.is_ok(),
                Err(_) => false,
            }
        })
    }

    async fn end_with(&mut self, end: End) {
        let name = match end {
            End::Kill => " at work",
            End::KillWhileStopped => {
                self.victim.stop();
                self.sleep(0, 100).await;
                " while stopped"
            }
            End::KillInDrain => {
                self.victim.terminate();
                self.sleep(0, 300).await;
                if !self.victim.is_alive() {
                    self.victim.ended().await;
                    self.count("daemon drained and ended");
                    return;
                }
                " while draining"
            }
            End::KillInReset => return self.kill_in_reset().await,
            End::Terminate => {
                self.victim.terminate();
                self.victim.ended().await;
                self.count("daemon drained and ended");
                return;
            }
            End::HandOver(dies) => {
                let after = Duration::from_micros(self.rng.random_range(0..80_000));
                self.victim.hand_over(dies, after).await;
                self.count(match dies {
                    Dies::Nobody => "daemon handed over",
                    Dies::Old => "daemon killed while handing over",
                    Dies::New => "daemon killed while taking over",
                });
                return;
            }
            End::GoOn => return,
        };
        self.victim.kill();
        self.count(&format!("{}{name}", super::KILLS));
    }

    async fn kill_in_reset(&mut self) {
        let namespace = self.rng.random_range(0..self.space.namespaces.len());
        let asking = self.ask_for_reset(namespace).await;
        self.sleep(0, 2).await;
        self.victim.kill();
        self.count(&format!("{} while resetting", super::KILLS));
        let answered = asking.await.expect("no panic");
        self.lock().truth.reset(namespace, answered);
        self.count(if answered { "resets" } else { "resets that were not answered" });
    }

    /// Starts it again, and perhaps kills it a few times before it gets to work.
    async fn kill_while_starting(&mut self) {
        let times = if self.rng.random_range(0..100) < 30 { self.rng.random_range(1..4) } else { 0 };
        for _ in 0..times {
            self.victim.spawn_again();
            self.sleep(0, 60).await;
            self.victim.kill();
            self.count(&format!("{} while starting", super::KILLS));
        }
        self.victim.spawn_again();
    }
}
