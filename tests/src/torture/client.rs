//! One client under torture, a process of its own: it stores, looks up, loads and misbehaves at random until it is
//! killed or told to stop, and checks every byte that it may use.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_proto::PartIndex;
use tokio::sync::mpsc::{UnboundedReceiver, error::TryRecvError, unbounded_channel};
use tonic::Status;

use super::journal::Event;
use super::space::{Key, Space};
use crate::attach::{Attachment, attach_blocking};
use crate::raw::{RawClient, RawSession, Target, raw_digest};

/// Longer than any call takes on a slow machine, shorter than the longest stop of the daemon.
const CALL: Duration = Duration::from_secs(3);
/// Staging of a session.
pub(super) const STAGING_BYTES: u64 = 1 << 20;

/// What a client is told when it is started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Orders {
    /// Of its own choices.
    pub seed: u64,
    /// The daemon's gRPC socket.
    pub socket: PathBuf,
    /// A relay to it, for clients that are cut off now and then.
    pub relay: Option<u16>,
    /// Bytes go through shared memory; else through the connection.
    pub shared: bool,
    /// Name of the leg, and chunks of each group.
    pub space: (String, u64),
}

impl Orders {
    /// As arguments of the program.
    pub fn to_arguments(&self) -> Vec<String> {
        vec![
            self.seed.to_string(),
            self.socket.display().to_string(),
            self.relay.map_or_else(|| "direct".into(), |port| port.to_string()),
            if self.shared { "shm" } else { "grpc" }.into(),
            self.space.0.clone(),
            self.space.1.to_string(),
        ]
    }
    /// Reads the arguments.
    pub fn parse(arguments: &[String]) -> Option<Self> {
        let [seed, socket, relay, way, name, chunks] = arguments else { return None };
        Some(Self {
            seed: seed.parse().ok()?,
            socket: socket.into(),
            relay: if relay == "direct" { None } else { Some(relay.parse().ok()?) },
            shared: way == "shm",
            space: (name.clone(), chunks.parse().ok()?),
        })
    }
}

/// The connection or the session is of no use any more.
#[derive(Debug)]
pub(super) struct Lost;

/// What a client has while it is connected.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) session: RawSession,
    pub(super) shared: Option<Attachment>,
    /// Of each namespace, as last told.
    pub(super) epochs: Vec<u64>,
}

/// The client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) rng: StdRng,
    pub(super) space: Space,
    pub(super) counts: BTreeMap<String, u64>,
    orders: Orders,
}

/// Runs until standard input ends. Wrong bytes and broken promises are panics.
pub async fn run(orders: Orders) {
    let mut commands = read_commands();
    let space = Space::new(&orders.space.0, orders.space.1);
    let rng = StdRng::seed_from_u64(orders.seed);
    let mut client = Client { rng, space, counts: BTreeMap::new(), orders };
    let mut line = None;
    loop {
        match commands.try_recv() {
            Ok(word) if word == "pause" => {
                // Its stream ends, and the daemon frees what it held.
                line = None;
                Event::Counts(std::mem::take(&mut client.counts)).say();
                Event::Paused.say();
                if commands.recv().await.is_none() {
                    return;
                }
            }
            Ok(_) | Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        let acted = match &mut line {
            Some(there) => client.act(there).await,
            None => match client.connect().await {
                Ok(connected) => {
                    line = Some(connected);
                    Ok(())
                }
                Err(Lost) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    Err(Lost)
                }
            },
        };
        if acted.is_err() && line.take().is_some() {
            client.count("sessions lost");
        }
    }
}

fn read_commands() -> UnboundedReceiver<String> {
    let (send, receive) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

/// Waits for an answer, but not for long.
pub(super) async fn timely<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Lost> {
    match tokio::time::timeout(CALL, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) | Err(_) => Err(Lost),
    }
}

