//! The policy file: which identities belong to which tenant, what each tenant may do where, and how much.
//!
//! Everything is parsed to a checked type once, here, and every refusal says file, line and what would be right.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytesize::ByteSize;
use serde::Deserialize;
use tender_proto::NamespaceDigest;
use toml::Spanned;

use super::peer::Caller;

/// A checked policy file.
#[derive(Debug, Default)]
pub(crate) struct PolicyFile {
    pub(crate) tenants: Vec<TenantSpec>,
}

/// One tenant as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TenantSpec {
    pub(crate) name: Arc<str>,
    /// Those who share this share what is stored.
    pub(crate) domain: Arc<str>,
    pub(crate) identities: Vec<Identity>,
    /// On every namespace.
    pub(crate) everywhere: Rights,
    /// On those that match; the rights of all that match add up.
    pub(crate) namespaces: Vec<NamespaceRule>,
    /// May map the arena, which holds what all tenants have stored.
    pub(crate) shared_memory: bool,
    pub(crate) quota: DomainQuota,
    /// Bytes per second to be stored; 0 for no limit.
    pub(crate) store_rate_bytes: u64,
    /// Bytes per second sent over the network; 0 for no limit.
    pub(crate) read_rate_bytes: u64,
}

/// What a tenant's domain may hold in the arena, and have at one time; 0 where nothing is stated.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct DomainQuota {
    /// Payload of chunks that are READY or being stored.
    pub(crate) bytes: u64,
    /// How many of them.
    pub(crate) chunks: u64,
    /// Open sessions.
    pub(crate) sessions: u64,
    /// Watchers of events.
    pub(crate) watchers: u64,
    /// Staging regions.
    pub(crate) staging_bytes: u64,
    /// Parts that are reserved, being written, or waiting for others of their chunk.
    pub(crate) inflight_bytes: u64,
}

/// What somebody may do.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Rights {
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Statistics of all, and resets of all.
    pub(crate) admin: bool,
    /// Another daemon: it may name the domain of a namespace.
    pub(crate) peer: bool,
}

impl Rights {
    pub(crate) const NONE: Self = Self { read: false, write: false, admin: false, peer: false };
    pub(crate) const ALL: Self = Self { read: true, write: true, admin: true, peer: true };
    pub(crate) const DATA: Self = Self { read: true, write: true, peer: true, ..Self::NONE };

    pub(crate) fn and(self, more: Self) -> Self {
        Self {
            read: self.read || more.read,
            write: self.write || more.write,
            admin: self.admin || more.admin,
            peer: self.peer || more.peer,
        }
    }
    fn of(allowed: &[Right]) -> Self {
        Self {
            read: allowed.contains(&Right::Read),
            write: allowed.contains(&Right::Write),
            admin: allowed.contains(&Right::Admin),
            peer: allowed.contains(&Right::Peer),
        }
    }
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Right {
    Read,
    Write,
    Admin,
    Peer,
}

/// Rights on some namespaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NamespaceRule {
    model: Pattern,
    /// First hexadecimal digits of the digest that clients compute; empty for all.
    digest: DigestPrefix,
    rights: Rights,
}

impl NamespaceRule {
    /// What it gives on this namespace.
    pub(crate) fn rights_on(&self, model: &str, digest: NamespaceDigest) -> Rights {
        let applies = self.model.matches(model) && digest.to_hex().starts_with(&self.digest.0);
        if applies { self.rights } else { Rights::NONE }
    }
}

/// Who somebody is, as written in a policy.
#[derive(Deserialize, Clone, PartialEq, Eq, Hash, Debug)]
#[serde(try_from = "String")]
pub(crate) enum Identity {
    /// This very one.
    One(Caller),
    /// Every local user.
    AnyUid,
}

