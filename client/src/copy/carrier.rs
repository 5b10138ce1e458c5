//! How a worker's bytes get out of an engine's memory and back into it, at once on the host or in the order of streams
//! on a device. Stores and loads are written against these traits alone.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tender_proto::shm::Mapping;
use tender_proto::{ContentDigest, Coverage, GroupIndex, PartIndex, Reason};

use super::{CopyBackend, CopyRefusal, Target};
use crate::counters::Skip;
use crate::transport::staging::Slot;

/// The stream on which an engine computes, by its driver's handle; nothing where an engine has no streams.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct EngineStream(pub u64);

/// One part of a chunk that is to be packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pack<'a> {
    pub(crate) group: GroupIndex,
    pub(crate) part: PartIndex,
    /// One id for each block of the chunk, ignored where not covered.
    pub(crate) blocks: &'a [u32],
    pub(crate) coverage: Coverage,
}

/// A packed part, or one that is being packed. Dropped early, its slot is free when no copy can land in it any more.
#[derive(Debug)]
pub(crate) enum Packed {
    /// Its bytes are in the slot.
    Here(Slot),
    /// They are on their way.
    Coming(Box<dyn Coming>),
}

/// A slot full of the bytes of a part, with their digest where somebody has computed it already.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) slot: Slot,
    pub(crate) digest: Option<ContentDigest>,
}

/// A part whose bytes are on their way into its slot.
pub(crate) trait Coming: Send + fmt::Debug {
    /// Bytes of the part.
    fn len(&self) -> usize;
    /// Waits for them. Too late, or lost: they are given up.
    fn wait(self: Box<Self>, deadline: Instant) -> Result<Filled, Skip>;
}

impl Packed {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Here(slot) => slot.len(),
            Self::Coming(coming) => coming.len(),
        }
    }

    pub(crate) fn wait(self, deadline: Instant) -> Result<Filled, Skip> {
        match self {
            Self::Here(slot) => Ok(Filled { slot, digest: None }),
            Self::Coming(coming) => coming.wait(deadline),
        }
    }
}

/// What a load has to come after: the work that the engine had begun when the load was planned. A host has none, since
/// there everything is over when a call returns.
#[derive(Clone, Default, Debug)]
pub(crate) struct Fence(pub(crate) Option<Arc<dyn Any + Send + Sync>>);

/// Moves bytes for a worker.
pub(crate) trait Carrier: Send + Sync + fmt::Debug {
    /// Begins the snapshots of one step.
    fn gather(&self, on: EngineStream) -> Box<dyn Gathering + '_>;

    /// All that the engine has begun on its stream so far, the gathers included.
    fn fence(&self, on: EngineStream) -> Fence;

    /// Begins a load that writes nothing before `after` is over. Its bytes come out of `arena`, if they lie in it.
    fn load(&self, after: &Fence, arena: Option<&Arc<Mapping>>) -> Result<Box<dyn Loading>, Reason>;

    /// Whether nothing can be copied any more, in one sentence.
    fn lost(&self) -> Option<String> {
        None
    }

    /// The client ends: from now on a copy that does not end is not waited for without a limit.
    fn end(&self) {}

    /// Waits until no copy can touch the engine's memory any more; what cannot be waited for keeps its memory for good.
    fn close(&self) {}
}

/// The snapshots of one step. Ends with [`Gathering::finish`]: work that the engine begins on its stream afterwards
/// cannot change what is packed (rule 6).
pub(crate) trait Gathering {
    /// Packs one part into a slot of its size.
    fn add(&mut self, part: Pack<'_>, slot: Slot) -> Result<Packed, Skip>;
    /// All parts are named.
    fn finish(self: Box<Self>);
}

/// One load. When it is finished or dropped, no copy of it can land any more.
pub(crate) trait Loading: Send {
    /// Writes what `piece` has of the needed blocks, as [`CopyBackend::scatter`] does, now or later. `lasts`: the bytes
    /// stay where they are, and what they are, until the load is over; else they are read before the call returns.
    fn scatter(
        &mut self,
        to: &Target<'_>,
        offset_bytes: u64,
        piece: &[u8],
        lasts: bool,
    ) -> Result<(), CopyRefusal>;
    /// Waits until all of it is written, or none of it can be any more: past the deadline too.
    fn finish(self: Box<Self>, deadline: Instant) -> Result<(), Reason>;
}

/// Copies of the host: everything is over when a call returns.
#[derive(Debug)]
pub(crate) struct HostCarrier {
    copy: Arc<dyn CopyBackend>,
}

impl HostCarrier {
    pub(crate) fn new(copy: Arc<dyn CopyBackend>) -> Self {
        Self { copy }
    }
}

impl Carrier for HostCarrier {
    fn gather(&self, _on: EngineStream) -> Box<dyn Gathering + '_> {
        Box::new(AtOnce(Arc::clone(&self.copy)))
    }

    fn fence(&self, _on: EngineStream) -> Fence {
        Fence::default()
    }

    fn load(&self, _after: &Fence, _arena: Option<&Arc<Mapping>>) -> Result<Box<dyn Loading>, Reason> {
        Ok(Box::new(AtOnce(Arc::clone(&self.copy))))
    }
}

struct AtOnce(Arc<dyn CopyBackend>);

impl Gathering for AtOnce {
    fn add(&mut self, part: Pack<'_>, mut slot: Slot) -> Result<Packed, Skip> {
        let Pack { group, part, blocks, coverage } = part;
        self.0.gather(group, part, blocks, coverage, slot.fill()).map_err(|no| {
            tracing::warn!(%no, "blocks of a store do not fit the layout");
            Skip::BadBlocks
        })?;
        Ok(Packed::Here(slot))
    }

    fn finish(self: Box<Self>) {}
}

impl Loading for AtOnce {
    fn scatter(
        &mut self,
        to: &Target<'_>,
        offset_bytes: u64,
        piece: &[u8],
        _lasts: bool,
    ) -> Result<(), CopyRefusal> {
        self.0.scatter(to, offset_bytes, piece)
    }

    fn finish(self: Box<Self>, _deadline: Instant) -> Result<(), Reason> {
        Ok(())
    }
}
