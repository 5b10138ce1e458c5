//! Certificates.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

use super::shown::{Change, shown};
use crate::tls::ClientAuth;

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(
    next_help_heading = "TLS, for tls:// addresses; files are read again on SIGHUP and when they change"
)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct TlsSettings {
    /// The daemon's certificate with its chain, PEM.
    #[arg(id = "tls-cert", long = "tls-cert", value_name = "FILE", env = "TENDERD_TLS_CERT")]
    pub(in crate::config) cert: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(id = "tls-key", long = "tls-key", value_name = "FILE", env = "TENDERD_TLS_KEY")]
    pub(in crate::config) key: Option<PathBuf>,
    /// Authorities that may have signed the certificates of clients and of other daemons, PEM.
    #[arg(id = "tls-client-ca", long = "tls-client-ca", value_name = "FILE", env = "TENDERD_TLS_CLIENT_CA")]
    pub(in crate::config) client_ca: Option<PathBuf>,
    /// Whether clients must show a certificate: required, optional (for those with a bearer token), or none.
    #[arg(
        id = "tls-client-auth",
        long = "tls-client-auth",
        value_name = "WHAT",
        env = "TENDERD_TLS_CLIENT_AUTH"
    )]
    pub(in crate::config) client_auth: Option<ClientAuth>,
}
overlay!(TlsSettings { cert, key, client_ca, client_auth } {});
