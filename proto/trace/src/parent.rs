//! W3C trace context: of which trace something is a part, as it is written in a header.

use std::fmt;

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// The header, and the key of an engine's trace headers.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// Of the header's first version; later ones may be longer.
const TRACEPARENT_BYTES: usize = 55;

/// A span of whatever program, as the parent of what comes next; or none. What vendors say besides (`tracestate`) is
/// not carried on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Parent(Option<Ids>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ids {
    trace: TraceId,
    span: SpanId,
    flags: TraceFlags,
}

impl Parent {
    /// No trace.
    pub const NONE: Self = Self(None);

    /// Whether there is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// As a `traceparent` header has it. Anything else is no parent: a broken header must not break a call.
    #[must_use]
    pub fn parse(traceparent: &str) -> Self {
        struct One<'a>(&'a str);
        impl Extractor for One<'_> {
            fn get(&self, key: &str) -> Option<&str> {
                (key == TRACEPARENT).then_some(self.0)
            }
            fn keys(&self) -> Vec<&str> {
                vec![TRACEPARENT]
            }
        }
        // The library takes a cut one.
        if traceparent.len() < TRACEPARENT_BYTES {
            return Self::NONE;
        }
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &One(traceparent));
        Self::of(context.span().span_context())
    }

    /// The caller's, from a request's headers.
    #[must_use]
    pub fn from_headers(headers: &http::HeaderMap) -> Self {
        headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()).map_or(Self::NONE, Self::parse)
    }

    /// What runs now.
    #[must_use]
    pub fn current() -> Self {
        Context::map_current(|context| Self::of(context.span().span_context()))
    }

    pub(crate) fn of(context: &SpanContext) -> Self {
        Self(context.is_valid().then(|| Ids {
            trace: context.trace_id(),
            span: context.span_id(),
            flags: context.trace_flags(),
        }))
    }

    /// With this as the current span.
    pub(crate) fn context(self) -> Option<Context> {
        let Ids { trace, span, flags } = self.0?;
        let remote = SpanContext::new(trace, span, flags, true, TraceState::NONE);
        Some(Context::new().with_remote_span_context(remote))
    }

    /// The header's value; `None` for none.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        self.0.map(|ids| ids.to_string())
    }
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, self.flags)
    }
}
