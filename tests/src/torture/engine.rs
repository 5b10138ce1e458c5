//! An engine on the real client under torture: it must answer every request with the right slots, whatever happens to
//! its daemon, and come back by itself.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::mpsc::{TryRecvError, channel};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_client::{Address, TransportChoice};

use super::journal::Event;
use crate::daemon::client_config;
use crate::model::ModelEngine;

/// Prompts that share beginnings.
const FAMILIES: u32 = 4;
/// The longest prompt.
const MOST_TOKENS: u32 = 200;

/// Runs until standard input ends: `SEED SOCKET shm|grpc MODEL`. A wrong slot or a hang is a panic.
pub fn run(arguments: &[String]) {
    let [seed, socket, way, model] = arguments else { panic!("engine SEED SOCKET shm|grpc MODEL") };
    let mut rng = StdRng::seed_from_u64(seed.parse().expect("a number"));
    let transport = if way == "shm" { TransportChoice::Shm } else { TransportChoice::Grpc };
    let engine = ModelEngine::new(client_config(Address::Unix(PathBuf::from(socket)), transport), model);
    let (send, commands) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let (mut loaded, mut failed, mut requests) = (0, 0, 0);
    for n in 0.. {
        match commands.try_recv() {
            Ok(word) if word == "pause" => {
                engine.flush();
                let counts = [
                    ("engine requests", std::mem::take(&mut requests)),
                    ("engine tokens loaded", std::mem::take(&mut loaded) as u64),
                    ("engine tokens computed after a failed load", std::mem::take(&mut failed) as u64),
                ];
                Event::Counts(counts.map(|(what, count)| (what.into(), count)).into()).say();
                Event::Paused.say();
                if commands.recv().is_err() {
                    return;
                }
            }
            Ok(_) | Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
        let (family, tokens) = (rng.random_range(0..FAMILIES), rng.random_range(1..=MOST_TOKENS));
        let prompt: Vec<u32> = (0..tokens).map(|at| family * 1000 + at).collect();
        let run = engine.run(&format!("request {n}"), &prompt);
        loaded += run.loaded_tokens;
        failed += run.failed_tokens;
        requests += 1u64;
    }
}
