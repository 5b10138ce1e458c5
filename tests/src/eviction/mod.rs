//! Ways to choose what goes from a full arena, simulated on a recorded load: those of the daemon and others to compare
//! them with. `docs/benchmarks.md` has the figures, `tender-eviction` computes them.
//!
//! All blocks are of one size. A request looks up all of its blocks, and those that are there are used, the last one
//! first; what it finds is what is there from its first block on. Then it stores the rest in order.

mod adaptive;
mod order;
mod plain;
mod two_queue;

pub use adaptive::{S3Fifo, TinyLfu};
pub use plain::{Farthest, Lru, PrefixLru};
pub use two_queue::TwoQueue;

/// A way to choose what goes.
pub trait Arena {
    /// Whether a block is there.
    fn has(&self, block: u64) -> bool;
    /// A request uses a block that is there.
    fn touch(&mut self, use_of: Use);
    /// A block is stored that is not there; others make room.
    fn put(&mut self, use_of: Use);
}

/// A block in its place in the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// Which.
    pub block: u64,
    /// The one before it in its request.
    pub parent: Option<u64>,
    /// Its place in the whole load, counted in blocks.
    pub at: usize,
}

/// Every way, by its name.
pub const POLICIES: [&str; 6] = ["lru", "two-queue", "s3-fifo", "w-tinylfu", "prefix-lru", "farthest"];

/// An arena with room for so many blocks; `None`: there is no such way. `requests` is the load to come, which only
/// `farthest` looks at.
pub fn arena(policy: &str, room: usize, requests: &[Vec<u64>]) -> Option<Box<dyn Arena>> {
    Some(match policy {
        "lru" => Box::new(Lru::new(room)),
        "two-queue" => Box::new(TwoQueue::new(room)),
        "s3-fifo" => Box::new(S3Fifo::new(room)),
        "w-tinylfu" => Box::new(TinyLfu::new(room)),
        "prefix-lru" => Box::new(PrefixLru::new(room)),
        "farthest" => Box::new(Farthest::new(room, requests)),
        _ => return None,
    })
}

/// Blocks that were found, and asked for.
pub fn replay(arena: &mut dyn Arena, requests: &[Vec<u64>]) -> (u64, u64) {
    let (mut found, mut asked) = (0, 0);
    for request in requests {
        let use_of = |(index, &block): (usize, &u64)| Use {
            block,
            parent: index.checked_sub(1).map(|before| request[before]),
            at: asked + index,
        };
        let here = request.iter().take_while(|&&block| arena.has(block)).count();
        for block in request.iter().enumerate().rev() {
            if arena.has(*block.1) {
                arena.touch(use_of(block));
            }
        }
        for block in request.iter().enumerate().skip(here) {
            if !arena.has(*block.1) {
                arena.put(use_of(block));
            }
        }
        found += here as u64;
        asked += request.len();
    }
    (found, asked as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(policy: &str, room: usize, requests: &[&[u64]]) -> u64 {
        let requests: Vec<_> = requests.iter().map(|request| request.to_vec()).collect();
        let mut arena = arena(policy, room, &requests).unwrap();
        replay(&mut *arena, &requests).0
    }

    #[test]
    fn with_room_for_all_every_way_finds_all_that_came_before() {
        for policy in POLICIES {
            assert_eq!(found(policy, 100, &[&[1, 2, 3], &[1, 2, 4], &[3, 1], &[1, 2, 4]]), 7, "{policy}");
        }
    }

    #[test]
    fn what_is_behind_a_gap_is_not_found() {
        for policy in POLICIES {
            assert_eq!(found(policy, 100, &[&[2, 3], &[1, 2, 3]]), 0, "{policy}");
        }
    }

    #[test]
    fn no_way_keeps_more_than_there_is_room_for() {
        for policy in POLICIES {
            let requests: Vec<_> = (0..400).map(|n| vec![n % 7, n % 13 + 100, n]).collect();
            let mut arena = arena(policy, 10, &requests).unwrap();
            replay(&mut *arena, &requests);
            let kept = (0..400).filter(|&block| arena.has(block)).count();
            assert!(0 < kept && kept <= 10, "{policy} keeps {kept}");
        }
    }

    #[test]
    fn lru_keeps_what_was_used_last() {
        assert_eq!(found("lru", 2, &[&[1], &[2], &[1], &[3], &[1]]), 2);
        assert_eq!(found("lru", 2, &[&[1], &[2], &[1], &[3], &[2]]), 1);
    }

    #[test]
    fn a_flood_does_not_push_out_what_was_used_again() {
        // 1 and 2 are used again; then come six that nobody asks for again.
        let load: [&[u64]; 11] = [&[1], &[2], &[1], &[2], &[11], &[12], &[13], &[14], &[15], &[16], &[1]];
        assert_eq!(found("lru", 4, &load), 2);
        for policy in ["two-queue", "s3-fifo", "w-tinylfu", "farthest"] {
            assert_eq!(found(policy, 4, &load), 3, "{policy}");
        }
    }

    #[test]
    fn what_comes_back_soon_after_it_went_is_protected_at_once() {
        // 1 goes, comes back, and outlives a flood that 9, which is new, does not.
        let load: [&[u64]; 11] = [&[1], &[2], &[3], &[4], &[5], &[1], &[9], &[21], &[22], &[23], &[24]];
        let requests: Vec<_> = load.iter().map(|request| request.to_vec()).collect();
        let mut arena = TwoQueue::new(4);
        replay(&mut arena, &requests);
        assert_eq!((arena.has(1), arena.has(9)), (true, false));
    }

    #[test]
    fn a_suffix_is_never_orphaned_by_prefix_lru() {
        // LRU takes 1, the oldest, and with it what its suffix was worth.
        let load: [&[u64]; 3] = [&[1, 2, 3], &[4], &[1, 2, 3]];
        assert_eq!(found("lru", 3, &load), 0);
        assert_eq!(found("prefix-lru", 3, &load), 2);
    }

    #[test]
    fn who_knows_what_comes_keeps_what_is_used_next() {
        let load: [&[u64]; 6] = [&[1], &[2], &[3], &[1], &[2], &[1]];
        assert_eq!(found("lru", 2, &load), 1);
        assert_eq!(found("farthest", 2, &load), 3);
    }
}
