//! A step plan as bytes. Scheduler and worker are of one version, so the format may change with any release.

use prost::Message;
use tender_proto::{BlocksPerChunk, ChunkId, Coverage, Refusal, v1};

use super::jobs::{LoadItem, LoadJob, StepPlan, StoreJob};

/// Why bytes are not a step plan.
#[derive(Debug, thiserror::Error)]
#[error("these bytes are not a step plan: {0}")]
pub struct PlanError(String);

impl From<Refusal> for PlanError {
    fn from(no: Refusal) -> Self {
        Self(no.to_string())
    }
}

#[derive(Message)]
struct Plan {
    #[prost(message, repeated, tag = "1")]
    stores_before: Vec<Chunk>,
    #[prost(message, repeated, tag = "2")]
    loads: Vec<Load>,
    #[prost(message, repeated, tag = "3")]
    stores_after: Vec<Chunk>,
}

#[derive(Message)]
struct Load {
    #[prost(string, tag = "1")]
    request: String,
    #[prost(message, repeated, tag = "2")]
    items: Vec<Chunk>,
}

/// A chunk, some of its blocks, and all its block ids: their number is the chunk's blocks.
#[derive(Message)]
struct Chunk {
    #[prost(message, optional, tag = "1")]
    id: Option<v1::ChunkId>,
    #[prost(uint64, tag = "2")]
    bits: u64,
    #[prost(uint32, repeated, tag = "3")]
    blocks: Vec<u32>,
}

impl Chunk {
    fn new(id: ChunkId, coverage: Coverage, blocks: Vec<u32>) -> Self {
        Self { id: Some(id.to_message()), bits: coverage.bits(), blocks }
    }
    fn parse(self) -> Result<(ChunkId, Coverage, Vec<u32>), PlanError> {
        let id = ChunkId::parse(&self.id.ok_or_else(|| PlanError("a chunk without a key".into()))?)?;
        let blocks = BlocksPerChunk::new(u32::try_from(self.blocks.len()).unwrap_or(u32::MAX))?;
        Ok((id, Coverage::new(self.bits, blocks)?, self.blocks))
    }
}

impl From<StoreJob> for Chunk {
    fn from(job: StoreJob) -> Self {
        Self::new(job.chunk, job.coverage, job.blocks)
    }
}

impl TryFrom<Chunk> for StoreJob {
    type Error = PlanError;
    fn try_from(raw: Chunk) -> Result<Self, PlanError> {
        let (chunk, coverage, blocks) = raw.parse()?;
        Ok(Self { chunk, coverage, blocks })
    }
}

impl TryFrom<Chunk> for LoadItem {
    type Error = PlanError;
    fn try_from(raw: Chunk) -> Result<Self, PlanError> {
        let (chunk, needed, blocks) = raw.parse()?;
        Ok(Self { chunk, needed, blocks })
    }
}

impl StepPlan {
    /// The bytes that travel to the workers.
    pub fn encode(self) -> Vec<u8> {
        let load = |job: LoadJob| Load {
            request: job.request,
            items: job.items.into_iter().map(|i| Chunk::new(i.chunk, i.needed, i.blocks)).collect(),
        };
        Plan {
            stores_before: self.stores_before.into_iter().map(Chunk::from).collect(),
            loads: self.loads.into_iter().map(load).collect(),
            stores_after: self.stores_after.into_iter().map(Chunk::from).collect(),
        }
        .encode_to_vec()
    }

    /// Reads what `encode` made; anything else is refused.
    pub fn decode(bytes: &[u8]) -> Result<Self, PlanError> {
        let raw = Plan::decode(bytes).map_err(|error| PlanError(error.to_string()))?;
        let stores = |chunks: Vec<Chunk>| chunks.into_iter().map(StoreJob::try_from).collect();
        let load = |raw: Load| -> Result<LoadJob, PlanError> {
            let items = raw.items.into_iter().map(LoadItem::try_from).collect::<Result<_, _>>()?;
            Ok(LoadJob { request: raw.request, items })
        };
        Ok(Self {
            stores_before: stores(raw.stores_before)?,
            loads: raw.loads.into_iter().map(load).collect::<Result<_, _>>()?,
            stores_after: stores(raw.stores_after)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use tender_proto::{ChainHash, GroupIndex};

    use super::*;

    #[test]
    fn a_plan_survives_the_way_to_the_worker() {
        let chunk = ChunkId { group: GroupIndex(3), hash: ChainHash::from_bytes([9; 32]) };
        let coverage = Coverage::new(0b1011, BlocksPerChunk::new(4).unwrap()).unwrap();
        let store = StoreJob { chunk, coverage, blocks: vec![5, 6, 0, 8] };
        let item = LoadItem { chunk, needed: coverage, blocks: vec![1, 2, 3, 4] };
        let plan = StepPlan {
            stores_before: vec![store.clone()],
            loads: vec![LoadJob { request: "r-1".into(), items: vec![item] }],
            stores_after: vec![store],
        };
        assert_eq!(StepPlan::decode(&plan.clone().encode()).unwrap(), plan);
        assert_eq!(StepPlan::decode(&[]).unwrap(), StepPlan::default());
    }

    #[test]
    fn bits_past_the_chunk_are_refused() {
        let raw = Plan {
            stores_before: vec![Chunk {
                id: Some(v1::ChunkId { group: 0, hash: vec![0; 32].into() }),
                bits: 0b100,
                blocks: vec![1, 2],
            }],
            ..Plan::default()
        };
        assert!(StepPlan::decode(&raw.encode_to_vec()).is_err());
        assert!(StepPlan::decode(&[0xFF; 40]).is_err());
    }
}
