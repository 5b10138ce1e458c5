//! An authority and a certificate for one run, and what both yardsticks and daemon make of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::failed;
use crate::credentials::TlsConfig;
use crate::error::ClientError;

const NAME: &str = "localhost";

/// Files of a folder, which whoever made it removes.
#[derive(Clone, Debug)]
pub(super) struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// Makes them.
    pub(super) fn make(dir: &Path) -> Result<Self, ClientError> {
        let made = Self::in_folder(dir);
        let [authority, certificate, key] = issue().map_err(|error| failed("certificates", error))?;
        for (path, text) in
            [(made.authority(), authority), (made.certificate(), certificate), (made.key(), key)]
        {
            std::fs::write(&path, text)
                .map_err(|error| failed("certificates", format!("{}: {error}", path.display())))?;
        }
        Ok(made)
    }

    /// Those that another process has made there.
    pub(super) fn in_folder(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.dir
    }
    pub(super) fn certificate(&self) -> PathBuf {
        self.dir.join("cert.pem")
    }
    pub(super) fn key(&self) -> PathBuf {
        self.dir.join("key.pem")
    }
    fn authority(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// For a client of the daemon.
    pub(super) fn client(&self) -> TlsConfig {
        TlsConfig { ca: Some(self.authority()), server_name: Some(NAME.into()), ..TlsConfig::default() }
    }

    /// For the yardstick's serving side: TLS 1.3 and nothing else, as its other side.
    pub(super) fn acceptor(&self) -> Result<TlsAcceptor, ClientError> {
        let error = |error: &dyn std::fmt::Display| failed("the bare peer's TLS", error);
        let chain = CertificateDer::from_pem_file(self.certificate()).map_err(|why| error(&why))?;
        let key = PrivateKeyDer::from_pem_file(self.key()).map_err(|why| error(&why))?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![chain], key))
            .map_err(|why| error(&why))?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// For its asking side.
    pub(super) fn connector(&self) -> Result<(TlsConnector, ServerName<'static>), ClientError> {
        let error = |error: &dyn std::fmt::Display| failed("the bare peer's TLS", error);
        let authority = CertificateDer::from_pem_file(self.authority()).map_err(|why| error(&why))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(|why| error(&why))?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|why| error(&why))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(NAME).map_err(|why| error(&why))?;
        Ok((TlsConnector::from(Arc::new(config)), name))
    }
}

/// The daemon's and the client's own.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Authority, certificate and its key, PEM.
fn issue() -> Result<[String; 3], rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec![NAME.to_owned()])?.signed_by(&key, &authority)?;
    Ok([authority.pem(), certificate.pem(), key.serialize_pem()])
}
