//! A store that outlives all daemons.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

use super::shown::{Change, shown};

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Shared store: chunks that outlive all daemons")]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct SharedSettings {
    /// Where it is: fs:///FOLDER, s3://BUCKET/PREFIX?endpoint=URL&region=NAME, or redis://HOST:PORT/DB?prefix=NAME&ttl=TIME.
    /// No secrets here.
    // Read as plain text: an error of the parsers would repeat it, and somebody may have put a password in.
    #[arg(id = "shared-uri", long = "shared-uri", value_name = "URI", env = "TENDERD_SHARED_URI")]
    pub(in crate::config) uri: Option<String>,
    /// TOML file with access_key_id and secret_access_key (and session_token), or username and password. Without it, S3
    /// looks where AWS's own tools do (AWS_ACCESS_KEY_ID and so on) and Redis takes REDISCLI_AUTH.
    #[arg(
        id = "shared-credentials",
        long = "shared-credentials",
        value_name = "FILE",
        env = "TENDERD_SHARED_CREDENTIALS"
    )]
    pub(in crate::config) credentials: Option<PathBuf>,
    /// Requests under way at once.
    #[arg(
        id = "shared-max-requests",
        long = "shared-max-requests",
        value_name = "N",
        env = "TENDERD_SHARED_MAX_REQUESTS"
    )]
    pub(in crate::config) max_requests: Option<usize>,
    /// Chunks being written at once; one more is not kept.
    #[arg(
        id = "shared-max-uploads",
        long = "shared-max-uploads",
        value_name = "N",
        env = "TENDERD_SHARED_MAX_UPLOADS"
    )]
    pub(in crate::config) max_uploads: Option<usize>,
}
overlay!(SharedSettings { uri, credentials, max_requests, max_uploads } {});
