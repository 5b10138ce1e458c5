//! Ranks of an engine: which heads each of them holds, and which parts of a chunk those are.

use std::sync::Arc;

use tender_client::layout::{GroupShard, ProvedLayout, Writer, prove};
use tender_client::{ClientConfig, ClientError, WorkerSide};
use tender_proto::Descriptor;

use super::groups::GroupSpec;
use super::memory::Memory;
use super::scenario::Scenario;
use super::{Failure, fail};

/// A rank's memory and how it lies in the parts of chunks.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) memory: Memory,
    pub(super) layout: Arc<ProvedLayout>,
}

/// Rank `rank` of `ranks`.
pub(super) fn shard(scenario: &Scenario, rank: u32, ranks: u32) -> Result<Shard, Failure> {
    let shards: Vec<_> =
        scenario.groups.iter().map(|group| group_shard(group, scenario.parts, rank, ranks)).collect();
    let mut shapes = Vec::new();
    let mut first_heads = Vec::new();
    for (group, shard) in scenario.groups.iter().zip(&shards) {
        let heads = group.heads / u32::from(shard.parts);
        shapes.push(group.tensors(heads * u32::from(shard.count)));
        first_heads.push(if group.recurrent() { rank } else { heads * u32::from(shard.first) });
    }
    let memory = Memory::new(&shapes, first_heads, &scenario.arrangement, scenario.pool_blocks);
    let refused = |no: tender_client::layout::LayoutRefusal| fail(format!("layout: {no}"));
    let layout = prove(memory.describe(), scenario.pool_blocks)
        .and_then(|layout| layout.shard(&shards))
        .map_err(refused)?;
    Ok(Shard { memory, layout: Arc::new(layout) })
}

fn group_shard(group: &GroupSpec, parts: u32, rank: u32, ranks: u32) -> GroupShard {
    let small = |n: u32| u16::try_from(n).expect("few parts");
    if group.recurrent() {
        return GroupShard { parts: small(ranks), first: small(rank), count: 1, writer: Writer::ALONE };
    }
    let parts = if group.heads == 0 { 1 } else { parts };
    let replicas = (ranks / parts).max(1);
    GroupShard {
        parts: small(parts),
        first: small(rank * parts / ranks),
        count: small((parts / ranks).max(1)),
        writer: Writer { replica: rank % replicas, replicas },
    }
}

/// One rank's worker.
pub(super) fn worker(
    config: ClientConfig,
    descriptor: Arc<Descriptor>,
    shard: &Shard,
) -> Result<WorkerSide, ClientError> {
    WorkerSide::new(config, descriptor, Arc::clone(&shard.layout))
}
