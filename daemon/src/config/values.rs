//! Values as people write them, on a command line and in a file alike.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;

/// How log lines look.
#[derive(ValueEnum, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Words that do not make a value, and what would.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

fn unreadable(text: &str, advice: &str) -> Unreadable {
    Unreadable(format!("'{}': {advice}", text.escape_debug()))
}

/// Reads a type from a string of the file by its `FromStr`, so that flags and file agree.
macro_rules! from_string {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = Unreadable;
            fn try_from(text: String) -> Result<Self, Unreadable> {
                text.parse()
            }
        }
    };
}

/// An address to listen on, as configured.
#[derive(Deserialize, Clone, PartialEq, Eq, Hash, Debug)]
#[serde(try_from = "String")]
pub enum Listen {
    /// A Unix socket, and beside it `PATH.fd` for descriptors.
    Unix(PathBuf),
    /// A TCP port, without encryption.
    Tcp(HostPort),
    /// A TCP port that speaks TLS.
    Tls(HostPort),
}
from_string!(Listen);

impl FromStr for Listen {
    type Err = Unreadable;
    fn from_str(text: &str) -> Result<Self, Unreadable> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(unreadable(text, "name the socket's path: unix:/run/tender/tenderd.sock")),
                path => Ok(Self::Unix(path.into())),
            };
        }
        if let Some(rest) = text.strip_prefix("tls:") {
            return Ok(Self::Tls(rest.strip_prefix("//").unwrap_or(rest).parse()?));
        }
        match text.strip_prefix("tcp:") {
            Some(rest) => Ok(Self::Tcp(rest.strip_prefix("//").unwrap_or(rest).parse()?)),
            None => Err(unreadable(text, "write unix:PATH, tls://HOST:PORT or tcp://HOST:PORT")),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(at) => write!(f, "tcp://{at}"),
            Self::Tls(at) => write!(f, "tls://{at}"),
        }
    }
}

/// A name or address, and a port; an IPv6 address stands in brackets.
#[derive(Deserialize, Clone, PartialEq, Eq, Hash, Debug)]
#[serde(try_from = "String")]
pub struct HostPort(String);
from_string!(HostPort);

impl HostPort {
    /// As the system's resolver takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// Whether the host is one, and not every address of this host.
    pub(crate) fn is_one_host(&self) -> bool {
        let host = self.0.rsplit_once(':').map_or("", |(host, _)| host);
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        !bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified()) && bare != "*"
    }
    /// 0 where the system chooses.
    pub(crate) fn port(&self) -> u16 {
        self.0.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0)
    }
}

impl FromStr for HostPort {
    type Err = Unreadable;
    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let advice = "write HOST:PORT, for example 127.0.0.1:9470 or [::1]:9470";
        let (host, port) = text.rsplit_once(':').ok_or_else(|| unreadable(text, advice))?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let plain = !host.is_empty() && !host.contains([':', '/', '[', ']', ' ']);
        match (bare.is_some() || plain, port.parse::<u16>()) {
            (true, Ok(_)) => Ok(Self(text.to_owned())),
            _ => Err(unreadable(text, advice)),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A time as people write it.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(try_from = "String")]
pub(super) struct Span(pub(super) Duration);
from_string!(Span);

impl FromStr for Span {
    type Err = Unreadable;
    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let parsed = humantime::parse_duration(text);
        parsed
            .map(Self)
            .map_err(|_| unreadable(text, "write a time with its unit, for example 500ms, 30s or 2m"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// Permission bits, octal.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(try_from = "String")]
pub(super) struct FileMode(pub(super) u32);
from_string!(FileMode);

impl FromStr for FileMode {
    type Err = Unreadable;
    fn from_str(text: &str) -> Result<Self, Unreadable> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err(unreadable(text, "write a file mode in octal digits, for example 0600 or 0660")),
        }
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}
