//! The domain: what sessions can do with chunks. Every call is synchronous and safe from any thread. Only
//! [`Engine::commit`], [`PartWriter::write`], [`Engine::prefault`], [`Engine::scrub`] and [`Engine::new`] take time that grows
//! with bytes; no lock is held while they copy or hash.
//!
//! Refusals of a whole call are [`Refusal`]s; what goes wrong with one item of a batch is that item's outcome.
//! Both are counted by reason, see [`Stats::refusals`].

mod audit;
mod explain;
mod follow;
pub(crate) mod history;
mod house;
mod quota;
mod read;
mod restore;
mod scrub;
#[cfg(feature = "fuzzing")]
mod stock;
mod store;
#[cfg(test)]
pub(crate) mod tests;
mod tour;
mod types;
mod verify;
mod watch;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use nix::errno::Errno;
use tender_proto::{Descriptor, Group, NamespaceDigest, Reason, Refusal, ReservationId, SessionId};

use crate::access::policy::DomainQuota;
use crate::admission::Budget;
use crate::arena::{Arena, Old};
use crate::clock::{Clock, Steady};
use crate::counters::ReasonCounts;
use crate::index::{Index, Place};
use crate::lease::Leases;
use crate::namespace::{Namespace, Namespaces};
use crate::reservation::Reservations;
use crate::session::{Attach, Owner, Session, Sessions, draining};
use crate::share::{Share, Shares};
use crate::staging::{Staging, StagingError, region_bytes};
use crate::sync::atomic::AtomicBool;
use crate::sync::{Mutex, Planted, planted};
pub(crate) use explain::Fate;
pub(crate) use follow::{Follower, MAX_FOLLOWERS, News, Position};
use history::{History, Left};
pub(crate) use house::{Filling, House, HouseLease, OpenChunk, Unfilled};
pub use read::PartReader;
pub use restore::Restored;
pub use scrub::Suspects;
pub use store::PartWriter;
pub(crate) use store::ReadError;
pub(crate) use tour::Toured;
pub use types::*;
pub(crate) use verify::{Bad, Verifying};
pub(crate) use watch::Watcher;

/// The daemon's heart. Share it in an `Arc`.
#[derive(Debug)]
pub struct Engine {
    core: Arc<Core>,
}

/// What readers and writers keep alive.
#[derive(Debug)]
struct Core {
    /// As at the start.
    config: EngineConfig,
    limits: ArcSwap<Limits>,
    clock: Arc<dyn Clock>,
    begun: Instant,
    max_part_bytes: u64,
    draining: AtomicBool,
    readers: AtomicU64,
    refusals: ReasonCounts,
    /// What each domain may hold; empty where nobody is limited.
    quotas: ArcSwap<HashMap<Arc<str>, DomainQuota>>,
    inflight: Arc<Budget>,
    staging: Arc<Budget>,
    shares: Shares,
    sessions: Sessions,
    namespaces: Namespaces,
    leases: Leases,
    reservations: Reservations,
    /// Pending versions in the order of their deadlines, those that have become READY since included.
    deadlines: Mutex<VecDeque<Deadline>>,
    index: Arc<Index>,
    restored: Restored,
    history: History,
    scrub: scrub::Scrub,
    watcher: OnceLock<Arc<dyn Watcher>>,
    /// Last: whatever holds memory in it goes first.
    arena: Arena,
}

#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    place: Place,
    first: ReservationId,
}

impl Engine {
    /// Opens the arena and serves what an earlier daemon left in it (see [`Engine::restored`]). Reserves every byte, which takes about a third of a
    /// second for each gigabyte: call it off the async threads, after binding sockets. On failure no file
    /// is left behind.
    pub fn new(config: EngineConfig, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        let clock = Arc::new(Steady::new(clock));
        let begin = clock.now();
        let opened = Arena::open(config.arena.clone())?;
        Ok(Self::over(config, clock, begin, opened))
    }

