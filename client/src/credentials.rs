//! How a client and a daemon know each other: certificates for TLS, and a bearer token.
//!
//! The files are read anew for each connection, so that a renewed certificate or token needs no restart.

use std::path::{Path, PathBuf};

use http::HeaderValue;
use serde::{Deserialize, Serialize};
use tender_proto::{Reason, Refusal};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::error::ClientError;

/// The certificates of a `tls://` address. Ignored for other addresses.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// PEM file of the authorities that may have signed the daemon's certificate. Required for `tls://`: the system's
    /// own authorities have no business with a daemon's port.
    pub ca: Option<PathBuf>,
    /// PEM file of this client's certificate, with the chain behind it. Together with `key`.
    pub cert: Option<PathBuf>,
    /// PEM file of its private key.
    pub key: Option<PathBuf>,
    /// The name that the daemon's certificate must have, where it is not the address's host.
    pub server_name: Option<String>,
}

/// Everything a client shows a daemon, and what it wants to see of it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Credentials {
    /// For `tls://` addresses.
    pub tls: TlsConfig,
    /// File whose one line is sent as bearer token; never over plain TCP.
    pub token_file: Option<PathBuf>,
}

impl TlsConfig {
    /// Refuses halves that cannot work, naming the key.
    pub(crate) fn check(&self) -> Result<(), ClientError> {
        if self.cert.is_some() == self.key.is_some() {
            return Ok(());
        }
        let (key, value) = match (&self.cert, &self.key) {
            (Some(cert), _) => ("tls.cert", cert.display().to_string()),
            (None, key) => ("tls.key", key.as_deref().unwrap_or(Path::new("")).display().to_string()),
        };
        Err(ClientError::Config { key, value, advice: "give both tls.cert and tls.key, or neither" })
    }

    /// Reads the files.
    pub(crate) fn load(&self) -> Result<ClientTlsConfig, Refusal> {
        let Some(ca) = &self.ca else {
            let advice = "set tls.ca to the file of the authority that signed the daemon's certificate";
            return Err(Refusal::new(Reason::Unreachable, "a tls:// address without an authority", advice));
        };
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?));
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        if let Some(name) = &self.server_name {
            tls = tls.domain_name(name.clone());
        }
        Ok(tls)
    }
}

impl Credentials {
    /// The value of the header, if there is a token.
    pub(crate) fn bearer(&self) -> Result<Option<HeaderValue>, Refusal> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let text = String::from_utf8(read(path)?).unwrap_or_default();
        let token = text.trim();
        let value = (!token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic()))
            .then(|| HeaderValue::try_from(format!("Bearer {token}")).ok())
            .flatten();
        value.map(Some).ok_or_else(|| {
            let subject = format!("the token file {}", path.display());
            Refusal::new(Reason::Unreachable, subject, "write one line of visible ASCII characters into it")
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Refusal> {
    std::fs::read(path).map_err(|cause| {
        let subject = format!("the file {} ({cause})", path.display());
        Refusal::new(Reason::Unreachable, subject, "correct the path, or let this user read it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_without_its_key_is_refused() {
        let half = TlsConfig { cert: Some("/c.pem".into()), ..TlsConfig::default() };
        assert!(half.check().unwrap_err().to_string().contains("tls.cert"));
        let half = TlsConfig { key: Some("/k.pem".into()), ..TlsConfig::default() };
        assert!(half.check().unwrap_err().to_string().contains("tls.key"));
        TlsConfig::default().check().unwrap();
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let tls = TlsConfig { ca: Some("/nonexistent/ca.pem".into()), ..TlsConfig::default() };
        assert!(tls.load().unwrap_err().to_string().contains("/nonexistent/ca.pem"));
        assert!(TlsConfig::default().load().unwrap_err().to_string().contains("tls.ca"));
    }

    #[test]
    fn a_token_is_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let bearer = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Credentials { token_file: Some(path.clone()), ..Credentials::default() }.bearer()
        };
        assert_eq!(bearer("secret\n").unwrap().unwrap(), "Bearer secret");
        for bad in ["", "\n", "two words", "two\nlines", "\u{e9}"] {
            assert!(bearer(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Credentials::default().bearer().unwrap(), None);
    }
}
