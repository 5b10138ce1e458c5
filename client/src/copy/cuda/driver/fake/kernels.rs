//! The kernels of the model, read off the tables' description in `tender_kernels::cuda::abi`: run by run, so that a
//! kernel can be interrupted anywhere. Tables are read again at every step, as a kernel does.

use tender_kernels::cuda::abi::{
    BLAKE3_GROUPS, BLAKE3_ROOTS, GATHER, GATHER_SMALL, GROUP_LEAVES, JOB_WORDS, KERNELS, LEAF_BYTES,
    MESSAGE_WORDS, SCATTER, SCATTER_SMALL, SEGMENT_WORDS,
};

use super::super::Kernel;
use super::memory::Memory;

/// Something that happens at once.
pub(super) enum Run {
    Copy { to: u64, from: u64, bytes: u64 },
    Hash { from: u64, bytes: u64, to: u64 },
}

impl Run {
    pub(super) fn go(&self, memory: &mut Memory) {
        match *self {
            Self::Copy { to, from, bytes } => memory.on_device(to, from, bytes),
            Self::Hash { from, bytes, to } => {
                let digest = blake3::hash(&memory.bytes(from, bytes));
                memory.put(to, digest.as_bytes());
            }
        }
    }
}

/// All that a launch does, in one possible order.
pub(super) fn runs(kernel: Kernel, arguments: &[u64], memory: &mut Memory) -> Vec<Run> {
    match (KERNELS[kernel.0], arguments) {
        (GATHER | GATHER_SMALL, &[segments, batch, jobs, tiles]) => {
            copies(memory, segments, [batch, jobs, tiles], true)
        }
        (SCATTER | SCATTER_SMALL, &[segments, batch, jobs, tiles]) => {
            copies(memory, segments, [batch, jobs, tiles], false)
        }
        (BLAKE3_GROUPS, &[messages, count, _, _, digests]) => hashes(memory, messages, count, digests, false),
        (BLAKE3_ROOTS, &[messages, count, _, digests]) => hashes(memory, messages, count, digests, true),
        (name, _) => panic!("{name} with {} arguments", arguments.len()),
    }
}

fn low(word: u64) -> u64 {
    word & u64::from(u32::MAX)
}

fn copies(memory: &mut Memory, segments: u64, [batch, jobs, tiles]: [u64; 3], gather: bool) -> Vec<Run> {
    let mut runs = Vec::new();
    let job_words = JOB_WORDS as u64;
    for job in 0..jobs {
        let words = memory.words(batch + 8 * job * job_words, job_words);
        let (first_segment, count) = (words[2], low(words[3]));
        let (first_move, base, block_bytes, start, end) = (words[4], words[5], words[6], words[7], words[8]);
        // A job ends where the next one's tiles begin.
        let last = job + 1 == jobs;
        let end_tile = if last { tiles } else { memory.words(batch + 8 * (job + 1) * job_words, 1)[0] };
        let moves = (end_tile - words[0]) / words[1].max(1);
        let moves_at = batch + 8 * (jobs * job_words + first_move);
        for one in 0..moves {
            let word = memory.words(moves_at + 8 * one, 1)[0];
            let (block, slot) = (low(word), word >> 32);
            for segment in 0..count {
                let address = segments + 8 * (first_segment + segment) * SEGMENT_WORDS as u64;
                let segment = memory.words(address, SEGMENT_WORDS as u64);
                let packed = slot * block_bytes + segment[2];
                let page = segment[0].wrapping_add(segment[1].wrapping_mul(block));
                segment_runs(&segment, |offset, at, bytes| {
                    let (from, to) = ((packed + at).max(start), (packed + at + bytes).min(end));
                    if from < to {
                        let there = base.wrapping_add(from);
                        let here = page + offset + (from - packed - at);
                        let (to_address, from_address) = if gather { (there, here) } else { (here, there) };
                        runs.push(Run::Copy { to: to_address, from: from_address, bytes: to - from });
                    }
                });
            }
        }
    }
    runs
}

/// Calls `run` with the distance on the page, the distance on the packed side, and the length of every run.
fn segment_runs(segment: &[u64], mut run: impl FnMut(u64, u64, u64)) {
    let (run_bytes, content, dims) = (low(segment[3]), segment[3] >> 32, low(segment[5]));
    for number in 0..content / run_bytes.max(1) {
        let (mut rest, mut offset) = (number, 0);
        for dim in 0..usize::try_from(dims).unwrap_or(0) {
            let (stride, count) = (segment[6 + 2 * dim], segment[7 + 2 * dim].max(1));
            offset += rest % count * stride;
            rest /= count;
        }
        run(offset, number * run_bytes, run_bytes);
    }
}

/// A message of one group is finished by the first kernel, a longer one by the second.
fn hashes(memory: &mut Memory, messages: u64, count: u64, digests: u64, long: bool) -> Vec<Run> {
    let group_bytes = LEAF_BYTES * GROUP_LEAVES;
    (0..count)
        .filter_map(|i| {
            let words = memory.words(messages + 8 * i * MESSAGE_WORDS as u64, MESSAGE_WORDS as u64);
            let run = Run::Hash { from: words[0], bytes: words[1], to: digests + 32 * i };
            ((words[1] > group_bytes) == long).then_some(run)
        })
        .collect()
}