    /// The same on a file that another daemon gave away with [`Engine::give_away`]: its pages are there already.
    pub(crate) fn adopt(config: EngineConfig, clock: Arc<dyn Clock>, file: File) -> Result<Self, StartError> {
        let clock = Arc::new(Steady::new(clock));
        let begin = clock.now();
        let opened = Arena::adopt(config.arena.clone(), file)?;
        Ok(Self::over(config, clock, begin, opened))
    }

    fn over(config: EngineConfig, clock: Arc<dyn Clock>, begin: Instant, (arena, old): (Arena, Old)) -> Self {
        let catalogue = arena.catalogue();
        // A part that could never be admitted is refused for good, not throttled for ever.
        let max_part_bytes = config
            .max_part_bytes
            .min(config.max_inflight_bytes)
            .min(config.max_session_inflight_bytes)
            .min(tender_proto::limits::MAX_PART_BYTES)
            .min(arena.pool().largest_extent_bytes());
        let mut core = Core {
            max_part_bytes,
            draining: AtomicBool::new(false),
            readers: AtomicU64::new(0),
            refusals: ReasonCounts::default(),
            quotas: ArcSwap::default(),
            inflight: Budget::new(config.max_inflight_bytes),
            staging: Budget::new(config.max_total_staging_bytes),
            shares: Shares::new(&Limits::from(&config)),
            sessions: Sessions::new(config.max_sessions, config.max_session_inflight_bytes),
            namespaces: Namespaces::new(config.max_namespaces, Arc::clone(catalogue)),
            leases: Leases::new(config.max_leases_per_session, catalogue.boot()),
            reservations: Reservations::new(catalogue.boot()),
            deadlines: Mutex::default(),
            index: Index::new(Arc::clone(catalogue), config.eviction),
            arena,
            restored: Restored::default(),
            history: History::new(config.history_bytes, begin),
            scrub: scrub::Scrub::default(),
            watcher: OnceLock::new(),
            limits: ArcSwap::from_pointee(Limits::from(&config)),
            config,
            clock,
            begun: begin,
        };
        core.restored = core.restore(old, begin);
        Self { core: Arc::new(core) }
    }

    /// As it was given; what may change since is in [`Engine::limits`].
    pub fn config(&self) -> &EngineConfig {
        &self.core.config
    }
    /// What holds now.
    pub fn limits(&self) -> Limits {
        **self.core.limits.load()
    }
    /// From now on these hold, for what comes: nothing that was granted is taken back.
    pub fn set_limits(&self, limits: Limits) {
        let core = &self.core;
        core.limits.store(Arc::new(limits));
        core.inflight.set_limit(limits.max_inflight_bytes);
        core.staging.set_limit(limits.max_total_staging_bytes);
        core.shares.set_usual(&limits);
        core.sessions.set_limits(limits.max_sessions, limits.max_session_inflight_bytes);
        core.leases.set_limit(limits.max_leases_per_session);
        core.namespaces.set_limit(limits.max_namespaces);
    }
    /// Largest part that can be stored: the configured limit, cut to what budgets and arena can take.
    pub fn max_part_bytes(&self) -> u64 {
        self.core.max_part_bytes
    }
    /// Size of the arena's file, header included.
    pub fn arena_file_bytes(&self) -> u64 {
        self.core.arena.file_bytes()
    }

    /// What there was at the start.
    pub fn restored(&self) -> &Restored {
        &self.core.restored
    }

    /// Makes every page of the arena present, with several threads, unless it is configured not to. It may
    /// run while chunks are stored and read, and ends early when the engine drains. `progress` is told the
    /// bytes done and the bytes in all, from any of the threads. It may fail, and then first uses are slow.
    pub fn prefault(&self, progress: &(dyn Fn(u64, u64) + Sync)) -> std::io::Result<()> {
        if !self.core.config.arena.prefault {
            return Ok(());
        }
        self.core.arena.prefault(progress, &|| self.core.draining.load(Ordering::Relaxed))
    }

