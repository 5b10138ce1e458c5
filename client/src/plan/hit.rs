//! How far a lookup's answers reach (rule 4).

use tender_proto::mutant::{Mutant, active};
use tender_proto::{Coverage, Descriptor, Group, GroupKind};

use super::config::HitUnit;
use super::needs::{self, locate, tokens_per_block};

/// What a lookup said about one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkView {
    /// It can be read; these blocks are in it.
    Ready(Coverage),
    /// Someone is storing it. Nobody waits for that: it counts as not there.
    Pending,
    /// It is not there.
    Miss,
}

/// The answers of one lookup, by group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Answers(Vec<Vec<ChunkView>>);

impl Answers {
    /// Splits answers that came in one list; `None` when they are not as many as were asked for.
    pub(super) fn split(mut all: &[ChunkView], asked: &[usize]) -> Option<Self> {
        if all.len() != asked.iter().sum::<usize>() {
            return None;
        }
        let mut groups = Vec::with_capacity(asked.len());
        for &keys in asked {
            let (own, rest) = all.split_at(keys);
            groups.push(own.to_vec());
            all = rest;
        }
        Some(Self(groups))
    }

    pub(super) fn of(&self, group: usize) -> &[ChunkView] {
        self.0.get(group).map_or(&[], Vec::as_slice)
    }

    fn has(&self, index: usize, group: &Group, block: u64) -> bool {
        let (chunk, position) = locate(group, block);
        let answer = usize::try_from(chunk).ok().and_then(|chunk| self.of(index).get(chunk));
        matches!(answer, Some(ChunkView::Ready(coverage))
            if coverage.blocks() == group.blocks_per_chunk
                && (coverage.has(position) || active(Mutant::CoverageIgnored)))
    }

    /// Where a hit ends, in tokens: the largest boundary of all groups at which each has what the next query reads, and
    /// that leaves at least one of the `num_tokens` to compute. Not above `computed` means no hit.
    ///
    /// Groups tighten each other until nothing changes: a shorter end moves the windows, which may then lack something.
    /// An engine that stopped inside a block gets nothing, since loading that block would overwrite slots it has.
    pub(super) fn boundary(
        &self,
        descriptor: &Descriptor,
        unit: HitUnit,
        num_tokens: u64,
        computed: u64,
    ) -> u64 {
        let Some(step) = boundary_step(descriptor, unit) else { return computed };
        if descriptor.groups.iter().any(|group| !computed.is_multiple_of(tokens_per_block(group))) {
            return computed;
        }
        let mut end = round_down(num_tokens.saturating_sub(1), step);
        loop {
            let before = end;
            for (index, group) in descriptor.groups.iter().enumerate() {
                if is_ignored(index, descriptor) {
                    continue;
                }
                end = round_down(self.tighten(index, group, computed, end), step);
                if end <= computed {
                    return computed;
                }
            }
            if end == before {
                return end;
            }
        }
    }

    /// Whether every group has what a hit from `computed` to `end` needs.
    pub(super) fn serve(&self, descriptor: &Descriptor, computed: u64, end: u64) -> bool {
        let has_all = |(index, group): (usize, &Group)| {
            end.is_multiple_of(tokens_per_block(group))
                && needs::blocks(group, computed, end).all(|block| self.has(index, group, block))
        };
        descriptor.groups.iter().enumerate().all(has_all)
    }

    /// The largest boundary up to `end` that one group can serve, or one that it may have to be asked about again.
    fn tighten(&self, index: usize, group: &Group, computed: u64, mut end: u64) -> u64 {
        let missing = |block: &u64| !self.has(index, group, *block);
        match group.kind {
            GroupKind::FullAttention | GroupKind::MlaLatent => {
                let first = needs::blocks(group, computed, end).find(missing);
                first.map_or(end, |block| block * tokens_per_block(group))
            }
            GroupKind::SlidingWindow | GroupKind::ChunkedLocal | GroupKind::Recurrent => {
                while end > computed {
                    let Some(block) = needs::blocks(group, computed, end).rev().find(missing) else { break };
                    end = round_down(needs::next_boundary(group, block, end), tokens_per_block(group));
                }
                end
            }
        }
    }
}

/// Boundaries at which every group's blocks end, or every group's chunks; `None` when the next is out of reach.
pub(super) fn boundary_step(descriptor: &Descriptor, unit: HitUnit) -> Option<u64> {
    let mut step = 1u64;
    for group in &descriptor.groups {
        let own = match unit {
            HitUnit::Block => tokens_per_block(group),
            HitUnit::Chunk => group.tokens_per_chunk(),
        };
        step = (step / gcd(step, own)).checked_mul(own)?;
    }
    Some(step)
}

/// Only ever true by mistake.
pub(super) fn is_ignored(index: usize, descriptor: &Descriptor) -> bool {
    active(Mutant::GroupIgnored) && index > 0 && index + 1 == descriptor.groups.len()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn round_down(tokens: u64, step: u64) -> u64 {
    tokens - tokens % step
}
