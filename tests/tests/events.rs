//! Whoever watches a daemon has what lookups find: over sockets, through the real client, also where it is slow, where
//! the daemon begins anew, and where a policy lets it see a part only.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tender_client::events::{EventStream, Position, Start, View, WatchOptions};
use tender_client::plan::PlanConfig;
use tender_client::{Credentials, SchedulerSide, TransportChoice};
use tender_proto::limits::MAX_MESSAGE_BYTES;
use tender_proto::v1::ChunkState;
use tender_proto::{ChunkId, Coverage, Descriptor, NamespaceDigest};
use tender_tests::daemon::{Daemon, SLOT_BLOCK_BYTES, Setup};
use tender_tests::fixture::{self, PART};
use tender_tests::pattern;
use tender_tests::raw::RawSession;

/// What must come, comes within this also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const KEYS: u64 = 12;

/// A watcher: what it was told, and what it has made of it.
struct Watcher {
    stream: EventStream,
    view: View,
    starts: Vec<Start>,
}

impl Watcher {
    fn open(daemon: &Daemon, namespaces: &[NamespaceDigest], from: Option<Position>) -> Self {
        let address = format!("unix:{}", daemon.socket().display()).parse().unwrap();
        let options = WatchOptions { namespaces: namespaces.to_vec(), from };
        let stream = EventStream::open(&address, &Credentials::default(), options, PATIENCE).unwrap();
        Self { stream, view: View::default(), starts: Vec::new() }
    }

    /// Takes what comes until this holds of the view.
    fn until(&mut self, what: &str, holds: impl Fn(&View) -> bool) {
        let give_up = Instant::now() + PATIENCE;
        while !(self.view.is_complete() && holds(&self.view)) {
            assert!(Instant::now() < give_up, "{what}: {:?}", self.view);
            if let Some(batch) = self.stream.next(PATIENCE).unwrap() {
                self.starts.extend(batch.start);
                self.view.apply(&batch);
            }
        }
    }
}

fn two() -> [Descriptor; 2] {
    ["one", "two"].map(|model| fixture::small(model, SLOT_BLOCK_BYTES))
}

async fn store(session: &RawSession, descriptor: &Descriptor, n: u64, coverage: Coverage) {
    let (namespace, chunk) = (descriptor.digest(), fixture::chunk(n));
    let bytes = pattern::blob(descriptor, chunk, PART, coverage);
    // What is there already, or does not fit in, is no matter here.
    _ = session.store(namespace, chunk, PART, coverage, &bytes).await;
}

/// What lookups find of all keys of a namespace: those that are there.
async fn found(session: &RawSession, descriptor: &Descriptor) -> Vec<u64> {
    let chunks: Vec<_> = (0..KEYS).map(fixture::chunk).collect();
    let states = session.states(descriptor.digest(), &chunks).await;
    (0..KEYS).zip(states).filter(|(_, state)| *state == ChunkState::Ready).map(|(n, _)| n).collect()
}

