//! Keys of a long prompt, and the digest of a part, in bytes or tokens per second.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tender_client::hash::{KeyChain, RequestInputs};
use tender_proto::ContentDigest;

const TOKENS: u32 = 64 * 1024;
const PART_BYTES: usize = 4 << 20;

fn keys(c: &mut Criterion) {
    let tokens: Vec<u32> = (0..TOKENS).collect();
    let inputs = RequestInputs::default();
    let mut group = c.benchmark_group("keys of 65,536 tokens");
    group.throughput(Throughput::Elements(u64::from(TOKENS)));
    for tokens_per_chunk in [16, 64, 256] {
        group.bench_function(format!("{tokens_per_chunk} tokens per chunk"), |b| {
            b.iter(|| {
                let mut chain = KeyChain::new(tokens_per_chunk, 0, &inputs);
                chain.extend(black_box(&tokens));
                black_box(chain.hashes().len())
            });
        });
    }
    group.finish();
}

fn digest(c: &mut Criterion) {
    let part = vec![0x5a; PART_BYTES];
    let mut group = c.benchmark_group("digest of a part");
    group.throughput(Throughput::Bytes(PART_BYTES as u64));
    group.bench_function("4 MiB", |b| b.iter(|| black_box(ContentDigest::of(black_box(&part)))));
    group.finish();
}

criterion_group!(benches, keys, digest);
criterion_main!(benches);
