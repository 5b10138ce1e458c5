//! The namespaces that sessions have registered, their descriptors, epochs and counters.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hashbrown::HashMap;
use tender_proto::limits::MAX_NAME_BYTES;
use tender_proto::{Descriptor, NamespaceDigest, Reason, Refusal};

use crate::admission::Budget;
use crate::arena::catalogue::{Catalogue, NamespaceEntry, OldNamespace};
use crate::counters::ReasonCounts;
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Where a namespace's epochs begin: anywhere but 0, which stands for none. A namespace whose record was lost or that was
/// forgotten begins anew, and must not come into an epoch that it had before: bytes that were gathered then would get in.
fn first_epoch() -> u32 {
    rand::random::<u32>() >> 1 | 1
}

/// Names that one namespace may have at one time.
const MAX_NAMES: usize = 8;

/// What a namespace is called and stands for, also when it was forgotten: what is kept for long holds this, since a
/// [`Namespace`] keeps its place in the arena's catalogue.
#[derive(Debug)]
pub(crate) struct Named {
    /// As the namespace's.
    pub(crate) index: u32,
    /// As the namespace's.
    pub(crate) descriptor: Descriptor,
    /// How long it is when it is told.
    pub(crate) descriptor_bytes: usize,
}

/// A domain, as long as it has a namespace; also the empty one, of namespaces without a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct DomainIndex(u32);

/// One registered namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    /// Never used for another one, even after this one was forgotten.
    pub(crate) index: u32,
    /// Whose it is.
    pub(crate) domain: DomainIndex,
    /// Its name.
    pub(crate) digest: NamespaceDigest,
    /// What the name stands for.
    pub(crate) descriptor: Descriptor,
    /// The same for those who keep it for long.
    pub(crate) named: Arc<Named>,
    /// Raised by each reset. What was reserved in an earlier epoch can neither become nor stay READY.
    epoch: AtomicU32,
    /// Its place in the arena's catalogue, if there was room: without, nothing of it outlives the daemon.
    pub(crate) entry: Option<NamespaceEntry>,
    /// Sessions that have registered it.
    bound_sessions: AtomicU32,
    /// Bytes of its parts that are reserved or wait for others of their chunk; without a limit of its own.
    pub(crate) inflight: Arc<Budget>,
    /// What is stored in it and was asked of it.
    pub(crate) counters: NamespaceCounters,
}

/// Kept by the index and the engine as things happen; an audit recounts the first three.
#[derive(Debug, Default)]
pub(crate) struct NamespaceCounters {
    pub(crate) ready_chunks: AtomicU64,
    pub(crate) ready_bytes: AtomicU64,
    pub(crate) pending_chunks: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) pendings: AtomicU64,
    pub(crate) misses: ReasonCounts,
    pub(crate) stored_bytes: AtomicU64,
    pub(crate) evicted_chunks: AtomicU64,
}

