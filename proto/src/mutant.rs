//! Mistakes that can be switched on, to see that tests find them. Only builds with the feature `mutants` have them;
//! in all others [`active`] is a constant `false`, and nothing of them is left.

/// One mistake. The doc says what goes wrong where it is active.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mutant {
    /// Cells with scales are copied with a block stride that forgets the scales, so cells are cut.
    ScaleStride = 1,
    /// The second group's chunks are taken from the block table with tokens per block for blocks per chunk.
    BlockSizeForChunk,
    /// A finished request's last sampled token counts as written.
    LastSampledSlot,
    /// A chunk whose last block is there counts as whole.
    LastBlockOnly,
    /// Blocks that a window has passed are gathered, whoever has them by then.
    FreedWindowGathered,
    /// A chunk that is there counts as whole for a lookup, and a load takes what it gets.
    CoverageIgnored,
    /// Tokens count as written as soon as their ids are known.
    KnownCountsAsWritten,
    /// Draft layers store their newest chunk while a request runs.
    DraftsNotHeldBack,
    /// Keys of draft layers leave out the tokens behind the chunk.
    LookaheadLeftOut,
    /// Keys leave out salt and adapter.
    NamedInputsLeftOut,
    /// Keys leave out images and the like.
    MediaLeftOut,
    /// A state is stored for the boundary before its own.
    StateBoundary,
    /// The last of several groups is not asked where a hit ends, and not loaded.
    GroupIgnored,
    /// A failed load is reported as good.
    FailedLoadIsGood,
    /// A load that must succeed as a whole fails block by block.
    LoadFailsInPart,
    /// What became final by finishing is gathered after the next pass.
    EndedStoresLate,
    /// What a pass made final is gathered after the next pass.
    SnapshotLate,
    /// Requests that go on after a reset store what they had computed before.
    ResetForgotten,
    /// What was planned before a reset is stored after it.
    PlanOutlivesReset,
    /// A chunk of several parts is ready with its first.
    PartMissing,
    /// Copies out of a device's ring do not wait for the gather that fills it.
    CopyBeforeGather,
    /// A store's bytes count as copied before the copy is over.
    SlotBeforeCopy,
    /// Room in a device's ring counts as free while a gather may still write to it.
    SpanBeforeGather,
    /// A ring gives out room that is taken.
    RingOverrun,
    /// A load writes to blocks that the engine's earlier work still uses.
    ScatterBeforeFence,
    /// A load is over before its copies are.
    LoadBeforeCopies,
    /// A load's rings count as free before its copies are over.
    RoomBeforeCopy,
}

#[cfg(feature = "mutants")]
mod switch {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use super::Mutant;

    static ACTIVE: AtomicU32 = AtomicU32::new(0);
    static FAULTS: AtomicU64 = AtomicU64::new(0);
    static ASKED: AtomicU64 = AtomicU64::new(0);

    /// Whether this mistake is switched on.
    pub fn active(mutant: Mutant) -> bool {
        ACTIVE.load(Ordering::Relaxed) == mutant as u32
    }
    /// Switches one mistake on for the whole process, or all off.
    pub fn set(mutant: Option<Mutant>) {
        ACTIVE.store(mutant.map_or(0, |mutant| mutant as u32), Ordering::Relaxed);
    }
    /// Lets every `period`-th read of a chunk fail from now on; 0 lets none fail.
    pub fn set_faults(period: u64) {
        FAULTS.store(period, Ordering::Relaxed);
        ASKED.store(0, Ordering::Relaxed);
    }
    /// Whether this read is to fail.
    pub fn read_fails() -> bool {
        let period = FAULTS.load(Ordering::Relaxed);
        period > 0 && ASKED.fetch_add(1, Ordering::Relaxed) % period == period - 1
    }
}

#[cfg(feature = "mutants")]
pub use switch::{active, read_fails, set, set_faults};

/// Whether this mistake is switched on: never.
#[cfg(not(feature = "mutants"))]
pub const fn active(_: Mutant) -> bool {
    false
}
/// Whether this read is to fail: never.
#[cfg(not(feature = "mutants"))]
pub const fn read_fails() -> bool {
    false
}
