//! What a reload has found, in words.

use std::path::PathBuf;

use bytesize::ByteSize;

use tender_trace::{Endpoint, Ratio};

use crate::config::values::{FileMode, HostPort, Listen, LogFormat, Span};
use crate::engine::Eviction;
use crate::tier::peers::DirectoryUri;
use crate::tls::ClientAuth;

/// A key of the file whose value is another one now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    /// As in the file, `table.key`.
    pub(crate) key: String,
    /// What was in force.
    pub(crate) old: String,
    /// What stands there now.
    pub(crate) new: String,
    /// Whether it can be used without a restart.
    pub(crate) used: bool,
}

/// A value in a log line. No secret: those that may hold one hide it.
pub(in crate::config) trait Shown {
    fn shown(&self) -> String;
}

macro_rules! shown_as_displayed {
    ($($name:ty),*) => {
        $(impl Shown for $name {
            fn shown(&self) -> String {
                self.to_string()
            }
        })*
    };
}
shown_as_displayed!(
    String,
    bool,
    usize,
    u32,
    ByteSize,
    Span,
    FileMode,
    HostPort,
    Listen,
    DirectoryUri,
    Endpoint,
    Ratio
);

impl Shown for PathBuf {
    fn shown(&self) -> String {
        self.display().to_string()
    }
}

impl Shown for Vec<Listen> {
    fn shown(&self) -> String {
        self.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

impl Shown for LogFormat {
    fn shown(&self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl Shown for Eviction {
    fn shown(&self) -> String {
        match self {
            Self::TwoQueue => "two-queue".into(),
            Self::Lru => "lru".into(),
        }
    }
}

impl Shown for ClientAuth {
    fn shown(&self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

pub(in crate::config) fn shown<T: Shown>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "default".to_owned(), Shown::shown)
}
