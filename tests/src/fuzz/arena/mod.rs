//! An arena's file as an earlier daemon left it, edited at will, and the engine that opens it. It must open or refuse,
//! count right, serve nothing that is not what was stored under that name, and leave a file that the next one reads.

mod check;
mod edit;
mod image;

use std::fs;

use arbitrary::{Arbitrary, Unstructured};
use tender_daemon::clock::ManualClock;
use tender_daemon::engine::{Engine, ResetScope, StartError};

use super::small;
use check::Check;
use edit::{Edit, Edited};

const MAX_EDITS: usize = 24;

#[derive(Arbitrary, Debug)]
struct Draft {
    image: u8,
    edits: Vec<Edit>,
    discard: u8,
    reset: u8,
    new_chunks: u8,
}

/// Opens an edited file, uses it, and opens it again.
pub fn run(data: &[u8]) {
    let Ok(draft) = Draft::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let image = image::of(draft.image);
    let edited = Edited::new(image, draft.edits.into_iter().take(MAX_EDITS));
    let folder = small::folder();
    let mut config = small::config(folder.path());
    config.arena.discard = draft.discard > 250;
    fs::write(&config.arena.place, &edited.file).unwrap_or_else(|error| panic!("no file: {error}"));
    let clock = std::sync::Arc::new(ManualClock::new());

    let engine = match Engine::new(config.clone(), clock.clone()) {
        Ok(engine) => engine,
        Err(StartError::NewerFormat { .. } | StartError::Foreign { .. }) => {
            let now = fs::read(&config.arena.place).unwrap_or_default();
            assert!(now == edited.file, "somebody else's file was touched");
            return;
        }
        // A full machine is no finding.
        Err(StartError::FilesystemTooSmall { .. } | StartError::MemoryLimitTooSmall { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    config.arena.discard = false;
    let check = Check { engine: &engine, image, edited: &edited };
    check.all();
    engine.scrub(u64::MAX);
    check.after_scrub();
    if draft.reset > 200 {
        engine.reset(ResetScope::All);
    }
    check.store_new(draft.new_chunks % 8);
    let before = check.audit();
    let ready = check.ready();
    drop(engine);

    let engine = small::open(&config, &clock);
    let restored = engine.restored();
    assert_eq!(
        (restored.dropped_records, restored.dropped_parts, restored.discarded),
        (0, 0, None),
        "{restored:?}"
    );
    let check = Check { engine: &engine, image, edited: &edited };
    assert_eq!((restored.chunks, check.audit().used_bytes), (before.ready_chunks, before.used_bytes));
    assert_eq!(check.ready(), ready, "the next daemon serves the same");
}
