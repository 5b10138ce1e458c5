//! What a user chooses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where ended spans go, and how many. Without an endpoint nothing is recorded; a caller's trace is handed on all the
/// same.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceConfig {
    /// A collector that takes OTLP over gRPC, `http://HOST:PORT`.
    pub endpoint: Option<Endpoint>,
    /// Of the traces that begin here, this share is recorded, 0 to 1. Those that a caller has begun are recorded if it says so.
    pub ratio: Ratio,
}

/// Why a value cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(&'static str);

/// `http://HOST:PORT`. Not encrypted: a collector stands beside the program or on its node, and sends on from there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint(String);

impl FromStr for Endpoint {
    type Err = Unusable;
    fn from_str(text: &str) -> Result<Self, Unusable> {
        const FORM: Unusable = Unusable("write http://HOST:PORT of a collector that takes OTLP over gRPC");
        let uri: http::Uri = text.parse().map_err(|_| FORM)?;
        if uri.scheme_str() == Some("https") {
            return Err(Unusable(
                "send to a collector on this host over http://; it encrypts what it sends on",
            ));
        }
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or(FORM)?;
        let plain = !authority.as_str().contains('@') && !authority.host().is_empty();
        let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        match authority.port_u16() {
            Some(1..) if plain && bare => Ok(Self(format!("http://{authority}"))),
            _ => Err(FORM),
        }
    }
}

impl TryFrom<String> for Endpoint {
    type Error = Unusable;
    fn try_from(text: String) -> Result<Self, Unusable> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.0
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A share, 0 to 1, to the millionth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Ratio {
    millionths: u32,
}

impl Ratio {
    /// All of them.
    pub const ALL: Self = Self { millionths: 1_000_000 };

    /// As a number.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from(self.millionths) / 1e6
    }
}

impl Default for Ratio {
    fn default() -> Self {
        Self::ALL
    }
}

impl TryFrom<f64> for Ratio {
    type Error = Unusable;
    fn try_from(share: f64) -> Result<Self, Unusable> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Unusable("use a share from 0 to 1, such as 0.01"));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is 0 to a million")]
        Ok(Self { millionths: (share * 1e6).round() as u32 })
    }
}

impl From<Ratio> for f64 {
    fn from(ratio: Ratio) -> Self {
        ratio.get()
    }
}

impl FromStr for Ratio {
    type Err = Unusable;
    fn from_str(text: &str) -> Result<Self, Unusable> {
        text.parse::<f64>().unwrap_or(f64::NAN).try_into()
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}
