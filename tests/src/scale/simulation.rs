//! The fleet, event by event.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::lru::Lru;
use super::{Fleet, Report, Request};

/// What happens at a moment.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    /// A chunk is in a daemon's arena.
    Ready { daemon: usize, chunk: u64 },
    /// A daemon says what has changed.
    Speak { daemon: usize },
    /// A daemon says again what it holds.
    Round { daemon: usize },
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Timed {
    at_s: f64,
    /// In the order in which they were thought of.
    number: u64,
    event: Event,
}

impl Eq for Timed {}
impl Ord for Timed {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_s.total_cmp(&other.at_s).then(self.number.cmp(&other.number))
    }
}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Default)]
struct Daemon {
    arena: Lru,
    /// Coming or being computed, and until when.
    pending: HashMap<u64, f64>,
    /// Said at the next tick: true for here, false for gone.
    unsaid: Vec<(u64, bool)>,
}

struct Simulation<'a> {
    fleet: &'a Fleet,
    daemons: Vec<Daemon>,
    /// Who says that it holds a chunk, and until when that counts.
    directory: HashMap<u64, Vec<(usize, f64)>>,
    events: BinaryHeap<Reverse<Timed>>,
    number: u64,
    random: StdRng,
    report: Report,
}

/// Sends each request to a daemon drawn by chance, which is the worst a balancer can do. The first `warm_up` requests are
/// not counted.
pub fn simulate(fleet: &Fleet, requests: &[Request], warm_up: usize, seed: u64) -> Report {
    let mut simulation = Simulation {
        fleet,
        daemons: (0..fleet.daemons).map(|_| Daemon::default()).collect(),
        directory: HashMap::new(),
        events: BinaryHeap::new(),
        number: 0,
        random: StdRng::seed_from_u64(seed),
        report: Report::default(),
    };
    let between_s = fleet.ttl_s / f64::from(fleet.rounds_per_ttl);
    for daemon in 0..fleet.daemons {
        let first_s = between_s * (daemon as f64 + 0.5) / fleet.daemons as f64;
        simulation.at(first_s, Event::Round { daemon });
    }
    let begin_s = requests.get(warm_up).map_or(0.0, |request| request.at_s);
    for (index, request) in requests.iter().enumerate() {
        simulation.until(request.at_s);
        if index == warm_up {
            simulation.report = Report::default();
        }
        simulation.serve(request);
    }
    let end_s = requests.last().map_or(0.0, |request| request.at_s);
    let live =
        |holders: &Vec<(usize, f64)>| holders.iter().filter(|(_, until_s)| *until_s > end_s).count() as u64;
    simulation.report.entries = simulation.directory.values().map(live).sum();
    simulation.report.seconds = end_s - begin_s;
    simulation.report
}

