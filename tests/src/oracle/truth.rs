//! What every slot must hold: a fingerprint of all that decides its bytes.

/// Stirs two numbers into one (the finaliser of splitmix64 over both).
pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).wrapping_add(a)
}

/// An image or the like behind a run of placeholder tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Media {
    /// First token.
    pub start: usize,
    /// Tokens.
    pub tokens: usize,
    /// What it is.
    pub digest: [u8; 32],
}

impl Media {
    fn at(&self, position: usize) -> Option<u64> {
        let inside = position.checked_sub(self.start).filter(|&inside| inside < self.tokens)?;
        let [a, b, c, d, e, f, g, h, ..] = self.digest;
        Some(mix(u64::from_le_bytes([a, b, c, d, e, f, g, h]), inside as u64))
    }
}

/// One request's tokens, as far as anybody asks, and a fingerprint of every beginning of them. The model samples by
/// fingerprint, so equal beginnings go on equally, in every engine.
#[derive(Clone, Debug)]
pub struct Truth {
    media: Vec<Media>,
    tokens: Vec<u32>,
    /// Entry `n` covers the first `n` tokens, and everything else that decides a request's bytes.
    chain: Vec<u64>,
}

impl Truth {
    /// `root` stands for salt, adapter and the model's weights.
    pub fn new(root: u64, tokens: &[u32], media: &[Media]) -> Self {
        let mut truth = Self { media: media.to_vec(), tokens: Vec::new(), chain: vec![root] };
        tokens.iter().for_each(|&token| truth.push(token));
        truth
    }
    fn push(&mut self, token: u32) {
        let position = self.tokens.len();
        let next = self.after(self.chain[position], position, token);
        self.tokens.push(token);
        self.chain.push(next);
    }
    fn after(&self, before: u64, position: usize, token: u32) -> u64 {
        let media = self.media.iter().find_map(|media| media.at(position)).unwrap_or(0);
        mix(mix(before, u64::from(token)), media)
    }
    fn extend(&mut self, tokens: usize) {
        while self.tokens.len() < tokens {
            let sampled = mix(self.chain[self.tokens.len()], 77) % 40;
            self.push(u32::try_from(sampled).expect("below 40"));
        }
    }
    /// The token at a position; sampled if nobody gave it.
    pub fn token(&mut self, position: usize) -> u32 {
        self.extend(position + 1);
        self.tokens[position]
    }
    /// Fingerprint of the first `tokens` tokens.
    pub fn first(&mut self, tokens: usize) -> u64 {
        self.extend(tokens);
        self.chain[tokens]
    }
    /// Fingerprints of what the slots from `position` on hold when these tokens, and not the true ones, are there.
    pub fn astray(&mut self, position: usize, tokens: &[u32]) -> Vec<u64> {
        let mut before = self.first(position);
        (position..)
            .zip(tokens)
            .map(|(at, &token)| {
                before = self.after(before, at, token);
                before
            })
            .collect()
    }
}
