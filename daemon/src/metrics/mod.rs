//! What operators see in numbers. `table` declares every metric once; `engine` and `tiers` read what others count when
//! somebody asks, the rest is counted here; `text` writes it for scrapers. docs/metrics.md is made from the table, see
//! `docs`.

#[cfg(test)]
mod docs;
mod engine;
mod histogram;
mod table;
mod text;
mod tiers;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tender_proto::{Reason, Refusal};

use crate::access::Access;
use crate::engine::Engine;
use crate::gate::Turned;
use crate::tier::Stack;
use crate::tier::disk::Disk;
use crate::tier::shared::SharedStats;
use crate::tls::Tls;
pub(crate) use histogram::{AGE_SECONDS, FETCH_SECONDS, Histogram, Spread};
use tender_trace::Tracer;

pub(crate) use text::Format;
use text::{Row, Text, Value};

/// Letters of a refusal's advice that are kept.
const MOST_WORDS: usize = 300;

/// How bytes travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Path {
    /// Through shared memory.
    Shm,
    /// Over a gRPC stream.
    Grpc,
}

/// What the directory and other daemons did, and what was done for them.
#[derive(Debug, Default)]
pub(crate) struct PeerCounters {
    pub(crate) asked: AtomicU64,
    pub(crate) unanswered: AtomicU64,
    pub(crate) published: AtomicU64,
    pub(crate) withdrawn: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) fetched: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    pub(crate) gone: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) wrong: AtomicU64,
    pub(crate) slow: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) served_chunks: AtomicU64,
    pub(crate) offered: AtomicU64,
    pub(crate) offers_taken: AtomicU64,
}

/// Streams of changes for routers.
#[derive(Debug, Default)]
pub(crate) struct WatchCounters {
    pub(crate) open: AtomicU64,
    pub(crate) batches: AtomicU64,
    /// Times that one was too slow and had to begin anew.
    pub(crate) lost: AtomicU64,
}

/// The last refusal for a reason.
#[derive(Clone, Debug)]
pub(crate) struct LastRefusal {
    pub(crate) at: Instant,
    pub(crate) call: &'static str,
    /// What the caller was told to do; what it was about may be a secret of its tenant and is not kept.
    pub(crate) advice: String,
}

/// What is counted outside the engine.
#[derive(Debug)]
pub(crate) struct Metrics {
    started: Instant,
    received_shm_bytes: AtomicU64,
    received_grpc_bytes: AtomicU64,
    sent_shm_bytes: AtomicU64,
    sent_grpc_bytes: AtomicU64,
    failed_handshakes: AtomicU64,
    /// By door.
    connections: Mutex<BTreeMap<&'static str, u64>>,
    /// By door and reason: words of the code.
    turned_away: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// By what and outcome: words of the code.
    reloads: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    access: OnceLock<Arc<Access>>,
    trace: OnceLock<Tracer>,
    /// By the name of the call: words of the code.
    calls: RwLock<BTreeMap<&'static str, Arc<Histogram>>>,
    shared: OnceLock<Arc<SharedStats>>,
    /// Not held by it: the disk lets go of its folder when its tier ends.
    disk: OnceLock<Weak<Disk>>,
    /// One for each reason at most.
    last_refusals: Mutex<BTreeMap<Reason, LastRefusal>>,
    pub(crate) peers: PeerCounters,
    pub(crate) watches: WatchCounters,
    /// Whose times are shown.
    tls: OnceLock<Arc<Tls>>,
}

