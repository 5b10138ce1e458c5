//! Requests that come: prompts that share beginnings, go on from earlier answers, and end where chunks end.

use std::rc::Rc;

use rand::Rng;

use super::engine::Engine;
use super::request::{Inputs, Live, Phase, Request};
use super::truth::{Media, Truth};

impl Engine {
    /// One more request.
    pub(super) fn arrive(&mut self) {
        self.arrived += 1;
        let (tokens, inputs) = self.prompt();
        let limit = self.end_of(tokens.len());
        let stop = self.end_of(tokens.len());
        let id = format!("e{}r{}", self.number, self.arrived);
        self.side.new_request(&id, tokens.len() as u64, Ok(inputs.named()));
        let live = Live { truth: Truth::new(0, &[], &[]), known: 0, computed: 0, settled: Vec::new() };
        let mut request = Request {
            id,
            inputs,
            prompt: tokens.len(),
            limit,
            stop,
            tokens,
            phase: Phase::Waiting,
            admission: 0,
            computed: 0,
            placeholders: 0,
            tables: vec![Vec::new(); self.scenario.groups.len()],
            freed: Vec::new(),
            cached: Vec::new(),
            told_tokens: 0,
            told_blocks: None,
            live: Rc::new(live.into()),
        };
        request.restart(self.weights);
        self.waiting.push_back(request);
    }

    fn prompt(&mut self) -> (Vec<u32>, Inputs) {
        let longest = self.scenario.prompt_tokens;
        let own = self.rng.random_range(0..=8usize);
        if self.rng.random_bool(0.5) && !self.history.is_empty() {
            let (mut tokens, inputs) = self.history[self.rng.random_range(0..self.history.len())].clone();
            tokens.extend((0..own).map(|_| self.rng.random_range(0..3)));
            if tokens.len() <= longest {
                return (tokens, inputs);
            }
        }
        // Few beginnings, cut and continued at random: hits end anywhere.
        let least = if self.rng.random_bool(0.7) { longest / 2 } else { 1 };
        let length = self.rng.random_range(least..=longest);
        let base = 1000 * self.rng.random_range(1..3u32);
        let mut tokens: Vec<u32> = (base..).take(length).collect();
        for token in tokens.iter_mut().rev().take(own) {
            *token = self.rng.random_range(0..3);
        }
        let variant = self.rng.random_range(0..self.scenario.inputs);
        let media = if self.rng.random_bool(0.25) && length > 30 {
            let (start, tokens) = if self.rng.random_bool(0.5) { (5, 14) } else { (length - 14, 9) };
            vec![Media { start, tokens, digest: [self.rng.random_range(1..3u8); 32] }]
        } else {
            Vec::new()
        };
        (tokens, Inputs { variant, media })
    }

    /// How many tokens a request ends at: often where a chunk of a group ends, where mistakes by one show.
    fn end_of(&mut self, prompt: usize) -> usize {
        let end = prompt + self.rng.random_range(1..=self.scenario.output_tokens);
        let group = &self.scenario.groups[self.rng.random_range(0..self.scenario.groups.len())];
        let chunk = group.tokens_per_block * group.blocks_per_chunk as usize;
        if self.rng.random_bool(0.5) { end.next_multiple_of(chunk).min(prompt + 64) } else { end }
    }
}
