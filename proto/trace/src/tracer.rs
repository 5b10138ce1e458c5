//! Where spans begin, and where they go when they end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::{SpanBuilder, TraceContextExt, Tracer as _, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanExporter as Export,
};

use crate::queue::{Bounded, Counting, MOST_WAITING, SpanCounts, Tally};
use crate::settings::Endpoint;
use crate::{Parent, Ratio, Span, TraceConfig};

/// Spans of one message: well under the size that collectors take.
const BATCH: usize = 512;
/// How long an ended span waits for others.
const DELAY: Duration = Duration::from_secs(1);
/// After this a collector has failed to take a message.
const EXPORT_TIME: Duration = Duration::from_secs(5);

/// Which part a span is of a call between two programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The one who asks.
    Asks,
    /// The one who answers.
    Answers,
    /// Work of one program.
    Within,
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
#[error("cannot send traces to {endpoint}: {source}")]
pub struct OpenError {
    endpoint: Endpoint,
    source: ExporterBuildError,
}

/// Begins spans and exports them when they end; off where no endpoint is chosen. Clones share it.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Live>>);

struct Live {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    tally: Arc<Tally>,
}

impl Tracer {
    /// Records nothing. What a caller began is handed on.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Starts the thread that exports, if there is somewhere to. It needs a Tokio runtime around it, which carries the
    /// connection; the collector need not be there. `program` and `name` tell whose spans they are.
    pub fn open(config: &TraceConfig, program: &'static str, name: &str) -> Result<Self, OpenError> {
        let Some(endpoint) = &config.endpoint else { return Ok(Self::off()) };
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint.to_string())
            .with_timeout(EXPORT_TIME)
            .build()
            .map_err(|source| OpenError { endpoint: endpoint.clone(), source })?;
        Ok(Self::to(exporter, config.ratio, program, name))
    }

    pub(crate) fn to(
        exporter: impl Export + 'static,
        ratio: Ratio,
        program: &'static str,
        name: &str,
    ) -> Self {
        let tally = Arc::new(Tally::default());
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(MOST_WAITING)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(DELAY)
            .build();
        let exporter = Counting { exporter, tally: Arc::clone(&tally) };
        let queue = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        let whose = [
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", name.to_owned()),
        ];
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Bounded { queue, tally: Arc::clone(&tally) })
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio.get()))))
            .with_resource(Resource::builder().with_service_name(program).with_attributes(whose).build())
            .build();
        let tracer = provider.tracer("tender");
        Self(Some(Arc::new(Live { provider, tracer, tally })))
    }

    /// Begins a span. Without a parent it begins a trace, if one is to be recorded. A tracer that is off hands the
    /// parent on.
    #[must_use]
    pub fn span(&self, name: &'static str, side: Side, parent: Parent) -> Span {
        let Some(live) = &self.0 else { return Span::of(parent.context()) };
        let parent = parent.context().unwrap_or_default();
        let builder = SpanBuilder::from_name(name).with_kind(side.into());
        let span = live.tracer.build_with_context(builder, &parent);
        Span::of(Some(Context::new().with_span(span).with_value(self.clone())))
    }

    /// What became of the spans so far; `None` where it is off.
    #[must_use]
    pub fn counts(&self) -> Option<SpanCounts> {
        self.0.as_ref().map(|live| live.tally.read())
    }

    /// Exports what has ended, for no longer than this, and records nothing more. Not on a thread of the runtime: it
    /// blocks.
    pub fn close(&self, limit: Duration) {
        if let Some(live) = &self.0 {
            // What did not get out in time is lost.
            _ = live.provider.shutdown_with_timeout(limit);
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // The SDK would do so by itself and wait for seconds, whoever the last holder is.
        _ = self.provider.shutdown_with_timeout(Duration::ZERO);
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tracer").field(&self.counts()).finish()
    }
}
