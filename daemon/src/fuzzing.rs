//! Doors for the fuzz targets of `tests/`: parts of the daemon that are private to it, as they are. Only builds with
//! the feature `fuzzing` have this module.

use std::sync::Arc;
use std::time::Instant;

use tender_proto::BootId;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tonic::body::Body;

pub use crate::arena::forge::{Places, places, seal_header, seal_record};
use crate::engine::Engine;
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
            metrics: Arc::new(Metrics::new()),
            phase,
            resets: watch::Sender::new(0),
            boot: BootId::from_random([7; 16]),
            started: Instant::now(),
            max_frame_bytes,
            max_calls_per_connection: 1,
            refusals: RefusalLog::default(),
            copies: Arc::new(Semaphore::new(1)),
        };
        Self { shared: Arc::new(shared), _phase: sender }
    }

    /// One call, as a connection would bring it. Needs a runtime.
    pub async fn call(&self, request: http::Request<Body>) -> http::Response<Body> {
        server::call(&self.shared, request).await
    }
}

/// One client of the descriptor socket, until it was answered. Needs a runtime.
pub async fn attend(client: UnixStream, engine: Arc<Engine>) {
    crate::fds::attend(client, engine).await;
}
