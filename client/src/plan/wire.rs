//! A step's plan, and its way from the scheduler's process to the workers'.
//!
//! Messages stop here: the rest of the crate sees the checked types. A plan is self-describing (every job has
//! one block id per block of its chunk), so a worker needs nothing else to read it. Both ends are of one
//! version, so the format may change with any release.

use prost::Message;
use tender_proto::{BlocksPerChunk, ChainHash, ChunkId, Coverage, GroupIndex, Reason, Refusal};
use tender_trace::Parent;

/// What workers do around one forward pass, in this order: `stores_before`, start `loads`, the pass,
/// `stores_after`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StepPlan {
    /// Gathered before the pass: blocks that are free already and that the pass may overwrite.
    pub stores_before: Vec<StoreJob>,
    /// Started before the pass, after those gathers: a load may write into a block freed just now.
    pub loads: Vec<LoadJob>,
    /// Gathered after the pass, which writes some of their slots.
    pub stores_after: Vec<StoreJob>,
    /// The namespace's epoch as the scheduler knew it. A plan is carried out after it was made, perhaps across a reset:
    /// what it stores then is from before. `None`: nobody said.
    pub epoch: Option<u64>,
}

/// One chunk to store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreJob {
    /// Its key.
    pub chunk: ChunkId,
    /// Its written blocks.
    pub coverage: Coverage,
    /// The engine's block ids, one per block of the chunk; ignored where not covered.
    pub blocks: Vec<u32>,
}

/// All that one request loads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadJob {
    /// The engine's id of the request, given back when the load is over.
    pub request: String,
    /// Its chunks.
    pub items: Vec<LoadItem>,
    /// It succeeds or fails as a whole. An engine can go on from the middle of full attention, but not from the middle
    /// of a window or a state.
    pub whole: bool,
    /// The request's trace.
    pub trace: Parent,
}

/// One chunk to load, or some blocks of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadItem {
    /// Its key.
    pub chunk: ChunkId,
    /// The blocks to load.
    pub needed: Coverage,
    /// The engine's block ids, one per block of the chunk; ignored where not needed.
    pub blocks: Vec<u32>,
}

impl StepPlan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.stores_before.is_empty() && self.loads.is_empty() && self.stores_after.is_empty()
    }

    /// The message's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let stores = |jobs: &[StoreJob]| {
            jobs.iter().map(|job| PiecePb::of(job.chunk, job.coverage, &job.blocks)).collect()
        };
        let load = |job: &LoadJob| LoadJobPb {
            request: job.request.clone(),
            items: job.items.iter().map(|item| PiecePb::of(item.chunk, item.needed, &item.blocks)).collect(),
            whole: job.whole,
            trace: job.trace.traceparent().unwrap_or_default(),
        };
        StepPlanPb {
            stores_before: stores(&self.stores_before),
            loads: self.loads.iter().map(load).collect(),
            stores_after: stores(&self.stores_after),
            epoch: self.epoch,
        }
        .encode_to_vec()
    }

    /// Reads the message; what is not a whole and valid plan is refused.
    pub fn decode(raw: &[u8]) -> Result<Self, Refusal> {
        let raw = StepPlanPb::decode(raw).map_err(|error| malformed(format!("a step plan ({error})")))?;
        let load = |job: LoadJobPb| {
            let items = job.items.into_iter().map(PiecePb::into_load).collect::<Result<_, _>>()?;
            Ok(LoadJob { request: job.request, items, whole: job.whole, trace: Parent::parse(&job.trace) })
        };
        Ok(Self {
            stores_before: stores(raw.stores_before)?,
            loads: raw.loads.into_iter().map(load).collect::<Result<_, Refusal>>()?,
            stores_after: stores(raw.stores_after)?,
            epoch: raw.epoch,
        })
    }
}

fn stores(pieces: Vec<PiecePb>) -> Result<Vec<StoreJob>, Refusal> {
    pieces.into_iter().map(PiecePb::into_store).collect()
}

#[derive(Clone, PartialEq, Message)]
struct StepPlanPb {
    #[prost(message, repeated, tag = "1")]
    stores_before: Vec<PiecePb>,
    #[prost(message, repeated, tag = "2")]
    loads: Vec<LoadJobPb>,
    #[prost(message, repeated, tag = "3")]
    stores_after: Vec<PiecePb>,
    #[prost(uint64, optional, tag = "4")]
    epoch: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct LoadJobPb {
    #[prost(string, tag = "1")]
    request: String,
    #[prost(message, repeated, tag = "2")]
    items: Vec<PiecePb>,
    #[prost(bool, tag = "3")]
    whole: bool,
    #[prost(string, tag = "4")]
    trace: String,
}

/// Some blocks of one chunk.
#[derive(Clone, PartialEq, Message)]
struct PiecePb {
    #[prost(uint32, tag = "1")]
    group: u32,
    #[prost(bytes = "vec", tag = "2")]
    hash: Vec<u8>,
    #[prost(fixed64, tag = "3")]
    bits: u64,
    #[prost(uint32, repeated, tag = "4")]
    blocks: Vec<u32>,
}

impl PiecePb {
    fn of(chunk: ChunkId, bits: Coverage, blocks: &[u32]) -> Self {
        Self {
            group: u32::from(chunk.group.0),
            hash: chunk.hash.as_bytes().to_vec(),
            bits: bits.bits(),
            blocks: blocks.to_vec(),
        }
    }
    fn into_store(self) -> Result<StoreJob, Refusal> {
        Ok(StoreJob { chunk: self.chunk()?, coverage: self.coverage()?, blocks: self.blocks })
    }
    fn into_load(self) -> Result<LoadItem, Refusal> {
        Ok(LoadItem { chunk: self.chunk()?, needed: self.coverage()?, blocks: self.blocks })
    }
    fn chunk(&self) -> Result<ChunkId, Refusal> {
        let group = u16::try_from(self.group).map_err(|_| malformed(format!("group {}", self.group)))?;
        Ok(ChunkId { group: GroupIndex(group), hash: ChainHash::parse(&self.hash)? })
    }
    fn coverage(&self) -> Result<Coverage, Refusal> {
        let blocks = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX);
        Coverage::new(self.bits, BlocksPerChunk::new(blocks)?)
    }
}

fn malformed(subject: String) -> Refusal {
    Refusal::new(Reason::Malformed, subject, "run the same version of this package in scheduler and workers")
}