    /// Opens a session. Refused: too many of them, or the daemon is about to stop.
    pub fn open_session(&self, client_name: &str, pid: u32) -> Result<SessionId, Refusal> {
        self.open_session_of(Owner::in_process(), client_name, pid)
    }

    /// The same for somebody who came over a connection.
    pub(crate) fn open_session_of(
        &self,
        owner: Owner,
        client_name: &str,
        pid: u32,
    ) -> Result<SessionId, Refusal> {
        let core = &self.core;
        core.counted(|| {
            core.refuse_when_draining()?;
            let share = core.shares.of(&owner.domain);
            let session = core.sessions.open(owner, share, |session| {
                core.leases.open(session);
                core.reservations.open(session);
            })?;
            tracing::info!(%session, client = client_name.escape_debug().to_string(), pid, "session opened");
            Ok(session)
        })
    }

    /// Ends a session: its leases, reservations and staging go at once. Parts that it had finished of chunks
    /// that wait for other parts stay until the chunk's deadline. Closing an ended session does nothing.
    pub fn close_session(&self, session: SessionId) {
        let core = &self.core;
        if !core.sessions.close(session) {
            return;
        }
        core.leases.close(session);
        for (id, place, part) in core.reservations.close(session) {
            core.unhold(place, part, id);
        }
        tracing::info!(%session, "session closed");
    }

    /// Makes a namespace known and binds the session to it; repeating it is harmless. A digest that is not
    /// the descriptor's, or a pinned name that another descriptor has, is refused as
    /// [`Reason::NamespaceConflict`].
    pub fn register(
        &self,
        session: SessionId,
        descriptor: Descriptor,
        claimed: NamespaceDigest,
        pinned_name: Option<&str>,
    ) -> Result<NamespaceDigest, Refusal> {
        let core = &self.core;
        core.counted(|| {
            let session = core.sessions.get(session)?;
            if let Some(share) = &session.share {
                fits_share(&descriptor, share)?;
            }
            let domain = Arc::clone(&session.owner.domain);
            core.namespaces.register(descriptor, &domain, claimed, pinned_name, |namespace| {
                session.bind(claimed, namespace)
            })?;
            Ok(claimed)
        })
    }

    /// Refuses a session of somebody else with the words for one that never was.
    pub(crate) fn check_owner(&self, session: SessionId, owner: &Owner) -> Result<(), Refusal> {
        self.core.sessions.check_owner(session, owner)
    }

    /// Whether processes of this user get the session's shared memory.
    pub(crate) fn may_attach(&self, session: SessionId, uid: u32) -> Result<(), Reason> {
        match self.core.sessions.get(session).map_err(|refusal| refusal.reason)?.owner.attach {
            Attach::Anyone => Ok(()),
            Attach::Uid(owner) if owner == uid => Ok(()),
            // Another user's session does not exist for this one.
            Attach::Uid(_) => Err(Reason::UnknownSession),
            Attach::Nobody => Err(Reason::NotAllowed),
        }
    }

    /// What stands for a namespace of the session inside the daemon, by the digest that the client knows it by: its own
    /// digest, which differs where the session has a domain, and its model.
    pub(crate) fn resolve(
        &self,
        session: SessionId,
        namespace: NamespaceDigest,
    ) -> Result<(NamespaceDigest, String), Refusal> {
        let core = &self.core;
        core.counted(|| {
            let (_, namespace) = core.bound(session, namespace)?;
            Ok((namespace.digest, namespace.descriptor.model.clone()))
        })
    }

    /// A namespace of a domain, by the digest that its clients know it by; with its model.
    pub(crate) fn find_in_domain(
        &self,
        domain: &str,
        namespace: NamespaceDigest,
    ) -> Option<(NamespaceDigest, String)> {
        if domain.is_empty() {
            let found = self.core.namespaces.get(namespace)?;
            return Some((found.digest, found.descriptor.model.clone()));
        }
        let all = self.core.namespaces.in_domain(domain);
        let named = |found: &Arc<Namespace>| found.descriptor.clone().in_domain("").digest() == namespace;
        all.into_iter().find(named).map(|found| (found.digest, found.descriptor.model.clone()))
    }

