//! Which daemon holds what, and where this one is reached.

use clap::Args;
use serde::Deserialize;

use super::shown::{Change, shown};
use crate::config::values::{Listen, Span};
use crate::tier::peers::DirectoryUri;

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Directory: which daemon holds what, in a store of the Redis protocol")]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct DirectorySettings {
    /// Where it is: redis://HOST:PORT, rediss://HOST:PORT (TLS), redis+sentinel://HOST:PORT,HOST:PORT/SERVICE or
    /// redis+cluster://HOST:PORT,HOST:PORT, with USER:PASSWORD@ in front of the hosts if need be. Give it as a variable or
    /// in the file where others can see this host's command lines.
    #[arg(id = "directory-uri", long = "directory", value_name = "URI", env = "TENDERD_DIRECTORY")]
    pub(in crate::config) uri: Option<DirectoryUri>,
    /// In front of all keys. Daemons with the same prefix share chunks.
    #[arg(
        id = "directory-prefix",
        long = "directory-prefix",
        value_name = "NAME",
        env = "TENDERD_DIRECTORY_PREFIX"
    )]
    pub(in crate::config) prefix: Option<String>,
    /// How long what a daemon says in it is good unless it is said again.
    #[arg(id = "directory-ttl", long = "directory-ttl", value_name = "TIME", env = "TENDERD_DIRECTORY_TTL")]
    pub(in crate::config) ttl: Option<Span>,
    /// How long an answer may take.
    #[arg(
        id = "directory-timeout",
        long = "directory-timeout",
        value_name = "TIME",
        env = "TENDERD_DIRECTORY_TIMEOUT"
    )]
    pub(in crate::config) timeout: Option<Span>,
    /// Chunks that it is told of again each second at most. All of them should be within a third of --directory-ttl.
    #[arg(
        id = "directory-publish-rate",
        long = "directory-publish-rate",
        value_name = "N",
        env = "TENDERD_DIRECTORY_PUBLISH_RATE"
    )]
    pub(in crate::config) publish_rate: Option<usize>,
}
overlay!(DirectorySettings { uri, prefix, ttl, timeout, publish_rate } {});

#[derive(Args, Deserialize, Default, Clone, PartialEq, Debug)]
#[command(next_help_heading = "Peers: other daemons, found through the directory")]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct PeerSettings {
    /// Where other daemons reach this one: tcp://HOST:PORT.
    #[arg(long, value_name = "ADDRESS", env = "TENDERD_ADVERTISE")]
    pub(in crate::config) advertise: Option<Listen>,
}
overlay!(PeerSettings { advertise } {});