impl Client {
    pub(super) fn count(&mut self, what: &str) {
        self.add(what, 1);
    }
    pub(super) fn add(&mut self, what: &str, more: u64) {
        match self.counts.get_mut(what) {
            Some(count) => *count += more,
            None => _ = self.counts.insert(what.into(), more),
        }
    }
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }
    /// A random pause of at most so many milliseconds.
    pub(super) async fn pause(&mut self, most_ms: u64) {
        let time = Duration::from_micros(self.rng.random_range(0..=most_ms * 1000));
        tokio::time::sleep(time).await;
    }

    pub(super) fn pick(&mut self) -> Key {
        let namespace = self.rng.random_range(0..self.space.namespaces.len());
        self.pick_in(namespace)
    }
    pub(super) fn pick_in(&mut self, namespace: usize) -> Key {
        let groups = u16::try_from(self.space.namespaces[namespace].groups.len()).expect("few groups");
        let group = self.rng.random_range(0..groups);
        // Some are wanted more often than others.
        let n = self.rng.random_range(0..self.space.chunks_per_group);
        let n = if self.chance(50) { n / 4 } else { n };
        Key { namespace, group, n }
    }

    async fn connect(&mut self) -> Result<Line, Lost> {
        Event::At("connecting".into()).say();
        let target = match self.orders.relay {
            Some(port) => Target::Tcp(format!("127.0.0.1:{port}")),
            None => Target::Unix(self.orders.socket.clone()),
        };
        let connect = tokio::time::timeout(CALL, RawClient::connect(&target)).await;
        let client = connect.map_err(|_| Lost)?.map_err(|_| Lost)?;
        let session = timely(client.open("torture")).await?;
        let mut epochs = Vec::new();
        for namespace in 0..self.space.namespaces.len() {
            epochs.push(self.epoch(&session, namespace).await?);
        }
        let shared = if self.orders.shared { Some(self.attach(&session).await?) } else { None };
        self.count("sessions opened");
        Ok(Line { session, shared, epochs })
    }

    async fn attach(&self, session: &RawSession) -> Result<Attachment, Lost> {
        let (socket, id) = (self.orders.socket.clone(), session.session_id());
        let attaching = tokio::task::spawn_blocking(move || attach_blocking(&socket, id, STAGING_BYTES));
        match tokio::time::timeout(CALL, attaching).await {
            Ok(Ok(Ok(Ok(attachment)))) => Ok(attachment),
            Ok(Err(panicked)) => std::panic::resume_unwind(panicked.into_panic()),
            Ok(Ok(_)) | Err(_) => Err(Lost),
        }
    }

    /// The namespace's epoch now.
    pub(super) async fn epoch(&self, session: &RawSession, namespace: usize) -> Result<u64, Lost> {
        let descriptor = &self.space.namespaces[namespace];
        let answer = timely(session.register_answer(
            Some(descriptor.to_message()),
            raw_digest(descriptor.digest()),
            "",
        ));
        Ok(answer.await?.epoch)
    }

    async fn act(&mut self, line: &mut Line) -> Result<(), Lost> {
        match self.rng.random_range(0..100) {
            0..40 => self.store(line).await,
            40..85 => self.load(line).await,
            85..97 => self.misbehave(line).await,
            97..99 => {
                Event::At("resting".into()).say();
                self.pause(20).await;
                Ok(())
            }
            // Leaves, perhaps with something in hand.
            _ => {
                if self.chance(50) {
                    self.hold_something(line).await?;
                }
                Err(Lost)
            }
        }
    }

    /// Every part of a chunk, or one of them.
    pub(super) fn choose_parts(&mut self, key: Key) -> Vec<PartIndex> {
        let mut parts = self.space.parts(key);
        if parts.len() > 1 && self.chance(8) {
            let one = self.rng.random_range(0..parts.len());
            parts = vec![parts[one]];
        } else if self.chance(50) {
            parts.reverse();
        }
        parts
    }
}
