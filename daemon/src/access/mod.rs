//! Who may do what: identities from connections and tokens, the policy that gives them rights, and the refusals.
//!
//! ```text
//! connection (peer) + token > policy > Identity { caller, tenant, rights } > rpc asks before it asks the engine
//! ```
//!
//! Without a policy file there is one tenant: callers over the Unix socket may do everything (its file mode says who they
//! are), callers over TCP may read and write, and reset what they use; statistics and resets of everything are the Unix
//! socket's alone.

mod audit;
pub(crate) mod conn;
pub(crate) mod peer;
pub(crate) mod policy;
mod rate;
mod tenant;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use nix::unistd::geteuid;
use tender_proto::{NamespaceDigest, Reason, Refusal};

use crate::session::{Attach, Owner, Whose};
use audit::{Audit, Line};
use peer::{Caller, Peer};
use policy::{DomainQuota, Identity as Written, PolicyError, PolicyFile, Rights, TenantSpec};
pub(crate) use tenant::Tenant;
use tenant::Usage;

/// Decides for every call, by the policy of the moment.
#[derive(Debug)]
pub(crate) struct Access {
    path: Option<PathBuf>,
    policy: ArcSwap<Policy>,
    audit: Audit,
}

/// A policy in force.
#[derive(Debug)]
struct Policy {
    /// Where there is no file, the one tenant of everybody.
    open: Option<Arc<Tenant>>,
    tenants: Vec<Arc<Tenant>>,
    by_caller: HashMap<Caller, Arc<Tenant>>,
    any_uid: Option<Arc<Tenant>>,
    tokens: Vec<(blake3::Hash, Arc<Tenant>)>,
    /// Root and the daemon's own user, who could read everything anyway: they may make admin calls.
    operators: Arc<Tenant>,
}

/// One tenant, for operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TenantFacts {
    pub(crate) name: String,
    pub(crate) domain: String,
    /// 0: no limit.
    pub(crate) max_bytes: u64,
    pub(crate) refusals: u64,
}

/// Who makes a call, and what it may do on every namespace.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) caller: Caller,
    pub(crate) tenant: Arc<Tenant>,
    general: Rights,
    attach: Attach,
}

impl Identity {
    /// What its sessions belong to.
    pub(crate) fn owner(&self) -> Owner {
        let domain = Arc::clone(&self.tenant.spec.domain);
        let tenant = Arc::clone(&self.tenant.spec.name);
        Owner { whose: Whose::Client, caller: self.caller.clone(), domain, attach: self.attach, tenant }
    }
    pub(crate) fn domain(&self) -> &Arc<str> {
        &self.tenant.spec.domain
    }
    /// On a namespace, `digest` being the one that clients compute.
    pub(crate) fn rights_on(&self, model: &str, digest: NamespaceDigest) -> Rights {
        self.tenant.rights_on(self.general, model, digest)
    }
    /// What it may do on all namespaces.
    pub(crate) fn general(&self) -> Rights {
        self.general
    }
    /// Whether it may store or read something in a namespace that may exist.
    pub(crate) fn may_anywhere(&self) -> bool {
        let Rights { read, write, peer, admin: _ } = self.general;
        read || write || peer || !self.tenant.is_uniform()
    }
    /// Whether [`Identity::general`] says all.
    pub(crate) fn is_uniform(&self) -> bool {
        self.tenant.is_uniform()
    }
}

impl Policy {
    /// Without a file.
    fn open() -> Self {
        let everybody = tenant(nobody("default", ""), None);
        Self { open: Some(everybody), ..Self::of(PolicyFile::default(), None) }
    }

    /// Of a file; tenants of the policy before keep what they have used.
    fn of(file: PolicyFile, before: Option<&Self>) -> Self {
        let known = before.map_or(&[][..], |before| &before.tenants);
        let mut policy = Self {
            open: None,
            tenants: Vec::new(),
            by_caller: HashMap::new(),
            any_uid: None,
            tokens: Vec::new(),
            operators: tenant(nobody("operators", ""), None),
        };
        for spec in file.tenants {
            let usage = known.iter().find(|tenant| tenant.spec.name == spec.name);
            let tenant = tenant(spec, usage.map(|tenant| Arc::clone(&tenant.usage)));
            for identity in &tenant.spec.identities {
                match identity {
                    Written::AnyUid => policy.any_uid = Some(Arc::clone(&tenant)),
                    Written::One(Caller::Token(digest)) => policy.tokens.push((*digest, Arc::clone(&tenant))),
                    Written::One(caller) => _ = policy.by_caller.insert(caller.clone(), Arc::clone(&tenant)),
                }
            }
            policy.tenants.push(tenant);
        }
        policy
    }

