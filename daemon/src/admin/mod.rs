//! Probes, metrics, the status page and `/audit` over HTTP, on a thread and a runtime of their own: however busy the daemon
//! is with bytes, a probe gets its answer.
//!
//! `history` is what the last hour was like, `status` what the page is told, `page` the page itself.

mod history;
mod page;
mod status;

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use history::History;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::engine::{Audit, Engine};
use crate::metrics::{Format, Metrics, Scene};
use crate::shutdown::Phase;
use crate::task::{Group, Thread, blocking, thread};
use crate::tier::Stack;

/// 200 from the first moment until the end, however busy the daemon is.
pub const LIVE_PATH: &str = "/live";
/// 200 while it serves; 503 while it starts, drains or hands over.
pub const READY_PATH: &str = "/ready";
/// For Prometheus.
pub const METRICS_PATH: &str = "/metrics";
/// Recounts all that is held.
const AUDIT_PATH: &str = "/audit";

/// Probes and scrapers are few; more than this wait their turn.
const MAX_CONNECTIONS: usize = 64;
/// Who connects and asks nothing is dropped after this.
const PATIENCE: Duration = Duration::from_secs(5);
/// An answer that is not taken by then is given up, or a few who do not read would keep the probes out. A scraper waits no
/// longer by default.
const LONGEST: Duration = Duration::from_secs(10);
/// Without descriptors left, accepting fails at once and for as long as that lasts.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the answers are made of.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) metrics: Arc<Metrics>,
    /// Set once the arena is there.
    pub(crate) engine: Arc<OnceLock<Arc<Engine>>>,
    /// Set after that, where there are tiers below the arena.
    pub(crate) stack: Arc<OnceLock<Arc<Stack>>>,
    /// What the last hour was like.
    pub(crate) history: Mutex<History>,
    /// Held while everything is recounted.
    pub(crate) auditing: tokio::sync::Mutex<()>,
}

/// The thread; it ends when the daemon stops.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) address: SocketAddr,
    _thread: Thread,
}

impl Admin {
    /// Serves at `listener` until the phase is [`Phase::Stopped`] or its sender is gone.
    pub(crate) fn start(listener: TcpListener, sources: Sources) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let (started, start) = mpsc::channel();
        // The runtime is made where it is dropped: it must not be dropped by a task of another one.
        let work = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                _ = started.send(Ok(()));
                if let Err(error) = runtime.block_on(serve(listener, Arc::new(sources))) {
                    tracing::error!(%error, "the admin server has stopped; probes will fail");
                }
            }
            Err(error) => _ = started.send(Err(error)),
        };
        let thread = thread("tenderd-admin", work)?;
        start.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended")))?;
        Ok(Self { address, _thread: thread })
    }
}

async fn serve(listener: TcpListener, sources: Arc<Sources>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut phase = sources.phase.clone();
    let stopped = async move { _ = phase.wait_for(|phase| *phase == Phase::Stopped).await };
    tokio::pin!(stopped);
    let mut sampler = Group::new("sampler");
    sampler.spawn(history::sample(Arc::clone(&sources)));
    // Dropped at the end, and every connection with it.
    let mut connections = Group::new("probe");
    loop {
        connections.room_for(MAX_CONNECTIONS).await;
        tokio::select! {
            () = &mut stopped => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(attend(stream, Arc::clone(&sources), LONGEST));
                }
                // Out of descriptors: wait for one to come free instead of spinning.
                Err(error) => {
                    tracing::warn!(%error, "a probe could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// One connection, one answer; dropped after so long.
async fn attend(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    sources: Arc<Sources>,
    longest: Duration,
) {
    let answer = service_fn(move |request: Request<_>| {
        let sources = Arc::clone(&sources);
        async move {
            Ok::<_, Infallible>(match request.uri().path() {
                AUDIT_PATH => audit(&sources).await,
                _ => answer(&sources, &request),
            })
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false);
    _ = tokio::time::timeout(longest, http.serve_connection(TokioIo::new(stream), answer)).await;
}

fn answer<B>(sources: &Sources, request: &Request<B>) -> Response<Full<Bytes>> {
    let phase = *sources.phase.borrow();
    match request.uri().path() {
        LIVE_PATH => reply(StatusCode::OK, "text/plain", "live\n".into()),
        READY_PATH if phase.is_ready() => reply(StatusCode::OK, "text/plain", "ready\n".into()),
        READY_PATH => reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("{}\n", phase.words())),
        METRICS_PATH => {
            let accept = request.headers().get(http::header::ACCEPT).and_then(|value| value.to_str().ok());
            let format = Format::accepted(accept.unwrap_or_default());
            let scene = Scene {
                engine: sources.engine.get().map(Arc::as_ref),
                stack: sources.stack.get().map(Arc::as_ref),
                ready: phase.is_ready(),
            };
            reply(StatusCode::OK, format.content_type(), sources.metrics.render(scene, format))
        }
        "/" => page::page(),
        "/status.json" => status::answer(sources),
        _ => reply(
            StatusCode::NOT_FOUND,
            "text/plain",
            "there are /, /status.json, /live, /ready, /metrics and /audit\n".into(),
        ),
    }
}

/// Recounts everything, off this thread, since it reads every entry. One at a time: more would only hold up the work.
async fn audit(sources: &Sources) -> Response<Full<Bytes>> {
    let Some(engine) = sources.engine.get().map(Arc::clone) else {
        return reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "the arena is not open yet\n".into());
    };
    let _turn = sources.auditing.lock().await;
    match blocking("audit", move || engine.audit()).await {
        Ok(Ok(audit)) => reply(StatusCode::OK, "text/plain", words(&audit)),
        Ok(Err(mismatch)) => reply(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", mismatch + "\n"),
        Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
    }
}

fn words(audit: &Audit) -> String {
    let numbers = [
        ("capacity_bytes", audit.capacity_bytes),
        ("used_bytes", audit.used_bytes),
        ("free_bytes", audit.free_bytes),
        ("sessions", audit.sessions),
        ("leases", audit.leases),
        ("pins", audit.pins),
        ("readers", audit.readers),
        ("reservations", audit.reservations),
        ("writers", audit.writers),
        ("ready_chunks", audit.ready_chunks),
        ("pending_chunks", audit.pending_chunks),
        ("inflight_bytes", audit.inflight_bytes),
    ];
    numbers.iter().map(|(name, number)| format!("{name} {number}\n")).collect()
}

fn reply(status: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let value = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(http::header::CONTENT_TYPE, value);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn sources() -> Arc<Sources> {
        Arc::new(Sources {
            phase: watch::channel(Phase::Serving).1,
            metrics: Arc::new(Metrics::new()),
            engine: Arc::default(),
            stack: Arc::default(),
            history: Default::default(),
            auditing: Default::default(),
        })
    }

    #[tokio::test]
    async fn who_asks_and_does_not_read_is_dropped() {
        // No answer fits into it.
        let (mut client, server) = tokio::io::duplex(16);
        let attending = tokio::spawn(attend(server, sources(), Duration::from_millis(20)));
        client.write_all(b"GET / HTTP/1.1\r\nHost: tenderd\r\n\r\n").await.unwrap();
        // Without a limit it would wait for as long as this end is there.
        attending.await.unwrap();
        drop(client);
    }
}