impl TryFrom<String> for Identity {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let advice = || {
            format!(
                "'{}' is no identity: write uid:NUMBER, uid:*, spiffe://DOMAIN/PATH, uri:URI, dns:NAME, \
                 token-blake3:64 HEX DIGITS, or anonymous",
                text.escape_debug()
            )
        };
        let caller = match text.split_once(':') {
            None if text == "anonymous" => Caller::Anonymous,
            Some(("uid", "*")) => return Ok(Self::AnyUid),
            Some(("uid", number)) => Caller::Uid(number.parse().map_err(|_| advice())?),
            Some(("spiffe", path)) if path.len() > 2 && path.starts_with("//") => {
                Caller::Uri(text.as_str().into())
            }
            Some(("uri", uri)) if !uri.is_empty() => Caller::Uri(uri.into()),
            Some(("dns", name)) if !name.is_empty() && !name.contains(['*', ' ']) => {
                Caller::Dns(name.to_ascii_lowercase().into())
            }
            Some(("token-blake3", hex)) => Caller::Token(blake3::Hash::from_hex(hex).map_err(|_| advice())?),
            _ => return Err(advice()),
        };
        Ok(Self::One(caller))
    }
}

/// A name in which each `*` stands for any characters.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(try_from = "String")]
struct Pattern(String);

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() {
            Err("a pattern is not empty: write * for every model".into())
        } else {
            Ok(Self(text))
        }
    }
}