    /// What each domain may hold from now on. What is stored above it goes with the next stores.
    pub(crate) fn set_quotas(&self, quotas: HashMap<Arc<str>, DomainQuota>) {
        self.core.shares.set(&quotas);
        self.core.quotas.store(Arc::new(quotas));
    }

    /// Who opened a session.
    pub(crate) fn owner_of(&self, session: SessionId) -> Option<Owner> {
        Some(self.core.sessions.get(session).ok()?.owner.clone())
    }

    /// What a session hears of: each change says that one of its namespaces was reset.
    pub(crate) fn resets_of(&self, session: SessionId) -> Result<tokio::sync::watch::Receiver<u64>, Refusal> {
        Ok(self.core.sessions.get(session)?.resets())
    }

    /// Tells the sessions that have registered them that namespaces were reset. Apart from [`Engine::reset`], since other
    /// tiers forget after the arena: clients ask again when all have.
    pub(crate) fn tell_reset(&self, which: ResetScope) {
        for session in self.core.sessions.list() {
            session.tell_reset(|namespace| match which {
                ResetScope::One(digest) => namespace.digest == digest,
                ResetScope::All => true,
            });
        }
    }

    /// The namespace's epoch, which each reset raises; see [`Engine::reserve_gathered`].
    pub fn epoch(&self, session: SessionId, namespace: NamespaceDigest) -> Result<u32, Refusal> {
        let core = &self.core;
        core.counted(|| core.bound(session, namespace).map(|(_, namespace)| namespace.epoch()))
    }

    /// Gives a session its descriptors: the arena's, and if `bytes` is not 0 a staging region of at least
    /// that size. Asking again for the same size gives the same region; another size replaces it.
    pub fn attach_staging(&self, session: SessionId, bytes: u64) -> Result<Handover, Reason> {
        let core = &self.core;
        core.attach(session, bytes).inspect_err(|&reason| core.refusals.count(reason))
    }

    /// Forgets everything stored. When it has answered, no lookup finds anything that was stored before and
    /// no reservation made before can become READY. Readers that hold a lease may finish reading.
    pub fn reset(&self, which: ResetScope) -> ResetAnswer {
        let core = &self.core;
        let forgotten: Vec<Arc<Namespace>> = match which {
            ResetScope::One(digest) => core.namespaces.get(digest).into_iter().collect(),
            ResetScope::All => core.namespaces.list().into_iter().map(|(namespace, _)| namespace).collect(),
        };
        let forgot = |namespace: &Namespace, chunk| core.note(namespace.digest, chunk, Left::Reset);
        let early = planted(Planted::SweptBeforeTheEpoch).then(|| core.index.drop_stale(&forgot));
        // From here on nothing of the old epoch is found or published; what is left is to free it.
        for namespace in &forgotten {
            let found = || core.namespaces.get(namespace.digest);
            core.index.begin_epoch(namespace, || found().is_some_and(|found| Arc::ptr_eq(&found, namespace)));
        }
        let dropped = early.unwrap_or_else(|| core.index.drop_stale(&forgot));
        core.reservations.end(&dropped.fenced, Reason::NamespaceReset);
        let answer = ResetAnswer {
            dropped_chunks: dropped.ready_chunks,
            fenced_reservations: dropped.fenced.len() as u64,
        };
        tracing::info!(?which, ?answer, "reset");
        answer
    }

    /// Ends leases and pending versions whose time is up. Nothing depends on how often this is called but how
    /// soon memory comes back: uses check the time themselves.
    pub fn sweep(&self) {
        self.core.sweep(self.core.clock.now());
    }

    /// From now on new sessions and reservations are refused; everything else goes on.
    pub fn begin_drain(&self) {
        self.core.draining.store(true, Ordering::Release);
    }

