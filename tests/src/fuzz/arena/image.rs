//! Arenas as daemons left them: a kill is a copy of the file, whatever is in it at that moment.

use std::fs;
use std::sync::{Arc, LazyLock};

use tender_daemon::clock::ManualClock;
use tender_daemon::engine::{Engine, ReserveAnswer, ReserveAsk, ResetScope};
use tender_proto::{ChunkId, ContentDigest, PartIndex, SessionId};

use crate::fuzz::small::{self, BLOCK_BYTES, content, descriptor};

/// A file, and what is READY in it.
pub(super) struct Image {
    pub(super) file: Vec<u8>,
    pub(super) ready: Vec<Stored>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Stored {
    pub(super) model: u8,
    pub(super) chunk: ChunkId,
    pub(super) coverage: u64,
}

/// One of four.
pub(super) fn of(n: u8) -> &'static Image {
    static IMAGES: LazyLock<Vec<Image>> = LazyLock::new(|| vec![mixed(), full(), empty(), reset()]);
    &IMAGES[usize::from(n) % IMAGES.len()]
}

struct Writer {
    engine: Engine,
    session: SessionId,
    ready: Vec<Stored>,
    _folder: tempfile::TempDir,
}

impl Writer {
    fn new() -> Self {
        let folder = small::folder();
        let engine = Engine::new(small::config(folder.path()), Arc::new(ManualClock::new()));
        let engine = engine.unwrap_or_else(|error| panic!("{error}"));
        let session = open_session(&engine);
        Self { engine, session, ready: Vec::new(), _folder: folder }
    }
    /// Stores all parts of a chunk.
    fn put(&mut self, model: u8, group: u8, n: u8, coverage: u64) {
        for part in 0..=group {
            store_part(&self.engine, self.session, model, small::chunk(group, n), part.into(), coverage);
        }
        let chunk = small::chunk(group, n);
        self.ready.retain(|stored| (stored.model, stored.chunk) != (model, chunk));
        self.ready.push(Stored { model, chunk, coverage });
    }
    fn killed(self) -> Image {
        let file = fs::read(&self.engine.config().arena.place).unwrap_or_else(|error| panic!("{error}"));
        Image { file, ready: self.ready }
    }
}

/// A session that has registered every model.
pub(super) fn open_session(engine: &Engine) -> SessionId {
    let session = engine.open_session("fuzz", 1).unwrap_or_else(|no| panic!("{no}"));
    for model in 0..small::MODELS {
        let descriptor = descriptor(model);
        let digest = descriptor.digest();
        engine.register(session, descriptor, digest, None).unwrap_or_else(|no| panic!("{no}"));
    }
    session
}

/// Stores a part; false if it is there already or cannot be taken.
pub(super) fn store_part(
    engine: &Engine,
    session: SessionId,
    model: u8,
    chunk: ChunkId,
    part: u16,
    coverage: u64,
) -> bool {
    let bytes = BLOCK_BYTES * u64::from(coverage.count_ones());
    let ask = ReserveAsk { chunk, part: PartIndex(part), coverage_bits: coverage, bytes };
    let answers = engine.reserve(session, descriptor(model).digest(), &[ask]);
    let Ok([ReserveAnswer::Reserved(id)]) = answers.as_deref() else { return false };
    let content = content(chunk, PartIndex(part), coverage, bytes);
    let Ok(mut writer) = engine.begin_write(session, id.get()) else { return false };
    writer.write(0, &content).is_ok() && writer.finish(ContentDigest::of(&content), coverage).outcome.is_ok()
}

/// Two models, gaps, a chunk replaced by one with more blocks, half a chunk.
fn mixed() -> Image {
    let mut writer = Writer::new();
    writer.put(0, 0, 0, 0b1111);
    writer.put(0, 0, 1, 0b0001);
    writer.put(0, 1, 2, 0b1111);
    writer.put(1, 0, 0, 0b0110);
    writer.put(0, 0, 1, 0b0011);
    store_part(&writer.engine, writer.session, 0, small::chunk(1, 7), 1, 0b1111);
    writer.killed()
}

/// More than there is room for, so that the first were evicted.
fn full() -> Image {
    let mut writer = Writer::new();
    for n in 0..12 {
        writer.put(n % 2, 0, n, 0b1111);
    }
    let (engine, session) = (&writer.engine, writer.session);
    let mut ready = writer.ready.clone();
    ready.retain(|stored| {
        let namespace = descriptor(stored.model).digest();
        let ask = tender_daemon::engine::LeaseAsk::None;
        let answer = engine.lookup(session, namespace, &[stored.chunk], ask);
        answer.is_ok_and(|answer| {
            matches!(answer.chunks[..], [tender_daemon::engine::ChunkAnswer::Ready { .. }])
        })
    });
    writer.ready = ready;
    writer.killed()
}

fn empty() -> Image {
    Writer::new().killed()
}

/// Some of it forgotten.
fn reset() -> Image {
    let mut writer = Writer::new();
    writer.put(0, 0, 0, 0b1111);
    writer.put(1, 1, 1, 0b1010);
    writer.engine.reset(ResetScope::One(descriptor(0).digest()));
    writer.ready.retain(|stored| stored.model != 0);
    writer.put(0, 0, 3, 0b1100);
    writer.killed()
}
