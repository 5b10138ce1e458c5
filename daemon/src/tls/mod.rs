//! Certificates: for the listeners of this daemon and for its connections to others, read from the same files, and read
//! again when these change. What is in force is only ever a set of files that fit together.

mod accept;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

pub(crate) use accept::shake;

/// HTTP/2 is all that is spoken here.
const ALPN: &[u8] = b"h2";

/// Which files, and what clients must show. All are checked to be there together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsConfig {
    /// The daemon's certificate with its chain, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Authorities of the clients' certificates, PEM; there unless `client_auth` is none.
    pub client_ca: Option<PathBuf>,
    /// What clients must show.
    pub client_auth: ClientAuth,
}

/// What clients must show on a TLS listener.
#[derive(clap::ValueEnum, serde::Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// A certificate of a known authority.
    Required,
    /// The same, or none: for callers with a bearer token.
    Optional,
    /// Nothing is asked for.
    None,
}

/// Why certificates are not used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is no PEM of its kind.
    #[error("the {what} in {}: {why}", path.display())]
    File {
        /// What it should be.
        what: &'static str,
        /// As configured.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Each can be read, but not used together.
    #[error("the certificate in {} and the key in {}: {source}", cert.display(), key.display())]
    Pair {
        /// As configured.
        cert: PathBuf,
        /// As configured.
        key: PathBuf,
        /// What does not fit.
        source: rustls::Error,
    },
}

/// What is in force.
#[derive(Debug)]
pub(crate) struct Tls {
    config: TlsConfig,
    current: ArcSwap<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    server: Arc<ServerConfig>,
    client: ClientTlsConfig,
    /// What, and until when, in seconds since 1970.
    expiries: Vec<(&'static str, u64)>,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn load(config: TlsConfig) -> Result<Self, TlsError> {
        // Whoever installed one before has installed the same.
        _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let loaded = read(&config)?;
        Ok(Self { config, current: ArcSwap::from_pointee(loaded) })
    }

    /// Reads them again, for connections that come from now on. Files that cannot be used change nothing.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        self.current.store(Arc::new(read(&self.config)?));
        Ok(())
    }

    /// All files that are read.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let TlsConfig { cert, key, client_ca, .. } = &self.config;
        [Some(cert), Some(key), client_ca.as_ref()].into_iter().flatten().cloned().collect()
    }

    /// The end of the certificate's time that is in the file now, in seconds since 1970.
    pub(crate) fn expires_unix_s(&self) -> Option<u64> {
        expiry(certificates("certificate", &self.config.cert).ok()?.first()?)
    }

    /// When what is in force ends, in seconds since 1970: the daemon's own, and the first of the clients' authorities.
    pub(crate) fn expiries(&self) -> Vec<(&'static str, u64)> {
        self.current.load().expiries.clone()
    }

    /// For a listener.
    fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().server)
    }

    /// For a connection to another daemon: this daemon's certificate is shown, the other's must be of an authority of
    /// `client_ca` and have `name` among its alternative names. Bounded by `limit`.
    pub(crate) fn client(&self, name: &str, limit: Duration) -> ClientTlsConfig {
        self.current.load().client.clone().domain_name(name).timeout(limit)
    }
}

fn read(config: &TlsConfig) -> Result<Loaded, TlsError> {
    let TlsConfig { cert, key, client_ca, client_auth } = config;
    let chain = certificates("certificate", cert)?;
    let authorities = client_ca.as_deref().map(|ca| certificates("client authority", ca)).transpose()?;
    let first = authorities.iter().flatten().filter_map(expiry).min();
    let ends = [("server", chain.first().and_then(expiry)), ("client_ca", first)];
    let expiries = ends.into_iter().filter_map(|(what, end)| Some((what, end?))).collect();
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| file("private key", key, &error))?;
    let builder = ServerConfig::builder();
    let verifier = match (client_ca, client_auth) {
        (Some(ca), ClientAuth::Required | ClientAuth::Optional) => {
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots(ca)?));
            let verifier = if *client_auth == ClientAuth::Optional {
                verifier.allow_unauthenticated()
            } else {
                verifier
            };
            Some(verifier.build().map_err(|error| file("client authority", ca, &error))?)
        }
        _ => None,
    };
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut server = builder.with_single_cert(chain, private).map_err(|source| TlsError::Pair {
        cert: cert.clone(),
        key: key.clone(),
        source,
    })?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    // A session that is resumed brings its client certificate along unverified: each connection shows it anew, so that
    // one that has expired opens none.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    let mut client = ClientTlsConfig::new()
        .identity(Identity::from_pem(text("certificate", cert)?, text("private key", key)?));
    if let Some(ca) = client_ca {
        client = client.ca_certificate(Certificate::from_pem(text("client authority", ca)?));
    }
    Ok(Loaded { server: Arc::new(server), client, expiries })
}

