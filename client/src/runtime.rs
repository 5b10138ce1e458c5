//! The two small async runtimes of a process: one for calls, whose answers somebody waits for, and one for bulk
//! connections, behind whose bytes the calls would wait.
//!
//! They are made at first use and never dropped: a runtime must not be dropped inside an async context, and an
//! engine may drop its last client anywhere. After a `fork` the child has none of their threads, so it gets some
//! of its own; the parent's are left alone there.

use std::future::Future;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::ClientError;

/// Calls are small.
const CALL_WORKERS: usize = 1;
/// Bytes are verified and copied by the client's own threads, beside the one that receives. A large machine may have several
/// connections busy at once; more than these would take cores from the engine.
const MOST_BULK_WORKERS: usize = 4;

/// Made by this process, if it is that one's.
type Slot = Mutex<Option<(u32, &'static Runtime)>>;

static CALLS: Slot = Mutex::new(None);
static BULK: Slot = Mutex::new(None);

/// Runs sessions, and calls that are over soon.
pub(crate) fn calls() -> Result<Handle, ClientError> {
    handle(&CALLS, "tender-io", CALL_WORKERS)
}

/// Runs bulk connections.
pub(crate) fn bulk() -> Result<Handle, ClientError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    handle(&BULK, "tender-bulk", (cores / 2).clamp(1, MOST_BULK_WORKERS))
}

fn handle(slot: &Slot, name: &'static str, workers: usize) -> Result<Handle, ClientError> {
    let mut current = slot.lock();
    let pid = std::process::id();
    if let Some((owner, runtime)) = *current
        && owner == pid
    {
        return Ok(runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(4)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|source| ClientError::Start { what: "the runtime's threads", source })?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *current = Some((pid, runtime));
    Ok(runtime.handle().clone())
}

/// Runs a future on the runtime and waits for it from any thread, also one that is itself in an async context.
/// `None` when it is not done in time; it is then dropped.
pub(crate) fn wait<T: Send + 'static>(
    handle: &Handle,
    limit: Duration,
    future: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let deadline = Instant::now() + limit;
    let (sender, receiver) = mpsc::sync_channel(1);
    let task = handle.spawn(async move {
        // The receiver is gone when the waiting was given up.
        _ = sender.send(future.await);
    });
    let done = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
    if done.is_none() {
        task.abort();
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runtimes_serve_the_whole_process() {
        assert_eq!(calls().unwrap().id(), calls().unwrap().id());
        assert_eq!(bulk().unwrap().id(), bulk().unwrap().id());
        assert_ne!(calls().unwrap().id(), bulk().unwrap().id());
    }

    #[test]
    fn waiting_ends_at_the_limit() {
        let handle = calls().unwrap();
        assert_eq!(wait(&handle, Duration::from_secs(10), async { 7 }), Some(7));
        let start = Instant::now();
        assert_eq!(wait(&handle, Duration::from_millis(20), std::future::pending::<()>()), None);
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[tokio::test]
    async fn waiting_inside_an_async_context_does_not_panic() {
        assert_eq!(wait(&calls().unwrap(), Duration::from_secs(10), async { 1 }), Some(1));
    }
}