    /// The stop was called off: everything is as before [`Engine::begin_drain`].
    pub(crate) fn end_drain(&self) {
        self.core.draining.store(false, Ordering::Release);
    }

    /// Lets no file be read into the arena any more. It may wait for seconds. False, and all is as before, if such a read
    /// hangs: then the arena cannot be given away.
    pub(crate) fn shut_reads(&self) -> bool {
        self.core.arena.shut_reads()
    }

    /// As a read of a file into the arena that is under way while this lives.
    #[cfg(test)]
    pub(crate) fn reading(&self) -> Option<impl Drop + '_> {
        self.core.arena.reading()
    }

    /// The arena is not given away after all.
    pub(crate) fn open_reads(&self) {
        self.core.arena.open_reads();
    }

    /// Ends every session, opens no other, and gives the arena's file away with its lock. When this returns, nothing is
    /// promised to anybody any more and nothing is written to the file, whatever calls are still under way: a store
    /// that was answered is in it, and one that was not is refused with [`Reason::Draining`].
    pub(crate) fn give_away(&self) -> std::io::Result<File> {
        self.begin_drain();
        for session in self.core.sessions.shut() {
            self.close_session(session);
        }
        self.core.arena.give_away()
    }

    /// Whether the arena is another process's now.
    pub(crate) fn is_given_away(&self) -> bool {
        self.core.arena.is_given_away()
    }

    /// Counts a refusal that a transport made before anything got here.
    pub fn count_refusal(&self, reason: Reason) {
        self.core.refusals.count(reason);
    }

    /// This moment's numbers.
    pub fn stats(&self) -> Stats {
        let core = &self.core;
        let (leases, pins) = core.leases.counts();
        let pool = core.arena.pool();
        let namespaces = core.namespaces.list();
        let domains = core.domains(&namespaces);
        Stats {
            arena_bytes: pool.capacity_bytes(),
            arena_used_bytes: pool.used_bytes(),
            arena_largest_free_bytes: pool.largest_free_bytes(),
            arena_place: core.arena.place().to_owned(),
            sessions: core.sessions.len() as u64,
            leases,
            pins,
            reservations: core.reservations.len(),
            inflight_bytes: core.inflight.used_bytes(),
            staging_bytes: core.staging.used_bytes(),
            expired_leases: core.leases.expired_count(),
            expired_reservations: core.reservations.expired_count(),
            scrubbed_bytes: core.scrub.scrubbed_bytes.load(Ordering::Relaxed),
            quarantined_chunks: core.scrub.quarantined_chunks.load(Ordering::Relaxed),
            eviction_ages_seconds: core.index.evicted_ages(),
            domains,
            namespaces: namespaces.into_iter().map(|(namespace, name)| namespace.stats(name)).collect(),
            refusals: core.refusals.list(),
        }
    }

    /// Recounts everything from scratch and compares it with what is counted as it happens: used and free
    /// bytes, pins and leases, pending parts and reservations, budgets, namespaces. For tests and debugging:
    /// it reads every entry, and is exact only while nobody else uses the engine.
    pub fn audit(&self) -> Result<Audit, String> {
        audit::recount(&self.core)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // What goes now goes with the process, not from the arena.
        self.arena.catalogue().freeze();
    }
}

impl Core {
    /// Runs a call and counts its refusal.
    fn counted<T>(&self, call: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        call().inspect_err(|refusal| self.refusals.count(refusal.reason))
    }

    fn refuse_when_draining(&self) -> Result<(), Refusal> {
        if self.draining.load(Ordering::Acquire) {
            return Err(draining());
        }
        Ok(())
    }

    fn refuse_large_batch(&self, items: usize) -> Result<(), Refusal> {
        let max = self.config.max_batch_chunks;
        if items > max {
            return Err(Refusal::new(
                Reason::TooLarge,
                format!("a batch of {items} items"),
                format!("send at most {max} in one call"),
            ));
        }
        Ok(())
    }

