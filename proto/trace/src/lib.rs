//! Traces: which spans there are, whose children they are, and how they get to a collector.
//!
//! ```text
//! engine's traceparent > Parent > Tracer::span > Span, current while its work runs > inject > the next program
//!                                                  | its end
//!                                                  v
//!                               bounded queue > a thread of its own > OTLP over gRPC
//! ```
//! `names` has all names and attributes, `parent` the W3C trace context, `span` what runs now, `tracer` where ended spans
//! go, `queue` how many may wait there, `settings` what a user chooses.
//!
//! Whoever is traced never waits: a span that finds the queue full is dropped and counted, and a collector that hangs
//! or is gone keeps nobody but the thread that writes to it. Without a collector and without a caller's trace nothing
//! is made: what is left is a look at a thread-local cell.

pub mod names;
mod parent;
mod queue;
mod settings;
mod span;
#[cfg(test)]
mod tests;
mod tracer;

pub use parent::Parent;
pub use queue::SpanCounts;
pub use settings::{Endpoint, Ratio, TraceConfig, Unusable};
pub use span::{Entered, Origin, Span, child, inject, note};
pub use tracer::{OpenError, Side, Tracer};
