//! Spans that wait for the thread that exports them: so many, and what is more is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};

/// Spans that wait at most: a few megabytes, and a second of a busy daemon.
pub(crate) const MOST_WAITING: usize = 8192;

/// What became of ended spans.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SpanCounts {
    /// A collector has taken them.
    pub exported: u64,
    /// No collector took them.
    pub failed: u64,
    /// The queue was full.
    pub dropped: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    waiting: AtomicUsize,
    exported: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl Tally {
    pub(crate) fn read(&self) -> SpanCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SpanCounts {
            exported: read(&self.exported),
            failed: read(&self.failed),
            dropped: read(&self.dropped),
        }
    }
}

/// In front of the SDK's queue, which counts what it drops where nobody can read it. Its own is as long, so that it never
/// drops: what waits there is what was counted here and not yet taken by [`Counting`].
#[derive(Debug)]
pub(crate) struct Bounded {
    pub(crate) queue: BatchSpanProcessor,
    pub(crate) tally: Arc<Tally>,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        if self.tally.waiting.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING {
            self.tally.waiting.fetch_sub(1, Ordering::Relaxed);
            self.tally.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.queue.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.queue.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.queue.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.queue.set_resource(resource);
    }
}

/// Exports, and counts what comes of it.
#[derive(Debug)]
pub(crate) struct Counting<E> {
    pub(crate) exporter: E,
    pub(crate) tally: Arc<Tally>,
}

impl<E: SpanExporter> SpanExporter for Counting<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.tally.waiting.fetch_sub(spans, Ordering::Relaxed);
        let outcome = self.exporter.export(batch).await;
        let count = if outcome.is_ok() { &self.tally.exported } else { &self.tally.failed };
        let before = count.fetch_add(spans as u64, Ordering::Relaxed);
        if let (Err(error), 0) = (&outcome, before) {
            tracing::warn!(%error, "spans do not get to the collector; from now on failures are only counted");
        }
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
