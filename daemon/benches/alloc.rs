//! Taking and giving back ranges of the arena: one extent freed and another of its size taken, in a pool that
//! is nearly full.
#![allow(missing_docs, reason = "criterion's macros make the functions")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use tender_daemon::arena::alloc::ExtentPool;

const POOL_BYTES: u64 = 64 << 30;

fn replace(c: &mut Criterion) {
    let mut group = c.benchmark_group("alloc");
    for (name, sizes) in [
        ("one size, 2 MiB", &[2 << 20][..]),
        ("sizes of 64 KiB to 4 MiB", &[64 << 10, 320 << 10, 1 << 20, 4 << 20]),
    ] {
        let Some(pool) = ExtentPool::new(POOL_BYTES) else { continue };
        let mut live = Vec::new();
        while let Some(extent) = pool.allocate(sizes[live.len() % sizes.len()]) {
            live.push(extent);
        }
        let mut at = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                at = (at + 7919) % live.len();
                let bytes = live[at].bytes();
                let last = live.len() - 1;
                live.swap(at, last);
                drop(live.pop());
                live.extend(black_box(pool.allocate(bytes)));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, replace);
criterion_main!(benches);
