//! What the arena's file says it holds: kept as things become READY and go, and read by the next daemon.
//!
//! It says nothing that is not so: a part's record is written after its bytes were verified and cleared before they are
//! given away. What finds no room in it is served as usual, and not found after a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tender_proto::{ChunkId, ContentDigest, Descriptor, NamespaceDigest, PartIndex, ReservationId};

use super::alloc::{Extent, ExtentPool};
use super::memory::Memory;
use super::record::{NamespaceRecord, PartRecord, Record, VersionId};
use super::records::{Records, Slot};
use super::shape::Shape;
use crate::fault::{self, Fault};
use crate::sync::Mutex;

/// The catalogue of one open arena.
#[derive(Debug)]
pub(crate) struct Catalogue {
    map: Arc<Memory>,
    shape: Shape,
    records: Arc<Records>,
    descriptors: Arc<ExtentPool>,
    boot: u32,
    sequence: AtomicU32,
    unrecorded: AtomicBool,
}

/// A namespace's place in the catalogue. Dropping it takes the namespace out.
#[derive(Debug)]
pub(crate) struct NamespaceEntry {
    // Before the room that it points to.
    slot: Slot,
    extent: Extent,
    digest: NamespaceDigest,
    /// Epochs are written in their order.
    writing: Mutex<()>,
}

/// One verified part, for its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartEntry<'a> {
    pub(crate) namespace: Option<&'a NamespaceEntry>,
    pub(crate) epoch: u32,
    /// The reservation that began the version.
    pub(crate) first: ReservationId,
    pub(crate) chunk: ChunkId,
    pub(crate) part: PartIndex,
    pub(crate) coverage_bits: u64,
    pub(crate) digest: ContentDigest,
    pub(crate) extent: &'a Extent,
}

/// A namespace that an earlier daemon knew.
#[derive(Debug)]
pub(crate) struct OldNamespace {
    pub(crate) entry: NamespaceEntry,
    pub(crate) epoch: u32,
    pub(crate) descriptor: Descriptor,
}

impl Catalogue {
    pub(super) fn new(
        map: Arc<Memory>,
        shape: Shape,
        records: Arc<Records>,
        boot: u32,
        namespaces: Vec<(Slot, NamespaceRecord)>,
    ) -> Option<(Arc<Self>, Vec<OldNamespace>)> {
        let pieces: Vec<_> =
            namespaces.iter().map(|(_, record)| (record.offset_bytes, record.bytes)).collect();
        let (descriptors, extents) = ExtentPool::restore(shape.descriptor_bytes(), &pieces)?;
        let unrecorded = AtomicBool::new(false);
        let catalogue = Arc::new(Self {
            map,
            shape,
            records,
            descriptors,
            boot,
            sequence: AtomicU32::new(0),
            unrecorded,
        });
        let old = namespaces.into_iter().zip(extents);
        let old = old.filter_map(|((slot, record), extent)| catalogue.old_namespace(slot, record, extent?));
        let old = old.collect();
        Some((catalogue, old))
    }

    fn old_namespace(&self, slot: Slot, record: NamespaceRecord, extent: Extent) -> Option<OldNamespace> {
        let mut raw = vec![0; usize::try_from(record.bytes).ok()?];
        self.map.copy_out(self.shape.descriptors() + record.offset_bytes, &mut raw).ok()?;
        let descriptor = Descriptor::decode(&raw).ok()?;
        if descriptor.digest() != record.digest {
            return None;
        }
        let entry = NamespaceEntry { slot, extent, digest: record.digest, writing: Mutex::new(()) };
        Some(OldNamespace { entry, epoch: record.epoch, descriptor })
    }

    /// Writes a namespace down; `None` when there is no room, and nothing of it will be found after a restart.
    pub(crate) fn add_namespace(&self, descriptor: &Descriptor, epoch: u32) -> Option<NamespaceEntry> {
        let raw = descriptor.encode();
        let Some(extent) = self.descriptors.allocate(raw.len() as u64) else { return self.no_room() };
        let at = self.shape.descriptors() + extent.offset_bytes();
        fault::check(Fault::DescriptorWrite).ok()?;
        self.map.writing()?.copy_in(at, &raw).ok()?;
        let digest = descriptor.digest();
        let record =
            NamespaceRecord { digest, epoch, offset_bytes: extent.offset_bytes(), bytes: extent.bytes() };
        let Some(slot) = self.records.write(&Record::Namespace(record)) else { return self.no_room() };
        Some(NamespaceEntry { slot, extent, digest, writing: Mutex::new(()) })
    }

    /// Writes a part down; `None` when there is no room or its namespace is not in.
    pub(crate) fn add_part(&self, part: PartEntry<'_>) -> Option<Slot> {
        let record = Record::Part(PartRecord {
            namespace_slot: part.namespace?.slot.index(),
            epoch: part.epoch,
            version: VersionId { boot: self.boot, first: part.first.get() },
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed),
            chunk: part.chunk,
            part: part.part,
            coverage_bits: part.coverage_bits,
            digest: part.digest,
            offset_bytes: part.extent.offset_bytes(),
            bytes: part.extent.bytes(),
        });
        self.records.write(&record).or_else(|| self.no_room())
    }

    /// From now on nothing is cleared: what is in stays for the next daemon.
    pub(crate) fn freeze(&self) {
        self.records.freeze();
    }

    /// The arena's number of this start: no other daemon had it before on this arena, and hardly one on another.
    pub(crate) fn boot(&self) -> u32 {
        self.boot
    }

    /// Whether the arena is another process's now: nothing is written down any more.
    pub(crate) fn is_given_away(&self) -> bool {
        self.map.is_given_away()
    }

    /// Parts and namespaces that are in.
    pub(crate) fn len(&self) -> u64 {
        self.records.len()
    }

    fn no_room<T>(&self) -> Option<T> {
        if !self.is_given_away() && !self.unrecorded.swap(true, Ordering::Relaxed) {
            tracing::warn!("the arena's catalogue is full; what does not fit is not found after a restart");
        }
        None
    }
}

impl NamespaceEntry {
    /// The number by which parts name it.
    pub(crate) fn slot_index(&self) -> u32 {
        self.slot.index()
    }

    /// Begins an epoch with `begin`, which returns it, and writes it down before anybody acts on it.
    pub(crate) fn begin_epoch(&self, begin: impl FnOnce() -> u32) -> u32 {
        let _in_order = self.writing.lock();
        let epoch = begin();
        self.slot.rewrite(&Record::Namespace(NamespaceRecord {
            digest: self.digest,
            epoch,
            offset_bytes: self.extent.offset_bytes(),
            bytes: self.extent.bytes(),
        }));
        epoch
    }
}
