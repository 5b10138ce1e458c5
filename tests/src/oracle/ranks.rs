//! Ranks of an engine: which parts of a chunk each of them holds.

use std::sync::Arc;

use tender_client::layout::ProvedLayout;
use tender_client::{ClientConfig, ClientError, WorkerSide};
use tender_proto::{Descriptor, PartIndex};

/// One rank's worker.
pub(super) fn worker(
    config: ClientConfig,
    descriptor: Arc<Descriptor>,
    layout: Arc<ProvedLayout>,
) -> Result<WorkerSide, ClientError> {
    WorkerSide::new(config, descriptor, PartIndex(0), layout)
}