fn seen(view: &View, descriptor: &Descriptor) -> Vec<u64> {
    (0..KEYS).filter(|&n| view.coverage(descriptor.digest(), fixture::chunk(n)).is_some()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn after_any_workload_each_watcher_has_what_lookups_find() {
    let daemon = Daemon::start(Setup::slots(6)).await;
    let (client, namespaces) = (daemon.client().await, two());
    let session = client.open_registered(&namespaces[0]).await;
    session.register(&namespaces[1]).await.unwrap();
    let mut all = tokio::task::block_in_place(|| Watcher::open(&daemon, &[], None));
    let mut rng = StdRng::seed_from_u64(7);
    let mut late = None;
    for round in 0..200 {
        let descriptor = &namespaces[rng.random_range(0..2)];
        let full = fixture::full(descriptor);
        let part = Coverage::new(0b0011, descriptor.groups[0].blocks_per_chunk).unwrap();
        let coverage = if rng.random() { full } else { part };
        store(&session, descriptor, rng.random_range(0..KEYS), coverage).await;
        if rng.random_ratio(1, 40) {
            client.reset(descriptor.digest()).await.unwrap();
        }
        if round == 120 {
            late =
                Some(tokio::task::block_in_place(|| Watcher::open(&daemon, &[namespaces[1].digest()], None)));
        }
    }
    let there = [found(&session, &namespaces[0]).await, found(&session, &namespaces[1]).await];
    assert!(there.iter().any(|there| !there.is_empty()));
    tokio::task::block_in_place(|| {
        let both = |view: &View| [seen(view, &namespaces[0]), seen(view, &namespaces[1])];
        all.until("all that is there", |view| both(view) == there);
        assert_eq!((all.view.len(), &all.starts[..]), (there.concat().len(), &[Start::First][..]));
        let mut late = late.unwrap();
        late.until("what is there of one", |view| seen(view, &namespaces[1]) == there[1]);
        assert_eq!(late.view.len(), there[1].len(), "nothing of the other namespace");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_goes_on_where_it_was_and_starts_over_at_another_daemon() {
    let daemon = Daemon::start(Setup::slots(6)).await;
    let descriptor = fixture::small("goes-on", SLOT_BLOCK_BYTES);
    let session = daemon.client().await.open_registered(&descriptor).await;
    let has = |n| {
        let namespace = descriptor.digest();
        move |view: &View| view.coverage(namespace, fixture::chunk(n)).is_some()
    };
    store(&session, &descriptor, 1, fixture::full(&descriptor)).await;
    let first = tokio::task::block_in_place(|| {
        let mut first = Watcher::open(&daemon, &[], None);
        first.until("the first chunk", has(1));
        first
    });
    let position = first.stream.position();
    assert!(position.is_some());
    store(&session, &descriptor, 2, fixture::full(&descriptor)).await;
    let mut second = tokio::task::block_in_place(|| Watcher::open(&daemon, &[], position));
    second.view = first.view.clone();
    tokio::task::block_in_place(|| second.until("the second chunk", has(2)));
    assert!(second.starts.is_empty() && second.view.len() == 2);
    let (position, view) = (second.stream.position(), second.view.clone());
    drop((first, second, session));
    // With an empty arena: what the other one had is gone.
    let daemon = daemon.restart().await;
    tokio::task::block_in_place(|| {
        let mut third = Watcher::open(&daemon, &[], position);
        third.view = view;
        third.until("what the new daemon has", View::is_empty);
        assert_eq!(third.starts, [Start::OtherBoot]);
    });
}

fn policy(open: &str) -> String {
    let uid = nix::unistd::Uid::current();
    format!(
        "[[tenant]]\nname = \"t\"\nidentities = [\"uid:{uid}\"]\nnamespaces = [\n    {{ model = \"open\", allow = [{open}] }},\n    \
         {{ model = \"hidden\", allow = [\"write\"] }},\n]\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_sees_what_it_may_read_and_starts_over_when_that_changes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), policy("\"read\", \"write\"")).unwrap();
    let path = file.path().to_owned();
    let daemon = Daemon::start_with(Setup::slots(6), |config| config.policy = Some(path)).await;
    let [open, hidden] = ["open", "hidden"].map(|model| fixture::small(model, SLOT_BLOCK_BYTES));
    let session = daemon.client().await.open_registered(&open).await;
    session.register(&hidden).await.unwrap();
    store(&session, &hidden, 1, fixture::full(&hidden)).await;
    store(&session, &open, 1, fixture::full(&open)).await;
    let mut watcher = tokio::task::block_in_place(|| {
        let mut watcher = Watcher::open(&daemon, &[], None);
        watcher.until("the chunk that it may read", |view| seen(view, &open) == [1]);
        watcher
    });
    store(&session, &hidden, 2, fixture::full(&hidden)).await;
    store(&session, &open, 2, fixture::full(&open)).await;
    tokio::task::block_in_place(|| watcher.until("the next one", |view| seen(view, &open) == [1, 2]));
    assert_eq!(watcher.view.len(), 2, "nothing of what it may not read: {:?}", watcher.view);
    fs::write(file.path(), policy("\"write\"")).unwrap();
    tokio::task::block_in_place(|| watcher.until("the end of its right", View::is_empty));
    assert_eq!(watcher.starts, [Start::First, Start::Policy]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_away_when_its_rights_changed_does_not_go_on_with_what_it_may_no_longer_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), policy("\"read\", \"write\"")).unwrap();
    let path = file.path().to_owned();
    let daemon = Daemon::start_with(Setup::slots(6), |config| config.policy = Some(path)).await;
    let open = fixture::small("open", SLOT_BLOCK_BYTES);
    let session = daemon.client().await.open_registered(&open).await;
    store(&session, &open, 1, fixture::full(&open)).await;
    let (position, view) = tokio::task::block_in_place(|| {
        let mut watcher = Watcher::open(&daemon, &[], None);
        watcher.until("the chunk that it may read", |view| seen(view, &open) == [1]);
        (watcher.stream.position(), watcher.view)
    });
    assert!(position.is_some());
    fs::write(file.path(), policy("\"write\"")).unwrap();
    tokio::task::block_in_place(|| {
        let give_up = Instant::now() + PATIENCE;
        // The file is looked at every other second.
        loop {
            assert!(Instant::now() < give_up, "it goes on as if nothing had changed");
            let mut back = Watcher::open(&daemon, &[], position);
            back.view = view.clone();
            let batch = back.stream.next(PATIENCE).unwrap().unwrap();
            back.view.apply(&batch);
            match batch.start {
                None => std::thread::sleep(Duration::from_millis(50)),
                Some(Start::Policy) => return back.until("nothing", View::is_empty),
                Some(start) => panic!("{start:?}"),
            }
        }
    });
}

/// Its descriptor is longer than a megabyte.
fn long_winded(model: &str) -> Descriptor {
    let many = fixture::group(16, 1, &[(1 << 32) - 1; 1024]);
    let mut groups = vec![fixture::group(16, 4, &[64])];
    groups.extend(std::iter::repeat_n(many, 255));
    fixture::descriptor(model, groups)
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_whose_descriptors_together_are_longer_than_a_message_can_be_watched() {
    let daemon = Daemon::start(Setup::slots(64)).await;
    let client = daemon.client().await;
    let position = tokio::task::block_in_place(|| {
        let mut watcher = Watcher::open(&daemon, &[], None);
        watcher.until("nothing", View::is_empty);
        watcher.stream.position()
    });
    assert!(position.is_some());
    let all: Vec<_> = (0..32).map(|n| long_winded(&format!("long {n}"))).collect();
    assert!(all.iter().map(|descriptor| descriptor.encode().len()).sum::<usize>() > MAX_MESSAGE_BYTES);
    for descriptor in &all {
        let session = client.open_registered(descriptor).await;
        store(&session, descriptor, 1, fixture::full(descriptor)).await;
    }
    tokio::task::block_in_place(|| {
        for from in [position, None] {
            let mut watcher = Watcher::open(&daemon, &[], from);
            watcher.until("all of them", |view| view.len() == all.len());
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_hears_of_its_namespace_and_forgets_what_a_daemon_had_that_is_gone() {
    let daemon = Daemon::start(Setup::slots(6)).await;
    let [mine, other] = two();
    let session = daemon.client().await.open_registered(&mine).await;
    session.register(&other).await.unwrap();
    store(&session, &mine, 1, fixture::full(&mine)).await;
    let scheduler =
        SchedulerSide::new(daemon.client_config(TransportChoice::Auto), PlanConfig::default()).unwrap();
    scheduler.set_descriptor(mine.clone()).unwrap();
    scheduler.watch().unwrap();
    let mut held = BTreeMap::new();
    hear(&scheduler, &mut held, |held| held.contains_key(&fixture::chunk(1)));
    store(&session, &other, 2, fixture::full(&other)).await;
    store(&session, &mine, 3, fixture::full(&mine)).await;
    hear(&scheduler, &mut held, |held| held.contains_key(&fixture::chunk(3)));
    assert_eq!(held.len(), 2, "nothing of another namespace: {held:?}");
    daemon.client().await.reset(mine.digest()).await.unwrap();
    hear(&scheduler, &mut held, BTreeMap::is_empty);
    store(&session, &mine, 4, fixture::full(&mine)).await;
    hear(&scheduler, &mut held, |held| held.contains_key(&fixture::chunk(4)));
    drop(session);
    daemon.stop().await;
    hear(&scheduler, &mut held, BTreeMap::is_empty);
    scheduler.shutdown();
}

/// Takes changes until this holds.
fn hear(
    scheduler: &SchedulerSide,
    held: &mut BTreeMap<ChunkId, u64>,
    holds: impl Fn(&BTreeMap<ChunkId, u64>) -> bool,
) {
    let give_up = Instant::now() + PATIENCE;
    while !holds(held) {
        assert!(Instant::now() < give_up, "{held:?}");
        let changes = scheduler.take_changes();
        if changes.forget {
            held.clear();
        }
        for (chunk, coverage) in changes.chunks {
            match coverage {
                Some(coverage) => _ = held.insert(chunk, coverage),
                None => _ = held.remove(&chunk),
            }
        }
        tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(5)));
    }
}
