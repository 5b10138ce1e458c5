//! The only place that spawns: every task has a name in the logs and ends when its handle is dropped.

use tokio::task::{JoinError, JoinHandle, JoinSet};
use tracing::Instrument;

use crate::fault::{self, Fault};

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

/// The same for work whose end nobody waits for.
pub(crate) fn aside(name: &'static str, work: impl FnOnce() + Send + 'static) {
    let span = tracing::debug_span!("work", name);
    drop(tokio::task::spawn_blocking(move || span.in_scope(work)));
}

/// Runs work of bounded time that must not stop halfway: it comes to its end even if nobody waits for it any more.
pub(crate) async fn finish<T: Send + 'static>(
    name: &'static str,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, JoinError> {
    tokio::spawn(work.instrument(tracing::debug_span!("work", name))).await
}

/// Tasks of one kind that come and go; all of them end when this is dropped.
#[derive(Debug)]
pub(crate) struct Group {
    name: &'static str,
    tasks: JoinSet<()>,
}

impl Group {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, tasks: JoinSet::new() }
    }
    /// Starts one.
    pub(crate) fn spawn(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        // Those that have ended leave nothing behind, also where nobody asks for room.
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(work.instrument(tracing::debug_span!("task", name = self.name)));
    }
    /// Lets go of those that have ended.
    pub(crate) fn reap(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }
    /// Ends all of them; none runs any more when this returns.
    pub(crate) async fn end(mut self) {
        self.tasks.shutdown().await;
    }
    /// Waits until fewer than `most` are running.
    pub(crate) async fn room_for(&mut self, most: usize) {
        self.reap();
        while self.tasks.len() >= most {
            self.tasks.join_next().await;
        }
    }
}

/// A thread that is waited for when this is dropped: tell it to end before.
#[derive(Debug)]
pub(crate) struct Thread(Option<std::thread::JoinHandle<()>>);

/// Starts a thread.
pub(crate) fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<Thread> {
    fault::check(Fault::Thread)?;
    std::thread::Builder::new().name(name.into()).spawn(work).map(|handle| Thread(Some(handle)))
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(handle) = self.0.take()
            && handle.join().is_err()
        {
            tracing::error!("a thread panicked");
        }
    }
}
