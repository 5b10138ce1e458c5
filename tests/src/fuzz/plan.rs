//! Step plans as a worker reads them, whoever wrote them.

use arbitrary::{Arbitrary, Unstructured};
use tender_client::plan::{LoadItem, LoadJob, StepPlan, StoreJob};
use tender_proto::{BlocksPerChunk, ChainHash, ChunkId, Coverage, GroupIndex};

/// One chunk of a job.
#[derive(Arbitrary, Debug)]
struct Piece {
    group: u16,
    hash: u8,
    bits: u64,
    blocks: Vec<u32>,
}

/// A plan that a scheduler could have made.
#[derive(Arbitrary, Debug)]
struct Draft {
    before: Vec<Piece>,
    loads: Vec<(String, Vec<Piece>, bool)>,
    after: Vec<Piece>,
    epoch: Option<u64>,
}

/// The first byte chooses: the rest is a message, or a plan is drawn from it and must come back as it was.
pub fn run(data: &[u8]) {
    let Some((&way, rest)) = data.split_first() else { return };
    if way % 2 == 0 {
        if let Ok(plan) = StepPlan::decode(rest) {
            is_sound(&plan);
            assert_eq!(StepPlan::decode(&plan.encode()).as_ref(), Ok(&plan), "what was read can be sent on");
        }
    } else if let Ok(draft) = Draft::arbitrary(&mut Unstructured::new(rest)) {
        let plan = plan(draft);
        assert_eq!(StepPlan::decode(&plan.encode()).as_ref(), Ok(&plan));
    }
}

/// A worker relies on this without looking again.
fn is_sound(plan: &StepPlan) {
    let stores = plan.stores_before.iter().chain(&plan.stores_after).map(|job| (job.coverage, &job.blocks));
    let loads = plan.loads.iter().flat_map(|job| &job.items).map(|item| (item.needed, &item.blocks));
    for (coverage, blocks) in stores.chain(loads) {
        assert_eq!(coverage.blocks().get() as usize, blocks.len(), "one block id for each block of a chunk");
        assert!(coverage.iter().all(|block| (block as usize) < blocks.len()));
    }
}

fn plan(draft: Draft) -> StepPlan {
    let stores = |pieces: Vec<Piece>| {
        let job = |(chunk, coverage, blocks)| StoreJob { chunk, coverage, blocks };
        pieces.into_iter().filter_map(piece).map(job).collect()
    };
    let load = |(request, pieces, whole): (String, Vec<Piece>, bool)| {
        let item = |(chunk, needed, blocks)| LoadItem { chunk, needed, blocks };
        LoadJob {
            request,
            items: pieces.into_iter().filter_map(piece).map(item).collect(),
            whole,
            trace: Default::default(),
        }
    };
    StepPlan {
        stores_before: stores(draft.before),
        loads: draft.loads.into_iter().map(load).collect(),
        stores_after: stores(draft.after),
        epoch: draft.epoch,
    }
}

fn piece(piece: Piece) -> Option<(ChunkId, Coverage, Vec<u32>)> {
    let blocks = BlocksPerChunk::new(u32::try_from(piece.blocks.len()).ok()?).ok()?;
    let coverage = Coverage::new(piece.bits & Coverage::full(blocks).bits(), blocks).ok()?;
    let hash = ChainHash::from_bytes([piece.hash; 32]);
    Some((ChunkId { group: GroupIndex(piece.group), hash }, coverage, piece.blocks))
}
