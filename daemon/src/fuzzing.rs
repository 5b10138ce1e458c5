//! Doors for the fuzz targets and measurements of `tests/`: parts of the daemon that are private to it, as they are. Only builds with
//! the feature `fuzzing` have this module.

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use tender_proto::{BootId, ChunkId, NamespaceDigest};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::body::Body;

use crate::access::Access;
pub use crate::arena::forge::{Places, places, seal_header, seal_record, sparse};
use crate::clock::SystemClock;
use crate::engine::{Engine, EngineConfig, StartError};
use crate::fair::Fair;
use crate::metrics::Metrics;
use crate::rpc::status::RefusalLog;
use crate::rpc::{Shared, server};
use crate::shutdown::Phase;

/// The daemon's services without sockets.
#[derive(Debug)]
pub struct InProcess {
    shared: Arc<Shared>,
    _phase: watch::Sender<Phase>,
}

impl InProcess {
    /// Over this engine, with frames of this payload.
    pub fn new(engine: Arc<Engine>, max_frame_bytes: usize) -> Self {
        let (sender, phase) = watch::channel(Phase::Serving);
        let shared = Shared {
            engine,
            stack: None,
            access: Arc::new(Access::open()),
            fair: Fair::new(2),
            metrics: Arc::new(Metrics::new()),
            phase,
            boot: BootId::from_random([7; 16]),
            started: Instant::now(),
            max_frame_bytes,
            max_calls_per_connection: 1,
            refusals: RefusalLog::default(),
            copies: Arc::new(Semaphore::new(1)),
            doubts: Arc::new(Semaphore::new(1)),
            trace: Default::default(),
            desk: crate::rpc::desk::Desk::default(),
            peers: None,
        };
        Self { shared: Arc::new(shared), _phase: sender }
    }

    /// One call, as a connection would bring it. Needs a runtime.
    pub async fn call(&self, request: http::Request<Body>) -> http::Response<Body> {
        server::call(&self.shared, request).await
    }

    /// As if a commit was copied all the time: others wait for their turn until this is dropped. `None` while one is.
    pub fn busy(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.shared.copies).try_acquire_owned().ok()
    }
}

/// One client of the descriptor socket, until it was answered. Needs a runtime.
pub async fn attend(client: UnixStream, engine: Arc<Engine>) {
    let access = Arc::new(Access::open());
    crate::fds::attend(client, crate::fds::Hands { engine, access }).await;
}

/// An engine over an arena's file that another one gave away: what it holds is served.
pub fn adopt(config: EngineConfig, file: File) -> Result<Engine, StartError> {
    Engine::adopt(config, Arc::new(SystemClock), file)
}

/// Makes a chunk of one part READY whose bytes nobody has written; with `record` the arena's file says so, too. False:
/// there was no room, or the chunk was there.
pub fn stock(engine: &Engine, namespace: NamespaceDigest, chunk: ChunkId, bytes: u64, record: bool) -> bool {
    engine.stock(namespace, chunk, bytes, record)
}
