//! The only place that spawns: every task has a name in the logs and ends when its handle is dropped.

use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument;

/// A running task, aborted when this is dropped.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    /// Waits for its end; a panic inside is logged by the runtime and counts as an end.
    pub(crate) async fn ended(&mut self) {
        _ = (&mut self.0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a task.
pub(crate) fn spawn(name: &'static str, work: impl Future<Output = ()> + Send + 'static) -> Task {
    Task(tokio::spawn(work.instrument(tracing::debug_span!("task", name))))
}

/// Runs work that takes a processor for a while. It runs to its end even if nobody waits for it any more.
pub(crate) async fn blocking<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let span = tracing::debug_span!("work", name);
    tokio::task::spawn_blocking(move || span.in_scope(work)).await
}
