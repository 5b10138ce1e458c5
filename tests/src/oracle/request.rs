//! One request, as the scheduler knows it and as the device does.

use std::cell::RefCell;
use std::rc::Rc;

use tender_client::hash::{MediaSpan, NamedInput, RequestInputs};

use super::truth::{Media, Truth, mix};

/// What a request is named by beside its tokens.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Number of the salt or adapter; 0 is neither.
    pub variant: u64,
    /// Its images.
    pub media: Vec<Media>,
}

impl Inputs {
    /// As the client is told.
    pub fn named(&self) -> RequestInputs {
        let named = match self.variant {
            0 => Vec::new(),
            odd if odd % 2 == 1 => vec![NamedInput::Salt(format!("tenant {odd}"))],
            even => {
                let content = *blake3::hash(&even.to_le_bytes()).as_bytes();
                vec![NamedInput::Adapter { content }]
            }
        };
        let media = self.media.iter().map(|media| MediaSpan {
            start_token: media.start as u64,
            tokens: media.tokens as u64,
            digest: media.digest.to_vec(),
        });
        RequestInputs::new(named, media.collect()).expect("all named by content")
    }
    /// Where a fingerprint begins.
    pub fn root(&self, weights: u64) -> u64 {
        mix(mix(0x7e_4de5, self.variant), weights)
    }
}

/// What the device knows of a request since it was admitted.
#[derive(Debug)]
pub struct Live {
    /// Its tokens and fingerprints.
    pub truth: Truth,
    /// Tokens that exist, the last sampled included.
    pub known: usize,
    /// Tokens with KV.
    pub computed: usize,
    /// By group: slots before this one will not be written again.
    pub settled: Vec<usize>,
}

/// Where a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// In the queue.
    Waiting,
    /// Its blocks are being loaded; the engine hears of it in this step.
    Loading {
        /// The step.
        until: u32,
        /// Tokens it had before.
        local: usize,
    },
    /// Takes part in passes.
    Running,
}

/// A request.
#[derive(Debug)]
pub struct Request {
    /// The engine's name for it.
    pub id: String,
    /// Beside its tokens.
    pub inputs: Inputs,
    /// All tokens the scheduler knows.
    pub tokens: Vec<u32>,
    /// Those of the prompt.
    pub prompt: usize,
    /// It is cut at this many tokens; the scheduler knows that.
    pub limit: usize,
    /// It stops at this many by itself; the scheduler does not know.
    pub stop: usize,
    /// Where it is.
    pub phase: Phase,
    /// How often it was admitted: results of an earlier time are not its own.
    pub admission: u32,
    /// Tokens with KV, those of passes that were only scheduled included.
    pub computed: usize,
    /// Sampled tokens and drafts of passes that were only scheduled.
    pub placeholders: usize,
    /// Block tables, one per group; 0 where nothing is held.
    pub tables: Vec<Vec<u32>>,
    /// By group: table entries before this one were given back.
    pub freed: Vec<usize>,
    /// By group: blocks before this one were offered to the prefix cache.
    pub cached: Vec<usize>,
    /// Token ids the planner has.
    pub told_tokens: usize,
    /// Table entries the planner has; `None` when it gets whole tables next.
    pub told_blocks: Option<Vec<usize>>,
    /// The device's side.
    pub live: Rc<RefCell<Live>>,
}

impl Request {
    /// Begins anew without any block, under the weights of now.
    pub fn restart(&mut self, weights: u64) {
        let groups = self.tables.len();
        self.phase = Phase::Waiting;
        self.admission += 1;
        self.computed = 0;
        self.placeholders = 0;
        self.tables = vec![Vec::new(); groups];
        self.freed = vec![0; groups];
        self.cached = vec![0; groups];
        self.told_blocks = None;
        self.live = Rc::new(RefCell::new(self.fresh_live(weights)));
    }
    /// What the device knows when the request comes new to it.
    pub fn fresh_live(&self, weights: u64) -> Live {
        Live {
            truth: Truth::new(self.inputs.root(weights), &self.tokens, &self.inputs.media),
            known: self.tokens.len(),
            computed: 0,
            settled: vec![0; self.tables.len()],
        }
    }
    /// The device begins at a hit of this many tokens.
    pub fn start_at(&mut self, computed: usize) {
        self.computed = computed;
        let mut live = self.live.borrow_mut();
        live.computed = computed;
        live.settled.fill(computed);
        live.known = self.tokens.len();
    }
}