impl Namespace {
    fn new(
        index: u32,
        domain: DomainIndex,
        descriptor: Descriptor,
        epoch: u32,
        entry: Option<NamespaceEntry>,
    ) -> Self {
        let descriptor_bytes = descriptor.encode().len();
        Self {
            index,
            domain,
            digest: descriptor.digest(),
            named: Arc::new(Named { index, descriptor: descriptor.clone(), descriptor_bytes }),
            descriptor,
            epoch: AtomicU32::new(epoch),
            entry,
            bound_sessions: AtomicU32::new(0),
            inflight: Budget::new(u64::MAX),
            counters: NamespaceCounters::default(),
        }
    }
    /// The current epoch.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }
    /// Begins a new epoch and returns it.
    pub(crate) fn begin_epoch(&self) -> u32 {
        let begin = || self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        match &self.entry {
            Some(entry) => entry.begin_epoch(begin),
            None => begin(),
        }
    }
    /// A session that had bound it has ended.
    pub(crate) fn unbind(&self) {
        self.bound_sessions.fetch_sub(1, Ordering::AcqRel);
    }
    /// Nobody uses it and nothing is stored under it.
    fn is_idle(&self) -> bool {
        self.bound_sessions.load(Ordering::Acquire) == 0
            && self.counters.ready_chunks.load(Ordering::Acquire) == 0
            && self.counters.pending_chunks.load(Ordering::Acquire) == 0
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Namespaces {
    catalogue: Arc<Catalogue>,
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    max: usize,
    next_index: u32,
    by_digest: HashMap<NamespaceDigest, Arc<Namespace>>,
    /// Names belong to a domain: what others have named is nobody's business.
    by_name: HashMap<(String, String), NamespaceDigest>,
}

impl Namespaces {
    pub(crate) fn new(max: usize, catalogue: Arc<Catalogue>) -> Self {
        Self { catalogue, inner: RwLock::new(Inner { max, ..Inner::default() }) }
    }
    /// For namespaces that are registered from now on.
    pub(crate) fn set_limit(&self, max: usize) {
        self.inner.write().max = max;
    }

    /// Makes a namespace known that an earlier daemon had.
    pub(crate) fn restore(&self, old: OldNamespace) -> Arc<Namespace> {
        self.inner.write().insert(old.descriptor, old.epoch, Some(old.entry))
    }

    /// Makes a namespace known, or finds it, and counts one more session bound to it unless `bound` says that
    /// this session is counted already. `claimed` is what the client computed, without a domain; the namespace is that
    /// of `domain`.
    pub(crate) fn register(
        &self,
        descriptor: Descriptor,
        domain: &str,
        claimed: NamespaceDigest,
        pinned_name: Option<&str>,
        bound: impl FnOnce(&Arc<Namespace>) -> Result<bool, Refusal>,
    ) -> Result<NamespaceDigest, Refusal> {
        descriptor.check()?;
        let digest = descriptor.digest();
        if digest != claimed {
            return Err(Refusal::new(
                Reason::NamespaceConflict,
                format!("the namespace {claimed} with a descriptor whose digest is {digest}"),
                "client and daemon encode the descriptor differently, or its geometry has changed under the same \
                 digest: use the same version of both, and one namespace for each geometry",
            ));
        }
        // One that names a domain was made by this daemon or another one, which may.
        let domain = if descriptor.domain.is_empty() { domain } else { "" };
        let descriptor = if domain.is_empty() { descriptor } else { descriptor.in_domain(domain) };
        let digest = if domain.is_empty() { digest } else { descriptor.digest() };
        let pinned_name = pinned_name.map(|name| (descriptor.domain.clone(), name.to_owned()));
        if let Some((_, name)) = pinned_name.as_ref().filter(|(_, name)| name.len() > MAX_NAME_BYTES) {
            let subject = format!("a name of {} bytes for a namespace", name.len());
            return Err(Refusal::new(Reason::Malformed, subject, format!("use at most {MAX_NAME_BYTES}")));
        }
        let mut inner = self.inner.write();
        let named = |digest| inner.by_name.values().filter(|&&other| other == digest).count();
        if let Some(name) = &pinned_name
            && !inner.by_name.contains_key(name)
            && named(digest) >= MAX_NAMES
        {
            let subject = format!("one name more than {MAX_NAMES} for the namespace {claimed}");
            return Err(Refusal::new(Reason::TooMany, subject, "use one of those that it has"));
        }
        if let Some(name) = &pinned_name
            && let Some(other) = inner.by_name.get(name).filter(|&&other| other != digest)
        {
            return Err(Refusal::new(
                Reason::NamespaceConflict,
                format!("the name '{}' for the namespace {digest}", name.1.escape_debug()),
                format!(
                    "it is bound to {other}: choose another name, or give both engines the same geometry"
                ),
            ));
        }
        let namespace = match inner.by_digest.get(&digest) {
            Some(known) => Arc::clone(known),
            None => inner.add(&self.catalogue, descriptor)?,
        };
        // Under the lock, so that a namespace is never forgotten between being found and being bound.
        if bound(&namespace)? {
            namespace.bound_sessions.fetch_add(1, Ordering::AcqRel);
        }
        if let Some(name) = pinned_name {
            inner.by_name.insert(name, digest);
        }
        Ok(digest)
    }

    /// One of them.
    pub(crate) fn get(&self, digest: NamespaceDigest) -> Option<Arc<Namespace>> {
        self.inner.read().by_digest.get(&digest).cloned()
    }
    /// Those of one domain.
    pub(crate) fn in_domain(&self, domain: &str) -> Vec<Arc<Namespace>> {
        let inner = self.inner.read();
        inner.by_digest.values().filter(|namespace| namespace.descriptor.domain == domain).cloned().collect()
    }
    /// All of them in the order of their registration, with the operator's names.
    pub(crate) fn list(&self) -> Vec<(Arc<Namespace>, Option<String>)> {
        let inner = self.inner.read();
        let name_of =
            |digest| inner.by_name.iter().find(|&(_, &d)| d == digest).map(|((_, name), _)| name.clone());
        let mut all: Vec<_> =
            inner.by_digest.values().map(|ns| (Arc::clone(ns), name_of(ns.digest))).collect();
        all.sort_unstable_by_key(|(namespace, _)| namespace.index);
        all
    }
}

impl Inner {
    fn add(&mut self, catalogue: &Catalogue, descriptor: Descriptor) -> Result<Arc<Namespace>, Refusal> {
        let max = self.max;
        if self.by_digest.len() >= max {
            self.forget_one_idle();
        }
        if self.by_digest.len() >= max {
            return Err(Refusal::new(
                Reason::TooMany,
                format!("one namespace more than {max}"),
                "let the engines of another model end, reset its namespace, or raise the daemon's limit",
            ));
        }
        let epoch = first_epoch();
        let entry = catalogue.add_namespace(&descriptor, epoch);
        Ok(self.insert(descriptor, epoch, entry))
    }

    fn insert(
        &mut self,
        descriptor: Descriptor,
        epoch: u32,
        entry: Option<NamespaceEntry>,
    ) -> Arc<Namespace> {
        let same = self.by_digest.values().find(|other| other.descriptor.domain == descriptor.domain);
        // A domain is called by the index of its first namespace.
        let domain = same.map_or(DomainIndex(self.next_index), |other| other.domain);
        let namespace = Arc::new(Namespace::new(self.next_index, domain, descriptor, epoch, entry));
        self.next_index += 1;
        self.by_digest.insert(namespace.digest, Arc::clone(&namespace));
        namespace
    }

    fn forget_one_idle(&mut self) {
        let idle = self.by_digest.values().filter(|ns| ns.is_idle()).min_by_key(|ns| ns.index);
        if let Some(digest) = idle.map(|ns| ns.digest) {
            self.by_digest.remove(&digest);
            self.by_name.retain(|_, named| *named != digest);
        }
    }
}