/// The end of a certificate's time.
fn expiry(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    u64::try_from(certificate.validity().not_after.timestamp()).ok()
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("client authority", path)? {
        roots.add(certificate).map_err(|error| file("client authority", path, &error))?;
    }
    Ok(roots)
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(none) if none.is_empty() => {
            Err(file(what, path, &"there is no -----BEGIN CERTIFICATE----- in it"))
        }
        read => read.map_err(|error| file(what, path, &error)),
    }
}

fn text(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| file(what, path, &error))
}

fn file(what: &'static str, path: &Path, why: &dyn std::fmt::Display) -> TlsError {
    TlsError::File { what, path: path.to_owned(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(dir: &Path) -> TlsConfig {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["tender.example".into()]).unwrap();
        let cert = params.self_signed(&key).unwrap();
        let config = TlsConfig {
            cert: dir.join("cert.pem"),
            key: dir.join("key.pem"),
            client_ca: Some(dir.join("cert.pem")),
            client_auth: ClientAuth::Required,
        };
        std::fs::write(&config.cert, cert.pem()).unwrap();
        std::fs::write(&config.key, key.serialize_pem()).unwrap();
        config
    }

    /// A handshake in memory, and what the daemon sends after it.
    fn shake(
        server: &Arc<ServerConfig>,
        client: &Arc<rustls::ClientConfig>,
    ) -> Option<rustls::HandshakeKind> {
        let name = "tender.example".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::clone(client), name).unwrap();
        let mut server = rustls::ServerConnection::new(Arc::clone(server)).unwrap();
        for _ in 0..6 {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            while client.wants_write() {
                client.write_tls(&mut there).unwrap();
            }
            let mut rest = there.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets().unwrap();
            }
            while server.wants_write() {
                server.write_tls(&mut back).unwrap();
            }
            let mut rest = back.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        server.handshake_kind()
    }

    #[test]
    fn every_connection_shows_its_certificate_anew() {
        use rustls::HandshakeKind::{Full, Resumed};

        let dir = tempfile::tempdir().unwrap();
        let config = written(dir.path());
        let server = Tls::load(config.clone()).unwrap().server();
        // As it would be otherwise: then the same two clients resume their sessions.
        let mut resuming = ServerConfig::clone(&server);
        resuming.session_storage = rustls::server::ServerSessionMemoryCache::new(8);
        resuming.send_tls13_tickets = 2;
        let resuming = Arc::new(resuming);
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let client = || {
                let key = PrivateKeyDer::from_pem_file(&config.key).unwrap();
                rustls::ClientConfig::builder_with_protocol_versions(&[version])
                    .with_root_certificates(roots(&config.cert).unwrap())
                    .with_client_auth_cert(certificates("certificate", &config.cert).unwrap(), key)
                    .map(Arc::new)
                    .unwrap()
            };
            let (client, other) = (client(), client());
            assert_eq!([shake(&resuming, &other), shake(&resuming, &other)], [Some(Full), Some(Resumed)]);
            assert_eq!([shake(&server, &client), shake(&server, &client)], [Some(Full), Some(Full)]);
        }
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_what_is_wrong_and_the_old_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let config = written(dir.path());
        let tls = Tls::load(config.clone()).unwrap();
        let before = tls.server();
        let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
        for (path, text, words) in [
            (&config.cert, "nothing of the kind", "BEGIN CERTIFICATE"),
            (&config.cert, "-----BEGIN CERTIFICATE-----\nAAAA\n", "certificate"),
            (&config.key, "", "private key"),
            (&config.key, other.as_str(), "key.pem"),
        ] {
            let good = std::fs::read(path).unwrap();
            std::fs::write(path, text).unwrap();
            let error = tls.reload().unwrap_err().to_string();
            assert!(error.contains(words) && error.contains(".pem"), "'{words}' is not in: {error}");
            assert!(Arc::ptr_eq(&before, &tls.server()), "the old ones stay");
            std::fs::write(path, good).unwrap();
        }
        let ends = tls.expires_unix_s().unwrap();
        assert_eq!(tls.expiries(), [("server", ends), ("client_ca", ends)], "one file is both here");
        tls.reload().unwrap();
        assert!(!Arc::ptr_eq(&before, &tls.server()));
        std::fs::remove_file(&config.key).unwrap();
        assert!(tls.reload().unwrap_err().to_string().contains("key.pem"));
        assert_eq!(tls.files().len(), 3);
    }
}