/// What there is to show besides: some of it comes later in the daemon's life, and some never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) engine: Option<&'a Engine>,
    pub(crate) stack: Option<&'a Stack>,
    pub(crate) ready: bool,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            received_shm_bytes: AtomicU64::new(0),
            received_grpc_bytes: AtomicU64::new(0),
            sent_shm_bytes: AtomicU64::new(0),
            sent_grpc_bytes: AtomicU64::new(0),
            failed_handshakes: AtomicU64::new(0),
            connections: Mutex::default(),
            turned_away: Mutex::default(),
            reloads: Mutex::default(),
            access: OnceLock::new(),
            trace: OnceLock::new(),
            calls: RwLock::default(),
            shared: OnceLock::new(),
            disk: OnceLock::new(),
            last_refusals: Mutex::default(),
            peers: PeerCounters::default(),
            watches: WatchCounters::default(),
            tls: OnceLock::new(),
        }
    }
    /// A TLS connection did not come about.
    pub(crate) fn handshake_failed(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }
    /// Connections came or went.
    pub(crate) fn connections(&self, door: &'static str, change: i64) {
        let mut connections = self.connections.lock();
        let count = connections.entry(door).or_default();
        *count = count.saturating_add_signed(change);
    }
    /// A connection was closed instead of served.
    pub(crate) fn turned_away(&self, door: &'static str, why: Turned) {
        *self.turned_away.lock().entry((door, why.label())).or_default() += 1;
    }
    /// Changed files were read, or refused.
    pub(crate) fn reloaded(&self, what: &'static str, used: bool) {
        let outcome = if used { "used" } else { "refused" };
        *self.reloads.lock().entry((what, outcome)).or_default() += 1;
    }
    /// Where refusals by tenant are counted.
    pub(crate) fn count_access(&self, access: &Arc<Access>) {
        _ = self.access.set(Arc::clone(access));
    }
    /// There are certificates; when they end is shown from here on.
    pub(crate) fn watch_certificates(&self, tls: &Arc<Tls>) {
        _ = self.tls.set(Arc::clone(tls));
    }
    /// Where spans are counted.
    pub(crate) fn count_spans(&self, trace: &Tracer) {
        _ = self.trace.set(trace.clone());
    }
    /// There is a disk tier; its counters are shown from here on.
    pub(crate) fn watch_disk(&self, disk: &Arc<Disk>) {
        _ = self.disk.set(Arc::downgrade(disk));
    }
    /// There is a shared store; its counters are shown from here on.
    pub(crate) fn watch_shared(&self, stats: Arc<SharedStats>) {
        _ = self.shared.set(stats);
    }
    /// A call was answered.
    pub(crate) fn call(&self, call: &'static str, took: Duration) {
        let known = self.calls.read().get(call).cloned();
        let histogram = known.unwrap_or_else(|| {
            let new = || Arc::new(Histogram::new(histogram::CALL_SECONDS));
            Arc::clone(self.calls.write().entry(call).or_insert_with(new))
        });
        histogram.observe(took.as_secs_f64());
    }
    /// A call was refused; the engine counts how often, this is for people.
    pub(crate) fn refused(&self, call: &'static str, refusal: &Refusal) {
        let last = LastRefusal { at: Instant::now(), call, advice: shorten(&refusal.advice) };
        self.last_refusals.lock().insert(refusal.reason, last);
    }
    /// By reason.
    pub(crate) fn last_refusals(&self) -> BTreeMap<Reason, LastRefusal> {
        self.last_refusals.lock().clone()
    }
    /// Payload came in.
    pub(crate) fn received(&self, path: Path, bytes: u64) {
        let counter = match path {
            Path::Shm => &self.received_shm_bytes,
            Path::Grpc => &self.received_grpc_bytes,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
    /// Payload went out, or, for shared memory, a reader was told where it lies.
    pub(crate) fn sent(&self, path: Path, bytes: u64) {
        let counter = match path {
            Path::Shm => &self.sent_shm_bytes,
            Path::Grpc => &self.sent_grpc_bytes,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
    /// Payload so far: received and sent.
    pub(crate) fn moved_bytes(&self) -> (u64, u64) {
        let received = read(&self.received_shm_bytes) + read(&self.received_grpc_bytes);
        (received, read(&self.sent_shm_bytes) + read(&self.sent_grpc_bytes))
    }
    /// Since when.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// All metrics. Before the engine is there, only what is counted here.
    pub(crate) fn render(&self, scene: Scene<'_>, format: Format) -> String {
        let mut text = Text::new(format);
        self.own(&mut text, scene.ready);
        if let Some(engine) = scene.engine {
            engine::write(&mut text, &engine.stats());
        }
        if let Some(stack) = scene.stack {
            tiers::write(&mut text, &stack.stats());
        }
        tiers::write_peers(&mut text, &self.peers);
        if let Some(disk) = self.disk.get().and_then(Weak::upgrade) {
            tiers::write_disk(&mut text, &disk.stats());
        }
        if let Some(shared) = self.shared.get() {
            tiers::write_shared(&mut text, &shared.counts());
        }
        text.end()
    }

    fn own(&self, text: &mut Text, ready: bool) {
        text.family(&table::BUILD, [row(&[env!("CARGO_PKG_VERSION")], 1)]);
        text.one(&table::UPTIME, Value::Real(self.uptime().as_secs_f64()));
        text.one(&table::READY, u64::from(ready));
        let calls = self.calls.read().clone();
        let calls = calls.iter().map(|(call, histogram)| (vec![(*call).into()], histogram.spread().into()));
        text.family(&table::CALL_SECONDS, calls);
        let reloads = self.reloads.lock().clone();
        text.family(&table::RELOADS, reloads.iter().map(|((what, outcome), n)| row(&[what, outcome], *n)));
        text.one(&table::FAILED_TLS_HANDSHAKES, read(&self.failed_handshakes));
        let connections = self.connections.lock().clone();
        text.family(&table::CONNECTIONS, connections.iter().map(|(door, n)| row(&[door], *n)));
        let turned = self.turned_away.lock().clone();
        text.family(
            &table::REFUSED_CONNECTIONS,
            turned.iter().map(|((door, reason), n)| row(&[door, reason], *n)),
        );
        let refusals = self.access.get().map(|access| access.refusals()).unwrap_or_default();
        let refusals = refusals.iter().map(|(tenant, reason, count)| row(&[tenant, reason.label()], *count));
        text.family(&table::ACCESS_REFUSALS, refusals);
        let ends = self.tls.get().map(|tls| tls.expiries()).unwrap_or_default();
        text.family(&table::CERTIFICATE_EXPIRES, ends.into_iter().map(|(what, unix_s)| row(&[what], unix_s)));
        text.one(&table::WATCHERS, read(&self.watches.open));
        text.one(&table::WATCH_BATCHES, read(&self.watches.batches));
        text.one(&table::LOST_WATCHES, read(&self.watches.lost));
        let spans = self.trace.get().and_then(Tracer::counts).map(|counts| {
            [("exported", counts.exported), ("failed", counts.failed), ("dropped", counts.dropped)]
        });
        text.family(&table::SPANS, spans.into_iter().flatten().map(|(outcome, n)| row(&[outcome], n)));
        let by_path = |shm, grpc| [row(&["shm"], read(shm)), row(&["grpc"], read(grpc))];
        text.family(&table::RECEIVED_BYTES, by_path(&self.received_shm_bytes, &self.received_grpc_bytes));
        text.family(&table::SENT_BYTES, by_path(&self.sent_shm_bytes, &self.sent_grpc_bytes));
    }
}

/// Words for a page; some have a caller's name in them, of any length.
fn shorten(words: &str) -> String {
    words.chars().take(MOST_WORDS).collect()
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn row(labels: &[&str], value: u64) -> Row {
    (labels.iter().map(|&label| label.to_owned()).collect(), Value::Whole(value))
}

impl From<Spread> for Value {
    fn from(spread: Spread) -> Self {
        Self::Spread(spread)
    }
}