    /// Whether this is a tenant of this very policy: each time it is read, all are made anew.
    fn knows(&self, tenant: &Arc<Tenant>) -> bool {
        let all = self.open.iter().chain(&self.tenants).chain(std::iter::once(&self.operators));
        all.into_iter().any(|own| Arc::ptr_eq(own, tenant))
    }

    fn identify(&self, peer: Option<&Peer>, token: Option<&str>) -> Result<Identity, &'static str> {
        let local_uid = match peer {
            Some(Peer::Local(Some(cred))) => Some(cred.uid()),
            _ => None,
        };
        if let Some(everybody) = &self.open {
            let (general, attach) = match peer {
                None | Some(Peer::Local(_)) => (Rights::ALL, local_uid.map_or(Attach::Anyone, Attach::Uid)),
                Some(
                    Peer::Plain(_) | Peer::Tls { certificate: Some(_), .. } | Peer::Tls { unasked: true, .. },
                ) => (Rights::DATA, Attach::Nobody),
                Some(Peer::Tls { .. }) => {
                    return Err("it shows no certificate, and there is no policy with tokens");
                }
            };
            let caller = peer.map_or(Caller::Anonymous, Peer::caller);
            return Ok(Identity { caller, tenant: Arc::clone(everybody), general, attach });
        }
        let (caller, tenant) = self.find(peer, token, local_uid)?;
        let attach = match local_uid {
            Some(uid) if tenant.spec.shared_memory => Attach::Uid(uid),
            _ => Attach::Nobody,
        };
        let operator = local_uid.is_some_and(|uid| uid == 0 || uid == geteuid().as_raw());
        let mut general = tenant.spec.everywhere;
        general.admin |= operator;
        Ok(Identity { caller, tenant, general, attach })
    }

    fn find(
        &self,
        peer: Option<&Peer>,
        token: Option<&str>,
        local_uid: Option<u32>,
    ) -> Result<(Caller, Arc<Tenant>), &'static str> {
        if let Some(token) = token {
            if peer.is_some_and(Peer::is_in_the_clear) {
                return Err("its token came over plain TCP, where anybody could have read it");
            }
            let shown = blake3::hash(token.as_bytes());
            // Digests compare in constant time, and all are compared.
            let mut found = None;
            for known in &self.tokens {
                if known.0 == shown {
                    found = Some(known);
                }
            }
            return found
                .map(|(digest, tenant)| (Caller::Token(*digest), Arc::clone(tenant)))
                .ok_or("its token is in no tenant's identities");
        }
        let mut names = match peer {
            Some(Peer::Tls { certificate: Some(certificate), .. }) => certificate.callers(),
            peer => vec![peer.map_or(Caller::Anonymous, Peer::caller)],
        };
        names.retain(|name| self.by_caller.contains_key(name));
        let mut found = names.into_iter().filter_map(|name| {
            let tenant = Arc::clone(self.by_caller.get(&name)?);
            Some((name, tenant))
        });
        if let Some((name, tenant)) = found.next() {
            let ambiguous = found.any(|(_, other)| other.spec.name != tenant.spec.name);
            return if ambiguous {
                Err("its certificate has names of two tenants")
            } else {
                Ok((name, tenant))
            };
        }
        match (local_uid, &self.any_uid) {
            (Some(uid), Some(tenant)) => Ok((Caller::Uid(uid), Arc::clone(tenant))),
            (Some(uid), None) if uid == 0 || uid == geteuid().as_raw() => {
                Ok((Caller::Uid(uid), Arc::clone(&self.operators)))
            }
            _ => Err("it is in no tenant's identities"),
        }
    }
}

fn tenant(spec: TenantSpec, usage: Option<Arc<Usage>>) -> Arc<Tenant> {
    Arc::new(Tenant { rights_id: rand::random(), spec, usage: usage.unwrap_or_else(Usage::new) })
}

/// A tenant without rights of its own.
fn nobody(name: &str, domain: &str) -> TenantSpec {
    TenantSpec {
        name: name.into(),
        domain: domain.into(),
        identities: Vec::new(),
        everywhere: Rights::NONE,
        namespaces: Vec::new(),
        shared_memory: false,
        quota: DomainQuota::default(),
        store_rate_bytes: 0,
        read_rate_bytes: 0,
    }
}

