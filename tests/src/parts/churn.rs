//! A day of stores and evictions of mixed sizes in the daemon's own allocator.

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_daemon::arena::alloc::{Extent, ExtentPool};

/// Chunks of several models, in KiB: small and large ones, few of them powers of two.
const CHUNK_KIB: [u64; 10] = [96, 160, 448, 512, 1024, 1280, 2048, 3584, 5120, 16384];
const ARENA_BYTES: u64 = 16 << 30;
/// What a small host stores on average.
const BYTES_PER_HOUR: u64 = 3600 * (500 << 20);

/// What is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Churn {
    arena_bytes: u64,
    hours: u64,
    bytes_per_hour: u64,
}

impl Churn {
    /// So many hours of an arena of 16 GiB; 0 hours are some seconds of a small one.
    pub fn of_hours(hours: u64) -> Self {
        if hours == 0 {
            return Self { arena_bytes: 1 << 30, hours: 2, bytes_per_hour: 4 << 30 };
        }
        Self { arena_bytes: ARENA_BYTES, hours, bytes_per_hour: BYTES_PER_HOUR }
    }

    /// Of all allocations that find a twentieth of the arena free, those that find no hole. What is used longest ago goes,
    /// but for a third of it, which was used again meanwhile; every hour another model is the busy one.
    pub fn failed_percent(&self, seed: u64) -> f64 {
        let Some(pool) = ExtentPool::new(self.arena_bytes) else { return f64::NAN };
        let mut random = StdRng::seed_from_u64(seed);
        let mut live = VecDeque::new();
        let (mut asked, mut failed) = (0u64, 0u64);
        for hour in 0..self.hours {
            let mut stored = 0;
            while stored < self.bytes_per_hour {
                let busy = usize::try_from(hour).unwrap_or(0) % CHUNK_KIB.len();
                let any = random.random_range(0..CHUNK_KIB.len());
                let bytes = CHUNK_KIB[if random.random_bool(0.5) { busy } else { any }] << 10;
                while pool.capacity_bytes() - pool.used_bytes() < self.arena_bytes / 20 {
                    evict(&mut live, &mut random);
                }
                asked += 1;
                let mut extent = pool.allocate(bytes);
                failed += u64::from(extent.is_none());
                // As the daemon does: until there is a hole.
                while extent.is_none() && !live.is_empty() {
                    evict(&mut live, &mut random);
                    extent = pool.allocate(bytes);
                }
                live.extend(extent);
                stored += bytes;
            }
        }
        100.0 * failed as f64 / asked.max(1) as f64
    }
}

fn evict(live: &mut VecDeque<Extent>, random: &mut StdRng) {
    while let Some(oldest) = live.pop_front() {
        if live.is_empty() || random.random_bool(2.0 / 3.0) {
            return;
        }
        live.push_back(oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_day() {
        let churn = Churn { arena_bytes: 256 << 20, hours: 2, bytes_per_hour: 1 << 30 };
        let failed = churn.failed_percent(1);
        assert_eq!(failed.to_bits(), churn.failed_percent(1).to_bits());
        assert!((0.0..=100.0).contains(&failed), "{failed}");
    }
}
