//! Who makes a call, whether the session is theirs, and whether they may.

use std::sync::Arc;

use http::Extensions;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
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
pub(super) struct Shown {
    peer: Option<Arc<Peer>>,
    /// Never shown in turn.
    header: Option<Vec<u8>>,
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Shown").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Shown {
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        let header = request.metadata().get("authorization").map(|value| value.as_encoded_bytes().to_vec());
        Self { peer: request.extensions().get::<Arc<Peer>>().cloned(), header }
    }

    /// Who that is by the policy of now.
    pub(super) fn identify(&self, shared: &Shared, call: &'static str) -> Result<Identity, Status> {
        shared.identify_as(call, self.header.as_deref(), self.peer.as_ref())
    }
}

impl Shared {
    /// The caller of a request. `entry` has found out before the message was read.
    pub(super) fn identify<T>(&self, call: &'static str, request: &Request<T>) -> Result<Identity, Status> {
        // A message may come long after its headers: rights that were taken back meanwhile are gone.
        if let Some(known) =
            request.extensions().get::<Identity>().filter(|known| self.access.is_current(known))
        {
            return Ok(known.clone());
        }
        let header = request.metadata().get("authorization").map(|value| value.as_encoded_bytes());
        self.identify_as(call, header, request.extensions().get::<Arc<Peer>>())
    }

    /// The same from what comes before the message.
    pub(super) fn identify_by(
        &self,
        call: &'static str,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Identity, Status> {
        let header = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        self.identify_as(call, header, extensions.get::<Arc<Peer>>())
    }

    /// By the connection and the token.
    fn identify_as(
        &self,
        call: &'static str,
        header: Option<&[u8]>,
        peer: Option<&Arc<Peer>>,
    ) -> Result<Identity, Status> {
        // What is no bearer token is a token that nobody has.
        let token = header.map(|value| {
            std::str::from_utf8(value).ok().and_then(|text| text.strip_prefix("Bearer ")).unwrap_or_default()
        });
        let identity = self.access.identify(call, peer.map(Arc::as_ref), token);
        let identity = identity.map_err(|no| self.refuse_here(call, no))?;
        self.fair.note(identity.tenant.usage.number);
        Ok(identity)
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