impl Simulation<'_> {
    fn at(&mut self, at_s: f64, event: Event) {
        self.number += 1;
        self.events.push(Reverse(Timed { at_s, number: self.number, event }));
    }

    fn until(&mut self, now_s: f64) {
        while let Some(Reverse(next)) = self.events.peek().copied().filter(|Reverse(next)| next.at_s <= now_s)
        {
            self.events.pop();
            match next.event {
                Event::Ready { daemon, chunk } => self.ready(next.at_s, daemon, chunk),
                Event::Speak { daemon } => self.speak(next.at_s, daemon),
                Event::Round { daemon } => self.round(next.at_s, daemon),
            }
        }
    }

    fn serve(&mut self, request: &Request) {
        let now_s = request.at_s;
        let daemon = self.random.random_range(0..self.daemons.len());
        self.report.requests += 1;
        self.report.chunks += request.chunks.len() as u64;
        let missing = request.chunks.iter().filter(|&&chunk| {
            !self.daemons[daemon].arena.has(chunk) && !self.daemons[daemon].pending.contains_key(&chunk)
        });
        let missing = missing.count() as u64;
        if missing > 0 {
            self.report.lookups += 1;
            self.report.looked_up_chunks += missing;
        }
        // From the first chunk that nobody holds on, everything is computed: its KV needs all before it.
        let mut broken = false;
        for &chunk in &request.chunks {
            let here = &mut self.daemons[daemon];
            if here.arena.touch(chunk) {
                if broken { self.report.none += 1 } else { self.report.local += 1 }
            } else if here.pending.contains_key(&chunk) {
                self.report.duplicates_avoided += 1;
                if broken { self.report.none += 1 } else { self.report.peer += 1 }
            } else if !broken && self.fetch(now_s, daemon, chunk) {
                self.report.peer += 1;
                self.pending(now_s + self.fleet.fetch_s, daemon, chunk);
            } else {
                broken = true;
                self.report.none += 1;
                self.pending(now_s + self.fleet.compute_s, daemon, chunk);
            }
        }
    }

    fn pending(&mut self, until_s: f64, daemon: usize, chunk: u64) {
        self.daemons[daemon].pending.insert(chunk, until_s);
        self.at(until_s, Event::Ready { daemon, chunk });
    }

    /// One holder is asked, drawn by chance; if it no longer has the chunk, its word is taken out and the next one is.
    fn fetch(&mut self, now_s: f64, daemon: usize, chunk: u64) -> bool {
        let Some(holders) = self.directory.get_mut(&chunk) else { return false };
        holders.retain(|(_, until_s)| *until_s > now_s);
        let mut others: Vec<usize> =
            holders.iter().map(|&(holder, _)| holder).filter(|&h| h != daemon).collect();
        while !others.is_empty() {
            let holder = others.swap_remove(self.random.random_range(0..others.len()));
            let arena = &mut self.daemons[holder].arena;
            let has = if self.fleet.serving_is_use { arena.touch(chunk) } else { arena.has(chunk) };
            if has {
                self.report.fetches += 1;
                return true;
            }
            self.report.stale += 1;
            if let Some(holders) = self.directory.get_mut(&chunk) {
                holders.retain(|&(other, _)| other != holder);
            }
        }
        false
    }

    fn ready(&mut self, now_s: f64, daemon: usize, chunk: u64) {
        let here = &mut self.daemons[daemon];
        here.pending.remove(&chunk);
        let gone = here.arena.insert(chunk, self.fleet.arena_chunks);
        let silent = here.unsaid.is_empty();
        here.unsaid.push((chunk, true));
        here.unsaid.extend(gone.map(|gone| (gone, false)));
        if silent {
            let tick = (now_s / self.fleet.tick_s).floor() + 1.0;
            self.at(tick * self.fleet.tick_s, Event::Speak { daemon });
        }
    }

    fn speak(&mut self, now_s: f64, daemon: usize) {
        for (chunk, here) in std::mem::take(&mut self.daemons[daemon].unsaid) {
            if here {
                self.report.published += 1;
                self.say(now_s, daemon, chunk);
            } else {
                self.report.withdrawn += 1;
                if let Some(holders) = self.directory.get_mut(&chunk) {
                    holders.retain(|&(holder, _)| holder != daemon);
                    if holders.is_empty() {
                        self.directory.remove(&chunk);
                    }
                }
            }
        }
    }

    fn round(&mut self, now_s: f64, daemon: usize) {
        self.report.refreshed += self.daemons[daemon].arena.len() as u64;
        let chunks: Vec<u64> = self.daemons[daemon].arena.chunks().collect();
        chunks.into_iter().for_each(|chunk| self.say(now_s, daemon, chunk));
        let between_s = self.fleet.ttl_s / f64::from(self.fleet.rounds_per_ttl);
        self.at(now_s + between_s, Event::Round { daemon });
    }

    fn say(&mut self, now_s: f64, daemon: usize, chunk: u64) {
        let holders = self.directory.entry(chunk).or_default();
        let until_s = now_s + self.fleet.ttl_s;
        let room = holders.len() < self.fleet.max_holders;
        match holders.iter_mut().find(|(holder, _)| *holder == daemon) {
            Some(word) => word.1 = until_s,
            None if room => holders.push((daemon, until_s)),
            None => {}
        }
    }
}