impl Pattern {
    fn any() -> Self {
        Self("*".into())
    }
    fn matches(&self, text: &str) -> bool {
        let mut pieces = self.0.split('*');
        let Some(mut rest) = pieces.next().and_then(|first| text.strip_prefix(first)) else { return false };
        let Some(last) = pieces.next_back() else { return rest.is_empty() };
        for piece in pieces {
            match rest.find(piece) {
                Some(at) => rest = &rest[at + piece.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

#[derive(Deserialize, Clone, PartialEq, Eq, Default, Debug)]
#[serde(try_from = "String")]
struct DigestPrefix(String);

impl TryFrom<String> for DigestPrefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.len() <= 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            Ok(Self(text))
        } else {
            Err(format!("'{}': write up to 64 hexadecimal digits in lower case", text.escape_debug()))
        }
    }
}

/// A tenant's or domain's name.
#[derive(Deserialize, Clone, PartialEq, Eq, Hash, Debug)]
#[serde(try_from = "String")]
struct Name(String);

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let good = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if good {
            Ok(Self(text))
        } else {
            Err(format!("'{}': use 1 to 64 letters, digits, dots, dashes, underscores", text.escape_debug()))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicy {
    #[serde(default)]
    tenant: Vec<RawTenant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTenant {
    name: Spanned<Name>,
    identities: Vec<Spanned<Identity>>,
    share: Option<Spanned<Name>>,
    #[serde(default)]
    allow: Vec<Right>,
    #[serde(default)]
    namespaces: Vec<RawRule>,
    #[serde(default)]
    shared_memory: bool,
    #[serde(default)]
    quota: RawQuota,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    #[serde(default = "Pattern::any")]
    model: Pattern,
    #[serde(default)]
    digest: DigestPrefix,
    allow: Vec<DataRight>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum DataRight {
    Read,
    Write,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawQuota {
    bytes: Option<Spanned<ByteSize>>,
    chunks: Option<Spanned<u64>>,
    sessions: Option<Spanned<u64>>,
    watchers: Option<Spanned<u64>>,
    staging_bytes: Option<Spanned<ByteSize>>,
    inflight_bytes: Option<Spanned<ByteSize>>,
    store_bytes_per_second: Option<Spanned<ByteSize>>,
    read_bytes_per_second: Option<Spanned<ByteSize>>,
}

/// Why a policy is not used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read the policy {}: {source}", path.display())]
    Unreadable {
        /// As given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An unknown key, or a value that means nothing.
    #[error("the policy {} is wrong: {source}", path.display())]
    Malformed {
        /// As given.
        path: PathBuf,
        /// Line, key and what is allowed there.
        source: Box<toml::de::Error>,
    },
    /// Values that do not go together.
    #[error("the policy {} is wrong at line {line}: {advice}", path.display())]
    Contradiction {
        /// As given.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong, and what would work.
        advice: String,
    },
}

impl PolicyFile {
    /// Reads and checks a file.
    pub(crate) fn read(path: &Path) -> Result<Self, PolicyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| PolicyError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    /// Checks a file's text; `path` is for its errors.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, PolicyError> {
        let raw: RawPolicy = toml::from_str(text)
            .map_err(|source| PolicyError::Malformed { path: path.to_owned(), source: Box::new(source) })?;
        check(raw).map_err(|Wrong { at, advice }| {
            let line = text.get(..at).unwrap_or(text).matches('\n').count() + 1;
            PolicyError::Contradiction { path: path.to_owned(), line, advice }
        })
    }
}

/// What is wrong at which byte of the text.
struct Wrong {
    at: usize,
    advice: String,
}

fn check(raw: RawPolicy) -> Result<PolicyFile, Wrong> {
    let (mut names, mut known) = (HashSet::new(), HashMap::new());
    let mut quotas: HashMap<Arc<str>, DomainQuota> = HashMap::new();
    let shares: HashSet<String> =
        raw.tenant.iter().filter_map(|t| t.share.as_ref()).map(|share| share.get_ref().0.clone()).collect();
    let mut tenants = Vec::new();
    for tenant in raw.tenant {
        let (at, name) = (tenant.name.span().start, tenant.name.get_ref().0.clone());
        let wrong = |advice: String| Err(Wrong { at, advice });
        if !names.insert(name.clone()) {
            return wrong(format!("there are two tenants '{name}': give each its own name"));
        }
        if tenant.share.is_none() && shares.contains(&name) {
            return wrong(format!(
                "'{name}' is also what others share: choose another name, or add share = \"{name}\""
            ));
        }
        if tenant.identities.is_empty() {
            return wrong(format!("the tenant '{name}' has no identities: name at least one"));
        }
        for identity in &tenant.identities {
            if let Some(other) = known.insert(identity.get_ref().clone(), name.clone()) {
                let advice = format!("this identity is one of '{other}' already: an identity has one tenant");
                return Err(Wrong { at: identity.span().start, advice });
            }
        }
        let spec = tenant_spec(tenant)?;
        if let Some(other) = quotas.insert(Arc::clone(&spec.domain), spec.quota)
            && other != spec.quota
        {
            return wrong(format!(
                "all who share '{}' have one quota together, but for rates: give each of them the same numbers",
                spec.domain
            ));
        }
        tenants.push(spec);
    }
    Ok(PolicyFile { tenants })
}

fn tenant_spec(raw: RawTenant) -> Result<TenantSpec, Wrong> {
    let above_zero = |size: Option<Spanned<ByteSize>>| match size {
        Some(zero) if zero.get_ref().as_u64() == 0 => Err(nothing(zero.span().start)),
        size => Ok(size.map_or(0, |size| size.get_ref().as_u64())),
    };
    let some = |number: Option<Spanned<u64>>| match number {
        Some(zero) if *zero.get_ref() == 0 => Err(nothing(zero.span().start)),
        number => Ok(number.map_or(0, |number| *number.get_ref())),
    };
    let name: Arc<str> = raw.name.get_ref().0.as_str().into();
    let rule = |rule: RawRule| {
        let rights = rule.allow.iter().fold(Rights::NONE, |rights, right| match right {
            DataRight::Read => Rights { read: true, ..rights },
            DataRight::Write => Rights { write: true, ..rights },
        });
        NamespaceRule { model: rule.model, digest: rule.digest, rights }
    };
    Ok(TenantSpec {
        domain: raw.share.map_or_else(|| Arc::clone(&name), |share| share.get_ref().0.as_str().into()),
        name,
        identities: raw.identities.into_iter().map(Spanned::into_inner).collect(),
        everywhere: Rights::of(&raw.allow),
        namespaces: raw.namespaces.into_iter().map(rule).collect(),
        shared_memory: raw.shared_memory,
        quota: DomainQuota {
            bytes: above_zero(raw.quota.bytes)?,
            chunks: some(raw.quota.chunks)?,
            sessions: some(raw.quota.sessions)?,
            watchers: some(raw.quota.watchers)?,
            staging_bytes: above_zero(raw.quota.staging_bytes)?,
            inflight_bytes: above_zero(raw.quota.inflight_bytes)?,
        },
        store_rate_bytes: above_zero(raw.quota.store_bytes_per_second)?,
        read_rate_bytes: above_zero(raw.quota.read_bytes_per_second)?,
    })
}

fn nothing(at: usize) -> Wrong {
    Wrong { at, advice: "a quota is more than 0: leave it out for no limit, or take the right away".into() }
}

#[cfg(test)]
mod tests;