impl Access {
    /// Reads the policy, if there is a file for it.
    pub(crate) fn load(path: Option<PathBuf>) -> Result<Self, PolicyError> {
        let policy = match &path {
            Some(path) => Policy::of(PolicyFile::read(path)?, None),
            None => Policy::open(),
        };
        Ok(Self { path, policy: ArcSwap::from_pointee(policy), audit: Audit::default() })
    }

    /// Without a policy file.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn open() -> Self {
        Self { path: None, policy: ArcSwap::from_pointee(Policy::open()), audit: Audit::default() }
    }

    /// Whether the policy is still the one by which this was found out.
    pub(crate) fn is_current(&self, identity: &Identity) -> bool {
        self.policy.load().knows(&identity.tenant)
    }

    /// Where the policy comes from.
    pub(crate) fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// Reads the file again. One that cannot be used changes nothing.
    pub(crate) fn reload(&self) -> Result<(), PolicyError> {
        let Some(path) = &self.path else { return Ok(()) };
        let file = PolicyFile::read(path)?;
        let policy = Policy::of(file, Some(&self.policy.load()));
        self.policy.store(Arc::new(policy));
        Ok(())
    }

    /// What each domain may hold, and have at one time.
    pub(crate) fn quotas(&self) -> HashMap<Arc<str>, DomainQuota> {
        let policy = self.policy.load();
        let limited = policy.tenants.iter().filter(|tenant| tenant.spec.quota != DomainQuota::default());
        limited.map(|tenant| (Arc::clone(&tenant.spec.domain), tenant.spec.quota)).collect()
    }

    /// Whether there is no policy: then nobody may name a domain, also not to read what one had stored under a policy.
    pub(crate) fn is_open(&self) -> bool {
        self.policy.load().open.is_some()
    }

    /// Who makes a call. `peer` is `None` for what no connection brought.
    pub(crate) fn identify(
        &self,
        call: &'static str,
        peer: Option<&Peer>,
        token: Option<&str>,
    ) -> Result<Identity, Refusal> {
        let identified = self.policy.load().identify(peer, token);
        identified.map_err(|why| {
            let caller = peer.map_or_else(|| Caller::Anonymous.to_string(), ToString::to_string);
            self.audit.write(&Line { caller: &caller, tenant: "-", call, reason: Reason::NotAllowed, why });
            not_allowed()
        })
    }

    /// Refuses a call of somebody who is known.
    pub(crate) fn deny(&self, call: &'static str, identity: &Identity, why: &str) -> Refusal {
        self.note(call, identity, Reason::NotAllowed, why);
        not_allowed()
    }

    /// Counts and logs a refusal that is made elsewhere.
    pub(crate) fn note(&self, call: &'static str, identity: &Identity, reason: Reason, why: &str) {
        self.note_owner(call, &identity.owner(), reason, why);
    }

    /// The same about a session's owner, where no call says who it is.
    pub(crate) fn note_owner(&self, call: &'static str, owner: &Owner, reason: Reason, why: &str) {
        let (caller, tenant) = (owner.caller.to_string(), &owner.tenant);
        self.audit.write(&Line { caller: &caller, tenant, call, reason, why });
    }

    /// The tenants of the policy, for operators.
    pub(crate) fn tenants(&self) -> Vec<TenantFacts> {
        let refusals = self.refusals();
        let one = |tenant: &Arc<Tenant>| {
            let name = tenant.spec.name.to_string();
            let own = refusals.iter().filter(|(of, ..)| *of == name);
            TenantFacts {
                domain: tenant.spec.domain.to_string(),
                max_bytes: tenant.spec.quota.bytes,
                refusals: own.map(|(_, _, count)| count).sum(),
                name,
            }
        };
        self.policy.load().tenants.iter().map(one).collect()
    }

    /// Refusals by tenant and reason.
    pub(crate) fn refusals(&self) -> Vec<(String, Reason, u64)> {
        self.audit.counts()
    }
}

/// The one answer to whoever may not do something. It names nothing: neither what exists nor what a policy says.
fn not_allowed() -> Refusal {
    Refusal::new(
        Reason::NotAllowed,
        "the call",
        "this caller's identity does not have the right to it; the daemon's operator finds it in the audit log",
    )
}

#[cfg(test)]
mod tests;
