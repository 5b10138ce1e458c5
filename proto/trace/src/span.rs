//! What runs now. A span is current while its work runs: on a thread while [`Span::enter`]'s guard lives, in an async task
//! inside [`Span::around`]. Its end is that of the last clone.

use std::borrow::Cow;
use std::fmt;

use futures_util::future::Either;
use opentelemetry::context::{FutureExt, WithContext};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt};
use opentelemetry::{Context, ContextGuard, KeyValue, Value};

use crate::Parent;
use crate::parent::TRACEPARENT;
use crate::tracer::{Side, Tracer};

/// A span, or nothing where nobody traces.
#[derive(Clone, Default)]
pub struct Span(Option<Context>);

impl Span {
    /// Nothing.
    pub const NONE: Self = Self(None);

    pub(crate) fn of(context: Option<Context>) -> Self {
        Self(context)
    }

    /// What runs now. Whoever keeps it keeps the span from ending.
    #[must_use]
    pub fn current() -> Self {
        Self(Context::map_current(|context| context.has_active_span().then(|| context.clone())))
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// As the parent of what comes next.
    #[must_use]
    pub fn parent(&self) -> Parent {
        self.0.as_ref().map_or(Parent::NONE, |context| Parent::of(context.span().span_context()))
    }

    /// Adds an attribute, see [`names`](crate::names). Where making the value takes time, ask for
    /// [`is_none`](Self::is_none) before.
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(context) = &self.0 {
            context.span().set_attribute(KeyValue::new(key, value));
        }
    }

    /// It failed; why, in a word of the code.
    pub fn fail(&self, why: impl Into<Cow<'static, str>>) {
        if let Some(context) = &self.0 {
            context.span().set_status(Status::error(why));
        }
    }

    /// Makes it current on this thread while the guard lives.
    #[must_use]
    pub fn enter(&self) -> Entered {
        Entered { _guard: self.0.clone().map(Context::attach) }
    }

    /// The same for a future, whoever runs it. The span ends with it.
    pub fn around<F: Future>(self, work: F) -> Either<F, WithContext<F>> {
        match self.0 {
            None => Either::Left(work),
            Some(context) => Either::Right(work.with_context(context)),
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Span").field(&self.parent().traceparent()).finish()
    }
}

/// While it lives, a span is current on its thread.
#[derive(Debug)]
pub struct Entered {
    _guard: Option<ContextGuard>,
}

/// Whose child work is that goes on by itself. Keeping it keeps no span from ending.
#[derive(Clone, Default, Debug)]
pub struct Origin {
    tracer: Tracer,
    parent: Parent,
}

impl Origin {
    /// What runs now.
    #[must_use]
    pub fn current() -> Self {
        Context::map_current(|context| {
            if !context.has_active_span() {
                return Self::default();
            }
            let tracer = context.get::<Tracer>().cloned().unwrap_or_default();
            Self { tracer, parent: Parent::of(context.span().span_context()) }
        })
    }

    /// Begins a child. Nothing where nothing ran: such work begins no trace.
    #[must_use]
    pub fn span(&self, name: &'static str, side: Side) -> Span {
        if self.parent.is_none() { Span::NONE } else { self.tracer.span(name, side, self.parent) }
    }
}

/// Begins a child of what runs now; nothing where nothing does.
#[must_use]
pub fn child(name: &'static str, side: Side) -> Span {
    Origin::current().span(name, side)
}

/// Adds an attribute to what runs now.
pub fn note(key: &'static str, value: impl Into<Value>) {
    Context::map_current(|context| {
        if context.has_active_span() {
            context.span().set_attribute(KeyValue::new(key, value));
        }
    });
}

/// Tells the next program in its request's headers what runs now.
pub fn inject(headers: &mut http::HeaderMap) {
    let value = Parent::current().traceparent().and_then(|value| value.try_into().ok());
    if let Some(value) = value {
        headers.insert(TRACEPARENT, value);
    }
}

impl From<Side> for SpanKind {
    fn from(side: Side) -> Self {
        match side {
            Side::Asks => Self::Client,
            Side::Answers => Self::Server,
            Side::Within => Self::Internal,
        }
    }
}