    fn bound(
        &self,
        session: SessionId,
        namespace: NamespaceDigest,
    ) -> Result<(Arc<Session>, Arc<Namespace>), Refusal> {
        let session = self.sessions.get(session)?;
        let namespace = session.namespace(namespace)?;
        Ok((session, namespace))
    }

    fn sweep(&self, now: Instant) {
        self.index.tell_time(now.saturating_duration_since(self.begun));
        self.leases.expire(now);
        loop {
            let mut deadlines = self.deadlines.lock();
            let Some(over) = deadlines.front().copied().filter(|front| front.at <= now) else { return };
            deadlines.pop_front();
            drop(deadlines);
            let Some(expired) = self.index.expire(over.place, over.first, now) else { continue };
            self.note(expired.namespace, expired.chunk, Left::Refused(Reason::ReservationExpired));
            self.reservations.end(&expired.holders, Reason::ReservationExpired);
        }
    }

    fn attach(&self, session: SessionId, bytes: u64) -> Result<Handover, Reason> {
        let session = self.sessions.get(session).map_err(|refusal| refusal.reason)?;
        if bytes > self.limits.load().max_staging_bytes {
            return Err(Reason::TooLarge);
        }
        let broken = |error: std::io::Error| {
            tracing::error!(session = %session.id, %error, "no descriptors for a session");
            match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOSPC | Errno::ENOMEM) => Reason::NoSpace,
                Some(Errno::EMFILE | Errno::ENFILE) => Reason::TooMany,
                _ => Reason::Internal,
            }
        };
        let staging = match (bytes, session.staging()) {
            (0, _) => None,
            (_, Some(same)) if same.bytes() == region_bytes(bytes) => Some(same),
            _ => {
                let domain = session.share.as_ref().map(|share| &share.staging);
                let staging = Staging::new(bytes, &self.staging, domain).map_err(|error| match error {
                    StagingError::OverBudget => Reason::NoSpace,
                    StagingError::OverQuota => Reason::OverQuota,
                    StagingError::Io(error) => broken(error),
                })?;
                let staging = Arc::new(staging);
                session.attach(Arc::clone(&staging))?;
                Some(staging)
            }
        };
        Ok(Handover {
            arena: self.arena.read_only_fd().map_err(broken)?,
            arena_bytes: self.arena.file_bytes(),
            staging_bytes: staging.as_ref().map_or(0, |staging| staging.bytes()),
            staging: staging.map(|staging| staging.fd()).transpose().map_err(broken)?,
        })
    }
}

impl Namespace {
    fn stats(&self, pinned_name: Option<String>) -> NamespaceStats {
        let counters = &self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        let (hits, pendings) = (read(&counters.hits), read(&counters.pendings));
        let misses = counters.misses.list();
        NamespaceStats {
            digest: self.digest,
            descriptor: self.descriptor.clone(),
            pinned_name,
            ready_chunks: read(&counters.ready_chunks),
            pending_chunks: read(&counters.pending_chunks),
            ready_bytes: read(&counters.ready_bytes),
            lookups: hits + pendings + misses.iter().map(|(_, count)| count).sum::<u64>(),
            hits,
            pendings,
            misses,
            stored_bytes: read(&counters.stored_bytes),
            evicted_chunks: read(&counters.evicted_chunks),
        }
    }
}

/// A chunk is in flight as a whole before it is READY: one that is larger than what its domain may have in flight would be
/// refused at every store, one after another.
fn fits_share(descriptor: &Descriptor, share: &Share) -> Result<(), Refusal> {
    let largest = descriptor.groups.iter().map(Group::chunk_bytes).max().unwrap_or(0);
    let most = share.inflight.limit_bytes();
    if largest <= most {
        return Ok(());
    }
    Err(Refusal::new(
        Reason::TooLarge,
        format!("a namespace with chunks of {largest} bytes, of whose domain {most} may be in flight"),
        "choose smaller chunks (tokens_per_chunk), or have the operator raise inflight_bytes in the tenant's quota",
    ))
}
