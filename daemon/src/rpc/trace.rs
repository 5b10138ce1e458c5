//! A call's span: a child of the caller's, current while the call is answered. What a call begins and does not wait for
//! is a child of it, see [`tender_trace::Origin`].

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::{Request, Response};
use tender_trace::{Parent, Side, Span, Tracer, names};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};

use super::entry::Kind;

/// Behind the entry: a stranger gets no span.
#[derive(Clone, Debug)]
pub(super) struct TraceLayer(pub(super) Tracer);

impl<S> Layer<S> for TraceLayer {
    type Service = Traced<S>;

    fn layer(&self, inner: S) -> Traced<S> {
        Traced { tracer: self.0.clone(), inner }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Traced<S> {
    tracer: Tracer,
    inner: S,
}

impl<S> Traced<S> {
    fn span(&self, request: &Request<Body>) -> Span {
        let name = Kind::of(request.uri().path()).and_then(|kind| names::call(kind.name));
        let begin = |name| self.tracer.span(name, Side::Answers, Parent::from_headers(request.headers()));
        name.map_or(Span::NONE, begin)
    }
}

impl<S> Service<Request<Body>> for Traced<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let span = self.span(&request);
        let answer = self.inner.call(request);
        if span.is_none() {
            return Either::Left(answer);
        }
        Either::Right(Box::pin(async move {
            let response = span.clone().around(answer).await?;
            let status = Status::from_header_map(response.headers());
            if let Some(status) = status.filter(|status| status.code() != Code::Ok) {
                span.fail(status.code().description());
            }
            Ok(response)
        }))
    }
}
