//! The one error type of this crate. Misses, refused items and lost daemons are data (`Reason`), not errors:
//! what is here keeps a client from being made at all, or answers an operator's direct question.

use std::io;

use tender_proto::Refusal;

/// Why a client could not be made, or an operator's call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A configuration value cannot work.
    #[error("{key} = '{value}' cannot be used: {advice}")]
    Config {
        /// The key as written in the configuration.
        key: &'static str,
        /// The value as written.
        value: String,
        /// What to write instead.
        advice: &'static str,
    },
    /// The operating system refused something a client needs, such as a thread.
    #[error("cannot start {what}: {source}")]
    Start {
        /// What was to be started.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// Spans cannot be sent.
    #[error(transparent)]
    Trace(#[from] tender_trace::OpenError),
    /// An operator asked for a daemon that is ready.
    #[error("the daemon at {address} answers and is not ready: it starts or drains")]
    NotReady {
        /// Where it was asked.
        address: String,
    },
    /// The daemon, or a check of this side, said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
}
