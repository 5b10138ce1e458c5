//! Who makes a call, whether the session is theirs, and whether they may.

use std::sync::Arc;

use tender_proto::{Descriptor, NamespaceDigest, Refusal, SessionId};
use tonic::{Request, Status};

use super::Shared;
use crate::access::Identity;
use crate::access::peer::Peer;
use crate::access::policy::Rights;

/// What a call wants to do on a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    Read,
    Write,
}

impl Want {
    fn of(self, rights: Rights) -> bool {
        match self {
            Self::Read => rights.read,
            Self::Write => rights.write,
        }
    }
}

/// What a request shows of who makes it. A stream keeps it, to be asked again under another policy.
#[derive(Debug)]
pub(super) struct Shown {
    peer: Option<Arc<Peer>>,
    token: Option<String>,
}

impl Shown {
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        let header = request.metadata().get("authorization");
        // What is no bearer token is a token that nobody has.
        let token = header.map(|value| {
            value.to_str().ok().and_then(|text| text.strip_prefix("Bearer ")).unwrap_or_default().to_owned()
        });
        Self { peer: request.extensions().get::<Arc<Peer>>().cloned(), token }
    }

    /// Who that is by the policy of now.
    pub(super) fn identify(&self, shared: &Shared, call: &'static str) -> Result<Identity, Status> {
        let identity = shared.access.identify(call, self.peer.as_deref(), self.token.as_deref());
        let identity = identity.map_err(|no| shared.refuse_here(call, no))?;
        shared.fair.note(identity.tenant.usage.number);
        Ok(identity)
    }
}

impl Shared {
    /// The caller of a request, by its connection and its token.
    pub(super) fn identify<T>(&self, call: &'static str, request: &Request<T>) -> Result<Identity, Status> {
        Shown::of(request).identify(self, call)
    }

    /// The same for a call that only other daemons make.
    pub(super) fn identify_peer<T>(
        &self,
        call: &'static str,
        request: &Request<T>,
    ) -> Result<Identity, Status> {
        let identity = self.identify(call, request)?;
        if identity.general().peer {
            return Ok(identity);
        }
        let no = self.access.deny(call, &identity, "it has not the rights of another daemon");
        Err(self.refuse_here(call, no))
    }

    /// A session that this caller has opened.
    pub(super) fn session_of(&self, identity: &Identity, raw: &[u8]) -> Result<SessionId, Refusal> {
        let session = SessionId::parse(raw)?;
        self.engine.check_owner(session, &identity.owner())?;
        Ok(session)
    }

    /// Refuses what the caller may not do on a namespace of its session.
    pub(super) fn check_right(
        &self,
        call: &'static str,
        identity: &Identity,
        want: Want,
        session: SessionId,
        namespace: NamespaceDigest,
    ) -> Result<(), Refusal> {
        if want.of(identity.general()) {
            return Ok(());
        }
        if !identity.is_uniform() {
            let (_, model) = self.engine.resolve(session, namespace)?;
            if want.of(identity.rights_on(&model, namespace)) {
                return Ok(());
            }
        }
        let no = self.access.deny(call, identity, "its rights on the namespace do not suffice");
        self.engine.count_refusal(no.reason);
        Err(no)
    }

    /// Refuses a descriptor that the caller has nothing to do with, whether the namespace exists or not.
    pub(super) fn check_descriptor(
        &self,
        identity: &Identity,
        descriptor: &Descriptor,
        digest: NamespaceDigest,
    ) -> Result<(), Refusal> {
        let rights = identity.rights_on(&descriptor.model, digest);
        if !descriptor.domain.is_empty() && (!rights.peer || self.access.is_open()) {
            return Err(self.access.deny("register", identity, "it names a domain, and is no other daemon"));
        }
        if !rights.read && !rights.write {
            return Err(self.access.deny("register", identity, "it has no rights on the namespace"));
        }
        Ok(())
    }
}
