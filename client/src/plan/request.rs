//! What is known about one request.

use tender_proto::mutant::{Mutant, active};
use tender_proto::{ChunkId, Descriptor, GroupIndex};

use super::hit::Answers;
use super::memory::{Asked, Stored};
use crate::hash::{KeyChain, RequestInputs};

/// Tokens `start..end` of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TokenRange {
    pub(super) start: u64,
    pub(super) end: u64,
}

/// A hit that was promised to the engine, and what the promise rests on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Offer {
    pub(super) range: TokenRange,
    pub(super) answers: Answers,
}

/// One group's share of a request.
#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) keys: KeyChain,
    /// The engine's block table: entry `i` holds the request's block `i`.
    pub(super) blocks: Vec<u32>,
    /// Chunks before this one were offered to be stored, or left out for good.
    pub(super) next_chunk: u64,
    /// Chunks before this one were counted as asked for by this request.
    pub(super) counted_chunks: usize,
}

/// A request from its arrival to its end.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) prompt_tokens: u64,
    pub(super) groups: Vec<GroupState>,
    /// Keys of each group in the last lookup.
    pub(super) asked_keys: Vec<usize>,
    /// What the last lookup promised to the engine.
    pub(super) offer: Option<Offer>,
    /// What is being loaded. The engine counts these tokens as computed at once, though their slots are empty
    /// until it schedules the request again.
    pub(super) loading: Option<TokenRange>,
    /// A load failed. Nothing is promised to this request again, or a chunk that cannot be read would be tried
    /// for ever.
    pub(super) load_failed: bool,
    /// Its blocks were taken away; none is known until the engine gives it a new table.
    pub(super) preempted: bool,
    /// The cache was reset while it had blocks: what they hold is from before, and is not stored.
    pub(super) predates_reset: bool,
}

impl Request {
    pub(super) fn new(descriptor: &Descriptor, prompt_tokens: u64, inputs: &RequestInputs) -> Self {
        let group = |group: &tender_proto::Group| GroupState {
            keys: KeyChain::new(
                group.tokens_per_chunk(),
                if active(Mutant::LookaheadLeftOut) { 0 } else { group.lookahead_tokens },
                inputs,
            ),
            blocks: Vec::new(),
            next_chunk: 0,
            counted_chunks: 0,
        };
        Self {
            prompt_tokens,
            groups: descriptor.groups.iter().map(group).collect(),
            asked_keys: Vec::new(),
            offer: None,
            loading: None,
            load_failed: false,
            preempted: false,
            predates_reset: false,
        }
    }

    /// Tokens whose ids are known.
    pub(super) fn known_tokens(&self) -> u64 {
        self.groups.first().map_or(0, |group| group.keys.tokens())
    }

    /// Adds tokens behind the known ones.
    pub(super) fn extend(&mut self, tokens: &[u32]) {
        for group in &mut self.groups {
            group.keys.extend(tokens);
        }
    }

    /// The key of a chunk whose tokens are all known.
    pub(super) fn chunk_id(&self, group: usize, chunk: u64) -> Option<ChunkId> {
        let hash = self.groups.get(group)?.keys.hashes().get(usize::try_from(chunk).ok()?)?;
        Some(ChunkId { group: GroupIndex(u16::try_from(group).ok()?), hash: *hash })
    }

    /// All keys that are known, group after group, as a lookup asks for them; each counts as asked for once.
    pub(super) fn ask(&mut self, asked: &Asked) -> Vec<ChunkId> {
        self.asked_keys.clear();
        let mut keys = Vec::new();
        for index in 0..self.groups.len() {
            let before = keys.len();
            keys.extend((0..).map_while(|chunk| self.chunk_id(index, chunk)));
            let own = &keys[before..];
            let counted = std::mem::replace(&mut self.groups[index].counted_chunks, own.len());
            own.iter().skip(counted).for_each(|&key| asked.count(key));
            self.asked_keys.push(own.len());
        }
        keys
    }

    /// Tokens from this one on are to be computed again, so their chunks will be written again.
    pub(super) fn rewind(&mut self, computed: u64, descriptor: &Descriptor) {
        for (state, group) in self.groups.iter_mut().zip(&descriptor.groups) {
            state.next_chunk = state.next_chunk.min(computed / group.tokens_per_chunk());
        }
    }

    /// Its blocks belong to others from now on.
    pub(super) fn lose_blocks(&mut self) {
        self.preempted = true;
        self.loading = None;
        self.offer = None;
        for group in &mut self.groups {
            group.blocks.clear();
        }
    }

    /// A load did not bring all of `range`: the engine goes on from `computed`. The chunks from there on are stored
    /// again once they are computed.
    pub(super) fn fail_load(
        &mut self,
        range: TokenRange,
        computed: u64,
        descriptor: &Descriptor,
        stored: &Stored,
    ) {
        self.load_failed = true;
        for (index, group) in descriptor.groups.iter().enumerate() {
            let first = computed.max(range.start) / group.tokens_per_chunk();
            let end = range.end.div_ceil(group.tokens_per_chunk());
            for key in (first..end).map_while(|chunk| self.chunk_id(index, chunk)) {
                stored.forget(key);
            }
        }
    }

    /// False, and nothing changes, when the number of tables is not the number of groups.
    pub(super) fn replace_tables(&mut self, tables: &[Vec<u32>]) -> bool {
        if tables.len() != self.groups.len() {
            return false;
        }
        for (group, table) in self.groups.iter_mut().zip(tables) {
            group.blocks.clone_from(table);
        }
        true
    }

    /// False, and nothing changes, when the number of tables is not the number of groups, or when there is nothing
    /// to append to. An engine whose tables did not change may give none.
    pub(super) fn append_tables(&mut self, tables: &[Vec<u32>]) -> bool {
        if self.preempted || !(tables.is_empty() || tables.len() == self.groups.len()) {
            return false;
        }
        for (group, table) in self.groups.iter_mut().zip(tables) {
            group.blocks.extend_from_slice(table);
        }
        true
    }
}
