//! Where a call came from, as the connection says, and the name that follows from it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::unix::UCred;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The other end of a connection.
#[derive(Debug)]
pub(crate) enum Peer {
    /// Over a Unix socket; its credentials if the system told them.
    Local(Option<UCred>),
    /// Over plain TCP.
    Plain(Option<SocketAddr>),
    /// Over TLS.
    Tls {
        address: Option<SocketAddr>,
        /// Verified; `None` where it showed none.
        certificate: Option<Certificate>,
        /// Whether the listener takes callers without one as a matter of course (`--tls-client-auth none`).
        unasked: bool,
    },
}

/// What a verified client certificate says about its owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Certificate {
    /// URIs among the alternative names, a SPIFFE id among them.
    pub(crate) uris: Vec<Arc<str>>,
    /// DNS names, in lower case.
    pub(crate) dns: Vec<Arc<str>>,
    /// BLAKE3 over the certificate.
    pub(crate) digest: blake3::Hash,
}

impl Certificate {
    /// Reads the names out of a certificate that was verified already. One that cannot be read has no names.
    pub(crate) fn read(der: &[u8]) -> Self {
        let mut read = Self { uris: Vec::new(), dns: Vec::new(), digest: blake3::hash(der) };
        let Ok((_, certificate)) = X509Certificate::from_der(der) else { return read };
        let Ok(Some(names)) = certificate.subject_alternative_name() else { return read };
        for name in &names.value.general_names {
            match name {
                GeneralName::URI(uri) => read.uris.push((*uri).into()),
                GeneralName::DNSName(name) => read.dns.push(name.to_ascii_lowercase().into()),
                _ => {}
            }
        }
        read
    }

    /// Every name it can be known by, the most telling first.
    pub(crate) fn callers(&self) -> Vec<Caller> {
        let uris = self.uris.iter().cloned().map(Caller::Uri);
        uris.chain(self.dns.iter().cloned().map(Caller::Dns)).collect()
    }
}

/// Who calls, by the one name that counts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Caller {
    /// A process of this user, over a Unix socket.
    Uid(u32),
    /// A certificate's URI.
    Uri(Arc<str>),
    /// A certificate's DNS name, in lower case.
    Dns(Arc<str>),
    /// A certificate without either, by its digest.
    Certificate(blake3::Hash),
    /// Whoever has the token with this digest.
    Token(blake3::Hash),
    /// Nobody in particular.
    Anonymous,
}

impl Peer {
    /// The name of a caller without a token.
    pub(crate) fn caller(&self) -> Caller {
        match self {
            Self::Local(Some(cred)) => Caller::Uid(cred.uid()),
            Self::Tls { certificate: Some(certificate), .. } => {
                certificate.callers().into_iter().next().unwrap_or(Caller::Certificate(certificate.digest))
            }
            Self::Local(None) | Self::Plain(_) | Self::Tls { certificate: None, .. } => Caller::Anonymous,
        }
    }
    /// Whether what is sent here can be read on the way.
    pub(crate) fn is_in_the_clear(&self) -> bool {
        matches!(self, Self::Plain(_))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(Some(cred)) => write!(f, "local uid={} pid={}", cred.uid(), cred.pid().unwrap_or(0)),
            Self::Plain(Some(address)) => address.fmt(f),
            Self::Tls { address: Some(address), .. } => write!(f, "{address} (tls, {})", self.caller()),
            Self::Local(None) | Self::Plain(None) | Self::Tls { address: None, .. } => f.write_str("unknown"),
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough of a digest to find it in the policy.
        let short = |digest: &blake3::Hash| digest.to_hex()[..16].to_owned();
        match self {
            Self::Uid(uid) => write!(f, "uid:{uid}"),
            // What a foreign certificate says goes into log lines.
            Self::Uri(uri) => write!(f, "{}", uri.escape_debug()),
            Self::Dns(name) => write!(f, "dns:{}", name.escape_debug()),
            Self::Certificate(digest) => write!(f, "certificate-blake3:{}", short(digest)),
            Self::Token(digest) => write!(f, "token-blake3:{}", short(digest)),
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}
