//! The one small async runtime of a process.
//!
//! It is made at first use and never dropped: a runtime must not be dropped inside an async context, and an
//! engine may drop its last client anywhere. After a `fork` the child has none of its threads, so it gets one
//! of its own; the parent's is left alone there.

use std::future::Future;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::ClientError;

/// One keeps a busy stream's work in one core's cache; the bytes' copies and digests happen on the client's own threads.
const WORKERS: usize = 1;

static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// The runtime of this process.
pub(crate) fn handle() -> Result<Handle, ClientError> {
    let mut current = RUNTIME.lock();
    let pid = std::process::id();
    if let Some((owner, runtime)) = *current
        && owner == pid
    {
        return Ok(runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(4)
        .thread_name("tender-io")
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
    fn one_runtime_serves_the_whole_process() {
        let (a, b) = (handle().unwrap(), handle().unwrap());
        assert_eq!(a.id(), b.id());
    }

    #[test]
    fn waiting_ends_at_the_limit() {
        let handle = handle().unwrap();
        assert_eq!(wait(&handle, Duration::from_secs(10), async { 7 }), Some(7));
        let start = Instant::now();
        assert_eq!(wait(&handle, Duration::from_millis(20), std::future::pending::<()>()), None);
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[tokio::test]
    async fn waiting_inside_an_async_context_does_not_panic() {
        assert_eq!(wait(&handle().unwrap(), Duration::from_secs(10), async { 1 }), Some(1));
    }
}
